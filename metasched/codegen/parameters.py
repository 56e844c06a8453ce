"""The C parameters of a function, from the parameters of its `PrimFunc`."""

from __future__ import annotations

from collections.abc import Iterator

from metasched.codegen.signature import BufferArg, Extent, ScalarArg, Signature
from metasched.errors import BuildError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Cast,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Sub,
    Var,
)  # fmt: skip
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, DeclBuffer, Evaluate, Stmt
from metasched.ir.visit import walk_exprs, walk_stmts


def shape_symbols(func: PrimFunc) -> tuple[Var, ...]:
    """Variables in the shapes and strides of buffers that are not parameters themselves, in order
    of appearance."""
    params = {p for p in func.params if isinstance(p, Var)}
    found: dict[Var, None] = {}
    for buffer in func.buffers:
        for extent in (*buffer.shape, *buffer.strides):
            for var in _vars_in_order(extent):
                if var not in params:
                    found[var] = None
    return tuple(found)


def _vars_in_order(expr: Expr) -> list[Var]:
    if isinstance(expr, Var):
        return [expr]
    return [v for child in expr.children for v in _vars_in_order(child)]


_SIGNS = {Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", FloorMod: "%", Min: "min", Max: "max"}


def signature_of(
    func: PrimFunc, lowered: PrimFunc, symbol: str, messages: tuple[str, ...]
) -> Signature:
    """The C parameters of `func`; the lowered body tells which buffers are read and written."""
    read, written = _touched(lowered)
    names: dict[Var, str] = {}
    taken: set[str] = set()

    def unique(var: Var) -> str:
        if var not in names:
            name, n = var.name, 1
            while name in taken:
                name, n = f"{var.name}_{n}", n + 1
            taken.add(name)
            names[var] = name
        return names[var]

    for param in func.params:
        unique(param.data if isinstance(param, Buffer) else param)
    symbols = tuple(unique(v) for v in shape_symbols(func))

    def extent(expr: Expr) -> Extent:
        if isinstance(expr, IntImm):
            return expr.value
        if isinstance(expr, Var):
            return unique(expr)
        if isinstance(expr, Cast):
            return extent(expr.value)
        if isinstance(expr, BinaryOp) and type(expr) in _SIGNS:
            return (_SIGNS[type(expr)], extent(expr.a), extent(expr.b))
        raise BuildError(f"{type(expr).__name__} in the shape of a parameter")

    params: list[BufferArg | ScalarArg] = []
    for param in func.params:
        if isinstance(param, Var):
            params.append(ScalarArg(unique(param), str(param.dtype)))
            continue
        params.append(
            BufferArg(
                unique(param.data), str(DType(param.dtype)),
                tuple(extent(s) for s in param.shape),
                tuple(extent(s) for s in param.row_major_strides()),
                not param.strides, param.data in read, param.data in written,
            )
        )  # fmt: skip
    return Signature(symbol, tuple(params), symbols, messages)


def _uses(stmt: Stmt) -> Iterator[Stmt | Expr]:
    """A statement and its expressions; none of a prefetch, which only hints."""
    called = stmt.value if isinstance(stmt, Evaluate) else None
    if not (isinstance(called, Call) and called.op.name == "prefetch"):
        yield stmt
        for expr in stmt.exprs:
            yield from walk_exprs(expr)


def _touched(lowered: PrimFunc) -> tuple[set[Expr], set[Expr]]:
    """Data pointers read from and written to; taking an address counts as both."""
    read: set[Expr] = set()
    written: set[Expr] = set()
    views: dict[Expr, Expr] = {}
    for node in (node for stmt in walk_stmts(lowered.body) for node in _uses(stmt)):
        if isinstance(node, BufferLoad):
            read.add(node.buffer.data)
        elif isinstance(node, BufferStore):
            written.add(node.buffer.data)
        elif isinstance(node, DeclBuffer):
            views[node.buffer.data] = node.source.data
        elif isinstance(node, Call):
            touched: set[Expr] = {a for a in node.args if isinstance(a, Var) and a.dtype.is_handle}
            if node.op.name == "address_of":
                touched |= {a.buffer.data for a in node.args if isinstance(a, BufferLoad)}
            read |= touched
            written |= touched
    for view, source in views.items():
        read |= {source} if view in read else set()
        written |= {source} if view in written else set()
    return read, written
