"""Brings an operator into the form of an intrinsic, by a mapping of `auto_tensorize`.

Each operand is copied tile by tile into the order in which the instruction reads it. Extents that
are not a multiple of their tile are padded. Padded spatial iterators compute unused results
(`overcompute`); padded reductions add zeros (`pad_einsum`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.analysis.access import accesses
from metasched.arith.indexmap import IndexMap
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.stmt import Block, IterKind
from metasched.ir.visit import free_vars, substitute
from metasched.schedule.auto_tensorize import TensorizeMapping, in_digits
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule

PADDED_RESULTS = 1 << 15
"""The most bytes of padded results that are kept on the stack."""


@dataclass(frozen=True, slots=True)
class TensorizedBlock:
    """The blocks of an operator in the form of an intrinsic.

    Attributes:
        block: the block that one instruction computes, for `tensorize`.
        panels: for each operand, the block that copies the operand into tiles.
        finish: the block that stores the results: the given consumer, or a copy.
        dims: for each buffer of the description, the outputs of the mapping that are its
            dimensions.
    """

    block: BlockRV
    panels: Mapping[Buffer, BlockRV]
    finish: BlockRV
    dims: Mapping[Buffer, Sequence[int]]


def transform_by_mapping(
    sch: Schedule, block: BlockRV, way: TensorizeMapping, finish: BlockRV | None = None
) -> TensorizedBlock:
    """Bring a block into the form of an intrinsic; `tensorize` of the returned block is left to do.

    Args:
        sch: the schedule.
        block: a reduction whose loops are as they were written.
        way: one of `tensorize_mappings`.
        finish: the consumer that is to store the results. It must read each result once, at
            iterators of its own. None: a new block copies the results to the block's old buffer.

    Raises:
        ScheduleError: where a step is refused.
    """
    if way.cuts:
        way = _in_parts(sch, block, way, finish)
    units = _units(sch.get(block), way)
    if finish is None:
        finish = sch.reindex(block, ("write", 0), keep_units=bool(units))
    sch.set_scope(block, 0, _scope(sch.get(block).writes[0].buffer, way))
    panels = {
        theirs: sch.reindex(block, _place(sch.get(block), load), keep_units=bool(units))
        for theirs, load in way.operands.items()
        if theirs is not way.result
    }
    if units:
        iters = sch.get(block).iter_vars
        panels = _pad(sch, block, panels, [units.get(n, 1) for n in range(len(iters))])
    dims = _fuse(sch, block, way, panels, finish)
    long = [_alone(way, n) not in units for n in range(len(way.kinds))]
    multiples = [pad if long[n] else 1 for n, pad in enumerate(way.paddings)]
    panels = _pad(sch, block, panels, multiples)
    for theirs, panel in panels.items():
        sch.transform_layout(panel, ("write", 0), _tiles_apart(way, theirs, dims[theirs]))
    if any(len(group) > 1 for group in way.groups):
        sch.transform_block_layout(block, _cut(way))
    loops = list(sch.get_loops(block))
    sizes = {var: size for group in way.groups for var, size in group.items()}
    inner = []
    for n, var in enumerate(way.iterators, way.outside):
        loops[n], loop = sch.split(loops[n], [None, sizes[var]])
        inner.append(loop)
    sch.reorder(*loops, *inner)
    done = TensorizedBlock(sch.blockize(inner[0]), panels, finish, dims)
    if _whole_tiles(way, dims):
        _store_in_tiles(sch, done, way)
    return done


def results_in_tiles(sch: Schedule, done: TensorizedBlock, way: TensorizeMapping) -> None:
    """Lay the results out in tiles, so that each instruction writes one contiguous piece.

    Does nothing where no result is padded: `transform_by_mapping` has chosen this layout then. Call
    it after `reverse_compute_at` of the block that stores the results, because the regions of
    padded tiles are not proved to be covered. An implementation with strides does not need the
    step, if the description has the results' dimensions in the order of its loops.

    Args:
        sch: the schedule.
        done: what `transform_by_mapping` returned.
        way: the mapping that was given to `transform_by_mapping`.
    """
    if _whole_tiles(way, done.dims):
        return
    sch.transform_layout(
        done.block, ("write", 0), _tiles_apart(way, way.result, done.dims[way.result])
    )


def _place(node: Block, load: BufferLoad) -> tuple[str | int, ...]:
    """Name a load of a block in the form that `reindex` takes: ("read", buffer, occurrence)."""
    index = [r.buffer for r in node.reads].index(load.buffer)
    reads = [a for a in accesses(node) if not a.is_write and a.buffer is load.buffer]
    if len(reads) == 1:
        return ("read", index)
    return ("read", index, [a.indices for a in reads].index(load.indices))


def _fuse(
    sch: Schedule,
    block: BlockRV,
    way: TensorizeMapping,
    panels: Mapping[Buffer, BlockRV],
    finish: BlockRV,
) -> dict[Buffer, list[int]]:
    """Give the block, the copies and their buffers the iterators of the mapping.

    Returns `TensorizedBlock.dims`.
    """
    own = dict(zip((v.var for v in sch.get(block).iter_vars), way.index_map.inputs, strict=True))
    found = {}
    for theirs in way.operands:
        panel, node = panels.get(theirs, block), sch.get(block)
        buffer = sch.get(panel).writes[0].buffer
        region = next(r.region for r in (*node.writes, *node.reads) if r.buffer is buffer)
        inputs = [own[r.min] if isinstance(r.min, Var) else Var("one") for r in region]
        found[theirs] = [n for n in range(len(way.kinds)) if _has(way, n, theirs, inputs)]
        outputs = [way.index_map.outputs[n] for n in found[theirs]]
        zeros: dict[Var, Expr] = {
            v: IntImm(v.dtype, 0) for v in way.index_map.inputs if v not in inputs
        }
        layout = IndexMap(tuple(inputs), tuple(substitute(o, zeros) for o in outputs))
        if panel is block:
            _fuse_finish(sch, finish, buffer, layout)
        else:
            sch.transform_block_layout(panel, layout)
        sch.transform_layout(panel, ("write", 0), layout)
    sch.transform_block_layout(block, way.index_map)
    return found


def _has(way: TensorizeMapping, output: int, theirs: Buffer, inputs: Sequence[Var]) -> bool:
    """Whether an output of a mapping is a dimension of the operand `theirs`.

    `inputs` are the mapping's inputs that index the operand.
    """
    if output < way.outside:
        return way.index_map.outputs[output] in inputs
    group = way.groups[output - way.outside]
    return any(not free_vars(i).isdisjoint(group) for i in way.places[theirs])


def _fuse_finish(sch: Schedule, finish: BlockRV, buffer: Buffer, layout: IndexMap) -> None:
    """Let the block that stores the results run over their new layout."""
    node = sch.get(finish)
    read = next(r for r in node.reads if r.buffer is buffer)
    inputs = {v.var: Var(v.var.name) for v in node.iter_vars}
    values: dict[Var, Expr] = {}
    for var, r in zip(layout.inputs, read.region, strict=True):
        values[var] = inputs[r.min] if isinstance(r.min, Var) else IntImm(var.dtype, 0)
    others = [v for v in inputs.values() if v not in values.values()]
    outputs = (*others, *(substitute(o, values) for o in layout.outputs))
    sch.transform_block_layout(finish, IndexMap(tuple(inputs.values()), outputs))


def _in_parts(
    sch: Schedule, block: BlockRV, way: TensorizeMapping, finish: BlockRV | None
) -> TensorizeMapping:
    """Cut the iterators `way.cuts` of the block and of its consumer.

    Returns the mapping from the cut iterators.
    """
    node = sch.get(block)
    before = accesses(node)
    iters = [v.var for v in node.iter_vars]
    if finish is not None:
        region = [r.min for r in node.writes[0].region]
        dims = {n: way.cuts[i] for n, r in enumerate(region) for i in way.cuts if r is iters[i]}
        reader = sch.get(finish)
        read = next(r.region for r in reader.reads if r.buffer is node.writes[0].buffer)
        own: list[Expr] = [v.var for v in reader.iter_vars]
        theirs = {own.index(r.min): dims[n] for n, r in enumerate(read) if n in dims}
        sch.transform_layout(block, ("write", 0), in_digits(len(region), dims))
        sch.transform_block_layout(finish, in_digits(len(own), theirs))
    sch.transform_block_layout(block, in_digits(len(iters), way.cuts))
    after = accesses(sch.get(block))
    moved = {
        (a.buffer, a.indices): BufferLoad(b.buffer, b.indices)
        for a, b in zip(before, after, strict=True)
    }
    operands = {b: moved[load.buffer, load.indices] for b, load in way.operands.items()}
    return replace(way, cuts={}, operands=operands)


def _units(node: Block, way: TensorizeMapping) -> dict[int, int]:
    """The positions of iterators of extent one that are padded, with the multiples.

    Such an iterator has to be padded before an index map replaces it by the constant zero.
    """
    alone = {_alone(way, n): pad for n, pad in enumerate(way.paddings) if pad > 1}
    iters = node.iter_vars
    return {n: p for n, p in alone.items() if n is not None and as_int(iters[n].dom.extent) == 1}


def _alone(way: TensorizeMapping, output: int) -> int | None:
    """The position of the iterator that an output of a mapping equals; None for a fused output."""
    inputs = way.index_map.inputs
    value = way.index_map.outputs[output]
    return inputs.index(value) if isinstance(value, Var) else None


def _pad(
    sch: Schedule, block: BlockRV, panels: Mapping[Buffer, BlockRV], multiples: Sequence[int]
) -> dict[Buffer, BlockRV]:
    """Pad iterators to multiples; returns the copying blocks, of which padding replaces some."""
    iters = sch.get(block).iter_vars
    pairs = list(zip(iters, multiples, strict=True))
    reduced = [pad if v.is_reduce else 1 for v, pad in pairs]
    spatial = [1 if v.is_reduce else pad for v, pad in pairs]
    found = dict(panels)
    if max(reduced) > 1:
        sch.pad_einsum(block, reduced)
        padded = {r.buffer: rv for rv in sch.get_producers(block) for r in sch.get(rv).reads}
        for theirs, panel in panels.items():
            copied = sch.get(panel).writes[0].buffer
            if copied in padded:
                sch.compute_inline(panel)
                found[theirs] = padded[copied]
    if max(spatial) > 1:
        for panel in found.values():
            sch.overcompute(panel, _of_copy(sch, block, panel, spatial))
        sch.overcompute(block, spatial)
    return found


def _of_copy(sch: Schedule, block: BlockRV, panel: BlockRV, multiples: Sequence[int]) -> list[int]:
    """For each iterator of a copy, the multiple of the block's iterator for the same dimension."""
    node = sch.get(block)
    (written,) = sch.get(panel).writes
    region = next(r.region for r in node.reads if r.buffer is written.buffer)
    mine: dict[Expr, int] = {v.var: n for v, n in zip(node.iter_vars, multiples, strict=True)}
    sizes: dict[Expr, int] = {
        w.min: mine.get(r.min, 1) for w, r in zip(written.region, region, strict=True)
    }
    return [sizes.get(v.var, 1) for v in sch.get(panel).iter_vars]


def _tiles_apart(way: TensorizeMapping, theirs: Buffer, dims: Sequence[int]) -> IndexMap:
    """The layout of an operand in which each tile is contiguous.

    The order of its dimensions: iterators outside and tile numbers, spatial before reduce; then the
    description's dimensions within a tile.
    """
    inputs = tuple(Var(f"i{n}") for n in range(len(dims)))
    order: dict[bool, list[Expr]] = {True: [], False: []}
    within: dict[Var, Expr] = {}
    for var, n in zip(inputs, dims, strict=True):
        spatial = way.kinds[n] is not IterKind.REDUCE
        if n < way.outside:
            order[spatial].append(var)
            continue
        group, size = way.groups[n - way.outside], way.sizes[n] or 1
        tile = math.prod(group.values())
        if size > tile:
            order[spatial].append(var // tile)
        within.update(_digits(var % tile if size > tile else var, group))
    last = [substitute(i, within) for i in way.places[theirs]]
    return IndexMap(inputs, (*order[True], *order[False], *last))


def _scope(results: Buffer, way: TensorizeMapping) -> str:
    """The storage scope of the results: the stack, unless the results are padded and large.

    The regions of padded tiles have no bound but the whole buffer, so the stack would have to hold
    all results at once.
    """
    padded = any(pad > 1 and kind is not IterKind.REDUCE
                 for pad, kind in zip(way.paddings, way.kinds, strict=True))  # fmt: skip
    size = math.prod(as_int(n) or 0 for n in results.shape) * results.dtype.bytes
    return "global" if padded and size * way.work > PADDED_RESULTS else "local"


def _whole_tiles(way: TensorizeMapping, dims: Mapping[Buffer, Sequence[int]]) -> bool:
    """Whether no dimension of the results is padded."""
    return all(way.paddings[n] == 1 for n in dims[way.result])


def _store_in_tiles(sch: Schedule, done: TensorizedBlock, way: TensorizeMapping) -> None:
    """Lay the results out in tiles, and let the block that stores them run over tiles."""
    dims = done.dims[way.result]
    layout = _tiles_apart(way, way.result, dims)
    others = tuple(Var(f"o{n}") for n in range(len(sch.get(done.finish).iter_vars) - len(dims)))
    over = IndexMap((*others, *layout.inputs), (*others, *layout.outputs))
    sch.transform_block_layout(done.finish, over)
    sch.transform_layout(done.block, ("write", 0), layout)


def _digits(value: Expr, group: Mapping[Var, int]) -> dict[Var, Expr]:
    """The values of description iterators at position `value`; the last iterator counts fastest."""
    found: dict[Var, Expr] = {}
    for n, (var, extent) in enumerate(reversed([*group.items()]), 1):
        found[var] = value if n == len(group) else value % extent
        value = value // extent
    return found


def _cut(way: TensorizeMapping) -> IndexMap:
    """The map from the outputs of a mapping to the iterators of the description."""
    inputs = tuple(Var(f"i{n}", o.dtype) for n, o in enumerate(way.index_map.outputs))
    values: dict[Var, Expr] = {}
    for var, group in zip(inputs[way.outside :], way.groups, strict=True):
        values.update(_digits(var, group))
    return IndexMap(inputs, (*inputs[: way.outside], *(values[v] for v in way.iterators)))
