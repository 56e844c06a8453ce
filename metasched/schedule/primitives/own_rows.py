"""Rows: loops outside of blocks whose iterations allocate memory that they store to where memory
says, such as a stack or a queue."""

from __future__ import annotations

from typing import TypeGuard

from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import Allocate, BlockRealize, BufferStore, DeclBuffer, For, ForKind, Stmt
from metasched.ir.visit import jumps, reads_memory, walk_stmts

IN_TURN_OR_APART = (ForKind.SERIAL, ForKind.UNROLLED, ForKind.PARALLEL)


def rows_outside(body: Stmt) -> dict[Var, list[Buffer]]:
    """The memory of constant size that each iteration of a loop outside of blocks allocates, and
    stores to at places that memory names, by the variable of the loop."""
    found: dict[Var, list[Buffer]] = {}

    def visit(stmt: Stmt, loop: For | None) -> None:
        if isinstance(stmt, BlockRealize) or (
            isinstance(stmt, For) and stmt.kind not in IN_TURN_OR_APART
        ):
            return
        if loop is not None and _is_own_memory(stmt) and _may_be_one_block(loop):
            found.setdefault(loop.var, []).append(stmt.buffer)
        for part in stmt.stmts:
            visit(part, stmt if isinstance(stmt, For) else loop)

    visit(body, None)
    return found


def _is_own_memory(stmt: Stmt) -> TypeGuard[Allocate]:
    """Whether a statement allocates memory, and stores to it at places that memory names."""
    if not isinstance(stmt, Allocate) or stmt.annotations:
        return False
    return named_by_memory(stmt, stmt.buffer)


def _may_be_one_block(loop: For) -> bool:
    """Whether one block can hold all that an iteration does."""
    inner = list(walk_stmts(loop.body))
    if jumps(loop.body) or any(isinstance(s, (BlockRealize, DeclBuffer)) for s in inner):
        return False
    if any(effect_of(e) > Effect.READ for s in inner for e in s.exprs):
        return False
    return all(s.buffer.constant_shape() is not None for s in inner if isinstance(s, Allocate))


def named_by_memory(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement stores to a buffer at places that memory names."""
    stores = (s for s in walk_stmts(stmt) if isinstance(s, BufferStore) and s.buffer is buffer)
    return any(reads_memory(i) for s in stores for i in s.indices)
