"""Comparisons of 64-bit indices in vectorized loops become comparisons of 32-bit integers.

Twice as many lanes fit a register, and the mask has the width of float32 data: on AVX2 a mask of
eight 64-bit lanes takes 12 instructions, of eight 32-bit lanes 2. A comparison is narrowed if the
ranges of the loops prove that both sides stay within 32 bits, unless the loop stores 64-bit
elements. The terms without the vectorized variable move to one side, computed once for all lanes.
"""

from __future__ import annotations

from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.linear import Linear, emit
from metasched.ir.dtype import INT32, INT64
from metasched.ir.expr import Cast, Compare, Expr, IntImm, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BufferStore, For, ForKind, Stmt
from metasched.ir.visit import free_vars, map_body, transform_expr, walk_exprs, walk_stmts
from metasched.lower.passes.data import data_vars, is_data

_LIMIT = 1 << 31


def narrow_comparisons(func: PrimFunc) -> PrimFunc:
    """a * lane + b <= c  ->  int32(a * lane) <= int32(c - b), in vectorized loops."""
    data = data_vars(func)
    return map_body(func, lambda body: _statement(body, Analyzer(), data, None))


def _statement(stmt: Stmt, an: Analyzer, data: frozenset[Var], lane: Var | None) -> Stmt:
    if isinstance(stmt, For):
        extent = as_int(stmt.extent)
        an.bind(stmt.var, (0, None if extent is None else max(extent - 1, 0)))
        if stmt.kind is ForKind.VECTORIZED and lane is None and not _stores_wide(stmt):
            lane = stmt.var
    stmts = [_statement(s, an, data, lane) for s in stmt.stmts]
    exprs = list(stmt.exprs)
    if lane is not None and not isinstance(stmt, For):
        exprs = [_expression(e, an, data, lane) for e in exprs]
    same = all(a is b for a, b in zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True))
    return stmt if same else stmt.rebuild(stmts, exprs)


def _stores_wide(loop: For) -> bool:
    """Whether a loop stores 64-bit elements, whose masks have the width of 64-bit indices."""
    stores = (s for s in walk_stmts(loop) if isinstance(s, BufferStore))
    return any(s.buffer.dtype.bits > 32 for s in stores)


def _expression(expr: Expr, an: Analyzer, data: frozenset[Var], lane: Var) -> Expr:
    def visit(node: Expr) -> Expr | None:
        return _narrowed(node, an, data, lane) if isinstance(node, Compare) else None

    if not any(isinstance(n, Compare) for n in walk_exprs(expr)):
        return expr
    return transform_expr(expr, visit, {})


def _narrowed(node: Compare, an: Analyzer, data: frozenset[Var], lane: Var) -> Expr | None:
    """The comparison in 32 bits; None if it has no lanes or may need 64 bits."""
    if node.a.dtype is not INT64 or lane not in free_vars(node) or is_data(node, data):
        return None
    form = linear_address(node.a).plus(linear_address(node.b), -1)
    own = {atom: c for atom, c in form.terms.items() if lane in free_vars(atom)}
    rest = {atom: -c for atom, c in form.terms.items() if atom not in own}
    a, b = _cast(Linear(own, 0), an), _cast(Linear(rest, -form.const), an)
    return None if a is None or b is None else type(node)(a, b)


def _cast(form: Linear, an: Analyzer) -> Expr | None:
    """A sum in 32 bits, None if it may need more."""
    side = emit(form, INT64)
    low, high = (None, None) if side is None else an.bounds(side)
    if side is None or low is None or high is None or low < -_LIMIT or high >= _LIMIT:
        return None
    return IntImm(INT32, low) if low == high else Cast(INT32, side)
