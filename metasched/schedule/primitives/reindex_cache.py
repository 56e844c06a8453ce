"""reindex_cache_read, reindex_cache_write: a cached copy of a buffer in a layout of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, as_int
from metasched.ir.stmt import Block, BlockRealize, Stmt
from metasched.schedule import edit
from metasched.schedule.checks import require_root_free, require_scope_name
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.reindex import covered_iters, put_stage
from metasched.schedule.primitives.staging import (
    as_index_map,
    beside,
    chain_above,
    one_pattern,
    top_of,
    with_buffers,
)
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.state import State

MapArg = IndexMap | Callable[..., Any]


@primitive()
def reindex_cache_read(
    state: State,
    block: BlockLike,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: MapArg,
) -> BlockRV:
    """Let `block` read a copy of a buffer laid out by `index_map`; returns the block that copies.

    `index_map` takes the block's iterators and gives the indices into the copy. The copy is made
    where the scope begins, or after the block of the scope that writes the buffer.

    requires  a known storage scope; a leaf block that reads the buffer at one place and does not
              write it; at most one writer of the buffer in the scope, before the block; the map
              uses the iterators that the buffer's indices use, and tells them (one of a single
              value may be left out)
    rewrite   B[i, j] = A[i, j] -> A_local[j, i] = A[i, j]; B[i, j] = A_local[j, i]
    """
    realize, buffer = _subject(state, block, "read", read_buffer_index, storage_scope)
    scope = state.scope(realize)
    writers = scope.writers(buffer)
    order = {c.token: n for n, c in enumerate(scope.realizes)}
    late = [w for w in writers if order[w.token] >= order[realize.block.token]]
    if len(writers) > 1 or late:
        who = ", ".join(w.block.name for w in writers)
        raise state.error(
            "written-in-scope",
            f"{buffer.name} is written by {who} in this scope",
            realize,
            hint="only a buffer with at most one writer before its reader can be cached",
        )
    top = top_of(state, writers[0].realize) if writers else None
    if top is not None and top is top_of(state, realize):
        raise state.error(
            "shared-loop",
            f"{writers[0].block.name}, which writes {buffer.name}, shares a loop with "
            f"{realize.block.name}",
            realize,
            hint="cache before moving the producer below the consumer's loops",
        )
    cache, old, new = _laid_out(state, realize, buffer, storage_scope, index_map)

    def place(copy: Stmt) -> list[edit.Edits]:
        if top is not None:
            return [beside(top, after=[copy])]
        return [edit.wrap(scope.block, with_buffers(before=copy))]

    return put_stage(state, realize, "read", buffer, cache, old, new, scope, place)


@primitive()
def reindex_cache_write(
    state: State,
    block: BlockLike,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: MapArg,
) -> BlockRV:
    """Let `block` write a copy of its result laid out by `index_map`; returns the copying block.

    `index_map` takes the block's iterators and gives the indices into the copy, which is copied
    back after the block.

    requires  a known storage scope; a leaf block, alone below its loops, that writes the buffer at
              one place, as its only writer, and does not read it; it writes every element; the map
              uses the iterators that the buffer's indices use, and tells them
    rewrite   B[i, j] = A[i, j] -> B_local[j, i] = A[i, j]; B[i, j] = B_local[j, i]
    """
    realize, buffer = _subject(state, block, "write", write_buffer_index, storage_scope)
    scope = state.scope(realize)
    writers = scope.writers(buffer)
    if len(writers) != 1:
        who = ", ".join(w.block.name for w in writers)
        raise state.error("other-writer", f"{buffer.name} is written by {who}", realize)
    chain_above(state, realize)
    cache, old, new = _laid_out(state, realize, buffer, storage_scope, index_map)
    anchor = top_of(state, realize)
    place = lambda copy: [beside(anchor, after=[copy])]  # noqa: E731
    return put_stage(state, realize, "write", buffer, cache, old, new, scope, place)


def _subject(
    state: State, block: BlockLike, side: str, which: int | str | Buffer, scope: str
) -> tuple[BlockRealize, Buffer]:
    assert isinstance(block, BlockRV)
    require_scope_name(state, scope)
    realize = require_root_free(state, block)
    return realize, pick_buffer(state, realize, side, which)


def _laid_out(
    state: State, realize: BlockRealize, buffer: Buffer, scope: str, index_map: MapArg
) -> tuple[Buffer, tuple[Expr, ...], tuple[Expr, ...]]:
    """The copy, and the block's indices into the buffer and into the copy."""
    block = realize.block
    mapping = as_index_map(state, index_map, len(block.iter_vars), realize)
    state.canonical = {"index_map": IndexMap.of(index_map, len(block.iter_vars))}
    for name, regions in (("read_buffer_index", block.reads), ("write_buffer_index", block.writes)):
        for position, region in enumerate(regions):
            if region.buffer is buffer:
                state.canonical.setdefault(name, position)
    old = one_pattern(state, realize, buffer)
    doms = {v.var: v.dom for v in block.iter_vars}
    try:
        new = tuple(mapping.apply([v.var for v in block.iter_vars], Analyzer(doms)))
        ranges = mapping.map_ranges([v.dom for v in block.iter_vars])
    except MetaschedError as error:
        raise state.error("bad-index-map", str(error), realize) from None
    _require_same_iters(state, block, buffer, old, new, realize)
    for index, r in zip(new, ranges, strict=True):
        if not Analyzer().prove(r.min >= 0):
            raise state.error(
                "negative-index",
                f"the index {show_expr(index)} of the copy is not proved to be >= 0",
                realize,
            )
    shape = tuple(Analyzer().simplify(r.min + r.extent) for r in ranges)
    name = f"{buffer.name}_{scope.replace('.', '_')}"
    return state.fresh_buffer(name, shape, buffer.dtype, scope), old, new


def _require_same_iters(
    state: State, block: Block, buffer: Buffer, old: Any, new: Any, realize: BlockRealize
) -> None:
    """The map uses exactly the iterators of the old indices, but for those of a single value."""
    before = {v.var for v in covered_iters(block, old)}
    after = {v.var for v in covered_iters(block, new)}
    single = {v.var for v in block.iter_vars if as_int(v.dom.extent) == 1}
    odd = sorted(v.name for v in (before ^ after) - single)
    if odd:
        raise state.error(
            "other-iterators",
            f"{odd[0]} occurs in only one of the indices of {buffer.name} and of its copy",
            realize,
        )
