"""Blocks whose results a later block overwrites: `C *= 2` before `C += P`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from metasched.analysis.access import exact_accesses
from metasched.analysis.added import in_bounds
from metasched.analysis.block import is_spatial_only
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Expr, Var, as_expr, as_int
from metasched.ir.stmt import Block, BufferStore, IfThenElse
from metasched.ir.visit import free_vars, reads_memory


def overwriters(scope: Scope, child: Child) -> tuple[Child, ...]:
    """The blocks that load the results of a child, up to the block that overwrites all of them.

    No other block uses the results before that. Child and blocks run once for each element of the
    same box, and use the element alone; blocks in loops of their own may load any elements of a
    buffer that the child writes whole. No block that runs between child and last block writes what
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
    apart = _readers_apart(child, found, buffer)
    chain = [child, *(c for c in found if c not in apart)]
    places = [_place(c, buffer) for c in chain]
    used = [p for p in places if p is not None]
    if (
        len(used) < len(places)
        or len({_box(c, p, buffer) for c, p in zip(chain, used, strict=True)}) > 1
    ):
        return ()
    for (one, p), (other, q) in combinations(zip(chain, used, strict=True), 2):
        common = {n.var for n in one.loops} & {n.var for n in other.loops}
        if any(_dimension(one, p, v) != _dimension(other, q, v) for v in common):
            return ()
    tops = {n for one in (child, *found) for n in one.loops[:1]}
    beside = [c for c in order if not tops.isdisjoint(c.loops) and c not in (child, *found)]
    if any(_uses(one.block, buffer) for one in beside):
        return ()
    read = {r.buffer.data for r in child.block.reads}
    around = [c for c in order[first + 1 : order.index(found[-1])] if c not in found]
    changed = (w for one in (*around, *beside, *found[:-1]) for w in one.block.writes)
    return () if any(w.buffer.data in read for w in changed) else tuple(found)


def _readers_apart(child: Child, found: Sequence[Child], buffer: Buffer) -> list[Child]:
    """The blocks before the last that load elements of a buffer that the child writes whole, and
    that share no loop with another one of the blocks."""
    place = _place(child, buffer)
    if place is None:
        return []
    box = [(as_int(low), as_int(extent)) for low, extent in _box(child, place, buffer)]
    sizes = [as_int(size) for size in buffer.shape]
    if None in sizes or box != [(0, size) for size in sizes]:
        return []
    apart: list[Child] = []
    for reader in found[:-1]:
        others = {n for c in (child, *found) if c is not reader for n in c.loops}
        used = [a for a in exact_accesses(reader.block) or () if a.buffer.data is buffer.data]
        alone = others.isdisjoint(reader.loops) and not reader.block.match_buffers
        if used and alone and all(a.buffer is buffer for a in used):
            apart.append(reader)
    return apart


def _place(child: Child, buffer: Buffer) -> tuple[Expr, ...] | None:
    """The indices of the only element of `buffer` that an instance of a block uses.

    None unless the block is one store and runs once for each element of a box, of which it may
    leave out what the buffer does not have. Along other dimensions, the index is a number, as of
    the expanded buffer of a scalar.
    """
    block, store = child.block, child.block.body
    if isinstance(store, IfThenElse) and store.orelse is None:
        store = store.then
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
    moving = [_iterator(i) for i in indices if as_int(i) is None]
    if where is not buffer or len(moving) != len(own) or set(moving) != own:
        return None
    if store is not block.body and not _keeps_inside(block, buffer, indices):
        return None
    loops: dict[Expr, tuple[Expr, Expr]] = {n.var: (n.min, n.extent) for n in child.loops}
    runs = [loops.get(value) for value in child.realize.iter_values]
    whole = runs == [(v.dom.min, v.dom.extent) for v in block.iter_vars]
    return indices if whole and len(loops) == len(own) else None


def _iterator(index: Expr) -> Expr | None:
    """The iterator that is an index, or to which the index adds a number."""
    form = linear(index)
    return next(iter(form.terms)) if list(form.terms.values()) == [1] else None


def _keeps_inside(block: Block, buffer: Buffer, indices: Sequence[Expr]) -> bool:
    """Whether the condition of a block holds wherever the buffer has the element."""
    assert isinstance(block.body, IfThenElse)
    inside = in_bounds(indices, buffer.whole().region, Analyzer())
    known = Analyzer({v.var: v.dom for v in block.iter_vars}).assume(inside)
    return not reads_memory(block.body.condition) and known.prove(block.body.condition)


def _dimension(child: Child, place: Sequence[Expr], loop: Var) -> int:
    """The dimension of the used buffer along which a loop moves."""
    pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    mine = next(v.var for v, value in pairs if value is loop)
    return next(n for n, index in enumerate(place) if mine in free_vars(index))


def _box(child: Child, place: Sequence[Expr], buffer: Buffer) -> tuple[tuple[Expr, Expr], ...]:
    """The first element and the extent of each dimension that a block uses."""
    dom: dict[Expr | None, Range] = {v.var: v.dom for v in child.block.iter_vars}
    found: list[tuple[Expr, Expr]] = []
    for index, size in zip(place, buffer.shape, strict=True):
        run = dom.get(_iterator(index))
        low = index if run is None else run.min + linear(index).const
        extent = as_expr(1) if run is None else run.extent
        first, count, whole = as_int(low), as_int(extent), as_int(size)
        if first is not None and count is not None and whole is not None:
            end = min(first + count, whole)
            low, extent = as_expr(max(first, 0)), as_expr(max(end - max(first, 0), 0))
        found.append((low, extent))
    return tuple(found)


def _stores(block: Block, buffer: Buffer) -> bool:
    return any(w.buffer.data is buffer.data for w in block.writes)


def _uses(block: Block, buffer: Buffer) -> bool:
    return any(used.data is buffer.data for used in buffer_uses(block))
