"""disallow_dynamic_loop: rejects loops whose extent is no constant."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.ir.expr import as_int
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class DisallowDynamicLoop:
    """Every extent is a constant, as features and code sizes need it. Reason: `dynamic-loop`."""

    @property
    def name(self) -> str:
        return "disallow_dynamic_loop"

    def __call__(self, sch: Schedule, target: Target) -> None:
        for loop in sch.state.index.loops.values():
            if as_int(loop.extent) is None:
                raise rejection(
                    self.name,
                    "dynamic-loop",
                    f"the loop {loop.var.name} has no constant extent",
                    loop,
                )
