"""The meaning of operations: NumPy rules for arithmetic, conversions and every op of `ir.op.OPS`.

Values are Python ints and bools, NumPy scalars for floats, and NumPy arrays for vectors. The
scalars have the exact type, so float16, bfloat16 and float32 round after each operation. A rule of
OP_RULES takes the result's type and the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from metasched.errors import InterpretError
from metasched.ir.dtype import DType
from metasched.ir.expr import wrap
from metasched.ir.op import OPS, hardware_op

Value: TypeAlias = Any
Rule: TypeAlias = Callable[..., Value]

_EXACT = 1 << 53


def storage(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds one lane; integers narrower than a byte are kept in a byte."""
    if dtype.bits < 8 and dtype.is_int:
        return np.dtype("int8" if dtype.kind == "int" else "uint8")
    return dtype.scalar.numpy


def undefined(dtype: DType) -> Value:
    """The value that fresh memory holds: NaN; for integers an unlikely value; for bool True."""
    if dtype.is_float:
        return storage(dtype).type("nan")
    if dtype.is_bool:
        return True
    return wrap(dtype.scalar, int("a5" * 8, 16) & ((1 << dtype.bits) - 1))


def as_value(dtype: DType, value: Any) -> Value:
    """A number or array in the representation of `dtype` (which its value must fit already)."""
    if dtype.lanes > 1:
        return np.asarray(value).astype(storage(dtype))
    if dtype.is_float:
        return storage(dtype).type(value)
    return bool(value) if dtype.is_bool else int(value)


def wrap_array(dtype: DType, value: Any) -> Value:
    """An array reduced to the range of an integer type (NumPy itself wraps at whole bytes)."""
    if dtype.bits >= 8 or not dtype.is_int:
        return np.asarray(value).astype(storage(dtype), copy=False)
    low, high = dtype.range
    wide = np.asarray(value).astype(np.int64)
    return ((wide - low) % (high - low + 1) + low).astype(storage(dtype))


def converter(source: DType, dtype: DType) -> Rule:
    """The conversion between two types: to integer wraps, from float to integer saturates."""
    if dtype.lanes > 1 or source.lanes > 1:
        return lambda v: _convert_array(source, dtype, np.asarray(v))
    if source.is_handle or dtype.is_handle:
        raise InterpretError(f"a conversion from {source} to {dtype} cannot be interpreted")
    if dtype.is_bool:
        return bool
    if dtype.is_float:
        make = storage(dtype).type
        return make if source.is_float or source.bits <= 32 else lambda v: _wide_int(make, v)
    low, high = dtype.range
    if source.is_float:
        return lambda v: _saturate(low, high, v)
    if source.is_bool or (source.range[0] >= low and source.range[1] <= high):
        return int
    return lambda v: v if low <= v <= high else wrap(dtype, v)


def _wide_int(make: Any, value: int) -> Value:
    """An integer of up to 64 bits, rounded once (a conversion through float64 rounds twice)."""
    if -_EXACT <= value <= _EXACT:
        return make(value)
    return np.array(value, "int64" if value < 0 else "uint64").astype(make)[()]


def _saturate(low: int, high: int, value: Any) -> int:
    number = float(value)
    if number != number:
        return 0
    return high if number >= high else low if number <= low else int(number)


def _convert_array(source: DType, dtype: DType, value: Any) -> Value:
    if source.is_float and dtype.is_int:
        low, high = dtype.range
        items = [_saturate(low, high, v) for v in value.astype(np.float64).ravel()]
        return np.array(items, storage(dtype)).reshape(value.shape)
    return value.astype(bool) if dtype.is_bool else wrap_array(dtype, value)


def _no_zero(rule: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def checked(a: int, b: int) -> int:
        if b == 0:
            raise InterpretError(f"integer division of {a} by zero")
        return rule(a, b)

    return checked


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


INT_DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "Div": _no_zero(_truncdiv),
    "Mod": _no_zero(lambda a, b: a - b * _truncdiv(a, b)),
    "FloorDiv": _no_zero(lambda a, b: a // b),
    "FloorMod": _no_zero(lambda a, b: a % b),
}


def _array_division(rule: Callable[[int, int], int]) -> Rule:
    def apply(a: Any, b: Any) -> Value:
        a, b = np.broadcast_arrays(a, b)
        return np.array([rule(int(x), int(y)) for x, y in zip(a, b, strict=True)], dtype=object)

    return apply


INT_ARRAY_DIVISIONS: dict[str, Rule] = {n: _array_division(f) for n, f in INT_DIVISIONS.items()}


# The table of operations: name -> rule(result type, arguments).

OP_RULES: dict[str, Rule] = {}


def _in_float32(dtype: DType, rule: Rule, args: tuple[Value, ...]) -> Value:
    """Apply a rule to bfloat16 or 8-bit floats in float32, and round once."""
    if dtype.kind != "float":
        return rule(*[np.asarray(a).astype(np.float32) for a in args])
    return rule(*[np.asarray(a, storage(dtype)) for a in args])


def _float(name: str, rule: Rule) -> None:
    OP_RULES[name] = lambda dtype, *args: _in_float32(dtype, rule, args)


def _round_away(x: Value) -> Value:
    """C's round: halves go away from zero; exact also next to 0.5 and for large values."""
    whole = np.trunc(x)
    half = np.abs(x - whole) >= np.asarray(0.5, x.dtype)
    return np.where(half, whole + np.copysign(np.asarray(1, x.dtype), x), whole)


_erf = np.vectorize(math.erf, otypes=[np.float64])

_FLOAT_RULES: dict[str, Rule] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "nearbyint": np.rint, "trunc": np.trunc,
    "round": _round_away, "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot,
    "fmod": np.fmod, "copysign": np.copysign,
    "exp10": lambda x: np.power(np.asarray(10, x.dtype), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: _erf(x.astype(np.float64)),
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int32)),
}  # fmt: skip
for _name, _rule in _FLOAT_RULES.items():
    _float(_name, _rule)


def _ints(rule: Callable[..., int]) -> Rule:
    """A rule on Python integers, lane by lane; results wrap."""

    def apply(dtype: DType, *args: Value) -> Value:
        if dtype.lanes == 1:
            return wrap(dtype, rule(dtype, *[int(a) for a in args]))
        lanes = zip(*np.broadcast_arrays(*args), strict=True)
        return [wrap(dtype.scalar, rule(dtype.scalar, *[int(a) for a in lane])) for lane in lanes]

    return apply


def _unsigned(dtype: DType, value: int) -> int:
    return value & ((1 << dtype.bits) - 1)


def _shift(dtype: DType, amount: int) -> int:
    if not 0 <= amount < dtype.bits:
        raise InterpretError(f"a shift of {dtype} by {amount} is undefined")
    return amount


def _multiply_shift(_: DType, x: int, y: int, q: int, s: int) -> int:
    """x * y / 2^q * 2^s in fixed point, rounded to nearest, halves up."""
    left, right = (s, 0) if s > 0 else (0, -s)
    total = right + q
    rounding = 1 << (total - 1) if total > 0 else 0
    return ((x << left) * y + rounding) >> total


OP_RULES.update(
    shift_left=_ints(lambda t, a, b: a << _shift(t, b)),
    shift_right=_ints(lambda t, a, b: a >> _shift(t, b)),
    bitwise_and=_ints(lambda t, a, b: a & b),
    bitwise_or=_ints(lambda t, a, b: a | b),
    bitwise_xor=_ints(lambda t, a, b: a ^ b),
    bitwise_not=_ints(lambda t, a: (not a) if t.is_bool else ~a),
    popcount=_ints(lambda t, a: _unsigned(t, a).bit_count()),
    clz=_ints(lambda t, a: t.bits - _unsigned(t, a).bit_length()),
    q_multiply_shift=_ints(_multiply_shift),
)


def _abs(dtype: DType, value: Value) -> Value:
    return np.abs(value) if dtype.is_float else _ints(lambda _, a: abs(a))(dtype, value)


def _fma(dtype: DType, a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once where a wider type holds the product (all but float64)."""
    if dtype.is_float:
        wide = np.longdouble if dtype.bits == 64 else np.float64
        a, b, c = (np.asarray(v).astype(wide) for v in (a, b, c))
        return a * b + c
    return _ints(lambda _, x, y, z: x * y + z)(dtype, a, b, c)


def _reinterpret(dtype: DType, value: Value) -> Value:
    raise InterpretError("reinterpret needs the type of its argument")


def _same(_: DType, value: Value) -> Value:
    return value


def _nothing(_: DType, *__: Value) -> Value:
    """Do nothing: for a hint, or an ordering that sequential execution always satisfies."""
    return 0


OP_RULES.update(
    abs=_abs,
    fma=_fma,
    any_lane=lambda _, x: np.any(x),
    isnan=lambda _, x: np.isnan(x),
    isinf=lambda _, x: np.isinf(x),
    isfinite=lambda _, x: np.isfinite(x),
    reinterpret=_reinterpret,  # the interpreter passes the argument's type, see `reinterpret`
    if_then_else=lambda _, c, a, b: a if c else b,  # the interpreter evaluates one side only
    likely=_same,
    ignore_loop_partition=_same,
    ret=_same,  # as a statement, `ret` leaves the function
    undef=lambda dtype: undefined(dtype),
    assume=_nothing,
    prefetch=_nothing,
    tvm_storage_sync=_nothing,
    ptx_commit_group=_nothing,
    ptx_wait_group=_nothing,
    start_profile_intrinsic=_nothing,
    end_profile_intrinsic=_nothing,
)
IGNORES_ARGUMENTS = frozenset(name for name, rule in OP_RULES.items() if rule is _nothing)


def _llvm(dtype: DType, name: str = "with a pointer", *args: Value) -> Value:
    """A machine instruction, by the meaning that is declared with it."""
    found = hardware_op(name)
    if found is None:
        raise InterpretError(f"the LLVM intrinsic {name} has no meaning in the interpreter")
    if len(args) != len(found.operands) or dtype is not found.result:
        kinds = ", ".join(map(str, found.operands))
        raise InterpretError(f"{name} takes ({kinds}) and gives {found.result}")
    return found.meaning(*args)


OP_RULES.update(call_llvm_pure_intrin=_llvm, call_llvm_intrin=_llvm)


def reinterpret(source: DType, dtype: DType, value: Value) -> Value:
    """The bits of `value` read as another type of the same total width."""
    if source.bits * source.lanes != dtype.bits * dtype.lanes:
        raise InterpretError(f"reinterpret from {source} to {dtype}: the widths differ")
    bits = np.atleast_1d(np.asarray(value, storage(source))).view(storage(dtype))
    return bits if dtype.lanes > 1 else bits[0]


def _foreign(name: str) -> Rule:
    def refuse(*_: Any) -> Value:
        raise InterpretError(
            f"{name} cannot be interpreted: it is foreign code, a raw pointer or a hardware "
            "instruction"
        )

    return refuse


for _name in OPS.names():
    OP_RULES.setdefault(_name, _foreign(_name))
