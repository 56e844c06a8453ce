"""Tile a block by a structure: the steps that all multi-level tiling modules share.

A structure is a word of the letters S and R, outermost level first. Under "SSRSRS" every spatial
loop is split into four parts and every reduction loop into two, and the parts stand in this order.
A loop may have fewer parts than the structure has levels for it; each part names its level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metasched.analysis.block import TILED, needs_multi_level_tiling, update
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.expr import TRUE, Expr, as_int
from metasched.ir.stmt import Block, BlockRealize, For, ForKind
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule

Factors = Sequence["ExprRV | Expr | int | None"]
MAX_PADDING = 0.15
"""The largest share of additional work that padding may cause."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop over an untouched block, and the iterator that the loop is bound to.

    Attributes:
        loop: the handle of the loop.
        position: the position of the iterator in the block.
        extent: the extent of the loop, or its representative size; None when there is neither.
        at_run_time: whether the extent is known at run time only.
    """

    loop: LoopRV
    position: int
    extent: int | None
    spatial: bool
    at_run_time: bool = False


def axes(sch: Schedule, block: BlockRV) -> list[Axis]:
    """The loops over an untouched block (see `untouched`), outermost first."""
    realize = sch.state.block(block)
    nodes = sch.state.loops_above(realize)
    handles = sch.get_loops(block)
    position = {value: i for i, value in enumerate(realize.iter_values)}
    found = []
    for node, loop in zip(nodes, handles, strict=True):
        at = position[node.var]
        spatial = realize.block.iter_vars[at].is_spatial
        size = sch.state.size(node.extent)
        found.append(Axis(loop, at, size, spatial, as_int(node.extent) is None))
    return found


def tileable(sch: Schedule, block: BlockRV, reuse: bool = True) -> bool:
    """Whether a block has data reuse, if asked for, and loops that are still as they were
    written."""
    realize = sch.state.block(block)
    if sch.state.parent(realize) is None or TILED in realize.block.annotations:
        return False
    scope = sch.state.scope(realize)
    token = realize.block.token
    if reuse and needs_multi_level_tiling(scope, token) is not None:
        return False
    return untouched(scope.child(token))


def skip_outside(sch: Schedule, finish: BlockRV, loops: Sequence[LoopRV]) -> None:
    """Leave out tiles outside of a triangle, where a block stores results that a triangle reads.

    Args:
        sch: the schedule.
        finish: the block that stores the results of a tile.
        loops: the loops over tiles.
    """
    realize = sch.state.block(finish)
    scope = sch.state.scope(realize)
    buffer = realize.block.writes[0].buffer
    ends = (n.extent for reader in scope.readers(buffer) for n in reader.loops)
    if buffer in scope.block.alloc_buffers and any(as_int(end) is None for end in ends):
        for loop in loops:
            try:
                sch.skip_unused(loop)
            except ScheduleError as error:
                sch.refused.append(error)


def uniform(sch: Schedule, numbers: Sequence[int]) -> ExprRV:
    """Sample one of the numbers, each with the same probability."""
    return sch.sample_categorical(list(numbers), [1.0 / len(numbers)] * len(numbers))


def choice(sch: Schedule, numbers: Sequence[int]) -> int | ExprRV:
    """One of the numbers, sampled if there are several."""
    return numbers[0] if len(numbers) == 1 else uniform(sch, numbers)


def loop_handle(sch: Schedule, node: For) -> LoopRV:
    """The handle of a loop, by a block below it."""
    child = sch.state.scope(node).under(node)[0]
    func = sch.state.func_of(child.realize)[0] if len(sch.mod.functions) > 1 else None
    return sch.get_loops(sch.get_block(child.block.name, func))[child.loops.index(node)]


def within_parallel(sch: Schedule, block: BlockRV) -> bool:
    """Whether a loop above a block, or above the blocks around it, runs in parallel."""
    above = sch.state.ancestors(sch.state.block(block))
    return any(isinstance(node, For) and node.kind is ForKind.PARALLEL for node in above)


def changed(
    sch: Schedule, *ways: Callable[[Schedule], object], nothing: Sequence[str] = ()
) -> list[Schedule]:
    """Apply each of `ways` to its own copy of the schedule.

    Refused ways are noted and left out. A way that returns False offers nothing.

    Args:
        nothing: reasons which say that a step has nothing to do on the block; they are not noted.
    """
    found = []
    for way in ways:
        variant = sch.copy()
        try:
            if way(variant) is False:
                continue
        except ScheduleError as error:
            if error.reason not in nothing:
                sch.refused.append(error)
            continue
        found.append(variant)
    return found


def untouched(child: Child) -> bool:
    """Whether the loops over a block are plain and private to it, and each loop is one iterator."""
    own = {loop.var for loop in child.loops}
    if len(child.realize.iter_values) != len(own) or set(child.realize.iter_values) != own:
        return False
    bodies = [*child.loops[1:], child.realize]
    return bool(child.loops) and all(
        loop.kind is ForKind.SERIAL and not loop.annotations and loop.body is body
        for loop, body in zip(child.loops, bodies, strict=True)
    )


def tile(
    sch: Schedule, structure: str, parts: Sequence[tuple[Axis, Sequence[int], Factors]]
) -> list[list[LoopRV]]:
    """Split each axis and reorder all parts by level.

    Args:
        parts: for each axis the levels (positions in `structure`) of its parts and their factors;
            a single level means that the loop stays whole, a factor None the rest of the extent.
            The first part of an axis that is known at run time only takes the rest of the extent.

    Returns the loops of each level, in the order of `parts`.
    """
    levels: list[list[LoopRV]] = [[] for _ in structure]
    for axis, places, factors in parts:
        sizes = [None, *factors[1:]] if axis.at_run_time else list(factors)
        loops = [axis.loop] if len(places) == 1 else sch.split(axis.loop, sizes)
        for place, loop in zip(places, loops, strict=True):
            levels[place].append(loop)
    sch.reorder(*[loop for level in levels for loop in level])
    return levels


def vectors(
    sch: Schedule, loops: Sequence[LoopRV], lane: int, width: ExprRV | int, unrolled: bool = True
) -> None:
    """Vectorize `width` iterations of the loop at position `lane`, and unroll all other loops if
    `unrolled`."""
    outer, inner = sch.split(loops[lane], [None, width])
    rows = [loop for position, loop in enumerate(loops) if position != lane]
    if lane != len(loops) - 1:
        sch.reorder(*rows, outer, inner)
    for loop in (*rows, outer) if unrolled else ():
        sch.unroll(loop)
    sch.vectorize(inner)


def weave(sch: Schedule, loops: Sequence[LoopRV], lane: int, few: int, width: ExprRV | int) -> None:
    """Vectorize `width` iterations of the loop at position `lane`, around the loop at position
    `few`, whose elements lie between the lanes; unroll all other loops."""
    outer, inner = sch.split(loops[lane], [None, width])
    rows = [loop for position, loop in enumerate(loops) if position not in (lane, few)]
    sch.reorder(*rows, outer, inner, loops[few])
    for loop in (*rows, outer, loops[few]):
        sch.unroll(loop)
    sch.vectorize(inner)


def epilogue(sch: Schedule, block: BlockRV) -> BlockRV | None:
    """A handle of `epilogue_of` a block."""
    found = epilogue_of(sch, block)
    return None if found is None else sch.get_block(found.block.name)


def epilogue_of(sch: Schedule, block: BlockRV) -> Child | None:
    """The only consumer of a block, if it can finish each element where the block computes it.

    The consumer has plain loops and only spatial iterators, and overwrites nothing that the block
    reads. It may update elements, if no other block writes them. It reads the results of the block
    at one place, and results of other blocks only if these come before the block. None where there
    is no such consumer.
    """
    realize = sch.state.block(block)
    scope = sch.state.scope(realize)
    consumers = scope.consumers(realize.block.token)
    if len(consumers) != 1 or realize.block.writes[0].buffer not in scope.block.alloc_buffers:
        return None
    consumer = consumers[0]
    last = untouched(consumer) and scope.producers(consumer.token)[-1].realize is realize
    spatial = all(v.is_spatial for v in consumer.block.iter_vars)
    read = {r.buffer for r in realize.block.reads}
    if any(w.buffer in read for w in consumer.block.writes):
        return None
    if not (last and spatial and _pointwise(consumer.block, realize)):
        return None
    if _in_place(consumer.block) and update(scope, consumer.token) is not None:
        return None
    return consumer if _is_box(consumer) and consumer.realize.predicate is TRUE else None


def _is_box(child: Child) -> bool:
    """Whether the ranges of the loops over a block do not depend on each other."""
    own = {loop.var for loop in child.loops}
    return all(own.isdisjoint(free_vars(e)) for n in child.loops for e in (n.min, n.extent))


def _in_place(block: Block) -> bool:
    written = {r.buffer for r in block.writes}
    return any(r.buffer in written for r in block.reads)


def _pointwise(consumer: Block, producer: BlockRealize) -> bool:
    buffer = producer.block.writes[0].buffer
    regions = [r for r in consumer.reads if r.buffer is buffer]
    iterators = {v.var for v in consumer.iter_vars}
    return len(regions) == 1 and all(
        as_int(r.extent) == 1 and (r.min in iterators or as_int(r.min) is not None)
        for r in regions[0].region
    )


def product(values: Sequence[ExprRV | Expr | int]) -> Expr | int:
    """The product of sampled values, 1 of none."""
    total: Expr | int = 1
    for value in values:
        total = value if isinstance(total, int) and total == 1 else total * value
    return total


def balance(sch: Schedule, cores: int, whole: int, outer: Sequence[ExprRV]) -> None:
    """Require parallel loops that keep every core busy for at least eight ninths of the time.

    Args:
        sch: the schedule.
        cores: the number of cores.
        whole: the number of iterations of the parallel loops that are not sampled.
        outer: the sampled extents of the other parallel loops.
    """
    count = product([whole, *outer])
    if cores > 1 and whole % cores and isinstance(count, Expr):
        sch.require((count + (cores - 1)) // cores * (cores * 8) <= count * 9)


def padding_step(extent: int, lanes: int) -> int:
    """The largest multiple of the lanes to which columns can be padded at little cost, or 0."""
    steps = [v * lanes for v in (4, 2, 1) if padding(extent, v * lanes) <= MAX_PADDING]
    return steps[0] if steps else 0


def padding(extent: int, multiple: int) -> float:
    """The share of additional work if an extent is padded to a multiple of a number."""
    return -(-extent // multiple) * multiple / extent - 1
