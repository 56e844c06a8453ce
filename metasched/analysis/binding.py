"""Bindings: how the loops above a block give values to its iterators."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child
from metasched.arith.itermap import why_no_box
from metasched.ir.describe import show_expr
from metasched.ir.stmt import BlockRealize, For


def trivial_binding(
    target: Child | BlockRealize, loops: Sequence[For] | None = None
) -> Failure | None:
    """Whether iterator n is bound to loop n alone, and there are as many loops as iterators."""
    realize, above = _parts(target, loops)
    values = realize.iter_values
    same = len(values) == len(above)
    if same and all(v is loop.var for v, loop in zip(values, above, strict=True)):
        return None

    def sentence() -> str:
        bound = ", ".join(map(show_expr, values))
        names = ", ".join(loop.var.name for loop in above)
        return f"the iterators of block {realize.block.name} are bound to ({bound}), not ({names})"

    return Failure("not-trivial-binding", sentence, realize)


def _parts(
    target: Child | BlockRealize, loops: Sequence[For] | None
) -> tuple[BlockRealize, Sequence[For]]:
    if isinstance(target, Child):
        return target.realize, target.loops if loops is None else loops
    return target, loops or ()


def affine_binding(
    target: Child | BlockRealize, loops: Sequence[For] | None = None
) -> Failure | None:
    """Whether the bindings are a surjective affine map of the loops, leading term of scale 1.

    Cached on the block realize, by the loops that iterate.

    Args:
        target: the block; a Child brings the loops up to its scope.
        loops: the loops that iterate; variables of other loops are constants.
    """
    realize, above = _parts(target, loops)
    if not above or not realize.iter_values:
        return None
    key = ("affine", *[(p.var, p.min, p.extent) for p in above])
    facts = realize.facts
    if key not in facts:
        runs = {p.var: p for p in above}
        why = why_no_box(realize.iter_values, runs, realize.predicate, unit_steps=True)
        facts[key] = None if why is None else _not_affine(realize, why)
    return facts[key]  # type: ignore[no-any-return]


def _not_affine(realize: BlockRealize, why: str) -> Failure:
    def sentence() -> str:
        bound = ", ".join(
            f"{v.var.name} = {show_expr(e)}"
            for v, e in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        )
        return f"the bindings of block {realize.block.name} are not affine ({why}): {bound}"

    return Failure("not-affine", sentence, realize)
