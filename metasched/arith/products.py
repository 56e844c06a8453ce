"""Products: an integer expression multiplied out to a sum of signed products.

Integers wrap, so sums and products of one type are equal after any expansion. A cast of a sum is a
sum of casts where the types show that the sum does not wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from metasched.arith.bounds import Interval, maximum, minimum, times, union
from metasched.ir.dtype import DType
from metasched.ir.expr import Add, Cast, Expr, IntImm, Max, Min, Mul, Select, Sub, binary, cast
from metasched.ir.op import Call

Product: TypeAlias = tuple[int, tuple[Expr, ...]]
"""A sign, 1 or -1, and factors."""


def products_of(value: Expr) -> Iterator[Product]:
    """The signed products of a value that is multiplied out."""
    if isinstance(value, (Add, Sub)):
        yield from products_of(value.a)
        flip = -1 if isinstance(value, Sub) else 1
        yield from ((flip * sign, factors) for sign, factors in products_of(value.b))
    elif isinstance(value, Mul):
        right = list(products_of(value.b))
        for sign, factors in products_of(value.a):
            yield from ((sign * other, (*factors, *more)) for other, more in right)
    elif isinstance(value, Cast) and (inner := _cast_inside(value)) is not None:
        yield from products_of(inner)
    else:
        yield 1, (value,)


def _cast_inside(node: Cast) -> Expr | None:
    """The cast of a sum or product as the sum or product of casts; None where the narrower type may
    wrap."""
    inner = node.value
    if not isinstance(inner, (Add, Sub, Mul)) or not inner.dtype.is_int or not node.dtype.is_int:
        return None
    low, high = _exact(inner)
    if low < inner.dtype.range[0] or high > inner.dtype.range[1]:
        return None
    return binary(type(inner), _cast(inner.a, node.dtype), _cast(inner.b, node.dtype))


def _cast(value: Expr, dtype: DType) -> Expr:
    """A cast that skips a cast to a type which holds all values of the type before."""
    if isinstance(value, Cast) and value.dtype.holds(value.value.dtype):
        return cast(dtype, value.value)
    return cast(dtype, value)


def span(value: Expr) -> Interval:
    """Bounds of an integer by the types of its parts; the range of its own type if an operation may
    wrap."""
    own = value.dtype.range
    found = _exact(value)
    return found if own[0] <= found[0] and found[1] <= own[1] else own


def _exact(value: Expr) -> Interval:
    """Bounds of an integer whose last operation does not wrap."""
    if isinstance(value, IntImm):
        return value.value, value.value
    if isinstance(value, Cast) and value.value.dtype.is_int:
        return span(value.value)
    if (branches := choices(value)) is not None:
        return union(span(branches[0]), span(branches[1]))
    if not isinstance(value, (Add, Sub, Mul, Min, Max)):
        return value.dtype.range
    a, b = span(value.a), span(value.b)
    if isinstance(value, (Min, Max)):
        return minimum(a, b) if isinstance(value, Min) else maximum(a, b)
    if isinstance(value, Mul):
        return times(a, b)
    if isinstance(value, Sub):
        b = (-b[1], -b[0])
    return a[0] + b[0], a[1] + b[1]


def choices(value: Expr) -> tuple[Expr, Expr] | None:
    """The two values between which a condition chooses; None for other expressions."""
    if isinstance(value, Select):
        return value.a, value.b
    if isinstance(value, Call) and value.op.name == "if_then_else":
        return value.args[1], value.args[2]
    return None
