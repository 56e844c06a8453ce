"""Types and constants in LLVM text, for values in registers and in memory.

bool is i1 in registers and a byte in memory. bfloat16 and the types of 8 bits are floats in
registers, already rounded (`small_floats`), and integers in memory. LLVM's own bfloat type would
need library calls for conversions on processors without AVX512-BF16.
"""

from __future__ import annotations

import struct

import numpy as np

from metasched.errors import BuildError
from metasched.ir.dtype import DType

_SMALL = {"bfloat16": "i16", "float8_e4m3fn": "i8", "float8_e5m2": "i8"}
_REGISTER = {
    **dict.fromkeys(_SMALL, "float"), "float16": "half", "float32": "float", "float64": "double",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64",
    "bool": "i1", "handle": "ptr",
}  # fmt: skip
_MEMORY = {**_REGISTER, "bool": "i8", **_SMALL}


def held_as_float32(dtype: DType) -> bool:
    """Whether registers hold values of a type as float32, already rounded to the type."""
    return dtype.scalar in _SMALL


def stored_type(dtype: DType) -> DType:
    """A type that registers hold as memory holds the scalar type `dtype`."""
    integer = dtype.is_bool or held_as_float32(dtype)
    return DType(f"uint{8 * dtype.bytes}") if integer else dtype


def register_type(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type that holds a value of scalar type `dtype` in a register."""
    return _vector(_lookup(_REGISTER, dtype), lanes)


def instruction_type(dtype: DType) -> str:
    """The LLVM type of an operand of a machine instruction, which takes bfloat16 as `bfloat`."""
    kind = "bfloat" if dtype.kind == "bfloat" else _lookup(_REGISTER, dtype.scalar)
    return _vector(kind, dtype.lanes)


def memory_type(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of an element of type `dtype` in memory."""
    return _vector(_lookup(_MEMORY, dtype), lanes)


def _lookup(table: dict[str, str], dtype: DType) -> str:
    found = table.get(dtype)
    if found is None:
        what = f"code generation has no {dtype} values on this target"
        packed = f"; pack {8 // dtype.bits} in each element of {dtype.kind}8"
        raise BuildError(what + (packed if dtype.is_int and dtype.bits < 8 else ""))
    return found


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_suffix(dtype: DType, lanes: int = 1) -> str:
    """The mangled name of the register type in intrinsic names: `f32`, `v16f32`, `i64`."""
    text = _lookup(_REGISTER, dtype)
    name = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(text, text)
    return name if lanes == 1 else f"v{lanes}{name}"


def constant(value: float | int, dtype: DType) -> str:
    """The literal of `value` in the register type of `dtype`."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_int:
        return str(int(value))
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return f"0xH{np.array(value, np.float16).view(np.uint16):04X}"
    if dtype == "float64":
        rounded = float(value)
    elif held_as_float32(dtype):
        rounded = float(np.array(value, dtype.numpy).astype(np.float32))
    else:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
    return "0x" + struct.pack(">d", rounded).hex().upper()


def splat(literal: str, element: str, lanes: int) -> str:
    """A vector constant of equal lanes."""
    return literal if lanes == 1 else f"splat ({element} {literal})"


def llvm_string(text: str) -> str:
    """`text` as the inside of an LLVM string constant."""
    return "".join(
        chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in text.encode()
    )
