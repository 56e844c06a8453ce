"""Loop kinds for nests that no tiling has scheduled: inner vectors, outer threads, separate inits.

Each function uses public primitives, and leaves the schedule unchanged where a dependence forbids a
step. Postprocs and the default schedule call these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.access import strides
from metasched.analysis.block import loop_iter_kind
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.expr import TRUE, Select, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import BlockRealize, BlockToken, For, ForKind, IterKind, Stmt
from metasched.ir.visit import free_vars, walk
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import contiguous

AUTO_UNROLL = "pragma_auto_unroll_max_step"
"""Note on a loop: the most statements that the serial loops in it are unrolled to."""
SMALL = 2048
"""Nests of fewer iterations stay serial: starting threads costs more."""


def child_of(sch: Schedule, token: BlockToken) -> Child:
    """The block of a token in its scope, in the present state of the schedule."""
    realize = sch.state.index.blocks[token]
    return sch.state.scope(realize).child(token)


def take_back(sch: Schedule, steps: int) -> None:
    """Undo until the trace has `steps` steps."""
    while len(sch.trace) > steps:
        sch.undo()


def vectorize_leaf(sch: Schedule, block: BlockRV, child: Child, width: int) -> bool:
    """Vectorize the innermost own loop of a block that allows it, with at most `width` lanes.

    Where the lanes do not divide the loop, the last vector is masked. Short loops that together run
    along memory are fused first. The loop over the vectors is unrolled if the loop above is.
    Returns whether a loop was vectorized.
    """
    loops = list(child.loops)
    if any(loop.kind is ForKind.VECTORIZED for loop in loops):
        return False
    own = len(loops)
    below = [*loops[1:], child.realize]
    while own and loops[own - 1].body is below[own - 1]:
        own -= 1
    if _vectorize_run(sch, block, child, loops[own:], width):
        return True
    for position in range(len(loops) - 1, own - 1, -1):
        lanes = _lanes(child, loops[position], width)
        if lanes < 2:
            continue
        before = len(sch.trace)
        try:
            handles = sch.get_loops(block)
            cut = handles[position]
            if lanes < (as_int(loops[position].extent) or 0):
                rest, cut = sch.split(cut, [None, lanes])
                if position > own and loops[position - 1].kind is ForKind.UNROLLED:
                    sch.unroll(rest)  # a loop index cannot address registers
            if position + 1 < len(loops):
                sch.reorder(*handles[position + 1 :], cut)
            sch.vectorize(cut)
            return True
        except ScheduleError:
            take_back(sch, before)
    return False


def _vectorize_run(
    sch: Schedule, block: BlockRV, child: Child, loops: Sequence[For], width: int
) -> bool:
    """Fuse the innermost loops that run along contiguous memory, where the last alone is short."""
    count, extent = _run(child, loops, width)
    if count < 2:
        return False
    before = len(sch.trace)
    try:
        cut = sch.fuse(*sch.get_loops(block)[-count:])
        if extent > width:
            _, cut = sch.split(cut, [None, width])
        sch.vectorize(cut)
        return True
    except ScheduleError:
        take_back(sch, before)
        return False


def _run(child: Child, loops: Sequence[For], width: int) -> tuple[int, int]:
    """How many of the innermost loops run along contiguous memory, and the length of the run.

    The count ends when the run has `width` elements.
    """
    if not loops or _lanes(child, loops[-1], width) < 2 or _tests(child):
        return 0, 1
    extent, moves = as_int(loops[-1].extent) or 1, strides(child, loops[-1])
    count = 1
    for outer in reversed(loops[:-1]):
        size = as_int(outer.extent)
        if extent >= width or size is None or outer.kind is not ForKind.SERIAL:
            break
        if outer.annotations or loop_iter_kind(outer, (child,)) is not IterKind.SPATIAL:
            break
        further = strides(child, outer)
        if any(a is None or b != a * extent for (_, a), (_, b) in zip(moves, further, strict=True)):
            break
        count, extent = count + 1, extent * size
    return count, extent


def _tests(child: Child) -> bool:
    """Whether a vectorized block would compute a condition in each lane."""
    found = (x for x in walk(child.block.body) if isinstance(x, (Call, Select)))
    choices = any(isinstance(x, Select) or x.op.name == "if_then_else" for x in found)
    return choices or child.realize.predicate is not TRUE


def _lanes(child: Child, loop: For, width: int) -> int:
    """The lanes for a loop: `width`, or the extent of a shorter loop."""
    extent = as_int(loop.extent)
    if extent is None or extent < 2 or loop.kind is not ForKind.SERIAL or loop.annotations:
        return 1
    if loop_iter_kind(loop, (child,)) is not IterKind.SPATIAL or not contiguous(child, loop):
        return 1
    return min(extent, width)


def steps(stmt: Stmt) -> int:
    """How often the innermost statement below `stmt` runs, loops inside blocks included."""
    own = (as_int(stmt.extent) or 1) if isinstance(stmt, For) else 1
    return own * max((steps(s) for s in stmt.stmts), default=1)


def spread_nest(sch: Schedule, child: Child, jobs: int, func: str | None = None) -> bool:
    """Fuse the leading spatial loops of a block's nest until they have `jobs` iterations, and run
    them in parallel."""
    count = _leading(sch, child, jobs)
    if count == 0:
        return False
    before = len(sch.trace)
    try:
        handles = sch.get_loops(sch.get_block(child.block.name, func))[:count]
        sch.parallel(sch.fuse(*handles) if count > 1 else handles[0])
        return True
    except ScheduleError:
        take_back(sch, before)
        return False


def _leading(sch: Schedule, child: Child, jobs: int) -> int:
    """How many outer loops of a nest to run in parallel; 0 where it is not worth it or illegal."""
    if not child.loops:
        return 0
    children = sch.state.scope(child.realize).under(child.loops[0])
    kinds = {loop.kind for c in children for loop in c.loops}
    if steps(child.loops[0]) < SMALL or kinds & {ForKind.PARALLEL, ForKind.THREAD_BINDING}:
        return 0
    count, extent = 0, 1
    for position, loop in enumerate(child.loops):
        size = as_int(loop.extent)
        if loop.kind is not ForKind.SERIAL or loop.annotations or size is None or extent >= jobs:
            break
        if loop_iter_kind(loop, children) is not IterKind.SPATIAL:
            break
        if position and child.loops[position - 1].body is not loop:
            break
        count, extent = position + 1, extent * size
    return count if extent > 1 else 0


def unroll_reduction(sch: Schedule, child: Child, copies: int, func: str | None = None) -> None:
    """Unroll the innermost loops of a reduction into at most `copies` copies of its body."""
    if all(v.is_spatial for v in child.block.iter_vars):
        return
    chosen: list[int] = []
    for position in range(len(child.loops) - 1, -1, -1):
        loop = child.loops[position]
        size = as_int(loop.extent)
        if loop.kind is ForKind.VECTORIZED:
            continue
        if loop.kind is not ForKind.SERIAL or size is None or size > copies:
            break
        copies //= max(1, size)
        if size > 1:
            chosen.append(position)
    if chosen:
        handles = sch.get_loops(sch.get_block(child.block.name, func))
        for position in chosen:
            sch.unroll(handles[position])


def unroll_unasked(sch: Schedule, child: Child, copies: int, func: str | None = None) -> None:
    """Let the code generator unroll serial loops of a reduction's nest to `copies` statements.

    A limit that the nest has already stays.
    """
    if child.loops and not all(v.is_spatial for v in child.block.iter_vars):
        outermost = sch.get_loops(sch.get_block(child.block.name, func))[0]
        sch.annotate(outermost, AUTO_UNROLL, copies, replace=None)


def decompose_init(sch: Schedule, realize: BlockRealize, func: str | None = None) -> bool:
    """Decompose a reduction at its outermost reduction loop; returns whether it was done.

    The loops of the init get the kinds of the loops of the update. Reductions over thread-bound
    loops, and blocks without a reduction loop, stay. Raises ScheduleError where the block cannot be
    decomposed.
    """
    loops = sch.state.loops_above(realize)
    pairs = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    reduced = frozenset().union(*(free_vars(e) for v, e in pairs if v.is_reduce))
    first = next((i for i, loop in enumerate(loops) if loop.var in reduced), None)
    if first is None or any(loop.thread for loop in loops if loop.var in reduced):
        return False
    block = sch.get_block(realize.block.name, func)
    sch.decompose_reduction(block, sch.get_loops(block)[first], keep_kinds=True)
    return True
