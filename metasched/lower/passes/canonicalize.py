"""Canonical loops: every loop starts at zero and has several iterations; likely() hints go.

The variable of a loop with one iteration is replaced by zero. Otherwise two indices of a temporary
that differ in the variable would not be seen to touch the same elements.
"""

from __future__ import annotations

from metasched.ir.expr import Expr, IntImm, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, Stmt, evolve
from metasched.ir.visit import jumps, map_body, substitute, transform


def canonicalize_loops(func: PrimFunc) -> PrimFunc:
    """for i in [a, a + n): S(i)  ->  for i in [0, n): S(a + i); S(a) for n = 1."""
    return map_body(func, lambda body: transform(body, _loop, _hint))


def _hint(expr: Expr) -> Expr | None:
    if isinstance(expr, Call) and expr.op.name in ("likely", "ignore_loop_partition"):
        return expr.args[0]
    return None


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For):
        return None
    bound = stmt.kind is ForKind.THREAD_BINDING
    if as_int(stmt.extent) == 1 and not bound and not jumps(stmt.body):
        if stmt.annotations:
            return evolve(stmt, body=substitute(stmt.body, {stmt.var: stmt.min}))
        return substitute(stmt.body, {stmt.var: stmt.min})
    if as_int(stmt.min) == 0:
        return None
    body = substitute(stmt.body, {stmt.var: stmt.min + stmt.var})
    return evolve(stmt, min=IntImm(stmt.var.dtype, 0), body=body)
