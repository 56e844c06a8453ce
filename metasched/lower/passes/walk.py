"""Lanes that each walk along memory of their own run around the loop in which they walk.

    for k in range(64):
        for j in T.vectorized(16): s[j] = s[j] + A[p[j], k] * x[k]

    ->  for j in T.vectorized(16):
            for k in range(64): s[j] = s[j] + A[p[j], k] * x[k]

Code generation then loads several steps of a lane at once (see `codegen.squares`). Each lane uses
elements of its own, so the steps of a lane keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.access import SHUFFLED, STEPS
from metasched.analysis.guarded import certain_loads
from metasched.arith.affine import linear_address
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import (
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import bound_vars, free_vars, loads_of, map_body, transform, walk_stmts

_MOST_STORES = 8
"""The most stores of which a copy is made for each step."""
_PLAIN = (AttrStmt, BufferStore, IfThenElse, LetStmt, SeqStmt)


def lanes_around_walks(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above."""
    return map_body(func, lambda body: transform(body, _loop))


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL or stmt.annotations:
        return None
    inner = stmt.body
    if not isinstance(inner, For) or inner.kind is not ForKind.VECTORIZED or inner.annotations:
        return None
    if (
        stmt.var in free_vars(inner.extent)
        or loads_of(inner.extent)
        or (as_int(stmt.extent) or STEPS) < STEPS
    ):
        return None
    steps = evolve(stmt, body=inner.body)
    if not walking_loads(steps, inner.var, lambda atom: inner.var in free_vars(atom)):
        return None
    return evolve(inner, body=steps) if _own_elements(steps, inner.var) else None


def _own_elements(steps: For, lane: Var) -> bool:
    """Whether each lane stores to elements that no other lane uses, and no other step moves."""
    inside = list(walk_stmts(steps.body))
    places: dict[Var, set[tuple[Expr, ...]]] = {}
    for stmt in inside:
        if any(effect_of(e) > Effect.READ for e in stmt.exprs):
            return False
        if isinstance(stmt, BufferStore):
            places.setdefault(stmt.buffer.data, set()).add(stmt.indices)
    for stmt in inside:
        for expr in stmt.exprs:
            for load in loads_of(expr):
                if load.buffer.data in places:
                    places[load.buffer.data].add(load.indices)
    moving = {steps.var}.union(*map(bound_vars, inside))
    for found in places.values():
        if len(found) > 1:
            return False
        (index,) = found.pop()
        terms = dict(linear_address(index).terms)
        if not terms.pop(lane, 0):
            return False
        if any(
            lane in free_vars(a) or loads_of(a) or not moving.isdisjoint(free_vars(a))
            for a in terms
        ):
            return False
    return True


def walking_loads(node: For, lane: Var, varies: Callable[[Expr], bool]) -> list[BufferLoad]:
    """The loads of a loop's body that each step executes, that move by one element from step to
    step, and whose lanes lie apart.

    Args:
        varies: whether a part of an address may differ between lanes.
    """
    inside = list(walk_stmts(node.body))
    stores = [s for s in inside if isinstance(s, BufferStore)]
    if not all(isinstance(s, _PLAIN) for s in inside) or len(stores) > _MOST_STORES:
        return []
    return [
        load
        for load in dict.fromkeys(certain_loads(node.body))
        if load.predicate is None and load.dtype.lanes == 1 and len(load.indices) == 1
        if all(s.buffer.data is not load.buffer.data for s in stores)
        if _walks(node, lane, load, inside, varies)
    ]


def _walks(
    node: For, lane: Var, load: BufferLoad, inside: Sequence[Stmt], varies: Callable[[Expr], bool]
) -> bool:
    """Whether a load has the form above, and nothing else in its address changes in the loop."""
    moving = {node.var}.union(*map(bound_vars, inside))
    written = {s.buffer.data for s in inside if isinstance(s, BufferStore)}
    terms = dict(linear_address(load.indices[0]).terms)
    along, apart = terms.pop(node.var, 0), terms.pop(lane, 0)
    for atom in terms:
        loaded = {x.buffer.data for x in loads_of(atom)}
        if not moving.isdisjoint(free_vars(atom)) or not written.isdisjoint(loaded):
            return False
    return along == 1 and (not -1 <= apart <= SHUFFLED or any(map(varies, terms)))
