"""Lanes that count the steps of a loop together, though some lanes take more steps than others.

The lanes of a `for` begin together, and its length grows or shrinks evenly from lane to lane, as in
a triangle. First they run the steps that all lanes have:

    for j in T.vectorized(16): for k in range(j + n): S
    ->
    for j in T.vectorized(16):
        for k in range(n): S
        for k in range(n, n + 15):
            if k < j + n: S

With a counter for each lane, X[k + j] would be a gather.
"""

from __future__ import annotations

from collections.abc import Collection

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, Var, as_expr, as_int, maximum
from metasched.ir.stmt import For, IfThenElse, Stmt, evolve, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    jumps,
    reads_memory,
    substitute,
    walk_exprs,
    walk_stmts,
)
from metasched.lower.passes.guards import MAX_COPIED


def counts_together(loop: For, varying: Collection[Expr], lane: Var) -> bool:
    """Whether lanes can count the steps of a `for` together: they begin at one value, and the
    length is the same, or changes by a constant from lane to lane."""
    return not differs(loop.min, varying) and _growth(loop, varying, lane) is not None


def _growth(loop: For, varying: Collection[Expr], lane: Var) -> int | None:
    """By how much the length of a loop grows from lane to lane, if by a constant."""
    if not differs(loop.extent, varying):
        return 0
    if differs(loop.extent, {v for v in varying if v is not lane}) or reads_memory(loop.extent):
        return None
    return as_int(Analyzer().simplify(substitute(loop.extent, {lane: lane + 1}) - loop.extent))


def in_step(lanes: For, varying: set[Expr], stmt: Stmt) -> Stmt | None:
    """A `for` of the lanes with one counter for all of them; None where they need their own."""
    if not isinstance(stmt, For) or jumps(stmt.body) or differs(stmt.min, varying):
        return None
    by = _growth(stmt, varying, lanes.var)
    if not by or sum(1 for _ in walk_stmts(stmt.body)) > MAX_COPIED:
        return None
    ends = (lanes.min, lanes.min + (lanes.extent - 1))
    first, last = ends if by > 0 else reversed(ends)
    zero = as_expr(0, stmt.extent.dtype)
    low, high = (maximum(substitute(stmt.extent, {lanes.var: at}), zero) for at in (first, last))
    var = Var(stmt.var.name, stmt.var.dtype)
    step = IfThenElse(stmt.var - stmt.min < stmt.extent, stmt.body)
    body = fresh_copy(substitute(step, {stmt.var: var + low}))
    rest = evolve(stmt, var=var, extent=high - low, body=body)
    return seq([evolve(stmt, extent=low), rest])


def differs(expr: Expr, varying: Collection[Expr]) -> bool:
    """Whether a value depends on the variables and the memory that vary between lanes."""
    loads = (x.buffer.data for x in walk_exprs(expr) if isinstance(x, BufferLoad))
    return any(v in varying for v in (*free_vars(expr), *loads))
