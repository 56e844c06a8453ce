"""Bodies of vectorized loops: copies of memory for the lanes, and one store for two branches.

    for x in vectorized(16): allocate(v, 9); S(v[i])
    ->
    allocate(v', 9 * 16); for x in vectorized(16): S(v'[i * 16 + x])

The lanes of one element lie side by side, so that loads and stores are contiguous. Where all
indices but the lane are constants, LLVM keeps the copies in vector registers.

    if c: B[x] = a  else: B[x] = b    ->    B[x] = if_then_else(c, a, b)

Two stores under masks would each leave gaps in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    Break,
    BufferStore,
    Continue,
    For,
    ForKind,
    IfThenElse,
    Return,
    Stmt,
    While,
    evolve,
)
from metasched.ir.visit import free_vars, map_body, reads_memory, transform, walk_stmts


def copies_for_lanes(func: PrimFunc) -> PrimFunc:
    """vectorized x: allocate(v, n)  ->  allocate(v', n * lanes); vectorized x."""
    return map_body(func, lambda body: transform(body, _loop))


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.VECTORIZED:
        return None
    merged = transform(stmt.body, _one_store)
    stmt = stmt if merged is stmt.body else evolve(stmt, body=merged)
    lanes, copies = as_int(stmt.extent), _copies(stmt)
    if not copies or lanes is None:
        return stmt
    wide = {b: Buffer(b.name, (b.shape[0] * lanes,), b.dtype, scope=b.scope) for b in copies}
    body = transform(stmt.body, lambda s: _stored(s, wide, stmt), lambda e: _loaded(e, wide, stmt))
    made: Stmt = evolve(stmt, body=body)
    for buffer in wide.values():
        made = Allocate(buffer, made)
    return made


def _one_store(stmt: Stmt) -> Stmt | None:
    """One store for a condition that chooses what is stored to one element."""
    if not isinstance(stmt, IfThenElse):
        return None
    a, b = stmt.then, stmt.orelse
    if not isinstance(a, BufferStore) or not isinstance(b, BufferStore):
        return None
    same = a.buffer is b.buffer and a.indices == b.indices
    if not same or a.predicate is not None or b.predicate is not None:
        return None
    if any(reads_memory(i) for i in a.indices):
        return None
    return evolve(a, value=call("if_then_else", stmt.condition, a.value, b.value))


def _copies(loop: For) -> list[Buffer]:
    """The buffers inside a loop that has a vector form but for them."""
    found = []
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, (While, Break, Continue, Return, AssertStmt)):
            return []
        if isinstance(stmt, Allocate):
            buffer = stmt.buffer
            if len(buffer.shape) != 1 or as_int(buffer.shape[0]) is None or stmt.annotations:
                return []
            found.append(buffer)
    pointers = {b.data for b in found}
    if any(not pointers.isdisjoint(free_vars(e)) for s in walk_stmts(loop.body) for e in s.exprs):
        return []
    return found


def _at(indices: tuple[Expr, ...], loop: For) -> tuple[Expr, ...]:
    (index,) = indices
    return (index * loop.extent.astype(index.dtype) + loop.var.astype(index.dtype),)


def _stored(stmt: Stmt, wide: Mapping[Buffer, Buffer], loop: For) -> Stmt | None:
    if isinstance(stmt, Allocate) and stmt.buffer in wide:
        return stmt.body
    if isinstance(stmt, BufferStore) and stmt.buffer in wide:
        return evolve(stmt, buffer=wide[stmt.buffer], indices=_at(stmt.indices, loop))
    return None


def _loaded(expr: Expr, wide: Mapping[Buffer, Buffer], loop: For) -> Expr | None:
    if isinstance(expr, BufferLoad) and expr.buffer in wide:
        return BufferLoad(wide[expr.buffer], _at(expr.indices, loop), expr.predicate)
    return None
