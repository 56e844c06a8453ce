"""rolling_buffer: computes elements that neighbouring iterations share once, in a ring buffer."""

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
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IterKind, IterVar, Stmt, evolve
from metasched.ir.visit import free_vars, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_on,
    refuse_opaque,
    require_not_output,
    require_root_free,
    require_serial,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_buffers("write"))
def rolling_buffer(state: State, block: BlockLike, write_buffer_index: int | str | Buffer) -> None:
    """Keep the elements that an iteration computes for later iterations that need them again.

    Of each dimension in which neighbouring iterations of a loop overlap only the new part is
    computed; the dimension of the outermost such loop becomes a ring as long as one iteration's
    part.

    requires  a complete or reduction block in a stage pipeline, no output, that writes one element
              of an allocated buffer at its spatial iterators; serial loops that it shares with all
              readers, none of which a producer below reduces over; a dimension of constant extent
              in which the parts of neighbouring iterations overlap; a predicate that gives the same
              answer for an element in every iteration
    rewrite   for i: for x in 6: B(B[i * 4 + x]); C(B[i * 4:i * 4 + 6])
              ->
              for i: for x in 6: where(i < 1 or 2 <= x) B(B[(i * 4 + x) % 6]); C(B[... % 6])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    scope = require_stage_pipeline(state, realize)
    buffer = pick_buffer(state, realize, "write", write_buffer_index)
    allocating_block(state, realize, buffer)
    require_not_output(state, realize)
    child = scope.child(realize.block.token)
    shared = _shared(state, scope, child, buffer)
    _require_kind(state, scope, child, len(shared))
    _require_point(state, child, buffer)
    refuse_opaque(state, scope.block, buffer)
    box = _part(child, buffer, shared)
    rolls = [r for loop in shared for r in _rolls(loop, box)]
    if not rolls:
        raise state.error(
            "no-overlap", f"no dimension of {buffer.name} overlaps between iterations of a loop "
            "that the block shares with its readers", realize,
            hint="compute_at the block below the loop whose iterations read overlapping parts",
        )  # fmt: skip
    _require_stable(state, scope, child, shared, rolls)
    (_, write), *_ = [b for b in bound_regions(child, writes=True) if b[0] is buffer]
    for roll in rolls:
        _require_steady(state, realize, roll, write[roll.axis][0])
    guard = realize.predicate
    known = Analyzer(ranges_of(child.loops))
    for roll in rolls:
        offset = known.simplify(write[roll.axis][0] - box[roll.axis].min)
        first = compare(LT, roll.loop.var, roll.loop.min + 1)
        guard = logical_and(guard, Or(first, IntImm(offset.dtype, roll.overlap) <= offset))
    (region,) = realize.block.writes
    rolled = {region.region[roll.axis].min for roll in rolls}
    ring = _Ring(state, buffer, rolls[0].axis, rolls[0].length)

    def change(node: Stmt) -> Stmt:
        made = transform(node, lambda s: ring.stmt(s, realize.block, guard, rolled), ring.expr)
        assert isinstance(made, Block)
        allocs = tuple(ring.new if b is buffer else b for b in made.alloc_buffers)
        return evolve(made, alloc_buffers=allocs)

    state.commit(edit.wrap(scope.block, change))


@dataclass(frozen=True, slots=True)
class _Roll:
    """A dimension of which each iteration of `loop` needs `length` elements; the iteration before
    made `overlap` of them."""

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


def _rolls(loop: For, box: Sequence[Range]) -> list[_Roll]:
    """The dimensions that only this loop moves, by less than their length."""
    found = []
    for axis, r in enumerate(box):
        form, length = linear(r.min), as_int(r.extent)
        if set(form.terms) == {loop.var} and length is not None and as_int(loop.extent) != 1:
            step = form.terms[loop.var]
            if 0 < step < length:
                found.append(_Roll(loop, axis, length, length - step))
    return found[:1]


def _require_stable(
    state: State, scope: Scope, child: Child, shared: Sequence[For], rolls: Sequence[_Roll]
) -> None:
    """Refuse loops that are not serial, and elements whose value may change between iterations."""
    for loop in shared:
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
    """Refuse a predicate that depends on the loop otherwise than by the element. A later iteration
    would take an element as made that an earlier one skipped."""
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
    """The buffer with one dimension folded into a ring, and the rewriting of its accesses."""

    def __init__(self, state: State, buffer: Buffer, axis: int, length: int) -> None:
        self.old, self.axis, self.length = buffer, axis, length
        shape = list(buffer.shape)
        shape[axis] = IntImm(shape[axis].dtype, length)
        self.new = state.fresh_buffer(
            buffer.name, tuple(shape), buffer.dtype, buffer.scope, (), None, buffer.align
        )

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

    def stmt(self, node: Stmt, target: Block, guard: Expr, rolled: set[Expr]) -> Stmt | None:
        """One statement rewritten to the ring. In `target`, the iterators `rolled` become opaque,
        because its instances depend on those of earlier iterations."""
        if isinstance(node, BufferStore) and node.buffer is self.old:
            return evolve(node, buffer=self.new, indices=self.place(node.indices))
        if isinstance(node, BlockRealize) and node.block.token is target.token:
            return evolve(node, predicate=guard)
        if not isinstance(node, Block):
            return None
        if any(r.buffer is self.old for r in (*node.reads, *node.writes)):
            made = evolve(
                node,
                reads=tuple(map(self.region, node.reads)),
                writes=tuple(map(self.region, node.writes)),
            )
            if node.token is not target.token:
                return made
            iters = [
                IterVar(v.var, v.dom, IterKind.OPAQUE) if v.var in rolled else v
                for v in node.iter_vars
            ]
            return evolve(made, iter_vars=tuple(iters))
        return None
