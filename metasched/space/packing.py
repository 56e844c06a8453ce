"""Packing: copy an operand of a tiled block into the order in which the block's tiles read it.

An operand is a read that varies along the vector lanes of a block. Its packed copy is a panel: a
buffer of strips, each as wide as a tile of columns. A tile then reads memory in order (Goto and van
de Geijn 2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from metasched.analysis.access import SHUFFLED, accesses
from metasched.arith.indexmap import IndexMap
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Cast, Expr, Var, as_int
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.primitives.reindex import plain_indices
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride, lanes_together, rows_of, vector_iter


@dataclass(frozen=True, slots=True)
class Operand:
    """A read of a block that varies along the vector lanes.

    Attributes:
        place: the index of the read region and, if several accesses load its buffer, of the access.
        item: bytes of an element.
        bytes: bytes of all elements.
        contiguous: whether the lanes are contiguous in memory, which makes packing optional.
        batch: positions of the other spatial iterators in its indices; each value of these
            iterators has a separate panel.
        rows: how many results use each element.
        stride: elements between two steps of the innermost reduction if the lanes are contiguous;
            0 where the stride is unknown.
    """

    place: tuple[int, ...]
    item: int
    bytes: int
    contiguous: bool
    batch: tuple[int, ...]
    rows: int
    stride: int


def lane_operands(sch: Schedule, block: Block, lane: Var) -> list[Operand]:
    """The reads of a block that vary along the iterator `lane` and can be packed.

    A read is left out if its copy by the block's iterators would be larger than its buffer: the
    windows of a convolution overlap.
    """
    found = []
    for index, region in enumerate(block.reads):
        loads = [
            replace(a, indices=plain_indices(block, a.indices))
            for a in accesses(block)
            if not a.is_write and a.buffer is region.buffer
        ]
        along = [a for a in loads if any(lane in free_vars(i) for i in a.indices)]
        if region.buffer is block.writes[0].buffer or len(along) != 1:
            continue
        used = set().union(*(free_vars(i) for i in along[0].indices))
        iters = [v for v in block.iter_vars if v.var in used]
        size = math.prod(sch.state.size(v.dom.extent) or 1 for v in iters)
        if size > math.prod(sch.state.size(n) or 1 for n in region.buffer.shape):
            continue
        own = [v for v in iters if v.is_spatial and v.var is not lane and as_int(v.dom.extent) != 1]
        batch = tuple(block.iter_vars.index(v) for v in own)
        item = region.buffer.dtype.bytes
        steps = [v.var for v in block.iter_vars if v.is_reduce and as_int(v.dom.extent) != 1]
        contiguous = iter_stride(along[0], lane) == 1
        stride = (iter_stride(along[0], steps[-1]) if steps and contiguous else None) or 0
        rows = rows_of(sch, block, along[0])
        place = (index,) if len(loads) == 1 else (index, loads.index(along[0]))
        found.append(Operand(place, item, item * size, contiguous, batch, rows, stride))
    return found


def packed_panel(
    sch: Schedule, block: BlockRV, operand: Operand, lane: int, step: int = 1
) -> tuple[BlockRV, int]:
    """Copy an operand, indexed by the block's iterators, to a panel.

    Args:
        lane: position of the block's iterator along the lanes.
        step: the panel's columns are padded to a multiple of this number.

    Returns the copying block and the dimension of the panel along the lanes.
    """
    which: tuple[str | int, ...] = ("read", *operand.place)
    panel = sch.reindex(block, which)
    if operand.contiguous:
        _converted(sch, panel)
    node = sch.get(block)
    index = [r.buffer for r in node.reads].index(sch.get(panel).writes[0].buffer)
    region = node.reads[index].region
    dim = next(n for n, r in enumerate(region) if r.min is node.iter_vars[lane].var)
    if step > 1:
        sch.overcompute(panel, [step if n == dim else 1 for n in range(len(region))])
    return panel, dim


def _converted(sch: Schedule, panel: BlockRV) -> None:
    """Inline into a panel the stages that convert its operand, if no other block reads them."""
    scope = sch.state.scope(sch.state.block(panel))
    for producer in scope.producers(sch.get(panel).token):
        body = producer.block.body
        value = body.value if isinstance(body, BufferStore) else None
        converts = isinstance(value, Cast) and isinstance(value.value, BufferLoad)
        if converts and len(scope.consumers(producer.token)) == 1:
            sch.compute_inline(sch.get_block(producer.block.name))


def packed_panels(
    sch: Schedule, block: BlockRV, pack: Operand, vector: int, step: int, several: bool
) -> list[tuple[BlockRV, int]]:
    """Pack an operand, and with a strided operand all others that vectors cannot read either.

    Args:
        pack: the operand.
        vector: the position of the iterator along the lanes.
        step: see `packed_panel`.
        several: whether other operands may be packed, too.

    Returns for each panel its block, and its dimension along the lanes.
    """
    weights = constant_buffers(sch, block)
    ahead = sch.get(block).reads[pack.place[0]].buffer in weights
    found = [packed_panel(sch, block, pack, vector, step)]
    while several and not pack.contiguous:
        node, panels = sch.get(block), {sch.get(p).writes[0].buffer for p, _ in found}
        for other in lane_operands(sch, node, node.iter_vars[vector].var):
            buffer = node.reads[other.place[0]].buffer
            same = not other.contiguous and other.batch == pack.batch
            if same and (buffer in weights) == ahead and buffer not in panels:
                break
        else:
            break
        found.append(packed_panel(sch, block, other, vector, step))
    return found


def constant_buffers(sch: Schedule, block: BlockRV) -> set[Buffer]:
    """The constant weights of a function, and the buffers that stages compute from weights alone.

    Such a stage runs ahead of time, like the packing of the weight (`lower.packing`).
    """
    _, func = sch.state.func_of(sch.state.block(block))
    found = set(func.constants)
    for child in sch.state.scope(sch.state.block(block)).realizes:
        written = {r.buffer for r in child.block.writes}
        if {r.buffer for r in child.block.reads} - written <= found and child.block.reads:
            found |= written
    return found


def strips(sch: Schedule, panel: BlockRV, dim: int, width: Expr | ExprRV) -> None:
    """Store a panel in strips of `width` columns along dimension `dim`, one strip after another."""
    inputs = tuple(Var(f"i{n}") for n in range(len(sch.get(panel).writes[0].region)))
    at = inputs[dim]
    order = (*inputs[:dim], at // width, *inputs[dim + 1 :], at % width)
    sch.transform_layout(panel, ("write", 0), IndexMap(inputs, order))


def fill_panel(
    sch: Schedule, panel: BlockRV, place: LoopRV, depth: int, width: ExprRV | int, widest: int
) -> None:
    """Compute a panel at a loop, with vectors along its lanes.

    Args:
        place: the loop at which the panel is computed.
        depth: how many loops there are from the outermost one to `place`, inclusive.
        width: lanes of a vector.
        widest: the most lanes of a vector.

    Where the source is contiguous along an iterator other than the lanes', squares of both
    iterators are copied: code generation transposes them in registers.
    """
    node = sch.get(panel)
    last = free_vars(node.writes[0].region[-1].min)
    lane = next(n for n, v in enumerate(node.iter_vars) if v.var in last)
    across = _source_iter(node, widest)
    sch.compute_at(panel, place, preserve_unit_loops=True)
    loops = sch.get_loops(panel)[depth:]
    together = copied_together(sch, panel, lane, widest)
    if together < 4 and across not in (None, lane):
        rows, lanes = (sch.split(loops[n], [None, width]) for n in (across, lane))
        rest = [loop for n, loop in enumerate(loops) if n not in (across, lane)]
        sch.reorder(*rest, lanes[0], rows[0], rows[1], lanes[1])
        sch.unroll(rows[1])
        sch.vectorize(lanes[1])
        return
    if lane != len(loops) - 1:
        loops.append(loops.pop(lane))
        sch.reorder(*loops)
    wide = width if together in (1, widest) else together
    sch.vectorize(sch.split(loops[-1], [None, wide])[1])


def _source_iter(node: Block, width: int) -> int | None:
    """The iterator of a copying block along which its source is contiguous, in whole vectors."""
    (source,) = [a for a in accesses(node) if not a.is_write]
    for n, v in enumerate(node.iter_vars):
        if iter_stride(source, v.var) == 1 and (as_int(v.dom.extent) or 1) % width == 0:
            return n
    return None


def copied_together(sch: Schedule, block: BlockRV, position: int, most: int) -> int:
    """How many lanes of an iterator one vector operation of a copying block can move."""
    node = sch.get(block)
    return lanes_together(node, node.iter_vars[position].var, most)


def stored_iter(sch: Schedule, block: BlockRV) -> int:
    """The position of the iterator along which a copying block stores contiguously."""
    node = sch.get(block)
    vector = vector_iter(node)
    return node.iter_vars.index(vector) if vector is not None else len(node.iter_vars) - 1


def woven_iters(sch: Schedule, block: BlockRV) -> tuple[int, int] | None:
    """The positions of two iterators of a copying block: lanes that the block stores apart, and the
    few elements between two lanes. For B[v * 3 + p] = A[p, v] with p in 3, these are v and p."""
    node, short = sch.get(block), stored_iter(sch, block)
    few = as_int(node.iter_vars[short].dom.extent) or 1
    for n, v in enumerate(node.iter_vars):
        moves = [(a.is_write, iter_stride(a, v.var)) for a in accesses(node)]
        stores = {s for stored, s in moves if stored}
        loads = [s is not None and 0 <= s <= SHUFFLED for stored, s in moves if not stored]
        if 1 < few <= SHUFFLED and stores == {few} and all(loads):
            return n, short
    return None
