"""Describes a node in one line, for errors of the floors below the script printer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import Expr, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.op import Broadcast, Call, Ramp
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    LetStmt,
    Return,
    Stmt,
    While,
)

# Infix operators: how they are written and how tightly they bind (Python's own order).
INFIX: dict[type[ir.BinaryOp], tuple[str, int]] = {
    ir.Or: ("or", 1), ir.And: ("and", 2),
    ir.EQ: ("==", 4), ir.NE: ("!=", 4),
    ir.LT: ("<", 4), ir.LE: ("<=", 4), ir.GT: (">", 4), ir.GE: (">=", 4),
    ir.Add: ("+", 9), ir.Sub: ("-", 9),
    ir.Mul: ("*", 10), ir.Div: ("/", 10), ir.FloorDiv: ("//", 10), ir.FloorMod: ("%", 10),
}  # fmt: skip
_DEEPEST = 12


def show_expr(expr: Expr | int, level: int = 0, depth: int = 0) -> str:
    """An expression as infix text, in parentheses when it binds less tightly than `level`. Deep
    sub-expressions are shown as dots."""
    if isinstance(expr, (int, Var)):
        return str(expr) if isinstance(expr, int) else expr.name
    if isinstance(expr, (ir.IntImm, ir.FloatImm)):
        return str(bool(expr.value) if expr.dtype.is_bool else expr.value)
    if isinstance(expr, ir.StringImm):
        return repr(expr.value)
    if depth == 0 and tree_size(expr) > LARGE:
        depth = _DEEPEST // 2
    if depth > _DEEPEST:
        return "..."
    if isinstance(expr, ir.BinaryOp) and type(expr) in INFIX:
        sign, mine = INFIX[type(expr)]
        left = show_expr(expr.a, mine, depth + 1)
        inside = f"{left} {sign} {show_expr(expr.b, mine + 1, depth + 1)}"
        return f"({inside})" if mine < level else inside
    parts = [show_expr(c, 0, depth + 1) for c in expr.children]
    if isinstance(expr, BufferLoad):
        return f"{expr.buffer.name}[{', '.join(parts)}]"
    if isinstance(expr, ir.Cast):
        return f"{expr.dtype}({parts[0]})"
    if isinstance(expr, ir.Not):
        return f"(not {show_expr(expr.children[0], 3, depth + 1)})"
    if isinstance(expr, ir.Let):
        return f"let({expr.var.name}, {parts[0]}, {parts[1]})"
    if isinstance(expr, (Ramp, Broadcast)):
        parts.append(str(expr.lanes))
    name = "truncmod" if isinstance(expr, ir.Mod) else type(expr).__name__.lower()
    name = expr.op.name if isinstance(expr, Call) else name
    return f"{name}({', '.join(parts)})"


def show_range(r: Range) -> str:
    low, size = show_expr(r.min), show_expr(r.extent)
    if r.is_point:
        return low
    return f"{low}:{low} + {size}" if low != "0" else f"0:{size}"


def show_region(region: BufferRegion) -> str:
    return f"{region.buffer.name}[{', '.join(map(show_range, region.region))}]"


def describe(node: Any) -> str:
    """One line that lets a reader find `node` in the program."""
    if isinstance(node, Expr):
        return show_expr(node)
    if isinstance(node, Stmt):
        return _stmt_line(node)
    if isinstance(node, Buffer):
        shape = ", ".join(map(show_expr, node.shape))
        return f"buffer {node.name}: {node.dtype}[{shape}] in {node.scope}"
    if isinstance(node, BufferRegion):
        return show_region(node)
    if isinstance(node, Range):
        return show_range(node)
    if isinstance(node, IterVar):
        return f"{node.kind.value} {node.var.name} in {show_range(node.dom)}"
    if isinstance(node, PrimFunc):
        params = ", ".join(p.name for p in node.params)
        return f"def {node.attrs.get('global_symbol', 'function')}({params})"
    if isinstance(node, IRModule):
        return f"module of {', '.join(node)}"
    return repr(node)


def _stmt_line(s: Stmt) -> str:
    if isinstance(s, For):
        kind = "" if s.kind is ForKind.SERIAL else f" [{s.thread or s.kind.value}]"
        step = "" if s.step is None else f" step {show_expr(s.step)}"
        return f"for {s.var.name} in {show_range(Range(s.min, s.extent))}{step}{kind}"
    if isinstance(s, BufferStore):
        place = ", ".join(map(show_expr, s.indices))
        return f"{s.buffer.name}[{place}] = {show_expr(s.value)}"
    if isinstance(s, BlockRealize):
        pairs = zip(s.block.iter_vars, s.iter_values, strict=False)
        bound = ", ".join(f"{v.var.name}={show_expr(x)}" for v, x in pairs)
        return f"block {s.block.name}({bound})"
    if isinstance(s, Block):
        return f"block {s.name}({', '.join(v.var.name for v in s.iter_vars)})"
    if isinstance(s, IfThenElse):
        return f"if {show_expr(s.condition)}"
    if isinstance(s, While):
        return f"while {show_expr(s.condition)}"
    if isinstance(s, LetStmt):
        return f"let {s.var.name} = {show_expr(s.value)}"
    if isinstance(s, Evaluate):
        return show_expr(s.value)
    if isinstance(s, Return):
        return "return" if s.value is None else f"return {show_expr(s.value)}"
    if isinstance(s, AssertStmt):
        return f"assert {show_expr(s.condition)}, {s.message!r}"
    if isinstance(s, AttrStmt):
        return f"attr {s.key} = {show_expr(s.value)}"
    if isinstance(s, Allocate):
        return f"allocate {describe(s.buffer)}"
    if isinstance(s, DeclBuffer):
        return f"declare {describe(s.buffer)} over {s.source.name}"
    return type(s).__name__


def context(stack: Sequence[Any], node: Any, above: int = 4) -> str:
    """The nearest statements above `node`, each a level deeper, and `node` marked with `>`."""
    lines = [x for x in stack if not isinstance(x, Block)][-above:]
    text = [f"    {'  ' * depth}{describe(x)}" for depth, x in enumerate(lines)]
    return "\n".join([*text, f"  > {'  ' * len(lines)}{describe(node)}"])
