"""separate_windows: a window without weights, first along its columns, then along its rows.

    B[y, x] = max(A[y + i, x + j])   5 x 5 loads
    ->
    W[y, x] = max(A[y + i, x])       5 loads
    B[y, x] = max(W[y, x + j])       5 loads

Box filters, dilations and pooling in steps of one are such windows. The side that lies along memory
comes last: a row of results then needs one row of W, and none of its neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metasched.analysis.access import accesses
from metasched.ir.expr import as_int
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride
from metasched.space.tiling import Axis, axes, changed, tileable

NOTHING = ("no-window", "no-limit", "no-reducer", "other-domain")
"""The reasons of `separate_window` for a reduction that is no window."""


@dataclass(frozen=True, slots=True)
class SeparateWindows:
    """Offer a reduction along one side of its window after the other sides, beside the unchanged
    program, where this takes fewer operations."""

    @property
    def name(self) -> str:
        return "separate_windows"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if sch.get(block).init is None or not tileable(sch, block, reuse=False):
            return [sch]
        if len(_sides(sch, block)) < 2:
            return [sch]
        return [*changed(sch, lambda variant: _separate(variant, block), nothing=NOTHING), sch]


def _sides(sch: Schedule, block: BlockRV) -> list[Axis]:
    """The loops of a reduction, those along memory last, but for loops of one iteration."""
    node = sch.get(block)
    loads = [a for a in accesses(node) if not a.is_write and not a.in_init]

    def along(axis: Axis) -> bool:
        return any(iter_stride(a, node.iter_vars[axis.position].var) == 1 for a in loads)

    return sorted((a for a in axes(sch, block) if not a.spatial and a.extent != 1), key=along)


def _separate(sch: Schedule, block: BlockRV) -> bool:
    """Separate the last side of a window from the others, and so on for the others; False if this
    takes as many operations."""
    before = _operations(sch, block)
    rest = sch.separate_window(_sides(sch, block)[-1].loop)
    if _operations(sch, rest) + _operations(sch, block) >= before:
        return False
    while len(sides := _sides(sch, rest)) > 1:
        rest = sch.separate_window(sides[-1].loop)
    return True


def _operations(sch: Schedule, block: BlockRV) -> int:
    return math.prod(as_int(v.dom.extent) or 1 for v in sch.get(block).iter_vars)
