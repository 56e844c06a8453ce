"""The variables and buffers that a function uses and does not define."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import Expr, Let, Var
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Allocate, AttrStmt, Block, BufferStore, DeclBuffer, Stmt
from metasched.ir.visit import bound_vars, free_vars, walk


def symbols(buffer: Buffer) -> list[Var]:
    """The variables in a buffer's shape, strides and offset, in order."""
    offset = () if buffer.elem_offset is None else (buffer.elem_offset,)
    exprs = (*buffer.shape, *buffer.strides, *offset)
    return list(dict.fromkeys(v for e in exprs for v in _ordered(e)))


def _ordered(expr: Expr) -> list[Var]:
    free = free_vars(expr)
    return [expr] if isinstance(expr, Var) else sorted(free, key=lambda v: v.name)


def undefined(func: PrimFunc) -> tuple[list[Var], list[Buffer]]:
    """The variables and buffers that the body uses and the function does not define."""
    used_vars: dict[Var, None] = {}
    used: dict[Buffer, None] = {}
    bound: set[Var] = set()
    own: set[Buffer] = set()
    local: set[Var] = set()
    for node in walk(func.body):
        if isinstance(node, Var):
            used_vars[node] = None
        elif isinstance(node, (BufferLoad, BufferStore)):
            used[node.buffer] = None
        elif isinstance(node, Let):
            bound.add(node.var)
        elif isinstance(node, Stmt):
            bound |= bound_vars(node)
            _buffers(node, own, used, used_vars, local)
    free_buffers = [b for b in used if b not in own]
    pointers = {b.data for b in (*own, *used, *func.buffers)}
    return [v for v in used_vars if v not in bound | pointers | local], free_buffers


def _buffers(
    node: Stmt, own: set[Buffer], used: dict[Buffer, None], uses: dict[Var, None], local: set[Var]
) -> None:
    """The buffers a statement defines or names, and the variables their declarations mention."""
    if isinstance(node, Block):
        own.update(node.alloc_buffers, (m.buffer for m in node.match_buffers))
        local.update(v for m in node.match_buffers for v in symbols(m.buffer))
        sources = (m.source for m in node.match_buffers)
        regions: Sequence[BufferRegion] = (*node.reads, *node.writes, *sources)
        used.update((r.buffer, None) for r in regions)
        uses.update((v, None) for b in node.alloc_buffers for v in symbols(b))
    elif isinstance(node, (Allocate, DeclBuffer)):
        own.add(node.buffer)
        uses.update((v, None) for v in symbols(node.buffer))
        if isinstance(node, DeclBuffer):
            used[node.source] = None
    elif isinstance(node, AttrStmt) and isinstance(node.node, (Var, Buffer)):
        target: dict[Any, None] = uses if isinstance(node.node, Var) else used
        target[node.node] = None
