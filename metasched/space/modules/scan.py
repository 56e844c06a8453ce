"""vector_scan: run scans (cumulative and decaying sums, running maxima) in vector lanes.

If a scan runs along contiguous memory, the lanes are neighbouring steps of this scan; the code
generator combines them in registers (`codegen.scan`). Otherwise the lanes are neighbouring scans:
the contiguous iterator goes inside the scan, in tiles whose last row stays in the cache.

If there are fewer scans than cores, each scan is also offered in chunks that run in parallel. A
first pass over the values gives the start of each chunk (`decompose_scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from metasched.analysis.access import accesses
from metasched.analysis.block import FOLD, SCAN, TILED, is_leaf
from metasched.analysis.scan import block_scan, in_fixed_order
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride, vector_iter
from metasched.space.tiling import axes, changed, uniform, untouched


@dataclass(frozen=True, slots=True)
class VectorScan:
    """Offer lanes for an untouched scan, beside the unchanged block.

    Attributes:
        vector_bits: the bits of a vector register.
        vectors: choices of how many registers are scanned at a time.
        cores: the number of cores of the machine.
        chunks: choices of how many chunks of a scan each core gets.
        shortest: the fewest steps of a chunk: starting threads takes microseconds.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4, 8)
    cores: int = 1
    chunks: Sequence[int] = (1, 2, 4, 16, 64)
    shortest: int = 1 << 13

    @property
    def name(self) -> str:
        return "vector_scan"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or {TILED, SCAN} & realize.block.annotations.keys():
            return [sch]
        position, ordered = scanned(realize.block)
        if position is None or not untouched(sch.state.scope(realize).child(realize.block.token)):
            return [sch]
        ways: list[Callable[[Schedule], object]] = []
        if not ordered and len(self._sizes(realize.block, position)) > 0:
            ways.append(lambda variant: self._in_chunks(variant, block, position))
        ways.append(lambda variant: self._apply(variant, block, position, ordered))
        return [*changed(sch, *ways), sch]

    def _sizes(self, block: Block, position: int) -> list[int]:
        """The choices of how many steps a chunk has, largest first."""
        extents = [as_int(v.dom.extent) for v in block.iter_vars]
        beside = prod(e or self.cores for n, e in enumerate(extents) if n != position)
        steps = extents[position] or 0
        if beside >= self.cores or not steps:
            return []
        sizes = [-(-steps // (self.cores * c)) for c in self.chunks]
        return sorted({s for s in map(partial(_near, steps), sizes) if s >= self.shortest})[::-1]

    def _in_chunks(self, sch: Schedule, block: BlockRV, position: int) -> None:
        """Cut a scan into parallel chunks, each in lanes, after a pass that gives their starts."""
        node = sch.get(block)
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        every = axes(sch, block)
        scan = next(a for a in every if a.position == position)
        sch.reorder(*[a.loop for a in every if a is not scan], scan.loop)
        sizes = self._sizes(node, position)
        size = uniform(sch, sizes)
        chunk, _ = sch.split(scan.loop, [None, size])
        total, _ = sch.decompose_scan(chunk)
        widths = [lanes * v for v in self.vectors]
        if lanes > 1:
            width = uniform(sch, widths)
            sch.annotate(block, SCAN, width)
            sch.annotate(total, FOLD, widths[-1])

    def _apply(self, sch: Schedule, block: BlockRV, position: int, ordered: bool) -> None:
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
            if ordered:
                raise ScheduleError(
                    self.name, "fixed-order", "floats are combined in the order of the loop; "
                    'T.func_attr({"tir.fast_math": "reassoc"}) permits any',
                )  # fmt: skip
            if scan is not every[-1]:
                sch.reorder(*[a.loop for a in others], scan.loop)
            width = uniform(sch, widths)
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


def _near(steps: int, size: int) -> int:
    """A number of steps that divides the scan, at most one eighth above `size`; if there is none,
    `size` in whole cache lines."""
    found = (n for n in range(size, size + size // 8 + 1) if steps % n == 0)
    return next(found, -(-size // 64) * 64)


def scanned(block: Block) -> tuple[int | None, bool]:
    """The position of the iterator along which a leaf block is a scan, None for other blocks, and
    whether the scan must keep the order of its values."""
    found = block_scan(block) if is_leaf(block) is None else None
    return (None, False) if found is None else (found[0], in_fixed_order(block, *found))
