"""Vectors of float32 that are clamped to constants and converted to short integers.

    uint8(min(max(nearbyint(x) + 3, 0), 255))    ->    int32(nearest(min(max(x, -3), 252))) + 3

Such a cast ends every requantization. The limits lie within the type, so the conversion does not
saturate a second time. Rounding keeps the order of numbers and does not move integers, so it may
come after the limits, where one instruction rounds and converts.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.codegen.arithmetic import binary, compare, convert, select
from metasched.codegen.emit import Emitter
from metasched.codegen.types import type_suffix
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import INT32, DType
from metasched.ir.expr import EQ, GT, LT, Add, Cast, Expr, FloatImm, Max, Min, Sub
from metasched.ir.op import Broadcast, Call

EXACT = 1 << 20
"""Sums of integers up to this number and of rounded values near them are exact in float32."""


@dataclass(frozen=True, slots=True)
class Clamped:
    """A value between two constants.

    Attributes:
        value: the expression that is clamped, or the argument of its `nearbyint`.
        low, high: the limits of the result.
        rounded: whether `value` is rounded to the nearest integer.
        offset: an integer that is added after rounding.
    """

    value: Expr
    low: float
    high: float
    rounded: bool = False
    offset: int = 0


def clamped_cast(e: Emitter, node: Cast) -> Val | None:
    """Emit a cast of a clamped vector; None for a cast that is no such cast."""
    dtype = node.dtype.scalar
    if e.module.saturates_vectors or not dtype.is_int or dtype.bits > 16:
        return None
    if node.value.dtype.scalar != "float32" or (e.lane is None and node.dtype.lanes == 1):
        return None
    found = _clamped(node.value, dtype)
    if found is None:
        return None
    value = e.value(found.value)
    kind, n = value.dtype, value.lanes
    low, high = (literal(limit - found.offset, kind, n) for limit in (found.low, found.high))
    if found.low != 0 and not e.no_nan:  # a lower limit of 0 replaces NaN, too
        zero = literal(float(-found.offset), kind, n)
        value = select(e, compare(e, EQ, value, value), value, zero)
    value = select(e, compare(e, GT, value, low), value, low)
    value = select(e, compare(e, LT, value, high), value, high)
    if not found.rounded:
        return convert(e, _cut(e, value), dtype)
    suffix = f"{type_suffix(INT32, n)}.{type_suffix(kind, n)}"
    whole = e.intrinsic(f"llvm.lrint.{suffix}", INT32, n, value)
    if found.offset:
        whole = binary(e, Add, whole, literal(found.offset, INT32, n))
    return convert(e, whole, dtype)


def _cut(e: Emitter, value: Val) -> Val:
    """The integer part of a value within int32."""
    kind = "i32" if value.lanes == 1 else f"<{value.lanes} x i32>"
    return e.pure(f"fptosi {value.typed} to {kind}", INT32, value.lanes, value)


def _clamped(value: Expr, dtype: DType) -> Clamped | None:
    """The limits around a value, if both are constants within an integer type."""
    least, most = dtype.range
    low, high = float("-inf"), float("inf")
    while isinstance(value, (Min, Max)):
        limit, rest = _constant(value.b), value.a
        if limit is None:
            limit, rest = _constant(value.a), value.b
        if limit is None or not least <= limit <= most:
            return None
        # The outer limits were met first; an inner limit moves within them.
        limit = min(max(limit, low), high)
        low, high = (low, limit) if isinstance(value, Min) else (limit, high)
        value = rest
    if not least <= low <= 0 <= high <= most:  # NaN gives 0, which must be within the limits
        return None
    return _rounding(value, low, high) or Clamped(value, low, high)


def _rounding(value: Expr, low: float, high: float) -> Clamped | None:
    """`nearbyint(x)`, also with an integer added or subtracted, between integer limits."""
    offset = 0.0
    if isinstance(value, (Add, Sub)):
        added = _constant(value.b)
        if added is None:
            return None
        offset, value = added if isinstance(value, Add) else -added, value.a
    whole = all(x.is_integer() and abs(x) <= EXACT for x in (low, high, offset))
    if whole and isinstance(value, Call) and value.op.name == "nearbyint":
        return Clamped(value.args[0], low, high, True, int(offset))
    return None


def _constant(value: Expr) -> float | None:
    """The number of a constant, also of one that is repeated over lanes."""
    if isinstance(value, Broadcast):
        value = value.value
    return float(value.value) if isinstance(value, FloatImm) else None
