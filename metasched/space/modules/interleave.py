"""interleave: several independent iterations side by side around a loop of dependent steps.

    for i in parallel rows / 8:
        for j:                           # each step needs the step before it
            for i in 8 rows:             # unrolled: these steps are independent

A recursive filter along rows, or the sweep of an implicit solver, waits in each step for the
latency of the step before it. The latencies of several rows overlap. Vectors would need neighbours
in memory, which lie along the dependent loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from metasched.analysis.block import FOLD, SCAN, TILED, is_leaf
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.scope import Child
from metasched.ir.stmt import For, ForKind
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, steps
from metasched.space.modules.scatter import scattered
from metasched.space.strides import apart_in_pages, contiguous, walking
from metasched.space.tiling import changed, uniform

STRUCTURE = "interleave"
"""The value of the note TILED on a block."""


@dataclass(frozen=True, slots=True)
class Interleave:
    """Offer rows side by side for a block whose innermost loop carries a dependence.

    For a leaf block without reduce iterators, of whose own loops one before the innermost is
    independent, and no independent loop is contiguous in memory. Offers the iterations of the last
    independent loop in unrolled groups; a group of one is the unchanged program. An update whose
    elements memory names waits for another only where both name one element: beside groups, it
    gets a space of its own.

    Attributes:
        together: choices of how many iterations run side by side.
    """

    together: Sequence[int] = (1, 2, 4, 8, 16)

    @property
    def name(self) -> str:
        return "interleave"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or is_leaf(realize.block) is not None:
            return [sch]
        child = sch.state.scope(realize).child(realize.block.token)
        rows = _rows_of(sch, child)
        if rows is None:
            return [sch]
        sizes = apart_in_pages(child, {child.loops[rows].var: 1}, self.together)
        found = changed(sch, partial(self._apply, block, rows, sizes))
        return [*found, sch] if scattered(realize.block) else found or [sch]

    def _apply(self, block: BlockRV, rows: int, sizes: list[int], sch: Schedule) -> None:
        loops = sch.get_loops(block)
        size = uniform(sch, sizes)
        _, part = sch.split(loops[rows], [None, size])
        sch.reorder(*loops[rows + 1 :], part)
        sch.unroll(part)
        sch.annotate(block, TILED, STRUCTURE)


def _rows_of(sch: Schedule, child: Child) -> int | None:
    """The position of the last independent loop around the dependent loops of a block."""
    block, own = child.block, _own_loops(child)
    if len(own) < 2 or {TILED, SCAN, FOLD} & block.annotations.keys():
        return None
    if {r.buffer for r in block.reads}.isdisjoint(w.buffer for w in block.writes):
        return None
    if any(v.is_reduce for v in block.iter_vars) or steps(own[0]) < SMALL:
        return None
    scope = sch.state.scope(child.realize)
    free = [carried_dependence(loop, scope) is None for loop in own]
    if free[-1] or not any(free):
        return None
    alone = [loop for loop, independent in zip(own, free, strict=True) if independent]
    if any(contiguous(child, loop) or walking(child, loop) for loop in alone):
        return None
    return len(child.loops) - len(own) + max(n for n, alone in enumerate(free) if alone)


def _own_loops(child: Child) -> tuple[For, ...]:
    """The plain loops that a block shares with no other statement, outermost first."""
    first = len(child.loops)
    below = [*child.loops[1:], child.realize]
    while first and child.loops[first - 1].body is below[first - 1]:
        first -= 1
    own = child.loops[first:]
    plain = all(n.kind is ForKind.SERIAL and not n.annotations for n in own)
    return own if plain else ()
