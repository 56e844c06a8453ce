"""Modules that place a producer: at a sampled loop, at the tiles of its consumer, or row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.block import TILED, is_output
from metasched.analysis.cover import shared_loops
from metasched.analysis.scope import Child, Scope
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import ForKind
from metasched.ir.visit import free_vars
from metasched.lower.passes.prefetch import AHEAD
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.matrix_form import cuts
from metasched.space.modules.parallel_vectorize_unroll import VECTORIZE
from metasched.space.tiling import axes, changed, untouched


@dataclass(frozen=True, slots=True)
class RandomComputeLocation:
    """Move an untiled producer, such as a padding stage, to a sampled loop of its consumer."""

    @property
    def name(self) -> str:
        return "random_compute_location"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        stage = _stage(sch, block)
        if stage is None or not stage[1]:
            return [sch]

        def move(moved: Schedule) -> None:
            place = moved.sample_compute_location(block)
            moved.compute_at(block, place, preserve_unit_loops=True)

        return changed(sch, move) or [sch]


@dataclass(frozen=True, slots=True)
class StageAtTile:
    """Offer to compute an untiled producer (a padding stage) for each tile of its consumer.

    Offers two variants: the stage computed for each outer tile, and the stage in a separate nest.
    If the outer tiles pack or prefetch an operand, only the second is offered, because such tiles
    would recompute the same rows; but the operand itself may be computed in each tile that packs
    it. In a depthwise convolution or a pooling each lane of the consumer reads only one column of
    the stage; then the stage is computed for each register block. The variants are design spaces,
    not a sampled location, so the steps of a space do not depend on decisions.

    Attributes:
        vector_bits: the bits of a vector register.
    """

    vector_bits: int = 256

    @property
    def name(self) -> str:
        return "stage_at_tile"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        stage = _stage(sch, block)
        if stage is None or len(stage[1]) != 1:
            return [sch]
        scope, (consumer,) = stage
        if _is_panel(scope, consumer):
            return [sch, *changed(sch, lambda moved: _at_first_loop(moved, block, consumer))]
        if TILED not in consumer.block.annotations or _packs(scope, consumer):
            return [sch]
        window = _window(scope, consumer, sch.get(block).writes[0].buffer)

        def move(moved: Schedule) -> None:
            place = moved.get_loops(moved.get_block(consumer.block.name))[max(window, 1) - 1]
            moved.compute_at(block, place, preserve_unit_loops=True)
            if window:
                for loop in moved.get_loops(block)[window:-1]:
                    moved.unroll(loop)
                lanes = self.vector_bits // moved.get(block).writes[0].buffer.dtype.bits
                moved.annotate(block, VECTORIZE, max(1, lanes))

        return [sch, *changed(sch, move)]


@dataclass(frozen=True, slots=True)
class FuseRows:
    """Compute all producers of an output row by row, so that a row stays in the cache.

    For an output without reduction whose producers reduce over its rows (a softmax, a norm). The
    leading loops that the reductions share with the output become the rows, and every producer is
    computed there. Channels that are normed in groups are first split into groups. Offers this
    variant and the unchanged program.
    """

    @property
    def name(self) -> str:
        return "fuse_rows"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        around = sch.state.scope_block(realize)
        if around is None or not is_output(around, realize.block):
            return [sch]
        scope = sch.state.scope(realize)
        child = scope.child(realize.block.token)
        if not untouched(child) or not all(v.is_spatial for v in realize.block.iter_vars):
            return [sch]
        producers = all_producers(scope, child)
        fused = sch.copy()
        for axis in axes(fused, block):
            cut = cuts(realize.block).get(realize.block.iter_vars[axis.position].var)
            if cut is not None and not cut.phases:
                fused.split(axis.loop, [None, cut.by])
        rows = _rows(fused.state.scope(fused.state.block(block)).child(child.token), producers)
        if rows is None:
            return [sch]
        place = fused.get_loops(block)[rows - 1]
        refused: list[ScheduleError] = []
        for producer in producers:
            try:
                stage = fused.get_block(producer.block.name)
                fused.compute_at(stage, place, preserve_unit_loops=True)
            except ScheduleError as error:
                refused.append(error.with_traceback(None))  # which would hold this frame
        if len(refused) < len(producers):
            return [fused, sch]
        sch.refused.extend(refused[:1])
        return [sch]


def _stage(sch: Schedule, block: BlockRV) -> tuple[Scope, Sequence[Child]] | None:
    """The scope of an untiled producer and its consumers; None for other blocks."""
    realize = sch.state.block(block)
    around = sch.state.scope_block(realize)
    if around is None or TILED in realize.block.annotations or is_output(around, realize.block):
        return None
    scope = sch.state.scope(realize)
    child = scope.child(realize.block.token)
    return (scope, scope.consumers(child.token)) if untouched(child) else None


def _window(scope: Scope, child: Child, buffer: Buffer) -> int:
    """How many loops a register-tiled block shares with the block that stores its results.

    0 if a lane reads more than one column of `buffer`.
    """
    lanes = {loop.var for loop in child.loops if loop.kind is ForKind.VECTORIZED}
    bound = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    columns = {v.var for v, value in bound if lanes & free_vars(value)}
    own = [r.region[-1].min in columns for r in child.block.reads if r.buffer is buffer]
    if not own or not all(own):
        return 0
    return min((shared_loops(child, other) for other in scope.consumers(child.token)), default=0)


def _is_panel(scope: Scope, child: Child) -> bool:
    """Whether a block packs an operand within the outermost loop of a tiled block."""
    readers = scope.consumers(child.token)
    return (
        len(readers) == 1
        and TILED in readers[0].block.annotations
        and TILED not in child.block.annotations
        and shared_loops(child, readers[0]) > 0
    )


def _at_first_loop(sch: Schedule, block: BlockRV, consumer: Child) -> None:
    """Compute a stage in the outermost loop of its consumer."""
    place = sch.get_loops(sch.get_block(consumer.block.name))[0]
    sch.compute_at(block, place, preserve_unit_loops=True)


def _packs(scope: Scope, child: Child) -> bool:
    """Whether an operand of a block is packed or prefetched in its outermost loop."""
    packed = (p.loops[:1] == child.loops[:1] for p in scope.producers(child.token))
    return AHEAD in child.block.annotations or any(packed)


def all_producers(scope: Scope, child: Child) -> list[Child]:
    """All producers of a block, direct and indirect, last in the program first."""
    found = [child]
    for one in found:  # `found` grows during the loop
        found += [p for p in scope.producers(one.token) if all(p is not c for c in found)]
    position = {c.token: n for n, c in enumerate(scope.realizes)}
    return sorted(found[1:], key=lambda c: -position[c.token])


def _rows(child: Child, producers: list[Child]) -> int | None:
    """How many leading loops of the output are rows; None where there is nothing to fuse."""
    reductions = [p for p in producers if any(v.is_reduce for v in p.block.iter_vars)]
    if not reductions or any(TILED in p.block.annotations for p in producers):
        return None
    shared = min(_long_spatial(p) for p in reductions)
    rows = 0
    for n, loop in enumerate(child.loops[:-1], 1):
        shared -= as_int(loop.extent) != 1
        if shared < 0:
            break
        rows = n
    return rows or None


def _long_spatial(child: Child) -> int:
    """The spatial iterators of the rows of a reduction: the spatial iterators of its output with an
    extent above 1."""
    return sum(v.is_spatial and as_int(v.dom.extent) != 1 for v in child.block.iter_vars)
