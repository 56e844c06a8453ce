"""cache_update: keeps the elements that a loop updates in a buffer of their own while it runs.

    for k: for i, j in a tile: B[i, j] += f
    ->
    for i, j in the tile: B_local[i, j] = B[i, j]
    for k: for i, j in the tile: B_local[i, j] += f
    for i, j in the tile: B[i, j] = B_local[i, j]

With loops over the tile that are unrolled or vectors, the copy stays in registers through the whole
reduction, whose length may be known at run time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from math import inf, prod
from typing import NamedTuple

from metasched.analysis.added import in_bounds, unsafe_instances
from metasched.analysis.block import is_leaf
from metasched.analysis.dependence import Touch, loops_below, place, touches
from metasched.analysis.polyhedra import meet_nowhere
from metasched.analysis.scope import Child
from metasched.arith.affine import interval, linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import GE, LT, TRUE, Expr, Var, as_expr, as_int, compare, logical_and
from metasched.ir.op import call
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IfThenElse, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, reads_memory, replace_loads, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_kinds,
    proof,
    refuse_on,
    refuse_opaque,
    require_scope_name,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.cache import cache_buffer
from metasched.schedule.primitives.new_stage import beside, stage, with_buffers
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.plain("local"))
def cache_update(
    state: State, loop: LoopRV, storage_scope: str, beyond: bool = False
) -> list[BlockRV]:
    """Let the block below `loop` update a copy; returns the blocks that copy in and back.

    The copies run before and after the loop, over the box of elements that the loop updates. If the
    elements are a part of the box, as a triangle, the rest of the copy is zero, and is not copied
    back. Loads of other elements of the same buffer stay as they are.

    Args:
        beyond: True for a copy of the whole box, even if the buffer does not have all its elements.
            The block then updates the others, too, without the conditions that only keep its
            stores in the buffer; they are not copied back.

    requires  a known storage scope; a serial loop, with one block below it and nothing but loops
              between; a block without init and predicate, whose body is one store, perhaps under
              an `if`, to an element that its value reads; indices of this element that are loops,
              or sums of loops with constant extents, which below `loop` fill a box of one size
              within the buffer, or a box with constant ends that reaches beyond, if a condition
              keeps the stores within (with `beyond`, the other conditions keep the reads within
              their buffers), or part of a box if the other indices decide the ends of a
              loop that is an index; other loads of the buffer from outside of the box; a buffer
              without strides
    rewrite   for k: for i in range(4): B(X[i] = X[i] + A[i, k])
              ->
              for ax0 in range(4): X_local(X_local[ax0] = X[ax0])
              for k: for i in range(4): B(X_local[i] = X_local[i] + A[i, k])
              for ax0 in range(4): X_local_back(X[ax0] = X_local[ax0])
    """
    require_scope_name(state, storage_scope)
    node = state.loop(loop)
    require_serial(state, node)
    child = _alone(state, node)
    realize, old = child.realize, child.block
    store = _update(state, realize)
    buffer = store.buffer
    refuse_opaque(state, old, buffer)
    if buffer.strides or buffer.elem_offset is not None:
        raise state.error(
            "strided", f"{buffer.name} has strides or an offset, which its copy would not have",
            realize,
        )  # fmt: skip
    inside = loops_below(child.loops, node)
    require_steady_ends(state, inside)
    box = _box(state, child, inside, store, beyond)
    _require_others_outside(state, child, inside, buffer)
    cache = cache_buffer(state, buffer, storage_scope, box.shape(buffer))
    dropped = _dropped(child, store) if beyond else frozenset()
    made = _updating(old, store, cache, box, dropped)
    if dropped:
        _require_safe(state, realize, made)
    before, after, copies = _copies(state, buffer, cache, box)
    above = state.loops_above(node)
    state.commit(
        edit.wrap(realize, lambda s: evolve(s, block=made)),
        beside(node, [before], [after]),
        edit.wrap(state.scope(realize).block, with_buffers(cache)),
    )
    confirm_kinds(state, above)
    return [state.new_block(each.token) for each in copies]


@proof
def _require_safe(state: State, realize: BlockRealize, made: Block) -> None:
    """Refuse instances beyond the buffer that read beyond other buffers."""
    failure = unsafe_instances(made, {v.var: v.dom for v in made.iter_vars})
    refuse_on(state, failure, realize, "without `beyond`, the conditions stay")


def _updating(
    old: Block, store: BufferStore, cache: Buffer, box: _Box, dropped: Collection[Expr]
) -> Block:
    """The block that updates the copy, without the conditions `dropped`."""
    place = box.in_copy(store.indices)

    def own(load: BufferLoad) -> BufferLoad:
        return BufferLoad(cache, place) if load.indices == store.indices else load

    def copied(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, IfThenElse):
            return BufferStore(cache, replace_loads(store.value, store.buffer, own), place)
        kept = [c for c in conjuncts(stmt.condition) if c not in dropped]
        inner = copied(stmt.then)
        if not kept:
            return inner
        return IfThenElse(replace_loads(reduce(logical_and, kept), store.buffer, own), inner)

    made = evolve(old, body=copied(old.body))
    reads, writes = block_access_regions(made)
    return evolve(made, reads=tuple(reads), writes=tuple(writes))


def _dropped(child: Child, store: BufferStore) -> frozenset[Expr]:
    """The conditions of a block that hold wherever its store is in the buffer."""
    inside = in_bounds(store.indices, store.buffer.whole().region, Analyzer())
    known = Analyzer({v.var: v.dom for v in child.block.iter_vars}).assume(inside)
    found, body = set[Expr](), child.block.body
    while isinstance(body, IfThenElse):
        found |= {c for c in conjuncts(body.condition) if not reads_memory(c) and known.prove(c)}
        body = body.then
    return frozenset(found)


def _copies(
    state: State, buffer: Buffer, cache: Buffer, box: _Box
) -> tuple[Stmt, Stmt, tuple[Block, Block]]:
    """The loops that copy a box in and back, and their blocks."""

    def there(place: tuple[Var, ...]) -> Stmt:
        load, zero = BufferLoad(buffer, box.in_buffer(place)), as_expr(0, buffer.dtype)
        holds = logical_and(box.guard(box.in_buffer(place)), box.within(buffer, place))
        value = load if holds is TRUE else call("if_then_else", holds, load, zero)
        return BufferStore(cache, value, place)

    def back(place: tuple[Var, ...]) -> Stmt:
        store = BufferStore(buffer, BufferLoad(cache, place), box.in_buffer(place))
        holds = box.within(buffer, place)
        return store if holds is TRUE else IfThenElse(holds, store)

    pairs = zip(box.region, box.before, strict=True)
    domains = list(cache.whole().region)
    loops = [Range(r.min + (n or 0), r.extent) for r, n in pairs]
    before, first = stage(state, cache.name, domains, there, loops=loops)
    after, second = stage(
        state, f"{cache.name}_back", domains, back,
        guard=lambda place: box.guard(box.in_buffer(place)), loops=loops, taken=[first.name],
    )  # fmt: skip
    return before, after, (first, second)


def _alone(state: State, node: For) -> Child:
    """The only block below a loop, with nothing but loops between."""
    below = state.scope(node).under(node)
    chain: Stmt = node
    while isinstance(chain, For):
        chain = chain.body
    if len(below) != 1 or chain is not below[0].realize:
        text = f"below {node.var.name} there is more than loops around one block"
        raise state.error("not-a-chain", text, node)
    return below[0]


def _update(state: State, realize: BlockRealize) -> BufferStore:
    """The store of a block that updates one element."""
    block = realize.block
    refuse_on(state, is_leaf(block), realize)
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{block.name} has a predicate", realize)
    if block.init is not None:
        raise state.error(
            "has-init", f"{block.name} has an init, which sets what the loop updates", realize,
            hint="cache_write gives a block with an init a buffer of its own",
        )  # fmt: skip
    store = block.body
    while isinstance(store, IfThenElse) and store.orelse is None:
        store = store.then
    if isinstance(store, BufferStore) and store.predicate is None:
        own = BufferLoad(store.buffer, store.indices)
        if any(load is own for load in loads_of(store.value)):
            return store
    raise state.error(
        "no-update", f"the body of {block.name} is no store to an element that its value reads",
        realize,
    )  # fmt: skip


class _Box(NamedTuple):
    """The elements that a store reaches while loops run.

    Attributes:
        region: a box around them.
        places: for each loop that is an index, the dimension and the number that is added.
        ragged: the loops whose ends other loops decide: the box has more elements than they reach.
        before: for each dimension of which the copy holds the box alone, what is added to a place
            of the buffer for the place in the copy.
    """

    region: list[Range]
    places: dict[Var, tuple[int, int]]
    ragged: list[For]
    before: list[int | None]

    def shape(self, buffer: Buffer) -> tuple[Expr, ...]:
        """The shape of the copy."""
        ends = zip(buffer.shape, self.region, self.before, strict=True)
        return tuple(size if n is None else r.extent for size, r, n in ends)

    def in_copy(self, point: Sequence[Expr]) -> tuple[Expr, ...]:
        """The place in the copy of an element of the buffer."""
        known = Analyzer()
        pairs = zip(point, self.before, strict=True)
        return tuple(known.simplify(i + n) if n else i for i, n in pairs)

    def in_buffer(self, place: Sequence[Expr]) -> tuple[Expr, ...]:
        """The place in the buffer of an element of the copy."""
        return tuple(i - n if n else i for i, n in zip(place, self.before, strict=True))

    def within(self, buffer: Buffer, place: Sequence[Expr]) -> Expr:
        """The condition under which the buffer has an element of the copy."""
        holds: Expr = TRUE
        points = zip(self.in_buffer(place), buffer.shape, self.region, strict=True)
        for index, size, r in points:
            first, end, whole = as_int(r.min), as_int(r.min + r.extent), as_int(size)
            if first is not None and first < 0:
                holds = logical_and(holds, compare(GE, index, 0))
            if end is not None and whole is not None and end > whole:
                holds = logical_and(holds, compare(LT, index, size))
        return holds

    def guard(self, point: Sequence[Expr]) -> Expr:
        """The condition under which the loops reach an element."""
        values = {v: point[d].astype(v.dtype) - rest for v, (d, rest) in self.places.items()}
        holds: Expr = TRUE
        for loop in self.ragged:
            low, end = (substitute(e, values) for e in (loop.min, loop.min + loop.extent))
            holds = logical_and(holds, compare(GE, values[loop.var], low))
            holds = logical_and(holds, compare(LT, values[loop.var], end))
        return holds


def _clipped(start: Expr, extent: Expr, size: Expr) -> Range:
    """The part of an interval that a dimension has: conditions keep stores inside."""
    first, count, whole = as_int(start), as_int(extent), as_int(size)
    if first is None or count is None or whole is None:
        return Range(start, extent.astype(start.dtype))
    first, end = max(first, 0), min(first + count, whole)
    return Range.of(as_expr(first, start.dtype), as_expr(max(end - first, 0), start.dtype))


def _box(state: State, child: Child, inside: list[For], store: BufferStore, beyond: bool) -> _Box:
    """The elements that the store reaches while the loops `inside` run; those that the buffer does
    not have, too, if `beyond`."""
    values = child.realize.bindings
    known = Analyzer(ranges_of([n for n in child.loops if n not in inside]))
    moving, every = {n.var: n for n in inside}, {n.var for n in child.loops}
    hulls = _hulls(child.loops)
    used: set[Var] = set()
    found = _Box([], {}, [], [])
    for index, size in zip(store.indices, store.buffer.shape, strict=True):
        form = linear(substitute(index, values))
        low, parts, alone = Linear({}, form.const), [], []
        for atom, c in form.terms.items():
            if free_vars(atom).isdisjoint(moving):
                low = low.plus(Linear({atom: c}, 0))
                continue
            loop = moving.get(atom) if isinstance(atom, Var) else None
            if loop is None or loop.var in used:
                raise _no_box(state, child, index)
            used.add(loop.var)
            alone.append((loop, c))
        if len(alone) == 1 and alone[0][1] == 1 and not low.terms:
            found.places[alone[0][0].var] = len(found.region), low.const
        for loop, c in alone:
            fixed = free_vars(loop.min).isdisjoint(moving)
            if fixed and free_vars(loop.extent).isdisjoint(every):
                low = low.plus(linear(loop.min), c)
                parts.append((c, loop.extent))
                continue
            least, most = hulls[loop.var]
            if loop.var not in found.places or -inf in (least, -most):
                raise _no_box(state, child, index)
            found.ragged.append(loop)
            low = low.plus(Linear({}, int(least)))
            parts.append((1, as_expr(max(int(most) - int(least) + 1, 0), loop.extent.dtype)))
        extent = _span(parts, index)
        if extent is None:
            raise _no_box(state, child, index)
        start = known.simplify(_as_expr(low, index))
        kept = _clipped(start, extent, size)
        if not (known.prove(kept.min >= 0) and known.prove(kept.min + kept.extent <= size)):
            raise state.error(
                "leaves-buffer", f"the copy of {store.buffer.name} is not proved to stay in the "
                f"buffer where no iteration of {inside[0].var.name} runs", inside[0],
            )  # fmt: skip
        first = as_int(start) if beyond and as_int(extent) is not None else None
        found.before.append(None if first is None else -first)
        found.region.append(Range(start, extent.astype(start.dtype)) if beyond else kept)
    for loop in found.ragged:
        ends = free_vars(loop.min) | free_vars(loop.extent)
        if not ends & every <= found.places.keys():
            raise _no_box(state, child, loop.extent)
    return found


def _hulls(loops: Sequence[For]) -> dict[Var, Interval]:
    """The values of loops, of which earlier ones may decide the ends of later ones."""
    found: dict[Var, Interval] = {}
    for n in loops:
        last = interval(n.min + n.extent - 1, found)[1]
        found[n.var] = interval(n.min, found)[0], last
    return found


def _span(parts: list[tuple[int, Expr]], index: Expr) -> Expr | None:
    """The extent of the interval that a sum of loops with factors fills, None if it has gaps."""
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    sizes = [(c, as_int(n) or 0) for c, n in parts]
    dense = all(n and c == prod(m for b, m in sizes if b < c) for c, n in sizes)
    return as_expr(prod(n for _, n in sizes), index.dtype) if dense else None


def _as_expr(form: Linear, index: Expr) -> Expr:
    total = as_expr(form.const, index.dtype)
    for atom, c in form.terms.items():
        total = total + atom.astype(index.dtype) * c
    return total


def _no_box(state: State, child: Child, index: Expr) -> Exception:
    return state.error(
        "no-box", f"the elements that {child.block.name} updates below the loop fill no box of one "
        "size", child.realize,
        hint="take a loop whose inner loops over the element have extents that no loop decides",
    )  # fmt: skip


@proof
def _require_others_outside(state: State, child: Child, inside: list[For], buffer: Buffer) -> None:
    """Refuse loads of elements that the loop updates, but for the element of the same instance."""
    found = touches(child, frozenset({buffer}))
    writes, reads = ([t for t in found if t.writes is side] for side in (True, False))
    for write in writes:
        for read in reads:
            if not _apart(write, read, inside):
                raise state.error(
                    "reads-results", f"{read.show()}, perhaps an element that another iteration "
                    f"of {inside[0].var.name} updates", child.realize,
                    hint="take a loop inside of which these elements are final",
                )  # fmt: skip


def _apart(write: Touch, read: Touch, inside: list[For]) -> bool:
    moving = {n.var for n in inside} | write.inner | read.inner
    return meet_nowhere(place(write), place(read), moving, [])
