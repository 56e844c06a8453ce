"""Builds programs from blocks with Python functions, without a script.

    vi, vj, vk = spatial("vi", 64), spatial("vj", 48), reduce("vk", 32)
    i, j, k = vi.var, vj.var, vk.var
    update = store(C, (i, j), C[i, j] + A[i, k] * B[k, j])
    init = store(C, (i, j), 0)
    func = function("matmul", [A, B, C], [stage("C", [vi, vj, vk], update, init=init)])

The regions that a block reads and writes are inferred from its body, as in a script.
`stage`, `store` and `function` make most programs; `grid` and `block` build other nests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Expr, ExprLike, Var, as_expr
from metasched.ir.func import Param, PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    Stmt,
    evolve,
    frozen,
    seq,
)
from metasched.ir.visit import walk_stmts
from metasched.script.builder import typed


def spatial(name: str, extent: ExprLike) -> IterVar:
    """An iterator of a block whose values write different elements."""
    return _iterator(name, extent, IterKind.SPATIAL)


def reduce(name: str, extent: ExprLike) -> IterVar:
    """An iterator of a block whose values contribute to the same element."""
    return _iterator(name, extent, IterKind.REDUCE)


def _iterator(name: str, extent: ExprLike, kind: IterKind) -> IterVar:
    size = as_expr(extent)
    return IterVar(Var(name, size.dtype), Range.of(as_expr(0, size.dtype), size), kind)


def store(buffer: Buffer, indices: Sequence[ExprLike], value: ExprLike) -> BufferStore:
    """`buffer[indices] = value`; a Python number takes the buffer's type."""
    return BufferStore(buffer, typed(value, buffer.dtype), tuple(as_expr(i) for i in indices))


def block(
    name: str,
    iters: Mapping[IterVar, ExprLike],
    body: Stmt,
    *,
    init: Stmt | None = None,
    predicate: Expr = TRUE,
) -> BlockRealize:
    """A block with each iterator bound to a value.

    Args:
        init: the statement that sets a reduction's result before the first update.
        predicate: the block runs only where it holds.
    """
    made = Block(name, tuple(iters), (), (), body, init)
    reads, writes = block_access_regions(made)
    values = tuple(typed(v, i.var.dtype) for i, v in iters.items())
    return BlockRealize(values, predicate, evolve(made, reads=reads, writes=writes))


def grid(extents: Mapping[str, ExprLike], body: Callable[..., Stmt]) -> Stmt:
    """Nested serial loops by name; `body` takes their variables and returns the loops' body."""
    sizes = [as_expr(extent) for extent in extents.values()]
    loops = [Var(name, size.dtype) for name, size in zip(extents, sizes, strict=True)]
    inside = body(*loops)
    for var, size in reversed([*zip(loops, sizes, strict=True)]):
        inside = For.serial(var, size, inside)
    return inside


def stage(name: str, iters: Sequence[IterVar], body: Stmt, *, init: Stmt | None = None) -> Stmt:
    """A block in a new loop nest, one loop for each iterator."""
    extents = {f"i{n}": v.dom.extent for n, v in enumerate(iters)}
    return grid(
        extents, lambda *loops: block(name, dict(zip(iters, loops, strict=True)), body, init=init)
    )


def function(
    name: str,
    params: Sequence[Param],
    stages: Iterable[Stmt],
    attrs: Mapping[str, Any] | None = None,
) -> PrimFunc:
    """A function that runs `stages` one after another.

    Buffers that are written and no parameters are allocated, in the order in which they are first
    written. `attrs` join `global_symbol` and `tir.noalias`.
    """
    body = seq(stages)
    written = {s.buffer: None for s in walk_stmts(body) if isinstance(s, BufferStore)}
    temporary = tuple(buffer for buffer in written if buffer not in params)
    root = Block("root", (), (), (), body, alloc_buffers=temporary)
    marks = {"global_symbol": name, "tir.noalias": True, **(attrs or {})}
    return PrimFunc(tuple(params), BlockRealize.plain(root), frozen(marks))
