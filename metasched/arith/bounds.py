"""Constant intervals: Bounds, and interval arithmetic on pairs (low, high) with -inf and inf."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from metasched.ir.dtype import DType

INF = math.inf
Pair: TypeAlias = tuple[float, float]  # integers, or -inf / inf
EVERYTHING: Pair = (-INF, INF)


class Bounds(NamedTuple):
    """The integers from `lo` to `hi`, both included; None where unbounded."""

    lo: int | None
    hi: int | None

    @staticmethod
    def of(pair: Pair) -> Bounds:
        """The public form of an internal pair."""
        lo, hi = pair
        return Bounds(None if lo == -INF else int(lo), None if hi == INF else int(hi))


def times(a: Pair, b: Pair) -> Pair:
    """All products."""
    products = [x * y if x and y else 0 for x in a for y in b]
    return min(products), max(products)


def _floor(x: float, d: float) -> float:
    if x in (INF, -INF):
        return x
    if d == INF:
        return 0 if x >= 0 else -1
    return x // d


def floordiv(a: Pair, b: Pair) -> Pair:
    """All quotients rounded down; unknown unless the divisor is positive."""
    if b[0] <= 0:
        return EVERYTHING
    low = _floor(a[0], b[1] if a[0] >= 0 else b[0])
    high = _floor(a[1], b[0] if a[1] >= 0 else b[1])
    return low, high


def floormod(a: Pair, b: Pair) -> Pair:
    """All remainders of floor division; unknown unless the divisor is positive."""
    if b[0] <= 0:
        return EVERYTHING
    high = b[1] - 1
    if a[0] >= 0:
        if a[1] < b[0]:
            return a
        high = min(high, a[1])
    return 0, high


def truncdiv(a: Pair, b: Pair) -> Pair:
    """All quotients rounded towards zero, for a positive divisor."""
    if b[0] <= 0:
        return EVERYTHING
    low = _floor(a[0], b[1]) if a[0] >= 0 else -_floor(-a[0], b[0])
    high = _floor(a[1], b[0]) if a[1] >= 0 else -_floor(-a[1], b[1])
    return low, high


def truncmod(a: Pair, b: Pair) -> Pair:
    """All remainders with the sign of the dividend, for a positive divisor."""
    if b[0] <= 0:
        return EVERYTHING
    low = 0 if a[0] >= 0 else max(a[0], 1 - b[1])
    high = 0 if a[1] <= 0 else min(a[1], b[1] - 1)
    return low, high


def union(a: Pair, b: Pair) -> Pair:
    """The smallest interval that holds both."""
    return min(a[0], b[0]), max(a[1], b[1])


def of_type(dtype: DType) -> Pair:
    """What the type alone says. Index types (int32, int64) are taken as unbounded integers."""
    if dtype.is_bool or (dtype.is_int and not is_index(dtype)):
        return dtype.range
    return EVERYTHING


def is_index(dtype: DType) -> bool:
    """Whether arithmetic of this type is assumed not to overflow."""
    return dtype == "int32" or dtype == "int64"
