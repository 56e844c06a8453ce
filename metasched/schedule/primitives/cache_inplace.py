"""cache_inplace: lets a block update a copy, which each instance copies in and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from metasched.analysis.added import in_bounds
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, relax, union_regions
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var, logical_and
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
)
from metasched.ir.visit import reads_memory, substitute, substitute_buffers
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_root_free, require_scope_name
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import known_ranges
from metasched.schedule.primitives.cache import cache_buffer
from metasched.schedule.primitives.new_stage import (
    beside,
    require_free_of_init,
    stage,
    with_buffers,
)
from metasched.schedule.primitives.scope_box import clipped
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_buffers("read", "local"))
def cache_inplace(
    state: State, block: BlockLike, read_buffer_index: int | str | Buffer, storage_scope: str
) -> list[BlockRV]:
    """Let a block update a copy of a buffer; returns the blocks that copy in and back.

    The copying blocks stand right before and right after the block, below its loops. They copy the
    elements that one instance touches.

    requires  a known storage scope; the block reads and writes the buffer; the loops above it run
              one iteration after the other
    rewrite   A[i] = A[i] + 1 -> A_local[i] = A[i]; A_local[i] = A_local[i] + 1; A[i] = A_local[i]
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = require_root_free(state, block)
    require_free_of_init(state, realize)
    buffer = pick_buffer(state, realize, "read", read_buffer_index)
    old = realize.block
    state.canonical = {"read_buffer_index": [r.buffer for r in old.reads].index(buffer)}
    if all(r.buffer is not buffer for r in old.writes):
        raise state.error(
            "not-updated", f"{old.name} reads {buffer.name} but does not write it", realize,
            hint="use cache_read",
        )  # fmt: skip
    if buffer.strides or buffer.elem_offset is not None:
        raise state.error(
            "strided", f"{buffer.name} has strides or an offset, which its copy would not have",
            realize,
        )  # fmt: skip
    _require_sequential(state, realize, buffer)
    read, write = (_touched(state, realize, buffer, r) for r in (old.reads, old.writes))
    loaded = read if covers(read, write) else union_regions(read, write)
    cache = cache_buffer(state, buffer, storage_scope)
    known = Analyzer({**known_ranges(state, realize), **ranges_of(state.loops_above(realize))})
    runs = realize.predicate
    copy_in, first = _copy(state, buffer, cache, cache.name, loaded, known, runs)
    copy_out, second = _copy(state, cache, buffer, f"{cache.name}_back", write, known, runs)
    scope = state.scope(realize)
    state.commit(
        edit.wrap(realize, lambda s: substitute_buffers(s, {buffer: cache})),
        beside(realize, [copy_in], [copy_out]),
        *(edit.wrap(b, _reading(r)) for b, r in _around(state, realize, buffer, loaded)),
        edit.wrap(scope.block, with_buffers(cache)),
    )
    return [state.new_block(first.token), state.new_block(second.token)]


def _around(
    state: State, realize: BlockRealize, buffer: Buffer, loaded: Sequence[Range]
) -> Iterator[tuple[Block, BufferRegion]]:
    """The blocks around that declare to read the buffer, with what they copy of it: the box around
    the elements that an instance touches may hold more than these elements."""
    region, inner = BufferRegion(buffer, tuple(loaded)), realize
    for outer in state.ancestors(realize):
        if not isinstance(outer, BlockRealize):
            continue
        region = relax(region, ranges_of(state.loops_above(inner)))
        if any(r.buffer is buffer for r in outer.block.reads):
            yield outer.block, region
        ranges = (
            Range(substitute(r.min, outer.bindings), substitute(r.extent, outer.bindings))
            for r in region.region
        )
        region, inner = BufferRegion(buffer, tuple(ranges)), outer


def _reading(more: BufferRegion) -> Callable[[Stmt], Stmt]:
    """An edit that lets a block read a region of a buffer in addition."""

    def edited(stmt: Stmt) -> Stmt:
        assert isinstance(stmt, Block)
        known = [r for r in stmt.reads if r.buffer is more.buffer]
        if any(covers(r.region, more.region) for r in known):
            return stmt
        box: Sequence[Range] = more.region
        for r in known:
            box = union_regions(r.region, box)
        joined = BufferRegion(more.buffer, tuple(box))
        kept = (joined if r is known[0] else r for r in stmt.reads if r not in known[1:])
        return evolve(stmt, reads=tuple(kept))

    return edited


def _require_sequential(state: State, realize: BlockRealize, buffer: Buffer) -> None:
    for loop in state.loops_above(realize):
        if loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
            raise state.error(
                "parallel-loop",
                f"the iterations of {loop.var.name} ({loop.kind.value}) could overwrite each "
                f"other's updates of {buffer.name} when they copy back",
                loop,
                hint="cache before choosing the kinds of the loops above",
            )


def _touched(
    state: State, realize: BlockRealize, buffer: Buffer, regions: Sequence[BufferRegion]
) -> list[Range]:
    """The box of the buffer that one instance of the block touches, over loop variables."""
    values = realize.bindings
    an = Analyzer(ranges_of(state.loops_above(realize)))
    box: list[Range] | None = None
    for region in regions:
        if region.buffer is buffer:
            here = [
                Range(
                    an.simplify(substitute(r.min, values)),
                    an.simplify(substitute(r.extent, values)),
                )
                for r in region.region
            ]
            box = here if box is None else union_regions(box, here, an)
    assert box is not None
    return [clipped(r, whole) for r, whole in zip(box, buffer.whole().region, strict=True)]


def _copy(
    state: State,
    source: Buffer,
    target: Buffer,
    name: str,
    region: Sequence[Range],
    analyzer: Analyzer,
    runs: Expr,
) -> tuple[Stmt, Block]:
    """`target[region] = source[region]`, where the region lies in the buffers, when `runs`.

    Ends of loops that read memory are safe only when `runs`.
    """
    unsafe = any(reads_memory(e) for r in region for e in (r.min, r.extent))
    around, runs = (runs, TRUE) if unsafe else (TRUE, runs)
    domains = [
        Range(IntImm(r.min.dtype, 0), extent.astype(r.min.dtype))
        for r, extent in zip(region, source.shape, strict=True)
    ]
    doubtful = [
        n
        for n, (r, extent) in enumerate(zip(region, source.shape, strict=True))
        if not (analyzer.prove(r.min >= 0) and analyzer.prove(r.min + r.extent <= extent))
    ]

    def inside(point: tuple[Var, ...]) -> Expr:
        indices, within = [point[n] for n in doubtful], [domains[n] for n in doubtful]
        return logical_and(runs, in_bounds(indices, within, Analyzer()))

    nest, made = stage(
        state, name, domains, lambda point: BufferStore(target, BufferLoad(source, point), point),
        inside, loops=region,
    )  # fmt: skip
    return nest if around is TRUE else IfThenElse(around, nest), made
