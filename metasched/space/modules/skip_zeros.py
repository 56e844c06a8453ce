"""skip_zeros: conditions around updates in place of zeros in their sums.

    for i, k: C[i] += T.if_then_else(k <= i, A[i, k] * B[k], 0.0)
    ->
    for i, k: if k <= i: C[i] += A[i, k] * B[k]

A triangle or the padding of a window written as a choice then runs where its condition holds: tiles
outside are left out, and inside nothing is tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import TILED
from metasched.ir.visit import reads_memory
from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.skip_zeros import tested, updated
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import changed


@dataclass(frozen=True, slots=True)
class SkipZeros:
    """Test a condition that iterators alone decide around an update without init, in place of the
    choice that adds zero; of conditions that memory decides, a choice takes less time."""

    @property
    def name(self) -> str:
        return "skip_zeros"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or TILED in node.annotations or node.init is not None:
            return [sch]
        store = updated(node.body)
        found = None if store is None else tested(store)
        if found is None or reads_memory(found[0]):
            return [sch]
        return changed(sch, lambda variant: variant.skip_zeros(block)) or [sch]
