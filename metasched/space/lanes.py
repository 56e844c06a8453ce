"""Vectors over a whole iteration: lanes along a loop whose iterations use memory of their own.

    for x: fill v; sort v; B[x] = v[4]
    ->
    for x in tiles of 16 lanes: fill 16 copies of v; sort them; B[x] = copy x of v

No statement of such an iteration has vectors alone, or its loops need their order. But the
iterations are independent, so each lane of a vector can run one (as ispc does, Pharr and Mark
2012). Each lane gets its own copy of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf, prod

from metasched.analysis.access import SHUFFLED, Access, accesses, stride_of, strides
from metasched.analysis.block import is_leaf, loop_iter_kind
from metasched.analysis.dependence import carried_dependence, disjoint
from metasched.analysis.producers import self_contained
from metasched.analysis.reducer import identity_of, match_reducer
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.analysis.sequence import distribution_order, statement_blocks
from metasched.arith.affine import interval, linear
from metasched.arith.bounds import Interval
from metasched.arith.linear import Linear
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BlockToken, BufferStore, For, ForKind, IterKind, While, fact
from metasched.ir.visit import free_vars, reads_memory, substitute, walk_stmts
from metasched.lower.passes.even_lanes import counts_together
from metasched.lower.passes.turned_rows import MOST_BYTES, row_span
from metasched.schedule.handles import BlockRV, ExprRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import child_of, run_along, undo_to
from metasched.space.own_loops import has_own_loops, suits_lanes
from metasched.space.strides import (
    arithmetic,
    contiguous,
    has_vectors,
    has_walks,
    updates_few,
    walks,
)

COPIES = 1 << 10
"""The most elements of memory of which each lane gets a copy."""
UNROLLED = 320
"""Loops that address copies are unrolled to at most this many iterations."""
LONGEST = 64
"""The most elements between lanes that lie in rows."""
SIDE = 8
"""The most iterations of a loop over a small matrix, and the fewest of one that has vectors."""
WORD = 32
"""The bits of the narrowest elements that are exchanged between rows and vectors."""
TURNED, TURN, WAIT = 16, 6, 16
"""The lanes for which `turns_rows` counts, the operations that turn a vector of elements, and those
in the time of a load that waits for a store."""
MOST = 1 << 22
"""The most elements of a temporary buffer with a copy for each iteration of a loop: tables of 200 x
200 for 32 sequences run five times as fast in lanes."""


def lane_loop(scope: Scope, child: Child) -> tuple[For, list[Buffer]] | None:
    """The innermost loop above a child whose iterations use memory of their own and fit lanes.

    Gives the loop and this memory. There need be no memory if several statements share the loop and
    lanes walk along memory, which the statements then load once; or if a loop inside updates
    elements of parameters step by step. The accesses of other memory are
    contiguous, or reach at most `SHUFFLED` elements apart, or one element for all lanes; or each
    lane walks along memory. Or lanes lie in rows, with which the iterations compute much. Where a
    loop inside grows from lane to lane, as in a triangle, no lane walks.
    """
    for loop in reversed(child.loops):
        private = _lane_memory(scope.block, loop.var)
        if private is not None:
            return loop, private
    return None


@fact
def _lane_memory(block: Block, var: Var) -> list[Buffer] | None:
    """The memory that iterations of a loop of a scope block have of their own, if they fit lanes.

    Cached, since every block below the loop asks.
    """
    scope = Scope.of(block)
    loop = next(n for c in scope.realizes for n in c.loops if n.var is var)
    under = scope.under(loop)
    private = [
        b for b in block.alloc_buffers
        if any(b in buffer_uses(c.block) for c in under) and self_contained(b, scope, loop)
    ]  # fmt: skip
    together = len(under) > 1 and any(has_walks(c.block) for c in under)
    ragged = any(loop.var in free_vars(e) for n in _inside(under, loop) for e in n.exprs)
    if ragged and not _grows(under, loop):
        return None
    rows = in_rows(under, loop) or turns_rows(scope, under, loop, private)
    rows = rows and not ragged
    if not (private or together or rows or ragged or _steps_on(scope, under, loop)):
        return None
    return private if _fits(scope, loop, under, private, rows, walking=not ragged) else None


def _steps_on(scope: Scope, under: Sequence[Child], loop: For) -> bool:
    """Whether an iteration updates elements of parameters from step to step of a loop inside, by
    several stores that need each other: a filter's state and its variance."""
    temporary = scope.block.alloc_buffers
    for inner in dict.fromkeys(_inside(under, loop)):
        steps = scope.under(inner)
        if any(c.block.init is not None for c in steps):
            continue  # a reduction has tiles
        stores = [
            [s for s in walk_stmts(c.block.body) if isinstance(s, BufferStore)] for c in steps
        ]
        if all(s.buffer in temporary for each in stores for s in each):
            continue
        alone = len(steps) == 1 or distribution_order(scope, inner) is not None
        if alone and all(len(each) < 2 for each in stores):
            continue
        if carried_dependence(inner, scope) is not None:
            return True
    return False


def _inside(under: Sequence[Child], loop: For) -> list[For]:
    """The loops inside a loop."""
    return [n for c in under for n in c.loops[c.loops.index(loop) + 1 :]]


def _grows(under: Sequence[Child], loop: For) -> bool:
    """Whether the lanes of a loop can count the steps of the loops inside together."""
    return all(counts_together(n, {loop.var}, loop.var) for n in _inside(under, loop))


def in_rows(under: Sequence[Child], loop: For) -> bool:
    """Whether lanes along a loop lie in short rows of memory (see `codegen.columns`), and an
    iteration computes at least one operation for each element: on a Zen 4 the exchanges that turn
    rows into vectors then pay."""
    if any(
        (as_int(other.extent) or SIDE) >= SIDE and contiguous(child, other)
        for child in under
        for other in child.loops[: child.loops.index(loop)]
    ):
        return False
    if all(_pads(child.block) for child in under):
        return False
    moved: dict[tuple[Buffer, bool], int] = {}
    work = total = 0
    for child in under:
        inner = child.loops[child.loops.index(loop) + 1 :]
        times = _times(inner, _ranges(child.loops))
        if times is None:
            return False
        total += times
        work += times * arithmetic(child.block, loop.var, child.realize.bindings)
        for access, move in strides(child, loop):
            if move is None or not -1 <= move <= LONGEST:
                return False
            if move > SHUFFLED:
                if access.buffer.dtype.bits < WORD:
                    return False
                key = access.buffer, access.is_write
                moved[key] = min(move, moved.get(key, 0) + times)
    wide = max(moved.values(), default=0) > SHUFFLED
    return wide and total <= UNROLLED and work >= sum(moved.values())


def turns_rows(scope: Scope, under: Sequence[Child], loop: For, private: Sequence[Buffer]) -> bool:
    """Whether lanes along a loop lie in rows that `lower.passes.turned_rows` copies, and the copies
    pay: most work has no vectors along the loops inside."""
    forms: dict[Buffer, list[tuple[Linear, bool]]] = {}
    inner: dict[Var, Interval] = {}
    loops: dict[Var, For] = {}
    near: set[Buffer] = set()
    alone = together = 0.0
    for child in under:
        inside = child.loops[child.loops.index(loop) + 1 :]
        inner |= {n.var: r for n, r in zip(child.loops, _ranges(child.loops).values(), strict=True)}
        loops |= {n.var: n for n in inside}
        if has_walks(child.block) or any(n.kind is not ForKind.SERIAL for n in inside):
            return False
        work, waits = _work(scope, child, loop, inside, inner)
        together += work
        alone += work / _own_lanes(scope, child, inside) + waits
        for access, move in strides(child, loop):
            if access.buffer in private:
                continue
            if move is not None and (1 if access.is_write else -1) <= move <= SHUFFLED:
                near.add(access.buffer)
                continue
            address = _address(access, child)
            if move is None or address is None or access.buffer.dtype.bits < WORD:
                return False
            forms.setdefault(access.buffer, []).append((address, access.is_write))
    inner = {v: r for v, r in inner.items() if v not in {n.var for n in _outside(under[0], loop)}}
    if not inner:
        return False  # straight code is for `in_rows`
    moved = size = 0
    for buffer, each in forms.items():
        span = row_span(each, loop.var, inner, loops)
        if buffer in near or span is None or (span.stored and not span.whole):
            return False
        moved += span.count
        size += span.count * buffer.dtype.bytes * TURNED
    return 0 < size <= MOST_BYTES and alone > 2 * (together + TURN * moved) / TURNED


def _outside(child: Child, loop: For) -> Sequence[For]:
    """The loops around a block down to `loop`."""
    return child.loops[: child.loops.index(loop) + 1]


def _work(
    scope: Scope, child: Child, loop: For, inside: Sequence[For], ranges: Mapping[Var, Interval]
) -> tuple[float, float]:
    """The operations and stores of a block in an iteration of `loop`; and operations for the time
    in which vectors wait for what was just stored, where steps around them need their order."""
    times = [max(1.0, interval(n.extent, ranges)[1]) for n in inside]
    stores = sum(a.is_write for a in accesses(child.block))
    operations = arithmetic(child.block, loop.var, child.realize.bindings)
    tiled = any(v.is_reduce for v in child.block.iter_vars)  # its results stay in registers
    ordered = not tiled and any(carried_dependence(n, scope) is not None for n in inside[:-1])
    return prod(times) * (operations + stores), WAIT * prod(times[:-1]) * ordered


def _own_lanes(scope: Scope, child: Child, inside: Sequence[For]) -> int:
    """The lanes that a block may have along the innermost loop, or along a loop of its own where it
    reads nothing that the loop writes; as many as a reduction, which has vectors of its own."""
    if not inside:
        return 1
    if any(v.is_reduce for v in child.block.iter_vars) or _adds_up(child, inside[-1]):
        return TURNED
    last = inside[-1]
    written = {region.buffer for c in scope.under(last) for region in c.block.writes}
    alone = written.isdisjoint(a.buffer for a in accesses(child.block) if not a.is_write)
    if not alone and carried_dependence(last, scope) is not None:
        return 1
    count, along = run_along(child, inside, TURNED)
    return min(TURNED, along if count > 1 else as_int(last.extent) or TURNED)


def _adds_up(child: Child, loop: For) -> bool:
    """Whether a block adds up, multiplies or compares values into one element along a loop."""
    store = child.block.body
    if not isinstance(store, BufferStore) or (start := identity_of(store.value)) is None:
        return False
    init = BufferStore(store.buffer, start, store.indices)
    moves = [move for access, move in strides(child, loop) if access.is_write]
    return moves == [0] and match_reducer(init, store) is not None


def _address(access: Access, child: Child) -> Linear | None:
    """The place of an access in its buffer, over the variables of loops."""
    total = Linear({}, 0)
    for index, by in zip(access.indices, access.buffer.constant_strides(), strict=True):
        if by is None or not access.inner.isdisjoint(free_vars(index)):
            return None
        total = total.plus(linear(substitute(index, child.realize.bindings)), by)
    return total


def _pads(block: Block) -> bool:
    """Whether a block stores an element unchanged, or under a condition."""
    value = block.body.value if isinstance(block.body, BufferStore) else None
    if isinstance(value, Call) and value.op.name == "if_then_else":
        value = value.args[1]
    return isinstance(value, BufferLoad)


def _ranges(loops: Sequence[For]) -> dict[Var, Interval]:
    """The values of nested loops' variables, where an extent may depend on the loops around."""
    ranges: dict[Var, Interval] = {}
    for loop in loops:
        low, high = interval(loop.min, ranges)
        ranges[loop.var] = low, max(low, high + interval(loop.extent, ranges)[1] - 1)
    return ranges


def _times(loops: Sequence[For], ranges: Mapping[Var, Interval]) -> int | None:
    """How often short loops run their body, half as often where an extent depends on loops around;
    None for other loops."""
    times = 1
    for loop in loops:
        most = interval(loop.extent, ranges)[1]
        if loop.kind is not ForKind.SERIAL or loop.annotations or most > SIDE:
            return None
        times *= int(most) if as_int(loop.extent) is not None else max(1, int(most) // 2 + 1)
    return times


def lane_bits(scope: Scope, loop: For) -> int:
    """The bits of the widest element that a lane of the loop loads or stores."""
    uses = [b.dtype.bits for c in scope.under(loop) for b in buffer_uses(c.block)]
    return max(8, *uses)


def part_iterations(sch: Schedule, token: BlockToken, func: str | None = None) -> bool:
    """Give statements that keep a loop from being a `lane_loop` loops of their own: of
    `total += h` at the end of each iteration, only h is computed in lanes, and of a row that is
    divided by its sum, only the sum.

    Acts on the loops of which the block is the first statement, the outer first. What the new loops
    share of temporary memory gets a copy for each iteration. Returns False where there is no such
    loop, or a step is refused; the schedule is then unchanged.
    """
    child, before = child_of(sch, token), len(sch.trace)
    scope = sch.state.scope(child.realize)
    for depth, loop in enumerate(child.loops):
        if scope.under(loop)[0].token is not token:
            continue
        try:
            _part(sch, scope, child, depth, func)
        except ScheduleError:
            undo_to(sch, before)
        now = child_of(sch, token)
        fits = lane_loop(sch.state.scope(now.realize), now) is not None or runs_own_loops(now)
        if len(sch.trace) > before and fits:
            return True
        undo_to(sch, before)
    return False


def runs_own_loops(child: Child) -> bool:
    """Whether lanes of a block alone are vectors that run loops which their data end."""
    return has_own_loops(child.block) and suits_lanes(child.block) and has_vectors(child.block)


def _part(sch: Schedule, scope: Scope, child: Child, depth: int, func: str | None) -> None:
    loop = child.loops[depth]
    items, under = statement_blocks(scope, loop), scope.under(loop)
    own = [b for b in scope.block.alloc_buffers if self_contained(b, scope, loop)]
    written = {b for c in under for b, use in buffer_uses(c.block).items() if use.writes}
    shared = {b for b in written - {*own} if not disjoint(b, scope, loop)}
    alone = [
        any(not shared.isdisjoint(buffer_uses(c.block)) or not _near(c, loop, own) for c in item)
        for item in items
    ]
    if alone[0] or True not in alone:
        return
    parts = [[n for n, _ in run] for _, run in groupby(enumerate(alone), lambda e: e[1])]
    part = {c.token: k for k, run in enumerate(parts) for n in run for c in items[n]}
    for buffer in own:
        users = [c for c in under if buffer in buffer_uses(c.block)]
        if len({part[c.token] for c in users}) < 2:
            continue
        if _elements(buffer) * (as_int(loop.extent) or MOST) > MOST:
            return
        writer, place = next(
            (c, n) for c in users for n, r in enumerate(c.block.writes) if r.buffer is buffer
        )
        named = sch.get_block(writer.block.name, func)
        sch.expand_buffer(named, place, sch.get_loops(named)[depth])
        if buffer.scope != "global":  # the stack has no room for all copies
            sch.set_scope(named, place, "global")
    sch.fission(sch.get_loops(sch.get_block(child.block.name, func))[depth], parts)


def _fits(
    scope: Scope, loop: For, under: list[Child], private: list[Buffer], rows: bool, walking: bool
) -> bool:
    if loop.kind is not ForKind.SERIAL or loop.annotations:
        return False
    if any(_elements(b) > COPIES for b in private):
        return False
    if any(s for s, loops in scope.loose if loop in loops):
        return False
    stored = False
    for child in under:
        if is_leaf(child.block) is not None or child.branches:
            return False
        if any(isinstance(s, While) for s in walk_stmts(child.block.body)):
            return False
        if updates_few(child.block, as_int(loop.extent)):
            return False
        if not rows and not _near(child, loop, private, walking):
            return False
        memory = {*private, *child.block.alloc_buffers}
        stored = stored or any(a.is_write and a.buffer not in memory for a in accesses(child.block))
    return stored and carried_dependence(loop, scope) is None


def _near(child: Child, loop: For, private: Sequence[Buffer], walking: bool = True) -> bool:
    """Whether the accesses of other memory than `private` are vectors along a loop, or walk, if
    they may."""
    for access in accesses(child.block):
        if access.buffer in private or access.buffer in child.block.alloc_buffers:
            continue
        move = stride_of(access, child, loop)
        near = move is not None and (1 if access.is_write else -1) <= move <= SHUFFLED
        if not near and not (walking and walks(access, child, loop) and _in_order(child)):
            return False
    return True


def _in_order(child: Child) -> bool:
    """Whether the innermost loop of a block keeps its order. A sum in any order has lanes along
    memory, where nothing is exchanged."""
    return loop_iter_kind(child.loops[-1], (child,)) is not IterKind.REDUCE


def run_in_lanes(
    sch: Schedule, token: BlockToken, lanes: int | ExprRV, func: str | None = None
) -> bool:
    """Run the iterations of `lane_loop` above a block in the lanes of vectors.

    Inner loops that address a copy are unrolled, so that the copies stay in registers. Returns
    False where there is no such loop, or a step is refused; the schedule is then unchanged.
    """
    child = child_of(sch, token)
    found = lane_loop(sch.state.scope(child.realize), child)
    if found is None:
        return False
    before = len(sch.trace)
    try:
        _apply(sch, child, *found, lanes, func)
    except ScheduleError:
        undo_to(sch, before)
        return False
    return True


def _apply(
    sch: Schedule, child: Child, loop: For, private: list[Buffer], lanes: int | ExprRV,
    func: str | None,
) -> None:  # fmt: skip
    scope = sch.state.scope(child.realize)
    tokens, old = [c.token for c in scope.under(loop)], set(scope.block.alloc_buffers)
    writers = [next(c.token for c in scope.writers(b)) for b in private]
    depth = child.loops.index(loop)

    def block(token: BlockToken) -> BlockRV:
        return sch.get_block(child_of(sch, token).block.name, func)

    sch.split(sch.get_loops(block(child.token))[depth], [None, lanes])
    for token, buffer in zip(writers, private, strict=True):
        one = block(token)
        writes = child_of(sch, token).block.writes
        place = next(n for n, r in enumerate(writes) if r.buffer is buffer)
        sch.expand_buffer(one, place, sch.get_loops(one)[depth + 1])
        if _elements(buffer) > 1:
            sch.transform_layout(one, ("write", place), lambda first, *rest: (*rest, first))
    rows = in_rows(scope.under(loop), loop)
    for token in tokens:
        _unroll(sch, token, depth + 2, None if rows else old, block(token))
    sch.vectorize(sch.get_loops(block(child.token))[depth + 1])


def _unroll(
    sch: Schedule, token: BlockToken, depth: int, old: set[Buffer] | None, block: BlockRV
) -> None:
    """Unroll the loops inside a lane that address a new buffer, the innermost first; all loops if
    no old buffers are given."""
    child = child_of(sch, token)
    if old is None:
        for position in range(depth, len(child.loops)):
            if child.loops[position].kind is ForKind.SERIAL:
                sch.unroll(sch.get_loops(block)[position])
        return
    copies = set(sch.state.scope(child.realize).block.alloc_buffers) - old
    handles, ranges = sch.get_loops(block), _ranges(child.loops)
    found = [a for a in accesses(child.block) if a.buffer in copies]
    ends = frozenset[Var]()  # of unrolled loops, which are constants only where these are
    for position in range(len(child.loops) - 1, depth - 1, -1):
        node = child.loops[position]
        if _iterations(child.loops[position:], ranges) > UNROLLED:
            return
        moves = node.var in ends or any(_addresses(a, child, node) for a in found)
        if node.kind is ForKind.VECTORIZED or moves:
            sch.unroll(handles[position])
            ends |= frozenset().union(*map(free_vars, node.exprs))


def _addresses(access: Access, child: Child, loop: For) -> bool:
    """Whether the place of an access depends on a loop, and on no memory."""
    move = stride_of(access, child, loop)
    if move is not None:
        return move != 0
    places = [substitute(index, child.realize.bindings) for index in access.indices]
    return any(loop.var in free_vars(p) and not reads_memory(p) for p in places)


def _iterations(loops: Sequence[For], ranges: Mapping[Var, Interval]) -> float:
    """How often nested loops run their body; more than `UNROLLED` stands for all larger numbers."""
    if not loops:
        return 1
    first, inside = loops[0], loops[1:]
    (low, _), (_, most) = interval(first.min, ranges), interval(first.extent, ranges)
    if most > UNROLLED or all(first.var not in free_vars(e) for n in inside for e in n.exprs):
        return most * _iterations(inside, ranges)
    values = range(int(low), int(low + most)) if abs(low) < inf else ()
    return sum(_iterations(inside, {**ranges, first.var: (v, v)}) for v in values)


def _elements(buffer: Buffer) -> int:
    return prod(buffer.constant_shape() or (COPIES + 1,))
