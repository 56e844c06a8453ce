"""Rows padded against set conflicts: how the unscheduled program lies in memory.

A program as written walks columns. Where rows are a multiple of a large power of two apart, the
elements of a column share a few sets of each cache, and every access misses: the 1024³ matrix
product took 9 s so, and 1.9 s with rows 64 bytes longer. The declarations alone change. Loops,
arithmetic and its order stay, so the results stay those of the program as written, bit for bit,
and owe nothing to the schedule's primitives.
"""

from __future__ import annotations

from dataclasses import replace

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Var, as_expr
from metasched.ir.func import LAYOUT_FREE, PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, DeclBuffer, frozen
from metasched.ir.verify_rules import wrong_marks
from metasched.ir.visit import substitute_buffers, walk, walk_stmts
from metasched.lower.packing import PREPROC

_CONFLICT = 1024  # bytes: in 64 sets of 64-byte lines, elements so far apart share four
_LINE = 64


def padded(func: PrimFunc) -> PrimFunc:
    """The same program over buffers whose strides are no multiples of a large power of two.

    Left alone are buffers with a layout of their own, and those whose memory is used in other ways
    than by index: viewed, or passed by address. The mark of constant weights is dropped, for
    nothing is packed; a function that packs by itself is left as it is.
    """
    blocks = [node for node in walk_stmts(func.body) if isinstance(node, Block)]
    if any(wrong_marks(func)) or any(block.annotations.get(PREPROC) for block in blocks):
        return func
    declared = {*func.buffers, *(b for block in blocks for b in block.alloc_buffers)}
    strides = {b: _strides(b) for b in declared - _exposed(func, declared)}
    new = {b: replace(b, strides=s) for b, s in strides.items() if s is not None}
    params = tuple(new.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    attrs = frozen({k: v for k, v in func.attrs.items() if k != LAYOUT_FREE})
    return PrimFunc(params, substitute_buffers(func.body, new), attrs, func.ret_type)


def _strides(buffer: Buffer) -> tuple[Expr, ...] | None:
    """Row-major strides with room behind what conflicts; None where nothing does."""
    shape = buffer.constant_shape()
    if not shape or buffer.strides or buffer.elem_offset is not None:
        return None
    size = buffer.dtype.bytes
    strides, step, grown = [1], 1, False
    for extent in reversed(shape[1:]):
        step *= extent
        if step * size % _CONFLICT == 0:
            step, grown = step + max(1, _LINE // size), True
        strides.append(step)
    return tuple(as_expr(s) for s in reversed(strides)) if grown else None


def _exposed(func: PrimFunc, declared: set[Buffer]) -> set[Buffer]:
    """Buffers whose memory is used in other ways than by index."""
    found: set[Buffer] = set()
    pointers: set[Expr] = set()
    for node in walk(func.body):
        if isinstance(node, Block):
            found |= {m.source.buffer for m in node.match_buffers}
        elif isinstance(node, DeclBuffer):
            found |= {node.buffer, node.source}
        elif isinstance(node, Var) and node.dtype.is_handle:
            pointers.add(node)
        elif isinstance(node, Call) and node.op.name == "address_of":
            found |= {a.buffer for a in node.args if isinstance(a, BufferLoad)}
    return found | {b for b in declared if b.data in pointers}
