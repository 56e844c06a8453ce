"""overlapped_tiling: chains of stencil stages in tiles that recompute their borders.

    for io, jo in tiles:                 # of the output
        A, on its tile and a border      # the borders of neighbouring tiles overlap
        output, on its tile

Halide schedules a blur of two stages in this way (Ragan-Kelley et al. 2013, `tile` and
`compute_at`). The results of a stage stay in the cache until the next stage reads them. Each core
has its own tiles; a border is computed once for each tile that reads it. In a tile of few rows and
of one vector, whose loops are unrolled, the stages stay in registers. In a strip of whole rows each
stage keeps its last rows in a ring, so that a strip computes each row once (Halide's sliding
windows). Outputs of one shape that read a common stage share the loops over tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from metasched.analysis.access import accesses
from metasched.analysis.block import TILED, is_output, is_spatial_only
from metasched.analysis.scope import Child, Scope, undetermined_iters
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, steps
from metasched.space.modules.compute_location import all_producers
from metasched.space.strides import vector_iter
from metasched.space.tiling import Axis, axes, changed, choice, untouched, within_parallel

STRUCTURE = "overlapped"
"""The value of the note TILED on the blocks of a tile."""
COLUMNS = (4, 8, 16, 32, 64, 128)
"""Choices of the vectors in a row of a tile; a whole row is one more."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Choices of the rows of a tile."""
PLANES = (1, 2, 4, 8, 16)
"""Choices of the planes of a tile, for outputs of three dimensions or more."""
STRIPS = (8, 16, 32, 64, 128, 256)
"""Choices of the rows of a strip."""
REGISTER_ROWS = (2, 4, 8)
"""Choices of the rows of a tile in registers."""
REGISTER_VECTORS = (1, 2)
"""Choices of the vectors in a row of a tile in registers."""
WINDOW = 64
"""The most elements that a stage reduces, as in a sum over 3 x 3 neighbours."""


@dataclass(frozen=True, slots=True)
class OverlappedTiling:
    """Offer an output and the stages before it in tiles (see the file's docstring).

    For outputs without reduction, whose direct and indirect producers reduce nothing or a window of
    few elements. At least one producer is read several times: by neighbouring elements, or along a
    dimension that the producer lacks. Such stages and windows are computed for each tile; the other
    stages are inlined. Offers tiles in the cache, and the unchanged program. If neighbouring rows
    read a stage, strips of rows are offered, too; if each lane reads its own column of every stage
    and no stage reduces, tiles in registers.

    Attributes:
        vector_bits: of a vector register.
    """

    vector_bits: int = 256

    @property
    def name(self) -> str:
        return "overlapped_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        around = sch.state.scope_block(realize)
        if around is None or not is_output(around, realize.block) or within_parallel(sch, block):
            return [sch]
        scope = sch.state.scope(realize)
        child = scope.child(realize.block.token)
        if not _plain(child) or steps(child.loops[0]) < SMALL:
            return [sch]
        at = _column(realize.block)
        stages = [p for p in all_producers(scope, child) if _is_stage(p)]
        if at is None or not any(_is_reused(scope, p) for p in stages):
            return [sch]
        lanes = self.vector_bits // realize.block.writes[0].buffer.dtype.bits
        ways: list[Callable[[Schedule], object]] = []
        more = _others(sch, around, child, stages)
        for outputs in [[block, *more], [block]] if more else [[block]]:
            bits = max(sch.get(output).writes[0].buffer.dtype.bits for output in outputs)
            ways.append(partial(_in_cache, outputs, at, max(1, self.vector_bits // bits)))
            if len(child.loops) > 1:
                ways.append(partial(_in_strips, outputs, at))
        own = all(_own_columns(scope, p) for p in stages if _is_reused(scope, p))
        if own and all(map(_plain, stages)):
            ways.append(partial(_in_registers, block, at, max(1, lanes)))
        return [*changed(sch, *ways), sch]


def _column(block: Block) -> int | None:
    """The position of the iterator along memory."""
    column = vector_iter(block)
    return None if column is None else block.iter_vars.index(column)


def _others(sch: Schedule, around: Block, child: Child, stages: Sequence[Child]) -> list[BlockRV]:
    """The outputs before an output, of its shape and without reduction, that read its stages."""
    scope, shared = sch.state.scope(child.realize), {stage.token for stage in stages}
    shape, column = child.block.writes[0].buffer.shape, _column(child.block)
    found: list[BlockRV] = []
    for other in scope.realizes:
        if other.token is child.token:
            break
        if not is_output(around, other.block) or not _plain(other):
            continue
        alike = (other.block.writes[0].buffer.shape, _column(other.block)) == (shape, column)
        if alike and not shared.isdisjoint(p.token for p in all_producers(scope, other)):
            found.append(sch.get_block(other.block.name))
    return found


def _in_cache(outputs: list[BlockRV], column: int, lanes: int, sch: Schedule) -> None:
    """Tiles of sampled sizes, the stages computed for each tile."""
    for block in outputs:
        _inline(sch, block)
    order = _ordered(sch, outputs[0], column)
    whole = order[-1].extent is None or order[-1].extent < lanes
    cut = len(order) - whole
    columns: list[Sequence[int]] = [] if whole else [tuple(lanes * n for n in COLUMNS)]
    choices = [*columns, ROWS, PLANES][:cut]
    sizes = [_sampled(sch, order[cut - n], c, whole=n == 1) for n, c in enumerate(choices, 1)]
    tiles = []
    for block in outputs:
        loops = [axis.loop for axis in _ordered(sch, block, column)]
        outer, inner = loops[:cut], loops[cut:]
        for n, size in enumerate(sizes, 1):
            outer[-n], part = sch.split(outer[-n], [None, size])
            inner = [part, *inner]
        sch.reorder(*outer, *inner)
        tiles.append(outer[-1])
    tile = sch.merge(*tiles) if len(tiles) > 1 else tiles[0]
    for block in outputs:
        _stages_at(sch, block, tile)


def _in_strips(outputs: list[BlockRV], column: int, sch: Schedule) -> bool:
    """Strips of rows on the cores, with rings for the stages that several rows read.

    False, and a schedule that is not to be used, if no stage can keep its last rows.
    """
    for block in outputs:
        _inline(sch, block)
    size = _sampled(sch, _ordered(sch, outputs[0], column)[-2], STRIPS)
    tops, inside = [], []
    for block in outputs:
        *around, rows, columns = _ordered(sch, block, column)
        strip, row = sch.split(rows.loop, [None, size])
        tops = [*(axis.loop for axis in around), strip]
        sch.reorder(*tops, row, columns.loop)
        inside.append(row)
    row = inside[0]
    if len(inside) > 1:
        row = sch.merge(*inside)
        tops = sch.get_loops(outputs[0])[: len(tops)]
    sch.parallel(sch.fuse(*tops) if len(tops) > 1 else tops[0])
    moved = [stage for block in outputs for stage in _stages_at(sch, block, row)]
    rings: list[BlockRV | str] = [stage for stage in moved if _slides(sch.copy(), stage)]
    if rings:
        sch.rolling_buffer(rings, 0)
    return bool(rings)


def _slides(trial: Schedule, stage: BlockRV) -> bool:
    """Whether a stage can keep its last rows in a ring."""
    try:
        trial.rolling_buffer(stage, 0)
    except ScheduleError:
        return False
    return True


def _in_registers(block: BlockRV, column: int, lanes: int, sch: Schedule) -> None:
    """Tiles of few rows and few vectors without loops, the stages computed for each tile."""
    _inline(sch, block)
    order = _ordered(sch, block, column)
    outer = [axis.loop for axis in order]
    width = _sampled(sch, order[-1], [lanes * n for n in REGISTER_VECTORS])
    outer[-1], vector = sch.split(outer[-1], [None, width])
    inner = []
    if len(order) > 1:
        rows = _sampled(sch, order[-2], REGISTER_ROWS)
        outer[-2], row = sch.split(outer[-2], [None, rows])
        inner = [row]
    sch.reorder(*outer, *inner, vector)
    for stage in [*_stages_at(sch, block, outer[-1]), block]:
        *unrolled, lane = sch.get_loops(stage)[len(outer) :]
        sch.vectorize(lane)
        for loop in unrolled:
            sch.unroll(loop)
    spread = outer[:-1] or outer
    sch.parallel(sch.fuse(*spread) if len(spread) > 1 else spread[0])


def _inline(sch: Schedule, block: BlockRV) -> None:
    """Inline the stages that are not read again."""
    realize = sch.state.block(block)
    scope = sch.state.scope(realize)
    for stage in all_producers(scope, scope.child(realize.block.token)):
        now = sch.state.scope(sch.state.block(block))
        if _is_stage(stage) and not _is_reused(now, now.child(stage.token)):
            try:
                sch.compute_inline(sch.get_block(stage.block.name))
            except ScheduleError:
                continue  # the stage is computed for each tile


def _ordered(sch: Schedule, block: BlockRV, column: int) -> list[Axis]:
    """The axes of an output; the axis along which it is contiguous in memory comes last."""
    return sorted(axes(sch, block), key=lambda axis: axis.position == column)


def _sampled(sch: Schedule, axis: Axis, sizes: Sequence[int], whole: bool = False) -> ExprRV | int:
    """Sample the size of a tile along an axis: one of `sizes` below its extent, or the extent."""
    fit = [n for n in sizes if axis.extent is None or n < axis.extent]
    if axis.extent is not None and (whole or not fit):
        fit.append(axis.extent)
    return choice(sch, fit)


def _stages_at(sch: Schedule, block: BlockRV, place: LoopRV) -> list[BlockRV]:
    """Compute the stages before an output at a loop, the last stage first; returns these stages.

    Stages that other blocks read, too, stay outside. Raises ScheduleError if no stage can be moved.
    """
    realize = sch.state.block(block)
    scope = sch.state.scope(realize)
    moved: list[BlockRV] = []
    error: ScheduleError | None = None
    for stage in all_producers(scope, scope.child(realize.block.token)):
        if _is_stage(stage):
            handle = sch.get_block(stage.block.name)
            try:
                sch.compute_at(handle, place, preserve_unit_loops=True)
            except ScheduleError as refused:
                error = refused.with_traceback(None)
                continue
            moved.append(handle)
    if error is not None and not moved:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame, and the frame must not hold it
    for handle in (*moved, block):
        sch.annotate(handle, TILED, STRUCTURE)
    return moved


def _is_stage(child: Child) -> bool:
    """Whether a block is untouched, has spatial iterators and one output, and reduces at most a
    window."""
    block = child.block
    window = prod(as_int(v.dom.extent) or WINDOW + 1 for v in block.iter_vars if not v.is_spatial)
    small = window <= WINDOW and any(v.is_spatial for v in block.iter_vars)
    return untouched(child) and small and len(block.writes) == 1 and not block.annotations


def _plain(child: Child) -> bool:
    """Whether a block is a stage without reduction."""
    return _is_stage(child) and is_spatial_only(child.block) is None


def _is_reused(scope: Scope, stage: Child) -> bool:
    """Whether several instances of a consumer read one element of a stage, or several consumers an
    element that combines loads."""
    buffer, consumers = stage.block.writes[0].buffer, scope.consumers(stage.token)
    combines = sum(not a.is_write for a in accesses(stage.block)) > 1
    return (len(consumers) > 1 and combines) or any(
        _reads_again(c.block, buffer) for c in consumers
    )


def _reads_again(consumer: Block, buffer: Buffer) -> bool:
    regions = [r for r in consumer.reads if r.buffer is buffer]
    if len(regions) != 1 or not all(r.is_point for r in regions[0].region):
        return True
    return bool(undetermined_iters(consumer, regions[0]))


def _own_columns(scope: Scope, stage: Child) -> bool:
    """Whether along memory each instance of a consumer reads the stage at its own place."""
    buffer = stage.block.writes[0].buffer
    for consumer in scope.consumers(stage.token):
        lane = vector_iter(consumer.block)
        own = [r.region[-1] for r in consumer.block.reads if r.buffer is buffer and r.region]
        if lane is None or not own or any(r.min is not lane.var or not r.is_point for r in own):
            return False
    return True
