"""reindex_cache_read, reindex_cache_write: copy a buffer to a scope, in a given layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, as_int
from metasched.ir.stmt import Block, BlockRealize, For, SeqStmt, Stmt
from metasched.ir.visit import jumps
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_cover,
    confirm_kinds,
    refuse_outside,
    require_root_free,
    require_scope_name,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import one_pattern
from metasched.schedule.primitives.cache import split_point
from metasched.schedule.primitives.layout_arguments import as_index_map
from metasched.schedule.primitives.new_stage import require_limit, with_buffers
from metasched.schedule.primitives.reindex import covered_iters, put_stage
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.state import State

MapArg = IndexMap | Callable[..., Any]


@primitive(of_block=ways.with_buffers_by_iterators("read"))
def reindex_cache_read(
    state: State,
    block: BlockLike,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: MapArg,
) -> BlockRV:
    """Let `block` read a copy of a buffer laid out by `index_map`; returns the block that copies.

    `index_map` takes the block's iterators and gives the indices into the copy. The copying block
    stands at the start of the scope, or after the block of the scope that writes the buffer, inside
    the loops that both blocks share.

    requires  a known storage scope; a leaf block that reads the buffer at one place and does not
              write it; at most one writer of the buffer in the scope, before the block, whose
              writes in one iteration of the shared loops hold what is copied in this iteration; a
              map that uses the iterators of the buffer's indices, and determines them (iterators of
              extent one may be left out)
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
    refuse_outside(state, scope, buffer, written=True)
    anchor = _before(state, writers[0].realize, realize) if writers else None
    outer = () if anchor is None else state.loops_above(anchor)
    cache, old, new = _laid_out(state, realize, buffer, storage_scope, index_map)

    def place(copy: Stmt) -> list[edit.Edits]:
        if anchor is not None:
            return [edit.insert(anchor, copy, after=True)]
        return [edit.wrap(scope.block, with_buffers(before=copy))]

    made = put_stage(state, realize, "read", buffer, cache, old, new, scope, place, outer=outer)
    if outer:
        _confirm(state, outer, state.block(made), realize)
    return made


@primitive(of_block=ways.with_buffers_by_iterators("write"))
def reindex_cache_write(
    state: State,
    block: BlockLike,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: MapArg,
) -> BlockRV:
    """Let `block` write a new buffer laid out by `index_map`; returns the block that copies back.

    `index_map` takes the block's iterators and gives the indices into the new buffer. The copying
    block stands after the block, inside the loops that the block shares with a reader.

    requires  a known storage scope; a leaf block that writes the buffer at one place, as its only
              writer, and does not read it; nothing but loops between the shared loops and the
              block, which write every element; a map that uses the iterators of the buffer's
              indices, and determines them
    rewrite   B[i, j] = A[i, j] -> B_local[j, i] = A[i, j]; B[i, j] = B_local[j, i]
    """
    realize, buffer = _subject(state, block, "write", write_buffer_index, storage_scope)
    scope = state.scope(realize)
    writers = scope.writers(buffer)
    if len(writers) != 1:
        who = ", ".join(w.block.name for w in writers)
        raise state.error("other-writer", f"{buffer.name} is written by {who}", realize)
    refuse_outside(state, scope, buffer)
    readers = [c for c in scope.readers(buffer) if c.realize is not realize]
    anchor = split_point(state, writers[0], readers)
    outer = state.loops_above(anchor)
    _require_loops_only(state, realize, anchor)
    cache, old, new = _laid_out(state, realize, buffer, storage_scope, index_map)
    place = lambda copy: [edit.insert(anchor, copy, after=True)]  # noqa: E731
    made = put_stage(state, realize, "write", buffer, cache, old, new, scope, place, outer=outer)
    if outer:
        _confirm(state, outer, state.block(made), *[c.realize for c in readers])
    return made


def _before(state: State, writer: BlockRealize, reader: BlockRealize) -> Stmt:
    """The statement around the writer that stands in one sequence with a statement around the
    reader, inside all loops that both blocks share."""
    above = set(state.ancestors(reader))
    node: Stmt = writer
    parent = state.parent(node)
    while parent is not None and parent not in above:
        node, parent = parent, state.parent(parent)
    if not isinstance(parent, SeqStmt):
        raise state.error(
            "other-branch",
            f"{writer.block.name}, which writes the buffer, and {reader.block.name} do not follow "
            "each other in one sequence",
            reader,
            hint="the copy between the two blocks needs a sequence that contains both",
        )
    return node


def _require_loops_only(state: State, realize: BlockRealize, anchor: Stmt) -> None:
    """Refuse other statements than loops and sequences between the block and `anchor`, because
    they may skip the block."""
    node: Stmt | None = realize
    while node is not None and node is not anchor:
        node = state.parent(node)
        left = isinstance(node, For) and jumps(node.body)
        if left or not isinstance(node, (For, SeqStmt)):
            raise state.error(
                "conditional-block",
                f"{realize.block.name} is below a statement that is not a loop, so a copy of "
                "its whole result could hold elements that were never written",
                realize,
                hint="only loops may be around the block, up to the first block that reads it",
            )


def _confirm(state: State, outer: Sequence[For], *users: BlockRealize) -> None:
    """After an edit below shared loops: confirm that all readers still read only written
    elements."""
    confirm_cover(state, *[r.block.token for r in users])
    confirm_kinds(state, outer)


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
    """The buffer of the copy, and the block's indices into the old buffer and into the copy."""
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
    for v in covered_iters(block, new):
        require_limit(state, realize, v)
    for index, r in zip(new, ranges, strict=True):
        if not Analyzer().prove(r.min >= 0):
            raise state.error(
                "negative-index",
                f"the index {show_expr(index)} of the copy is not proved to be >= 0",
                realize,
            )
        low, size = as_int(r.min), as_int(r.extent)
        if low is not None and size is not None and low + size > index.dtype.range[1]:
            raise state.error(
                "index-overflow",
                f"the index {show_expr(index)} of the copy may be the largest {index.dtype} or "
                "more, and no extent holds it",
                realize,
            )
    shape = tuple(Analyzer().simplify(r.min + r.extent) for r in ranges)
    name = f"{buffer.name}_{scope.replace('.', '_')}"
    return state.fresh_buffer(name, shape, buffer.dtype, scope), old, new


def _require_same_iters(
    state: State, block: Block, buffer: Buffer, old: Any, new: Any, realize: BlockRealize
) -> None:
    """Refuse a map that uses other iterators than the old indices, but for iterators of extent
    one."""
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
