"""Flags that a loop raises: one store after the loop in place of a store under a condition.

    for u: if A[u] > 9: found = 1
    ->
    any = 0
    for u: any = T.max(any, T.Select(A[u] > 9, 1, 0))
    if any > 0: found = 1

All stores of such a loop are the same, so only whether one happens counts. The maximum runs in
vector lanes (see `codegen.reductions`), for which the conditions are computed in all iterations:
their loads are proved to stay inside, they call and divide nothing, and they are short.
"""

from __future__ import annotations

from functools import partial

from metasched.arith.bounds import Interval
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT32
from metasched.ir.expr import GT, Expr, IntImm, Max, Select, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, loads_of, map_body, transform, walk_stmts
from metasched.lower.passes.choose import MOST, is_safe, ranges_of, work_of

SHORTEST = 64
"""The fewest iterations of a loop whose flag is worth the reduction of lanes."""


def raise_flags(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to serial loops outside of vectors."""
    ranges = ranges_of(func.body)
    inside = {
        inner
        for loop in walk_stmts(func.body)
        if isinstance(loop, For) and loop.kind is ForKind.VECTORIZED
        for inner in walk_stmts(loop)
    }
    return map_body(func, lambda body: transform(body, partial(_raised, ranges, inside)))


def _raised(ranges: dict[Var, Interval], inside: set[Stmt], stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL or stmt.annotations:
        return None
    test, extent = stmt.body, as_int(stmt.extent)
    if stmt in inside or (extent is not None and extent < SHORTEST):
        return None
    if not isinstance(test, IfThenElse) or test.orelse is not None:
        return None
    store = test.then
    if not isinstance(store, BufferStore) or store.predicate is not None:
        return None
    if not _is_raised(store, test.condition, stmt.var):
        return None
    if work_of(test.condition) > MOST or not is_safe(test.condition, ranges):
        return None
    flag, zero = Buffer.of("any", (1,), "int32", scope="local"), IntImm(INT32, 0)
    old = BufferLoad(flag, (as_expr(0),))
    new = Max(old, Select(test.condition, IntImm(INT32, 1), zero))
    loop = evolve(stmt, body=BufferStore(flag, new, old.indices))
    start = BufferStore(flag, zero, old.indices)
    return Allocate(flag, seq([start, loop, IfThenElse(GT(old, zero), store)]))


def _is_raised(store: BufferStore, condition: Expr, var: Var) -> bool:
    """Whether every iteration stores the same, if it stores, and runs along memory."""
    fixed = (*store.indices, store.value)
    if any(var in free_vars(e) for e in fixed) or any(map(loads_of, fixed)):
        return False
    loads = loads_of(condition)
    along = any(var in free_vars(i) for x in loads for i in x.indices)
    return along and all(x.buffer.data is not store.buffer.data for x in loads)
