"""rewrite_reduction_block: moves the init of each reduction before its loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metasched.errors import ScheduleError
from metasched.ir.visit import blocks_of
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import decompose_init, undo_to
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class RewriteReductionBlock:
    """Decompose every reduction block at its outermost reduction loop (see `decompose_init`).

    An init that `decompose_reduction` refuses to move stays in its block, where the first iteration
    of the reduction runs the init.
    """

    tries: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return "rewrite_reduction_block"

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name, func in sch.mod.functions.items():
            for realize in list(blocks_of(func.body)):
                if realize.block.init is not None:
                    now, steps = sch.state.index.blocks[realize.block.token], len(sch.trace)
                    try:
                        decompose_init(sch, now, name if several else None)
                    except ScheduleError:
                        undo_to(sch, steps)
