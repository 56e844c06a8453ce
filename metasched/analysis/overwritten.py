"""Blocks whose results the next block overwrites: `C *= 2` before `C += P`."""

from __future__ import annotations

from metasched.analysis.access import exact_accesses
from metasched.analysis.block import is_spatial_only
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Expr, Var
from metasched.ir.stmt import Block, BufferStore


def overwriter(scope: Scope, child: Child) -> Child | None:
    """The block that overwrites all results of a child before any other block uses them, or None.

    Both blocks run once for each element of the same box, and use the element alone. No block that
    runs between them writes what the child reads. The value of the child can then be computed where
    the other block loads the element.
    """
    first = _elementwise(child)
    if first is None or scope.loose or scope.outside(first.buffer) is not None:
        return None
    if scope.block.init is not None:  # it may run in other iterations than the body
        return None
    after = scope.realizes[scope.realizes.index(child) + 1 :]
    users = [n for n, other in enumerate(after) if _uses(other.block, first.buffer)]
    if not users:
        return None
    other, between = after[users[0]], after[: users[0]]
    second = _elementwise(other)
    if second is None or second.buffer is not first.buffer:
        return None
    if _box(child.block, first) != _box(other.block, second):
        return None
    common = {n.var for n in child.loops} & {n.var for n in other.loops}
    if any(_dimension(child, first, v) != _dimension(other, second, v) for v in common):
        return None
    tops = {n for one in (child, other) for n in one.loops[:1]}
    beside = [c for c in scope.realizes if not tops.isdisjoint(c.loops) and c not in (child, other)]
    if any(_uses(one.block, first.buffer) for one in beside):
        return None
    read = {r.buffer.data for r in child.block.reads}
    if any(w.buffer.data in read for one in (*between, *beside) for w in one.block.writes):
        return None
    return other


def _elementwise(child: Child) -> BufferStore | None:
    """The store of a block that runs once for each element of a box and uses this element alone."""
    block, store = child.block, child.block.body
    if not isinstance(store, BufferStore) or store.predicate is not None or child.branches:
        return None
    if block.init is not None or block.alloc_buffers or block.match_buffers:
        return None
    if child.realize.predicate is not TRUE or is_spatial_only(block) is not None:
        return None
    own = [v.var for v in block.iter_vars]
    if len(store.indices) != len(own) or set(store.indices) != set(own):
        return None
    loops: dict[Expr, tuple[Expr, Expr]] = {n.var: (n.min, n.extent) for n in child.loops}
    runs = [loops.get(value) for value in child.realize.iter_values]
    if len(loops) != len(own) or runs != [(v.dom.min, v.dom.extent) for v in block.iter_vars]:
        return None
    found = [a for a in exact_accesses(block) or () if a.buffer.data is store.buffer.data]
    places = {(a.buffer, a.indices) for a in found}
    return store if places == {(store.buffer, store.indices)} else None


def _dimension(child: Child, store: BufferStore, loop: Var) -> int:
    """The dimension of the stored buffer along which a loop moves."""
    pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    return store.indices.index(next(v.var for v, value in pairs if value is loop))


def _box(block: Block, store: BufferStore) -> list[tuple[Expr, Expr]]:
    """The first element and the extent of each dimension that a block stores."""
    dom: dict[Expr, Range] = {v.var: v.dom for v in block.iter_vars}
    return [(dom[v].min, dom[v].extent) for v in store.indices]


def _uses(block: Block, buffer: Buffer) -> bool:
    return any(used.data is buffer.data for used in buffer_uses(block))
