"""Intervals of integers: the one type for them, and their arithmetic."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from metasched.ir.dtype import DType

INF = math.inf
Interval: TypeAlias = tuple[float, float]
"""Smallest and largest value, both included: integers, or minus and plus infinity."""
_SHORT = 30  # bits by which each index type can be shifted

EVERYTHING: Interval = (-INF, INF)


class Bounds(NamedTuple):
    """An interval with integer ends; None for an unbounded end."""

    lo: int | None
    hi: int | None

    @staticmethod
    def of(interval: Interval) -> Bounds:
        """The ends of an interval."""
        lo, hi = interval
        return Bounds(None if lo == -INF else int(lo), None if hi == INF else int(hi))


def times(a: Interval, b: Interval) -> Interval:
    """All products."""
    products = [x * y if x and y else 0 for x in a for y in b]
    return min(products), max(products)


def _floor(x: float, d: float) -> float:
    if x in (INF, -INF):
        return x
    if d == INF:
        return 0 if x >= 0 else -1
    return x // d


def floordiv(a: Interval, b: Interval) -> Interval:
    """All quotients rounded down; unknown unless the divisor is positive."""
    if b[0] <= 0:
        return EVERYTHING
    low = _floor(a[0], b[1] if a[0] >= 0 else b[0])
    high = _floor(a[1], b[0] if a[1] >= 0 else b[1])
    return low, high


def floormod(a: Interval, b: Interval) -> Interval:
    """All remainders of floor division; unknown unless the divisor is positive."""
    if b[0] <= 0:
        return EVERYTHING
    high = b[1] - 1
    if b[0] == b[1] and a[0] > -INF and a[1] < INF and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    if a[0] >= 0:
        if a[1] < b[0]:
            return a
        high = min(high, a[1])
    return 0, high


def truncdiv(a: Interval, b: Interval) -> Interval:
    """All quotients rounded towards zero, for a positive divisor."""
    if b[0] <= 0:
        return EVERYTHING
    low = _floor(a[0], b[1]) if a[0] >= 0 else -_floor(-a[0], b[0])
    high = _floor(a[1], b[0]) if a[1] >= 0 else -_floor(-a[1], b[1])
    return low, high


def truncmod(a: Interval, b: Interval) -> Interval:
    """All remainders with the sign of the dividend, for a positive divisor."""
    if b[0] <= 0:
        return EVERYTHING
    low = 0 if a[0] >= 0 else max(a[0], 1 - b[1])
    high = 0 if a[1] <= 0 else min(a[1], b[1] - 1)
    return low, high


def minimum(a: Interval, b: Interval) -> Interval:
    """The smaller of two values."""
    return min(a[0], b[0]), min(a[1], b[1])


def maximum(a: Interval, b: Interval) -> Interval:
    """The larger of two values."""
    return max(a[0], b[0]), max(a[1], b[1])


def union(a: Interval, b: Interval) -> Interval:
    """The smallest interval that holds both."""
    return min(a[0], b[0]), max(a[1], b[1])


def shift_left(a: Interval, b: Interval) -> Interval:
    """All products with 2 ** b; unknown unless they stay below 2 ** 31 for certain."""
    if b[0] < 0 or b[1] > _SHORT:
        return EVERYTHING
    found = times(a, (1 << int(b[0]), 1 << int(b[1])))
    return found if max(map(abs, found)) <= 1 << _SHORT else EVERYTHING


def shift_right(a: Interval, b: Interval) -> Interval:
    """All quotients by 2 ** b, rounded down; a count that is no number of bits counts as many."""
    known = b[0] >= 0 and b[1] <= _SHORT
    return floordiv(a, (1 << int(b[0]), 1 << int(b[1])) if known else (1, INF))


def bitwise_and(a: Interval, b: Interval) -> Interval:
    """All common bits; unknown where both values may be negative."""
    if a[0] < 0 and b[0] < 0:
        return EVERYTHING
    return 0, min(x[1] for x in (a, b) if x[0] >= 0)


def bitwise_or(a: Interval, b: Interval) -> Interval:
    """All unions of bits, or their differences; unknown where a value may be negative or has no
    limit."""
    most = max(a[1], b[1])
    if min(a[0], b[0]) < 0 or most == INF:
        return EVERYTHING
    return 0, (1 << int(most).bit_length()) - 1


def of_type(dtype: DType) -> Interval:
    """The values of a type. Index types (int32, int64) count as unbounded integers."""
    if dtype.is_bool or (dtype.is_int and not is_index(dtype)):
        return dtype.range
    return EVERYTHING


def is_index(dtype: DType) -> bool:
    """Whether arithmetic of this type is assumed not to overflow."""
    return dtype == "int32" or dtype == "int64"
