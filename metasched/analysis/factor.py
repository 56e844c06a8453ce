"""The constant factor that all terms of a sum share: the 3 of `3 * a * b - c * 3`."""

from __future__ import annotations

from functools import lru_cache

from metasched.analysis.reducer import match_reducer
from metasched.ir.dtype import wrap
from metasched.ir.expr import Add, Expr, FloatImm, IntImm, Mul, Sub, mul
from metasched.ir.stmt import Block

SMALLEST, LARGEST = 2.0**-16, 2.0**16
"""Magnitudes between which a floating-point factor is taken out of a sum. A sum without its factor
then overflows only within 2^16 of the largest number, and underflows likewise."""


def constant_factor(value: Expr) -> tuple[Expr, Expr] | None:
    """The constant factor of a value, and the value without the factor; None where there is none.

    Integers wrap, so the product of both equals the value. Floating-point products may be rounded
    in another order; floats of fewer than 32 bits keep their factors, because they overflow early.
    """
    dtype = value.dtype
    if dtype.lanes != 1 or not (dtype.is_int or (dtype.is_float and dtype.bits >= 32)):
        return None
    factor, rest = _split(value)
    if rest is None or factor == 1:
        return None
    if dtype.is_float and not SMALLEST <= abs(factor) <= LARGEST:
        return None
    if dtype.is_float:
        return FloatImm(dtype, factor), rest
    return IntImm(dtype, wrap(dtype, int(factor))), rest


def factor_of_sum(block: Block) -> Expr | None:
    """The constant factor of the terms that a block with an init sums; None for other blocks."""
    found = match_reducer(block.init, block.body)
    split = constant_factor(found.rhs[0]) if found is not None and found.name == "sum" else None
    return None if split is None else split[0]


@lru_cache(maxsize=1 << 12)
def _split(value: Expr) -> tuple[float, Expr | None]:
    """A constant and a value whose product is `value`; None for the value 1."""
    if isinstance(value, (IntImm, FloatImm)):
        return value.value, None
    if isinstance(value, Mul):
        (a, left), (b, right) = _split(value.a), _split(value.b)
        if value.dtype.is_float and not _one_side(a, b):
            return 1, value
        if left is None or right is None:
            return a * b, left if right is None else right
        return a * b, value if a == b == 1 else mul(left, right)
    if isinstance(value, (Add, Sub)):
        (a, left), (b, right) = _split(value.a), _split(value.b)
        if a == b and left is not None and right is not None:
            return a, value if a == 1 else type(value)(left, right)
    return 1, value


def _one_side(a: float, b: float) -> bool:
    """Whether each product of x, a and b lies between x and x * a * b: 1e9 * x * 1e-9 may overflow
    where x does not."""
    return (abs(a) >= 1 and abs(b) >= 1) or (abs(a) <= 1 and abs(b) <= 1)
