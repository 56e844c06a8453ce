"""Operation counts: how many arithmetic operations a program executes on its data.

Each arithmetic node, comparison of floats and mathematical function in a stored or let value counts
one. Index arithmetic and conditions on indices count nothing. A conditional counts as its costlier
branch. Predicates of blocks are ignored. The body of a loop of unknown extent counts once.
"""

from __future__ import annotations

from functools import lru_cache

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Arithmetic, Compare, Expr, Select, as_int
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import (
    Block,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
    fact,
)

_FREE = frozenset({
    "likely", "assume", "undef", "vscale", "reinterpret", "ret", "prefetch", "address_of",
    "access_ptr", "ignore_loop_partition",
})  # fmt: skip


def flops(node: IRModule | PrimFunc | Stmt) -> float:
    """The number of operations one execution of `node` performs (of a module: all functions)."""
    if isinstance(node, IRModule):
        return sum(flops(f) for f in node.functions.values())
    return flops(node.body) if isinstance(node, PrimFunc) else _count(node)


@fact
def _count(stmt: Stmt) -> float:
    if isinstance(stmt, For):
        extent = as_int(stmt.extent)
        return flops(stmt.body) * (1 if extent is None else max(extent, 0))
    if isinstance(stmt, IfThenElse):
        branches = [flops(s) for s in stmt.stmts]
        return expr_flops(stmt.condition) + max(branches)
    if isinstance(stmt, Block):
        start = 0.0 if stmt.init is None else flops(stmt.init) / _reductions(stmt)
        return flops(stmt.body) + start
    own = 0.0
    if isinstance(stmt, (BufferStore, LetStmt, Evaluate)):
        own = expr_flops(stmt.value)
    elif isinstance(stmt, While):
        own = expr_flops(stmt.condition)
    return own + sum(flops(s) for s in stmt.stmts)


def _reductions(block: Block) -> int:
    """The number of instances of a reduction for each execution of its init."""
    total = 1
    for v in block.iter_vars:
        extent = as_int(v.dom.extent) if v.is_reduce else 1
        total *= max(extent or 1, 1)
    return total


@lru_cache(maxsize=1 << 12)
def expr_flops(expr: Expr) -> float:
    """The number of operations that computing a value takes, every occurrence counted."""
    counts: dict[Expr, float] = {}
    stack = [expr]
    while stack:
        node = stack[-1]
        if node in counts:
            stack.pop()
            continue
        parts = () if isinstance(node, BufferLoad) else node.children
        missing = [p for p in parts if p not in counts]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        counts[node] = _node_flops(node, [counts[p] for p in parts])
    return counts[expr]


def _node_flops(node: Expr, parts: list[float]) -> float:
    lanes = node.dtype.lanes
    if isinstance(node, Arithmetic):
        return sum(parts) + lanes
    if isinstance(node, Compare):
        return sum(parts) + lanes if node.a.dtype.is_float else 0.0
    lazy = isinstance(node, Call) and node.op.name == "if_then_else"
    if isinstance(node, Select) or lazy:
        return parts[0] + max(parts[1:])
    if isinstance(node, Call) and node.op.name not in _FREE:
        return sum(parts) + lanes
    return sum(parts)
