"""set_scope: moves a buffer to another storage scope."""

from __future__ import annotations

from collections.abc import Mapping

from metasched.errors import brief
from metasched.ir.buffer import Buffer
from metasched.ir.stmt import Block, BlockRealize, DeclBuffer, Stmt, evolve
from metasched.ir.visit import substitute_buffers, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_scope_name
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_block=ways.with_buffers("write", "local"))
def set_scope(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, storage_scope: str
) -> None:
    """Put a buffer that `block` writes into another storage scope.

    The buffer is given by its position among the block's writes, by name, or as a Buffer.

    Views of the buffer change their scope, too.

    requires  the buffer is allocated by a block; the scope is known
    rewrite   B = T.alloc_buffer((4,)) -> B = T.alloc_buffer((4,), scope="local")
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = state.block(block)
    buffer = written_buffer(state, realize, buffer_index)
    site = allocating_block(state, realize, buffer)
    if buffer.scope != storage_scope:
        every = (buffer, *views_of(site, buffer))
        moved = {b: _in_scope(state, b, storage_scope) for b in every}
        _replace_buffers(state, site, moved)


def _in_scope(state: State, buffer: Buffer, scope: str) -> Buffer:
    return state.fresh_buffer(
        buffer.name, buffer.shape, buffer.dtype, scope, buffer.strides, buffer.elem_offset,
        buffer.align, buffer.offset_factor,
    )  # fmt: skip


def written_buffer(state: State, realize: BlockRealize, which: int | str | Buffer) -> Buffer:
    """The buffer that a block writes, chosen by its position among the write regions, or by
    name."""
    return pick_buffer(state, realize, "write", which)


def pick_buffer(state: State, realize: BlockRealize, side: str, which: object) -> Buffer:
    """The buffer given by its position among the reads or writes, by name or as a Buffer."""
    block = realize.block
    regions = block.reads if side == "read" else block.writes
    if isinstance(which, int) and 0 <= which < len(regions):
        return regions[which].buffer
    for position, region in enumerate(regions):
        if region.buffer is which:  # a trace holds positions and names
            state.canonical = {f"{side}_buffer_index": position, "buffer_index": position}
            return region.buffer
        if region.buffer.name == which:
            return region.buffer
    names = ", ".join(r.buffer.name for r in regions) or "none"
    raise state.error(
        "no-such-buffer",
        f"{block.name} has no {side} buffer {brief(which)}; it {side}s {names}",
        realize,
        hint="give the position or the name of a buffer in the block's regions",
    )


def allocating_block(state: State, realize: BlockRealize, buffer: Buffer) -> Block:
    """The block around `realize` that allocates `buffer`."""
    for above in (realize.block, *state.ancestors(realize)):
        if isinstance(above, Block) and buffer in above.alloc_buffers:
            return above
    raise state.error(
        "not-allocated",
        f"the buffer {buffer.name} is a parameter or view, not allocated by a block",
        realize,
        hint="cache it first (cache_read, cache_write) and transform the cache",
    )


def views_of(site: Stmt, buffer: Buffer) -> list[Buffer]:
    """The buffers that name regions or all of `buffer` below `site`, views of views included."""
    sources: list[tuple[Buffer, Buffer]] = []
    for node in walk_stmts(site):
        if isinstance(node, Block):
            sources += [(m.buffer, m.source.buffer) for m in node.match_buffers]
        elif isinstance(node, DeclBuffer):
            sources.append((node.buffer, node.source))
    found = {buffer: None}
    for view, source in sources:  # a view is declared inside the block that declares its source
        if source in found:
            found[view] = None
    return list(found)[1:]


def replace_allocated(state: State, site: Block, old: Buffer, new: Buffer) -> None:
    """Replace an allocated buffer by `new` everywhere below `site`."""
    _replace_buffers(state, site, {old: new})


def _replace_buffers(state: State, site: Block, buffers: Mapping[Buffer, Buffer]) -> None:
    def change(node: object) -> Block:
        assert isinstance(node, Block)
        result = substitute_buffers(node, buffers)
        assert isinstance(result, Block)
        return evolve(result)

    state.commit(edit.wrap(site, change))
