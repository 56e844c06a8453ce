"""cache_read, cache_write: a copy of a buffer in another storage scope, beside its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from metasched.analysis.cover import shared_loops
from metasched.analysis.producers import region_cover
from metasched.analysis.scope import Child, EdgeKind, Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, intersect, relax, union_regions
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import LT, TRUE, Expr, IntImm, Var, as_int, compare, logical_and
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IfThenElse,
    IterVar,
    MatchBufferRegion,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import (
    map_exprs,
    reads_memory,
    replace_loads,
    substitute,
    substitute_buffers,
    walk_stmts,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_cover,
    confirm_kinds,
    proof,
    refuse_hidden,
    refuse_outside,
    require_root_free,
    require_scope_name,
    require_whole_reduction,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import known_ranges, updates
from metasched.schedule.primitives.new_stage import init_around, require_free_of_init
from metasched.schedule.primitives.scope_box import box_to_read, clipped, scope_bounds
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.rebind import nest, ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_buffers("read", "local"))
def cache_read(
    state: State,
    block: BlockLike,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
    consumer_blocks: Sequence[BlockRV | str] = (),
) -> BlockRV:
    """Let consumers read a copy of a buffer; returns the block that copies.

    The copying block stands at the start of the scope, or right after the block of the scope that
    writes the buffer. `consumer_blocks` read the copy; by default all readers of the scope do.

    requires  a known storage scope; at most one block of the scope (and nothing outside of blocks)
              writes the buffer, before all readers; no consumer writes it; reads without gaps
    rewrite   B[i] = A[i] -> A_local[i] = A[i]; B[i] = A_local[i]
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = require_root_free(state, block)
    require_free_of_init(state, realize)
    buffer = pick_buffer(state, realize, "read", read_buffer_index)
    scope = state.scope(realize)
    writers = scope.writers(buffer)
    if len(writers) > 1 or (writers and writers[0].realize is realize):
        who = ", ".join(w.block.name for w in writers)
        raise state.error(
            "written-in-scope", f"{buffer.name} is written by {who} in this scope", realize,
            hint="only a buffer with at most one writer before its readers can be cached",
        )  # fmt: skip
    refuse_outside(state, scope, buffer, written=True)
    readers = _consumers(state, scope, buffer, consumer_blocks, writers)
    anchor: Stmt | None = None
    outer: tuple[For, ...] = ()
    if writers:
        anchor = split_point(state, writers[0], readers)
        condition = _condition(state, anchor, readers)
        if condition is not None and not any(
            condition in state.ancestors(c.realize) for c in readers
        ):
            anchor = _placed(state, condition)
        _refuse_skipped(state, anchor, writers[0], readers)
        outer = state.loops_above(anchor)
        region = _written_region(state, writers[0], buffer, anchor)
        refuse_hidden(state, (r.min for r in region), anchor)
        bounds = scope_bounds(scope, buffer, "writes")
    else:
        region = bounds = box_to_read(state, realize, buffer)
    plan = CachePlan.of(state, realize, buffer, storage_scope, region, outer, bounds)
    if writers:
        _require_held(state, plan, readers)
    cache = plan.cache
    copy = plan.copy(state, into_cache=True)
    edits = [edit.wrap(c.realize, lambda s: plan.redirect(s, stores=False)) for c in readers]
    if anchor is not None:
        edits.append(edit.insert(anchor, copy, after=True))
    edits.append(edit.wrap(scope.block, lambda s: _with_cache(s, cache, copy, anchor is None)))
    state.commit(*edits)
    confirm_cover(state, *[c.token for c in readers])
    confirm_kinds(state, outer)
    return state.new_block(_copy_block(copy).token)


@primitive(of_block=ways.with_buffers("write", "local"))
def cache_write(
    state: State,
    block: BlockLike,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
    consumer_blocks: Sequence[BlockRV | str] = (),
) -> BlockRV:
    """Let `block` write a new buffer, which is copied back; returns the copying block.

    `consumer_blocks` read the new buffer directly.

    requires  a known storage scope; a block that is the only writer of the buffer in its scope and
              finishes its reductions, each of one iteration or more, in one execution of the
              scope; `consumer_blocks` that read only what the block writes; no statement of the
              scope outside of blocks that touches the buffer
    rewrite   B[i] = A[i] -> B_local[i] = A[i]; B[i] = B_local[i]
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = require_root_free(state, block)
    require_free_of_init(state, realize)
    require_whole_reduction(state, realize)
    buffer = pick_buffer(state, realize, "write", write_buffer_index)
    scope = state.scope(realize)
    writers = scope.writers(buffer)
    if len(writers) != 1:
        who = ", ".join(w.block.name for w in writers)
        raise state.error("other-writer", f"{buffer.name} is written by {who}", realize)
    refuse_outside(state, scope, buffer)
    writer = writers[0]
    declared = any(r.buffer is buffer for r in inputs(realize.block))
    if declared or updates(realize.block, buffer):
        raise state.error(
            "reads-own-output", f"{realize.block.name} reads {buffer.name}, which it writes",
            realize, hint="the copy would have to be filled first: use cache_inplace",
        )  # fmt: skip
    direct = []
    if consumer_blocks:
        direct = _consumers(state, scope, buffer, consumer_blocks, [writer])
    readers = [c for c in scope.readers(buffer) if c.realize is not realize]
    anchor = split_point(state, writer, readers)
    _refuse_skipped(state, anchor, writer, direct)
    outer = state.loops_above(anchor)
    region = _written_region(state, writer, buffer, anchor)
    refuse_hidden(state, (r.min for r in region), anchor)
    bounds = scope_bounds(scope, buffer, "writes")
    plan = CachePlan.of(state, realize, buffer, storage_scope, region, outer, bounds)
    _require_held(state, plan, direct)
    _require_written(state, scope, buffer, direct)
    kept = _covered_now(state, scope, buffer, readers, direct)
    cache, copy = plan.cache, plan.copy(state, into_cache=False)
    edits = [edit.wrap(realize, lambda s: plan.redirect(s, stores=True))]
    edits += [edit.wrap(c.realize, lambda s: plan.redirect(s, stores=False)) for c in direct]
    edits.append(edit.insert(anchor, copy, after=True))
    edits.append(edit.wrap(scope.block, lambda s: _with_cache(s, cache, copy, False)))
    state.commit(*edits)
    token = _copy_block(copy).token
    confirm_cover(state, token, *kept)
    confirm_kinds(state, outer)
    return state.new_block(token)


@proof
def _require_written(state: State, scope: Scope, buffer: Buffer, direct: Sequence[Child]) -> None:
    """The direct readers read what a block of the scope writes: the new buffer holds nothing else,
    where the old buffer may hold values from before the call."""
    for child in direct:
        if not _reads_written(scope, child, buffer):
            raise state.error(
                "not-a-consumer", f"{child.block.name} reads no element of {buffer.name} that "
                f"{scope.writers(buffer)[0].block.name} writes", child.realize,
            )  # fmt: skip


def _covered_now(
    state: State, scope: Scope, buffer: Buffer, readers: Sequence[Child], direct: Sequence[Child]
) -> list[BlockToken]:
    """The readers that must read only written elements after the edit: the `direct` readers of the
    cache, and readers with region cover before the edit.

    Any other reader reads what the buffer held when the function was called. So does a reader that
    no block of the scope writes for: the copy writes no other elements than the block did, since
    the block writes all that the copy reads.
    """
    if state.skip_legality_checks:
        return []
    mine = {c.token for c in direct}
    return [
        c.token for c in readers
        if c.token in mine
        or (_reads_written(scope, c, buffer) and region_cover(scope, c.token) is None)
    ]  # fmt: skip


def _reads_written(scope: Scope, child: Child, buffer: Buffer) -> bool:
    """Whether a child may read an element of a buffer that a block before it writes."""
    edges = scope.incoming(child.token)
    return any(e.kind is EdgeKind.RAW and e.buffer is buffer for e in edges)


def cache_buffer(state: State, buffer: Buffer, scope: str, shape: tuple[Expr, ...] = ()) -> Buffer:
    """A dense buffer like `buffer` (or of another shape) in another scope, named after both."""
    name = f"{buffer.name}_{scope.replace('.', '_')}"
    return state.fresh_buffer(
        name, shape or buffer.shape, buffer.dtype, scope, (), None, buffer.align
    )


@dataclass(frozen=True, slots=True, eq=False)
class CachePlan:
    """A cache of part of a buffer.

    Attributes:
        buffer, cache: the original buffer and its cache, named after buffer and scope (`A_shared`).
        region: the region that one execution of the copy copies.
        outer: the loops above the copy.
        bounds: the region in which the scope may touch the buffer; `region` may reach beyond.
        held: the region that the cache holds, from index zero of the cache; None if the cache has
            the shape of the buffer.
        known: the ranges of the iterators that the regions mention.
    """

    buffer: Buffer
    cache: Buffer
    region: tuple[Range, ...]
    outer: tuple[For, ...]
    bounds: tuple[Range, ...]
    held: tuple[Range, ...] | None
    known: Mapping[Var, Range]

    @staticmethod
    def of(
        state: State,
        realize: BlockRealize,
        buffer: Buffer,
        scope: str,
        region: Sequence[Range],
        outer: Sequence[For],
        bounds: Sequence[Range],
    ) -> CachePlan:
        """Plan a cache that holds `region` if no loop is above the copy, else all that the scope of
        `realize` touches. If this part has no constant size, the cache holds the whole buffer."""
        an = Analyzer()
        bounds = [Range(b.min, an.simplify(b.extent)) for b in bounds]
        sized = [Range(r.min, an.simplify(r.extent)) for r in region]
        region = [clipped(r, b) for r, b in zip(sized, bounds, strict=True)]
        boxes = [tuple(bounds)] if outer else [tuple(region), tuple(bounds)]
        held = next(filter(_sized, boxes), None)
        if held is not None and all(map(_same, held, buffer.whole().region)):
            held = None
        shape = buffer.shape if held is None else tuple(r.extent for r in held)
        cache = cache_buffer(state, buffer, scope, shape)
        known = known_ranges(state, realize)
        return CachePlan(buffer, cache, tuple(region), tuple(outer), tuple(bounds), held, known)

    def inside(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The indices in the cache of the buffer's element at `indices`."""
        if self.held is None:
            return tuple(indices)
        pairs = zip(indices, self.held, strict=True)
        return tuple(i if as_int(r.min) == 0 else Analyzer().simplify(i - r.min) for i, r in pairs)

    def copy(self, state: State, *, into_cache: bool) -> Stmt:
        """The nest that copies the region, one block under a loop for each dimension.

        A predicate keeps the copy within the bounds where the region may reach beyond.
        """
        loops: list[tuple[Var, Expr | int]] = [
            (state.fresh_var(f"ax{d}", r.min.dtype), r.extent) for d, r in enumerate(self.region)
        ]
        iters, there = [], []
        predicate: Expr = TRUE
        analyzer = Analyzer({**self.known, **ranges_of(self.outer)})
        values = self.inside([r.min for r in self.region])
        values = tuple(
            var if as_int(low) == 0 else low + var
            for low, (var, _) in zip(values, loops, strict=True)
        )
        for d, (r, (var, _)) in enumerate(zip(self.region, loops, strict=True)):
            own = state.fresh_var(f"v{d}", var.dtype)
            zero = IntImm(var.dtype, 0)
            iters.append(IterVar(own, Range(zero, self.cache.shape[d].astype(var.dtype))))
            first = zero if self.held is None else self.held[d].min
            there.append(own if as_int(first) == 0 else own + first)
            analyzer.bind(var, Range(zero, r.extent))
            element = r.min + var
            within = _lies_in(element, Range(zero, self.buffer.shape[d].astype(var.dtype)))
            for condition in dict.fromkeys((*within, *_lies_in(element, self.bounds[d]))):
                if not analyzer.prove(condition):
                    predicate = logical_and(predicate, analyzer.simplify(condition))
        here = [v.var for v in iters]
        sides = [(self.buffer, tuple(there)), (self.cache, tuple(here))]
        (source, at), (target, to) = sides if into_cache else reversed(sides)
        block = Block(
            state.fresh_block_name(self.cache.name), tuple(iters),
            (BufferRegion.point(source, at),), (BufferRegion.point(target, to),),
            BufferStore(target, BufferLoad(source, at), to),
        )  # fmt: skip
        return nest(loops, BlockRealize(tuple(values), predicate, block))

    def redirect(self, stmt: Stmt, *, stores: bool) -> Stmt:
        """`stmt` with loads (and, with `stores`, also stores) of the buffer moved to the cache."""
        old, new = self.buffer, self.cache
        if stores and self.held is None:
            return substitute_buffers(stmt, {old: new})

        def moved(r: BufferRegion) -> BufferRegion:
            if r.buffer is not old:
                return r
            lows = self.inside([d.min for d in r.region])
            pairs = zip(lows, r.region, strict=True)
            return BufferRegion(new, tuple(Range(low, d.extent) for low, d in pairs))

        def there(load: BufferLoad) -> Expr:
            return BufferLoad(new, self.inside(load.indices), load.predicate)

        def on_stmt(node: Stmt) -> Stmt | None:
            if stores and isinstance(node, BufferStore) and node.buffer is old:
                return BufferStore(new, node.value, self.inside(node.indices), node.predicate)
            if not isinstance(node, Block):
                return None
            matches = tuple(
                MatchBufferRegion(m.buffer, moved(m.source)) for m in node.match_buffers
            )
            writes = tuple(map(moved, node.writes)) if stores else node.writes
            reads = tuple(map(moved, node.reads))
            return evolve(node, reads=reads, writes=writes, match_buffers=matches)

        return map_exprs(stmt, lambda e: replace_loads(e, old, there), on_stmt)


def _lies_in(index: Expr, r: Range) -> tuple[Expr, Expr]:
    first, last = r.min.astype(index.dtype), (r.min + r.extent).astype(index.dtype)
    return index >= first, compare(LT, index, last)


def _consumers(
    state: State,
    scope: Scope,
    buffer: Buffer,
    wanted: Sequence[BlockRV | str],
    writers: Sequence[Child],
) -> list[Child]:
    """The readers to redirect: the `wanted` readers, or all after the writer. Readers in an init
    are then left out, because an init runs before the copy."""
    readers = [c for c in scope.readers(buffer) if wanted or not init_around(state, c.realize)]
    if wanted:
        tokens = {state.value(rv) for rv in wanted if isinstance(rv, BlockRV)}
        chosen = [c for c in readers if c.token in tokens]
        if len(chosen) != len(tokens):
            raise state.error(
                "not-a-consumer", f"a given consumer does not read {buffer.name} in this scope"
            )
        readers = chosen
    order = {c.token: n for n, c in enumerate(scope.realizes)}
    for child in readers:
        require_free_of_init(state, child.realize)
        if any(child.token is w.token or order[child.token] < order[w.token] for w in writers):
            raise state.error(
                "reads-before-written",
                f"{child.block.name} reads {buffer.name} before or while it is written",
                child.realize,
            )
    return readers


def split_point(state: State, writer: Child, readers: Sequence[Child]) -> Stmt:
    """The statement around the writer after which the copy is inserted. It stands inside all loops
    that the writer shares with a reader, so that the copy runs before the first reader. Without
    readers it is the writer's outermost loop."""
    shared = max((shared_loops(writer, child) for child in readers), default=0)
    return _placed(state, writer.realize if shared >= len(writer.loops) else writer.loops[shared])


def _placed(state: State, node: Stmt) -> Stmt:
    """The nearest statement, from `node` outwards, beside which a statement can be inserted."""
    parent = state.parent(node)
    while parent is not None and not isinstance(parent, (For, Block, SeqStmt)):
        node, parent = parent, state.parent(parent)
    return node


def _condition(state: State, anchor: Stmt, readers: Sequence[Child]) -> Stmt | None:
    """The outermost statement that may skip `anchor` although a reader runs; None without one."""
    around = [set(state.ancestors(c.realize)) for c in readers]
    found, below = None, anchor
    for node in state.ancestors(anchor):
        if isinstance(node, (IfThenElse, While)) and any(below not in a for a in around):
            found = node
        below = node
    return found


def _refuse_skipped(state: State, anchor: Stmt, writer: Child, readers: Sequence[Child]) -> None:
    """Refuse a condition that may skip `anchor` (the writer's statement) where a reader runs."""
    condition = _condition(state, anchor, readers)
    if condition is not None:
        raise state.error(
            "conditional-copy", f"{writer.block.name} stands under a condition that a reader does "
            "not share, so the copy could lack what the reader needs", condition,
            hint="give the readers under the same condition as consumer_blocks",
        )  # fmt: skip


def _written_region(state: State, writer: Child, buffer: Buffer, anchor: Stmt) -> list[Range]:
    """The region of `buffer` that the writer writes during one execution of `anchor`."""
    outer = state.loops_above(anchor)
    inner = [n for n in writer.loops if n not in outer]
    return _bound_region(writer, writer.block.writes, buffer, inner)


def _require_held(state: State, plan: CachePlan, readers: Sequence[Child]) -> None:
    """Refuse readers of elements that a cache of a part of the buffer does not hold."""
    if plan.held is None:
        return
    for child in readers:
        need = _bound_region(child, child.block.reads, plan.buffer, child.loops)
        analyzer = Analyzer(plan.known)
        inside = intersect(need, plan.buffer.whole().region, analyzer)
        inside = intersect(inside, _of_iterators(child, plan.buffer), analyzer)
        if not covers(plan.held, inside, analyzer):
            text = f"{child.block.name} reads more of {plan.buffer.name} than this scope writes"
            raise state.error("not-held", text, child.realize, hint="give other consumer_blocks")


def _of_iterators(child: Child, buffer: Buffer) -> list[Range]:
    """The box of a buffer that a block reads over all values of its iterators."""
    domains = {v.var: v.dom for v in child.block.iter_vars}
    boxes = [list(relax(r, domains).region) for r in child.block.reads if r.buffer is buffer]
    return reduce(union_regions, boxes)


def _sized(box: Sequence[Range]) -> bool:
    """Whether a box has a constant size and starts at indices that load no memory."""
    return all(as_int(r.extent) is not None and not reads_memory(r.min) for r in box)


def _same(a: Range, b: Range) -> bool:
    return as_int(a.min) == as_int(b.min) == 0 and a.extent is b.extent


def _bound_region(
    child: Child, regions: Sequence[BufferRegion], buffer: Buffer, loops: Sequence[For]
) -> list[Range]:
    """The union of the regions of `buffer`, over loop variables, while `loops` run, in bounds."""
    block, values = child.block, child.realize.iter_values
    bound = dict(zip((v.var for v in block.iter_vars), values, strict=True))
    box: list[Range] | None = None
    for region in regions:
        if region.buffer is not buffer:
            continue
        here = BufferRegion(
            buffer,
            tuple(
                Range(substitute(r.min, bound), substitute(r.extent, bound)) for r in region.region
            ),
        )
        ranges = list(relax(here, ranges_of(loops)).region)
        box = ranges if box is None else union_regions(box, ranges)
    assert box is not None
    return box


def _with_cache(node: Stmt, cache: Buffer, copy: Stmt, at_start: bool) -> Stmt:
    assert isinstance(node, Block)
    body = seq((copy, node.body)) if at_start else node.body
    return evolve(node, body=body, alloc_buffers=(*node.alloc_buffers, cache))


def _copy_block(nested: Stmt) -> Block:
    return next(n for n in walk_stmts(nested) if isinstance(n, Block))
