"""Computes the integer value of an expression over sampled values without building IR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from metasched.ir import expr as e
from metasched.ir.expr import Expr, IntImm, Var

Values = Mapping[Any, Any]
_BINARY: dict[type, Callable[[int, int], int]] = {
    e.Add: lambda a, b: a + b,
    e.Sub: lambda a, b: a - b,
    e.Mul: lambda a, b: a * b,
    e.FloorDiv: lambda a, b: a // b,
    e.FloorMod: lambda a, b: a % b,
    e.Min: min,
    e.Max: max,
    e.EQ: lambda a, b: int(a == b),
    e.NE: lambda a, b: int(a != b),
    e.LT: lambda a, b: int(a < b),
    e.LE: lambda a, b: int(a <= b),
    e.GT: lambda a, b: int(a > b),
    e.GE: lambda a, b: int(a >= b),
    e.And: lambda a, b: int(bool(a and b)),
    e.Or: lambda a, b: int(bool(a or b)),
}


def number_of(expr: Expr, values: Values) -> int | None:
    """The value of an integer or boolean expression; None if it is not determined.

    It is not determined if a variable has no number in `values`, for a division by zero, and for
    kinds of expressions that constraints do not use.
    """
    try:
        return _compiled(expr)(values)
    except (KeyError, ZeroDivisionError, TypeError):
        return None


@functools.lru_cache(maxsize=1 << 12)
def _compiled(expr: Expr) -> Callable[[Values], int]:
    if isinstance(expr, IntImm):
        constant = expr.value
        return lambda values: constant
    if isinstance(expr, Var):
        return lambda values: values[expr]
    rule = _BINARY.get(type(expr))
    if rule is not None:
        a, b = (_compiled(c) for c in expr.children)
        return lambda values: rule(a(values), b(values))
    if isinstance(expr, e.Not):
        inner = _compiled(expr.a)
        return lambda values: int(not inner(values))
    return _undetermined


def _undetermined(values: Values) -> int:
    raise KeyError
