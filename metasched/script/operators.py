"""The meaning of Python's operators on expressions, in scripts and in functions they call."""

from __future__ import annotations

from typing import Any

from metasched.ir.describe import INFIX
from metasched.ir.expr import (
    EQ,
    NE,
    And,
    Arithmetic,
    BinaryOp,
    Div,
    Expr,
    ExprLike,
    Mul,
    Not,
    Or,
    as_expr,
    as_int,
    compare,
)
from metasched.ir.operators import MEANING, in_users_code
from metasched.script.builder import infix, pair, shifted
from metasched.script.diagnostics import RefusedOperand
from metasched.script.words import apply_op, refuse_zero

_LARGEST_POWER = 16


def arithmetic(kind: type[BinaryOp], a: ExprLike, b: ExprLike) -> Expr:
    """The node `kind` of both operands in their common type, not folded."""
    x, y = pair(a, b)
    operand = x.dtype
    if kind is Div and operand.is_int:
        raise RefusedOperand(f"/ of {operand} is a fraction in Python and no {operand}",
                              "write a // b to round down, T.truncdiv(a, b) to cut off, or "
                              "T.float32(a) / b")  # fmt: skip
    if issubclass(kind, Arithmetic) and operand.is_bool:
        raise RefusedOperand(f"{INFIX[kind][0]} of two bools", "write T.int32(a) for a number, or "
                              "&, | and ^ between conditions")  # fmt: skip
    return refuse_zero(kind(x, y))


def operation(name: str, a: ExprLike, b: ExprLike) -> Expr:
    """The operation of an operator on bits, or of `**`."""
    shifts = name in ("shift_left", "shift_right")
    x, y = shifted(a, b) if shifts else pair(a, b)
    if name == "pow" and not x.dtype.is_float:
        return _power(x, y)
    if name != "pow":
        _require_bits(name, x, y)
    bits, shift = x.dtype.bits, as_int(y)
    if shifts and shift is not None and not 0 <= shift < bits:
        raise RefusedOperand(f"{x.dtype} is shifted by 0 to {bits - 1} bits, not by {shift}",
                              "convert to a wider type first, as T.int64(x)")  # fmt: skip
    if x.dtype.is_bool and name in ("bitwise_and", "bitwise_or"):
        kind = And if name == "bitwise_and" else Or
        return kind(x, y)  # type: ignore[no-any-return]
    return apply_op(name, (x, y))


def inverted(value: Expr) -> Expr:
    """~value: the opposite of a condition, all bits of an integer turned."""
    _require_bits("bitwise_not", value)
    return Not(value) if value.dtype.is_bool else apply_op("bitwise_not", (value,))


def _require_bits(name: str, *operands: Expr) -> None:
    for each in operands:
        if not (each.dtype.is_int or each.dtype.is_bool):
            raise RefusedOperand(f"{name} needs integers, not {each.dtype}",
                                  "convert, as T.int32(x), or read the bits by "
                                  "T.reinterpret('int32', x)")  # fmt: skip


def _power(x: Expr, y: Expr) -> Expr:
    """An integer to a constant power, as products."""
    times = as_int(y)
    if times is None or not 0 <= times <= _LARGEST_POWER or x.dtype.is_bool:
        raise RefusedOperand(f"the power of an integer is a number from 0 to {_LARGEST_POWER}",
                              "convert to floating point: T.float32(x) ** y")  # fmt: skip
    result: Expr = as_expr(1, x.dtype) if times == 0 else x
    for _ in range(times - 1):
        result = Mul(result, x)
    return result


def _entered(name: str) -> Any:
    return lambda a, b: operation(name, a, b)


for _symbol, _name in {
    "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor",
    "<<": "shift_left", ">>": "shift_right", "**": "pow",
}.items():  # fmt: skip
    MEANING[_symbol] = _entered(_name)
MEANING["/"] = lambda a, b: (arithmetic if in_users_code() else infix)(Div, a, b)
MEANING["=="] = lambda a, b: compare(EQ, *pair(a, b))
MEANING["!="] = lambda a, b: compare(NE, *pair(a, b))
MEANING["~"] = inverted
MEANING["abs"] = lambda a: apply_op("abs", (a,))
