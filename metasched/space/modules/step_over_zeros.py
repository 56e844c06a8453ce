"""step_over_zeros: a transposed convolution without the zeros between its inputs.

Z[i] = X[i // 2] where i % 2 == 0, else 0
Y[y] += Z[y + k] * W[k]                               4 steps of k
->
Y[y] += Z[y + 2 * k + y % 2] * W[2 * k + y % 2]       2 steps of k
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.errors import ScheduleError
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.tiling import axes, tileable


@dataclass(frozen=True, slots=True)
class StepOverZeros:
    """Offer a sum over the terms that a remainder does not make zero, beside the unchanged
    program."""

    @property
    def name(self) -> str:
        return "step_over_zeros"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if sch.get(block).init is None or not tileable(sch, block, reuse=False):
            return [sch]
        variant, stepped = sch.copy(), False
        for axis in axes(variant, block):
            steps = len(variant.trace)
            try:
                if not axis.spatial:
                    variant.step_over_zeros(axis.loop)
                    stepped = True
            except ScheduleError:
                undo_to(variant, steps)
        return [variant, sch] if stepped else [sch]
