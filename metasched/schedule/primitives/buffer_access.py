"""annotate_buffer_access, unsafe_hide_buffer_access: change the regions a block declares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from metasched.analysis.access import accesses
from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.arith.intset import covers, intersect, union_regions
from metasched.arith.regions import block_access_regions, each_access
from metasched.errors import MetaschedError, VerifyError, brief
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.describe import show_region
from metasched.ir.expr import Expr, as_expr
from metasched.ir.stmt import Block, BlockRealize, FrozenMap, Stmt, evolve
from metasched.ir.verify import verify
from metasched.ir.visit import blocks_of, reads_memory
from metasched.schedule import edit
from metasched.schedule.checks import proof
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import foreign_vars, plain_int
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.state import State


@primitive()
def annotate_buffer_access(
    state: State,
    block: BlockLike,
    buffer_index: int | str | Buffer,
    buf_type: str,
    gen_new_ranges: IndexMap | Callable[..., Any],
) -> None:
    """Declare which region of a buffer `block` reads ("read") or writes ("write").

    `gen_new_ranges` takes the block's iterators and gives for each dimension an index or a pair
    (first, end); the end is exclusive. The annotation `explicit_read_region` or
    `explicit_write_region` lists the positions of regions that were declared by this step. The
    blocks around the block then read the larger region, too.

    requires  one integer index or pair for each dimension; a region that is proved to hold what
              the block touches, unless it holds the old region; a write region within the old
              declared region, because later steps assume that all of a write region is written
    rewrite   T.reads(A[vi]) -> T.reads(A[vi:vi + 2])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    _require_side(state, buf_type)
    buffer = pick_buffer(state, realize, buf_type, buffer_index)
    regions = realize.block.reads if buf_type == "read" else realize.block.writes
    position = [r.buffer for r in regions].index(buffer)
    mapping = _ranges_map(state, realize, buffer, gen_new_ranges)
    state.canonical = {"buffer_index": position, "gen_new_ranges": mapping}
    an = Analyzer({v.var: v.dom for v in realize.block.iter_vars}, keep_units=True)
    ends = mapping.apply([v.var for v in realize.block.iter_vars], an)
    ranges = tuple(
        Range.of(low, an.simplify(high - low))
        for low, high in zip(ends[::2], ends[1::2], strict=True)
    )
    for r in ranges:
        if an.prove(r.extent < 1):
            raise state.error(
                "empty-range",
                f"a range of {buffer.name} is empty: its end is not greater than its begin",
                realize,
            )
    if buf_type == "write":
        _require_written(state, realize, regions[position], BufferRegion(buffer, ranges), an)
    key = f"explicit_{buf_type}_region"
    marks = sorted({*realize.block.annotations.get(key, []), position})
    named = tuple(
        BufferRegion(buffer, ranges) if n == position else r for n, r in enumerate(regions)
    )

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, Block)
        notes = FrozenMap({**node.annotations, key: marks})
        return evolve(node, annotations=notes, **{f"{buf_type}s": named})

    around = [n for n in state.ancestors(realize) if isinstance(n, Block)]
    grown = [edit.wrap(n, functools.partial(_grown, buffer)) for n in around if buf_type == "read"]
    state.commit(edit.wrap(realize.block, change), *grown)
    _require_honest(state, realize, buf_type, [buffer])
    if not covers(ranges, regions[position].region, an):
        _require_all_touched(state, realize, buf_type, buffer)


@primitive()
def unsafe_hide_buffer_access(
    state: State, block: BlockLike, buf_type: str, buf_index_array: Sequence[int]
) -> None:
    """Remove the regions at the given positions from those that `block` declares to read or write.

    The step is unsafe, because later steps ignore accesses to the removed regions.

    requires  distinct positions of declared regions; no load (or store) of the hidden buffers or
              of views of them in the block, and no block inside that declares such a region: only
              foreign code may touch the hidden buffers
    rewrite   T.reads(A[vi], B[vi]) -> T.reads(A[vi])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    _require_side(state, buf_type)
    regions = realize.block.reads if buf_type == "read" else realize.block.writes
    hidden = [plain_int(state, n, "a position in buf_index_array") for n in buf_index_array]
    if not hidden:
        raise state.error("nothing-to-hide", "no position is given", realize)
    if len(set(hidden)) != len(hidden) or not all(0 <= n < len(regions) for n in hidden):
        raise state.error(
            "no-such-buffer",
            f"{hidden} are not distinct positions among the {len(regions)} {buf_type} regions of "
            f"{realize.block.name}",
            realize,
        )
    left = tuple(r for n, r in enumerate(regions) if n not in hidden)
    buffers = [regions[n].buffer for n in hidden]
    views = set(buffers)
    within = [r.block for s in realize.block.stmts for r in blocks_of(s)]
    for inner in (realize.block, *within):
        views.update(m.buffer for m in inner.match_buffers if m.source.buffer in views)
        touched = [r.buffer for r in (inner.reads if buf_type == "read" else inner.writes)]
        what, hint = (
            f"{inner.name} within {realize.block.name} declares",
            "hide the buffer in the inner block first",
        )
        if inner is realize.block:
            what, hint = (
                f"{inner.name} itself touches",
                "only accesses of foreign code can be hidden",
            )
            own = [a for a in accesses(inner) if a.is_write is (buf_type == "write")]
            touched = [a.buffer for a in own if a.buffer not in buffers]
        for buffer in touched:
            if buffer in views:
                raise state.error(
                    "declared-inside", f"{what} {buffer.name} too", realize, hint=hint
                )
    state.commit(edit.wrap(realize.block, lambda s: evolve(s, **{f"{buf_type}s": left})))
    _require_honest(state, realize, buf_type, buffers)


def _grown(buffer: Buffer, block: Stmt) -> Block:
    """The block with a region of `buffer` that holds what the blocks inside declare to read."""
    assert isinstance(block, Block)
    inside = [r for r in block_access_regions(block)[0] if r.buffer is buffer]
    reads = list(block.reads)
    for n, region in enumerate(reads):
        if region.buffer is buffer and inside and not covers(region.region, inside[0].region):
            ranges = union_regions(region.region, inside[0].region)
            reads[n] = BufferRegion(buffer, tuple(ranges))
    return evolve(block, reads=tuple(reads))


def _require_side(state: State, buf_type: str) -> None:
    if buf_type not in ("read", "write"):
        raise state.error("bad-side", f'buf_type is {brief(buf_type)}, not "read" or "write"')


def _require_written(
    state: State, realize: BlockRealize, known: BufferRegion, asked: BufferRegion, an: Analyzer
) -> None:
    """Refuse a region that is not proved to lie in the region that the block declares to write."""
    if not covers(known.region, asked.region, an):
        raise state.error(
            "more-than-written",
            f"{realize.block.name} is not proved to write all of {show_region(asked)}, only "
            f"{show_region(known)}; other blocks could read elements that no block wrote",
            realize,
            hint="a write region can only become smaller; widen the read regions of its readers "
            f'(buf_type "read"), or let {realize.block.name} store to the whole region',
        )


def _require_honest(
    state: State, realize: BlockRealize, side: str, buffers: Sequence[Buffer]
) -> None:
    """Refuse new regions that do not hold what the blocks of the module certainly touch.

    The verifier skips buffers with several declared regions, and loads of a buffer that the block
    also writes. So each access of the block itself is checked here: it must lie in one region.
    """
    try:
        verify(state.mod, closed=True)
    except VerifyError as error:
        raise state.error(
            "touches-more", f"the declared regions would be wrong: {error}", realize
        ) from None
    block = state.index.blocks[realize.block.token].block
    before = realize.block.reads if side == "read" else realize.block.writes
    after, also = (block.reads, block.writes) if side == "read" else (block.writes, ())
    several = {b for b in buffers if sum(r.buffer is b for r in (*before, *also)) > 1}
    for access in accesses(block):
        if access.buffer in several and access.is_write is (side == "write"):
            regions = [r.region for r in (*after, *also) if r.buffer is access.buffer]
            if not any(covers(r, access.region.region) for r in regions):
                raise state.error(
                    "touches-more",
                    f"the declared regions would be wrong: {show_region(access.region)} is not "
                    "proved to lie in one of them",
                    realize,
                )


@proof
def _require_all_touched(state: State, realize: BlockRealize, side: str, buffer: Buffer) -> None:
    """Refuse regions of a buffer that are not proved to hold each access of a block to it.

    What foreign code touches through pointers is up to the user.
    """
    block = state.index.blocks[realize.block.token].block
    known = Analyzer({v.var: v.dom for v in block.iter_vars}, keep_units=True)
    regions = [r.region for r in (block.reads if side == "read" else block.writes)
               if r.buffer is buffer]  # fmt: skip
    try:
        found = each_access(block)
    except MetaschedError:
        return
    for written, touched, conditions in found:
        if touched.buffer is not buffer or written is (side == "read"):
            continue
        an = known
        for condition in conditions:
            an = an.assume(condition)
        inside = intersect(touched.region, buffer.whole().region, an)
        if not any(covers(r, box, an) for r in regions for box in (touched.region, inside)):
            raise state.error(
                "touches-more",
                f"{block.name} {side}s {show_region(touched)}, which is not proved to lie in "
                f"{' or '.join(show_region(BufferRegion(buffer, r)) for r in regions)}",
                realize, hint="declare a region that holds all elements",
            )  # fmt: skip


def _ranges_map(
    state: State, realize: BlockRealize, buffer: Buffer, source: IndexMap | Callable[..., Any]
) -> IndexMap:
    """One index map from the iterators to (first, end) of each dimension."""
    count = len(realize.block.iter_vars)
    if not isinstance(source, IndexMap) and not callable(source):
        raise state.error("bad-ranges", f"{brief(source)} is no function of the iterators", realize)
    try:
        if not isinstance(source, IndexMap):
            given = source
            flat = functools.wraps(given)(lambda *point: _flat(given(*point), buffer.ndim))
            source = IndexMap.of(flat, count)
        source = IndexMap.of(source, count)
    except MetaschedError as error:
        raise state.error("bad-ranges", str(error), realize) from None
    foreign = foreign_vars(source)
    if foreign:
        raise state.error("bad-ranges", f"the ranges mention {foreign[0].name}", realize)
    if any(reads_memory(end) for end in source.outputs):
        raise state.error(
            "bad-ranges", f"the ranges of {buffer.name} read memory, which no trace can store",
            realize, hint="declare a region that holds all elements",
        )  # fmt: skip
    if len(source.outputs) != 2 * buffer.ndim or not all(e.dtype.is_int for e in source.outputs):
        raise state.error(
            "bad-ranges",
            f"{buffer.name} has {buffer.ndim} dimensions: give an integer index or a pair "
            "(first, end) for each",
            realize,
        )
    return source


def _flat(given: Any, ndim: int) -> list[Expr]:
    """Flatten indices and (first, end) pairs into one list: first, end, first, end, ..."""
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(items) == 2 * ndim and not any(isinstance(i, (list, tuple)) for i in items):
        return [as_expr(i) for i in items]
    out: list[Expr] = []
    for item in items:
        pair = list(item) if isinstance(item, (list, tuple)) else [item, as_expr(item) + 1]
        out += [as_expr(i) for i in pair]
    return out
