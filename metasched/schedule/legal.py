"""Answers which primitives apply to a loop or block, why others do not, and what a loop touches.

Each primitive is tried with plain arguments on a copy of the state, so the answer is exactly the
refusal that the step itself would raise.
"""

from __future__ import annotations

from typing import Any

from metasched.analysis.access import touched_bytes
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.stmt import BlockRealize, For
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import PRIMITIVES, InstructionKind, Ways
from metasched.schedule.state import State


def legal(state: State, rv: BlockRV | LoopRV) -> dict[str, str | None]:
    """For each primitive None if it applies to a loop or block, else why it does not.

    A primitive that takes more than the target (another loop, a buffer, an intrinsic) applies when
    some choice works; otherwise the first refusal is given.
    """
    state.primitive = "legal"
    if isinstance(rv, LoopRV):
        state.loop(rv)
        tried = [(kind, kind.of_loop) for kind in PRIMITIVES.values()]
    else:
        state.block(rv)
        tried = [(kind, kind.of_block) for kind in PRIMITIVES.values()]
    return {kind.name: _refusal(state, kind, ways, rv) for kind, ways in tried if ways is not None}


def _refusal(state: State, kind: InstructionKind, ways: Ways, rv: Any) -> str | None:
    first = None
    try:
        chosen = state.copy_for_trial()
        for args in ways(chosen, rv):
            trial = chosen.copy_for_trial()
            values, _ = kind.bind(args, {})
            try:
                kind.call(trial, values, None, trial.snapshot())
            except ScheduleError as error:
                first = first or error.message
            else:
                return None
    except ScheduleError as error:  # the root block, for example, is in no scope
        return error.message
    return first or "there is nothing to apply it to"


def footprint(state: State, rv: LoopRV) -> dict[str, int | None]:
    """Bytes of each buffer that the blocks below a loop touch while it runs once.

    The keys are buffer names; a value is None if there is no constant bound.
    """
    state.primitive = "footprint"
    loop = state.loop(rv)
    out: dict[str, int | None] = {}
    for buffer in _touched(state, loop):
        name, n = buffer.name, 0
        while name in out:
            n += 1
            name = f"{buffer.name}_{n}"
        out[name] = touched_bytes(loop, buffer)
    return out


def _touched(state: State, loop: For) -> dict[Buffer, None]:
    children: list[BlockRealize] = [c.realize for c in state.scope(loop).under(loop)]
    blocks = [realize.block for realize in children]
    return {r.buffer: None for b in blocks for r in (*b.reads, *b.writes)}
