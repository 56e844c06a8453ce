"""Shifts replace divisions by powers of two that are known at run time only.

    h = 1 << s; p = g // h; r = g % h  ->  p = g >> s; r = g & (h - 1)

as in the stages of a Fourier transform or of a bitonic sort. A processor divides integers in 10 to
20 cycles and has no vectors for it. The ranges of the loops prove that the power is positive.
"""

from __future__ import annotations

from math import inf

from metasched.arith.affine import interval
from metasched.arith.bounds import EVERYTHING, Interval
from metasched.ir.expr import Cast, Expr, FloorDiv, FloorMod, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call, call
from metasched.ir.stmt import For, LetStmt, Stmt
from metasched.ir.visit import free_vars, map_body, transform_expr, walk_exprs


def shift_by_powers(func: PrimFunc) -> PrimFunc:
    """g // (1 << s)  ->  g >> s, and g % (1 << s)  ->  g & ((1 << s) - 1)."""
    return map_body(func, lambda body: _statement(body, {}, {}))


def _statement(stmt: Stmt, ranges: dict[Var, Interval], powers: dict[Expr, Expr]) -> Stmt:
    """A statement without such divisions.

    Args:
        ranges: the values of the variables of loops around.
        powers: the exponents of variables that hold a power of two.
    """
    if isinstance(stmt, For):
        last = as_int(stmt.extent)
        ranges = {**ranges, stmt.var: (0, inf if last is None else last - 1)}
    elif isinstance(stmt, LetStmt):
        exponent = _exponent(stmt.value, ranges)
        powers = powers if exponent is None else {**powers, stmt.var: exponent}
    stmts = [_statement(part, ranges, powers) for part in stmt.stmts]
    exprs = [_shifted(e, ranges, powers) for e in stmt.exprs]
    same = all(a is b for a, b in zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True))
    return stmt if same else stmt.rebuild(stmts, exprs)


def _exponent(value: Expr, ranges: dict[Var, Interval]) -> Expr | None:
    """s of a value 1 << s that is positive in its type."""
    if not isinstance(value, Call) or value.op.name != "shift_left" or as_int(value.args[0]) != 1:
        return None
    exponent = inner = value.args[1]
    while isinstance(inner, Cast) and inner.value.dtype.is_int:  # in range, so nothing is cut off
        inner = inner.value
    low, high = interval(inner, {v: ranges.get(v, EVERYTHING) for v in free_vars(inner)})
    bits = value.dtype.bits - (value.dtype.kind == "int")
    return exponent if value.dtype.lanes == 1 and low >= 0 and high < bits else None


def _shifted(expr: Expr, ranges: dict[Var, Interval], powers: dict[Expr, Expr]) -> Expr:
    if not any(isinstance(x, (FloorDiv, FloorMod)) for x in walk_exprs(expr)):
        return expr

    def shift(node: Expr) -> Expr | None:
        if not isinstance(node, (FloorDiv, FloorMod)) or not node.dtype.is_int:
            return None
        exponent = powers[node.b] if node.b in powers else _exponent(node.b, ranges)
        if exponent is None:
            return None
        if isinstance(node, FloorMod):
            return call("bitwise_and", node.a, node.b - 1)
        return call("shift_right", node.a, exponent)

    return transform_expr(expr, shift, {})
