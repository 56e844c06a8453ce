"""tile_transposition: move elements from rows to columns in square tiles.

The stores of a block may be contiguous along one iterator, and a load along another. Then each step
touches a new cache line, in the loads or in the stores. Tiles as wide as a vector use all elements
of a line while it is cached. A tile that is only moved is transposed in registers
(`codegen.transpose`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import SHUFFLED, accesses
from metasched.analysis.block import is_leaf
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride, vector_iter
from metasched.space.tiling import axes, changed, uniform, untouched


@dataclass(frozen=True, slots=True)
class TileTransposition:
    """Offer tiles for an untouched block without reductions, beside the unchanged block.

    Attributes:
        vector_bits: the bits of a vector register; a tile has as many rows and columns as a vector
            has lanes.
        squares: choices of how many squares stand above each other in a tile.
    """

    vector_bits: int = 256
    squares: Sequence[int] = (1, 2, 4, 8)

    @property
    def name(self) -> str:
        return "tile_transposition"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or is_leaf(realize.block) is not None:
            return [sch]
        found = _crossed(realize.block)
        if found is None or not untouched(sch.state.scope(realize).child(realize.block.token)):
            return [sch]
        return [*changed(sch, lambda variant: self._apply(variant, block, *found)), sch]

    def _apply(self, sch: Schedule, block: BlockRV, row: int, column: int) -> None:
        loops = {axis.position: axis for axis in axes(sch, block)}
        lanes = self.vector_bits // sch.get(block).writes[0].buffer.dtype.bits
        if (loops[row].extent or 0) <= SHUFFLED and (loops[column].extent or 0) >= lanes >= 2:
            _store_parts(sch, {n: axis.loop for n, axis in loops.items()}, row, column, lanes)
            return
        fitting = [n for n in self.squares if n * lanes <= (loops[row].extent or 0)]
        if lanes < 2 or not fitting or (loops[column].extent or 0) < lanes:
            raise ScheduleError(self.name, "too-small", "the block has less than a square")
        squares = uniform(sch, fitting)
        above, tile, rows = sch.split(loops[row].loop, [None, squares, lanes])
        beside, columns = sch.split(loops[column].loop, [None, lanes])
        sch.reorder(above, beside, tile, rows, columns)
        sch.unroll(rows)
        sch.vectorize(columns)


def _store_parts(
    sch: Schedule, loops: dict[int, LoopRV], row: int, column: int, lanes: int
) -> None:
    """Store a vector for each of a few rows that one run of memory is made of, as P[p, m] of
    X[4 * m + p]: the run is loaded once."""
    around, columns = sch.split(loops[column], [None, lanes])
    rest = [loop for n, loop in loops.items() if n not in (row, column)]
    sch.reorder(*rest, around, loops[row], columns)
    sch.unroll(loops[row])
    sch.vectorize(columns)


def _crossed(block: Block) -> tuple[int, int] | None:
    """The positions of two iterators: the first contiguous in a load, the second in all stores.

    The load is not contiguous along the second. None where there are no such iterators.
    """
    column = vector_iter(block)
    if column is None or any(v.is_reduce for v in block.iter_vars):
        return None
    loads = [a for a in accesses(block) if iter_stride(a, column.var) not in (0, 1)]
    for position, v in enumerate(block.iter_vars):
        if as_int(v.dom.extent) != 1 and any(iter_stride(a, v.var) == 1 for a in loads):
            return position, block.iter_vars.index(column)
    return None
