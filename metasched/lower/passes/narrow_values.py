"""Integer arithmetic in vectorized loops takes 16 bits where its results are stored in few bits.

    B[l] = uint8((int32(A[l]) + int32(A[l + 1]) + 1) // 2)
    ->  B[l] = uint8((int16(A[l]) + int16(A[l + 1]) + int16(1)) // int16(2))

Twice as many lanes fit a register, and the store converts once. Programs widen pixels to 32 bits to
be safe. The ranges of the operands prove where fewer bits give the same number in every step.
"""

from __future__ import annotations

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
    Select,
    Sub,
    as_int,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, Stmt
from metasched.ir.visit import map_body, transform_expr

Range = tuple[int, int]
_NARROW = tuple(DType(name) for name in ("int16", "uint16", "int32", "uint32"))


def narrow_values(func: PrimFunc) -> PrimFunc:
    """uint8(a + b)  ->  uint8(int16(a) + int16(b)), where no step overflows."""
    return map_body(func, lambda body: _statement(body, lanes=False))


def _statement(stmt: Stmt, *, lanes: bool) -> Stmt:
    lanes = lanes or (isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZED)
    stmts = [_statement(s, lanes=lanes) for s in stmt.stmts]
    exprs = [transform_expr(e, _cast, {}) if lanes else e for e in stmt.exprs]
    same = all(a is b for a, b in zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True))
    return stmt if same else stmt.rebuild(stmts, exprs)


def _cast(node: Expr) -> Expr | None:
    """A cast to fewer bits of a sum that is computed in fewer bits."""
    if not isinstance(node, Cast) or not isinstance(node.value, (BinaryOp, Select, Call)):
        return None
    wide = node.value.dtype
    if not (node.dtype.is_int and wide.is_int and node.dtype.bits < wide.bits and wide.lanes == 1):
        return None
    ranges: dict[Expr, Range] = {}
    if _range(node.value, ranges) is None:
        return None
    low, high = min(r[0] for r in ranges.values()), max(r[1] for r in ranges.values())
    for dtype in _NARROW:
        least, most = dtype.range
        if dtype.bits < wide.bits and least <= low and high <= most:
            value = _narrowed(node.value, dtype)
            return value if value.dtype is node.dtype else Cast(node.dtype, value)
    return None


def _range(expr: Expr, ranges: dict[Expr, Range]) -> Range | None:
    """The range of an expression, which no step leaves; None if it is unknown.

    Args:
        ranges: gets the range of each sub-expression.
    """
    if expr not in ranges:
        found = _computed(expr, ranges)
        if found is None or found[0] < expr.dtype.range[0] or found[1] > expr.dtype.range[1]:
            return None
        ranges[expr] = found
    return ranges[expr]


def _computed(expr: Expr, ranges: dict[Expr, Range]) -> Range | None:
    if isinstance(expr, IntImm):
        return expr.value, expr.value
    if isinstance(expr, Cast):
        kind = expr.value.dtype
        if kind.is_bool:
            return 0, 1
        return kind.range if kind.is_int and kind.bits < expr.dtype.bits else None
    operands = _operands(expr)
    found = [_range(e, ranges) for e in operands]
    if not operands or None in found:
        return None
    known = [r for r in found if r is not None]
    if isinstance(expr, Select) or _called(expr, "if_then_else"):
        return min(r[0] for r in known), max(r[1] for r in known)
    (a, b), (c, d) = known
    if isinstance(expr, Add):
        return a + c, b + d
    if isinstance(expr, Sub):
        return a - d, b - c
    if isinstance(expr, Mul):
        ends = [x * y for x in (a, b) for y in (c, d)]
        return min(ends), max(ends)
    if isinstance(expr, Min):
        return min(a, c), min(b, d)
    if isinstance(expr, Max):
        return max(a, c), max(b, d)
    if c != d or c < 0:
        return None
    if isinstance(expr, FloorDiv) and c > 0:
        return a // c, b // c
    if isinstance(expr, FloorMod) and c > 0:
        return 0, c - 1
    if _called(expr, "shift_right") and c < 16:
        return a >> c, b >> c
    if _called(expr, "shift_left") and c < 16:
        return a << c, b << c
    return (0, c) if _called(expr, "bitwise_and") else None


def _operands(expr: Expr) -> tuple[Expr, ...]:
    """The parts of an expression that are computed in its type; empty for an unknown kind."""
    if isinstance(expr, (Add, Sub, Mul, Min, Max, FloorDiv, FloorMod)):
        return expr.a, expr.b
    if isinstance(expr, Select):
        return expr.a, expr.b
    if _called(expr, "if_then_else"):
        return expr.args[1:]  # type: ignore[attr-defined, no-any-return]
    if any(_called(expr, n) for n in ("shift_left", "shift_right", "bitwise_and")):
        return expr.args  # type: ignore[attr-defined, no-any-return]
    return ()


def _called(expr: Expr, name: str) -> bool:
    return isinstance(expr, Call) and expr.op.name == name


def _narrowed(expr: Expr, dtype: DType) -> Expr:
    """An expression in another type, which holds the values of each step."""
    number = as_int(expr)
    if number is not None:
        return IntImm(dtype, number)
    if isinstance(expr, Cast):
        return expr.value if expr.value.dtype is dtype else Cast(dtype, expr.value)
    parts = iter([_narrowed(e, dtype) for e in _operands(expr)])
    if isinstance(expr, Select):
        return Select(expr.condition, *parts)
    if isinstance(expr, Call):
        first = expr.args[:1] if expr.op.name == "if_then_else" else ()
        return Call(dtype, expr.op, (*first, *parts))
    return expr.rebuild(tuple(parts))
