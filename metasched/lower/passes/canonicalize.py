"""Canonical loops: every loop starts at zero with step one and has several iterations; likely()
hints go.

A loop of one iteration would only be in the way: temporaries whose indices differ in its variable,
which is zero, would not be seen to touch the same elements.
"""

from __future__ import annotations

from metasched.errors import LowerError
from metasched.ir.expr import Expr, IntImm, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, Stmt, evolve
from metasched.ir.visit import jumps, map_body, substitute, transform


def canonicalize_loops(func: PrimFunc) -> PrimFunc:
    """for i in [a, a + n * s) step s: S(i)  ->  for i in [0, n): S(a + i * s); S(a) for n = 1."""
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
    if as_int(stmt.min) == 0 and stmt.step is None:
        return None
    if stmt.step is not None and (as_int(stmt.step) or 1) <= 0:
        raise LowerError(f"loop {stmt.var.name} has a step of {as_int(stmt.step)}")
    zero = IntImm(stmt.var.dtype, 0)
    value: Expr = stmt.var
    if stmt.step is not None and as_int(stmt.step) != 1:
        value = value * stmt.step
    body = substitute(stmt.body, {stmt.var: stmt.min + value})
    return evolve(stmt, min=zero, step=None, body=body)
