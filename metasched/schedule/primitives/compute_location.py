"""sample_compute_location: draws one of the legal places of a block."""

from __future__ import annotations

from metasched.analysis.block import is_output
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockRealize, For
from metasched.schedule.handles import INLINE_MARK, ROOT_MARK, BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.compute_at import compute_at
from metasched.schedule.primitives.inline import compute_inline
from metasched.schedule.primitives.sample import decide
from metasched.schedule.state import State

INLINE, ROOT = -2, -1


@primitive()
def sample_compute_location(state: State, block: BlockLike, decision: int | None = None) -> LoopRV:
    """Draw a loop of the consumers under which `block` can be computed, for compute_at.

    The decision is the loop's position below the scope, -1 for the mark "root" or -2 for the mark
    "inline". With the mark "root" compute_at does nothing; with "inline" it inlines the block.

    requires  the block stands directly in a scope
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    loops = _consumer_loops(state, realize)
    places = [INLINE] if _works(state, block, None) else []
    places.append(ROOT)
    for position, loop in enumerate(loops):
        if as_int(loop.extent) != 1 and _works(state, block, loop):
            places.append(position)
    taken = decide(state, {"kind": "location", "candidates": places}, decision)
    if taken == INLINE:
        return state.new_loop(INLINE_MARK)
    return state.new_loop(ROOT_MARK if taken == ROOT else loops[taken].var)


def _consumer_loops(state: State, realize: BlockRealize) -> list[For]:
    """The loops that all consumers share, outermost first; an empty list for an output block."""
    scope = state.scope(realize)
    if is_output(scope.block, realize.block):
        return []
    consumers = scope.consumers(realize.block.token)
    if not consumers:
        return []
    shared = list(consumers[0].loops)
    for child in consumers[1:]:
        shared = [a for a, b in zip(shared, child.loops, strict=False) if a is b]
    return shared


def _works(state: State, block: BlockRV, loop: For | None) -> bool:
    """Whether the block can be computed there (None: inlined), tried on a copy."""
    trial = state.copy_for_trial()
    try:
        if loop is None:
            compute_inline(trial, block)
        else:
            compute_at(trial, block, trial.new_loop(loop.var), True)
    except ScheduleError:
        return False
    return True
