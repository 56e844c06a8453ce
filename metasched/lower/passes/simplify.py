"""Simplify what address arithmetic cannot fold by itself: divisions, minima, conditions."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.ir import expr as ir
from metasched.ir.dtype import INT64
from metasched.ir.expr import FALSE, TRUE, Compare, Expr, FloorDiv, FloorMod, IntImm, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Evaluate, For, IfThenElse, LetStmt, SeqStmt, Stmt, seq
from metasched.ir.visit import map_body, transform_expr, walk_exprs
from metasched.lower.passes.data import data_vars, is_data

_WORTH = (FloorDiv, FloorMod, ir.Min, ir.Max, Compare, ir.And, ir.Or, ir.Not)


def simplify(func: PrimFunc) -> PrimFunc:
    """Simplify divisions, minima and conditions by the loops' ranges, and remove loops that never
    run."""
    analyzer, data = Analyzer(), data_vars(func)
    return map_body(func, lambda body: _statement(body, analyzer, data, {}))


def _statement(stmt: Stmt, an: Analyzer, data: frozenset[Var], memo: dict[Expr, Expr]) -> Stmt:
    if isinstance(stmt, For):
        extent = _expression(stmt.extent, an, data, memo)
        size = as_int(extent)
        if size is not None and size <= 0:
            return seq(())
        if size is not None:
            an.bind(stmt.var, (0, size - 1))
        else:
            high = an.bounds(extent).hi
            an.bind(stmt.var, (0, None if high is None else max(high - 1, 0)))
        body = _statement(stmt.body, an, data, {})
        return stmt.rebuild((body,), (stmt.min, extent))
    exprs = [_expression(e, an, data, memo) for e in stmt.exprs]
    if isinstance(stmt, IfThenElse):
        if exprs[0] is TRUE:
            return _statement(stmt.then, an, data, memo)
        if exprs[0] is FALSE:
            return seq(()) if stmt.orelse is None else _statement(stmt.orelse, an, data, memo)
    stmts = [_statement(s, an, data, memo) for s in stmt.stmts]
    if isinstance(stmt, SeqStmt):
        return seq(s for s in stmts if not _is_nothing(s))
    if isinstance(stmt, LetStmt):
        return LetStmt(stmt.var, exprs[0], stmts[0])
    same = all(a is b for a, b in zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True))
    return stmt if same else stmt.rebuild(stmts, exprs)


def _is_nothing(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)


def _expression(expr: Expr, an: Analyzer, data: frozenset[Var], memo: dict[Expr, Expr]) -> Expr:
    if isinstance(expr, (IntImm, Var)):
        return expr
    if not any(isinstance(n, _WORTH) for n in walk_exprs(expr)):
        return expr

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, ir.Not):
            return ir.logical_not(node.a)
        if isinstance(node, (ir.And, ir.Or)):
            fold = ir.logical_and if isinstance(node, ir.And) else ir.logical_or
            return fold(node.a, node.b)
        operand = node.a if isinstance(node, _WORTH) else None
        if operand is not None and operand.dtype is INT64 and not is_data(node, data):
            return an.simplify(node)
        return None

    return transform_expr(expr, visit, memo)
