"""Reductions: a block's init runs where all its reduce iterators are at their minimum."""

from __future__ import annotations

from metasched.ir.expr import EQ, TRUE, Expr, compare, logical_and
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, IfThenElse, Stmt, evolve, seq
from metasched.ir.visit import map_body, transform
from metasched.lower.passes.nonempty import assert_lengths


def lower_init(func: PrimFunc) -> PrimFunc:
    """init: I; body: S  ->  body: (if all reduce iterators are minimal: I); S.

    Assertions at the start say that they are minimal once for each result.
    """
    return map_body(assert_lengths(func), lambda body: transform(body, _block))


def _block(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Block) or stmt.init is None:
        return None
    first: Expr = TRUE
    for item in stmt.iter_vars:
        if item.is_reduce:
            first = logical_and(first, compare(EQ, item.var, item.dom.min))
    init = stmt.init if first is TRUE else IfThenElse(first, stmt.init)
    return evolve(stmt, init=None, body=seq((init, stmt.body)))
