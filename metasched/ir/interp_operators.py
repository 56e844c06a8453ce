"""The functions of values that the operators of expressions apply in the interpreter."""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metasched.errors import InterpretError
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Arithmetic,
    BinaryOp,
    Compare,
    FloorDiv,
    Max,
    Min,
    Mul,
    Or,
    Sub,
    wrap,
)
from metasched.ir.interp_fence import Env, Eval
from metasched.ir.interp_ops import INT_ARRAY_DIVISIONS, INT_DIVISIONS, wrap_array


def _minimum(a: Any, b: Any) -> Any:
    return a if a != a or (a < b and b == b) else b


def _maximum(a: Any, b: Any) -> Any:
    return a if a != a or (a > b and b == b) else b


_PLAIN: dict[type[Any], Callable[[Any, Any], Any]] = {
    Add: op.add, Sub: op.sub, Mul: op.mul, Min: _minimum, Max: _maximum,
    EQ: op.eq, NE: op.ne, LT: op.lt, LE: op.le, GT: op.gt, GE: op.ge,
    And: lambda a, b: a and b, Or: lambda a, b: a or b,
}  # fmt: skip
_ARRAY: dict[type[Any], Callable[[Any, Any], Any]] = {
    **_PLAIN, Min: np.minimum, Max: np.maximum, And: np.logical_and, Or: np.logical_or,
}  # fmt: skip
_FLOAT_DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Div": op.truediv, "Mod": np.fmod, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
}  # fmt: skip


def operator(e: BinaryOp) -> Callable[[Any, Any], Any]:
    """The function of two values that a binary node applies."""
    kind, dtype = type(e), e.a.dtype
    name = kind.__name__
    if dtype.is_handle:
        raise InterpretError(f"{show_expr(e)}: pointers cannot be interpreted")
    if isinstance(e, Compare) or not isinstance(e, Arithmetic):
        return (_ARRAY if dtype.lanes > 1 else _PLAIN)[kind]
    if dtype.is_float:
        return _FLOAT_DIVISIONS.get(name) or (_ARRAY if dtype.lanes > 1 else _PLAIN)[kind]
    if dtype.lanes > 1:
        array = INT_ARRAY_DIVISIONS.get(name) or _ARRAY[kind]
        return lambda a, b: wrap_array(dtype, array(a, b))
    rule = INT_DIVISIONS.get(name) or _PLAIN[kind]
    if kind in (Min, Max):
        return rule
    low, high = dtype.range

    def apply(a: int, b: int) -> int:
        value = rule(a, b)
        return value if low <= value <= high else wrap(dtype, value)

    return apply


def settled_early(
    first: Eval, spine: Sequence[BinaryOp], steps: Sequence[tuple[Callable[[Any, Any], Any], Eval]]
) -> Eval:
    """A chain of operators in which `and` and `or` skip operands once their result is known."""
    settles = [{And: False, Or: True}.get(type(node)) for node in reversed(spine)]

    def run(env: Env) -> Any:
        value = first(env)
        for (apply, operand), settled in zip(steps, settles, strict=True):
            if settled is None or bool(value) is not settled:
                value = apply(value, operand(env))
        return value

    return run


def int_arithmetic(e: BinaryOp, a: Eval, b: Eval) -> Eval:
    """The fast path for the most frequent integer nodes, without the call of an operator."""
    dtype = e.dtype
    low, high = dtype.range

    def add(env: Env) -> int:
        v: int = a(env) + b(env)
        return v if low <= v <= high else wrap(dtype, v)

    def sub(env: Env) -> int:
        v: int = a(env) - b(env)
        return v if low <= v <= high else wrap(dtype, v)

    def mul(env: Env) -> int:
        v: int = a(env) * b(env)
        return v if low <= v <= high else wrap(dtype, v)

    return add if isinstance(e, Add) else sub if isinstance(e, Sub) else mul


def digit(e: BinaryOp, a: Eval, by: int) -> Eval:
    """The fast path for a division by a positive constant, whose result cannot overflow."""
    if isinstance(e, FloorDiv):
        return lambda env: a(env) // by
    return lambda env: a(env) % by
