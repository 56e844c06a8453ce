"""blocked_elimination: factorizations in blocks of steps, of which register tiles do most work.

    for k_0:                                       # a block of K steps
        eliminate the columns of the block in its rows, step by step
        for j_0 of the later columns, in parallel: the same in a strip of columns
        for i in the rows below, in parallel:
            for k_1 in the block: divide, and update the columns of the block
        for i_0 in parallel, j_0, of the rest:
            load a tile; for k_1 in the block: tile -= A[i, k] * A[k, j]; store the tile

The module takes the program of `row_elimination` whose innermost loops run along rows:
`for i: for k in range(i): divide(i, k); for j after k: A[i, j] -= A[i, k] * A[k, j]`. The steps
become the outermost loop, so that all rows below a block of steps are independent. A program whose
steps are the outermost loop already is taken, too, also if a step divides all rows first; what a
row does behind its update, as to a right-hand side, gets loops of its own. This is the blocked
right-looking form of LAPACK (Dongarra, Gustavson and Karp 1984).

A program whose steps already update all later columns, as Gram-Schmidt does, gets blocks of steps,
too; all steps of a block then use a strip of columns while it is in the first cache:

    for k_0:
        for k_1: step k of the columns of the block
        for j_0 of the later columns, in parallel:
            for k_1: for i: for j_1 in vectors: update column j by step k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from metasched.analysis.block import TILED, loop_iter_kind
from metasched.analysis.scope import Child
from metasched.arith.analyzer import Analyzer
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, IterKind, SeqStmt, Stmt
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import child_of, undo_to
from metasched.space.modules.ragged_tiling import is_update
from metasched.space.modules.row_elimination import keep_results, later_rows, own_copies, top_loops
from metasched.space.strides import contiguous
from metasched.space.tiling import changed, choice, loop_handle, vectors

STRUCTURE = "eliminated"
"""The value of the note TILED on the blocks of a tile."""
BLOCKS = 4
"""The fewest blocks of steps."""


@dataclass(frozen=True, slots=True)
class BlockedElimination:
    """Offer an elimination in blocks of steps beside the program (see the file's docstring).

    The module acts on root blocks.

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
        return "blocked_elimination"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is not None:
            return [sch]
        found = [sch]
        for top in top_loops(sch, block):
            kept = sch.copy()
            keep_results(kept, top)
            loop = _update_alone(kept, top)
            if _steps(kept.state.loop(loop)) or _later_rows(kept, loop):
                found[:0] = changed(kept, partial(self._apply, loop))
            elif _later_columns(sch.state.loop(top)):
                found[:0] = changed(sch, partial(self._in_strips, top))
        return found

    def _apply(self, loop: LoopRV, sch: Schedule) -> None:
        step, rows = _steps_outside(sch, loop)
        update = _update_below(sch, rows)
        lanes = self.vector_bits // update.block.writes[0].buffer.dtype.bits
        height, width = 4 if self.registers < 32 else 8, 3 * lanes
        extent, ends = as_int(sch.get(step).extent) or 0, [_end(n) for n in update.loops[-2:]]
        if -1 in ends:
            raise ScheduleError("cut_loop", "no-rectangle", "rows do not end at the same column")
        size, even = _block_size(sch, extent, width)
        if not even:
            step, _ = sch.cut_loop(step, extent - extent % size)
        short, narrow = (e % n for e, n in zip(ends, (height, width), strict=True))
        _, inside = sch.split(step, [None, size])
        _, rows = sch.cut_loop(rows, inside)
        last = len(sch.state.loop(inside).body.stmts) - 1
        block, inside = sch.fission(inside, [list(range(last)), [last]])
        _if_legal(sch, partial(self._rows_of_block, block, (narrow, width, lanes)))
        sch.reorder(rows, inside)
        if short:
            rows, _ = sch.cut_loop(rows, -short)
        columns = sch.get_loops(sch.get_block(_update_below(sch, rows).block.name))[-1]
        _, columns = sch.cut_loop(columns, inside)
        last = len(sch.state.loop(inside).body.stmts) - 1
        sch.fission(inside, [list(range(last)), [last]])
        panel, rest = sch.fission(rows)
        sch.reorder(columns, sch.get_loops(sch.get_child_blocks(columns)[0])[-2])
        if narrow:
            columns, _ = sch.cut_loop(columns, -narrow)
            rest, others = sch.fission(rest)
            if narrow % lanes:
                self._in_parallel(sch, others)
            else:
                self._tiles(sch, others, (height, narrow, lanes))
        self._panel(sch, panel, height)
        self._tiles(sch, rest, (height, width, lanes))

    def _in_strips(self, step: LoopRV, sch: Schedule) -> None:
        """Run a block of steps on a strip of later columns at a time."""
        node = sch.state.loop(step)
        for child in sch.state.scope(node).under(node):
            if child.block.init is not None:
                block = sch.get_block(child.block.name)
                sch.decompose_reduction(block, _first_reduced(sch, block))
        node = sch.state.loop(step)
        body = node.body.stmts
        assert isinstance(body[-1], For)
        columns = loop_handle(sch, body[-1])
        dtype = sch.state.scope(node).under(node)[-1].block.writes[0].buffer.dtype
        extent = as_int(node.extent) or 0
        size, even = _block_size(sch, extent, self.vector_bits // dtype.bits)
        if not even:
            step, _ = sch.cut_loop(step, extent - extent % size)
        _, inside = sch.split(step, [None, size])
        _, later = sch.cut_loop(columns, inside)
        _, inside = sch.fission(inside, [list(range(len(body))), [len(body)]])
        sch.reorder(later, inside)
        strip, lane = sch.split(later, [None, size])
        sch.reorder(inside, lane)
        parts = sch.fission(lane) if isinstance(sch.state.loop(lane).body, SeqStmt) else [lane]
        for part in parts:
            while isinstance(sch.state.loop(part).body, For):
                sch.reorder(_inside(sch, part), part)
            sch.vectorize(part)
            sch.annotate(sch.get_child_blocks(part)[0], TILED, STRUCTURE)
        self._in_parallel(sch, strip)

    def _rows_of_block(self, steps: LoopRV, sizes: tuple[int, int, int], sch: Schedule) -> None:
        """Eliminate the columns of a block of rows first, then strips of the later columns."""
        left, width, lanes = sizes
        rows = _inside(sch, steps)
        columns = sch.get_loops(sch.get_block(_update_below(sch, steps).block.name))[-1]
        _, later = sch.cut_loop(columns, steps)
        last = len(sch.state.loop(rows).body.stmts) - 1
        _, rows = sch.fission(rows, [list(range(last)), [last]])
        _, steps = sch.fission(steps)
        sch.reorder(later, steps, rows)
        if left:
            later, rest = sch.cut_loop(later, -left)
            self._strips(sch, rest, left, lanes)
        self._strips(sch, later, width, lanes)

    def _strips(self, sch: Schedule, columns: LoopRV, width: int, lanes: int) -> None:
        """Run all steps and rows on a strip of columns at a time, which the first cache holds."""
        block = sch.get_child_blocks(columns)[0]
        steps, rows = sch.get_loops(block)[-2:]
        strip, lane = sch.split(columns, [None, width])
        sch.reorder(strip, steps, rows, lane)
        vectors(sch, [lane], 0, lanes)
        sch.annotate(block, TILED, STRUCTURE)
        self._in_parallel(sch, strip)

    def _panel(self, sch: Schedule, rows: LoopRV, height: int) -> None:
        """Interleave the divisions of several rows, of which each row waits for the one before."""
        rows, row = sch.split(rows, [None, height])
        _if_legal(sch, lambda sch: sch.reorder(_inside(sch, row), row))
        self._in_parallel(sch, rows)

    def _tiles(self, sch: Schedule, rows: LoopRV, sizes: tuple[int, int, int]) -> None:
        """The updates of the rest, in register tiles."""
        height, width, lanes = sizes
        block = sch.get_child_blocks(rows)[0]
        columns, inside = sch.get_loops(block)[-2:]
        tile, row = sch.split(rows, [None, height])
        column, lane = sch.split(columns, [None, width])
        sch.reorder(tile, column, inside, row, lane)
        copies = sch.cache_update(inside, "local")
        vectors(sch, [row, lane], 1, lanes)
        sch.annotate(block, TILED, STRUCTURE)
        for copy in copies:
            vectors(sch, sch.get_loops(copy)[-2:], 1, lanes)
            sch.annotate(copy, TILED, STRUCTURE)
        self._in_parallel(sch, tile)

    def _in_parallel(self, sch: Schedule, rows: LoopRV) -> None:
        if self.cores > 1:
            sch.parallel(rows)


def _if_legal(sch: Schedule, steps: Callable[[Schedule], None]) -> None:
    """Apply steps; if one of them is refused, none."""
    before = len(sch.trace)
    try:
        steps(sch)
    except ScheduleError:
        undo_to(sch, before)


def _steps(rows: For) -> bool:
    """Whether a loop of constant extent holds nothing but a loop over all earlier iterations."""
    steps = rows.body
    if not isinstance(steps, For) or as_int(rows.extent) is None or as_int(rows.min) != 0:
        return False
    return steps.extent is rows.var and as_int(steps.min) == 0 and isinstance(steps.body, SeqStmt)


def _later_rows(sch: Schedule, steps: LoopRV) -> bool:
    """Whether a loop ends with the updates of all later rows, each along its columns."""
    if not _reaches_end(sch.state.loop(steps)):
        return False
    try:
        return bool(_update_below(sch, steps))
    except ScheduleError:
        return False


def _update_alone(sch: Schedule, steps: LoopRV) -> LoopRV:
    """Give statements behind the update of a row, as of a right-hand side, loops of their own; each
    row gets a copy of its multiplier. Returns the loop over the steps."""
    node = sch.state.loop(steps)
    rows = node.body.stmts[-1] if isinstance(node.body, SeqStmt) else node.body
    items = rows.body.stmts if isinstance(rows, For) and isinstance(rows.body, SeqStmt) else ()
    last = max((n for n, item in enumerate(items) if isinstance(item, For)), default=-1)
    if last < 0 or not _reaches_end(node) or not isinstance(rows, For):
        return steps
    before = len(sch.trace)
    try:
        inside = loop_handle(sch, rows)
        own_copies(sch, inside)
        own_copies(sch, steps)
        now = sch.state.loop(inside)
        for child in sch.state.scope(now).under(now):
            if child.block.writes[0].buffer.scope != "global":  # the stack has no room
                sch.set_scope(sch.get_block(child.block.name), 0, "global")
        columns = items[last]
        assert isinstance(columns, For)
        if Analyzer().equal(columns.min, node.var):
            column = sch.get_loops(sch.get_block(next(blocks_of(columns)).block.name))[-1]
            sch.cut_loop(column, 1)
            last += 1
        front = list(range(last + 1))
        behind = list(range(last + 1, len(sch.state.loop(inside).body.stmts)))
        if behind:
            sch.fission(inside, [front, behind])
            count = len(sch.state.loop(steps).body.stmts)
            steps, _ = sch.fission(steps, [list(range(count - 1)), [count - 1]])
    except ScheduleError:
        undo_to(sch, before)
    return steps


def _steps_outside(sch: Schedule, loop: LoopRV) -> list[LoopRV]:
    """The loop over the steps, and inside it the loop over the later rows."""
    if _steps(sch.state.loop(loop)):
        join_equal(sch, loop)
        return sch.right_looking(loop)
    rows = later_rows(sch, loop)
    own_copies(sch, loop)
    return [loop, rows]


def _later_columns(steps: For) -> bool:
    """Whether several statements of a loop of constant extent end with a loop over all iterations
    that follow."""
    return isinstance(steps.body, SeqStmt) and 0 <= _end(steps) == _last_later(steps)


def _reaches_end(steps: For) -> bool:
    """Whether a loop ends with a loop over all iterations that follow, and maybe more."""
    return 0 <= _end(steps) <= _last_later(steps)


def _last_later(steps: For) -> int:
    """The end of a loop over later iterations, with which a loop of constant extent ends; -1 if
    there is no such loop."""
    last = steps.body.stmts[-1] if isinstance(steps.body, SeqStmt) else steps.body
    if not isinstance(last, For) or as_int(steps.extent) is None or not any(blocks_of(last)):
        return -1
    return _end(last) if Analyzer().equal(last.min, steps.var + 1) else -1


def _end(loop: For) -> int:
    """Where a loop ends; -1 if this is no constant."""
    end = as_int(Analyzer().simplify(loop.min + loop.extent))
    return -1 if end is None else end


def _first_reduced(sch: Schedule, block: BlockRV) -> LoopRV:
    """The outermost loop of a block that runs over what the block reduces."""
    child = child_of(sch, sch.state.block(block).block.token)
    kinds = [loop_iter_kind(loop, (child,)) for loop in child.loops]
    if IterKind.REDUCE not in kinds:
        raise ScheduleError("decompose_reduction", "no-reduction", "no loop reduces")
    return sch.get_loops(block)[kinds.index(IterKind.REDUCE)]


def join_equal(sch: Schedule, loop: LoopRV) -> None:
    """Join neighbouring loops below `loop` that run the same steps, as far as there are some."""
    joined = True
    while joined:
        joined = False
        node = sch.state.loop(loop)
        for first, second in _neighbours(node):
            try:
                sch.join_loops(*(loop_handle(sch, one) for one in (first, second)))
            except ScheduleError:
                continue
            joined = True
            break


def _neighbours(stmt: Stmt) -> list[tuple[For, For]]:
    """The pairs of loops below a statement that follow each other."""
    own = list(pairwise(stmt.items)) if isinstance(stmt, SeqStmt) else []
    found = [(a, b) for a, b in own if isinstance(a, For) and isinstance(b, For)]
    below = stmt.stmts if isinstance(stmt, (For, SeqStmt)) else ()
    return found + [pair for inner in below for pair in _neighbours(inner)]


def _update_below(sch: Schedule, rows: LoopRV) -> Child:
    """The update of a row along its columns, the last of the statements below a loop."""
    node = sch.state.loop(rows)
    children = sch.state.scope(node).under(node)
    last = child_of(sch, children[-1].token)
    if is_update(last) and len(last.loops) > 2 and contiguous(last, last.loops[-1]):
        return last
    raise ScheduleError(
        "cache_update", "no-update", f"{last.block.name} does not update a row along its columns"
    )


def _inside(sch: Schedule, loop: LoopRV) -> LoopRV:
    """The loop directly inside a loop."""
    inner = sch.state.loop(loop).body
    if not isinstance(inner, For):
        raise ScheduleError("reorder", "not-a-chain", "the loop holds several statements")
    return loop_handle(sch, inner)


def _block_size(sch: Schedule, extent: int, width: int) -> tuple[int | ExprRV, bool]:
    """Sample the number of steps of a block, and whether blocks divide the steps.

    A size is a multiple of the columns of a tile. All sizes divide the steps, or none does, because
    a rest of the steps has loops of its own.
    """
    sizes = [n * width for n in (1, 2, 4) if n * width * BLOCKS <= extent]
    even = [n for n in sizes if extent % n == 0]
    sizes = even or sizes
    if not sizes:
        raise ScheduleError("split", "short-loop", f"{extent} steps hold no {BLOCKS} blocks")
    return choice(sch, sizes), bool(even)
