"""Affine iterator maps: which expressions enumerate a box exactly, and what follows from it.

`detect_iter_map` decides whether expressions of loop iterators take every point of a box
independently of each other; blocks whose bindings do are what schedules may reorder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from metasched.arith.analyzer import Analyzer
from metasched.arith.itercheck import check, depth
from metasched.arith.iterform import (
    Group,
    IterMark,
    IterSplit,
    IterSum,
    NotAffine,
    Reader,
    Size,
    size_expr,
)
from metasched.arith.linear import Linear, emit
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import INT64, DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    TRUE,
    Add,
    And,
    Compare,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Var,
    as_int,
)
from metasched.ir.op import Call
from metasched.ir.visit import free_vars, walk_exprs

T = TypeVar("T")
Level: TypeAlias = Literal["none", "surjective", "bijective"]


@dataclass(frozen=True, slots=True)
class IterMap:
    """The result of a detection: one sum for each expression, or `error`, a sentence.

    `literal`: simplified, the expressions would be no such sums any more.
    """

    sums: tuple[IterSum, ...]
    error: str | None = None
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
        level: "surjective" demands that the values fill a box, each independent of the others;
            "bijective" also that every point comes from one instance; "none" demands nothing
            beyond affine form.
        simplify_trivial: write iterators of one value as that value.

    Returns: an IterMap; `error` names the offending expression. The idea is TVM's
    DetectIterMap; results are memoised by value.
    """
    return _known(_FOUND, _attempt, exprs, ranges, (predicate, level, simplify_trivial))


def _known(
    table: dict[Any, T], make: Callable[..., T], exprs: Any, ranges: Mapping[Var, Range], how: _How
) -> T:
    """What `make` gives for these arguments, remembered by value."""
    key = (tuple(exprs), how, *[(v, r.min, r.extent) for v, r in ranges.items()])
    found = table.get(key)
    if found is None:
        if len(table) >= _LIMIT:
            table.clear()
        found = table[key] = make(exprs, ranges, how)
    return found


def _attempt(exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How) -> IterMap:
    try:
        return IterMap(_detect(exprs, ranges, how, False))
    except NotAffine as first:
        reason = str(first)
    if any(isinstance(e, (FloorDiv, FloorMod)) for x in exprs for e in walk_exprs(x)):
        try:
            return IterMap(_detect(exprs, ranges, how, True), literal=True)
        except NotAffine:
            pass
    return IterMap((), reason)


def _detect(
    exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How, literal: bool
) -> tuple[IterSum, ...]:
    predicate, level, simplify_trivial = how
    limits: list[tuple[Linear, Expr]] = []
    if predicate is not TRUE:
        whole = ranges
        ranges, limits = _narrowed(whole, predicate)
        if any(_empty(r) and not _empty(whole[v]) for v, r in ranges.items()):
            raise NotAffine(f"the predicate {show_expr(predicate)} never holds")
    reader = Reader(ranges, not simplify_trivial, literal)
    for gap, condition in limits:
        _limit(reader, gap, condition)
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
    return tuple(sums)


# ---- predicates --------------------------------------------------------------------------


def conjuncts(predicate: Expr) -> list[Expr]:
    """The conditions that a predicate is the conjunction of, in order; none for true."""
    result: list[Expr] = []
    stack = [predicate]
    while stack:
        cond = stack.pop()
        if isinstance(cond, And):
            stack += (cond.b, cond.a)
        elif isinstance(cond, Call) and cond.op.name == "likely":
            stack.append(cond.args[0])
        elif cond is not TRUE:
            result.append(cond)
    return result


def _narrowed(
    ranges: Mapping[Var, Range], predicate: Expr
) -> tuple[dict[Var, Range], list[tuple[Linear, Expr]]]:
    """Conditions on one iterator narrow its range; the others come back as forms >= 0."""
    result = dict(ranges)
    reader = Reader(ranges, keep_units=True)
    limits: list[tuple[Linear, Expr]] = []
    for cond in conjuncts(predicate):
        if free_vars(cond).isdisjoint(ranges):
            continue
        for gap in _gaps(reader, cond):
            atoms = [a for a in gap.terms if not free_vars(a).isdisjoint(ranges)]
            if not atoms:
                continue
            if len(atoms) == 1 and _narrow(reader, result, gap, atoms[0]):
                continue
            limits.append((gap, cond))
    return result, limits


def _empty(run: Range) -> bool:
    extent = as_int(run.extent)
    return extent is not None and extent < 1


def narrowed_ranges(ranges: Mapping[Var, Range], condition: Expr) -> Mapping[Var, Range]:
    """The ranges where `condition` holds, as far as it bounds single iterators."""
    result = ranges
    for cond in conjuncts(condition):
        try:
            result, _ = _narrowed(result, cond)
        except NotAffine:
            continue
    return result


def _gaps(reader: Reader, cond: Expr) -> list[Linear]:
    """`cond` as linear forms that are >= 0."""
    if not isinstance(cond, Compare) or isinstance(cond, NE) or not cond.a.dtype.is_int:
        raise NotAffine(f"the predicate {show_expr(cond)} is no bound on iterators")
    a, b = reader.an.exact(cond.a), reader.an.exact(cond.b)
    if a is None or b is None:
        raise NotAffine(f"the predicate {show_expr(cond)} is no bound on iterators")
    gap = reader.an.normal(b.plus(a, -1), INT64)
    if isinstance(cond, LT):
        return [gap.shifted(-1)]
    if isinstance(cond, LE):
        return [gap]
    if isinstance(cond, GT):
        return [gap.scaled(-1).shifted(-1)]
    if isinstance(cond, GE):
        return [gap.scaled(-1)]
    assert isinstance(cond, EQ)
    return [gap, gap.scaled(-1)]


def _narrow(reader: Reader, ranges: dict[Var, Range], gap: Linear, atom: Expr) -> bool:
    """Apply c * atom + rest >= 0 to a variable's range, if the atom is a variable (// constant)."""
    var, unit = atom, 1
    if type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
        var, unit = atom.a, atom.b.value
    if not isinstance(var, Var) or var not in ranges:
        return False
    c = gap.terms[atom]
    rest = Linear({a: k for a, k in gap.terms.items() if a is not atom}, gap.const)
    if rest.terms and abs(c) != 1:
        return False
    low, end = ranges[var].min, ranges[var].min + ranges[var].extent
    an = reader.an
    if c < 0:  # atom <= rest / -c
        bound = rest if rest.terms else Linear({}, rest.const // -c)
        top = emit(bound.shifted(1).scaled(unit), var.dtype)
        if top is None:
            return False
        end = an.simplify(Min(end, top))
    else:  # atom >= ceil(-rest / c)
        bound = rest.scaled(-1) if rest.terms else Linear({}, -(rest.const // c))
        bottom = emit(bound.scaled(unit), var.dtype)
        if bottom is None:
            return False
        low = an.simplify(Max(low, bottom))
    ranges[var] = Range(an.simplify(low), an.simplify(end - low))
    return True


def _limit(reader: Reader, gap: Linear, condition: Expr) -> None:
    """Record gap >= 0, a bound on a fused iterator, as a limited group."""
    try:
        splits, base = reader.read_linear(gap)
        positive = all(not isinstance(s.scale, int) or s.scale > 0 for s in splits)
        if not positive:
            splits = [s._replace(scale=reader.times(s.scale, -1)) for s in splits]
        splits = [s for s in splits if s.extent != 1]
        groups, reader.groups = reader.groups, []
        scale, order, _ = reader.order(splits, condition)
        reader.groups = groups
    except NotAffine:
        raise NotAffine(
            f"the predicate {show_expr(condition)} is no bound on fused iterators"
        ) from None
    group = _group_for(reader, order)
    if scale != 1:
        if base.terms or not isinstance(scale, int):
            raise NotAffine(f"the predicate {show_expr(condition)} is no bound on fused iterators")
        base = Linear({}, base.const // scale)
    if positive:  # sum + base >= 0
        group.low = _max_size(reader, group.low, reader.back(base.scaled(-1), *_typed(base)))
    else:  # base - sum >= 0
        group.high = _min_size(reader, group.high, reader.back(base.shifted(1), *_typed(base)))


def _typed(value: Linear) -> list[Expr]:
    return list(value.terms)


def _group_for(reader: Reader, order: list[IterSplit]) -> Group:
    for group in reader.groups:
        if group.order == order:
            return group
    extent: Size = 1
    for s in order:
        extent = reader.times(extent, s.extent)
    group = Group(order, extent)
    reader.groups.append(group)
    reader.groups.sort(key=lambda g: -len(g.order))
    return group


def _max_size(reader: Reader, a: Size, b: Size) -> Size:
    return a if reader.at_most(b, a) else b


def _min_size(reader: Reader, a: Size, b: Size) -> Size:
    return a if reader.at_most(a, b) else b


# ---- back to expressions -----------------------------------------------------------------


def sum_expr(total: IterSum, ranges: Mapping[Var, Range], dtype: DType) -> Expr:
    """An iterator sum as an expression of its iterators.

    `ranges` as the detection had them, narrowed by its predicate: marks count from their minima.
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
    """The expressions in the normal form of their iterator map, else simply simplified.

    Used on block bindings after split and fuse. `simplify_trivial=False` keeps iterators of one
    value visible.
    """
    found = _known(_SIMPLE, _simplified, exprs, ranges, (predicate, level, simplify_trivial))
    return list(found)


def _simplified(exprs: Sequence[Expr], ranges: Mapping[Var, Range], how: _How) -> list[Expr]:
    predicate, level, simplify_trivial = how
    an = Analyzer(ranges, keep_units=not simplify_trivial)
    found = detect_iter_map(exprs, ranges, predicate, level, simplify_trivial)
    if found.error is None:
        ranges = narrowed_ranges(ranges, predicate)  # the marks count from the narrowed minimum
    elif predicate is not TRUE and level != "bijective":
        found = detect_iter_map(exprs, ranges, TRUE, level, simplify_trivial)
    if found.error is not None:
        return [an.simplify(e) for e in exprs]
    totals = list(zip(exprs, found.sums, strict=True))
    if found.literal:
        digits = [digits_expr(total, ranges, e.dtype) for e, total in totals]
        if None not in digits:
            return [d for d in digits if d is not None]
    return [an.simplify(sum_expr(total, ranges, e.dtype)) for e, total in totals]


def digits_expr(total: IterSum, ranges: Mapping[Var, Range], dtype: DType) -> Expr | None:
    """`sum_expr` in the form that a detection reads again; None for sizes that are no constants.

    The simplifier takes what it can out of a quotient: of (i * 8 + j) // 6 and (i * 8 + j) % 6 it
    makes i + (i * 2 + j) // 6 and (i * 2 + j) % 6, which are no digits of one number any more.
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
    """A digit, without the digits of its mark that have no part in it."""
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

    Returns their sum, divided by how many values there are below them; that number; and how many
    values they have with what is below them. All digits of a sum that a predicate limits count.
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

    `outputs` are the values of `sums`, in order. Iterators are given from zero: their minimum
    (the narrowed one where a predicate narrows it) is taken off. Those of one value do not occur.
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
    """Add to its mark what the digit `s` contributes, `total` being the sum that holds it."""
    dtype = total.dtype
    digit = total
    if s.scale != 1:
        digit = FloorDiv(digit, size_expr(s.scale, dtype))
    if above:  # there are larger digits in the sum
        digit = FloorMod(digit, size_expr(s.extent, dtype))
    part = digit * size_expr(s.lower, dtype)
    values[s.mark] = values[s.mark] + part if s.mark in values else part
