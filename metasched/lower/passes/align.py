"""Annotations of blocks about the memory of buffers: padded rows, and regions that must be
allocated.

`buffer_dim_align` (storage_align) gives an allocated buffer strides. `place_allocations` computes
the strides of most buffers, when their shape is final. A buffer whose address is taken keeps its
shape; `align_addressed` computes its strides earlier, so that views of the buffer see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import Expr, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import AttrStmt, Block, Stmt
from metasched.ir.visit import free_vars, map_body, substitute_buffers, transform, walk_stmts

Alignment: TypeAlias = tuple[tuple[int, int, int], ...]
"""For some axes (axis, factor, offset): the stride is `offset` modulo `factor`."""

EXPLICIT = "explicit_region"
"""The key of attributes whose value loads a corner of a region that must be allocated."""


def alignments(body: Stmt) -> dict[Buffer, Alignment]:
    """The alignment of each buffer that some block aligns."""
    found: dict[Buffer, dict[int, tuple[int, int, int]]] = {}
    for node in walk_stmts(body):
        if isinstance(node, Block):
            for index, axis, factor, offset in node.annotations.get("buffer_dim_align", ()):
                found.setdefault(node.writes[index].buffer, {})[axis] = (axis, factor, offset)
    return {buffer: tuple(axes.values()) for buffer, axes in found.items()}


def aligned_strides(shape: Sequence[Expr], alignment: Alignment) -> tuple[Expr, ...]:
    """Row-major strides; the stride of an aligned axis is enlarged to `offset` modulo `factor`."""
    wanted = {axis: (factor, offset) for axis, factor, offset in alignment}
    strides: list[Expr] = []
    step: Expr = as_expr(1, shape[-1].dtype)
    for axis in reversed(range(len(shape))):
        if axis in wanted:
            factor, offset = wanted[axis]
            size = as_int(step)
            missing = (offset - step) % factor if size is None else (offset - size) % factor
            step = step + missing
        strides.append(step)
        step = step * shape[axis]
    return tuple(reversed(strides))


def align_addressed(func: PrimFunc) -> PrimFunc:
    """Give strides to the aligned buffers whose address is taken, before views of these buffers are
    resolved."""
    wanted = alignments(func.body)
    if not wanted:
        return func
    taken = {v for n in walk_stmts(func.body) for e in n.exprs for v in free_vars(e)}
    views = [m for n in walk_stmts(func.body) if isinstance(n, Block) for m in n.match_buffers]
    sources = {m.source.buffer for m in views if m.buffer.strides or m.buffer.data in taken}
    strided = {
        buffer: Buffer(
            buffer.name, buffer.shape, buffer.dtype, buffer.scope,
            aligned_strides(buffer.shape, alignment), buffer.elem_offset, buffer.align,
        )
        for buffer, alignment in wanted.items()
        if not buffer.strides and (buffer.data in taken or buffer in sources)
    }  # fmt: skip
    return map_body(func, lambda body: substitute_buffers(body, strided)) if strided else func


def with_explicit_regions(block: Block, body: Stmt) -> Stmt:
    """Wrap `body` in the corners of the regions that `block` declares explicitly, so that
    allocations cover the regions."""
    for side, regions in (("read", block.reads), ("write", block.writes)):
        marked = block.annotations.get(f"explicit_{side}_region", ())
        for index in (n for n in marked if n < len(regions)):  # a step may have split the block
            for corner in _corners(regions[index]):
                body = AttrStmt(regions[index].buffer, EXPLICIT, corner, body)
    return body


def _corners(region: BufferRegion) -> tuple[Expr, Expr]:
    first = [r.min for r in region.region]
    last = [r.min + r.extent - 1 for r in region.region]
    return BufferLoad(region.buffer, first), BufferLoad(region.buffer, last)


def without_explicit_regions(body: Stmt) -> Stmt:
    """Remove the corner accesses after allocations are placed."""

    def on_stmt(node: Stmt) -> Stmt | None:
        return node.body if isinstance(node, AttrStmt) and node.key == EXPLICIT else None

    return transform(body, on_stmt)
