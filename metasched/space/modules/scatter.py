"""scatter: spread histograms and scatter-adds, whose indices are read from memory, over the cores.

There are two ways. If the result is small beside the input, each core updates its own copy
(`privatize_update`), unless the order of sums of floats matters. If an update writes several
columns side by side, the columns become vector lanes. The loop over the indices goes inside a tile
of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from metasched.analysis.block import TILED, is_leaf
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, Max, Min, Var, as_int
from metasched.ir.stmt import Block, BufferStore, IterKind, LetStmt
from metasched.ir.visit import free_vars, loads_of, substitute, walk_stmts
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import vector_iter
from metasched.space.tiling import axes, changed, uniform, untouched


@dataclass(frozen=True, slots=True)
class Scatter:
    """Offer copies and columns for an untouched update at indices from memory, beside the unchanged
    block.

    Attributes:
        cores: the number of cores of the machine.
        vector_bits: the bits of a vector register.
        copies: choices of how many copies each core gets.
        reuse: how many updates an element of a copy must get on average.
    """

    cores: int = 1
    vector_bits: int = 256
    copies: Sequence[int] = (1, 2, 4)
    reuse: int = 4

    @property
    def name(self) -> str:
        return "scatter"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or TILED in realize.block.annotations:
            return [sch]
        found = scattered(realize.block)
        if not found or not untouched(sch.state.scope(realize).child(realize.block.token)):
            return [sch]
        ways: list[Callable[[Schedule], object]] = []
        liberties = sch.state.func_of(realize)[1].liberties
        if self._counts(realize.block, found) and _any_order(realize.block, found, liberties):
            ways.append(lambda variant: self._in_copies(variant, block, found))
        if vector_iter(realize.block) is not None:
            ways.append(lambda variant: self._in_columns(variant, block))
        return [*changed(sch, *ways), sch]

    def _counts(self, block: Block, found: list[int]) -> list[int]:
        """The choices of how many copies are made."""
        elements = prod(as_int(size) or 0 for size in block.writes[0].buffer.shape)
        updates = prod(as_int(v.dom.extent) or 0 for v in block.iter_vars)
        rows = as_int(block.iter_vars[found[0]].dom.extent) or 0
        counts = [self.cores * c for c in self.copies]
        return [c for c in counts if elements and updates >= c * elements * self.reuse and c < rows]

    def _in_copies(self, sch: Schedule, block: BlockRV, found: list[int]) -> None:
        node = sch.get(block)
        counts = self._counts(node, found)
        every = axes(sch, block)
        row = next(a for a in every if a.position == found[0])
        sizes = sorted({-(-(row.extent or 1) // c) for c in counts}, reverse=True)
        size = uniform(sch, sizes)
        if row is not every[0]:
            sch.reorder(row.loop, *[a.loop for a in every if a is not row])
        chunk, _ = sch.split(row.loop, [None, size])
        sch.privatize_update(chunk)

    def _in_columns(self, sch: Schedule, block: BlockRV) -> None:
        node = sch.get(block)
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        along = vector_iter(node)
        every = axes(sch, block)
        column = next((a for a in every if node.iter_vars[a.position] is along), None)
        if column is None or lanes < 2 or (column.extent or 0) < lanes:
            raise ScheduleError(self.name, "no-lanes", "no columns lie side by side in memory")
        tile, inside = sch.split(column.loop, list(sch.sample_perfect_tile(column.loop, 2, -1)))
        beside, vector = sch.split(inside, [None, lanes])
        sch.reorder(tile, *[a.loop for a in every if a is not column], beside, vector)
        sch.vectorize(vector)


def _any_order(block: Block, found: list[int], liberties: tuple[str, ...]) -> bool:
    """Whether the updates may be combined in another order: numbers that round are not, in loops
    without a word on their order."""
    stores = [s for s in walk_stmts(block.body) if isinstance(s, BufferStore)]
    exact = all(s.buffer.dtype.is_int or isinstance(s.value, (Max, Min)) for s in stores)
    opaque = any(block.iter_vars[n].kind is IterKind.OPAQUE for n in found)
    return exact or not opaque or "reassoc" in liberties


def scattered(block: Block) -> list[int]:
    """The positions of the iterators that choose, by a load, the elements that a block updates;
    empty for blocks that are not updates of this kind.

    The updates may stand under conditions, and behind names for values.
    """
    stores: list[BufferStore] = []
    names: dict[Var, Expr] = {}
    for stmt in walk_stmts(block.body):
        if isinstance(stmt, LetStmt):
            names[stmt.var] = substitute(stmt.value, names)
        elif isinstance(stmt, BufferStore):
            stores.append(stmt)
    updates = all(any(load.buffer is s.buffer for load in loads_of(s.value)) for s in stores)
    if block.init is not None or is_leaf(block) is not None or not updates:
        return []
    indices = [substitute(index, names) for store in stores for index in store.indices]
    used = frozenset[Var]().union(*(free_vars(e) for i in indices for e in loads_of(i)))
    return [n for n, v in enumerate(block.iter_vars) if v.var in used]
