"""Region cover of one buffer: does a block read only elements that its producers always wrote?

Producers and consumer are compared within one iteration of the loops they share. The writes of a
producer count as the largest box that they surely fill without gaps. The reads of the consumer
count as the smallest box that holds them all (`analysis.boxes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metasched.analysis.boxes import (
    Spans,
    by_rows,
    lies_in,
    lower_box,
    merged,
    packed_pairs,
    unpacked,
    upper_box,
    upper_span,
    whole_box,
)
from metasched.analysis.failure import Failure
from metasched.analysis.guarded import guarded_reads, stores_always
from metasched.analysis.running import constant_ranges, empty_loop, idle_loop, is_uncertain
from metasched.analysis.scope import Child, Region, collect
from metasched.analysis.threads import thread_loops
from metasched.analysis.witness import Writer, witnessed
from metasched.arith.affine import range_interval
from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval
from metasched.arith.intset import covers, intersect, lower_region, relax
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.describe import show_region
from metasched.ir.expr import LT, TRUE, Expr, IntImm, Var, as_expr, as_int, compare
from metasched.ir.op import Ramp
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    LetStmt,
    fact,
)
from metasched.ir.visit import free_vars, reads_memory, substitute, walk_stmts

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


def shared_loops(a: Child, b: Child) -> int:
    """How many loops two children of a scope have in common."""
    count = 0
    for x, y in zip(a.loops, b.loops, strict=False):
        if x.var is not y.var:
            break
        count += 1
    return count


def covered(
    child: Child, producers: Sequence[Child], buffer: Buffer, shared: int, *,
    guarded: bool = True, itself: bool = False,
) -> Failure | None:  # fmt: skip
    """Whether `producers` write, below `shared` loops, all that `child` reads of `buffer`.

    Args:
        guarded: True to require only the elements that loads read where the conditions around them
            hold; False to require all declared elements that lie in the buffer.
        itself: whether earlier instances of `child`, below `shared` loops, count as a producer.

    Proofs are cached by the values of blocks, bindings and loop ends.
    """
    skipped = _skipped(child, producers)
    key = (buffer, shared, guarded, itself, skipped, _bound_key(child), *map(_bound_key, producers))
    if key in _COVERED:
        return None
    failure = _covered(child, producers, buffer, shared, guarded, itself)
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
    """Whether each element that `child` reads of `buffer` is written by one group of producers.

    Args:
        child: the consumer.
        groups: producers by the number of loops that they share with `child`; no two groups write
            the same element.
        buffer: the buffer that the producers write.
        guarded: see `covered`.
    """
    producers = [p for group in groups.values() for p in group]
    skipped = _skipped(child, producers)
    key = (buffer, (*groups,), guarded, skipped, _bound_key(child), *map(_bound_key, producers))
    if key in _COVERED:
        return None
    writers = [
        _writer(p, buffer, shared, thread_loops(child.loops[:shared], buffer.scope))
        for shared, group in groups.items()
        for p in group
        if not any(_skipped(child, [p])) and writes_all(p.block, buffer)
        if repeated_loop(p, buffer, shared) is None
    ]
    if witnessed(child, buffer, writers, guarded=guarded):
        _remember(key)
        return None
    idle = [repeated_loop(p, buffer, shared) for shared, group in groups.items() for p in group]
    region = next(r for r in inputs(child.block) if r.buffer is buffer)
    return _uncovered(child, region, producers, idle)


def _skipped(child: Child, producers: Sequence[Child]) -> tuple[bool, ...]:
    """For each producer, whether a condition or a jump may skip it although the child runs."""
    around = set(child.branches)
    return tuple([not around.issuperset(p.branches) for p in producers])


def _remember(key: tuple[object, ...]) -> None:
    if len(_COVERED) >= _LIMIT:
        _COVERED.clear()
    _COVERED.add(key)


def _bound_key(child: Child) -> tuple[object, ...]:
    """The cache key of a child: its block, bindings, predicate, loops, and what is around it."""
    realize = child.realize
    loops = [(p.var, p.min, p.extent, p.thread) for p in child.loops]
    around = [
        (v.var, v.value) if isinstance(v, LetStmt) else (v.var, v.dom.min, v.dom.extent)
        for v in child.around
    ]
    return (_own_key(realize.block), realize.iter_values, realize.predicate, *loops, *around)


@fact
def _own_key(block: Block) -> tuple[object, ...]:
    """A key of a block that is equal in all replays of a trace, though each makes new objects."""
    return (
        tuple(v.var for v in block.iter_vars),
        *((r.buffer, *((d.min, d.extent) for d in r.region)) for r in inputs(block)),
        guarded_reads(block),
        *((r.buffer, writes_all(block, r.buffer), *((d.min, d.extent) for d in r.region))
          for r in block.writes),
    )  # fmt: skip


def _covered(
    child: Child,
    producers: Sequence[Child],
    buffer: Buffer,
    shared: int,
    guarded: bool,
    itself: bool,
) -> Failure | None:
    given = producers
    idle = [repeated_loop(p, buffer, shared) for p in given]
    producers = [
        p
        for p, empty in zip(given, idle, strict=True)
        if empty is None and not any(_skipped(child, [p])) and writes_all(p.block, buffer)
    ]
    sure = [p for p in producers if _empty_loop(p, buffer, shared) is None]
    common = child.loops[:shared]
    extra = thread_loops(common, buffer.scope)
    extra += [n for n in common if as_int(n.extent) == 1 and as_int(n.min) is not None]
    reads = [(k, r) for k, (b, r) in enumerate(bound_regions(child, writes=False)) if b is buffer]
    made = [(p, r) for p in sure for b, r in bound_regions(p, writes=True) if b is buffer]
    pairs = packed_pairs([r for _, r in (*reads, *made)], buffer)
    written: list[Spans] = []
    for producer, region in made:
        varying = constant_ranges((*producer.loops[shared:], *extra))
        box = lower_box(unpacked(region, pairs), producer.realize.predicate, varying)
        if box is not None:
            written.append(box)
    written = merged(written)
    whole = whole_box(buffer, pairs)
    varying = loop_ranges((*child.loops[shared:], *extra))
    for k, region in reads:
        need = upper_box(unpacked(region, pairs), child.realize.predicate, varying)
        if any(all(map(lies_in, need, box, whole)) for box in written):
            continue
        if not any(_covers_symbolically(child, p, buffer, shared, region) for p in sure):
            writers = [_writer(p, buffer, shared, extra) for p in producers]
            if itself and not child.branches and writes_all(child.block, buffer):
                writers.append(_writer(child, buffer, shared, ())._replace(earlier=True))
            if not witnessed(child, buffer, writers, guarded=guarded):
                idle += [_empty_loop(p, buffer, shared) for p in given]
                return _uncovered(child, inputs(child.block)[k], given, idle)
    return None


def _writer(producer: Child, buffer: Buffer, shared: int, extra: Sequence[For]) -> Writer:
    regions = [r for b, r in bound_regions(producer, writes=True) if b is buffer]
    return Writer(producer, (*extra, *producer.loops[shared:]), regions)


def runs(producer: Child, buffer: Buffer, shared: int) -> bool:
    """Whether a producer runs for each iteration of the shared loops.

    Loops that index its writes may be empty: the box that the producer fills is then empty, too.
    """
    empty = _empty_loop(producer, buffer, shared)
    return empty is None and repeated_loop(producer, buffer, shared) is None


def _empty_loop(producer: Child, buffer: Buffer, shared: int) -> For | None:
    """A loop below the `shared` loops that may be empty, and does not index the writes."""
    return empty_loop(producer.loops, shared, _used(producer, buffer), producer.around)


def _used(producer: Child, buffer: Buffer) -> frozenset[Var]:
    """The loop variables that index the writes of a producer."""
    regions = [r for b, r in bound_regions(producer, writes=True) if b is buffer]
    return frozenset().union(*(free_vars(low) for r in regions for low, _ in r))


def repeated_loop(producer: Child, buffer: Buffer, shared: int) -> For | None:
    """A loop below the `shared` loops that repeats the writes of `buffer`, and may have no
    iteration in a call; None without one.

    A loop of a reduction with an init has an iteration, because kernels assert it.
    """
    if all(type(loop.extent) is IntImm for loop in producer.loops[shared:]):
        return None
    block, exempt = producer.block, _used(producer, buffer)
    if block.init is not None:
        pairs = [*zip(block.iter_vars, producer.realize.iter_values, strict=True)]
        kept = frozenset().union(*(free_vars(value) for v, value in pairs if not v.is_reduce))
        exempt |= frozenset().union(*(free_vars(value) for _, value in pairs)) - kept
    return idle_loop(producer.loops, shared, exempt, buffer.shape)


@fact
def writes_all(block: Block, buffer: Buffer) -> bool:
    """Whether each instance of a block surely writes all that it declares to write of `buffer`.

    The writes of blocks inside, or the stores of a leaf, must fill the declared region without
    gaps. False as well where a store may be skipped by a condition, and where the ends of a loop
    depend on other loops or on data. Cached.
    """
    if "auto_copy" in block.annotations:
        return True  # a generated copy writes the part of its region that lies in the buffer
    children, loose = collect([block.body], block.iter_vars)
    makers = [c for c in children if any(r.buffer is buffer for r in c.block.writes)]
    if not makers:
        if not stores_always(block, buffer):
            return False
        inner = {s.var for s in walk_stmts(block.body) if isinstance(s, For)}
        inner |= {v.var for v in block.iter_vars}
        if any(is_uncertain(s, inner) for s in walk_stmts(block.body) if isinstance(s, For)):
            return False
        stores = [(s, n) for s, n in loose if isinstance(s, BufferStore) and s.buffer is buffer]
        sure = [
            (s, n)
            for s, n in stores
            if not idle_loop(n, 0, frozenset().union(*map(free_vars, s.indices)), buffer.shape)
        ]
        return not stores or _stores_fill(block, buffer, sure)
    boxes: list[Spans] = []
    for child in makers:
        if child.branches or repeated_loop(child, buffer, 0) is not None:
            continue
        if _empty_loop(child, buffer, 0) is not None or not writes_all(child.block, buffer):
            continue
        varying = constant_ranges(child.loops)
        for where, region in bound_regions(child, writes=True):
            box = lower_box(region, child.realize.predicate, varying) if where is buffer else None
            if box is not None:
                boxes.append(box)
    return _fill(block, buffer, boxes)


def _stores_fill(
    block: Block, buffer: Buffer, stores: Sequence[tuple[BufferStore, tuple[For, ...]]]
) -> bool:
    """Whether stores, all of which happen, fill the declared region.

    False where an index reads memory. A region of unknown size is assumed to be filled.
    """
    if not stores or any(map(reads_memory, (i for s, _ in stores for i in s.indices))):
        return False
    sizes = [r.extent for w in block.writes if w.buffer is buffer for r in w.region]
    if any(as_int(e) is None for e in (*sizes, *(n.extent for _, loops in stores for n in loops))):
        return True
    boxes = [
        lower_box(tuple([_lanes(i) for i in rows]), TRUE, constant_ranges(loops))
        for s, loops in stores
        if (rows := by_rows(s.indices, buffer)) is not None
    ]
    return _fill(block, buffer, [box for box in boxes if box is not None])


def _lanes(index: Expr) -> tuple[Expr, Expr]:
    """First element and extent of the elements that one index of a store addresses."""
    if isinstance(index, Ramp) and as_int(index.stride) == 1:
        return index.base, as_expr(index.lanes, index.base.dtype)
    return index, as_expr(1, index.dtype)


def _fill(block: Block, buffer: Buffer, boxes: list[Spans]) -> bool:
    """Whether boxes hold all that a block declares to write of a buffer."""
    boxes = merged(boxes)
    needs = [
        [upper_span(r.min, r.extent, {}) for r in declared.region]
        for declared in block.writes
        if declared.buffer is buffer
    ]
    whole = whole_box(buffer)
    return all(any(all(map(lies_in, need, box, whole)) for box in boxes) for need in needs)


def _covers_symbolically(
    child: Child, producer: Child, buffer: Buffer, shared: int, region: Region
) -> bool:
    """`covered` by the prover of `arith`, which knows symbolic extents and fused iterators."""
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
    """The facts that hold when a consumer reads: its predicate, and that the box meets the
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


def _uncovered(
    child: Child, region: BufferRegion, producers: Sequence[Child], idle: Sequence[For | None]
) -> Failure:
    empty = [loop.var.name for loop in idle if loop is not None]
    why = f"; the loop {empty[0]} may have no iteration" if empty else ""

    def sentence() -> str:
        written = ", ".join(
            f"{show_region(r)} by {p.block.name}"
            for p in producers
            for r in p.block.writes
            if r.buffer is region.buffer
        )
        return (
            f"block {child.block.name} reads {show_region(region)}, which is not proved to be "
            f"written before: {written}{why} (region cover)"
        )

    return Failure("region-cover", sentence, child.block)
