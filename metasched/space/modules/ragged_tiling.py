"""ragged_tiling: register tiles for updates whose reduction has a run-time length, as in triangles.

    for j_0 in parallel:                       # columns, in vectors inside of a tile
        for i_0:
            for i_1 in unrolled: the steps k of a row that other rows of the tile lack
            load the tile
            for k in what all rows of the tile share:
                for i_1, j_1 in unrolled, vectors: tile[i_1, j_1] += A[i, k] * B[k, j]
            store the tile

A triangular product, a symmetric product of which a triangle is stored, or a solve with several
right-hand sides adds to a row of results for a number of steps that depends on the row. The rows
of a tile share all steps but a triangle, which `cut_loop` takes apart. `cache_update` keeps the
tile in registers, also where the program reads other rows of the same buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from metasched.analysis.access import strides
from metasched.analysis.block import FOLD, TILED, is_leaf, loop_iter_kind
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import TRUE, Expr, as_expr, as_int
from metasched.ir.stmt import BufferStore, For, ForKind, IterKind, SeqStmt
from metasched.ir.visit import blocks_of, free_vars, loads_of
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, child_of, steps, undo_to
from metasched.space.tiling import changed, choice, vectors, within_parallel

STRUCTURE = "ragged"
"""The value of the note TILED on the blocks of a tile."""


@dataclass(frozen=True, slots=True)
class RaggedTiling:
    """Tile an update without init whose reduction depends on its row (see the file's docstring).

    For a leaf block below three serial loops: rows, columns of constant range along memory, and a
    reduction; the range of the reduction depends on the row, or the other way around.

    Attributes:
        vector_bits: the width of a vector register.
        registers: the number of vector registers.
        cores: of the machine; one core gets no parallel loops.
    """

    vector_bits: int = 256
    registers: int = 16
    cores: int = 1

    @property
    def name(self) -> str:
        return "ragged_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None:
            return [sch]
        child = sch.state.scope(realize).child(realize.block.token)
        nest = _nest(child)
        if nest is None or steps(child.loops[0]) < SMALL:
            return [sch]
        return changed(sch, partial(self._apply, block, child, nest)) or [sch]

    # -- the steps ---------------------------------------------------------------------------------

    def _apply(self, block: BlockRV, child: Child, nest: _Nest, sch: Schedule) -> None:
        rows, columns, reduced = (
            sch.get_loops(block)[n] for n in (nest.rows, nest.columns, nest.reduced)
        )
        outer = [loop for n, loop in enumerate(sch.get_loops(block)) if n < nest.columns]
        if outer:
            sch.reorder(columns, *outer)
        if nest.rows > nest.reduced:
            rows, reduced = sch.right_looking(reduced)
        lanes = self.vector_bits // child.block.writes[0].buffer.dtype.bits
        height, width = self._tile(sch, rows, columns, lanes)
        column, lane = sch.split(_whole(sch, columns, width), [None, width])
        sch.reorder(rows, lane)
        _, row = sch.split(_whole(sch, rows, height), [None, height])
        first, second = sch.cut_loop(reduced, row)
        shared, edge = (first, second) if _is_shared(sch, first, row) else (second, first)
        of_shared, of_edge = (sch.get_child_blocks(part)[0] for part in (shared, edge))
        sch.fission(lane)
        self._apart(sch, row, of_shared)
        self._in_registers(sch, of_shared, lanes)
        _edge(sch, of_edge, lanes)
        if self.cores > 1 and not within_parallel(sch, of_shared):
            sch.parallel(column)

    def _tile(
        self, sch: Schedule, rows: LoopRV, columns: LoopRV, lanes: int
    ) -> tuple[int | ExprRV, int | ExprRV]:
        """Sample the rows and the columns of a tile."""
        heights = _fitting(sch, rows, [4, 3, 6, 5, 8, 2])
        widths = _fitting(sch, columns, [lanes * n for n in (3, 2, 4)])
        pairs = [(h, w) for h in heights for w in widths if self._fits(h, w // lanes)]
        if not pairs:
            raise ScheduleError("require", "no-tile", "no tile fits the registers")
        most = max(h * w for h, w in pairs)
        pairs = [(h, w) for h, w in pairs if 4 * h * w >= 3 * most]
        height, width = (
            choice(sch, list(dict.fromkeys(sizes))) for sizes in zip(*pairs, strict=True)
        )
        if isinstance(height, ExprRV) or isinstance(width, ExprRV):
            sch.require(self._fits(height, width // lanes))
            sch.require(as_expr(height) * width * 4 >= most * 3)
        return height, width

    def _fits(self, height: Any, vectors: Any) -> Any:
        """Whether the results, a row of an operand and a value of the other fit the registers."""
        return height * vectors + vectors + 1 <= self.registers

    def _apart(self, sch: Schedule, row: LoopRV, shared: BlockRV) -> None:
        """Give the shared steps of all rows of a tile a nest of their own."""
        node = sch.state.loop(row)
        items = node.body.items if isinstance(node.body, SeqStmt) else (node.body,)
        token = sch.state.block(shared).block.token
        place = next(
            n for n, s in enumerate(items) if any(r.block.token is token for r in blocks_of(s))
        )
        groups = [[n] for n in range(len(items))]
        before = len(sch.trace)
        try:
            sch.fission(row, groups)
        except ScheduleError:
            undo_to(sch, before)
            parts = [list(range(place)), [place], list(range(place + 1, len(items)))]
            sch.fission(row, [part for part in parts if part])

    def _in_registers(self, sch: Schedule, block: BlockRV, lanes: int) -> None:
        *_, row, lane, reduced = sch.get_loops(block)
        sch.reorder(reduced, row, lane)
        depth = len(sch.get_loops(block)) - 3
        copies = sch.cache_update(reduced, "local")
        vectors(sch, [row, lane], 1, lanes)
        sch.annotate(block, TILED, STRUCTURE)
        for copy in copies:
            loops = sch.get_loops(copy)[depth:]
            vectors(sch, loops, len(loops) - 1, lanes)
            sch.annotate(copy, TILED, STRUCTURE)


@dataclass(frozen=True, slots=True)
class _Nest:
    """The positions of the loops of a block: the rows and columns of results, the reduction."""

    rows: int
    columns: int
    reduced: int


def _nest(child: Child) -> _Nest | None:
    """The loops of an update that a tile can hold; None for other blocks."""
    block, loops = child.block, child.loops
    if len(loops) != 3 or {TILED, FOLD} & block.annotations.keys():
        return None
    if not is_update(child) or any(n.kind is not ForKind.SERIAL or n.annotations for n in loops):
        return None
    moves = [dict(_written(child, loop)) for loop in loops]
    columns = [n for n, m in enumerate(moves) if m == {True: 1} and _constant(loops[n])]
    reduced = [
        n for n, loop in enumerate(loops) if loop_iter_kind(loop, (child,)) is IterKind.REDUCE
    ]
    rows = [n for n in range(3) if n not in columns and n not in reduced]
    if len(columns) != 1 or len(reduced) != 1 or len(rows) != 1:
        return None
    inner, outer = max(rows + reduced), min(rows + reduced)
    depends = any(loops[outer].var in free_vars(e) for e in loops[inner].exprs)
    along = all(move in (0, 1) for _, move in strides(child, loops[columns[0]]))
    return _Nest(rows[0], columns[0], reduced[0]) if depends and along else None


def is_update(child: Child) -> bool:
    """Whether a leaf block without init and predicate updates one element."""
    block, store = child.block, child.block.body
    if is_leaf(block) is not None or block.init is not None or child.branches:
        return False
    if child.realize.predicate is not TRUE or not isinstance(store, BufferStore):
        return False
    own = BufferLoad(store.buffer, store.indices)
    return any(load is own for load in loads_of(store.value))


def _written(child: Child, loop: For) -> list[tuple[bool, int | None]]:
    return [(a.is_write, move) for a, move in strides(child, loop) if a.is_write]


def _constant(loop: For) -> bool:
    return as_int(loop.min) is not None and as_int(loop.extent) is not None


def _fitting(sch: Schedule, loop: LoopRV, sizes: list[int]) -> list[int]:
    """The sizes that divide a loop, or else the first size that is no longer than the loop."""
    extent = as_int(sch.get(loop).extent) or 0
    even = [n for n in sizes if extent % n == 0]
    fits = even or [n for n in sizes if n <= extent][:1]
    if not fits:
        raise ScheduleError("split", "short-loop", f"a loop of {extent} iterations holds no tile")
    return fits


def _whole(sch: Schedule, loop: LoopRV, size: int | ExprRV) -> LoopRV:
    """The part of a loop that whole tiles fill."""
    extent = as_int(sch.get(loop).extent) or 0
    if isinstance(size, int) and extent % size:
        return sch.cut_loop(loop, extent - extent % size)[0]
    return loop


def _is_shared(sch: Schedule, part: LoopRV, row: LoopRV) -> bool:
    """Whether the range of a part of the reduction is the same for all rows of a tile."""
    node, var = sch.state.loop(part), sch.state.loop(row).var
    used: set[Expr] = set().union(*(free_vars(e) for e in node.exprs))
    return var not in used


def _edge(sch: Schedule, block: BlockRV, lanes: int) -> None:
    """Run the steps that not all rows of a tile share in vectors, where this is legal."""
    before = len(sch.trace)
    child = child_of(sch, sch.state.block(block).block.token)
    *_, row, lane, reduced = sch.get_loops(block)
    try:
        sch.reorder(reduced, lane)
        vectors(sch, [lane], 0, lanes)
        if child.loops[-3].body is child.loops[-2]:
            sch.unroll(row)
        sch.annotate(block, TILED, STRUCTURE)
    except ScheduleError:
        undo_to(sch, before)
