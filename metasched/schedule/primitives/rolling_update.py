"""rolling_update: runs reductions that depend on each other in one pass over blocks of an axis.

Name and idea of the step: Zhao et al., Neptune: Advanced ML operator fusion for locality and
parallelism on GPUs, 2025. The laws by which running results are corrected: `analysis.rescaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metasched.analysis.closing import closed_block
from metasched.analysis.failure import Failure
from metasched.analysis.producers import region_cover
from metasched.analysis.reducer import Reduction
from metasched.analysis.rescaling import Extremum, Indexed, Rescaled, Rescaling, Scale
from metasched.analysis.scope import EdgeKind, Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import negate
from metasched.arith.regions import declared
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    EQ,
    TRUE,
    Div,
    Expr,
    Mul,
    Var,
    as_expr,
    as_int,
    cast,
    compare,
    maximum,
    minimum,
)
from metasched.ir.func import FINITE
from metasched.ir.op import call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IterKind,
    IterVar,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    substitute,
    transform,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_on,
    require_complete_or_reduction,
    require_plain_loop,
    require_same_scope,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.decompose_reduction import require_iterations
from metasched.schedule.primitives.rolling_masked import Hidden, chooses, hidden, of_rest
from metasched.schedule.primitives.rolling_members import (
    Member,
    block_size,
    is_private,
    member_of,
    neighbours,
    require_own_position,
)
from metasched.schedule.state import State


@primitive(of_loop=ways.with_following_nests(2))
def rolling_update(state: State, loops: Sequence[LoopRV], size: int | Expr) -> BlockRV:
    """Run the blocks of neighbouring nests block by block of `size` iterations of one axis, given
    by a loop of each nest, with running results; returns the block around one block of the axis.

    A block that computes one element for each position of the axis computes `size` of them. A
    reduction `X` over the axis first reduces `size` values (into `X_block`), then updates the
    result so far (`X_running`). Where values depend on a maximum or minimum found before, the step
    replaces it by the one found so far (`M_shift`), and first multiplies the result so far by the
    factor that the change of it means (`M_correction`). A factor that is the same for the whole sum
    is applied at the end. A block of the axis where a mask makes every value minus infinity is
    skipped, if integer comparisons without loads decide the mask. The weights are zero there. Their
    products are still summed, since zero times infinity is NaN, unless the function promises
    `tir.finite`. As `rfactor`, the step changes the order in which floating-point numbers are
    combined. The given blocks and loops keep their handles.

    requires  neighbouring nests of one scope, each a chain of plain serial loops from zero around
              one block without predicate, whose iterators over these loops are the loops; no block
              that overwrites what an earlier one reads; loops of one extent; complete blocks and
              reductions, each of one store, with an identity as init, over the given loop alone, of
              one iteration or more if the length varies; a block that reads results of an earlier
              block at positions of the axis reads its own position; sums that depend on another
              reduction by a factor exp((x - m) * c), where m is the maximum of the x and c > 0 (or
              the minimum, and c < 0), or by a factor free of the axis
    rewrite   for k in range(8): M(M[0] = max(M[0], A[k]))
              for k in range(8): C(C[0] += exp(A[k] - M[0]))
              ->
              M_start(m = lowest); M_shift_start(s = lowest); C_start(c = 0)
              for k_o in range(2): C_rolling(
                  for k in range(4): M(b = max(b, A[k_o * 4 + k]))
                  M_update(m = max(m, b)); M_shift(f = exp(s - m); s = m)
                  for k in range(4): C(d += exp(A[k_o * 4 + k] - s))
                  C_update(c = c * f + d))
              M_final(M[0] = m); C_final(C[0] = c)
    """
    nodes = [require_plain_loop(state, rv) for rv in loops]
    if not nodes or len(set(nodes)) != len(nodes):
        raise state.error("no-loops", "rolling_update needs one loop or several different ones")
    require_same_scope(state, nodes)
    members = neighbours(state, [member_of(state, node) for node in nodes])
    scope = state.scope(nodes[0])
    _require_stages(state, scope, members)
    pass_ = _Pass(state, members, block_size(state, members, size))
    pass_.analyse()
    made, around = pass_.nest()
    state.commit(
        edit.replace(members[0].top, made),
        *(edit.delete(member.top) for member in members[1:]),
        *(
            edit.wrap(block, pass_.without_replaced)  # type: ignore[arg-type]
            for block in state.ancestors(members[0].top)
            if isinstance(block, Block)
        ),
        edit.wrap(
            scope.block,
            lambda s: evolve(s, alloc_buffers=(*s.alloc_buffers, *pass_.kept)),  # type: ignore[attr-defined]
        ),
    )
    return state.new_block(around.token)


@proof
def _require_stages(state: State, scope: Scope, members: Sequence[Member]) -> None:
    """Refuse members that are not stages of a pipeline."""
    tokens = {member.block.token for member in members}
    for member in members:
        require_complete_or_reduction(state, scope, member.realize)
        refuse_on(state, region_cover(scope, member.block.token), member.realize)
        if member.block.init is not None:
            require_iterations(state, member.realize, tuple(member.chain))
    for edge in scope.edges:
        if edge.kind is EdgeKind.WAR and edge.src in tokens and edge.dst in tokens:
            first, second = (scope.child(token).block.name for token in (edge.src, edge.dst))
            text = f"block {second} overwrites {edge.buffer.name}, which {first} reads"
            raise state.error("write-after-read", text, scope.child(edge.dst).realize)


@dataclass
class _Pass:
    """The pass over blocks of the axis.

    Attributes:
        values: what each member computes, over the running results.
        shifts, corrections, last: buffers of the stand-in of an extremum, of the factor in one
            block of the axis, and of the factor at the end.
        replaced: buffers of which one block of the axis is kept, in which buffers, and the
            dimension of the axis.
        totals: the result so far of each reduction.
        kept, inner: new buffers that live longer than a block of the axis, and those that do not.
    """

    state: State
    members: Sequence[Member]
    size: int
    values: dict[Member, Rescaled] = field(default_factory=dict)
    owners: dict[Extremum, Member] = field(default_factory=dict)
    scales: dict[tuple[Extremum, str, float], Scale] = field(default_factory=dict)
    shifts: dict[Extremum, Buffer] = field(default_factory=dict)
    corrections: dict[tuple[Extremum, str, float], Buffer] = field(default_factory=dict)
    last: dict[tuple[Extremum, str, float], Buffer] = field(default_factory=dict)
    replaced: dict[Buffer, tuple[Buffer, int]] = field(default_factory=dict)
    totals: dict[Member, Buffer] = field(default_factory=dict)
    kept: list[Buffer] = field(default_factory=list)
    inner: list[Buffer] = field(default_factory=list)

    def analyse(self) -> None:
        """Find how each member depends on the members before it; raises where no law is known."""
        extrema: dict[Buffer, Extremum] = {}
        scaled: dict[Buffer, tuple[Indexed, Scale]] = {}
        running: set[Buffer] = set()
        stages: dict[Buffer, int] = {}
        for member in self.members:
            require_own_position(self.state, member, stages)
            fixed = frozenset(v.var for v in member.fixed)
            laws = Rescaling(
                member.along.var, fixed, extrema, scaled, frozenset(running), self._shift
            )
            value = member.found.rhs[0] if member.found else member.store.value
            found = laws.of(value)
            if isinstance(found, Failure):
                refuse_on(self.state, found, member.realize)
                return
            self._require_law(member, found)
            self.values[member] = found
            buffer = member.store.buffer
            iters = tuple(v.var for v in member.block.iter_vars if v.is_spatial)
            result = Indexed(buffer, member.store.indices, iters)
            if found.scale is not None:
                self._correction(found.scale)
            if member.found is None:
                stages[buffer] = self._position(member)
                if is_private(self.state, self.members, member):
                    self._keep_one_block(member, stages[buffer])
                elif found.scale is not None:
                    raise self.state.error(
                        "read-outside", f"{buffer.name} is used outside of the blocks of the pass, "
                        "and holds no final values", member.realize,
                        hint="inline its block where it is used, or let the pass take the users",
                    )  # fmt: skip
                if found.scale is not None:
                    scaled[buffer] = result, found.scale
                    running.add(buffer)
                continue
            running.add(buffer)
            if member.found.name in ("max", "min") and buffer.dtype.is_float:
                sign = 1 if member.found.name == "max" else -1
                extrema[buffer] = Extremum(result, value, member.along.var, sign)
                self.owners[extrema[buffer]] = member

    def _require_law(self, member: Member, found: Rescaled) -> None:
        """Refuse a factor where no sum takes it."""
        name = member.block.name
        if member.found is None and (found.later or found.value is None):
            raise self.state.error(
                "stage-factor", f"block {name} needs the final result of another block of the pass "
                "for each element", member.realize, hint="inline the block where it is summed",
            )  # fmt: skip
        if member.found and member.found.name != "sum" and (found.scale or found.later):
            raise self.state.error(
                "not-a-sum", f"block {name} combines values that depend on another block of the "
                f"pass, by {member.found.name}", member.realize,
            )  # fmt: skip
        starts = member.found is None and member.block.init is not None
        if starts and (found.scale or found.later):
            raise self.state.error(
                "not-a-sum", f"block {name} reduces another axis, over values that depend on "
                "another block of the pass", member.realize,
            )  # fmt: skip

    def _position(self, member: Member) -> int:
        """The dimension of a block's results that is the axis."""
        var, indices = member.along.var, member.store.indices
        places = [k for k, index in enumerate(indices) if var in free_vars(index)]
        if len(places) != 1 or indices[places[0]] is not var:
            raise self.state.error(
                "other-position", f"block {member.block.name} does not write an element of its own "
                f"for each {var.name}", member.realize,
            )  # fmt: skip
        return places[0]

    def _keep_one_block(self, member: Member, place: int) -> None:
        """Keep the results of a member for one block of the axis only."""
        buffer = member.store.buffer
        shape = list(buffer.shape)
        shape[place] = as_expr(self.size, shape[place].dtype)
        content = (f"{buffer.name}_block", tuple(shape), buffer.dtype, buffer.scope)
        self.replaced[buffer] = self.state.fresh_buffer(*content), place
        self.inner.append(self.replaced[buffer][0])

    def without_replaced(self, block: Block) -> Block:
        """A block around the pass, without the buffers that no block uses now."""
        kept = [b for b in block.alloc_buffers if b not in self.replaced]
        reads, writes = (
            tuple(r for r in regions if r.buffer not in self.replaced)
            for regions in (block.reads, block.writes)
        )
        return evolve(block, reads=reads, writes=writes, alloc_buffers=tuple(kept))

    def _buffer(self, name: str, member: Member, places: list[Buffer]) -> Buffer:
        content = (name, member.shape, member.store.buffer.dtype, "global")
        made = self.state.fresh_buffer(*content)
        places.append(made)
        return made

    def _shift(self, extremum: Extremum, instance: Mapping[Var, Expr]) -> Expr:
        """What stands for a running extremum: the extremum, or the finite number next to it."""
        owner = self.owners[extremum]
        if extremum not in self.shifts:
            name = f"{extremum.result.buffer.name}_shift"
            self.shifts[extremum] = self._buffer(name, owner, self.kept)
        return BufferLoad(self.shifts[extremum], owner.element(instance))

    def _correction(self, scale: Scale) -> None:
        """Make the buffers of the factor of a kind of values."""
        owner = self.owners[scale.extremum]
        if scale.key not in self.scales:
            self.scales[scale.key] = scale
            name = scale.extremum.result.buffer.name
            self.corrections[scale.key] = self._buffer(f"{name}_correction", owner, self.inner)
            if not owner.starts_finite:
                self.last[scale.key] = self._buffer(f"{name}_last", owner, self.kept)

    def _factor(self, scale: Scale, old: Expr, new: Expr) -> Expr:
        """The factor of a sum when an extremum moves from `old` to `new`.

        A mask of the sum may leave out the infinite element that is the extremum. The sum then has
        no NaN, and the difference of the two infinities must not give one.
        """
        factor = scale.power(old, new)
        if not any(v.scale and chooses(m.store.value) for m, v in self.values.items()):
            return factor
        return call("if_then_else", compare(EQ, old, new), as_expr(1, factor.dtype), factor)

    def nest(self) -> tuple[Stmt, Block]:
        """All statements that replace the nests, and the block around a block of the axis."""
        starts: list[Stmt] = []
        inside: list[Stmt] = []
        finals: list[Stmt] = []
        first = self.members[0].loop
        count = Analyzer().simplify((first.extent + (self.size - 1)) // self.size)
        over = self.state.fresh_var(f"{first.var.name}_o", first.var.dtype)
        block_of = self.state.fresh_var(f"v{first.var.name}_o", first.var.dtype)
        for member in self.members:
            value = self.values[member]
            if member.found is None:
                assert value.value is not None
                body = evolve(member.store, value=value.value)
                inside.append(self._per_block(member, block_of, body))
                continue
            self._reduction(member, member.found, value, block_of, (starts, inside, finals))
        found = self._hidden(over)
        alive = TRUE if found is None else found.alive
        name = f"{self.members[-1].block.name}_rolling"
        around = self._around(name, (over, block_of, count), alive, inside, self.inner)
        per_block: list[Stmt] = [around]
        if found is not None and found.rest:
            block_of = self.state.fresh_var(block_of.name, block_of.dtype)
            rest, parts = self._rest(found, block_of)
            dead = negate(Analyzer(), alive)
            name = f"{self.members[-1].block.name}_hidden"
            per_block.append(self._around(name, (over, block_of, count), dead, rest, parts))
        return seq((*starts, For.serial(over, count, seq(per_block)), *finals)), around.block

    def _around(
        self, name: str, axis: tuple[Var, Var, Expr], predicate: Expr, inside: Sequence[Stmt],
        buffers: Sequence[Buffer],
    ) -> BlockRealize:  # fmt: skip
        """The block around one block of the axis: given by its loop, iterator and their extent."""
        over, block_of, count = axis
        iters = (IterVar(block_of, Range(as_expr(0, over.dtype), count), IterKind.OPAQUE),)
        name = self.state.fresh_block_name(name)
        block = Block(name, iters, (), (), seq(tuple(inside)), None, tuple(buffers))
        above = self.state.loops_above(self.members[0].top)
        outside = {n.var: Range(n.min, n.extent) for n in above}
        return closed_block(BlockRealize((over,), predicate, declared(block)), outside)

    def _hidden(self, over: Var) -> Hidden | None:
        """The blocks of the axis that a mask hides."""
        func = self.state.func_of(self.members[0].realize)[1]
        one = {m: as_expr(1, m.store.buffer.dtype) for m in self.members}
        values = {m: one[m] if v.value is None else v.value for m, v in self.values.items()}
        return hidden(
            self.members, values, over, self.size, self.replaced, frozenset(self.shifts.values()),
            bool(func.attrs.get(FINITE, False)),
        )  # fmt: skip

    def _rest(self, found: Hidden, block_of: Var) -> tuple[list[Stmt], list[Buffer]]:
        """The statements of a hidden block of the axis, and their buffers."""
        statements, parts = list[Stmt](), list[Buffer]()
        for member, value in found.rest.items():
            assert member.found is not None
            few = of_rest(self.state, member, value)
            part = self._buffer(f"{member.store.buffer.name}_rest", few, parts)
            total, at = self.totals[member], few.at
            (summed,) = member.found.combine((BufferLoad(part, at),), (value,))
            init = BufferStore(part, member.found.identity[0], at)
            nest = self._per_block(few, block_of, BufferStore(part, summed, at), init)
            statements.append(fresh_copy(nest, lambda v: self.state.fresh_var(v.name, v.dtype)))
            new = BufferLoad(total, member.at), BufferLoad(part, at)
            (updated,) = member.found.combine(new[:1], new[1:])
            store = BufferStore(total, updated, member.at)
            statements.append(self._nest(member, "rest_update", store))
        return statements, parts

    def _reduction(
        self,
        member: Member,
        found: Reduction,
        value: Rescaled,
        block_of: Var,
        into: tuple[list[Stmt], list[Stmt], list[Stmt]],
    ) -> None:
        """Add the statements of a reduction: its start, its update block by block, and its end."""
        starts, inside, finals = into
        buffer, at = member.store.buffer, member.at
        part = self._buffer(f"{buffer.name}_block", member, self.inner)
        total = self._buffer(f"{buffer.name}_running", member, self.kept)
        self.totals[member] = total
        one = as_expr(1, buffer.dtype) if value.value is None else value.value
        sofar, new = BufferLoad(total, at), BufferLoad(part, at)
        (summed,) = found.combine((new,), (one,))
        starts.append(self._nest(member, "start", BufferStore(total, found.identity[0], at)))
        init = BufferStore(part, found.identity[0], at)
        inside.append(self._per_block(member, block_of, BufferStore(part, summed, at), init))
        kept: Expr = sofar
        final: Expr = sofar
        if value.scale is not None:
            owner = self.owners[value.scale.extremum]
            element = owner.element(value.scale.instance)
            kept = sofar * BufferLoad(self.corrections[value.scale.key], element)
            if value.scale.key in self.last:
                final = sofar * BufferLoad(self.last[value.scale.key], element)
        for factor, divides in value.later:
            final = Div(final, factor) if divides else Mul(final, factor)
        (updated,) = found.combine((kept,), (new,))
        inside.append(self._nest(member, "update", BufferStore(total, updated, at)))
        finals.append(self._nest(member, "final", BufferStore(buffer, final, member.store.indices)))
        for extremum, owner in self.owners.items():
            if owner is member and extremum in self.shifts:
                self._moving(extremum, sofar, into)

    def _moving(
        self, extremum: Extremum, sofar: BufferLoad, into: tuple[list[Stmt], list[Stmt], list[Stmt]]
    ) -> None:
        """Add the statements that move the stand-in of an extremum to the one found so far."""
        starts, inside, finals = into
        owner, shift = self.owners[extremum], self.shifts[extremum]
        at, dtype = owner.at, shift.dtype
        finite = as_expr(-extremum.sign * dtype.largest, dtype)
        old = BufferLoad(shift, at)
        new = maximum(sofar, finite) if extremum.sign > 0 else minimum(sofar, finite)
        mine = [scale for key, scale in self.scales.items() if key[0] is extremum]
        stores = [BufferStore(self.corrections[s.key], self._factor(s, old, new), at) for s in mine]
        stores.append(BufferStore(shift, new, at))
        starts.append(self._nest(owner, "shift_start", BufferStore(shift, finite, at)))
        inside.append(self._nest(owner, "shift", seq(stores)))
        for scale in mine:
            if scale.key in self.last:
                store = BufferStore(self.last[scale.key], self._factor(scale, old, sofar), at)
                finals.append(self._nest(owner, "last", store))

    def _per_block(
        self, member: Member, block_of: Var, body: Stmt, init: Stmt | None = None
    ) -> Stmt:
        """The nest of a member over one block of the axis; keeps its handles."""
        along, loop, old = member.along, member.loop, member.block
        dtype = along.var.dtype
        size = as_expr(self.size, dtype)
        position = cast(dtype, block_of) * size + along.var + along.dom.min
        inside = {along.var: Analyzer().simplify(position)}
        iters = [
            IterVar(v.var, Range(as_expr(0, dtype), size), v.kind) if v is along else v
            for v in old.iter_vars
        ]
        start = init or old.init
        body = self._in_block(substitute(body, inside), along.var)
        start = start and self._in_block(substitute(start, inside), along.var)
        block = evolve(old, iter_vars=tuple(iters), body=body, init=start)
        guard: Expr = TRUE
        extent = as_int(loop.extent)
        if extent is None or extent % self.size:
            guard = cast(loop.var.dtype, block_of) * self.size + loop.var < loop.extent
        nest: Stmt = evolve(member.realize, block=declared(block), predicate=guard)
        for outer in reversed(member.chain):
            extent_of = as_expr(self.size, loop.var.dtype) if outer is loop else outer.extent
            nest = evolve(outer, extent=extent_of, body=nest)
        return nest

    def _in_block(self, stmt: Stmt, position: Var) -> Stmt:
        """A statement over the buffers that keep one block, at a position in the block."""

        def moved(buffer: Buffer, indices: Sequence[Expr]) -> tuple[Buffer, tuple[Expr, ...]]:
            new, place = self.replaced[buffer]
            return new, (*indices[:place], position, *indices[place + 1 :])

        def on_expr(node: Expr) -> Expr | None:
            if isinstance(node, BufferLoad) and node.buffer in self.replaced:
                return BufferLoad(*moved(node.buffer, node.indices))
            return None

        def on_stmt(node: Stmt) -> Stmt | None:
            if isinstance(node, BufferStore) and node.buffer in self.replaced:
                buffer, indices = moved(node.buffer, node.indices)
                return BufferStore(buffer, node.value, indices)
            return None

        return transform(stmt, on_stmt, on_expr)

    def _nest(self, member: Member, what: str, body: Stmt) -> Stmt:
        """A block of the body over the results of a member, in copies of its loops."""
        pairs = zip(member.block.iter_vars, member.realize.iter_values, strict=True)
        fixed = {v: e for v, e in pairs if v in member.fixed}
        name = self.state.fresh_block_name(f"{member.block.name}_{what}")
        block = declared(Block(name, tuple(fixed), (), (), body, token=BlockToken()))
        nest: Stmt = BlockRealize(tuple(fixed.values()), TRUE, block)
        used = frozenset().union(*map(free_vars, fixed.values()))
        for loop in reversed(member.chain):
            if loop.var in used:
                nest = evolve(loop, body=nest)
        return fresh_copy(nest, lambda v: self.state.fresh_var(v.name, v.dtype))
