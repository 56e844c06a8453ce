"""Sums that a test guards: a statement under a test in place of a zero that is added.

    S[i] = S[i] + T.if_then_else(c, x * w, 0)   ->   if c: S[i] = S[i] + x * w

The zero may be -0.0, which changes no float. It may be 0 in an allocated buffer whose elements
start from 0 and are summed up: such a float is never -0.0, the one value that 0 changes. Tests of
lanes stay: lanes under a mask take as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Add, Expr, FloatImm, IntImm, Select, Var
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Stmt
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_body,
    reads_memory,
    transform,
    walk_exprs,
    walk_stmts,
)


def guard_sums(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above."""
    sums = _sums(func.body)
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For)]
    lanes = {s.var for s in loops if s.kind is ForKind.VECTORIZED}
    return map_body(func, lambda body: transform(body, lambda s: _guarded(s, sums, lanes)))


def _sums(body: Stmt) -> set[Expr]:
    """The allocated buffers whose elements start from zero and are summed up."""
    found: set[Expr] = {s.buffer.data for s in walk_stmts(body) if isinstance(s, Allocate)}
    stores = [s for s in walk_stmts(body) if isinstance(s, BufferStore)]
    others = {s.buffer.data for s in stores if not _is_zero(s.value) and _term(s) is None}
    return found - others - set(_addressed(body))


def _addressed(body: Stmt) -> Iterator[Expr]:
    """The buffers whose addresses the program takes: a call may store any value there."""
    for expr in (e for s in walk_stmts(body) for e in s.exprs):
        for node in walk_exprs(expr):
            if isinstance(node, Var):
                yield node
            elif isinstance(node, Call) and node.op.name in ("address_of", "access_ptr"):
                yield from (x.buffer.data for a in node.args for x in loads_of(a))


def _term(store: BufferStore) -> Expr | None:
    """What a statement adds to an element; None for other statements."""
    value = store.value
    if isinstance(value, Add) and isinstance(value.a, BufferLoad):
        own = value.a
        same = own.buffer is store.buffer and own.indices == store.indices
        if same and own.predicate is None and store.predicate is None:
            return value.b
    return None


def _is_zero(value: Expr) -> bool:
    return isinstance(value, (FloatImm, IntImm)) and value.value == 0 and not _is_neutral(value)


def _is_neutral(value: Expr) -> bool:
    """Whether a value is -0.0."""
    return isinstance(value, FloatImm) and value.value == 0 and math.copysign(1, value.value) < 0


def _guarded(stmt: Stmt, sums: Set[Expr], lanes: Set[Var]) -> Stmt | None:
    if not isinstance(stmt, BufferStore):
        return None
    term = _term(stmt)
    if isinstance(term, Select):
        condition, value, other = term.condition, term.a, term.b
    elif isinstance(term, Call) and term.op.name == "if_then_else":
        condition, value, other = term.args
    else:
        return None
    same = _is_neutral(other) or (_is_zero(other) and stmt.buffer.data in sums)
    if not same or reads_memory(condition) or not lanes.isdisjoint(free_vars(condition)):
        return None
    assert isinstance(stmt.value, Add)
    here = BufferStore(stmt.buffer, stmt.value.a + value, stmt.indices)
    return IfThenElse(condition, _guarded(here, sums, lanes) or here)
