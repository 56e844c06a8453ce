"""Symbolic intervals and boxes: the values of an index or region while variables run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from metasched.arith.analyzer import Analyzer
from metasched.arith.atoms import may_wrap
from metasched.arith.bounds import INF, is_index
from metasched.arith.conditions import conjuncts
from metasched.arith.iterlimit import narrowed_ranges
from metasched.arith.itermap import detect_iter_map
from metasched.arith.linear import Linear, emit, factors, multiply, without
from metasched.ir.buffer import BufferRegion, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    TRUE,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Select,
    Var,
    as_int,
    cast,
)
from metasched.ir.op import Call
from metasched.ir.variables import is_symbol
from metasched.ir.visit import free_vars, reads_memory, substitute

Box: TypeAlias = Sequence[Range]
_INDEX_TYPES = (DType("int32"), DType("int64"))


@dataclass(frozen=True, slots=True)
class SymbolicInterval:
    """The integers from `min` to `max`, both included."""

    min: Expr
    max: Expr

    @staticmethod
    def of(values: Range | SymbolicInterval) -> SymbolicInterval:
        """A range as an interval."""
        if isinstance(values, SymbolicInterval):
            return values
        low, size = values.min, values.extent
        return SymbolicInterval(low, Analyzer().simplify(low + size - 1))


Domain: TypeAlias = Mapping[Var, "Range | SymbolicInterval"]
_Ends: TypeAlias = tuple[Linear, Linear]


class _Evaluation:
    """One evaluation: the domain, an analyzer with the domain's facts, and the ends found so
    far."""

    __slots__ = ("an", "dom", "ends")

    def __init__(self, dom: Domain, analyzer: Analyzer | None) -> None:
        self.an = Analyzer() if analyzer is None else analyzer.copy()
        self.dom = dom
        self.ends: dict[Expr, _Ends | None] = {}
        for var, values in dom.items():
            if isinstance(values, Range):
                self.an.bind(var, values)
            elif type(values.min) is IntImm and type(values.max) is IntImm:
                self.an.bind(var, (values.min.value, values.max.value))


def _ends_of(scope: _Evaluation, value: Linear) -> _Ends | None:
    low = Linear({}, value.const)
    high = low
    for atom, c in value.terms.items():
        ends = scope.ends.get(atom)
        if ends is None:
            ends = scope.ends[atom] = _atom_ends(scope, atom)
        if ends is None:
            return None
        if c > 0:
            low, high = low.plus(ends[0], c), high.plus(ends[1], c)
        else:
            low, high = low.plus(ends[1], c), high.plus(ends[0], c)
    return low, high


def _atom_ends(scope: _Evaluation, atom: Expr) -> _Ends | None:
    dom = scope.dom
    if free_vars(atom).isdisjoint(dom):
        alone = Linear({atom: 1}, 0)
        return alone, alone
    if type(atom) is Var:
        values = dom[atom]
        low = scope.an.linear(values.min)
        if isinstance(values, SymbolicInterval):
            return low, scope.an.linear(values.max)
        return low, low.plus(scope.an.linear(values.extent)).shifted(-1)
    if type(atom) is Mul:
        return _product_ends(scope, atom)
    if isinstance(atom, (FloorDiv, FloorMod)):
        found = _quotient_ends(scope, atom)
        if found is not None:
            return found
    elif isinstance(atom, (Min, Max)):
        found = _side_ends(scope, type(atom), type(atom), atom.a, atom.b)
        if found is not None:
            return found
    elif isinstance(atom, Select) or (isinstance(atom, Call) and atom.op.name == "if_then_else"):
        _, a, b = atom.children
        found = _side_ends(scope, Min, Max, a, b)
        if found is not None:
            return found
    lo, hi = scope.an.linear_bounds(Linear({atom: 1}, 0))
    if lo == -INF or hi == INF:
        return None
    return Linear({}, int(lo)), Linear({}, int(hi))


def _product_ends(scope: _Evaluation, atom: Expr) -> _Ends | None:
    """The ends of a product of one varying factor and fixed factors whose sign is known."""
    running = [f for f in factors(atom) if not free_vars(f).isdisjoint(scope.dom)]
    ends = _ends_of(scope, Linear({running[0]: 1}, 0)) if len(running) == 1 else None
    if ends is None:
        return None
    fixed = Linear({}, 1)
    for factor in without(atom, running) or ():
        fixed = multiply(fixed, Linear({factor: 1}, 0))
    low, high = multiply(fixed, ends[0]), multiply(fixed, ends[1])
    if scope.an.proves_nonnegative(fixed):
        return low, high
    if scope.an.proves_nonnegative(fixed.scaled(-1)):
        return high, low
    return None


def _quotient_ends(scope: _Evaluation, atom: FloorDiv | FloorMod) -> _Ends | None:
    an, d = scope.an, atom.b
    ends = _ends_of(scope, an.linear(atom.a)) if free_vars(d).isdisjoint(scope.dom) else None
    if ends is None or an.linear_bounds(an.linear(d))[0] <= 0:
        return None
    low, high = emit(ends[0], atom.dtype), emit(ends[1], atom.dtype)
    if low is None or high is None or _wraps(scope, atom.a, ends):
        return None
    first, last = an.linear(FloorDiv(low, d)), an.linear(FloorDiv(high, d))
    if type(atom) is FloorDiv:
        return first, last
    if an.is_zero(last.plus(first, -1)):  # no wrap between the ends
        return an.linear(FloorMod(low, d)), an.linear(FloorMod(high, d))
    return Linear({}, 0), an.linear(d).shifted(-1)


def _side_ends(
    scope: _Evaluation, below: type[Min] | type[Max], above: type[Min] | type[Max], a: Expr, b: Expr
) -> _Ends | None:
    x, y = _ends_of(scope, scope.an.linear(a)), _ends_of(scope, scope.an.linear(b))
    if x is None or y is None or _wraps(scope, a, x) or _wraps(scope, b, y):
        return None
    parts = [p for e in (x[0], y[0], x[1], y[1]) if (p := emit(e, a.dtype)) is not None]
    if len(parts) < 4:
        return None
    return scope.an.linear(below(parts[0], parts[1])), scope.an.linear(above(parts[2], parts[3]))


def _wraps(scope: _Evaluation, part: Expr, ends: _Ends) -> bool:
    """Whether a part of an index may leave its type, so that its values are not those between its
    ends."""
    if is_index(part.dtype):
        return may_wrap(scope.an, part)
    return not _within(scope, part.dtype, *ends)


def _within(scope: _Evaluation, dtype: DType, low: Linear, high: Linear) -> bool:
    first, last = dtype.range
    return first <= scope.an.linear_bounds(low)[0] and scope.an.linear_bounds(high)[1] <= last


# ---- boxes -------------------------------------------------------------------------------


def interval_of(value: Expr, dom: Domain) -> SymbolicInterval | None:
    """The least and greatest value while `dom` runs; None if an end has no expression."""
    scope = _Evaluation(dom, None)
    ends = _ends_of(scope, scope.an.linear(value))
    low, high = (None, None) if ends is None else (emit(end, value.dtype) for end in ends)
    return None if low is None or high is None else SymbolicInterval(low, high)


def region_of(
    indices: Sequence[Expr],
    dom: Domain,
    shape: Sequence[Expr] | None = None,
    analyzer: Analyzer | None = None,
) -> list[Range] | None:
    """A box that holds the indices while the variables of `dom` run.

    Args:
        indices: the index of each dimension.
        dom: the range or interval of each variable.
        shape: the extents of the buffer, which bound a dimension without another bound.
        analyzer: further facts.

    Returns None if a dimension has no bound and `shape` is not given.
    """
    points = [Range(i, IntImm(i.dtype, 1)) for i in indices]
    return relax_ranges(points, dom, shape, analyzer)


def relax_ranges(
    ranges: Sequence[Range],
    dom: Domain,
    shape: Sequence[Expr] | None = None,
    analyzer: Analyzer | None = None,
) -> list[Range] | None:
    """The box that holds every instance of `ranges` while `dom` runs; see `region_of`.

    Bounds in `dom` may depend on other variables of `dom` (`j` up to `i + 1`): relaxing is repeated
    until none is left.
    """
    found = _relax_all(ranges, dom, shape, analyzer)
    for _ in dom:
        if found is None or all(
            free_vars(r.min).isdisjoint(dom) and free_vars(r.extent).isdisjoint(dom) for r in found
        ):
            break
        found = _relax_all(found, dom, shape, analyzer)
    return found


def _relax_all(
    ranges: Sequence[Range], dom: Domain, shape: Sequence[Expr] | None, analyzer: Analyzer | None
) -> list[Range] | None:
    """Every variable of `dom` replaced by its bounds, once."""
    scope: _Evaluation | None = None
    result: list[Range] = []
    for axis, r in enumerate(ranges):
        low, size = r.min, r.extent
        running = dom.get(low) if type(low) is Var else None
        if isinstance(running, Range) and r.is_point and low.dtype is running.min.dtype:
            result.append(running)
            continue
        if free_vars(low).isdisjoint(dom) and free_vars(size).isdisjoint(dom):
            result.append(r)
            continue
        given = None if analyzer is not None else _constant(low, size, dom)
        if given is not None:
            box = _relaxed(low, size, *given)
        else:
            if scope is None:
                scope = _Evaluation(dom, analyzer)
            box = _relax_one(scope, low, size)
        if box is None:
            if shape is None:
                return None
            box = Range(IntImm(shape[axis].dtype, 0), shape[axis])
        result.append(box)
    return result


def _constant(low: Expr, size: Expr, dom: Domain) -> list[tuple[Var, Expr, Expr]] | None:
    """The part of `dom` that one dimension depends on, if its ranges are constant; else None."""
    given: list[tuple[Var, Expr, Expr]] = []
    for var in free_vars(low) | free_vars(size):
        values = dom.get(var)
        if values is None:
            continue
        if not (isinstance(values, Range) and type(values.min) is type(values.extent) is IntImm):
            return None
        given.append((var, values.min, values.extent))
    return given


@lru_cache(maxsize=1 << 14)
def _relaxed(low: Expr, size: Expr, *given: tuple[Var, Expr, Expr]) -> Range | None:
    """Relax one dimension; cached by value, since candidates share many dimensions."""
    return _relax_one(_Evaluation({v: Range(a, b) for v, a, b in given}, None), low, size)


def _relax_one(scope: _Evaluation, low: Expr, size: Expr) -> Range | None:
    an = scope.an
    first = an.linear(low)
    below = _ends_of(scope, first)
    above = below
    extent = an.linear(size)
    if below is None or above is None:
        return None
    if extent.terms and not free_vars(size).isdisjoint(scope.dom):
        above = _ends_of(scope, an.normal(first.plus(extent), low.dtype))
        if above is None:
            return None
        total = above[1].plus(below[0], -1)
    else:
        total = below[1].plus(below[0], -1).plus(extent)
    if not is_index(low.dtype) and not _fits(scope, low.dtype, below[0], above[1], total):
        return None
    start = emit(below[0], low.dtype)
    length = emit(an.normal(total, low.dtype), low.dtype)
    return None if start is None or length is None else of_index_type(Range(start, length))


def _fits(scope: _Evaluation, dtype: DType, low: Linear, high: Linear, length: Linear) -> bool:
    """Whether indices from `low` to `high` do not wrap in a type that wraps, and their number is a
    number of this type: 256 is none of 8 bits."""
    short = not length.terms and length.const <= dtype.range[1]
    return short and _within(scope, dtype, low, high)


def relax(region: BufferRegion, dom: Domain, analyzer: Analyzer | None = None) -> BufferRegion:
    """The box of the buffer that holds every instance of `region` while `dom` runs."""
    ranges = relax_ranges(region.region, dom, region.buffer.shape, analyzer)
    assert ranges is not None
    if all(a is b for a, b in zip(ranges, region.region, strict=True)):
        return region
    return BufferRegion(region.buffer, tuple(ranges))


def lower_region(
    region: Sequence[Range],
    ranges: Mapping[Var, Range],
    predicate: Expr = TRUE,
    analyzer: Analyzer | None = None,
) -> list[Range] | None:
    """A box that the instances of `region` fill while the variables of `ranges` run.

    Args:
        region: the range of each dimension.
        ranges: the values of the variables.
        predicate: the condition under which an instance counts.
        analyzer: further facts.

    The box is exact for affine independent indices. None if no filled box is known.
    """
    if not _is_box(region, ranges, analyzer):
        return None
    if predicate is TRUE and all(
        free_vars(r.min).isdisjoint(ranges) and free_vars(r.extent).isdisjoint(ranges)
        for r in region
    ):
        return list(region)
    if any(not free_vars(r.extent).isdisjoint(ranges) for r in region):
        return None
    found = detect_iter_map([r.min for r in region], ranges, predicate, "surjective")
    if found.error is not None:
        return None
    an = analyzer or Analyzer()
    if predicate is not TRUE and not _runs(region, ranges, predicate, an):
        return None
    result: list[Range] = []
    for r, total in zip(region, found.sums, strict=True):
        if not total.splits:
            result.append(Range(an.simplify(total.base), r.extent))
            continue
        split = total.splits[0]
        scale, extent = split.scale_expr(r.min.dtype), split.extent_expr(r.min.dtype)
        if not an.prove(scale >= 1) or not an.prove(scale <= r.extent):
            return None  # gaps between the steps
        length = an.simplify((extent - 1) * scale + r.extent)
        result.append(Range(an.simplify(total.base), length))
    return result


def _is_box(
    region: Sequence[Range], ranges: Mapping[Var, Range], analyzer: Analyzer | None
) -> bool:
    """Whether the ranges form a box, as far as a region depends on them.

    False if a range over which the indices run depends on another variable or on data, or if
    the range of another variable may be empty.
    """
    if all(type(r.extent) is IntImm and type(r.min) is IntImm for r in ranges.values()):
        return True
    used = frozenset().union(*(free_vars(r.min) for r in region))
    outside = {} if analyzer is None else analyzer.ranges
    for var, r in ranges.items():
        names = free_vars(r.min) | free_vars(r.extent)
        data = reads_memory(r.min) or reads_memory(r.extent)
        if var in used and (data or not names.isdisjoint(ranges)):
            return False
        if var not in used and (data or any(v in ranges or v in outside for v in names)):
            known = Analyzer() if analyzer is None else analyzer.copy()
            for other, domain in ranges.items():
                known.bind(other, domain)
            if not known.prove(r.extent >= 1):
                return False
    return True


def running(an: Analyzer, ranges: Mapping[Var, Range], among: Iterable[Var]) -> Analyzer:
    """`an` with the facts that hold when the loops `among` have an iteration.

    An extent over symbols alone is then positive.
    """
    for var in sorted(among, key=lambda v: v.name):
        extent, least = ranges[var].extent, 1
        while isinstance(extent, FloorDiv) and (by := as_int(extent.b) or 0) > 0:
            extent, least = extent.a, least * by
        symbols = free_vars(extent)
        if symbols and all(map(is_symbol, symbols)):
            an = an.assume(extent >= least)
    return an


def _runs(
    region: Sequence[Range], ranges: Mapping[Var, Range], predicate: Expr, analyzer: Analyzer
) -> bool:
    """Whether the predicate only narrows the ranges of the variables that the indices use.

    A condition on other variables may exclude all instances, and so may a condition that leaves a
    variable no value.
    """
    narrowed = narrowed_ranges(ranges, predicate)
    moving: set[Var] = set()
    for var in frozenset().union(*(free_vars(r.min) for r in region)) & ranges.keys():
        left = as_int(narrowed[var].extent)
        if left is not None and left < 1:
            return False
        if as_int(ranges[var].extent) != 1:
            moving.add(var)
    first = {v: r.min for v, r in ranges.items()}
    return all(
        running(analyzer, ranges, free_vars(condition) & ranges.keys()).prove(
            substitute(condition, first)
        )
        for condition in conjuncts(predicate)
        if free_vars(condition).isdisjoint(moving)
    )


def union_regions(a: Box, b: Box, analyzer: Analyzer | None = None) -> list[Range]:
    """The smallest box that holds both boxes."""
    an = analyzer or Analyzer()
    result = []
    for x, y in zip(a, b, strict=True):
        if x is y or (x.min is y.min and x.extent is y.extent):
            result.append(x)
            continue
        x, y = _of_one_type(x, y)
        low = an.simplify(Min(x.min, y.min))
        high = an.simplify(Max(x.min + x.extent, y.min + y.extent))
        result.append(Range(low, an.simplify(high - low)))
    return result


def intersect(a: Box, b: Box, analyzer: Analyzer | None = None) -> list[Range]:
    """The intersection of two boxes; an extent may be zero or less."""
    an = analyzer or Analyzer()
    result = []
    for x, y in zip(a, b, strict=True):
        if x.min is y.min and x.extent is y.extent:
            result.append(x)
            continue
        x, y = _of_one_type(x, y)
        low = an.simplify(Max(x.min, y.min))
        high = an.simplify(Min(x.min + x.extent, y.min + y.extent))
        result.append(Range(low, an.simplify(high - low)))
    return result


def of_index_type(r: Range) -> Range:
    """The range in a signed type, in which its ends do not wrap around."""
    return _of_one_type(r, r)[0]


def _of_one_type(x: Range, y: Range) -> tuple[Range, Range]:
    """The ranges in one signed type, in which the ends of narrow indices do not wrap around."""
    types = {x.min.dtype, y.min.dtype, x.extent.dtype, y.extent.dtype}
    if len(types) == 1 and x.min.dtype in _INDEX_TYPES:
        return x, y
    narrow = all(t.bits < 32 or t is _INDEX_TYPES[0] for t in types)
    wide = _INDEX_TYPES[0 if narrow else 1]
    return Range(cast(wide, x.min), cast(wide, x.extent)), Range(
        cast(wide, y.min), cast(wide, y.extent)
    )


def covers(outer: Box, inner: Box, analyzer: Analyzer | None = None) -> bool:
    """Whether `outer` certainly holds all of `inner`."""
    an = analyzer or Analyzer()
    for x, y in zip(outer, inner, strict=True):
        if x.min is y.min and x.extent is y.extent:
            continue
        x, y = _of_one_type(x, y)
        x0, y0 = an.linear(x.min), an.linear(y.min)
        if not an.proves_nonnegative(an.normal(y0.plus(x0, -1), DType("int64"))):
            return False
        x1, y1 = x0.plus(an.linear(x.extent)), y0.plus(an.linear(y.extent))
        if not an.proves_nonnegative(an.normal(x1.plus(y1, -1), DType("int64"))):
            return False
    return True
