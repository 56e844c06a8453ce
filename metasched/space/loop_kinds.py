"""Loop kinds for nests that no tiling has scheduled: inner vectors, outer threads, separate inits.

Each function uses public primitives, and leaves the schedule unchanged where a dependence forbids a
step. Postprocs and the default schedule call these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

from metasched.analysis.access import Access, accesses, stride_of, strides
from metasched.analysis.block import loop_iter_kind, needs_multi_level_tiling
from metasched.analysis.cover import loop_ranges
from metasched.analysis.scope import Child, Scope
from metasched.analysis.sequence import distribution_order
from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, Select, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import (
    BlockRealize,
    BlockToken,
    For,
    ForKind,
    IterKind,
    LetStmt,
    SeqStmt,
    Stmt,
    fact,
)
from metasched.ir.visit import free_vars, reads_memory, substitute, walk
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import contiguous, updates_own_rows, walking

AUTO_UNROLL = "pragma_auto_unroll_max_step"
"""Note on a loop: the code generator unrolls its serial loops to at most this many statements."""
SMALL = 2048
"""Nests of fewer iterations stay serial: starting threads costs more."""
FEW_VECTORS = 512
"""So do nests of fewer vectors that read nothing: on two cores of an Ice Lake server, setting 4,096
float64 elements takes 1.1 us, in parallel 2.3, and a serial nest then loads lines of other cores:
a sparse product took 55 us, not 43."""
SMALL_INSIDE = 1 << 10
"""The same limit for nests inside a serial loop, in each of whose iterations the threads of a team
wait for each other (about 1 microsecond); a vector counts as one iteration."""


RUN_TIME = 1024
"""An extent that is known at run time only counts as this many iterations."""
MOST_VECTORS = 8
"""Vectors of results that a serial loop updates stay in registers if there are at most as many."""
PAGE = 4096
"""Bytes within which a core that stores to a line also asks for lines of other cores."""
LOADED = 8
"""An extent that is loaded from memory, as the length of a sparse row, counts as this many."""


def at_run_time(loop: For, ranges: Mapping[Var, Interval]) -> bool:
    """Whether no constant bounds the extent of a loop, and the extent depends on no buffer.

    Args:
        ranges: the values of the variables of loops around.
    """
    return interval(loop.extent, ranges)[1] == inf and not reads_memory(loop.extent)


def child_of(sch: Schedule, token: BlockToken) -> Child:
    """The block of a token in its scope, in the present state of the schedule."""
    realize = sch.state.index.blocks[token]
    return sch.state.scope(realize).child(token)


def undo_to(sch: Schedule, steps: int) -> None:
    """Undo until the trace has `steps` steps."""
    while len(sch.trace) > steps:
        sch.undo()


def several_outputs(scope: Scope, child: Child) -> bool:
    """Whether a block has several outputs: buffers, or elements of one buffer that it sums up with
    tiles, as a complex product does."""
    block = child.block
    if len(block.writes) > 1 or not isinstance(block.body, SeqStmt):
        return len(block.writes) > 1
    wide = [v for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1]
    return len(wide) > 1 and needs_multi_level_tiling(scope, child.token) is None


def vectorize_leaf(sch: Schedule, block: BlockRV, child: Child, width: int) -> bool:
    """Vectorize the innermost possible loop of a block, with at most `width` lanes.

    Only loops that the block shares with no other block are tried. If the lanes do not divide the
    loop, the last vector is masked. Short loops that together run along memory are fused first. The
    loop over the vectors is unrolled if the loop above is unrolled. Where no loop is contiguous,
    lanes may walk along memory in the loops inside. Returns whether a loop was vectorized.
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
    places = range(len(loops) - 1, own - 1, -1)
    for position, fits in [(n, f) for f in (contiguous, walking) for n in places]:
        lanes = _lanes(child, loops[position], width, fits)
        if lanes < 2:
            continue
        before = len(sch.trace)
        try:
            handles = sch.get_loops(block)
            cut = handles[position]
            if as_int(loops[position].extent) != lanes:
                rest, cut = sch.split(cut, [None, lanes])
                pair = loops[position - 1 : position + 1]
                if position > own and _in_registers(child, pair, lanes):
                    sch.unroll(rest)  # a loop index cannot address registers
            if position + 1 < len(loops) and fits is contiguous:
                sch.reorder(*handles[position + 1 :], cut)
            sch.vectorize(cut)
            return True
        except ScheduleError:
            undo_to(sch, before)
    return False


def _in_registers(child: Child, loops: Sequence[For], lanes: int) -> bool:
    """Whether the vectors of a loop are unrolled below another loop, which is unrolled, or updates
    the same few vectors in each iteration."""
    around, loop = loops
    vectors = -(-(as_int(loop.extent) or MOST_VECTORS * lanes + 1) // lanes)
    stores = [a for a in accesses(child.block) if a.is_write]
    still = all(stride_of(a, child, around) == 0 for a in stores)
    return around.kind is ForKind.UNROLLED or (still and vectors <= MOST_VECTORS)


def distribute_and_vectorize(sch: Schedule, block: BlockRV, child: Child, width: int) -> bool:
    """Distribute the loops that a block shares with others, until `vectorize_leaf` succeeds.

    The innermost shared loop is distributed first. Returns whether a loop was vectorized; otherwise
    the schedule is unchanged.
    """
    before = len(sch.trace)
    while True:
        if vectorize_leaf(sch, block, child, width):
            return True
        try:
            fission_innermost(sch, block, child)
        except ScheduleError:
            undo_to(sch, before)
            return False
        child = child_of(sch, child.token)


def fission_innermost(sch: Schedule, block: BlockRV, child: Child) -> None:
    """Distribute the innermost loop that a block shares with others.

    Raises ScheduleError if the block shares no loop, or a dependence forbids the distribution.
    """
    below = [*child.loops[1:], child.realize]
    for position in range(len(child.loops) - 1, -1, -1):
        if child.loops[position].body is not below[position]:
            loop = sch.get_loops(block)[position]
            try:
                sch.fission(loop)
            except ScheduleError:
                scope = sch.state.scope(child.realize)
                order = distribution_order(scope, child.loops[position])
                if order is None:
                    raise
                sch.fission(loop, [[n] for n in order])
            return
    raise ScheduleError("fission", "own-nest", f"block {child.block.name} shares no loop")


def _vectorize_run(
    sch: Schedule, block: BlockRV, child: Child, loops: Sequence[For], width: int
) -> bool:
    """Fuse the innermost loops that run along contiguous memory, where the last alone is short."""
    count, extent = run_along(child, loops, width)
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
        undo_to(sch, before)
        return False


def run_along(child: Child, loops: Sequence[For], width: int) -> tuple[int, int]:
    """How many of the innermost loops run along contiguous memory, and the length of the run, which
    ends with `width` elements."""
    tested = _tested(child)
    if not loops or _lanes(child, loops[-1], width) < 2 or loops[-1].var in tested:
        return 0, 1
    extent, moves = as_int(loops[-1].extent) or 1, strides(child, loops[-1])
    count = 1
    for outer in reversed(loops[:-1]):
        size = as_int(outer.extent)
        if extent >= width or size is None or outer.kind is not ForKind.SERIAL:
            break
        spatial = loop_iter_kind(outer, (child,)) is IterKind.SPATIAL
        if outer.annotations or not spatial or outer.var in tested:
            break
        further = strides(child, outer)
        if any(a is None or b != a * extent for (_, a), (_, b) in zip(moves, further, strict=True)):
            break
        count, extent = count + 1, extent * size
    return count, extent


def _tested(child: Child) -> frozenset[Var]:
    """The loops that decide a condition, which vectors along them would compute in each lane."""
    parts = list(walk(child.block.body))
    calls = (x for x in parts if isinstance(x, Call) and x.op.name == "if_then_else")
    choices = [x.children[0] for x in (*calls, *(x for x in parts if isinstance(x, Select)))]
    if choices and any(isinstance(x, LetStmt) for x in parts):  # which the choices may use
        return frozenset(loop.var for loop in child.loops)
    tests = [substitute(test, child.realize.bindings) for test in choices]
    return frozenset[Var]().union(*map(free_vars, (child.realize.predicate, *tests)))


def _lanes(
    child: Child, loop: For, width: int, fits: Callable[[Child, For], bool] = contiguous
) -> int:
    """The lanes for a loop: `width`, or the extent of a shorter loop. A loop whose extent is no
    constant gets whole vectors; the last vector is masked."""
    extent = as_int(loop.extent)
    if extent is None:
        around = loop_ranges(child.loops[: child.loops.index(loop)])
        high = interval(loop.extent, around)[1]
        unbounded = RUN_TIME if at_run_time(loop, around) else 0
        extent = unbounded if high == inf else int(high)
    if extent < 2 or loop.kind is not ForKind.SERIAL or loop.annotations:
        return 1
    if loop_iter_kind(loop, (child,)) is IterKind.REDUCE or not fits(child, loop):
        return 1
    return min(extent, width)


def steps(stmt: Stmt, ranges: Mapping[Var, Interval] | None = None, *, lanes: bool = True) -> int:
    """How often the innermost statement below `stmt` runs, loops inside blocks included.

    A loop whose extent depends on other loops counts for half of its largest extent. A loop without
    a constant bound counts for `RUN_TIME`, and a loop whose extent is loaded for `LOADED`.

    Args:
        ranges: the values of the variables of loops around.
        lanes: count each lane of a vector; otherwise a vector counts as one iteration.
    """
    if (constant := _constant_steps(stmt, lanes)) is not None:
        return constant
    known, own = dict(ranges or {}), 1
    if isinstance(stmt, For):
        size = as_int(stmt.extent)
        low, high = interval(stmt.min, known)
        most = interval(stmt.extent, known)[1] if size is None else size
        unbounded = RUN_TIME if most == inf and at_run_time(stmt, known) else LOADED
        own = size if size is not None else unbounded if most == inf else int(most + 1) // 2
        known[stmt.var] = (low, high + max(most - 1, 0))
        own = 1 if stmt.kind is ForKind.VECTORIZED and not lanes else own
    elif isinstance(stmt, BlockRealize):
        known.update({var: interval(e, known) for var, e in stmt.bindings.items()})
    return own * max((steps(s, known, lanes=lanes) for s in stmt.stmts), default=1)


@fact
def _constant_steps(stmt: Stmt, lanes: bool) -> int | None:
    """`steps` where all extents are constant; None otherwise."""
    inner = [_constant_steps(s, lanes) for s in stmt.stmts]
    size = as_int(stmt.extent) if isinstance(stmt, For) else 1
    if size is None or None in inner:
        return None
    one = not lanes and isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZED
    return (1 if one else size) * max((n for n in inner if n is not None), default=1)


def spread_nest(
    sch: Schedule,
    child: Child,
    jobs: int,
    func: str | None = None,
    tried: set[Var] | None = None,
    cores: int = 1,
    repeated: bool = False,
) -> bool:
    """Fuse the leading loops of a block's nest that reduce nothing, until they have `jobs`
    iterations, and run the fused loop in parallel.

    If the outermost loop must stay serial, as a loop over time, the loops inside it are used. The
    first of these goes outside of all loops, where that is legal: the threads start once.

    Args:
        tried: the variables of the loops that were tried for other blocks of the nest; the loops
            tried for this block are added.
        cores: into how many parts a loop is split that goes outside; with one, none goes.
        repeated: whether the nest stands in a block that serial loops repeat.

    Returns whether a loop was made parallel; otherwise the schedule is unchanged.
    """
    seen = set[Var]() if tried is None else tried
    ranges: dict[Var, Interval] = {}
    for depth, loop in enumerate(child.loops):
        inside = depth > 0 or repeated
        shared = _share_lines(sch, child, loop, cores)
        if depth > 0 and not shared and _spread_outside(sch, child, cores, depth, func):
            return True
        if _small(child, loop, ranges, inside) or loop.kind is not ForKind.SERIAL:
            return False
        if loop.var not in seen and not shared:
            seen.add(loop.var)
            count = _leading(sch, child, jobs, depth)
            if any(_spread(sch, child, func, depth, n) for n in dict.fromkeys((count, 1)) if count):
                return True
        low, high = interval(loop.min, ranges)
        ranges[loop.var] = low, high + max(interval(loop.extent, ranges)[1] - 1, 0)
    return False


def _small(child: Child, loop: For, ranges: Mapping[Var, Interval], inside: bool) -> bool:
    """Whether a loop of a block is too small for threads, `inside` a serial loop or not."""
    vectors = steps(loop, ranges, lanes=False)
    if inside:
        return vectors < SMALL_INSIDE
    return steps(loop, ranges) < SMALL or (not child.block.reads and vectors < FEW_VECTORS)


def _share_lines(sch: Schedule, child: Child, loop: For, cores: int) -> bool:
    """Whether cores that divide a loop would update parts of the same rows again and again, of less
    than a page each.

        for j in range(2): for i in range(n): S[k[i], j * 64:j * 64 + 64] += ...

    Memory says which row is updated, so each update loads and stores it. The cores wait for lines
    that they share or prefetch from each other: on two cores of a Zen 5, rows of 32 sums took 48 us
    in place of 2.3 us, rows of 128 took 62 us, not 5.6, and rows of 2,048 took 32 us, not 48.
    """
    part = -(-(as_int(loop.extent) or RUN_TIME) // cores)
    children = sch.state.scope(child.realize).under(loop)
    updates = [(c, a) for c in children for a in accesses(c.block) if a.is_write]
    return any(
        (by := stride_of(access, each, loop))
        and part * abs(by) * access.buffer.dtype.bytes < PAGE
        and any(reads_memory(i) and (row or 0) > abs(by) for i, row in _places(access))
        for each, access in updates
        if any(map(reads_memory, access.indices)) and access.buffer not in each.block.alloc_buffers
    )


def _places(access: Access) -> Iterable[tuple[Expr, int | None]]:
    """The indices of an access, each with the distance of its elements if this is constant."""
    return zip(access.indices, access.buffer.constant_strides(), strict=True)


def distribute_and_spread(
    sch: Schedule, child: Child, jobs: int, func: str | None, tried: set[Var], cores: int
) -> bool:
    """Distribute the loops that a block shares with others, until `spread_nest` succeeds.

    The innermost shared loop is distributed first. Returns whether a loop was made parallel;
    otherwise the schedule is unchanged.
    """
    if spread_nest(sch, child, jobs, func, tried, cores):
        return True
    before = len(sch.trace)
    while ForKind.PARALLEL not in {loop.kind for loop in child.loops}:
        try:
            fission_innermost(sch, sch.get_block(child.block.name, func), child)
        except ScheduleError:
            break
        child = child_of(sch, child.token)
        if spread_nest(sch, child, jobs, func, cores=cores):
            return True
    undo_to(sch, before)
    return False


def _spread(sch: Schedule, child: Child, func: str | None, depth: int, count: int) -> bool:
    """Fuse `count` loops of a nest, from the loop at `depth` on, and run the result in parallel;
    False if a step is refused."""
    before = len(sch.trace)
    try:
        handles = sch.get_loops(sch.get_block(child.block.name, func))[depth : depth + count]
        sch.parallel(sch.fuse(*handles) if count > 1 else handles[0])
        return True
    except ScheduleError:
        undo_to(sch, before)
        return False


def _spread_outside(sch: Schedule, child: Child, cores: int, depth: int, func: str | None) -> bool:
    """Move a loop of a nest outside of the serial loops around it, in `cores` parts, or whole if
    each iteration updates a row of its own, and run it in parallel; False if a step is refused.

        for t: for i in range(64): S    ->    for i_0 in parallel(2): for t: for i_1: S
    """
    loop = child.loops[depth]
    size = as_int(loop.extent)
    kinds = {outer.kind for outer in child.loops[:depth]}
    if cores < 2 or kinds != {ForKind.SERIAL} or loop.kind is not ForKind.SERIAL or (size or 1) < 2:
        return False
    if any(outer.body is not inner for outer, inner in pairwise(child.loops[: depth + 1])):
        return False
    before = len(sch.trace)
    try:
        handles = sch.get_loops(sch.get_block(child.block.name, func))[: depth + 1]
        part = handles[depth]
        if size is None or (size > cores and not updates_own_rows(child, depth)):
            part, _ = sch.split(part, [cores, None])
        sch.reorder(part, *handles[:depth])
        sch.parallel(part)
        return True
    except ScheduleError:
        undo_to(sch, before)
        return False


def _leading(sch: Schedule, child: Child, jobs: int, depth: int) -> int:
    """How many loops of a nest to fuse and run in parallel, from the loop at `depth` on; 0 if a
    parallel loop does not pay or is illegal."""
    children = sch.state.scope(child.realize).under(child.loops[depth])
    kinds = {loop.kind for c in children for loop in c.loops}
    if kinds & {ForKind.PARALLEL, ForKind.THREAD_BINDING}:
        return 0
    count, extent, opaque = 0, 1, False
    for position, loop in enumerate(child.loops[depth:], depth):
        size = as_int(loop.extent)
        if size is None and extent == 1 and at_run_time(loop, {}) and not free_vars(loop.min):
            size = jobs  # no loop is fused with such a loop: dividing by its extent is slow
        if loop.kind is not ForKind.SERIAL or loop.annotations or size is None or extent >= jobs:
            break
        kind = loop_iter_kind(loop, children)
        if kind is IterKind.OPAQUE and position == depth and size > 1:
            opaque = True  # `parallel` proves whether the iterations are independent
        if kind is not IterKind.SPATIAL and not (opaque and kind is IterKind.OPAQUE):
            break
        if position > depth and child.loops[position - 1].body is not loop:
            break
        count, extent = count + 1, extent * size
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


def limit_unrolling(sch: Schedule, child: Child, copies: int, func: str | None = None) -> None:
    """Let the code generator unroll serial loops of a reduction's nest to `copies` statements.

    A nest that already has a limit keeps it.
    """
    if child.loops and not all(v.is_spatial for v in child.block.iter_vars):
        outermost = sch.get_loops(sch.get_block(child.block.name, func))[0]
        sch.annotate(outermost, AUTO_UNROLL, copies, replace=None)


def decompose_init(sch: Schedule, realize: BlockRealize, func: str | None = None) -> bool:
    """Decompose a reduction at its outermost reduction loop; returns whether it was done.

    The loops of the init get the kinds of the loops of the update. Reductions over thread-bound
    loops, and blocks without a reduction loop, stay whole. Raises ScheduleError if the block cannot
    be decomposed.
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
