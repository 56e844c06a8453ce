"""Affine iterator maps: decides whether expressions of loop variables enumerate a box.

`detect_iter_map` decides whether the expressions take every point of a box, each independently of
the others. Schedule steps may reorder loops of blocks whose bindings have this property.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from metasched.arith.analyzer import Analyzer
from metasched.arith.itercheck import check, depth
from metasched.arith.iterform import (
    IterMark,
    IterSplit,
    IterSum,
    NotAffine,
    Reader,
    size_expr,
)
from metasched.arith.iterlimit import is_empty, limit, narrowed
from metasched.arith.linear import Linear, emit
from metasched.arith.mixed_radix import Runs, in_mixed_radix, tiles
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    TRUE,
    Add,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Var,
    as_int,
)
from metasched.ir.visit import walk_exprs

T = TypeVar("T")
Level: TypeAlias = Literal["none", "surjective", "bijective"]


@dataclass(frozen=True, slots=True)
class IterMap:
    """The result of a detection: one sum for each expression, or a sentence in `error`.

    Attributes:
        ranges: the iterators, narrowed by the predicate: marks count from the minima of these.
        literal: whether the expressions are sums of digits only without simplification.
    """

    sums: tuple[IterSum, ...]
    error: str | None = None
    ranges: Mapping[Var, Range] = field(default_factory=dict)
    literal: bool = False

    def __bool__(self) -> bool:
        return self.error is None


_How: TypeAlias = tuple[Expr, Level, bool]

_FOUND: dict[tuple[object, ...], IterMap] = {}
_SIMPLE: dict[tuple[object, ...], list[Expr]] = {}
_LIMIT = 1 << 15


def detect_iter_map(
    exprs: Sequence[Expr],
    ranges: Mapping[Var, Range],
    predicate: Expr = TRUE,
    level: Level = "surjective",
    simplify_trivial: bool = True,
) -> IterMap:
    """Read `exprs` as an affine map of the iterators in `ranges` where `predicate` holds.

    Args:
        exprs: integer expressions of the iterators.
        ranges: the iterators, with constant or symbolic extents; other variables are fixed.
        predicate: a conjunction of bounds on fused iterators; anything else is an error.
        level: "surjective" requires that the values fill a box, each independent of the others;
            "bijective" also that every point comes from one instance; "none" requires affine form
            only.
        simplify_trivial: whether to replace iterators of extent one by their value.

    Returns an IterMap, whose `error` names the offending expression. The idea is TVM's
    DetectIterMap. Results are cached by value.
    """
    return _known(_FOUND, _attempt, exprs, ranges, (predicate, level, simplify_trivial))


def why_no_box(
    values: Sequence[Expr],
    ranges: Runs,
    predicate: Expr = TRUE,
    level: Level = "surjective",
    *,
    unit_steps: bool = False,
) -> str | None:
    """The reason why the values do not fill a box, each value independent of the other values; None
    if they fill a box.

    Args:
        values: integer expressions of the iterators.
        ranges, predicate, level: as for `detect_iter_map`.
        unit_steps: whether the smallest digit of each value must have the scale one.
    """
    if predicate is TRUE and tiles(values, ranges, every=level == "bijective"):
        return None
    domain = {v: Range(r.min, r.extent) for v, r in ranges.items()}
    found = detect_iter_map(values, domain, predicate, level)
    if unit_steps and any(total.splits and total.splits[0].scale != 1 for total in found.sums):
        return "a binding steps over values"
    return found.error


def _known(
    table: dict[Any, T], make: Callable[..., T], exprs: Any, ranges: Mapping[Var, Range], how: _How
) -> T:
    """The result of `make` for these arguments, cached by value."""
    key = (tuple(exprs), how, *[(v, r.min, r.extent) for v, r in ranges.items()])
    found = table.get(key)
    if found is None:
        if len(table) >= _LIMIT:
            table.clear()
        found = table[key] = make(exprs, ranges, how)
    return found


def _attempt(exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How) -> IterMap:
    try:
        return _detect(exprs, ranges, how, False)
    except NotAffine as first:
        reason = str(first)
    if any(isinstance(e, (FloorDiv, FloorMod)) for x in exprs for e in walk_exprs(x)):
        try:
            return _detect(exprs, ranges, how, True)
        except NotAffine:
            pass
    return IterMap((), reason)


def _detect(
    exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How, literal: bool
) -> IterMap:
    predicate, level, simplify_trivial = how
    limits: list[tuple[Linear, Expr]] = []
    if predicate is not TRUE:
        whole = ranges
        ranges, limits = narrowed(whole, predicate)
        if any(is_empty(r) and not is_empty(whole[v]) for v, r in ranges.items()):
            raise NotAffine(f"the predicate {show_expr(predicate)} never holds")
    reader = Reader(ranges, not simplify_trivial, literal)
    for gap, condition in limits:
        limit(reader, gap, condition)
    for group in reader.groups:
        left = group.count(reader)
        if isinstance(left, int) and left < 1:
            raise NotAffine(f"the predicate {show_expr(predicate)} never holds")
    sums = []
    for expr in exprs:
        splits, base = reader.read(expr)
        try:
            split, offset = reader.fuse(splits, expr)
            splits = [] if split is None else [split]
            base = base.plus(offset)
        except NotAffine:
            if level != "none":
                raise
        lowest = emit(base, expr.dtype)
        if lowest is None:
            raise NotAffine(f"{show_expr(expr)} has a base too large for {expr.dtype}")
        sums.append(IterSum(tuple(splits), lowest))
    if level != "none":
        check(reader, exprs, sums, level == "bijective")
    return IterMap(tuple(sums), None, ranges, literal)


# ---- back to expressions -----------------------------------------------------------------


def sum_expr(total: IterSum, ranges: Mapping[Var, Range], dtype: DType) -> Expr:
    """An iterator sum as an expression of its iterators.

    Args:
        total: the sum.
        ranges: the ranges of the map (`IterMap.ranges`).
        dtype: the type of the expression.
    """
    result: Expr | None = None
    for s in total.splits:
        part = split_expr(s, ranges, dtype)
        result = part if result is None else result + part
    base = total.base.astype(dtype)
    return base if result is None else result + base


def split_expr(s: IterSplit, ranges: Mapping[Var, Range], dtype: DType) -> Expr:
    """A digit as an expression: mark % (lower * extent) // lower * scale."""
    source = s.mark.source
    if isinstance(source, IterSum):
        value = sum_expr(source, ranges, dtype)
    else:
        low = ranges[source].min if source in ranges else IntImm(source.dtype, 0)
        value = (source - low).astype(dtype)
    lower, extent = size_expr(s.lower, dtype), size_expr(s.extent, dtype)
    if not (s.lower == 1 and s.extent == s.mark.extent):
        if not _reaches_top(s):
            value = FloorMod(value, lower * extent)
        if s.lower != 1:
            value = FloorDiv(value, lower)
    return value * size_expr(s.scale, dtype)


def _reaches_top(s: IterSplit) -> bool:
    lower, extent, whole = s.lower, s.extent, s.mark.extent
    if isinstance(lower, int) and isinstance(extent, int) and isinstance(whole, int):
        return lower * extent >= whole
    return False


def iter_map_simplify(
    exprs: Sequence[Expr],
    ranges: Mapping[Var, Range],
    predicate: Expr = TRUE,
    level: Level = "surjective",
    simplify_trivial: bool = True,
) -> list[Expr]:
    """Rewrite expressions in the normal form of their iterator map, or simplify them without a map.

    Used on block bindings after split and fuse. The arguments are as for `detect_iter_map`.
    """
    if predicate is TRUE and level == "surjective" and not simplify_trivial:
        simple = in_mixed_radix(exprs, ranges)
        if simple is not None:
            return simple
    found = _known(_SIMPLE, _simplified, exprs, ranges, (predicate, level, simplify_trivial))
    return list(found)


def _simplified(exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How) -> list[Expr]:
    predicate, level, simplify_trivial = how
    an = Analyzer(ranges, keep_units=not simplify_trivial)
    found = detect_iter_map(exprs, ranges, predicate, level, simplify_trivial)
    if found.error is not None and predicate is not TRUE and level != "bijective":
        found = detect_iter_map(exprs, ranges, TRUE, level, simplify_trivial)
    if found.error is not None:
        return [an.simplify(e) for e in exprs]
    totals = list(zip(exprs, found.sums, strict=True))
    if found.literal:
        digits = [digits_expr(total, found.ranges, e.dtype) for e, total in totals]
        if None not in digits:
            return [d for d in digits if d is not None]
    return [an.simplify(sum_expr(total, found.ranges, e.dtype)) for e, total in totals]


def digits_expr(total: IterSum, ranges: Mapping[Var, Range], dtype: DType) -> Expr | None:
    """`sum_expr` in a form that a detection can read again; None unless all sizes are constants.

    The simplifier moves what it can out of a quotient. It turns (i * 8 + j) // 6 into
    i + (i * 2 + j) // 6, and (i * 8 + j) % 6 into (i * 2 + j) % 6. These two are no longer digits
    of one number.
    """
    result: Expr | None = None
    for s in total.splits:
        part = _digit_expr(s, ranges, dtype)
        if part is None:
            return None
        addends = [part]
        while isinstance(addends[0], Add):
            addends[:1] = [addends[0].a, addends[0].b]
        for addend in addends:
            result = addend if result is None else result + addend
    if result is None:
        return total.base.astype(dtype)
    return result if as_int(total.base) == 0 else result + total.base.astype(dtype)


def _digit_expr(s: IterSplit, ranges: Mapping[Var, Range], dtype: DType) -> Expr | None:
    """A digit as an expression of only the digits of its mark that it depends on."""
    source, lower, extent, whole = s.mark.source, s.lower, s.extent, s.mark.extent
    if not (isinstance(lower, int) and isinstance(extent, int) and isinstance(whole, int)):
        return None
    top, below = lower * extent, 1
    if isinstance(source, IterSum):
        found = _with_part_in(source, lower, top, whole)
        inner = None if found is None else digits_expr(found[0], ranges, dtype)
        if found is None or inner is None:
            return None
        value, below, whole = inner, found[1], found[2]
    else:
        low = ranges[source].min if source in ranges else IntImm(source.dtype, 0)
        value = (source if as_int(low) == 0 else source - low).astype(dtype)
    if top < whole:
        value = FloorMod(value, IntImm(dtype, top // below))
    if lower != below:
        value = FloorDiv(value, IntImm(dtype, lower // below))
    return value if s.scale == 1 else value * size_expr(s.scale, dtype)


def _with_part_in(
    total: IterSum, lower: int, top: int, whole: int
) -> tuple[IterSum, int, int] | None:
    """The digits of a dense sum of `whole` values that total % top // lower depends on.

    Returns the sum of these digits, divided by n, the number of values of the smaller digits; n;
    and the number of values of these and the smaller digits together. If a predicate limits the
    sum, all digits are returned.
    """
    digits = [(s, s.scale, s.extent) for s in total.splits]
    sizes = [(a, b) for _, a, b in digits if isinstance(a, int) and isinstance(b, int)]
    if len(sizes) < len(digits) or as_int(total.base) != 0:
        return None
    if whole < max(a * b for a, b in sizes):
        return total, 1, whole
    below = 1
    for scale, extent in reversed(sizes):
        if scale == below and lower % (below * extent) == 0:
            below *= extent
    kept = [n for n, (scale, _) in enumerate(sizes) if scale >= below and scale % top]
    parts = tuple(digits[n][0]._replace(scale=sizes[n][0] // below) for n in kept)
    most = max((sizes[n][0] * sizes[n][1] for n in kept), default=below)
    return IterSum(parts, total.base), below, most


def inverse_iter_map(sums: Sequence[IterSum], outputs: Sequence[Expr]) -> dict[Var, Expr]:
    """The iterators as expressions of the values of a bijective map.

    Args:
        sums: the sums of the map.
        outputs: the values of `sums`, in order.

    Each iterator is counted from zero: its minimum, narrowed by the predicate, is subtracted.
    Iterators of extent one do not occur.
    """
    an = Analyzer()
    values: dict[IterMark, Expr] = {}
    for total, output in zip(sums, outputs, strict=True):
        for s in total.splits:
            _give(values, s, output - total.base.astype(output.dtype), False)
    waiting = sorted(values, key=depth, reverse=True)
    result: dict[Var, Expr] = {}
    while waiting:
        mark = waiting.pop(0)
        value = values[mark]
        if isinstance(mark.source, Var):
            result[mark.source] = an.simplify(value.astype(mark.source.dtype))
            continue
        inner = mark.source
        shifted = value - inner.base.astype(value.dtype)
        for i, s in enumerate(inner.splits):
            _give(values, s, shifted, i > 0)
            if s.mark not in waiting:
                waiting.append(s.mark)
        waiting.sort(key=depth, reverse=True)
    return result


def _give(values: dict[IterMark, Expr], s: IterSplit, total: Expr, above: bool) -> None:
    """Add the part that digit `s` of the sum `total` contributes to the value of its mark."""
    dtype = total.dtype
    digit = total
    if s.scale != 1:
        digit = FloorDiv(digit, size_expr(s.scale, dtype))
    if above:  # there are larger digits in the sum
        digit = FloorMod(digit, size_expr(s.extent, dtype))
    part = digit * size_expr(s.lower, dtype)
    values[s.mark] = values[s.mark] + part if s.mark in values else part
