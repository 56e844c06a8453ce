"""Affine expressions: the one reader of index expressions as sums, and their intervals.

`terms` reads an expression as a `Linear`: a sum of integer multiples of atoms and a constant. Every
analysis that needs such a sum calls `terms` and says two things: whether casts are read through,
and what else it knows of an atom. The views on top are

- `linear`, for questions about indices: casts that keep the value are read through;
- `linear_address`, for addresses: no cast is read through, and the two halves of a
  fused loop join;
- `Analyzer.linear`, for proofs: atoms are simplified by what is known of the variables;
- `iterform.Reader`, for iterator maps: the sum on the face of the expression, or the proved one;
- `cost.index_stride`, for the cost model: how far each loop moves an index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf
from typing import TypeAlias

from metasched.arith.linear import Linear, add_term
from metasched.ir.expr import (
    Add,
    Cast,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    floordiv,
)
from metasched.ir.op import Call

Interval: TypeAlias = tuple[float, float]
"""Smallest and largest value, both included: integers, or minus and plus infinity."""

Ranges: TypeAlias = Mapping[Var, Interval]

ANY: Interval = (-inf, inf)


def terms(
    expr: Expr, *, casts: bool = False, atoms: Callable[[Expr], Linear | None] | None = None
) -> Linear:
    """An integer expression as a sum of multiples of atoms, in the order of their appearance.

    An atom is a variable or anything else that is neither a sum nor a multiple by a constant:
    `i // 8`, `A[i]`, `i * n`. Iterative, so that sums of thousands of terms are legal.

    Args:
        casts: read through casts that keep the value of a signed integer; else they are atoms.
        atoms: what the caller knows an atom to be: a sum that stands for it, or None.
    """
    found: dict[Expr, int] = {}
    const = 0
    stack: list[tuple[Expr, int]] = [(expr, 1)]
    while stack:
        node, factor = stack.pop()
        kind = type(node)
        if kind is IntImm:
            const += factor * node.value  # type: ignore[attr-defined]
            continue
        if kind is Add:
            stack.append((node.b, factor))  # type: ignore[attr-defined]
            stack.append((node.a, factor))  # type: ignore[attr-defined]
            continue
        if kind is Sub:
            stack.append((node.b, -factor))  # type: ignore[attr-defined]
            stack.append((node.a, factor))  # type: ignore[attr-defined]
            continue
        if kind is Mul:
            other, scale = node.a, node.b  # type: ignore[attr-defined]
            if type(scale) is not IntImm:
                other, scale = scale, other
            if type(scale) is IntImm:
                if scale.value:
                    stack.append((other, factor * scale.value))
                continue
        elif casts and kind is Cast and _keeps_value(node):  # type: ignore[arg-type]
            stack.append((node.value, factor))  # type: ignore[attr-defined]
            continue
        part = None if atoms is None else atoms(node)
        if part is None:
            add_term(found, node, factor)
            continue
        const += factor * part.const
        for atom, coef in part.terms.items():
            add_term(found, atom, coef * factor)
    return Linear(found, const)


def _keeps_value(node: Cast) -> bool:
    source, target = node.value.dtype, node.dtype
    return source.kind == target.kind == "int" and source.bits <= target.bits


@lru_cache(maxsize=1 << 15)
def linear(expr: Expr) -> Linear:
    """`terms` of an index: indices do not overflow, so casts to wider integers are read through."""
    return terms(expr, casts=True)


@lru_cache(maxsize=1 << 15)
def linear_address(expr: Expr) -> Linear:
    """`terms` of an address, with the two halves of a fused loop joined:
    x // c * c + x % c is x."""
    found = terms(expr)
    for rest in [t for t in found.terms if isinstance(t, FloorMod)]:
        whole, by, factor = floordiv(rest.a, rest.b), rest.b, found.terms.get(rest, 0)
        if isinstance(by, IntImm) and found.terms.get(whole) == factor * by.value:
            halves = Linear({whole: by.value, rest: 1}, 0)
            found = found.plus(halves, -factor).plus(linear_address(rest.a), factor)
    return found


def interval(expr: Expr, ranges: Ranges) -> Interval:
    """The values `expr` can take while each variable stays in its range (others: any value)."""
    return form_interval(linear(expr), ranges)


def form_interval(form: Linear, ranges: Ranges) -> Interval:
    """The values of a sum, as `interval`."""
    low: float = form.const
    high: float = form.const
    for atom, coef in form.terms.items():
        lo, hi = _atom_interval(atom, ranges)
        low += coef * (lo if coef > 0 else hi)
        high += coef * (hi if coef > 0 else lo)
    return low, high


def _atom_interval(atom: Expr, ranges: Ranges) -> Interval:
    if isinstance(atom, Var):
        return ranges.get(atom, ANY)
    if isinstance(atom, (FloorDiv, FloorMod)) and isinstance(atom.b, IntImm) and atom.b.value > 0:
        by = atom.b.value
        lo, hi = interval(atom.a, ranges)
        if isinstance(atom, FloorDiv):
            return lo // by if lo > -inf else lo, hi // by if hi < inf else hi
        if lo > -inf and hi < inf and lo // by == hi // by:
            return lo % by, hi % by
        return 0, by - 1
    if isinstance(atom, FloorMod):
        least, most = interval(atom.b, ranges)
        return (0, most - 1) if least >= 1 else ANY
    if isinstance(atom, (Min, Max)):
        (al, ah), (bl, bh) = interval(atom.a, ranges), interval(atom.b, ranges)
        pick = min if isinstance(atom, Min) else max
        return pick(al, bl), pick(ah, bh)
    branches: tuple[Expr, ...] = ()
    if isinstance(atom, Select):
        branches = (atom.a, atom.b)
    elif isinstance(atom, Call) and atom.op.name == "if_then_else":
        branches = atom.args[1:]
    if branches:
        (al, ah), (bl, bh) = interval(branches[0], ranges), interval(branches[1], ranges)
        return min(al, bl), max(ah, bh)
    return ANY


def range_interval(low: Expr, extent: Expr) -> Interval:
    """The integers of a range; a symbolic end is no bound, an empty range counts as one value."""
    lo, hi = interval(low, {})
    return lo, max(hi + interval(extent, {})[1] - 1, lo)
