"""Expressions, buffers and plain values as text; constants keep their type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import INFIX
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Cast,
    Div,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Mul,
    Not,
    Select,
    StringImm,
    Var,
)
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle
from metasched.script.doc import CLOSE, OPEN, Names
from metasched.script.words import (
    ATOM_LEVEL,
    COMPARE_LEVEL,
    FUNCTIONS,
    NOT_LEVEL,
    TYPE_FIRST,
    UNARY_LEVEL,
    by_zero,
    infers,
    is_literal,
)


def quote(text: str) -> str:
    """A string literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


class ExprPrinter:
    """Text of expressions over `names`; the expressions in `marked` are put between marks."""

    def __init__(self, names: Names, marked: frozenset[Any] = frozenset()) -> None:
        self.names = names
        self.marked = marked
        self.named: dict[Expr, str] = {}  # the shared parts of a large expression

    def text(self, expr: Expr, level: int = 0) -> str:
        """`expr`, in parentheses where it binds less tightly than `level`."""
        if expr in self.named:
            return self.named[expr]
        out, own = self._bare(expr)
        if own < level:
            out = f"({out})"
        return f"{OPEN}{out}{CLOSE}" if expr in self.marked else out

    def typed(self, expr: Expr) -> str:
        """`expr` with its type spelled out even where it is a bare number."""
        if is_literal(expr):
            assert isinstance(expr, IntImm)
            out = f"T.{expr.dtype}({_number(expr)})"
            return f"{OPEN}{out}{CLOSE}" if expr in self.marked else out
        return self.text(expr)

    def of_type(self, expr: Expr, dtype: DType) -> str:
        """`expr` as text at a place where bare numbers take `dtype`."""
        return self.text(expr) if expr.dtype is dtype else self.typed(expr)

    def args(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(self.text(e) for e in exprs)

    def group(self, exprs: Sequence[Expr]) -> str:
        return f"({self.args(exprs)},)" if len(exprs) == 1 else f"({self.args(exprs)})"

    def _bare(self, expr: Expr) -> tuple[str, int]:
        if type(expr) in INFIX and not _as_function(expr):
            assert isinstance(expr, BinaryOp)
            return self._infix(expr)
        if isinstance(expr, BinaryOp):
            node = (type(expr).__name__,)  # a division by zero is read under the node's name alone
            word = (node if by_zero(expr) else FUNCTIONS.get(type(expr), node))[0]
            return f"T.{word}({self._pair(expr.a, expr.b)})", ATOM_LEVEL
        if isinstance(expr, Not):
            known = is_literal(expr.a)  # Python would compute `not False`
            inner = self.typed(expr.a) if known else self.text(expr.a, NOT_LEVEL)
            return f"not {inner}", NOT_LEVEL
        if isinstance(expr, IntImm) and expr.value < 0 and is_literal(expr):
            return _number(expr), UNARY_LEVEL
        return _ATOMS[type(expr)](self, expr), ATOM_LEVEL

    def _infix(self, expr: BinaryOp) -> tuple[str, int]:
        """Left-deep chains are unwound in a loop: sums of a thousand terms are legal."""
        symbol, level = INFIX[type(expr)]
        tails: list[str] = []
        node: Expr = expr
        lowest: Expr = expr.b
        while isinstance(node, BinaryOp) and INFIX.get(type(node), ("", -1))[1] == level:
            if tails and (level == COMPARE_LEVEL or node in self.marked or node in self.named):
                break
            if (level < NOT_LEVEL and type(node) is not type(expr)) or _as_function(node):
                break
            symbol = INFIX[type(node)][0]
            tails.append(f" {symbol} {self.text(node.b, level + 1)}")
            lowest, node = node.b, node.a
        if is_literal(node) and is_literal(lowest):
            head = self.typed(node)
        else:
            head = self.text(node, level + 1 if level == COMPARE_LEVEL else level)
        return head + "".join(reversed(tails)), level

    def _pair(self, a: Expr, b: Expr) -> str:
        """Two operands as text, at least one of which determines their common type."""
        both = is_literal(a) and is_literal(b)
        return f"{self.typed(a) if both else self.text(a)}, {self.text(b)}"

    def call(self, node: Call) -> str:
        name = node.op.name
        args = [self.text(a) for a in node.args]
        if name in TYPE_FIRST:
            args.insert(0, quote(node.dtype))
        elif not infers(node):
            args.append(f"dtype={quote(node.dtype)}")
        return f"T.{name}({', '.join(args)})"

    def let(self, node: Let) -> str:
        value = self.typed(node.value)
        with self.names.scope():
            name = self.names.define(node.var)
            body = self.typed(node.body)
            return f"T.Let({body}, where={{{name}: {value}}})"

    def access(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        return f"{self.names.get(buffer)}[{self.args(indices) or '()'}]"

    def load(self, node: BufferLoad) -> str:
        if node.predicate is None:
            return self.access(node.buffer, node.indices)
        mask = self.text(node.predicate)
        name = self.names.get(node.buffer)
        return f"{name}.vload([{self.args(node.indices)}], predicate={mask})"

    def span(self, low: Expr, size: Expr, step: Expr | None = None) -> tuple[str | None, str]:
        """The texts of start (None for zero) and stop of `size` steps from `low`.

        The parser reads the same `low` and `size` from these texts.
        """
        reach = size if step is None else Mul(size, step) if size.dtype is step.dtype else size
        numbers = [n for n in (low, size, step) if isinstance(n, IntImm)]
        if isinstance(low, IntImm) and len(numbers) == 3 - (step is None):
            stop = self._stop(numbers)
            if stop is not None and low.dtype is size.dtype:
                return (None if low.value == 0 else self.text(low)), stop
        if low.dtype is not size.dtype:
            return self.typed(low), self.typed(reach)
        if isinstance(low, IntImm) and low.value == 0:
            return None, self.text(reach)
        return self.text(low), self.text(Add(low, reach))

    def _stop(self, numbers: Sequence[IntImm]) -> str | None:
        """The stop of a range of numbers (low, size, step); None if it does not fit in the type."""
        low, size, step = (*(n.value for n in numbers), 1)[:3]
        dtype, stop = numbers[0].dtype, low + size * step
        return self.text(IntImm(dtype, stop)) if dtype.range[0] <= stop <= dtype.range[1] else None

    def region(self, region: BufferRegion) -> str:
        dims = ", ".join(self._dim(r) for r in region.region)
        return f"{self.names.get(region.buffer)}[{dims or '()'}]"

    def _dim(self, r: Range) -> str:
        if r.is_point and r.extent.dtype is r.min.dtype:
            return self.text(r.min)
        start, stop = self.span(r.min, r.extent)
        return f"{start or 0}:{stop}"

    def buffer_args(self, buffer: Buffer, explicit_offset: bool = False) -> str:
        """Shape, type and all fields that differ from the default, as arguments of a
        declaration."""
        parts = [self.group(buffer.shape), quote(buffer.dtype)]
        if buffer.strides:
            parts.append(f"strides={self.group(buffer.strides)}")
        if buffer.elem_offset is not None:
            parts.append(f"elem_offset={self.text(buffer.elem_offset)}")
        elif explicit_offset and buffer.offset_factor != 1:
            parts.append("elem_offset=None")
        if buffer.scope != "global":
            parts.append(f"scope={quote(buffer.scope)}")
        if buffer.align != 64:
            parts.append(f"align={buffer.align}")
        if buffer.offset_factor != 1:
            parts.append(f"offset_factor={buffer.offset_factor}")
        return ", ".join(parts)

    def value(self, value: Any) -> str:
        """A plain value, as in annotations: Python's own or an expression."""
        if isinstance(value, Expr):
            return f"T.StringImm({quote(value.value)})" if isinstance(value, StringImm) else (
                self.typed(value)
            )  # fmt: skip
        if isinstance(value, str):
            return quote(value)
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, Mapping):
            items = (f"{self.value(k)}: {self.value(v)}" for k, v in value.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, tuple):
            inside = ", ".join(map(self.value, value))
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        if isinstance(value, Buffer):
            return self.names.get(value)
        return f"T.unprintable({quote(repr(value))})"


def _as_function(expr: Expr) -> bool:
    """Whether an operator must be printed as a call, because its sign has another meaning in
    Python: / of integers; // and % by zero, which a script may not write."""
    return by_zero(expr) or (isinstance(expr, Div) and expr.dtype.is_int)


def _number(expr: IntImm) -> str:
    return str(bool(expr.value)) if expr.dtype == "bool" else str(expr.value)


def _int(p: ExprPrinter, e: IntImm) -> str:
    return _number(e) if is_literal(e) else f"T.{e.dtype}({e.value})"


def _float(p: ExprPrinter, e: FloatImm) -> str:
    v = e.value
    if not math.isfinite(v):
        sign = "-" if math.copysign(1.0, v) < 0 else ""
        return f'T.{e.dtype}("{sign}{abs(v)!s}")'
    whole = v.is_integer() and abs(v) < 1e15 and (v != 0 or math.copysign(1.0, v) > 0)
    return f"T.{e.dtype}({int(v) if whole else repr(v)})"


def _select(p: ExprPrinter, e: Select) -> str:
    return f"T.Select({p.text(e.condition)}, {p._pair(e.a, e.b)})"


def _shuffle(p: ExprPrinter, e: Shuffle) -> str:
    vectors = ", ".join(p.typed(v) for v in e.vectors)
    return f"T.Shuffle([{vectors}], {list(e.indices)})"


_ATOMS: dict[type[Expr], Callable[[ExprPrinter, Any], str]] = {
    Var: lambda p, e: p.names.get(e),
    IntImm: _int,
    FloatImm: _float,
    StringImm: lambda p, e: quote(e.value),
    Cast: lambda p, e: f"T.Cast({quote(e.dtype)}, {p.typed(e.value)})",
    Select: _select,
    Let: lambda p, e: p.let(e),
    Ramp: lambda p, e: f"T.Ramp({p._pair(e.base, e.stride)}, {e.lanes})",
    Broadcast: lambda p, e: f"T.Broadcast({p.typed(e.value)}, {e.lanes})",
    Shuffle: _shuffle,
    Call: lambda p, e: p.call(e),
    BufferLoad: lambda p, e: p.load(e),
}
