"""The random machine plays a primitive with the arguments with which `Schedule.legal` tries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metasched.schedule.handles import RV, BlockRV, LoopRV
from metasched.schedule.instruction import InstructionKind, map_handles

if TYPE_CHECKING:
    from schedule.machine import Player


def tried(kind: InstructionKind) -> Callable[[Player], None]:
    """The operation that draws a loop or block, and one of the ways of a primitive on it."""

    def operation(p: Player) -> None:
        on_loop = kind.of_loop is not None and (kind.of_block is None or p.number(2) == 0)
        target = p.loop() if on_loop else p.block()
        ways = kind.of_loop if on_loop else kind.of_block
        trial = p.sch.state.copy_for_trial()
        calls = [*ways(trial, target)]
        if not calls:
            p.nothing()

        def known(rv: RV) -> RV:
            return rv if rv in p.sch.state.table else recorded_handle(p, trial, rv)

        args = [map_handles(arg, known) for arg in p.pick(calls)]
        getattr(p.sch, kind.name)(*args)

    return operation


def recorded_handle(p: Player, trial: Any, rv: RV) -> BlockRV | LoopRV:
    """A handle of the schedule for what a handle of the trial stands for."""
    if isinstance(rv, BlockRV):
        return p.handle(trial.block(rv))
    loop = trial.loop(rv)
    for realize in p.realizes():
        above = [n.var for n in trial.loops_above(realize)]
        if loop.var in above:
            return p.sch.get_loops(p.handle(realize))[above.index(loop.var)]
    return p.nothing()
