"""narrow_loop: runs a loop only where the condition of its block may hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import NamedTuple

from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.ir.expr import GE, GT, LE, LT, Compare, Expr, Var, as_expr, as_int, logical_and
from metasched.ir.stmt import BlockRealize, Break, For, IfThenElse, evolve
from metasched.ir.visit import free_vars, reads_memory, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_jumps,
    require_one_block,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.loop_partition import reduces
from metasched.schedule.rebind import ranges_of, rebind
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def narrow_loop(state: State, loop: LoopRV) -> LoopRV:
    """Run `loop` only where the condition of the block below may hold; returns the new loop.

    The conditions are the block's predicate and, without an init, the `if` around its body. They
    give the first and the last iteration, which loops around may move: in row i of a band, j runs
    from i - 1 to i + 1. The new loop counts from zero as many iterations as any
    place needs. The block keeps the condition that its iterations are those of the old loop, where
    this is not proved. Iterations that the step leaves out did nothing, so the step is always
    legal.

    requires  a serial loop of constant extent that holds loops and one block alone, without
              annotation, thread binding and break; conditions of this block, linear in the loop,
              that leave a constant number of iterations, less than its extent, in each iteration
              of the loops around; no init of the block for which `loop` counts
    rewrite   for i, j in T.grid(8, 8): where(i <= j and j < i + 3) S(i, j)
              ->
              for i, j_narrow in T.grid(8, 3): where(i + j_narrow < 8) S(i, i + j_narrow)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    require_steady_ends(state, [node])
    realize = require_one_block(state, node)
    if any(node in around for _, around in state.scope(node).loose):
        text = f"the loop {node.var.name} holds more than loops and a block"
        raise state.error("not-structured", text, node)
    if realize.block.init is not None and reduces(realize, node.var):
        raise state.error(
            "cut-reduction", f"{node.var.name} counts for the init of {realize.block.name}", node,
            hint="decompose_reduction gives the init loops of its own",
        )  # fmt: skip
    above = state.loops_above(node)
    inner = {loop.var for loop in state.loops_above(realize)[len(above) :]}
    found = _shortest(node, realize, inner, Analyzer(ranges_of(above)))
    if found is None:
        raise state.error(
            "no-narrower-range",
            f"no condition of {realize.block.name} leaves a constant number of iterations of "
            f"{node.var.name}, less than all",
            node,
            hint="a condition such as i <= j and j < i + 3 does",
        )
    var = state.fresh_var(f"{node.var.name}_narrow", node.var.dtype)
    new = For(var, as_expr(0, var.dtype), as_expr(found.length, var.dtype), node.kind, node.body)
    ranges = ranges_of([*above, new])
    at = Analyzer(ranges).simplify(found.low + var.astype(found.low.dtype))
    inside = logical_and(at >= node.min, at < node.min + node.extent)
    guard = Analyzer(ranges).simplify(inside)  # in the wider type; the value then fits the loop's
    body = rebind(node.body, {node.var: at.astype(var.dtype)}, ranges, guard)
    state.commit(edit.replace(node, evolve(new, body=body)), same_order=True)
    return state.new_loop(var)


class _Range(NamedTuple):
    """So many iterations from the first one."""

    low: Expr
    length: int


def _shortest(
    node: For, realize: BlockRealize, inner: Collection[Var], known: Analyzer
) -> _Range | None:
    """The shortest constant range outside of which a condition fails; None if it is no shorter than
    the loop."""
    size = as_int(node.extent)
    if size is None:
        return None
    lows, highs = [node.min], [node.min + node.extent - 1]
    for is_low, limit in _limits(node, realize):
        if not free_vars(limit).isdisjoint(inner):
            continue
        (lows if is_low else highs).append(limit)
    best: _Range | None = None
    for low, high in product(lows, highs):
        length = as_int(known.simplify(high - low + 1))
        if length is not None and 0 < length < (best.length if best else size):
            best = _Range(known.simplify(low), length)
    return best


def _conditions(realize: BlockRealize) -> list[Expr]:
    """The conditions of a block: its predicate and, without an init, the `if` around its body."""
    found, body = conjuncts(realize.predicate), realize.block.body
    while realize.block.init is None and isinstance(body, IfThenElse) and body.orelse is None:
        found += conjuncts(substitute(body.condition, realize.bindings))
        body = body.then
    return found


def _limits(node: For, realize: BlockRealize) -> Iterator[tuple[bool, Expr]]:
    """The first and the last iterations of a loop that conditions of a block allow: whether it is
    the first, and its number."""
    for condition in _conditions(realize):
        if not isinstance(condition, (LT, LE, GT, GE)) or reads_memory(condition):
            continue
        small, large = _sides(condition)
        form = linear(large - small)
        factor = form.terms.get(node.var, 0)
        if abs(factor) != 1:
            continue
        rest = large - small - factor * node.var  # factor * var + rest >= 0, or > 0
        limit = Analyzer().simplify(-rest if factor > 0 else rest)
        strict = isinstance(condition, (LT, GT))
        yield factor > 0, limit + (factor if strict else 0)


def _sides(condition: Compare) -> tuple[Expr, Expr]:
    """The smaller and the larger side of a comparison."""
    if isinstance(condition, (LT, LE)):
        return condition.a, condition.b
    return condition.b, condition.a
