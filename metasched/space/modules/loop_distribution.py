"""loop_distribution: one loop nest for each statement, so that other modules can schedule it.

A loop around several blocks prevents tiling of these blocks, and often vectors and threads. Beside
the program as written, the module offers a distributed program. There, every loop is distributed
and every block with several outputs is cut, as far as dependences allow. Elements of one buffer
that tiles can sum count as outputs, and their sums get private buffers; the program as written is
left out there, since its sums would stay in memory. A third program reduces in private buffers: an
update (`C += A · B` after `C = beta * C`) gets an init and one writer, and a sum with a constant
factor (`alpha * A · B`) is multiplied once. A triangle is computed over the square around it, whose
loops have constant extents. A temporary buffer that each iteration fills anew gets a copy for each
iteration, and a value that each iteration hands to the next (a sum so far) a place for each
iteration. A fourth program keeps sums whose order is fixed (`+=` of floats in a loop) in a buffer
of their own, so that tiles of them are set, summed and stored together. Elementwise blocks before
and after the sum, in nests of their own too, are inlined into the two copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from metasched.analysis.block import is_leaf, needs_multi_level_tiling
from metasched.analysis.factor import factor_of_sum
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.analysis.sequence import held_together
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockToken
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.lane_layout import lanes_last
from metasched.space.lanes import MOST
from metasched.space.loop_kinds import (
    SMALL,
    child_of,
    fission_innermost,
    several_outputs,
    steps,
    undo_to,
)
from metasched.space.modules.register_plan import in_order
from metasched.space.strides import has_vectors, vector_iter
from metasched.space.tiling import untouched


@dataclass(frozen=True, slots=True)
class LoopDistribution:
    """Offer the distributed program, without and with private sums, beside the program as written.

    The module acts on root blocks.

    Attributes:
        least: the fewest iterations of a nest that gets a private buffer.
    """

    least: int = SMALL

    @property
    def name(self) -> str:
        return "loop_distribution"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is not None:
            return [sch]
        variant = sch.copy()
        joined = _distribute(variant, block, sch.refused)
        kept = variant.copy()
        keeps = _keep_sums(kept, block)
        func = sch.state.func_of(realize)[0] if len(sch.mod.functions) > 1 else None
        name = sch.state.func_of(realize)[0]
        private = variant.copy()
        for child in list(Scope.of(private.mod[name].root).realizes):
            if child.loops and steps(child.loops[0]) >= self.least:
                handle = private.get_block(child.block.name, func)
                try:
                    _in_private(private, handle, child)
                except ScheduleError as error:
                    if error.reason != "no-update":  # there is no sum to keep apart
                        sch.refused.append(error)
        written = [] if joined and private.mod is not variant.mod else [sch]
        programs = [private, kept, variant, *written] if keeps else [private, variant, *written]
        every = {id(one.mod): one for one in programs}
        return list(every.values())


def _distribute(sch: Schedule, root: BlockRV, refused: list[ScheduleError]) -> bool:
    """Cut every block with several outputs, and distribute every loop, as far as possible.

    Args:
        refused: takes the refusals.

    Returns whether a block was cut whose outputs are elements of one buffer.
    """
    joined = False
    realize = sch.state.block(root)
    name = sch.state.func_of(realize)[0]
    func = name if len(sch.mod.functions) > 1 else None
    for one in list(blocks_of(realize.block.body)):
        scope = sch.state.scope(one)
        several = several_outputs(scope, scope.child(one.block.token))
        if several and is_leaf(one.block) is None:
            try:
                cut = _cut(sch, sch.get_block(one.block.name, func))
                joined |= cut and len(one.block.writes) == 1
            except ScheduleError as error:
                if error.reason != "no-stores":  # one statement computes the outputs
                    refused.append(error)
    for child in list(Scope.of(sch.mod[name].root).realizes):
        handle = sch.get_block(child.block.name, func)
        while _distributed(sch, handle, child_of(sch, child.token)):
            pass
        if all(v.is_spatial for v in sch.get(handle).iter_vars):
            _in_loop_order(sch, handle)  # an expanded buffer brought its iterators last
    lanes_last(sch, name, func)
    return joined


def _keep_sums(sch: Schedule, root: BlockRV) -> bool:
    """Give a buffer of their own to the results that a nest updates in a fixed order; whether there
    are some."""
    realize = sch.state.block(root)
    name = sch.state.func_of(realize)[0]
    func = name if len(sch.mod.functions) > 1 else None
    before = len(sch.trace)
    for child in list(Scope.of(sch.mod[name].root).realizes):
        block, now = child.block, child_of(sch, child.token)
        scope = sch.state.scope(now.realize)
        spatial = [v for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1]
        tiles = in_order(block) and len(block.writes) == 1 and untouched(now) and len(spatial) > 1
        reuse = tiles and needs_multi_level_tiling(scope, child.token) is None
        if not reuse or vector_iter(block) is None:
            continue
        if block.writes[0].buffer not in scope.block.alloc_buffers:
            try:
                sch.cache_update(sch.get_loops(sch.get_block(block.name, func))[0], "global")
            except ScheduleError as error:
                sch.refused.append(error)
                continue
        _over_boxes(sch, block.token, func)
    return len(sch.trace) > before


def _over_boxes(sch: Schedule, token: BlockToken, func: str | None) -> None:
    """Compute a triangle of sums, and what sets them, over the square around it."""
    now, before = child_of(sch, token), len(sch.trace)
    if all(as_int(n.min) is not None and as_int(n.extent) is not None for n in now.loops):
        return
    writers = sch.state.scope(now.realize).writers(now.block.writes[0].buffer)
    try:
        for writer in writers:
            sch.overcompute_box(sch.get_block(writer.block.name, func))
    except ScheduleError as error:
        sch.refused.append(error)
        undo_to(sch, before)


def _distributed(sch: Schedule, block: BlockRV, child: Child) -> bool:
    """Distribute the innermost loop that a block shares; False, and no change, if it is refused.

    If the iterations share only memory of temporary buffers, each gets its own copy. If an
    iteration needs the value of the iteration before, as of a sum so far, each value is kept.
    """
    before = len(sch.trace)
    for copies in ("none", "own", "running"):
        if copies == "own" and _held_together(sch, child):
            return False
        try:
            if copies != "none":
                _expand_buffers(sch, child, running=copies == "running")
            fission_innermost(sch, block, child_of(sch, child.token))
            return True
        except ScheduleError:
            undo_to(sch, before)
    return False


def _held_together(sch: Schedule, child: Child) -> bool:
    """Whether copies of temporary buffers cannot help: accesses of other buffers forbid the
    distribution. Copies for each step of a long loop over time would take seconds to make."""
    depth = _innermost_shared(child)
    if depth is None:
        return True
    scope, loop = sch.state.scope(child.realize), child.loops[depth]
    written = {r.buffer for c in scope.under(loop) for r in c.block.writes}
    return held_together(scope, loop, written.difference(scope.block.alloc_buffers))


def _innermost_shared(child: Child) -> int | None:
    """The depth of the innermost loop over a block that holds other statements, too."""
    below = [*child.loops, child.realize][1:]
    shared = (n for n, part in enumerate(below) if child.loops[n].body is not part)
    return max(shared, default=None)


def _expand_buffers(sch: Schedule, child: Child, *, running: bool) -> None:
    """Give each iteration of the innermost shared loop its own copies of the temporary buffers.

    Args:
        running: keep also each value that an iteration needs of the iteration before.
    """
    depth = _innermost_shared(child)
    if depth is None:
        raise ScheduleError("expand_buffer", "own-nest", "the block shares no loop")
    scope = sch.state.scope(child.realize)
    around = [sch.state.size(child.loops[depth].extent) or MOST]
    inside = [c.block for c in scope.under(child.loops[depth])]
    done: set[Buffer] = set()
    for block, place in [(b, n) for b in inside for n in range(len(b.writes))]:
        buffer = block.writes[place].buffer
        size = prod((*(buffer.constant_shape() or ()), *around))
        if buffer not in scope.block.alloc_buffers or buffer in done or size > MOST:
            continue
        done.add(buffer)
        ways = [sch.expand_buffer]
        if running and sum(buffer in buffer_uses(b) for b in inside) > 1:
            ways.append(sch.expand_running_value)
        for expand in ways:
            before, named = len(sch.trace), sch.get_block(block.name)
            try:
                expand(named, place, sch.get_loops(named)[depth])
                if buffer.scope != "global":  # the stack has no room for all copies
                    sch.set_scope(named, place, "global")
                break
            except ScheduleError:  # an iteration needs what an earlier one left
                undo_to(sch, before)


def _cut(sch: Schedule, block: BlockRV) -> bool:
    """Cut a block into one block for each output, if some part is a reduction or has vectors."""
    before = len(sch.trace)
    parts = [sch.get(part) for part in sch.decompose_outputs(block)]
    if any(has_vectors(p) or any(v.is_reduce for v in p.iter_vars) for p in parts):
        return True
    undo_to(sch, before)
    return False


def _in_private(sch: Schedule, block: BlockRV, child: Child) -> None:
    """Sum an update in a private buffer, and a triangle over the square around it."""
    ragged = any(as_int(n.min) is None or as_int(n.extent) is None for n in child.loops)
    reduces = any(v.is_reduce for v in child.block.iter_vars)
    scope = sch.state.scope(child.realize)
    scaled = factor_of_sum(child.block) is not None
    scaled = scaled and needs_multi_level_tiling(scope, child.token) is None
    shared = len(scope.writers(child.block.writes[0].buffer)) > 1
    if not reduces or not (ragged or scaled or shared or child.block.init is None):
        return
    private = child.block.init is not None and _alone(scope, child)
    private = private and not scaled
    if not private:
        sch.privatize_reduction(block)
    if ragged:
        before = len(sch.trace)
        try:
            sch.overcompute_box(block)
        except ScheduleError:
            undo_to(sch, before)
            raise
    _in_loop_order(sch, block)


def _alone(scope: Scope, child: Child) -> bool:
    """Whether a block is the only writer of a buffer that the scope allocates."""
    buffer = child.block.writes[0].buffer
    return buffer in scope.block.alloc_buffers and len(scope.writers(buffer)) == 1


def _in_loop_order(sch: Schedule, block: BlockRV) -> None:
    """Bring the iterators of a block into the order of its loops, which tiling expects."""
    realize = sch.state.block(block)
    values = list(realize.iter_values)
    loops = [loop.var for loop in sch.state.loops_above(realize)]
    if sorted(map(id, values)) == sorted(map(id, loops)) and values != loops:
        sch.reorder_block_iter_var(block, [values.index(var) for var in loops])
