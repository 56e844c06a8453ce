"""Programs whose results every schedule must keep bit by bit, floats too.

Only a block under `T.axis.reduce`, a block that is a scan, and a liberty of the function change the
order of a sum. Only a product is fused with a sum. So a plain program that adds, subtracts,
compares and chooses floats, without products and functions, has one result. A sum in another order
differs in the last digits only, which a tolerance hides.
"""

from __future__ import annotations

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    Add,
    Cast,
    Expr,
    FloatImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BufferStore, IterKind
from metasched.ir.visit import walk_exprs, walk_stmts

_EXACT = (Add, Sub, Max, Min, Select, Cast, BufferLoad, FloatImm, Var)
_SIZES = ("float32", "float64")


def keeps_bits(func: PrimFunc) -> bool:
    """Whether no schedule may change a bit of the results; see above."""
    stmts = list(walk_stmts(func.body))
    if func.liberties or any(b.dtype.is_float and b.dtype not in _SIZES for b in func.buffers):
        return False
    if any(isinstance(s, Block) and s.iter_vars and _any_order(s) for s in stmts):
        return False
    nodes = {node for s in stmts for e in s.exprs for node in walk_exprs(e)}
    return all(_exact(node) for node in nodes if node.dtype.is_float)


def _any_order(block: Block) -> bool:
    """Whether the block reduces, or reads other elements of what it stores, as a scan does."""
    if any(v.is_reduce or v.kind is IterKind.SCAN for v in block.iter_vars):
        return True
    stmts = list(walk_stmts(block.body))
    stored = {s.buffer: s.indices for s in stmts if isinstance(s, BufferStore)}
    loads = [n for s in stmts for e in s.exprs for n in walk_exprs(e) if isinstance(n, BufferLoad)]
    return any(n.buffer in stored and n.indices != stored[n.buffer] for n in loads)


def _exact(node: Expr) -> bool:
    if isinstance(node, Mul):  # by a power of two, which rounds nothing; -1 changes a sign
        return any(
            isinstance(f, FloatImm) and f.value in (2.0, 0.5, 0.25, -1.0) for f in node.children
        )
    if isinstance(node, Call):
        return node.op.name == "if_then_else"
    return isinstance(node, _EXACT)
