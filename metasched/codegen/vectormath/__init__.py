"""Mathematical functions as polynomials, with the same text for scalars and vectors.

Largest errors in units in the last place; tests hold them:

| function | float32 | float64 |
|---|---|---|
| exp, exp2, exp10, expm1 | 1.1, 1.2, 2, 2 | 1, 1.1, 1.5, 2 |
| log, log2, log10, log1p | 1.1, 2, 2, 2 | 1, 1.5, 2, 2 |
| tanh, sigmoid, erf | 2, 3, 2 | 2.5, 2.5, 2 |
| sin, cos, tan | 2, 2, 4 | 1.5, 1.5, 3 |
| atan, asin, acos | 2, 2, 1.5 | 1.5, 2, 1.5 |
| sinh, cosh | 2, 2 | 2.5, 2 |
| asinh, acosh, atanh | 3, 3, 3 | 3, 3, 3 |
| pow, atan2 | 1, 2 | 1.5, 2 |
| hypot, fmod | 0.6, 0 | 1, 0 |
| rsqrt, sqrt | 1.5, 0.5 | 1.5, 0.5 |

Types of 16 and 8 bits compute in float32 and round once. On processors without fused multiply-add
the errors are up to 1 unit larger. The C library computes ldexp, lane by lane. It also computes
sin, cos and tan of arguments beyond 2**28 in size, or beyond 2**22 without fused multiply-add, and
fmod of operands whose quotient is 2**52 or more. Without fused multiply-add it computes float64 pow
and all of fmod.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.codegen.arithmetic import binary, convert
from metasched.codegen.emit import Emitter
from metasched.codegen.types import register_type, type_suffix
from metasched.codegen.values import Val, literal
from metasched.codegen.vectormath import (
    arcus,
    error_function,
    exponential,
    hyperbolic,
    logarithm,
    power,
    roots,
    trigonometric,
)
from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Format, Text
from metasched.errors import BuildError
from metasched.ir.dtype import FLOAT32, DType
from metasched.ir.expr import Div, Mul

# Functions that are a single instruction of the processor, or a short sequence.
_NATIVE = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
           "nearbyint": "roundeven", "round": "round", "copysign": "copysign"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Function:
    """A function that this package computes itself.

    Attributes:
        write: writes the instructions and gives the name of the result.
        width: bits of the widest format of its computation, by the format of its operands.
        exact_products: the formats in which the function needs a fused multiply-add.
    """

    write: Callable[..., str]
    width: dict[Format, int]
    exact_products: frozenset[Format] = frozenset()


_OWN_WIDTH = {SINGLE: 32, DOUBLE: 64}
_FUNCTIONS = {
    write.__name__: _Function(write, _OWN_WIDTH)
    for write in (
        exponential.exp, exponential.exp2, exponential.exp10, exponential.expm1, exponential.tanh,
        exponential.sigmoid, logarithm.log, logarithm.log2, logarithm.log10, logarithm.log1p,
        error_function.erf, trigonometric.sin, trigonometric.cos, trigonometric.tan,
        arcus.atan, arcus.asin, arcus.acos, hyperbolic.sinh, hyperbolic.cosh,
        hyperbolic.asinh, hyperbolic.acosh, hyperbolic.atanh, arcus.atan2,
    )
}  # fmt: skip
_FUNCTIONS["pow"] = _Function(power.pow, {SINGLE: 64, DOUBLE: 64}, frozenset({DOUBLE}))
_FUNCTIONS["rsqrt"] = _Function(roots.rsqrt, {DOUBLE: 64})
_FUNCTIONS["hypot"] = _Function(roots.hypot, {SINGLE: 64, DOUBLE: 64})
_FUNCTIONS["fmod"] = _Function(roots.fmod, {SINGLE: 64, DOUBLE: 64}, frozenset({SINGLE, DOUBLE}))
_OF_TWO = ("pow", "atan2", "hypot", "fmod")
_FORMATS = {SINGLE.dtype: SINGLE, DOUBLE.dtype: DOUBLE}


def apply(e: Emitter, name: str, operands: list[Val]) -> Val:
    """The function `name` of operands of one floating-point type."""
    dtype = operands[0].dtype
    if not dtype.is_float:
        if name in ("floor", "ceil", "trunc", "round", "nearbyint") and dtype.is_int:
            return operands[0]
        raise BuildError(f"{name} needs floating-point operands, not {dtype}")
    if dtype.bits < 32:
        wide = [convert(e, v, FLOAT32) for v in operands]
        return convert(e, apply(e, name, wide), dtype)
    if name == "pow" and operands[1].const in (1, 2):
        return operands[0] if operands[1].const == 1 else binary(e, Mul, operands[0], operands[0])
    operands = e.same_lanes(*operands)
    lanes = operands[0].lanes
    if name in _NATIVE:
        suffix = type_suffix(dtype, lanes)
        return e.intrinsic(f"llvm.{_NATIVE[name]}.{suffix}", dtype, lanes, *operands)
    if name == "rsqrt" and dtype == FLOAT32:
        return binary(e, Div, literal(1.0, dtype, lanes), apply(e, "sqrt", operands))
    function, form = _FUNCTIONS.get(name), _FORMATS.get(dtype)
    if function is None or form is None:
        return _libm(e, name, operands)
    if form in function.exact_products and not e.module.has_fma:
        return _libm(e, name, operands)
    size = max(1, e.module.vector_bits // function.width[form])
    count = lanes // size
    if count < 2 or lanes != count * size or count & (count - 1):
        return _own(e, name, form, operands)
    pieces = [
        _own(e, name, form, [e.part(v, start, size) for v in operands])
        for start in range(0, lanes, size)
    ]
    return e.joined(pieces)


def _own(e: Emitter, name: str, form: Format, operands: list[Val]) -> Val:
    """Call a function of this package on one vector."""
    symbol = _define(e, name, form, operands[0].lanes)
    inside = ", ".join(v.typed for v in operands)
    text = f"call {operands[0].type} @{symbol}({inside})"
    return e.pure(text, form.dtype, operands[0].lanes, *operands)


def _libm(e: Emitter, name: str, operands: list[Val]) -> Val:
    """Call a function of the C library for each lane."""
    dtype, lanes = operands[0].dtype, operands[0].lanes
    symbol = name if dtype == "float64" else name + "f"
    kind = register_type(dtype)
    integer = name == "ldexp"
    parameters = [kind] * len(operands)
    if integer:
        parameters[1] = "i32"
        operands = [operands[0], convert(e, operands[1], DType("int32"))]
    _declare_libm(e, symbol, f"{kind} @{symbol}({', '.join(parameters)})")
    result = Val("poison", dtype, lanes, 0)
    for i in range(lanes):
        lane = [e.extract(v, i) for v in operands]
        inside = ", ".join(v.typed for v in lane)
        one = e.pure(f"call {kind} @{symbol}({inside})", dtype, 1, *lane)
        if lanes == 1:
            return one
        text = f"insertelement {result.typed}, {one.typed}, i64 {i}"
        result = e.pure(text, dtype, lanes, result, one)
    return result


def _declare_libm(e: Emitter, symbol: str, signature: str) -> None:
    e.module.declare(symbol, signature, "memory(none) nounwind")
    e.module.externs.add(symbol)


def _define(e: Emitter, name: str, form: Format, lanes: int) -> str:
    """Add the function for `lanes` lanes to the module once; gives its symbol."""
    function = _FUNCTIONS[name]
    t = Text(form, lanes, e.module.has_fma, e.module.features)
    symbol = f"ms.{name}.v{lanes}{form.suffix}"
    if symbol in e.module.definitions:
        return symbol
    operands = ["%x", "%y"] if name in _OF_TWO else ["%x"]
    result = function.write(t, *operands)
    for called, declaration in sorted(t.declares.items()):
        e.module.declare(called, declaration)
    for called, declaration in t.library.items():
        _declare_libm(e, called, declaration)
    attribute = e.module.target_attribute
    for helper, text in t.helpers.items():
        e.module.definitions[helper] = text.replace(" {\n", f" {attribute} {{\n", 1)
    parameters = ", ".join(f"{t.f} {v}" for v in operands)
    body = "\n".join(["start:", *t.lines, f"ret {t.f} {result}"])
    e.module.definitions[symbol] = (
        f"define internal {t.f} @{symbol}({parameters}) alwaysinline nounwind "
        f"memory(none) {attribute} {{\n{body}\n}}"
    )
    return symbol
