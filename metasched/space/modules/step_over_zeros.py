"""step_over_zeros: a transposed convolution without the zeros between its inputs.

Z[i] = X[i // 2] where i % 2 == 0, else 0
Y[y] += Z[y + k] * W[k]                               4 steps of k
->
Y[y] += Z[y + 2 * k + y % 2] * W[2 * k + y % 2]       2 steps of k

A statement under a test of a remainder runs where the test holds, as in a red-black sweep:

if (i + j) % 2 == c: U[i, j] = ...                    8 steps of j
->
U[i, 2 * j + (i + c) % 2] = ...                       4 steps of j
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.errors import ScheduleError
from metasched.ir.stmt import IfThenElse
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.strides import has_vectors
from metasched.space.tiling import axes, tileable


@dataclass(frozen=True, slots=True)
class StepOverZeros:
    """Offer a sum over the terms that a remainder does not make zero, or a statement at the
    iterations that a remainder picks, beside the unchanged program.

    A statement that still has vectors then replaces the unchanged program.
    """

    @property
    def name(self) -> str:
        return "step_over_zeros"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        sums = sch.get(block).init is not None
        if sums and not tileable(sch, block, reuse=False):
            return [sch]
        variant, stepped = sch.copy(), False
        for loop in _summed(variant, block) if sums else _tested(variant, block):
            steps = len(variant.trace)
            try:
                variant.step_over_zeros(loop)
                stepped = True
            except ScheduleError:
                undo_to(variant, steps)
        if stepped and not sums and has_vectors(variant.get(block)):
            return [variant]  # the same statement fewer times
        return [variant, sch] if stepped else [sch]


def _summed(sch: Schedule, block: BlockRV) -> list[LoopRV]:
    """The loops over the terms of a sum."""
    return [axis.loop for axis in axes(sch, block) if not axis.spatial]


def _tested(sch: Schedule, block: BlockRV) -> list[LoopRV]:
    """The loops over a block whose body is under a test, innermost first: lanes that a test leaves
    out cost as much as others."""
    if sch.state.parent(sch.state.block(block)) is None:
        return []
    return sch.get_loops(block)[::-1] if isinstance(sch.get(block).body, IfThenElse) else []
