"""Loops without continue: the statements below `if c: continue` as the other branch of the `if`.

    for i in range(n):                      for i in range(n):
        if A[i] < 0:                            if A[i] >= 0:
            continue                   ->           B[i] = A[i]
        B[i] = A[i]

The condition is evaluated once, at the same place, so both loops mean the same.
"""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import negate
from metasched.ir.expr import logical_and
from metasched.ir.stmt import (
    Allocate,
    Continue,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import jumps, transform


def without_continue(stmt: Stmt) -> Stmt:
    """A statement whose `for` loops have no continue, where that takes no second copy of a part.

    A loop with a break of its own stays as it is.
    """
    return transform(stmt, _loop)


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or not jumps(stmt.body):
        return None
    body = _before(stmt.body, [])
    return None if body is None else evolve(stmt, body=seq(body))


def _before(stmt: Stmt, rest: list[Stmt]) -> list[Stmt] | None:
    """A part of a loop's body and the statements that run after it, unless it continues.

    None if the part leaves the loop, or if two of its branches would need the statements.

    Args:
        rest: the statements, without jumps.
    """
    if not jumps(stmt):
        return [stmt, *rest]
    if isinstance(stmt, Continue):
        return []
    if isinstance(stmt, SeqStmt):
        after: list[Stmt] | None = rest
        for item in reversed(stmt.items):
            after = None if after is None else _before(item, after)
        return after
    if isinstance(stmt, (LetStmt, Allocate)):
        body = _before(stmt.body, rest)
        return None if body is None else [evolve(stmt, body=seq(body))]
    return _branches(stmt, rest) if isinstance(stmt, IfThenElse) else None


def _branches(stmt: IfThenElse, rest: list[Stmt]) -> list[Stmt] | None:
    inner = stmt.then
    if stmt.orelse is None and isinstance(inner, IfThenElse) and inner.orelse is None:
        both = logical_and(stmt.condition, inner.condition)  # b is evaluated only where a holds
        return _before(IfThenElse(both, inner.then), rest)
    ways = [stmt.then, seq([]) if stmt.orelse is None else stmt.orelse]
    if rest and all(map(_may_end, ways)):
        return None
    then = _before(stmt.then, rest)
    other = rest if stmt.orelse is None else _before(stmt.orelse, rest)
    if then is None or other is None:
        return None
    if not then:
        return [IfThenElse(negate(Analyzer(), stmt.condition), seq(other))] if other else []
    return [IfThenElse(stmt.condition, seq(then), seq(other) if other else None)]


def _may_end(stmt: Stmt) -> bool:
    """Whether the statement after this one may run."""
    if isinstance(stmt, SeqStmt):
        return all(map(_may_end, stmt.items))
    if isinstance(stmt, (LetStmt, Allocate)):
        return _may_end(stmt.body)
    if isinstance(stmt, IfThenElse):
        return stmt.orelse is None or _may_end(stmt.then) or _may_end(stmt.orelse)
    return not isinstance(stmt, Continue)
