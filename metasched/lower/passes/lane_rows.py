"""Copies of unrolled loops in lanes that lie in rows of their own.

    for n in T.vectorized(16):                    for n in T.vectorized(16):
        for i in T.unroll(3): B[n, i] = ..    ->      B[n, 0] = ..; B[n, 1] = ..; B[n, 2] = ..

Code generation then sees which elements of a row the lanes load and store, and moves whole rows
(see `codegen.columns`), or shuffles the lanes of short rows that the stores fill (see
`codegen.interleaved`).
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.analysis.access import SHUFFLED
from metasched.arith.affine import interval, linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval, is_index
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, IntImm, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BufferStore, For, ForKind, SeqStmt, Stmt, evolve, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    map_body,
    reads_memory,
    substitute,
    transform,
    walk,
    walk_stmts,
)

MOST = 256
"""The most stores of a loop over lanes whose loops are copied."""


def copy_rows(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above."""
    return map_body(func, lambda body: transform(body, _loop))


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.VECTORIZED:
        return None
    rows = _in_rows(stmt.body, stmt.var) or _fills_rows(stmt.body, stmt.var)
    if not rows or _stores(stmt.body, {}) > MOST:
        return None
    body = _copied(stmt.body)
    return None if body is stmt.body else evolve(stmt, body=transform(body, on_expr=_number))


def _in_rows(body: Stmt, lane: Var) -> bool:
    """Whether lanes access elements more than `SHUFFLED` elements apart."""
    return any(
        linear_address(x.indices[0]).terms.get(lane, 0) > SHUFFLED
        for x in walk(body)
        if isinstance(x, (BufferLoad, BufferStore)) and len(x.indices) == 1
    )


def _fills_rows(body: Stmt, lane: Var) -> bool:
    """Whether an unrolled loop stores all elements of a row of at most `SHUFFLED` elements."""
    for loop in walk_stmts(body):
        if isinstance(loop, For) and loop.kind is ForKind.UNROLLED:
            store, row = loop.body, as_int(loop.extent) or 0
            if isinstance(store, BufferStore) and 1 < row <= SHUFFLED and len(store.indices) == 1:
                moves = linear_address(store.indices[0]).terms
                if moves.get(lane) == row and moves.get(loop.var) == 1:
                    return True
    return False


def _stores(stmt: Stmt, ranges: Mapping[Var, Interval]) -> float:
    """The most stores after loops are copied."""
    times: float = 1
    if isinstance(stmt, For) and stmt.kind is ForKind.UNROLLED:
        times = max(interval(stmt.extent, ranges)[1], 0)
        ranges = {**ranges, stmt.var: (0, max(times - 1, 0))}
    return isinstance(stmt, BufferStore) + times * sum(_stores(s, ranges) for s in stmt.stmts)


def _copied(stmt: Stmt) -> Stmt:
    count = as_int(_number(stmt.extent) or stmt.extent) if isinstance(stmt, For) else None
    if isinstance(stmt, For) and stmt.kind is ForKind.UNROLLED and count is not None:
        values = [as_expr(n, stmt.var.dtype) for n in range(count)]
        return seq([_copied(fresh_copy(substitute(stmt.body, {stmt.var: v}))) for v in values])
    parts = [_copied(part) for part in stmt.stmts]
    if all(a is b for a, b in zip(parts, stmt.stmts, strict=True)):
        return stmt
    return seq(parts) if isinstance(stmt, SeqStmt) else stmt.rebuild(parts, stmt.exprs)


def _number(expr: Expr) -> Expr | None:
    """The number that an index expression without variables is; None for others."""
    if isinstance(expr, IntImm) or not is_index(expr.dtype) or free_vars(expr):
        return None
    return None if reads_memory(expr) else Analyzer().simplify(expr)
