"""Floating-point types that registers hold as float32: bfloat16, float8_e4m3fn and float8_e5m2.

A register holds such a value already rounded, so that loads widen and stores cut bits, both
exactly. Arithmetic computes in float32 and rounds each result (`rounded`): to nearest, ties to
even. What is too large becomes infinity, or NaN in float8_e4m3fn, which has no infinity. ml_dtypes
rounds in the same way. The formats of 8 bits are described in Micikevicius et al., "FP8 Formats for
Deep Learning" (2022).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from metasched.codegen.emit import Emitter
from metasched.codegen.types import register_type, stored_type
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL, FLOAT32, DType

_U8, _U16, _U32 = DType("uint8"), DType("uint16"), DType("uint32")
_HALF = DType("float16")
_SIGN, _INFINITY, _NAN = 0x80000000, 0x7F800000, 0x7FC00000


@dataclass(frozen=True, slots=True)
class _Format:
    """A type of 8 bits.

    Attributes:
        mantissa: bits after the point.
        smallest: exponent of the smallest normal number.
        beyond: bits of the float32 that stands for numbers that are too large.
    """

    mantissa: int
    smallest: int
    beyond: int


_EIGHT = {"float8_e4m3fn": _Format(3, -6, _NAN), "float8_e5m2": _Format(2, -14, _INFINITY)}


class _Steps:
    """Instructions on the bits of one value, in lanes of 32 bits unless a type is named."""

    def __init__(self, e: Emitter, value: Val) -> None:
        self.e, self.lanes, self.value = e, value.lanes, value

    def __call__(self, op: str, a: Val, number: float | Val) -> Val:
        kind = FLOAT32 if a.dtype.is_float else a.dtype
        b = number if isinstance(number, Val) else literal(number, kind, self.lanes)
        return self.e.pure(f"{op} {a.typed}, {b.text}", a.dtype, self.lanes, a, b)

    def test(self, relation: str, a: Val, number: int) -> Val:
        b = literal(number, a.dtype, self.lanes)
        return self.e.pure(f"icmp {relation} {a.typed}, {b.text}", BOOL, self.lanes, a)

    def select(self, condition: Val, a: Val | int, b: Val) -> Val:
        a = a if isinstance(a, Val) else literal(a, b.dtype, self.lanes)
        return self.e.pure(
            f"select {condition.typed}, {a.typed}, {b.typed}", b.dtype, self.lanes, condition, a, b
        )

    def to(self, op: str, a: Val, dtype: DType, kind: str = "") -> Val:
        """Convert: `op` is LLVM's, `kind` the LLVM type where it is not that of `dtype`."""
        kind = kind or register_type(dtype, self.lanes)
        return self.e.pure(f"{op} {a.typed} to {kind}", dtype, self.lanes, a)


def rounded(e: Emitter, value: Val) -> Val:
    """Round a float32 in a register to the type of `value`; other types stay as they are."""
    if value.dtype.kind == "bfloat":
        return _by_instruction(e, value) if e.module.rounds_bfloat else _to_bfloat(e, value)
    form = _EIGHT.get(value.dtype.kind)
    return value if form is None else _to_eight(e, value, form)


def _to_bfloat(e: Emitter, value: Val) -> Val:
    step = _Steps(e, value)
    bits = step.to("bitcast", value, _U32)
    odd = step("and", step("lshr", bits, 16), 1)
    up = step("add", bits, step("add", odd, 0x7FFF))
    cut = step.to("bitcast", step("and", up, 0xFFFF0000), value.dtype)
    nan = e.pure(f"fcmp uno {value.typed}, {value.text}", BOOL, value.lanes, value)
    quiet = step.to("bitcast", step("or", step("and", bits, _SIGN), _NAN), value.dtype)
    return step.select(nan, quiet, cut)


def _by_instruction(e: Emitter, value: Val) -> Val:
    """`_to_bfloat` by the processor's instruction; the result is widened to float32 again."""
    step, n = _Steps(e, value), value.lanes
    kind = f"<{n} x bfloat>" if n > 1 else "bfloat"
    short = step.to("fptrunc", value, value.dtype, kind)
    bits = e.pure(f"bitcast {kind} {short.text} to {register_type(_U16, n)}", _U16, n, short)
    wide = step.to("zext", bits, _U32)
    return step.to("bitcast", step("shl", wide, 16), value.dtype)


def _to_eight(e: Emitter, value: Val, form: _Format) -> Val:
    """Round the size of a number by integer steps, and below the normal numbers by an addition.

    The sum with a power of two keeps the bits down to the smallest number of the format.
    """
    step, cut = _Steps(e, value), 23 - form.mantissa
    bits = step.to("bitcast", value, _U32)
    sign, size = step("and", bits, _SIGN), step("and", bits, _SIGN - 1)
    odd = step("and", step("lshr", size, cut), 1)
    up = step("add", size, step("add", odd, (1 << cut - 1) - 1))
    normal = step("and", up, (1 << 32) - (1 << cut))
    anchor = literal(2.0 ** (form.smallest + cut), FLOAT32, value.lanes)
    moved = step("fadd", step.to("bitcast", size, FLOAT32), anchor)
    low = step.to("bitcast", step("fsub", moved, anchor), _U32)
    below = step.test("ult", size, 127 + form.smallest << 23)
    near = step.select(below, low, normal)
    (largest,) = struct.unpack("<I", struct.pack("<f", value.dtype.largest))
    near = step.select(step.test("ugt", near, largest), form.beyond, near)
    near = step.select(step.test("ugt", size, _INFINITY), _NAN, near)
    return step.to("bitcast", step("or", near, sign), value.dtype)


def widened(e: Emitter, value: Val) -> Val:
    """The float32 of a value that was loaded in its type in memory.

    float8_e5m2 is the upper half of a float16. float8_e4m3fn has the bits of a float16 seven places
    lower, and an exponent that is 8 smaller.
    """
    step, dtype = _Steps(e, value), value.dtype
    stored = Val(value.text, stored_type(dtype), value.lanes, value.depth)
    if dtype.kind == "bfloat":
        return step.to("bitcast", step("shl", step.to("zext", stored, _U32), 16), dtype)
    if dtype == "float8_e5m2":
        upper = step("shl", step.to("zext", stored, _U16), 8)
        return step.to("fpext", step.to("bitcast", upper, _HALF), dtype)
    moved = step("and", step("shl", step.to("sext", stored, _U16), 7), 0xBFFF)
    nan = step.test("eq", step("and", stored, 0x7F), 0x7F)
    quiet = step("or", moved, 0x7E00)
    half = step.to("bitcast", step.select(nan, quiet, moved), _HALF)
    return step("fmul", step.to("fpext", half, dtype), 256.0)


def narrowed(e: Emitter, value: Val) -> Val:
    """The bits of a rounded value in its type in memory, as an unsigned integer."""
    step = _Steps(e, value)
    if value.dtype.kind == "bfloat":
        return step.to("trunc", step("lshr", step.to("bitcast", value, _U32), 16), _U16)
    if value.dtype == "float8_e5m2":
        half = step.to("bitcast", step.to("fptrunc", value, _HALF), _U16)
        return step.to("trunc", step("lshr", half, 8), _U8)
    half = step.to("bitcast", step.to("fptrunc", step("fmul", value, 2.0**-8), _HALF), _U16)
    size = step("and", half, 0x7FFF)
    low = step.select(step.test("ugt", size, 0x7C00), 0x7F, step("lshr", size, 7))
    return step.to("trunc", step("or", low, step("and", step("lshr", half, 8), 0x80)), _U8)
