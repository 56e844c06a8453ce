"""Region cover of one buffer: does a block read only what some producers surely wrote before?

Producers and consumer are compared within one iteration of the loops they share. What a producer
writes is bounded from below (only boxes that are filled without gaps count), what the consumer
reads from above. Bounds are integer intervals on top of a fixed part: the terms of the index over
variables of shared loops, which have one value on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

from metasched.analysis.failure import Failure
from metasched.analysis.guarded import guarded_reads, stores_always
from metasched.analysis.running import BRANCHES, constant_ranges, is_uncertain, surely_run
from metasched.analysis.scope import Child, Region, collect
from metasched.analysis.threads import thread_loops
from metasched.analysis.witness import Writer, witnessed
from metasched.arith.affine import Ranges, form_interval, interval, linear, range_interval
from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import covers, intersect, lower_region, relax
from metasched.arith.linear import Linear
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.describe import show_region
from metasched.ir.expr import LT, TRUE, Expr, FloorDiv, FloorMod, IntImm, Var, as_int, compare
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    fact,
)
from metasched.ir.visit import free_vars, substitute, walk_stmts


class Span(NamedTuple):
    """The elements from fixed + low to fixed + high in one dimension."""

    fixed: frozenset[tuple[Expr, int]]
    low: float
    high: float


Spans: TypeAlias = tuple[Span, ...]
Packed: TypeAlias = tuple[tuple[int, int], ...]
_NOTHING: frozenset[tuple[Expr, int]] = frozenset()
_COVERED: set[tuple[object, ...]] = set()
_LIMIT = 1 << 14


def bound_regions(child: Child, *, writes: bool) -> list[tuple[Buffer, Region]]:
    """The regions of a child over loop variables: its iterators replaced by bindings (cached)."""
    return _bound_regions(child.realize, writes)


@fact
def _bound_regions(realize: BlockRealize, writes: bool) -> list[tuple[Buffer, Region]]:
    block = realize.block
    at = realize.bindings
    return [
        (r.buffer, tuple([(substitute(d.min, at), substitute(d.extent, at)) for d in r.region]))
        for r in (block.writes if writes else inputs(block))
    ]


def loop_ranges(loops: Iterable[For]) -> dict[Var, Interval]:
    """The values of each loop variable; symbolic ends are unbounded."""
    ranges: dict[Var, Interval] = {}
    for loop in loops:
        if type(loop.min) is IntImm and type(loop.extent) is IntImm:
            first = loop.min.value
            ranges[loop.var] = (first, first + max(loop.extent.value - 1, 0))
        else:
            ranges[loop.var] = range_interval(loop.min, loop.extent)
    return ranges


def upper_span(low: Expr, extent: Expr, varying: Ranges) -> Span:
    """Bounds of one dimension while the `varying` variables take all their values.

    Remembered by value: candidates of one space ask the same of many dimensions.
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


def _limits(predicate: Expr, varying: Ranges) -> list[_Limit] | None:
    """The conjuncts of a predicate as limits; None if one is of another form."""
    out: list[_Limit] = []
    for part in conjuncts(predicate):
        if not isinstance(part, LT):
            return None
        gap = linear(part.a).plus(linear(part.b), -1)
        out.append(_Limit(gap.terms, -gap.const - 1))
    return out


def lower_box(region: Region, predicate: Expr, varying: Ranges) -> Spans | None:
    """A box surely filled while the `varying` variables take all their values; None if unknown."""
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
    """The gap-free interval that one dimension takes, if it is one."""
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
        if limit.terms == form.terms:
            limit.used = True
            high = min(high, limit.most + form.const + width - 1)
    return Span(frozenset(fixed), low, high)


def shared_loops(a: Child, b: Child) -> int:
    """How many loops two children of a scope have in common."""
    count = 0
    for x, y in zip(a.loops, b.loops, strict=False):
        if x.var is not y.var:
            break
        count += 1
    return count


@lru_cache(maxsize=1 << 10)
def _whole(buffer: Buffer, packed: Packed = ()) -> Spans:
    """All of a buffer; symbolic dimensions have no upper end."""
    sizes = [interval(s, {})[1] for s in buffer.shape]
    for outer, inner in packed:
        sizes[outer] *= sizes[inner]
    inners = {inner for _, inner in packed}
    return tuple(Span(_NOTHING, 0, s - 1) for n, s in enumerate(sizes) if n not in inners)


def _packed(regions: list[Region], buffer: Buffer) -> Packed:
    """The pairs of dimensions that hold e // c and e % c of some e in every region, the second
    of extent c: they tell e and no more, so each pair is as good as one dimension that holds e."""
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


def _unpacked(region: Region, packed: Packed) -> Region:
    """A region with each pair of `packed` as one dimension."""
    joined, inners = dict(enumerate(region)), {inner for _, inner in packed}
    for outer, inner in packed:
        low = region[inner][0]
        assert isinstance(low, FloorMod)
        joined[outer] = low.a, region[inner][1]
    return tuple([r for n, r in joined.items() if n not in inners])


def _inside(inner: Span, outer: Span, whole: Span) -> bool:
    """Whether `inner`, clipped to the buffer, lies in `outer`."""
    if not outer.fixed and outer.low <= whole.low and outer.high >= whole.high < inf:
        return True
    if inner.fixed != outer.fixed:
        return False
    low, high = inner.low, inner.high
    if not inner.fixed:
        low, high = max(low, whole.low), min(high, whole.high)
    return low > high or (outer.low <= low and high <= outer.high)


def _merge(boxes: list[Spans]) -> list[Spans]:
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


def covered(
    child: Child, producers: Sequence[Child], buffer: Buffer, shared: int, *, guarded: bool = True
) -> Failure | None:
    """Whether what `child` reads of `buffer` is written by `producers` below `shared` loops.

    With `guarded` a read under a condition needs only the elements for which the condition holds,
    otherwise all that is declared is needed, as far as the buffer has it. What was proved is
    remembered by value: blocks, bindings, and the ends of the loops.
    """
    key = (buffer, shared, guarded, _bound_key(child), *map(_bound_key, producers))
    if key in _COVERED:
        return None
    failure = _covered(child, producers, buffer, shared, guarded)
    if failure is None:
        _remember(key)
    return failure


def covered_in_parts(
    child: Child,
    groups: Mapping[int, Sequence[Child]],
    buffer: Buffer,
    *,
    guarded: bool = True,
) -> Failure | None:
    """Whether each element that `child` reads of `buffer` is written by one of the groups, below as
    many loops as its key says: for groups that write different elements."""
    producers = [p for group in groups.values() for p in group]
    key = (buffer, (*groups,), guarded, _bound_key(child), *map(_bound_key, producers))
    if key in _COVERED:
        return None
    writers = [
        _writer(p, buffer, shared, thread_loops(child.loops[:shared], buffer.scope))
        for shared, group in groups.items()
        for p in group
        if writes_all(p.block, buffer)
    ]
    if witnessed(child, buffer, writers, guarded=guarded):
        _remember(key)
        return None
    return _uncovered(child, next(r for r in inputs(child.block) if r.buffer is buffer), producers)


def _remember(key: tuple[object, ...]) -> None:
    if len(_COVERED) >= _LIMIT:
        _COVERED.clear()
    _COVERED.add(key)


def _bound_key(child: Child) -> tuple[object, ...]:
    """All that the iterators of a child depend on."""
    realize = child.realize
    loops = [(p.var, p.min, p.extent, p.thread) for p in child.loops]
    return (_own_key(realize.block), realize.iter_values, realize.predicate, *loops)


@fact
def _own_key(block: Block) -> tuple[object, ...]:
    """Equal in replays of one trace, whose blocks are new objects."""
    return (
        tuple(v.var for v in block.iter_vars),
        *((r.buffer, *((d.min, d.extent) for d in r.region)) for r in inputs(block)),
        guarded_reads(block),
        *((r.buffer, writes_all(block, r.buffer), *((d.min, d.extent) for d in r.region))
          for r in block.writes),
    )  # fmt: skip


def _covered(
    child: Child, producers: Sequence[Child], buffer: Buffer, shared: int, guarded: bool
) -> Failure | None:
    given = producers
    producers = [p for p in given if writes_all(p.block, buffer)]
    sure = [p for p in producers if _runs(p, buffer, shared)]
    common = child.loops[:shared]
    extra = thread_loops(common, buffer.scope)
    extra += [n for n in common if as_int(n.extent) == 1 and as_int(n.min) is not None]
    reads = [(k, r) for k, (b, r) in enumerate(bound_regions(child, writes=False)) if b is buffer]
    made = [(p, r) for p in sure for b, r in bound_regions(p, writes=True) if b is buffer]
    packed = _packed([r for _, r in (*reads, *made)], buffer)
    written: list[Spans] = []
    for producer, region in made:
        varying = constant_ranges((*producer.loops[shared:], *extra))
        box = lower_box(_unpacked(region, packed), producer.realize.predicate, varying)
        if box is not None:
            written.append(box)
    written = _merge(written)
    whole = _whole(buffer, packed)
    varying = loop_ranges((*child.loops[shared:], *extra))
    for k, region in reads:
        need = [upper_span(low, extent, varying) for low, extent in _unpacked(region, packed)]
        if any(all(map(_inside, need, box, whole)) for box in written):
            continue
        if not any(_covers_symbolically(child, p, buffer, shared, region) for p in sure):
            writers = [_writer(p, buffer, shared, extra) for p in producers]
            if not witnessed(child, buffer, writers, guarded=guarded):
                return _uncovered(child, inputs(child.block)[k], given)
    return None


def _writer(producer: Child, buffer: Buffer, shared: int, extra: Sequence[For]) -> Writer:
    regions = [r for b, r in bound_regions(producer, writes=True) if b is buffer]
    return Writer(producer, (*extra, *producer.loops[shared:]), regions)


def _runs(producer: Child, buffer: Buffer, shared: int) -> bool:
    """Whether a producer runs for each iteration of the shared loops; loops that index what it
    writes may be empty, as then the box that it fills is."""
    regions = [r for b, r in bound_regions(producer, writes=True) if b is buffer]
    used = frozenset().union(*(free_vars(low) for r in regions for low, _ in r))
    return surely_run(producer.loops, shared, used)


@fact
def writes_all(block: Block, buffer: Buffer) -> bool:
    """Whether each instance of a block surely writes all that it declares to write of `buffer`.

    What blocks inside write must fill the declared region without gaps; of other statements only
    stores under conditions, to elements that nothing stores whatever the conditions, and loops
    whose ends depend on each other are suspected. Cached.
    """
    if isinstance(block.body, BufferStore) or "auto_copy" in block.annotations:
        return True  # (a copy of its region as far as that lies in the buffer)
    children, loose = collect([block.body])
    makers = [c for c in children if any(r.buffer is buffer for r in c.block.writes)]
    if not makers:
        if not stores_always(block, buffer):
            return False
        inner = {s.var for s in walk_stmts(block.body) if isinstance(s, For)}
        inner |= {v.var for v in block.iter_vars}
        return not any(is_uncertain(s, inner) for s in walk_stmts(block.body) if isinstance(s, For))
    if any(isinstance(s, BRANCHES) for s, _ in loose):
        return False
    boxes: list[Spans] = []
    for child in makers:
        inner = {n.var for n in child.loops} | {v.var for v in block.iter_vars}
        if any(is_uncertain(n, inner) for n in child.loops) or not writes_all(child.block, buffer):
            continue
        varying = constant_ranges(child.loops)
        for where, region in bound_regions(child, writes=True):
            box = lower_box(region, child.realize.predicate, varying) if where is buffer else None
            if box is not None:
                boxes.append(box)
    boxes = _merge(boxes)
    for declared in block.writes:
        if declared.buffer is buffer:
            need = [upper_span(r.min, r.extent, {}) for r in declared.region]
            if not any(all(map(_inside, need, box, _whole(buffer))) for box in boxes):
                return False
    return True


def _covers_symbolically(
    child: Child, producer: Child, buffer: Buffer, shared: int, region: Region
) -> bool:
    """The same question to the prover, which knows symbolic extents and fused iterators."""
    extra = thread_loops(child.loops[:shared], buffer.scope)
    outer = [loop for loop in child.loops[:shared] if loop not in extra]
    analyzer = Analyzer({loop.var: Range(loop.min, loop.extent) for loop in outer})
    box = _relaxed(buffer, region, (*child.loops[shared:], *extra), analyzer)
    need = intersect(box, buffer.whole().region, analyzer)
    below = _domain((*producer.loops[shared:], *extra))
    if producer.realize.predicate is not TRUE:
        analyzer = _where_read(analyzer, child, buffer, box)
    for where, produced in bound_regions(producer, writes=True):
        if where is buffer:
            points = [Range(low, extent) for low, extent in produced]
            sure = lower_region(points, below, producer.realize.predicate, analyzer)
            if sure is not None and covers(sure, need, analyzer):
                return True
    return False


def _where_read(analyzer: Analyzer, child: Child, buffer: Buffer, box: Sequence[Range]) -> Analyzer:
    """What is known where a consumer reads at all: its predicate, and that the box meets the
    buffer."""
    known = analyzer.assume(child.realize.predicate)
    for r, extent in zip(box, buffer.shape, strict=True):
        known = known.assume(r.min + r.extent >= 1).assume(compare(LT, r.min, extent))
    return known


def _domain(loops: Iterable[For]) -> dict[Var, Range]:
    return {loop.var: Range(loop.min, loop.extent) for loop in loops}


def _relaxed(
    buffer: Buffer, region: Region, loops: Sequence[For], analyzer: Analyzer
) -> list[Range]:
    """What a consumer reads while `loops` run, not clipped to the buffer."""
    points = BufferRegion(buffer, tuple(Range(low, extent) for low, extent in region))
    return list(relax(points, _domain(loops), analyzer).region)


def _uncovered(child: Child, region: BufferRegion, producers: Sequence[Child]) -> Failure:
    def sentence() -> str:
        written = ", ".join(
            f"{show_region(r)} by {p.block.name}"
            for p in producers
            for r in p.block.writes
            if r.buffer is region.buffer
        )
        return (
            f"block {child.block.name} reads {show_region(region)}, which is not proved to be "
            f"written before: {written} (region cover)"
        )

    return Failure("region-cover", sentence, child.block)
