"""rolling_buffer: computes elements that several iterations need only once, in a ring buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.block import affine_binding, complete, reduction
from metasched.analysis.cover import bound_regions, shared_loops
from metasched.analysis.scope import Child, EdgeKind, Scope
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import relax
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    LT,
    Compare,
    Expr,
    FloorMod,
    IntImm,
    Or,
    Var,
    as_int,
    compare,
    logical_and,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_on,
    refuse_opaque,
    require_not_output,
    require_root_free,
    require_same_scope,
    require_serial,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_buffers("write"))
def rolling_buffer(
    state: State,
    block: BlockRV | str | list[BlockRV | str],
    write_buffer_index: int | str | Buffer,
) -> None:
    """Keep the elements that an iteration computes for later iterations that need them again.

    In a dimension where neighbouring iterations of a loop overlap, an iteration computes only the
    new part. The dimension of the outermost loop with an overlap becomes a ring, as long as the
    part of one iteration. In strips (`for io in 8: for i in 16`) each strip begins with a whole
    part, and strips may run in parallel (Halide's sliding windows).

    requires  a complete or reduction block in a stage pipeline, no output, that writes one element
              of an allocated buffer at its spatial iterators; loops shared with all readers, over
              which no producer below the loops reduces; these loops are serial, parallel ones may
              stand outside the first loop with an overlap; a dimension of constant extent in which
              the parts of neighbouring iterations overlap, and the only dimension that this loop
              moves; a predicate that has the same value for an element in every iteration
    rewrite   for i: for x in 6: B(B[i * 4 + x]); C(B[i * 4:i * 4 + 6])
              ->
              for i: for x in 6: where(i < 1 or 2 <= x) B(B[(i * 4 + x) % 6]); C(B[... % 6])

    A new opaque iterator of the block says that its instances depend on earlier iterations. A list
    of blocks gets rings in one step: afterwards no block is proved to read only what was written
    before, as a later step for one of them would require.
    """
    blocks = block if isinstance(block, list) else [block]
    nodes = [require_root_free(state, rv) for rv in blocks if isinstance(rv, BlockRV)]
    if not nodes or len(set(nodes)) != len(blocks):
        raise state.error("no-blocks", "rolling_buffer needs one block or several different ones")
    around = require_same_scope(state, nodes)
    rings = [_planned(state, realize, write_buffer_index) for realize in nodes]

    def change(node: Stmt) -> Stmt:
        for ring in rings:
            node = transform(node, ring.stmt, ring.expr)
        assert isinstance(node, Block)
        new = {ring.old: ring.new for ring in rings}
        return evolve(node, alloc_buffers=tuple(new.get(b, b) for b in node.alloc_buffers))

    state.commit(edit.wrap(around, change))


def _planned(state: State, realize: BlockRealize, index: int | str | Buffer) -> _Ring:
    """The ring for the result of a block; refused where it would miss an element."""
    scope = require_stage_pipeline(state, realize)
    buffer = pick_buffer(state, realize, "write", index)
    allocating_block(state, realize, buffer)
    require_not_output(state, realize)
    child = scope.child(realize.block.token)
    shared = _shared(state, scope, child, buffer)
    _require_kind(state, scope, child, len(shared))
    _require_point(state, child, buffer)
    refuse_opaque(state, scope.block, buffer)
    box = _part(child, buffer, shared)
    found = [r for n, loop in enumerate(shared) for r in _rolls(loop, shared[:n], box)]
    rolls = [r for r in found if _is_serial(shared[shared.index(r.loop) :])]
    if found and not rolls:
        require_serial(state, next(n for n in reversed(shared) if n.kind is not ForKind.SERIAL))
    if not rolls:
        raise state.error(
            "no-overlap", f"no dimension of {buffer.name} overlaps between iterations of a loop "
            "that the block shares with its readers", realize,
            hint="compute_at the block below the loop whose iterations read overlapping parts",
        )  # fmt: skip
    _require_stable(state, scope, child, shared)
    (_, write), *_ = [b for b in bound_regions(child, writes=True) if b[0] is buffer]
    guard = realize.predicate
    known = Analyzer(ranges_of(child.loops))
    for roll in rolls:
        _require_steady(state, realize, roll, write[roll.axis][0])
        offset = known.simplify(write[roll.axis][0] - box[roll.axis].min)
        first = compare(LT, roll.loop.var, roll.loop.min + 1)
        guard = logical_and(guard, Or(first, IntImm(offset.dtype, roll.overlap) <= offset))
    return _Ring(state, buffer, realize, guard, rolls)


@dataclass(frozen=True, slots=True)
class _Roll:
    """A dimension of which each iteration of `loop` needs `length` elements.

    The iteration before has computed `overlap` of these elements.
    """

    loop: For
    axis: int
    length: int
    overlap: int


def _shared(state: State, scope: Scope, child: Child, buffer: Buffer) -> tuple[For, ...]:
    """The loops above the block and all readers of the buffer."""
    block = child.block
    for edge in scope.outgoing(child.token):
        if edge.kind is not EdgeKind.RAW and edge.buffer is buffer:
            what = f"{buffer.name} is written again"
            raise state.error("not-read-after-write", what, child.realize)
    readers = [c for c in scope.readers(buffer) if c is not child]
    count = min((shared_loops(child, c) for c in readers), default=0)
    if count == 0:
        raise state.error(
            "no-common-loop", f"{block.name} shares no loop with the readers of {buffer.name}",
            child.realize, hint="compute_at the block below a loop of its readers",
        )  # fmt: skip
    return child.loops[:count]


def _require_kind(state: State, scope: Scope, child: Child, shared: int) -> None:
    """Refuse a block that is neither complete nor a reduction within one iteration."""
    if complete(scope, child.token) is None:
        return
    failure = reduction(scope, child.token)
    if failure is not None and failure.slug == "not-affine":
        failure = affine_binding(child.realize, child.loops[shared:])
    refuse_on(state, failure, child.realize)


def _require_point(state: State, child: Child, buffer: Buffer) -> None:
    """Refuse a block unless it writes one element, whose indices determine its spatial
    iterators."""
    (region,) = [r for r in child.block.writes if r.buffer is buffer]
    spatial = {v.var for v in child.block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1}
    plain = {r.min for r in region.region if isinstance(r.min, Var)}
    point = all(r.is_point for r in region.region) and not spatial - plain
    if len(child.block.writes) != 1 or not point:
        raise state.error(
            "not-a-point", f"{child.block.name} does not write {buffer.name} alone, at the point "
            "of its spatial iterators", child.realize,
        )  # fmt: skip


def _part(child: Child, buffer: Buffer, shared: Sequence[For]) -> list[Range]:
    """The box of the buffer that the block writes in one iteration of the shared loops."""
    inner = ranges_of(child.loops[len(shared) :])
    for where, points in bound_regions(child, writes=True):
        if where is buffer:
            region = BufferRegion(buffer, tuple(Range(low, size) for low, size in points))
            return list(relax(region, inner).region)
    raise AssertionError("the block writes the buffer")


def _rolls(loop: For, outside: Sequence[For], box: Sequence[Range]) -> list[_Roll]:
    """The dimension that this loop alone moves, beside loops outside, by less than its length.

    None where the loop moves a second dimension: the iteration before made no element at the new
    places of that dimension.
    """
    around = {n.var for n in outside}
    moved = [n for n, r in enumerate(box) if loop.var in free_vars(r.min) | free_vars(r.extent)]
    if len(moved) != 1 or as_int(loop.extent) == 1 or not around.isdisjoint(_ends(loop)):
        return []
    (axis,) = moved
    form, length = linear(box[axis].min), as_int(box[axis].extent)
    step = form.terms.get(loop.var, 0)
    rest = frozenset().union(*(free_vars(term) for term in form.terms if term is not loop.var))
    if length is None or not 0 < step < length or not rest <= around:
        return []
    return [_Roll(loop, axis, length, length - step)]


def _ends(loop: For) -> frozenset[Var]:
    return free_vars(loop.min) | free_vars(loop.extent)


def _is_serial(loops: Sequence[For]) -> bool:
    return all(loop.kind is ForKind.SERIAL for loop in loops)


def _require_stable(state: State, scope: Scope, child: Child, shared: Sequence[For]) -> None:
    """Refuse loops that are neither serial nor parallel, and elements whose value may change
    between iterations."""
    for loop in shared:
        if loop.kind is not ForKind.PARALLEL:
            require_serial(state, loop)
    moving = {loop.var for loop in shared}
    producers, queue = {child.token}, [child.token]
    while queue:
        for before in scope.producers(queue.pop()):
            if before.token not in producers:
                producers.add(before.token)
                queue.append(before.token)
    for token in producers:
        one = scope.child(token)
        for v, value in zip(one.block.iter_vars, one.realize.iter_values, strict=True):
            if not v.is_spatial and not free_vars(value).isdisjoint(moving):
                raise state.error(
                    "unfinished", f"{one.block.name} reduces over a loop that it shares with the "
                    "readers, so that its elements change from iteration to iteration", one.realize,
                )  # fmt: skip


def _require_steady(state: State, realize: BlockRealize, roll: _Roll, index: Expr) -> None:
    """Refuse a predicate whose value for an element changes between iterations of the loop.

    A later iteration would read an element that an earlier iteration skipped.
    """
    place = linear(index)
    moving = free_vars(index)
    for condition in conjuncts(realize.predicate):
        if roll.loop.var not in (used := free_vars(condition)) and used.isdisjoint(moving):
            continue
        steady = isinstance(condition, Compare)
        if isinstance(condition, Compare):
            left = linear(condition.a - condition.b.astype(condition.a.dtype))
            times = left.terms.get(roll.loop.var, 0) // place.terms[roll.loop.var]
            rest = linear(condition.a - condition.b - index.astype(condition.a.dtype) * times)
            steady = all(free_vars(t).isdisjoint(moving) for t in rest.terms)
        if not steady:
            raise state.error(
                "moving-predicate",
                lambda condition=condition: (
                    f"{show_expr(condition)} may skip an element in one iteration of "
                    f"{roll.loop.var.name} and compute it in the next"
                ),
                realize,
            )


class _Ring:
    """The buffer with one dimension folded into a ring, and the rewriting of its accesses.

    `writer` runs where `guard` holds. Its new opaque iterators, bound to the loops of the rolls,
    say that its instances depend on those of earlier iterations.
    """

    def __init__(
        self,
        state: State,
        buffer: Buffer,
        writer: BlockRealize,
        guard: Expr,
        rolls: Sequence[_Roll],
    ) -> None:
        self.old, self.axis, self.length = buffer, rolls[0].axis, rolls[0].length
        self.token, self.guard = writer.block.token, guard
        shape = list(buffer.shape)
        shape[self.axis] = IntImm(shape[self.axis].dtype, self.length)
        self.new = state.fresh_buffer(
            buffer.name, tuple(shape), buffer.dtype, buffer.scope, (), None, buffer.align
        )
        loops = [roll.loop for roll in rolls]
        self.steps = [(state.fresh_var(f"v_{n.var.name}", n.var.dtype), n) for n in loops]

    def place(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        out = list(indices)
        index = out[self.axis]
        out[self.axis] = FloorMod(index, IntImm(index.dtype, self.length))
        return tuple(out)

    def expr(self, node: Expr) -> Expr | None:
        if isinstance(node, BufferLoad) and node.buffer is self.old:
            return BufferLoad(self.new, self.place(node.indices), node.predicate)
        return None

    def region(self, region: BufferRegion) -> BufferRegion:
        if region.buffer is not self.old:
            return region
        ranges = list(region.region)
        r = ranges[self.axis]
        zero, size = IntImm(r.min.dtype, 0), IntImm(r.min.dtype, self.length)
        point = Range(FloorMod(r.min, size), r.extent)
        ranges[self.axis] = point if r.is_point else Range(zero, size)
        return BufferRegion(self.new, tuple(ranges))

    def stmt(self, node: Stmt) -> Stmt | None:
        """One statement rewritten to the ring."""
        if isinstance(node, BufferStore) and node.buffer is self.old:
            return evolve(node, buffer=self.new, indices=self.place(node.indices))
        if isinstance(node, BlockRealize) and node.block.token is self.token:
            values = (*node.iter_values, *(loop.var for _, loop in self.steps))
            return evolve(node, predicate=self.guard, iter_values=values)
        if not isinstance(node, Block):
            return None
        if not any(r.buffer is self.old for r in (*node.reads, *node.writes)):
            return None
        reads, writes = (tuple(map(self.region, x)) for x in (node.reads, node.writes))
        made = evolve(node, reads=reads, writes=writes)
        if node.token is not self.token:
            return made
        added = [IterVar(v, Range(n.min, n.extent), IterKind.OPAQUE) for v, n in self.steps]
        return evolve(made, iter_vars=(*made.iter_vars, *added))
