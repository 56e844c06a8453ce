"""Zero padding around convolutions: sizes, taps inside the input, and the stage that adds it."""

from __future__ import annotations

from math import prod

import numpy as np

from metasched.ir.expr import Expr, Mul, as_int, mul
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, For, SeqStmt, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, substitute_buffers, transform
from metasched.lower.passes.zeros import FINITE


def out_size(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """Extent of a convolution's output along one dimension."""
    found = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    if found < 1:
        raise ValueError(f"a kernel of {kernel} (dilation {dilation}) exceeds {size} + 2*{pad}")
    return found


def taps(sizes: tuple[int, ...], kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """How many pairs of output position and kernel position fall inside an input of `sizes`."""
    return prod(_taps(size, kernel, stride, pad, dilation) for size in sizes)


def _taps(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    out = np.arange(out_size(size, kernel, stride, pad, dilation))[:, None] * stride
    at = out + np.arange(kernel) * dilation - pad
    return int(np.count_nonzero((at >= 0) & (at < size)))


def pad_array(x: np.ndarray, dims: tuple[int, ...], pad: int) -> np.ndarray:
    """`x` with `pad` zeros on both sides of each of `dims`."""
    return np.pad(x, [(pad, pad) if d in dims else (0, 0) for d in range(x.ndim)])


def finished(func: PrimFunc, pad: int) -> PrimFunc:
    """A convolution as it is handed out: `x * 1` folded; without padding, without its stage."""
    func = func.with_body(transform(func.body, None, _fold))
    return func.with_attr(FINITE, True) if pad else _without_stage(func, "pad")


def _fold(expr: Expr) -> Expr | None:
    """Indices with a stride or dilation of one are written plainly."""
    return mul(expr.a, expr.b) if isinstance(expr, Mul) and as_int(expr.b) == 1 else None


def _without_stage(func: PrimFunc, stage: str) -> PrimFunc:
    """`func` without the block called `stage`, which copies; its consumers read the source."""
    block = next(r.block for r in blocks_of(func.body) if r.block.name == stage)
    source, copy = block.reads[0].buffer, block.writes[0].buffer
    root = func.root
    assert isinstance(root.body, SeqStmt)
    body = seq(s for s in root.body.items if not _holds(s, block))
    body = substitute_buffers(body, {copy: source})
    allocs = tuple(b for b in root.alloc_buffers if b is not copy)
    return func.with_body(BlockRealize.plain(evolve(root, body=body, alloc_buffers=allocs)))


def _holds(stmt: Stmt, block: Block) -> bool:
    while isinstance(stmt, For):
        stmt = stmt.body
    return isinstance(stmt, BlockRealize) and stmt.block is block
