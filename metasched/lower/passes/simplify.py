"""Simplify what address arithmetic cannot fold by itself: divisions, minima, conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metasched.arith.analyzer import Analyzer
from metasched.ir import expr as ir
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    FALSE,
    TRUE,
    Add,
    Cast,
    Compare,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Mul,
    Sub,
    Var,
    as_int,
    cast,
)
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Evaluate, For, ForKind, IfThenElse, LetStmt, SeqStmt, Stmt, seq
from metasched.ir.visit import free_vars, map_body, transform_expr, walk_exprs
from metasched.lower.passes.data import data_vars, is_data

_EXACT = (Add, Sub, Mul, FloorDiv, FloorMod)
_WORTH = (FloorDiv, FloorMod, ir.Min, ir.Max, Compare, ir.And, ir.Or, ir.Not)


def simplify(func: PrimFunc) -> PrimFunc:
    """Simplify divisions, minima and conditions by the loops' ranges, and remove loops that never
    run."""
    known = _Known(Analyzer(), data_vars(func))
    return map_body(func, lambda body: _statement(body, known, {}))


def simplify_lanes(func: PrimFunc) -> PrimFunc:
    """Simplify divisions by the loops' ranges where this leaves the lanes of vectors alone in their
    divisions: (k * 16 + lane) // 2 becomes k * 8 + lane // 2."""
    known = _Known(Analyzer(), data_vars(func), frozenset())
    return map_body(func, lambda body: _statement(body, known, {}))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known at a statement.

    Attributes:
        an: the ranges of the loops' variables.
        data: the variables that name values of memory.
        lanes: the variables of the vectorized loops around; None if a division may keep a lane
            beside other variables.
    """

    an: Analyzer
    data: frozenset[Var]
    lanes: frozenset[Var] | None = None

    def within(self, loop: For) -> _Known:
        if self.lanes is None or loop.kind is not ForKind.VECTORIZED:
            return self
        return replace(self, lanes=self.lanes | {loop.var})

    def simplified(self, expr: Expr) -> Expr | None:
        """A simplified expression; None for one that is left as it is. The parts of an address
        that belong together, x // 10 * 10 and x % 10, are left together."""
        found = self.an.simplify(expr)
        for part in walk_exprs(found) if self.lanes else ():
            free = free_vars(part) if isinstance(part, (FloorDiv, FloorMod)) else frozenset()
            if not free.isdisjoint(self.lanes or ()) and not free <= (self.lanes or free):
                return None
        return found


def _statement(stmt: Stmt, known: _Known, memo: dict[Expr, Expr]) -> Stmt:
    an = known.an
    if isinstance(stmt, For):
        extent = _expression(stmt.extent, known, memo)
        size = as_int(extent)
        if size is not None and size <= 0:
            return seq(())
        if size is not None:
            an.bind(stmt.var, (0, size - 1))
        else:
            high = an.bounds(extent).hi
            an.bind(stmt.var, (0, None if high is None else max(high - 1, 0)))
        body = _statement(stmt.body, known.within(stmt), {})
        return stmt.rebuild((body,), (stmt.min, extent))
    exprs = [_expression(e, known, memo) for e in stmt.exprs]
    if isinstance(stmt, IfThenElse):
        if exprs[0] is TRUE:
            return _statement(stmt.then, known, memo)
        if exprs[0] is FALSE:
            return seq(()) if stmt.orelse is None else _statement(stmt.orelse, known, memo)
    stmts = [_statement(s, known, memo) for s in stmt.stmts]
    if isinstance(stmt, SeqStmt):
        return seq(s for s in stmts if not _is_nothing(s))
    if isinstance(stmt, LetStmt):
        return LetStmt(stmt.var, exprs[0], stmts[0])
    same = all(a is b for a, b in zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True))
    return stmt if same else stmt.rebuild(stmts, exprs)


def _as_index(expr: Expr, an: Analyzer) -> Expr | None:
    """An integer that is computed from casts of 64-bit indices, in 64 bits: the same number, as no
    part leaves its type. None for other expressions."""
    wide: Expr | None = None
    if isinstance(expr, IntImm):
        return IntImm(INT64, expr.value) if expr.value <= INT64.range[1] else None
    if isinstance(expr, Cast):
        wide = expr.value if expr.dtype.is_int and expr.value.dtype is INT64 else None
    elif isinstance(expr, _EXACT):
        a, b = _as_index(expr.a, an), _as_index(expr.b, an)
        divides = isinstance(expr, (FloorDiv, FloorMod))
        if a is not None and b is not None and not (divides and (as_int(b) or 0) <= 0):
            wide = type(expr)(a, b)
    ends = None if wide is None else an.bounds(wide)
    if ends is None or ends.lo is None or ends.hi is None:
        return None
    low, high = expr.dtype.range
    return wide if low <= ends.lo and ends.hi <= high else None


def _is_nothing(stmt: Stmt) -> bool:
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)


def _expression(expr: Expr, known: _Known, memo: dict[Expr, Expr]) -> Expr:
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
        if not isinstance(node, _WORTH) or is_data(node, known.data):
            return None
        if node.a.dtype is INT64:
            return known.simplified(node)
        wide = _as_index(node, known.an) if isinstance(node, (FloorDiv, FloorMod)) else None
        found = None if wide is None else known.simplified(wide)
        return None if found is None else cast(node.dtype, found)

    return transform_expr(expr, visit, memo)
