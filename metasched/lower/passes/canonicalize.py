"""Canonical loops: every loop starts at zero and has several iterations; likely() hints go, and
variables that name an index, `j = 2 * k + i % 2`, give way to the index.

The variable of a loop with one iteration is replaced by zero. Otherwise two indices of a temporary
that differ in the variable would not be seen to touch the same elements. Lanes at a named index
would not be seen to lie side by side.
"""

from __future__ import annotations

from metasched.ir.dtype import INT32, INT64
from metasched.ir.expr import (
    Add,
    Compare,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    as_int,
)
from metasched.ir.func import PrimFunc
from metasched.ir.intern import tree_size
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, LetStmt, Stmt, evolve
from metasched.ir.visit import jumps, map_body, substitute, transform, walk_exprs

_STEPS = (Add, Sub, Mul, FloorDiv, FloorMod, Min, Max, Select)
_FEW = 32
"""The most nodes of an index that takes the place of a variable."""


def canonicalize_loops(func: PrimFunc) -> PrimFunc:
    """for i in [a, a + n): S(i)  ->  for i in [0, n): S(a + i); S(a) for n = 1."""
    return map_body(func, lambda body: transform(_unnamed(body), _loop, _hint))


def _unnamed(stmt: Stmt) -> Stmt:
    """A statement with indices in place of the variables that name them.

    Outermost first, unlike `transform`: an index over named indices grows with each name, until it
    is too long to take the place of its own name.
    """
    while isinstance(stmt, LetStmt) and _is_index(stmt.value):
        stmt = substitute(stmt.body, {stmt.var: stmt.value})
    stmts = [_unnamed(s) for s in stmt.stmts]
    same = all(a is b for a, b in zip(stmts, stmt.stmts, strict=True))
    return stmt if same else stmt.rebuild(stmts, stmt.exprs)


def _is_index(value: Expr) -> bool:
    """Whether an integer is computed by a few steps that linear indices consist of, by minima and
    maxima, or by choices between such integers: a clamped or wrapped neighbour."""
    if value.dtype not in (INT32, INT64) or tree_size(value) > _FEW:
        return False
    return all(isinstance(e, (*_STEPS, Var, IntImm)) or _chooses(e) for e in walk_exprs(value))


def _chooses(value: Expr) -> bool:
    """Whether a node compares integers, or is a choice."""
    if isinstance(value, Compare):
        return value.a.dtype in (INT32, INT64)
    return isinstance(value, Call) and value.op.name == "if_then_else"


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
