"""Pad the rows of the unscheduled program's buffers against set conflicts in caches.

The unscheduled program walks columns. The row stride may be a multiple of a large power of two.
Then the elements of a column share few sets of each cache (four of 64 at 1024 bytes), and every
access misses. The 1024³ matrix product took 9 s, and 1.9 s with rows 64 bytes longer. Only buffer
declarations change, not the loops and the order of arithmetic. So the results are bit-equal.
"""

from __future__ import annotations

import math
from dataclasses import replace

from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var, as_expr
from metasched.ir.func import LAYOUT_FREE, PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, DeclBuffer, Stmt, frozen
from metasched.ir.verify_rules import wrong_marks
from metasched.ir.visit import substitute_buffers, walk, walk_stmts
from metasched.lower.packing import PREPROC

_CONFLICT = 1024  # bytes: in 64 sets of 64-byte lines, elements so far apart share four
_LINE = 64


def padded(func: PrimFunc) -> PrimFunc:
    """A program with the strides of its buffers padded: no multiple of a large power of two.

    Buffers that declare strides are left alone. A program is left alone if it uses views or
    addresses, or packs its constant weights by itself. Otherwise the mark of constant weights is
    dropped: nothing is packed.
    """
    if any(wrong_marks(func)) or any(_is_layout(node) for node in walk(func.body)):
        return func
    blocks = (node for node in walk_stmts(func.body) if isinstance(node, Block))
    declared = [*func.buffers, *(b for block in blocks for b in block.alloc_buffers)]
    new = {b: replace(b, strides=s) for b in declared if (s := _strides(b))}
    params = tuple(new.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    attrs = frozen({k: v for k, v in func.attrs.items() if k != LAYOUT_FREE})
    return PrimFunc(params, substitute_buffers(func.body, new), attrs, func.ret_type)


def _is_layout(node: Stmt | Expr) -> bool:
    """Whether a node depends, or may depend, on a buffer's memory layout."""
    if isinstance(node, Block):
        return bool(node.match_buffers or PREPROC in node.annotations)
    if isinstance(node, Call):
        return node.op.name == "address_of"
    return isinstance(node, DeclBuffer) or (isinstance(node, Var) and node.dtype.is_handle)


def _strides(buffer: Buffer) -> tuple[Expr, ...]:
    """Row-major strides with padding after rows that conflict; empty where no rows conflict."""
    shape = buffer.constant_shape()
    if not shape or buffer.strides or buffer.elem_offset is not None:
        return ()
    size, strides, step = buffer.dtype.bytes, [1], 1
    for extent in reversed(shape[1:]):
        step *= extent
        if step * size % _CONFLICT == 0:
            step += max(1, _LINE // size)
        strides.append(step)
    return tuple(map(as_expr, reversed(strides))) if step > math.prod(shape[1:]) else ()
