"""Index expressions as linear forms over atoms, and integer intervals for them.

An atom is a variable or anything that is not a sum or a constant multiple (`i // 8`, `A[i]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

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
)
from metasched.ir.op import Call

Interval: TypeAlias = tuple[float, float]
"""Smallest and largest value, both included: integers, or minus and plus infinity."""

Ranges: TypeAlias = Mapping[Var, Interval]

ANY: Interval = (-inf, inf)


class Form(NamedTuple):
    """The sum of coefficient times atom, plus a constant. The dictionary is never changed."""

    terms: dict[Expr, int]
    const: int

    def scaled_into(self, terms: dict[Expr, int], factor: int) -> int:
        """Add `factor` times the terms to `terms`; returns the constant times `factor`."""
        for atom, coef in self.terms.items():
            total = terms.get(atom, 0) + coef * factor
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return self.const * factor


@lru_cache(maxsize=1 << 15)
def linear(expr: Expr, casts: bool = True) -> Form:
    """`expr` as a linear form, its last atoms first. Iterative, so that sums of thousands of terms
    are legal; indices do not overflow, so widening casts are transparent if `casts`."""
    terms: dict[Expr, int] = {}
    const = 0
    stack: list[tuple[Expr, int]] = [(expr, 1)]
    while stack:
        node, factor = stack.pop()
        if isinstance(node, IntImm):
            const += factor * node.value
            continue
        if isinstance(node, (Add, Sub)):
            stack += ((node.a, factor), (node.b, -factor if isinstance(node, Sub) else factor))
            continue
        if isinstance(node, Mul):
            scale, other = (node.b, node.a) if isinstance(node.b, IntImm) else (node.a, node.b)
            if isinstance(scale, IntImm):
                if scale.value:
                    stack.append((other, factor * scale.value))
                continue
        elif casts and isinstance(node, Cast) and _widens(node):
            stack.append((node.value, factor))
            continue
        total = terms.get(node, 0) + factor
        if total:
            terms[node] = total
        else:
            del terms[node]
    return Form(terms, const)


def _widens(node: Cast) -> bool:
    source, target = node.value.dtype, node.dtype
    return source.kind == target.kind == "int" and source.bits <= target.bits


def interval(expr: Expr, ranges: Ranges) -> Interval:
    """The values `expr` can take while each variable stays in its range (others: any value)."""
    return form_interval(linear(expr), ranges)


def form_interval(form: Form, ranges: Ranges) -> Interval:
    """The values of a linear form, as `interval`."""
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
