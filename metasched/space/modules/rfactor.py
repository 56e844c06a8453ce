"""add_rfactor, vector_reduction: cut reductions into independent partial results.

add_rfactor makes work for all cores where the results are few. vector_reduction keeps one partial
result in each lane of several vector registers, so that a row is reduced at the speed of vector
operations. It notes the number of registers on the block, and the lowering writes the loops, for
any extent.

A matrix that few rows use (a product with a vector) is read from memory unpacked: along its rows by
vector_reduction, and across several rows at a time by depth_blocking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import Access, accesses
from metasched.analysis.block import FOLD, TILED, needs_multi_level_tiling, needs_rfactor, reduction
from metasched.analysis.reducer import choice_of, match_reducer, updates_of
from metasched.ir.expr import Expr, as_expr, as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import FEW, iter_stride, loads_run_along, rows_of
from metasched.space.tiling import Axis, axes, changed, epilogue, product, uniform, untouched

PARTIAL = "meta_schedule.partial_reduction"
"""Annotation of a block that adds up the partial results of a factored reduction."""


@dataclass(frozen=True, slots=True)
class AddRFactor:
    """Offer to factor the outermost loop of a reduction that lacks parallel iterations.

    Attributes:
        cores: the number of cores of the machine.
        jobs_per_core: how many parallel iterations for each core are enough.
    """

    cores: int = 1
    jobs_per_core: int = 16

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
        tiles = sch.sample_perfect_tile(loop, 2, -1)
        sch.require(tiles[0] >= self.cores)
        sch.require(tiles[0] <= self.cores * self.jobs_per_core)
        parts = sch.split(loop, list(tiles))
        sch.rfactor(parts[0], len(sch.get(block).writes[0].region))
        sch.annotate(block, PARTIAL, 1)
        sch.annotate(block, FOLD, 1)


@dataclass(frozen=True, slots=True)
class VectorReduction:
    """Reduce along contiguous memory in vector lanes, several vectors at a time.

    If few rows use a matrix, all results that share their operands have partial results in
    registers at the same time.

    Attributes:
        vector_bits, registers: the bits and the number of the machine's vector registers.
        vectors: choices of how many registers of partial results are kept.
    """

    vector_bits: int = 256
    registers: int = 16
    vectors: Sequence[int] = (1, 2, 4, 8)

    @property
    def name(self) -> str:
        return "vector_reduction"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or {TILED, PARTIAL} & node.annotations.keys():
            return [sch]
        if all(v.is_spatial for v in node.iter_vars):
            return [sch]
        scope = sch.state.scope(realize)
        if reduction(scope, node.token) is not None or not untouched(scope.child(node.token)):
            return [sch]
        if len(node.writes) > 1 and match_reducer(node.init, node.body) is None:
            return [sch]
        reused = needs_multi_level_tiling(scope, node.token) is None
        if reused and min(rows_of(sch, node, a) for a in _loads(node)) > FEW:
            return [sch]
        return changed(sch, lambda variant: self._apply(variant, block, node, reused)) or [sch]

    def _apply(self, sch: Schedule, block: BlockRV, node: Block, reused: bool) -> bool:
        """Fold vectors of results; False if less than a vector is reduced along memory."""
        every = axes(sch, block)
        reduced = [a for a in every if not a.spatial]
        along = [a for a in reduced if loads_run_along(node, node.iter_vars[a.position].var)]
        run = _run(node, reduced) if along[-1:] == reduced[-1:] else along[-1:]
        length = math.prod(a.extent or 0 for a in run) if run else 0
        lanes = max(1, self.vector_bits // _value_bits(node))
        widths = [lanes * v for v in self.vectors if lanes * v <= length]
        if lanes < 2 or not widths:
            return False
        order = [a.loop for a in reduced if a not in run]
        order.append(run[0].loop if len(run) == 1 else sch.fuse(*[a.loop for a in run]))
        width: ExprRV | int = widths[0]
        if len(widths) > 1:
            width = uniform(sch, widths)
        finish = epilogue(sch, block) if reused else None
        if reused:
            order = self._results(sch, node, every, order, as_expr(width) // lanes)
            sch.annotate(block, TILED, "SRS")
        if reused or run[-1] is not reduced[-1]:
            sch.reorder(*order)
        if finish is not None:
            sch.reverse_compute_at(finish, order[0], preserve_unit_loops=True)
        sch.annotate(block, FOLD, width)
        sch.annotate(block, PARTIAL, 1)
        return True

    def _results(
        self,
        sch: Schedule,
        node: Block,
        every: Sequence[Axis],
        reduced: Sequence[LoopRV],
        vectors: Expr,
    ) -> list[LoopRV]:
        """Order all loops: the results of a block inside the reduction, so that the operand with
        the most elements is read once from end to end."""
        loads = _loads(node)
        large = min(loads, key=lambda a: rows_of(sch, node, a))
        outer: list[tuple[bool, LoopRV]] = []
        inner: list[LoopRV] = []
        taken: list[ExprRV] = []
        for axis in every:
            along = [a for a in loads if iter_stride(a, node.iter_vars[axis.position].var) != 0]
            if axis.spatial and axis.extent != 1 and len(along) < len(loads):
                tiles = sch.sample_perfect_tile(axis.loop, 2, 8)
                taken.append(tiles[1])
                above, below = sch.split(axis.loop, list(tiles))
                outer.append((large not in along, above))
                inner.append(below)
            elif axis.spatial:
                outer.append((False, axis.loop))
        sch.require(as_expr(product(taken)) * vectors * 4 <= self.registers * 3)
        for loop in inner:
            sch.unroll(loop)
        return [loop for _, loop in sorted(outer, key=lambda pair: pair[0])] + [*reduced, *inner]


def _loads(block: Block) -> list[Access]:
    """The loads of a reduction, without the loads of its result."""
    results = [r.buffer for r in block.writes]
    return [a for a in accesses(block) if not a.is_write and a.buffer not in results]


def _value_bits(block: Block) -> int:
    """The bits of a lane: of the widest result, or of the value of an argmin or argmax."""
    stores = updates_of(block.body) if len(block.writes) == 2 else None
    found = choice_of(stores) if stores else None
    if found is not None and stores is not None:
        return stores[found[0].at].buffer.dtype.bits
    return max(r.buffer.dtype.bits for r in block.writes)


def _run(block: Block, reduced: Sequence[Axis]) -> list[Axis]:
    """The last axes along which every load runs over contiguous memory, row after row."""
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
