"""vector_rows: rows side by side in vector lanes, where the steps along a row need their order.

    for i in parallel rows / 16:
        for j:                           # each step needs the step before it
            for i in 16 rows:            # vector lanes
                delta = X[i, j] - mean[i]; mean[i] += delta / (j + 1); ...

Welford's variance has no partial results that may be combined without other algebra. But its rows
are independent, and the running values of neighbouring rows lie side by side in memory. The lanes
may load the elements of the rows one by one: a step waits longer for the step before it than for
these loads. The same holds for a sum of floats that must keep its order.

The rows of a tile are read side by side, so their lines must stay in the cache until the next
lines are read. Rows that lie a multiple of 4096 bytes apart compete for the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd

from metasched.analysis.access import accesses
from metasched.analysis.block import SCAN, TILED, is_leaf
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.reducer import match_reducer
from metasched.analysis.scope import Child
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Var
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import walk
from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.privatize_reduction import update_of
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, steps
from metasched.space.modules.scan import scanned
from metasched.space.modules.scatter import scattered
from metasched.space.strides import has_vectors, iter_stride, vector_iter
from metasched.space.tiling import Axis, axes, changed, uniform, untouched

STRUCTURE = "vector_rows"
"""The value of the note TILED on a block."""
LINE, SPAN = 64, 1 << 12
"""The bytes of a cache line, and the distance of lines that compete for one set of places, as in
most first-level caches."""


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Offer rows in lanes for an untouched leaf block that updates running values in order, beside
    the unchanged block.

    Reductions and scans that are known, and updates of elements that loads choose, are left to
    other modules.

    Attributes:
        vector_bits: the bits of a vector register.
        vectors: choices of how many registers of rows run side by side. Fewer rows than lanes make
            one short vector.
        cache_bytes: the size of the first-level cache.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4)
    cache_bytes: int = 1 << 15

    @property
    def name(self) -> str:
        return "vector_rows"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or {TILED, SCAN} & node.annotations.keys():
            return [sch]
        child = sch.state.scope(realize).child(node.token)
        if not untouched(child) or steps(child.loops[0]) < SMALL or not _in_order(child):
            return [sch]
        every = axes(sch, block)
        rows = vector_iter(node)
        row = next((a for a in every if node.iter_vars[a.position] is rows), None)
        lanes = self.vector_bits // max(8, *(r.buffer.dtype.bits for r in node.writes))
        extent = (row and row.extent) or 0
        sizes = [lanes * n for n in self.vectors if lanes * n <= extent] or [extent]
        if rows is not None:
            sizes = [n for n in sizes if self._stay(node, rows.var, n)]
        scope = sch.state.scope(realize)
        nodes = zip(every, child.loops, strict=True)
        kept = [a for a, loop in nodes if carried_dependence(loop, scope) is not None]
        if row is None or row in kept or not kept or lanes < 2 or not sizes or sizes[0] < 4:
            return [sch]
        return [*changed(sch, partial(self._apply, block, every, row, kept, sizes)), sch]

    def _stay(self, block: Block, var: Var, rows: int) -> bool:
        """Whether the lines that neighbouring rows read take at most half of the places where the
        cache may keep them."""
        for access in accesses(block):
            by = (iter_stride(access, var) or 0) * access.buffer.dtype.bits // 8
            if abs(by) >= LINE:
                places = SPAN // max(LINE, gcd(by, SPAN)) * (self.cache_bytes // SPAN)
                if 2 * rows > places:
                    return False
        return True

    def _apply(
        self, block: BlockRV, every: list[Axis], row: Axis, kept: list[Axis], sizes: list[int],
        sch: Schedule,
    ) -> None:  # fmt: skip
        """Tiles of rows, the loops that keep their order below, and the lanes innermost."""
        size = uniform(sch, sizes)
        tile, lane = sch.split(row.loop, [None, size])
        around = [a.loop for a in every if a is not row and a not in kept]
        sch.reorder(*around, tile, *[a.loop for a in kept], lane)
        if sch.get(block).init is not None:
            start = sch.decompose_reduction(block, kept[0].loop)
            sch.vectorize(sch.get_loops(start)[-1])
        sch.vectorize(lane)
        sch.annotate(block, TILED, STRUCTURE)


def _in_order(child: Child) -> bool:
    """Whether a block updates running values, and no other module knows how."""
    block = child.block
    if is_leaf(block) is not None or not block.writes:
        return False
    written = {r.buffer for r in block.writes}
    if not any(isinstance(n, BufferLoad) and n.buffer in written for n in walk(block.body)):
        return False
    return not (_known(block) or scattered(block) or scanned(block)[0] is not None)


def _known(block: Block) -> bool:
    """Whether a block is a reduction whose partial results may be combined."""
    if block.init is not None:
        return match_reducer(block.init, block.body) is not None
    # Elsewhere a sum of floats keeps its order, and has vectors if rows are contiguous in memory.
    free = any(v.is_reduce for v in block.iter_vars) or has_vectors(block)
    return free and isinstance(block.body, BufferStore) and update_of(block.body) is not None
