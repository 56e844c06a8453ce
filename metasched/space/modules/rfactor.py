"""add_rfactor, vector_reduction: reductions cut into partial results that are independent.

add_rfactor gives the cores something to do where the results are few; vector_reduction keeps one
partial result in each lane of several vector registers, so that a row is reduced at the speed of
vector operations. It notes how many on the block, and the lowering writes the loops: no extent has
to divide anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import accesses
from metasched.analysis.block import FOLD, TILED, needs_multi_level_tiling, needs_rfactor, reduction
from metasched.errors import ScheduleError
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV, ExprRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride
from metasched.space.tiling import Axis, axes, changed, untouched

PARTIAL = "meta_schedule.partial_reduction"
"""Annotation of a block that adds up the partial results of a factored reduction."""


@dataclass(frozen=True, slots=True)
class AddRFactor:
    """Offer to factor the outermost loop of a reduction that lacks parallel iterations.

    Attributes:
        cores: of the machine.
        jobs_per_core: how many parallel iterations a core is worth giving.
        max_innermost_factor: of the cut of the reduction.
    """

    cores: int = 1
    jobs_per_core: int = 16
    max_innermost_factor: int = 64

    @property
    def name(self) -> str:
        return "add_rfactor"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or PARTIAL in realize.block.annotations:
            return [sch]
        scope, token = sch.state.scope(realize), realize.block.token
        if needs_rfactor(scope, token, self.cores * self.jobs_per_core) is not None:
            return [sch]
        child = scope.child(token)
        extents = [as_int(v.dom.extent) or 1 for v in realize.block.iter_vars if v.is_spatial]
        if not untouched(child) or math.prod(extents) >= 2 * self.cores:
            return [sch]
        return [*changed(sch, lambda variant: self._apply(variant, block)), sch]

    def _apply(self, sch: Schedule, block: BlockRV) -> None:
        loop = next(a.loop for a in axes(sch, block) if not a.spatial and a.extent != 1)
        tiles = sch.sample_perfect_tile(loop, 2, self.max_innermost_factor)
        sch.require(tiles[0] >= self.cores)
        parts = sch.split(loop, list(tiles))
        sch.rfactor(parts[0], len(sch.get(block).writes[0].region))
        sch.annotate(block, PARTIAL, 1)
        sch.annotate(block, FOLD, 1)


@dataclass(frozen=True, slots=True)
class VectorReduction:
    """Reduce along contiguous memory in vector lanes, several vectors at a time.

    Attributes:
        vector_bits: of a vector register.
        vectors: choices of how many registers of partial results are kept.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4, 8)

    @property
    def name(self) -> str:
        return "vector_reduction"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or {TILED, PARTIAL} & node.annotations.keys():
            return [sch]
        scope = sch.state.scope(realize)
        child = scope.child(node.token)
        if reduction(scope, node.token) is not None or not untouched(child):
            return [sch]
        if needs_multi_level_tiling(scope, node.token) is None:
            return [sch]
        variant = sch.copy()
        try:
            done = self._apply(variant, block, node)
        except ScheduleError:
            return [sch]
        return [variant] if done else [sch]

    def _apply(self, sch: Schedule, block: BlockRV, node: Block) -> bool:
        axis = self._axis(sch, block, node)
        if axis is None or axis.extent is None:
            return False
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        widths = [lanes * v for v in self.vectors if lanes * v <= axis.extent]
        if lanes < 2 or not widths:
            return False
        reduced = [a for a in axes(sch, block) if not a.spatial]
        if axis.position != reduced[-1].position:
            others = [a.loop for a in reduced if a.position != axis.position]
            sch.reorder(*others, axis.loop)
        else:
            run = _run(node, reduced)
            if len(run) > 1:
                sch.fuse(*[a.loop for a in run])
        width: ExprRV | int = widths[0]
        if len(widths) > 1:
            width = sch.sample_categorical(widths, [1.0 / len(widths)] * len(widths))
        sch.annotate(block, FOLD, width)
        sch.annotate(block, PARTIAL, 1)
        return True

    def _axis(self, sch: Schedule, block: BlockRV, node: Block) -> Axis | None:
        """The reduction loop along which memory is read element by element."""
        for axis in reversed(axes(sch, block)):
            if not axis.spatial and _reads_along(node, node.iter_vars[axis.position].var):
                return axis
        return None


def _run(block: Block, reduced: Sequence[Axis]) -> list[Axis]:
    """The last axes that are one run of memory in every load: rows that follow each other."""
    run, length = [reduced[-1]], reduced[-1].extent or 1
    loads = [a for a in accesses(block) if not a.is_write and not a.in_init]
    last = block.iter_vars[run[0].position].var
    for axis in reversed(reduced[:-1]):
        var = block.iter_vars[axis.position].var
        steps = ((iter_stride(a, last), iter_stride(a, var)) for a in loads)
        if axis.extent is None or any(m is None or n != m * length for m, n in steps):
            break
        run.insert(0, axis)
        length *= axis.extent
    return run


def _reads_along(block: Block, var: Var) -> bool:
    moves = [iter_stride(a, var) for a in accesses(block) if not a.is_write and not a.in_init]
    return 1 in moves and all(m in (0, 1) for m in moves)
