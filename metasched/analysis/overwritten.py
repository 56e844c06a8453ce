"""Blocks whose results a later block overwrites: `C *= 2` before `C += P`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from metasched.analysis.access import exact_accesses
from metasched.analysis.block import is_spatial_only
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Expr, Var, as_expr, as_int
from metasched.ir.stmt import Block, BufferStore


def overwriters(scope: Scope, child: Child) -> tuple[Child, ...]:
    """The blocks that load the results of a child, up to the block that overwrites all of them.

    No other block uses the results before that. Child and blocks run once for each element of the
    same box, and use the element alone. No block that runs between child and last block writes what
    the child reads. The value of the child can then be computed where these blocks load the
    element. Empty where there are no such blocks.
    """
    body = child.block.body
    if not isinstance(body, BufferStore) or scope.loose or scope.outside(body.buffer) is not None:
        return ()
    if scope.block.init is not None:  # it may run in other iterations than the body
        return ()
    buffer, order = body.buffer, list(scope.realizes)
    first = order.index(child)
    users = [c for c in order[first + 1 :] if _uses(c.block, buffer)]
    end = next((n for n, c in enumerate(users) if _stores(c.block, buffer)), None)
    if end is None:
        return ()
    found = users[: end + 1]
    chain = [child, *found]
    places = [_place(c, buffer) for c in chain]
    used = [p for p in places if p is not None]
    if (
        len(used) < len(places)
        or len({_box(c.block, p) for c, p in zip(chain, used, strict=True)}) > 1
    ):
        return ()
    for (one, p), (other, q) in combinations(zip(chain, used, strict=True), 2):
        common = {n.var for n in one.loops} & {n.var for n in other.loops}
        if any(_dimension(one, p, v) != _dimension(other, q, v) for v in common):
            return ()
    tops = {n for one in chain for n in one.loops[:1]}
    beside = [c for c in order if not tops.isdisjoint(c.loops) and c not in chain]
    if any(_uses(one.block, buffer) for one in beside):
        return ()
    read = {r.buffer.data for r in child.block.reads}
    around = [c for c in order[first + 1 : order.index(found[-1])] if c not in chain]
    changed = (w for one in (*around, *beside, *found[:-1]) for w in one.block.writes)
    return () if any(w.buffer.data in read for w in changed) else tuple(found)


def _place(child: Child, buffer: Buffer) -> tuple[Expr, ...] | None:
    """The indices of the only element of `buffer` that an instance of a block uses.

    None unless the block is one store and runs once for each element of a box. Along other
    dimensions, the index is a number, as of the expanded buffer of a scalar.
    """
    block, store = child.block, child.block.body
    if not isinstance(store, BufferStore) or store.predicate is not None or child.branches:
        return None
    if block.init is not None or block.alloc_buffers or block.match_buffers:
        return None
    if child.realize.predicate is not TRUE or is_spatial_only(block) is not None:
        return None
    found = [a for a in exact_accesses(block) or () if a.buffer.data is buffer.data]
    places = {(a.buffer, a.indices) for a in found}
    own = {v.var for v in block.iter_vars}
    if len(places) != 1:
        return None
    ((where, indices),) = places
    moving = [i for i in indices if as_int(i) is None]
    if where is not buffer or len(moving) != len(own) or set(moving) != own:
        return None
    loops: dict[Expr, tuple[Expr, Expr]] = {n.var: (n.min, n.extent) for n in child.loops}
    runs = [loops.get(value) for value in child.realize.iter_values]
    whole = runs == [(v.dom.min, v.dom.extent) for v in block.iter_vars]
    return indices if whole and len(loops) == len(own) else None


def _dimension(child: Child, place: Sequence[Expr], loop: Var) -> int:
    """The dimension of the used buffer along which a loop moves."""
    pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    return place.index(next(v.var for v, value in pairs if value is loop))


def _box(block: Block, place: Sequence[Expr]) -> tuple[tuple[Expr, Expr], ...]:
    """The first element and the extent of each dimension that a block uses."""
    dom: dict[Expr, Range] = {v.var: v.dom for v in block.iter_vars}
    ranges = (dom.get(index, Range(index, as_expr(1))) for index in place)
    return tuple((r.min, r.extent) for r in ranges)


def _stores(block: Block, buffer: Buffer) -> bool:
    return any(w.buffer.data is buffer.data for w in block.writes)


def _uses(block: Block, buffer: Buffer) -> bool:
    return any(used.data is buffer.data for used in buffer_uses(block))
