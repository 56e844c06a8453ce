"""read_at, write_at: copy what one iteration of a loop reads or writes, as one block."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.block import loop_iter_kind, stage_pipeline
from metasched.analysis.cover import bound_regions, writes_all
from metasched.analysis.scope import Child, Scope, may_overlap
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, lower_region, relax, union_regions
from metasched.arith.regions import inputs, without_loads
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import LT, TRUE, Expr, Var, as_int, compare, logical_and
from metasched.ir.stmt import (
    EMPTY,
    Block,
    BlockRealize,
    BufferStore,
    For,
    FrozenMap,
    IfThenElse,
    IterVar,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import (
    blocks_of,
    free_vars,
    loads_of,
    reads_memory,
    substitute,
    substitute_buffers,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_kinds,
    refuse_on,
    require_root_free,
    require_same_scope,
    require_scope_name,
    require_stage_pipeline,
    require_whole_reduction,
)
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import updates
from metasched.schedule.primitives.block_division import fixed_domain
from metasched.schedule.primitives.cache import cache_buffer
from metasched.schedule.primitives.instances import load_guards
from metasched.schedule.primitives.new_stage import require_free_of_init
from metasched.schedule.primitives.scope_box import scope_bounds
from metasched.schedule.primitives.storage import pick_buffer
from metasched.schedule.rebind import nest, ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.with_buffers_below("read"))
def read_at(
    state: State,
    loop: LoopRV,
    block: BlockLike,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
) -> BlockRV:
    """Copy the part of a buffer that one iteration of `loop` reads, before its first reader.

    All readers below the loop use the copy. The returned block copies in any order; its annotation
    auto_copy lets lowering choose the form of the copy. If threads share the copy, each thread
    copies what it reads; two threads that copy the same element store the same value.

    requires  a stage pipeline; the block stands below the loop; nothing below the loop writes the
              buffer at or after its first reader
    rewrite   for i: for j: C(A[i, j])
              ->
              for i: A_local(A_local[i, :] = A[i, :]); for j: C(A_local[i, j])
    """
    assert isinstance(block, BlockRV)
    site = _Site(state, loop, block, storage_scope, "read", read_buffer_index)
    readers, writers = site.users("reads"), site.users("writes")
    first = min(map(site.place, readers), default=0)
    last = max(map(site.place, writers), default=-1)
    if last >= first:
        raise state.error(
            "written-below", f"{site.buffer.name} is written below {site.loop.var.name} at or "
            "after its first reader", site.loop,
        )  # fmt: skip
    cache = cache_buffer(state, site.buffer, storage_scope)
    region = site.region(readers, "reads")
    copy = site.copy(site.buffer, cache, region, site.guards(readers, region))
    return site.commit(cache, readers, first, copy)


@primitive(of_loop=ways.with_buffers_below("write"))
def write_at(
    state: State,
    loop: LoopRV,
    block: BlockLike,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
) -> BlockRV:
    """Let one iteration of `loop` write to a new buffer, and copy it back after the last writer.

    All writers below the loop use the new buffer. The returned block copies back in any order; its
    annotation auto_copy lets lowering choose the form of the copy.

    requires  a stage pipeline; the block stands below the loop; below the loop only writers read
              the buffer, and only elements written below the loop; the written elements form one
              box
    rewrite   for i: for j: C(C[i, j])
              ->
              for i: for j: C(C_local[i, j]); C_local(C[i, :] = C_local[i, :])
    """
    assert isinstance(block, BlockRV)
    site = _Site(state, loop, block, storage_scope, "write", write_buffer_index)
    readers, writers = site.users("reads"), site.users("writes")
    name = site.buffer.name
    for writer in writers:
        require_whole_reduction(state, writer.realize)
    for reader in readers:
        if reader not in writers:
            raise state.error(
                "read-below", f"{reader.block.name} reads {name} below {site.loop.var.name}",
                reader.realize,
            )  # fmt: skip
    if writers[0] in readers or updates(writers[0].block, site.buffer):
        raise state.error(
            "not-started", f"{writers[0].block.name} updates {name}, which holds values from "
            f"outside of {site.loop.var.name}", writers[0].realize,
        )  # fmt: skip
    site.require_started(writers)
    region = site.region(writers, "writes")
    site.require_all_written(writers, region)
    cache = cache_buffer(state, site.buffer, storage_scope)
    after = max(map(site.place, writers)) + 1
    copy = site.copy(cache, site.buffer, region, site.guards(writers, region))
    return site.commit(cache, writers, after, copy)


class _Site:
    """A loop, and a buffer used by a block below the loop: where the copy will stand."""

    def __init__(
        self, state: State, loop: LoopRV, block: BlockRV, scope: str, side: str, which: object
    ) -> None:
        require_scope_name(state, scope)
        self.state, self.loop = state, state.loop(loop)
        realize = require_root_free(state, block)
        require_same_scope(state, [self.loop, realize])
        require_free_of_init(state, realize)
        self.scope: Scope = require_stage_pipeline(state, realize)
        self.below = self.scope.under(self.loop)
        if all(c.realize is not realize for c in self.below):
            raise state.error(
                "not-below", f"{realize.block.name} does not stand below {self.loop.var.name}",
                self.loop,
            )  # fmt: skip
        self.buffer: Buffer = pick_buffer(state, realize, side, which)
        body = self.loop.body
        self.items = body.items if isinstance(body, SeqStmt) else (body,)
        self.holds = [{r.block.token for r in blocks_of(s)} for s in self.items]

    def users(self, side: str) -> list[Child]:
        """The blocks below the loop that read (or write) the buffer, in order."""
        return [
            c
            for c in self.below
            for regions in [inputs(c.block) if side == "reads" else c.block.writes]
            if any(r.buffer is self.buffer for r in regions)
        ]

    def place(self, child: Child) -> int:
        """The position in the loop's body of the statement that holds a block."""
        return next(n for n, tokens in enumerate(self.holds) if child.token in tokens)

    def region(self, users: Sequence[Child], side: str) -> list[Range]:
        """The box of the buffer that `users` touch in one iteration of the loop."""
        box: list[Range] | None = None
        for where, inner in self._boxes(users, side):
            ranges = list(relax(where, ranges_of(inner)).region)
            box = ranges if box is None else union_regions(box, ranges, self._known())
        assert box is not None
        if self._guards(users, box) is None:
            box = list(without_loads(BufferRegion(self.buffer, tuple(box))).region)
        return box

    def _guards(self, users: Sequence[Child], box: Sequence[Range]) -> tuple[Expr, ...] | None:
        above = self._above()
        return load_guards(users, [n for c in users for n in c.loops if n not in above], box)

    def guards(self, users: Sequence[Child], box: Sequence[Range]) -> Expr:
        """The condition on the loops under which the bounds of a box are evaluated."""
        guard: Expr = TRUE
        for condition in self._guards(users, box) or ():
            if not self._known().prove(condition):
                guard = logical_and(guard, condition)
        return guard

    def _boxes(self, users: Sequence[Child], side: str) -> list[tuple[BufferRegion, list[For]]]:
        above = self._above()
        out = []
        for child in users:
            inner = [n for n in child.loops if n not in above]
            for buffer, parts in bound_regions(child, writes=side == "writes"):
                if buffer is self.buffer:
                    where = BufferRegion(buffer, tuple(Range(low, size) for low, size in parts))
                    out.append((where, inner))
        return out

    def _above(self) -> list[For]:
        return [*self.state.loops_above(self.loop), self.loop]

    def _known(self) -> Analyzer:
        return Analyzer(ranges_of(self._above()))

    def require_started(self, writers: Sequence[Child]) -> None:
        """Refuse a reduction that may go on in the loop with what a block elsewhere computed."""
        others = [c for c in self.scope.writers(self.buffer) if c not in self.below]
        for writer in writers:
            block = writer.block
            inner = {n.var for n in writer.loops if n not in self._above()}
            pairs = zip(block.iter_vars, writer.realize.iter_values, strict=True)
            if all(free_vars(value) <= inner for v, value in pairs if v.is_reduce):
                continue
            for other in others:
                if may_overlap(block, other.block, self.buffer, reads_a=False, reads_b=False):
                    raise self.state.error(
                        "not-started", f"{block.name} below {self.loop.var.name} may continue a "
                        f"reduction over {self.buffer.name} that {other.block.name} began",
                        writer.realize,
                    )  # fmt: skip

    def require_all_written(self, writers: Sequence[Child], region: Sequence[Range]) -> None:
        """Refuse a region that no single writer fills: the copy back moves every element of it."""
        known = self._known()
        for writer in writers:
            if not writes_all(writer.block, self.buffer):
                continue
            for where, inner in self._boxes([writer], "writes"):
                predicate = writer.realize.predicate
                sure = lower_region(where.region, ranges_of(inner), predicate, known)
                if sure is not None and covers(sure, region, known):
                    return
        raise self.state.error(
            "not-all-written", f"an iteration of {self.loop.var.name} is not proved to write one "
            f"whole box of {self.buffer.name}", self.loop,
        )  # fmt: skip

    def copy(
        self, source: Buffer, target: Buffer, region: Sequence[Range], where: Expr
    ) -> BlockRealize:
        """`target[region] = source[region]` under a condition, as one block over the loops that
        the region uses.

        The copy of one element has no loops, and lowering has no form to choose.
        """
        state = self.state
        used = frozenset().union(*(free_vars(r.min) | free_vars(r.extent) for r in region))
        outer = [n for n in self._above() if n.var in used]
        iters = [
            IterVar(state.fresh_var(f"v{n}", o.var.dtype), fixed_domain(state, o),
                    loop_iter_kind(o, ()))
            for n, o in enumerate(outer)
        ]  # fmt: skip
        mine: dict[Var, Expr] = {o.var: v.var for o, v in zip(outer, iters, strict=True)}
        box = [Range(substitute(r.min, mine), substitute(r.extent, mine)) for r in region]
        one = all(as_int(r.extent) == 1 and not reads_memory(r.min) for r in box)
        loops = [(state.fresh_var(f"ax{n}", r.min.dtype), r.extent) for n, r in enumerate(box)]
        point = tuple(r.min if one else r.min + v for r, (v, _) in zip(box, loops, strict=True))
        loops = [] if one else loops
        body: Stmt = BufferStore(target, BufferLoad(source, point), point)
        side = "reads" if source is self.buffer else "writes"
        bounds = [
            Range(substitute(r.min, mine), substitute(r.extent, mine))
            for r in scope_bounds(self.scope, self.buffer, side)
        ]
        guard = self._guard(iters, box, point, bounds)
        body = nest(loops, body if guard is TRUE else IfThenElse(guard, body))
        cache = source if source is not self.buffer else target
        asked = dict.fromkeys(x for r in box for e in (r.min, r.extent) for x in loads_of(e))
        places = (
            BufferRegion.point(x.buffer, x.indices) for x in asked
        )  # of a box that they determine
        block = Block(
            state.fresh_block_name(cache.name), tuple(iters),
            (BufferRegion(source, tuple(box)), *places), (BufferRegion(target, tuple(box)),), body,
            annotations=EMPTY if one else FrozenMap({"auto_copy": 1}),
        )  # fmt: skip
        return BlockRealize(tuple(o.var for o in outer), where, block)

    def _guard(
        self,
        iters: Sequence[IterVar],
        box: Sequence[Range],
        point: Sequence[Expr],
        bounds: Sequence[Range],
    ) -> Expr:
        """The condition for a point to lie in the buffer and in `bounds`, without proved parts."""
        known = Analyzer({v.var: v.dom for v in iters})
        needed: dict[Expr, None] = {}
        for r, index, *limits in zip(box, point, self.buffer.whole().region, bounds, strict=True):
            for limit in limits:
                low, high = limit.min, limit.min + limit.extent
                if not known.prove(r.min >= low):
                    needed[index >= low] = None
                if not known.prove(r.min + r.extent <= high):
                    needed[compare(LT, index, high)] = None
        guard: Expr = TRUE
        for condition in needed:
            guard = logical_and(guard, condition)
        return guard

    def commit(self, cache: Buffer, users: Sequence[Child], at: int, copy: BlockRealize) -> BlockRV:
        """Redirect `users` to the cache, and put the copy before statement number `at` of the
        loop."""
        state, old, above = self.state, self.buffer, self._above()
        edits = [edit.wrap(c.realize, lambda s: substitute_buffers(s, {old: cache})) for c in users]
        end = at >= len(self.items)
        edits.append(edit.insert(self.items[-1 if end else at], copy, after=end))
        edits.append(
            edit.wrap(
                self.scope.block,
                lambda s: evolve(s, alloc_buffers=(*s.alloc_buffers, cache)),  # type: ignore[attr-defined]
            )
        )
        state.commit(*edits)
        made = state.new_block(copy.block.token)
        after = state.scope(state.block(made))
        refuse_on(state, stage_pipeline(after), after.block)
        confirm_kinds(state, above)
        return made
