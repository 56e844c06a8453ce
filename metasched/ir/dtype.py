"""Data types: a DType is its own text (`float32`, `int8x16`) with kind, bits and lanes attached."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np

from metasched.errors import TypeMismatchError, brief

_EIGHT = (
    "float8_e4m3fn",
    "float8_e5m2",
)  # each is a separate kind, because the number of bits does not identify the format
_TEXT = re.compile(rf"({'|'.join(_EIGHT)}|int|uint|float|bfloat|bool|handle|void)(\d*)(?:x(\d+))?")
_TABLE: dict[Any, DType] = {}
_BITS = {
    "int": (1, 4, 8, 16, 32, 64),
    "uint": (1, 4, 8, 16, 32, 64),
    "float": (16, 32, 64),
    "bfloat": (16,),
    **dict.fromkeys(_EIGHT, (8,)),
    "bool": (1,),
    "handle": (64,),
    "void": (0,),
}


# Bits after the point and exponent of the largest finite number. The largest of float8_e4m3fn ends
# in a 0 bit: with all bits set it would be NaN.
_LARGEST = {"float8_e4m3fn": (2, 8), "float8_e5m2": (2, 15), "float16": (10, 15),
            "bfloat16": (7, 127), "float32": (23, 127), "float64": (52, 1023)}  # fmt: skip


class DType(str):
    """An interned data type. Being a string, it compares with plain text: `x.dtype == "int32"`.

    Attributes:
        kind: int, uint, float, bfloat, float8_e4m3fn, float8_e5m2, bool, handle or void.
        bits: width of one lane in bits.
        lanes: number of lanes; 1 is a scalar.
    """

    __slots__ = ("bits", "kind", "lanes")
    kind: str
    bits: int
    lanes: int

    def __new__(cls, text: Any) -> DType:
        """Read a type from its text, a NumPy dtype or a Python type."""
        if type(text) is DType:
            return text
        found = _TABLE.get(text) if isinstance(text, (str, type)) else None
        return found if found is not None else _parse(cls, text)

    @property
    def bytes(self) -> int:
        """Size in memory of one element, all lanes, in bytes."""
        return (self.bits + 7) // 8 * self.lanes

    @property
    def is_float(self) -> bool:
        return self.kind in ("float", "bfloat", *_EIGHT)

    @property
    def largest(self) -> float:
        """The largest finite number of a floating-point type."""
        if not self.is_float:
            raise TypeMismatchError(f"{self} is no floating-point type")
        mantissa, exponent = _LARGEST[self.scalar]
        return (2.0 - 2.0**-mantissa) * 2.0**exponent

    @property
    def greatest(self) -> float:
        """The greatest value of a floating-point type: infinity, if the type has an infinity."""
        return self.largest if self.kind == "float8_e4m3fn" else math.inf

    def rounds_to_finite(self, number: Any) -> bool:
        """Whether a real number, if it is finite, stays finite in this floating-point type."""
        if number != number or number in (math.inf, -math.inf):
            return True
        try:
            with np.errstate(over="ignore"):
                return bool(np.isfinite(np.asarray(float(number)).astype(self.scalar.numpy)))
        except OverflowError:  # an integer beyond all floats
            return False

    def holds(self, other: DType) -> bool:
        """Whether this type can hold each number of the type `other`, an integer or a float."""
        if self.is_int and other.is_int:
            low, high = self.range
            return low <= other.range[0] and other.range[1] <= high
        if not self.is_float or not (other.is_float or other.is_int):
            return False
        mantissa, exponent = _LARGEST[self.scalar]
        if other.is_int:
            return max(map(abs, other.range)) <= 1 << mantissa + 1 and exponent > mantissa
        digits, reach = _LARGEST[other.scalar]
        wider = self.bits > other.bits and mantissa >= digits and exponent >= reach
        return wider or self.scalar is other.scalar

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer (bool excluded)."""
        return self.kind in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_handle(self) -> bool:
        return self.kind == "handle"

    @property
    def scalar(self) -> DType:
        """The type of one lane."""
        return self.with_lanes(1)

    def with_lanes(self, lanes: int) -> DType:
        """The same lane type with another number of lanes."""
        if lanes == self.lanes:
            return self
        base = str(self).split("x")[0]
        return DType(base if lanes == 1 else f"{base}x{lanes}")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of one lane (ml_dtypes supplies bfloat16 and the 8-bit floats)."""
        if self.kind == "bfloat":
            brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return brain
        if self.kind in _EIGHT:
            small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.kind))
            return small
        if self.kind in ("handle", "void"):
            raise TypeMismatchError(f"{self} has no NumPy type")
        name = "bool" if self.is_bool else str(self.scalar)
        try:
            found: np.dtype[Any] = np.dtype(name)
        except TypeError:
            raise TypeMismatchError(f"{self} has no NumPy type") from None
        return found

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer or bool type."""
        if self.kind == "int":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        if self.kind in ("uint", "bool"):
            return 0, (1 << self.bits) - 1
        raise TypeMismatchError(f"{self} has no integer range")

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (str(self),)

    def __repr__(self) -> str:
        return f"DType({str.__repr__(self)})"


def _parse(cls: type[DType], text: Any) -> DType:
    if not isinstance(text, str):
        name = {bool: "bool", int: "int32", float: "float32"}.get(text) or np.dtype(text).name
        return _TABLE.setdefault(text if isinstance(text, type) else name, DType(name))
    match = _TEXT.fullmatch(text)
    if match is None:
        why = ": a vector has a fixed number of lanes" if "xvscale" in text else ""
        if text.startswith("complex"):
            why = ": keep the real and the imaginary parts in two arrays of floats"
        raise TypeMismatchError(f"{brief(text)} is not a data type{why}")
    kind, width, lanes = match[1], match[2], int(match[3] or 1)
    default = {"bool": 1, "handle": 64, "void": 0, **dict.fromkeys(_EIGHT, 8)}.get(kind, 32)
    bits = int(width) if width else default
    if bits not in _BITS[kind] or lanes < 1:
        raise TypeMismatchError(
            f"{brief(text)} is not a data type: {kind} has widths {_BITS[kind]}"
        )
    shown = kind if kind in ("bool", "handle", "void", *_EIGHT) else f"{kind}{bits}"
    canonical = shown if lanes == 1 else f"{shown}x{lanes}"
    found = _TABLE.get(canonical)
    if found is None:
        found = str.__new__(cls, canonical)
        found.kind, found.bits, found.lanes = kind, bits, lanes
        _TABLE[canonical] = found
    _TABLE[text] = found
    return found


INT32 = DType("int32")
INT64 = DType("int64")
FLOAT32 = DType("float32")
BOOL = DType("bool")
HANDLE = DType("handle")
VOID = DType("void")


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands: floats win over integers, wider over narrower.

    Signed and unsigned integers get the signed type that holds both ranges.

    Raises TypeMismatchError for a pair without a common type (handles, unequal lanes, a signed
    integer with uint64).
    """
    if a is b:
        return a
    if a.lanes != b.lanes and 1 not in (a.lanes, b.lanes):
        raise TypeMismatchError(f"{a} and {b} have different numbers of lanes")
    lanes = max(a.lanes, b.lanes)
    x, y = a.scalar, b.scalar
    if "handle" in (x.kind, y.kind) or "void" in (x.kind, y.kind):
        raise TypeMismatchError(f"{a} and {b} have no common type")
    if x.is_float or y.is_float:
        if x.is_float and y.is_float:
            winner = x if x.bits > y.bits else y if y.bits > x.bits else None
            if winner is None:
                winner = x if x is y else DType("float32")  # float16 with bfloat16
        else:
            winner = x if x.is_float else y
    elif x.is_bool or y.is_bool:
        winner = y if x.is_bool else x
    elif x.kind == y.kind:
        winner = x if x.bits > y.bits else y
    else:
        signed, unsigned = (x, y) if x.kind == "int" else (y, x)
        bits = max(signed.bits, 2 * unsigned.bits)  # as NumPy: the type holds both ranges
        if bits > 64:
            raise TypeMismatchError(
                f"{a} and {b} have no common integer type: convert one of them to the other's type"
            )
        winner = DType(f"int{bits}")
    return winner.with_lanes(lanes)


def wrap(dtype: DType, value: int) -> int:
    """`value` reduced to the range of an integer type, as two's complement does."""
    low, high = dtype.range
    return value if low <= value <= high else (value - low) % (high - low + 1) + low
