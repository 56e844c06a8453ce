"""Boxes of elements: the largest and the smallest box that a region takes while loops run.

A bound is an integer interval added to a fixed part: the terms of the index over loop variables
that keep their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

from metasched.analysis.scope import Region
from metasched.arith.affine import Ranges, form_interval, interval, linear
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer
from metasched.ir.expr import LT, Expr, FloorDiv, FloorMod, Var, as_expr, as_int
from metasched.ir.op import Ramp
from metasched.ir.visit import free_vars


class Span(NamedTuple):
    """The elements from fixed + low to fixed + high in one dimension."""

    fixed: frozenset[tuple[Expr, int]]
    low: float
    high: float


Spans: TypeAlias = tuple[Span, ...]
Packed: TypeAlias = tuple[tuple[int, int], ...]
_NOTHING: frozenset[tuple[Expr, int]] = frozenset()


def upper_span(low: Expr, extent: Expr, varying: Ranges) -> Span:
    """Bounds of one dimension while the `varying` variables take all their values.

    Cached by value: candidates of one space have many equal dimensions.
    """
    names = (*free_vars(low), *free_vars(extent))
    return _upper_span(low, extent, *[(v, varying[v]) for v in names if v in varying])


@lru_cache(maxsize=1 << 14)
def _upper_span(low: Expr, extent: Expr, *given: tuple[Var, Interval]) -> Span:
    varying = dict(given)
    form = linear(low)
    fixed = {a: c for a, c in form.terms.items() if free_vars(a).isdisjoint(varying)}
    moving = Linear({a: c for a, c in form.terms.items() if a not in fixed}, form.const)
    least, most = form_interval(moving, varying)
    return Span(frozenset(fixed.items()), least, most + interval(extent, varying)[1] - 1)


@dataclass(slots=True)
class _Limit:
    """A conjunct `terms + const < bound` of a predicate, over varying variables."""

    terms: dict[Expr, int]
    most: int
    used: bool = False


def upper_box(region: Region, predicate: Expr, varying: Ranges) -> Spans:
    """The smallest box that holds the region while the `varying` variables take all values that the
    predicate allows."""
    spans = [upper_span(low, extent, varying) for low, extent in region]
    known = [limit for part in conjuncts(predicate) for limit in _limits(part, varying) or ()]
    if not known:
        return tuple(spans)
    for n, (low, extent) in enumerate(region):
        width = interval(extent, varying)[1]
        terms = linear(low)
        fixed, least, most = spans[n]
        moving = {a: c for a, c in terms.terms.items() if (a, c) not in fixed}
        for limit in known:
            rest = _without(moving, limit.terms)
            if rest is not None:
                times, others = rest
                end = form_interval(Linear(others, terms.const), varying)[1]
                most = min(most, times * limit.most + end + width - 1)
        spans[n] = Span(fixed, least, most)
    return tuple(spans)


def _without(terms: dict[Expr, int], part: dict[Expr, int]) -> tuple[int, dict[Expr, int]] | None:
    """How many times a sum holds another sum, and what is left; None if not a whole number."""
    atom = next(iter(part), None)
    times, odd = divmod(terms.get(atom, 0), part[atom]) if atom is not None else (0, 0)
    if times <= 0 or odd or any(terms.get(a, 0) != times * c for a, c in part.items()):
        return None
    return times, {a: c for a, c in terms.items() if a not in part}


def _limits(predicate: Expr, varying: Ranges) -> list[_Limit] | None:
    """The conjuncts of a predicate as limits; None if a conjunct has another form."""
    out: list[_Limit] = []
    for part in conjuncts(predicate):
        if not isinstance(part, LT):
            return None
        gap = linear(part.a).plus(linear(part.b), -1)
        out.append(_Limit(gap.terms, -gap.const - 1))
    return out


def lower_box(region: Region, predicate: Expr, varying: Ranges) -> Spans | None:
    """A box that the region certainly fills while the `varying` variables take all their values.

    None if such a box is not known.
    """
    limits = _limits(predicate, varying)
    if limits is None:
        return None
    seen: set[Expr] = set()
    spans: list[Span] = []
    for low, extent in region:
        width = as_int(extent)
        if width is None:
            return None
        span = _filled(linear(low), width, varying, seen, limits)
        if span is None:
            return None
        spans.append(span)
    return tuple(spans) if all(limit.used for limit in limits) else None


def _filled(
    form: Linear, width: int, varying: Ranges, seen: set[Expr], limits: list[_Limit]
) -> Span | None:
    """The values that one dimension takes, if they are an interval without gaps."""
    fixed: list[tuple[Expr, int]] = []
    moving: list[tuple[int, float]] = []
    low: float = form.const
    for atom, coef in form.terms.items():
        if free_vars(atom).isdisjoint(varying):
            fixed.append((atom, coef))
            continue
        if not isinstance(atom, Var) or atom in seen or coef < 0:
            return None
        seen.add(atom)
        lo, hi = varying[atom]
        if hi - lo == inf or lo == -inf:
            return None
        low += coef * lo
        moving.append((coef, hi - lo))
    span: float = width
    for coef, steps in sorted(moving):
        if coef > span and steps:
            return None
        span += coef * steps
    high = low + span - 1
    for limit in limits:
        # The box lies relative to the fixed atoms, so a limit on a sum with them cuts no span.
        if limit.terms == form.terms and not fixed:
            limit.used = True
            high = min(high, limit.most + form.const + width - 1)
    return Span(frozenset(fixed), low, high)


@lru_cache(maxsize=1 << 10)
def whole_box(buffer: Buffer, packed: Packed = ()) -> Spans:
    """All of a buffer; symbolic dimensions have no upper end."""
    sizes = [interval(s, {})[1] for s in buffer.shape]
    for outer, inner in packed:
        sizes[outer] *= sizes[inner]
    inners = {inner for _, inner in packed}
    return tuple(Span(_NOTHING, 0, s - 1) for n, s in enumerate(sizes) if n not in inners)


def packed_pairs(regions: list[Region], buffer: Buffer) -> Packed:
    """The pairs of dimensions that hold e // c and e % c of some e in every region.

    The second dimension has extent c, so a pair is equivalent to one dimension that holds e.
    """
    rests = [n for n, (low, _) in enumerate(regions[0]) if type(low) is FloorMod] if regions else []
    return tuple(
        (k, n) for k in range(len(buffer.shape)) for n in rests
        if all(_splits(r[k], r[n], buffer.shape[n]) for r in regions)
    )  # fmt: skip


def _splits(outer: tuple[Expr, Expr], inner: tuple[Expr, Expr], size: Expr) -> bool:
    (high, count), (low, width) = outer, inner
    if type(high) is FloorDiv and type(low) is FloorMod and as_int(count) == as_int(width) == 1:
        return high.a is low.a and high.b is low.b is size
    return False


def unpacked(region: Region, packed: Packed) -> Region:
    """A region with each pair of `packed` as one dimension."""
    joined, inners = dict(enumerate(region)), {inner for _, inner in packed}
    for outer, inner in packed:
        low = region[inner][0]
        assert isinstance(low, FloorMod)
        joined[outer] = low.a, region[inner][1]
    return tuple([r for n, r in joined.items() if n not in inners])


def lies_in(inner: Span, outer: Span, whole: Span) -> bool:
    """Whether `inner`, clipped to the buffer, lies in `outer`."""
    if not outer.fixed and outer.low <= whole.low and outer.high >= whole.high < inf:
        return True
    if inner.fixed != outer.fixed:
        return False
    low, high = inner.low, inner.high
    if not inner.fixed:
        low, high = max(low, whole.low), min(high, whole.high)
    return low > high or (outer.low <= low and high <= outer.high)


def merged(boxes: list[Spans]) -> list[Spans]:
    """Join boxes that differ in one dimension only, where they overlap or touch."""
    boxes = list(dict.fromkeys(boxes))
    joined = True
    while joined:
        joined = False
        for i, a in enumerate(boxes):
            for j in range(i + 1, len(boxes)):
                both = _join(a, boxes[j])
                if both is not None:
                    boxes[i : i + 1] = [both]
                    del boxes[j]
                    joined = True
                    break
            if joined:
                break
    return boxes


def _join(a: Spans, b: Spans) -> Spans | None:
    differing = [k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if not differing:
        return a
    k = differing[0]
    x, y = a[k], b[k]
    if len(differing) > 1 or x.fixed != y.fixed or max(x.low, y.low) > min(x.high, y.high) + 1:
        return None
    return (*a[:k], Span(x.fixed, min(x.low, y.low), max(x.high, y.high)), *a[k + 1 :])


def by_rows(indices: tuple[Expr, ...], buffer: Buffer) -> tuple[Expr, ...] | None:
    """Split the indices of a vector access that runs over whole rows into indices within each
    dimension.

    A[i, ramp(0, 1, 8)] of rows of 4 touches A[i:i + 2, 0:4]. None where a vector leaves its row and
    does not consist of whole rows.
    """
    found = list(indices)
    for at in range(len(found) - 1, -1, -1):
        ramp, size = found[at], as_int(buffer.shape[at])
        if not isinstance(ramp, Ramp) or size is None or as_int(ramp.stride) != 1:
            break
        base = as_int(ramp.base)
        if ramp.lanes <= size if base is None else base + ramp.lanes <= size:
            break
        row = found[at - 1]
        if at == 0 or base is None or base % size or ramp.lanes % size or isinstance(row, Ramp):
            return None
        found[at] = Ramp(as_expr(0, ramp.base.dtype), ramp.stride, size)
        first = row + as_expr(base // size, row.dtype)
        rows = ramp.lanes // size
        found[at - 1] = first if rows == 1 else Ramp(first, as_expr(1, row.dtype), rows)
    return tuple(found)
