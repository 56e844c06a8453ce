"""vector_scan: run scans (cumulative sums, running maxima) in vector lanes.

Along contiguous memory the lanes are neighbouring steps of one scan, which the code generator
combines in registers (`codegen.scan`). Across it they are neighbouring scans: the contiguous
iterator goes inside the scan, in tiles whose last row stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import accesses
from metasched.analysis.block import SCAN, TILED, is_leaf
from metasched.analysis.scan import match_scan
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import Block, BufferStore
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride, vector_iter
from metasched.space.tiling import axes, changed, untouched


@dataclass(frozen=True, slots=True)
class VectorScan:
    """Offer lanes for an untouched scan; and the block as it was.

    Attributes:
        vector_bits: of a vector register.
        vectors: choices of how many registers are scanned at a time.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4, 8)

    @property
    def name(self) -> str:
        return "vector_scan"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or {TILED, SCAN} & realize.block.annotations.keys():
            return [sch]
        position = scanned(realize.block)
        if position is None or not untouched(sch.state.scope(realize).child(realize.block.token)):
            return [sch]
        return [*changed(sch, lambda variant: self._apply(variant, block, position)), sch]

    def _apply(self, sch: Schedule, block: BlockRV, position: int) -> None:
        node = sch.get(block)
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        every = axes(sch, block)
        scan = next(a for a in every if a.position == position)
        others = [a for a in every if a is not scan]
        var = node.iter_vars[position].var
        if all(iter_stride(a, var) in (1, -1) for a in accesses(node) if a.is_write):
            widths = [lanes * v for v in self.vectors if lanes * v <= (scan.extent or 0)]
            if lanes < 2 or not widths:
                raise ScheduleError(self.name, "too-short", "the scan has less than a vector")
            if scan is not every[-1]:
                sch.reorder(*[a.loop for a in others], scan.loop)
            width = sch.sample_categorical(widths, [1.0 / len(widths)] * len(widths))
            sch.annotate(block, SCAN, width)
            return
        along = vector_iter(node)
        row = next((a for a in others if along and node.iter_vars[a.position] is along), None)
        if row is None or lanes < 2 or (row.extent or 0) < lanes:
            raise ScheduleError(self.name, "no-lanes", "no scans lie side by side in memory")
        tile, inside = sch.split(row.loop, list(sch.sample_perfect_tile(row.loop, 2, -1)))
        beside, vector = sch.split(inside, [None, lanes])
        above = [a.loop for a in others if a is not row]
        sch.reorder(*above, tile, scan.loop, beside, vector)
        sch.vectorize(vector)
        sch.annotate(block, SCAN, 1)
        sch.annotate(block, TILED, "SCS")


def scanned(block: Block) -> int | None:
    """The position of the iterator along which a block is a scan, its only one that is not
    spatial; None where there is none."""
    ordered = [n for n, v in enumerate(block.iter_vars) if not v.is_spatial]
    if len(ordered) != 1 or block.init is not None or is_leaf(block) is not None:
        return None
    v = block.iter_vars[ordered[0]]
    if not isinstance(block.body, BufferStore) or as_int(v.dom.min) != 0:
        return None
    found = match_scan(block.body, v.var, as_int(v.dom.extent))
    return ordered[0] if found is not None else None
