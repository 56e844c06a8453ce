"""Values in memory and in registers: a bool is a byte in memory.

Also stores under a mask, in which LLVM needs help.
"""

from __future__ import annotations

from metasched.codegen.arithmetic import compare, convert
from metasched.codegen.emit import Emitter
from metasched.codegen.small_floats import narrowed, widened
from metasched.codegen.types import held_as_float32, memory_type
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL, DType
from metasched.ir.expr import NE


def from_memory(e: Emitter, value: Val) -> Val:
    """Convert a loaded value from its type in memory to its type in registers."""
    dtype, n = value.dtype, value.lanes
    if dtype.is_bool:
        byte = Val(value.text, DType("uint8"), n, value.depth)
        return compare(e, NE, byte, literal(0, byte.dtype, n))
    if held_as_float32(dtype):
        return widened(e, value)
    return value


def to_memory(e: Emitter, value: Val) -> str:
    """Convert a register value to its type in memory; gives type and name as LLVM text."""
    dtype = value.dtype
    if dtype.is_bool:
        byte = convert(e, value, DType("uint8"))
        return byte.typed
    if held_as_float32(dtype):
        return narrowed(e, value).typed
    return value.typed


def mangle(dtype: DType, lanes: int) -> str:
    """The name of a vector type in the names of LLVM's intrinsics."""
    names = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}
    element = memory_type(dtype)
    return f"v{lanes}{names.get(element, element)}"


def load_masked(e: Emitter, dtype: DType, pointer: Val, mask: Val) -> Val:
    """Load neighbours from a pointer on, in memory form; zero where `mask` does not hold."""
    kind = memory_type(dtype, mask.lanes)
    name = f"llvm.masked.load.{mangle(dtype, mask.lanes)}.p0"
    e.module.declare(name, f"{kind} @{name}(ptr, {mask.type}, {kind})")
    address = f"ptr align {dtype.bytes} {pointer.text}"
    text = f"call {kind} @{name}({address}, {mask.typed}, {kind} zeroinitializer)"
    return e.inline(text, dtype, mask.lanes)


def store_masked(e: Emitter, dtype: DType, pointer: Val, value: Val, mask: Val) -> None:
    """Store neighbours from a pointer on, in the lanes where `mask` holds."""
    lanes = value.lanes
    typed = to_memory(e, value)
    if memory_type(dtype) in ("i8", "i16", "i32"):
        mask = _opaque(e, mask)
    name = f"llvm.masked.store.{mangle(dtype, lanes)}.p0"
    e.module.declare(name, f"void @{name}({memory_type(dtype, lanes)}, ptr, {mask.type})")
    address = f"ptr align {dtype.bytes} {pointer.text}"
    e.line(f"call void @{name}({typed}, {address}, {mask.typed})")


def _opaque(e: Emitter, mask: Val) -> Val:
    """Hide a constant mask from LLVM's optimiser.

    LLVM 22 miscompiles some masked stores of truncated integers for x86 with AVX-512: if a constant
    mask holds in one lane, the untruncated element is stored, which has more bytes.
    """
    if "%holds = alloca i1" not in e.allocas:
        e.allocas += ["%holds = alloca i1", "store volatile i1 true, ptr %holds"]
    holds = e.pure("load volatile i1, ptr %holds", BOOL, 1)
    return e.both(mask, e.widen(holds, mask.lanes))
