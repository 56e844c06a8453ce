"""The regions that a block reads and writes, inferred from its body.

The inferred regions are used if a script omits `T.reads` and `T.writes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, relax, union_regions
from metasched.arith.iterlimit import narrowed_ranges
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, IntImm, Min, Var, as_int, logical_not
from metasched.ir.op import Broadcast, Call, Ramp
from metasched.ir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    MatchBufferRegion,
    Stmt,
    evolve,
    fact,
)
from metasched.ir.visit import (
    free_vars,
    loads_of,
    reads_memory,
    substitute,
    walk_exprs,
    walk_stmts,
    walk_unseen,
)

Regions = tuple[tuple[BufferRegion, ...], tuple[BufferRegion, ...]]


def block_access_regions(block: Block) -> Regions:
    """Infer the regions that a block reads and writes: (reads, writes), one box for each buffer.

    A box is the union of the accesses while the loops inside the block run; an inner block
    contributes its declared regions. Buffers allocated inside are left out. A matched buffer counts
    as the region of its source. Elements that the init sets are not listed as read, unless the init
    reads their buffer.

    Raises:
        MetaschedError: on access through a raw pointer, whose region is unknown.
    """
    found = _collected(block)
    return found.regions(found.read, block), found.regions(found.written, block)


def each_access(block: Block) -> list[tuple[bool, BufferRegion, tuple[Expr, ...]]]:
    """Each access of a block: whether it writes, its box while the loops inside the block run, and
    the conditions around it. See `block_access_regions` for what counts."""
    found = _collected(block)
    matches = {m.buffer: m for m in block.match_buffers}
    return [
        (written, matched_region(matches[r.buffer], r) if r.buffer in matches else r, conditions)
        for written, r, conditions in found.each
        if r.buffer not in found.own
    ]


def declared(block: Block) -> Block:
    """The block with the regions that its body reads and writes."""
    reads, writes = block_access_regions(block)
    return evolve(block, reads=tuple(reads), writes=tuple(writes))


@fact
def inputs(block: Block) -> tuple[BufferRegion, ...]:
    """The declared reads of a block, without results that the init of the block sets (cached).

    For an update of C[i, j] with an init, `T.reads(C[i, j], A[i, k])` means the same as
    `T.reads(A[i, k])`. A result that the init itself reads is kept.
    """
    if block.init is None:
        return block.reads
    loads = [load for s in walk_stmts(block.init) for e in s.exprs for load in loads_of(e)]
    kept = {load.buffer for load in loads}
    own = {_key(r) for r in block.writes if r.buffer not in kept}
    reads = [r for r in block.reads if _key(r) not in own]
    declared = {r.buffer for r in reads}
    reads += [r for r in block.writes if r.buffer in kept and r.buffer not in declared]
    return tuple(reads)


def _key(region: BufferRegion) -> tuple[object, ...]:
    return (region.buffer, *((r.min, r.extent) for r in region.region))


def _collected(block: Block) -> _Collector:
    found = _Collector(block)
    if block.init is not None:
        found.stmt(block.init, {}, ())
        found.begun = {b: r for b, r in found.written.items() if b not in found.read}
    found.stmt(block.body, {}, ())
    return found


class _Collector:
    """One walk of a block's body: the boxes of each buffer, in order of first appearance."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.read: dict[Buffer, BufferRegion] = {}
        self.written: dict[Buffer, BufferRegion] = {}
        self.begun: dict[Buffer, BufferRegion] = {}
        """What the init sets, of the buffers that it does not read."""
        self.each: list[tuple[bool, BufferRegion, tuple[Expr, ...]]] = []
        self.own = set(block.alloc_buffers)
        self.seen: dict[tuple[tuple[Expr, ...], tuple[Var, ...]], set[Expr]] = {}
        """What was visited, by the conditions and loops around it."""

    def stmt(self, stmt: Stmt, loops: dict[Var, Range], conditions: tuple[Expr, ...]) -> None:
        """Collect from a statement inside these loops, under these conditions."""
        if isinstance(stmt, BlockRealize):
            self._inner(stmt, loops, conditions)
            return
        if isinstance(stmt, Allocate):
            self.own.add(stmt.buffer)
        if isinstance(stmt, LetStmt):
            self.expr(stmt.value, loops, conditions)
            self.stmt(substitute(stmt.body, {stmt.var: stmt.value}), loops, conditions)
            return
        if isinstance(stmt, BufferStore):
            point = BufferRegion(stmt.buffer, _points(stmt.indices))
            self._add(self.written, point, loops, conditions)
        for expr in stmt.exprs:
            self.expr(expr, loops, conditions)
        if isinstance(stmt, For):
            inside = dict(loops)
            inside[stmt.var] = _iterations(stmt)
            self.stmt(stmt.body, inside, conditions)
        elif isinstance(stmt, IfThenElse):
            self.stmt(stmt.then, loops, (*conditions, stmt.condition))
            if stmt.orelse is not None:
                self.stmt(stmt.orelse, loops, (*conditions, logical_not(stmt.condition)))
        else:
            for part in stmt.stmts:
                self.stmt(part, loops, conditions)

    def expr(self, expr: Expr, loops: dict[Var, Range], conditions: tuple[Expr, ...]) -> None:
        """Collect the loads of an expression; a side of a choice counts under its condition."""
        seen = self.seen.setdefault((conditions, tuple(loops)), set())
        for node, known in walk_unseen(expr, conditions, _chosen, seen):
            if isinstance(node, BufferLoad):
                point = BufferRegion(node.buffer, _points(node.indices))
                self._add(self.read, point, loops, known)
            elif isinstance(node, Var) and node.dtype.is_handle:
                self._opaque(node.name)
            elif isinstance(node, Call) and node.op.name == "address_of":
                place = next(iter(node.args), None)
                self._opaque(getattr(getattr(place, "buffer", None), "name", "a buffer"))

    def _opaque(self, name: str) -> None:
        raise MetaschedError(
            f"block {self.block.name!r} uses the address of {name!r}: what is accessed through "
            "a pointer cannot be inferred; declare the block's regions with T.reads and T.writes"
        )

    def _inner(
        self, realize: BlockRealize, loops: dict[Var, Range], conditions: tuple[Expr, ...]
    ) -> None:
        for expr in realize.exprs:
            self.expr(expr, loops, conditions)
        block = realize.block
        values = realize.bindings
        own = set(block.alloc_buffers)
        for into, regions in ((self.read, inputs(block)), (self.written, block.writes)):
            for region in regions:
                if region.buffer in own:
                    continue
                ranges = tuple(
                    Range(substitute(r.min, values), substitute(r.extent, values))
                    for r in region.region
                )
                outer = BufferRegion(region.buffer, ranges)
                self._add(into, outer, loops, (*conditions, realize.predicate))

    def _add(
        self,
        into: dict[Buffer, BufferRegion],
        region: BufferRegion,
        loops: dict[Var, Range],
        conditions: tuple[Expr, ...],
    ) -> None:
        relaxed = region
        if loops:
            ranges: Mapping[Var, Range] = loops
            for condition in conditions:
                ranges = narrowed_ranges(ranges, condition)
            relaxed = relax(region, ranges)
            for _ in loops:  # bounds of loops may use the loops around them
                if all(v not in loops for r in relaxed.region for v in _variables(r)):
                    break
                relaxed = relax(relaxed, ranges)
        begun = self.begun.get(region.buffer) if into is self.read else None
        if begun is not None and covers(begun.region, relaxed.region, _HULL):
            return
        if any(c is not TRUE for c in conditions):
            relaxed = without_loads(relaxed)
        if _empty(relaxed):
            relaxed = _without_negatives(relaxed)
        self.each.append((into is self.written, relaxed, conditions))
        old = into.get(relaxed.buffer)
        if old is not None and _empty(relaxed):
            return
        if old is not None and not _empty(old):
            united = union_regions(old.region, relaxed.region, _HULL)
            whole = zip(united, old.buffer.shape, strict=True)
            relaxed = BufferRegion(old.buffer, tuple(_short(r, size) for r, size in whole))
        into[relaxed.buffer] = relaxed

    def regions(self, found: dict[Buffer, BufferRegion], block: Block) -> tuple[BufferRegion, ...]:
        """The collected boxes, simplified, without buffers allocated inside, matched buffers
        replaced by their sources."""
        matches = {m.buffer: m for m in block.match_buffers}
        result: dict[Buffer, BufferRegion] = {}
        an = Analyzer()
        for region in found.values():
            if region.buffer in self.own:
                continue
            region = self._steady(region)
            if region.buffer in matches:
                region = matched_region(matches[region.buffer], region)
            ranges = tuple(Range(an.simplify(r.min), an.simplify(r.extent)) for r in region.region)
            old = result.get(region.buffer)
            if old is not None:
                ranges = tuple(union_regions(old.region, ranges, an))
            result[region.buffer] = BufferRegion(region.buffer, ranges)
        return tuple(result.values())

    def _steady(self, region: BufferRegion) -> BufferRegion:
        """The region, with the whole dimension for bounds that read a buffer which the block
        itself writes or allocates."""
        changing = self.own | self.written.keys()
        ranges = tuple(
            Range(IntImm(r.min.dtype, 0), size) if _reads(r, changing) else r
            for r, size in zip(region.region, region.buffer.shape, strict=True)
        )
        return BufferRegion(region.buffer, ranges)


def _chosen(node: Expr) -> list[tuple[Expr, tuple[Expr, ...]]]:
    """The parts of a node, a side of a choice under its condition."""
    if isinstance(node, Call) and node.op.name == "if_then_else":
        cond, then, orelse = node.args
        return [(cond, ()), (then, (cond,)), (orelse, (logical_not(cond),))]
    return [(child, ()) for child in node.children]


def _reads(r: Range, buffers: Set[Buffer]) -> bool:
    """Whether the bounds of a range read one of the buffers."""
    return any(
        isinstance(node, BufferLoad) and node.buffer in buffers
        for bound in (r.min, r.extent)
        if reads_memory(bound)
        for node in walk_exprs(bound)
    )


def _short(r: Range, size: Expr) -> Range:
    """The range; the whole dimension if the first index is the least of too many formulas, as of
    A[i % 9], A[(i + 1) % 9], ..: each further formula is compared with all."""
    parts = sum(isinstance(node, Min) for node in walk_exprs(r.min))
    return Range(IntImm(size.dtype, 0), size) if parts > FORMULAS else r


def _empty(region: BufferRegion) -> bool:
    """Whether loops or conditions leave no iteration that touches the region."""
    return any(_most(r.extent) < 1 for r in region.region)


def _most(extent: Expr) -> float:
    """The largest number that an extent can be."""
    size = as_int(extent)
    return _HULL.interval(extent)[1] if size is None else size


def _without_negatives(region: BufferRegion) -> BufferRegion:
    ranges = (
        Range(r.min, IntImm(r.extent.dtype, 0)) if _most(r.extent) < 0 else r for r in region.region
    )
    return BufferRegion(region.buffer, tuple(ranges))


def without_loads(region: BufferRegion) -> BufferRegion:
    """The region of a conditional access, with the whole dimension for bounds that load memory.

    Where the condition does not hold, such a load may be outside of its buffer.
    """
    whole = zip(region.region, region.buffer.shape, strict=True)
    ranges = (
        Range(IntImm(size.dtype, 0), size) if reads_memory(r.min) or reads_memory(r.extent) else r
        for r, size in whole
    )
    return BufferRegion(region.buffer, tuple(ranges))


def _variables(r: Range) -> frozenset[Var]:
    return free_vars(r.min) | free_vars(r.extent)


FORMULAS = 8
"""The most nested minima in a bound of a region."""
_HULL = Analyzer()


def matched_region(match: MatchBufferRegion, region: BufferRegion) -> BufferRegion:
    """A region of a matched buffer as a region of the buffer behind it."""
    source = match.source
    lead = len(source.region) - len(region.region)
    if lead < 0:
        names = f"{match.buffer.name} has more dimensions than its source {source.buffer.name}"
        raise MetaschedError(f"the matched buffer {names}")
    ranges: list[Range] = list(source.region[:lead])
    for outer, inner in zip(source.region[lead:], region.region, strict=True):
        ranges.append(Range(outer.min + inner.min.astype(outer.min.dtype), inner.extent))
    return BufferRegion(source.buffer, tuple(ranges))


def _points(indices: tuple[Expr, ...]) -> tuple[Range, ...]:
    return tuple(_lanes(i) if i.dtype.lanes > 1 else Range(i, IntImm(i.dtype, 1)) for i in indices)


def _lanes(index: Expr) -> Range:
    """The range that a vector index touches."""
    if isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value >= 0:
        length = (index.lanes - 1) * index.stride.value + 1
        return Range(index.base, IntImm(index.base.dtype, length))
    if isinstance(index, Broadcast):
        return Range(index.value, IntImm(index.value.dtype, 1))
    raise MetaschedError(f"the region of the vector index {show_expr(index)} cannot be inferred")


def _iterations(loop: For) -> Range:
    if loop.step is None:
        return Range(loop.min, loop.extent)
    an = Analyzer()
    return Range(loop.min, an.simplify((loop.extent - 1) * loop.step + 1))
