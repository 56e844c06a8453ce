"""Values made of elements of memory. Their arithmetic wraps; that of indices is assumed not to."""

from __future__ import annotations

from collections.abc import Collection

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Arithmetic, Expr, Var
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import LetStmt
from metasched.ir.visit import walk_exprs, walk_stmts


def data_vars(func: PrimFunc) -> frozenset[Var]:
    """The variables of a function that name such values."""
    found: set[Var] = set()
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, LetStmt) and is_data(stmt.value, found):
            found.add(stmt.var)
    return frozenset(found)


def is_data(expr: Expr, named: Collection[Var]) -> bool:
    """Whether an expression uses elements of memory, calls, or variables that name such values."""
    return any(isinstance(n, (BufferLoad, Call)) or n in named for n in walk_exprs(expr))


def wraps(expr: Expr, named: Collection[Var], kinds: tuple[type[Arithmetic], ...]) -> bool:
    """Whether an operation of one of these kinds has an operand that may wrap in 32 bits, so that
    its result may be another in 64 bits."""
    return isinstance(expr, kinds) and any(
        isinstance(n, Arithmetic) and n.dtype.scalar == "int32" and is_data(n, named)
        for operand in (expr.a, expr.b)
        for n in walk_exprs(operand)
    )
