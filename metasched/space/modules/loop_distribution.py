"""loop_distribution: one loop nest for each statement, so that other modules can schedule it.

A loop around several blocks prevents tiling of these blocks, and often vectors and threads. The
module offers the program with every loop distributed and every block with several outputs cut, as
far as dependences allow, beside the program as written. A third program sums updates in private
buffers (`C += A · B` after `C = beta * C`), which gives them an init and one writer.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import is_leaf
from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.ir.stmt import Block
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, child_of, fission_innermost, steps


@dataclass(frozen=True, slots=True)
class LoopDistribution:
    """Offer the distributed program, with private sums too, beside the program as written. It acts
    on roots."""

    @property
    def name(self) -> str:
        return "loop_distribution"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is not None:
            return [sch]
        variant = sch.copy()
        func = sch.state.func_of(realize)[0] if len(sch.mod.functions) > 1 else None
        for one in list(blocks_of(realize.block.body)):
            if len(one.block.writes) > 1 and is_leaf(one.block) is None:
                try:
                    variant.decompose_outputs(variant.get_block(one.block.name, func))
                except ScheduleError as error:
                    sch.refused.append(error)
        name = sch.state.func_of(realize)[0]
        for child in list(Scope.of(variant.mod[name].root).realizes):
            handle = variant.get_block(child.block.name, func)
            try:
                while True:
                    fission_innermost(variant, handle, child_of(variant, child.token))
            except ScheduleError:
                continue
        private = variant.copy()
        for child in list(Scope.of(private.mod[name].root).realizes):
            if child.loops and steps(child.loops[0]) >= SMALL and _updates(child.block):
                try:
                    summed = private.get_block(child.block.name, func)
                    private.privatize_reduction(summed)
                    _in_loop_order(private, summed)
                except ScheduleError as error:
                    sch.refused.append(error)
        every = {id(one.mod): one for one in (private, variant, sch)}
        return list(every.values())


def _updates(block: Block) -> bool:
    return block.init is None and any(v.is_reduce for v in block.iter_vars)


def _in_loop_order(sch: Schedule, block: BlockRV) -> None:
    """Bring the iterators of a block into the order of its loops, which tiling expects."""
    realize = sch.state.block(block)
    values = list(realize.iter_values)
    loops = [loop.var for loop in sch.state.loops_above(realize)]
    if sorted(map(id, values)) == sorted(map(id, loops)) and values != loops:
        sch.reorder_block_iter_var(block, [values.index(var) for var in loops])
