"""row_elimination: factorizations and triangular solves, several rows at a time.

    for i_0:
        for i_1 in parallel:                 # rows that need finished rows alone
            for k in range(i_0 * R): eliminate row i_0 * R + i_1 by row k, in vectors
        for i_1:                             # what the rows of the block need of each other
            for k in range(i_0 * R, i_0 * R + i_1): the same

Each row of such a program needs all rows before it, so no loop over rows runs in parallel. Of a
block of R rows, most steps need only rows before the block, and these steps are independent. Dot
products of several rows run side by side there, because they share an operand.

Where the program gathers the updates of an element (`for k: A[i, j] -= A[i, k] * A[k, j]`), the
loads of A[k, j] run across rows. `right_looking` and `reorder` make the innermost loop run along
a row. A scalar that collects the updates (`w = A[i, j]; for k: w -= ...; A[i, j] = w`) goes
(`keep_in_result`) or becomes a row, too (`expand_buffer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from metasched.analysis.cover import loop_ranges
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.scope import Child, Scope
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, ForKind, SeqStmt, Stmt
from metasched.ir.visit import walk_stmts
from metasched.schedule.domain import divisors
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, SMALL_INSIDE, child_of, steps, undo_to
from metasched.space.modules.vector_update import update_length
from metasched.space.strides import contiguous
from metasched.space.tiling import loop_handle, uniform

LEAST, MOST = 4, 64
"""The fewest and the most rows of a block."""
MOST_ALONE = 16
"""The most rows of a block on one core: what the rows need of each other runs in short loops."""
LONG = 1 << 14
"""Blocks of more steps run in parallel alone."""
TOGETHER = (4, 5, 3, 2)
"""Choices of how many rows run side by side, the best first."""


@dataclass(frozen=True, slots=True)
class RowElimination:
    """Offer rows in blocks, beside the program as written (see the file's docstring).

    The module acts on root blocks. Offers rows along memory alone, with blocks of rows that run in
    parallel, and with short blocks of rows on one core where their dot products share an operand.

    Attributes:
        cores: of the machine; one core gets no parallel blocks of rows.
    """

    cores: int = 1

    @property
    def name(self) -> str:
        return "row_elimination"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is not None:
            return [sch]
        found = [sch]
        along = sch.copy()
        rows = [loop for loop in top_loops(along, block) if _is_recurrence(along, loop)]
        if not rows:
            return found
        for loop in rows:
            _along_memory(along, loop)
        if along.mod is not sch.mod:
            found.insert(0, along)
        for parallel in (False, True) if self.cores > 1 else (False,):
            blocked = along.copy()
            if sum(_in_blocks(blocked, loop, parallel) for loop in top_loops(blocked, block)):
                found.insert(0, blocked)
        return found


def top_loops(sch: Schedule, root: BlockRV) -> list[LoopRV]:
    """The outermost loops of a root block that hold more than one statement somewhere."""
    scope = Scope.of(sch.state.block(root).block)
    tops = {c.loops[0].var: c for c in scope.realizes if c.loops}
    handles = [sch.get_loops(sch.get_block(c.block.name))[0] for c in tops.values()]
    return [h for h in handles if any(isinstance(s, SeqStmt) for s in walk_stmts(_node(sch, h)))]


def _node(sch: Schedule, loop: LoopRV) -> For:
    return sch.state.loop(loop)


def _is_recurrence(sch: Schedule, loop: LoopRV) -> bool:
    """Whether a loop is long, and an iteration needs others."""
    node = _node(sch, loop)
    if node.kind is not ForKind.SERIAL or steps(node) < SMALL or as_int(node.extent) is None:
        return False
    return carried_dependence(node, sch.state.scope(node)) is not None


def _along_memory(sch: Schedule, loop: LoopRV) -> None:
    """Turn the loops inside so that the innermost run along memory; then join loops over the same
    rows."""
    keep_results(sch, loop)
    for child in _children(sch, loop):
        if len(child.loops) > 1:
            _expand(sch, child, len(child.loops) - 1)
    for child in _children(sch, loop):
        if runs_along(child) or len(child.loops) < 2:
            continue
        before = len(sch.trace)
        for turn in (_push, _exchange):
            try:
                turn(sch, sch.get_loops(sch.get_block(child.block.name)))
            except ScheduleError:
                undo_to(sch, before)
                continue
            if runs_along(child_of(sch, child.token)):
                break
            undo_to(sch, before)
    _join(sch, loop)


def keep_results(sch: Schedule, loop: LoopRV) -> None:
    """Let the blocks below a loop update their results, not a scalar that is stored at the end."""
    for token in [child.token for child in _children(sch, loop)]:
        realize = sch.state.index.blocks.get(token)
        if realize is None:  # it copied an element to itself
            continue
        own = sch.state.scope(realize).block.alloc_buffers
        for region in realize.block.reads:
            if region.buffer in own and region.buffer.constant_shape() == (1,):
                try:
                    sch.keep_in_result(sch.get_block(realize.block.name), region.buffer)
                except ScheduleError:
                    continue
                break


def _expand(sch: Schedule, child: Child, depth: int) -> None:
    """Give each iteration of a loop over a block, which begins with the block, its own copy of what
    the block writes, and give the block a loop of its own."""
    loop = child_of(sch, child.token).loops[depth]
    if not isinstance(loop.body, SeqStmt) or loop.body.items[0] is not child.realize:
        return
    before = len(sch.trace)
    block = sch.get_block(child.block.name)
    handle = sch.get_loops(block)[depth]
    try:
        sch.expand_buffer(block, 0, handle)
        rest = list(range(1, len(loop.body.items)))
        try:
            sch.fission(handle)
        except ScheduleError:
            sch.fission(handle, [[0], rest])
    except ScheduleError:
        undo_to(sch, before)


def later_rows(sch: Schedule, steps: LoopRV) -> LoopRV:
    """Merge the last loops directly below a loop as far as it is legal; returns the merged loop."""
    items = _items(sch, steps)
    rows = _handle(sch, items[-1])
    for item in reversed(items[:-1]):
        before = len(sch.trace)
        try:
            rows = sch.merge(_handle(sch, item), rows)
        except ScheduleError:
            undo_to(sch, before)
            break
    return rows


def _push(sch: Schedule, loops: list[LoopRV]) -> None:
    sch.right_looking(loops[-2])


def _exchange(sch: Schedule, loops: list[LoopRV]) -> None:
    sch.reorder(loops[-1], loops[-2])


def _children(sch: Schedule, loop: LoopRV) -> list[Child]:
    node = _node(sch, loop)
    return sch.state.scope(node).under(node)


def runs_along(child: Child) -> bool:
    """Whether the innermost loop of a block can run in vectors, as a loop or as a sum."""
    loops = child.loops
    return bool(loops) and (contiguous(child, loops[-1]) or update_length(child) is not None)


def _join(sch: Schedule, loop: LoopRV) -> None:
    """Merge neighbouring loops of equal ranges directly below a loop, as far as it is legal.

    A loop that only adds up along memory stays, because it runs in vector lanes.
    """
    merged = True
    while merged:
        merged = False
        items = _node(sch, loop).body.stmts
        for first, second in pairwise(items):
            if not (isinstance(first, For) and isinstance(second, For)):
                continue
            alone = any(_sums_alone(sch, one) for one in (first, second))
            if first.min is second.min and first.extent is second.extent and not alone:
                before = len(sch.trace)
                try:
                    sch.merge(*(_handle(sch, one) for one in (first, second)))
                    merged = True
                    break
                except ScheduleError:
                    undo_to(sch, before)


def _sums_alone(sch: Schedule, loop: For) -> bool:
    (first, *_) = sch.state.scope(loop).under(loop)
    return loop.body is first.realize and update_length(first) is not None


def _handle(sch: Schedule, node: Stmt) -> LoopRV:
    """The handle of a loop, by a block below it; ScheduleError for another statement."""
    if not isinstance(node, For):
        raise ScheduleError("cut_loop", "no-loop", "the statement is no loop")
    return loop_handle(sch, node)


def _in_blocks(sch: Schedule, loop: LoopRV, parallel: bool) -> bool:
    """Run the steps of a block of rows that need finished rows alone in parallel, or on one core
    with dot products side by side.

    Returns whether there are such steps; otherwise the schedule is unchanged.
    """
    before = len(sch.trace)
    extent = as_int(_node(sch, loop).extent) or 1
    most = MOST if parallel else MOST_ALONE
    if not parallel and steps(_node(sch, loop)) * most > LONG * extent:
        return False
    sizes = [d for d in divisors(extent) if LEAST <= d <= most and d < extent]
    if not sizes or not _is_recurrence(sch, loop):
        return False
    group, sizes = next(
        ((g, even) for g in TOGETHER if (even := [n for n in sizes if n % g == 0 and n > g])),
        (1, sizes),
    )
    rows = uniform(sch, sizes)
    _, inside = sch.split(loop, [None, rows])
    own_copies(sch, inside)
    front: list[int] = []
    place = 0
    while place < len(_items(sch, inside)):
        item, mark = _items(sch, inside)[place], len(sch.trace)
        for cut in (False, True):
            try:
                if cut:
                    sch.cut_loop(_handle(sch, item), inside)
                _apart(sch.copy(), inside, [*front, place])
                front.append(place)
                place += cut  # its second part stays
                break
            except ScheduleError:
                undo_to(sch, mark)
        place += 1
    try:
        apart, _ = _apart(sch, inside, front)
        together = _side_by_side(sch, apart, group)
        if parallel:
            sch.parallel(together)
    except ScheduleError:
        undo_to(sch, before)
        return False
    if not parallel and together is not apart:
        return True
    node = _node(sch, together)
    if not parallel or steps(node, loop_ranges(sch.state.loops_above(node))) < SMALL_INSIDE:
        undo_to(sch, before)
        return False
    return True


def _side_by_side(sch: Schedule, rows: LoopRV, group: int) -> LoopRV:
    """Run a group of rows at a time in unrolled loops where dot products share an operand.

    Returns the loop over the groups, or the loop over the rows if there are no groups.
    """
    if group == 1 or all(update_length(c) is None for c in _children(sch, rows)):
        return rows
    before = len(sch.trace)
    try:
        groups, row = sch.split(rows, [None, group])
        _inward(sch, row)
    except ScheduleError:
        undo_to(sch, before)
        return rows
    return groups


def _inward(sch: Schedule, row: LoopRV) -> None:
    """Move a loop to each block below it, but not into a loop along memory; unroll it there."""
    body = _node(sch, row).body
    if isinstance(body, SeqStmt):
        for part in sch.fission(row):
            _inward(sch, part)
        return
    if isinstance(body, For):
        child = _children(sch, row)[0]
        if body.body is not child.realize or not contiguous(child, body):
            sch.reorder(_handle(sch, body), row)
            _inward(sch, row)
            return
    sch.unroll(row)


def _items(sch: Schedule, loop: LoopRV) -> tuple[Stmt, ...]:
    node = _node(sch, loop)
    return node.body.items if isinstance(node.body, SeqStmt) else (node.body,)


def own_copies(sch: Schedule, rows: LoopRV) -> None:
    """Give each row its own copy of the temporary buffers that it fills."""
    done: set[Buffer] = set()
    for child in _children(sch, rows):
        now = child_of(sch, child.token)
        buffer = now.block.writes[0].buffer
        if buffer in sch.state.scope(now.realize).block.alloc_buffers and buffer not in done:
            done.add(buffer)
            before = len(sch.trace)
            try:
                sch.expand_buffer(sch.get_block(now.block.name), 0, rows)
                done.add(child_of(sch, child.token).block.writes[0].buffer)
            except ScheduleError:
                undo_to(sch, before)


def _apart(sch: Schedule, rows: LoopRV, front: list[int]) -> list[LoopRV]:
    """Give the statements at the places `front` a loop over the rows of their own."""
    rest = [n for n in range(len(_items(sch, rows))) if n not in front]
    if not front or not rest:
        raise ScheduleError("fission", "one-statement", "all statements of the rows stay together")
    return sch.fission(rows, [front, rest])
