"""What operations mean, type by type."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType, wrap
from metasched.ir.expr import (
    Add,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mod,
    Mul,
    StringImm,
    Sub,
    Var,
    as_expr,
)
from metasched.ir.func import PrimFunc
from metasched.ir.interp import OP_RULES, run
from metasched.ir.op import OPS, Broadcast, Ramp, call, hardware_op
from metasched.ir.stmt import BufferStore, Return


def value(expr: Expr, **given_):
    names = sorted(given_)
    params = tuple(v for n in names for v in _vars(expr) if v.name == n)
    return run(PrimFunc(params, Return(expr), ret_type=expr.dtype), *[given_[n] for n in names])


def _vars(expr):
    from metasched.ir.visit import free_vars

    return free_vars(expr)


def binary(kind, dtype, a, b):
    x, y = Var("x", dtype), Var("y", dtype)
    return value(kind(x, y), x=a, y=b)


def test_every_operation_has_a_rule():
    assert set(OP_RULES) == set(OPS.names())


@given(st.integers(-128, 127), st.integers(-128, 127))
def test_integer_arithmetic_wraps(a, b):
    t = DType("int8")
    assert binary(Add, t, a, b) == wrap(t, a + b)
    assert binary(Sub, t, a, b) == wrap(t, a - b)
    assert binary(Mul, t, a, b) == wrap(t, a * b)
    if b:
        assert binary(FloorDiv, t, a, b) == wrap(t, a // b)
        assert binary(FloorMod, t, a, b) == a % b
        assert binary(Div, t, a, b) == wrap(t, math.trunc(a / b))
        assert binary(Mod, t, a, b) == int(math.fmod(a, b))


@given(st.floats(width=32), st.floats(width=32))
def test_float32_arithmetic_is_numpys(a, b):
    x, y = np.float32(a), np.float32(b)
    with np.errstate(all="ignore"):
        for kind, rule in ((Add, np.add), (Mul, np.multiply), (Div, np.divide),
                           (Min, np.minimum), (Max, np.maximum)):  # fmt: skip
            got, want = binary(kind, "float32", a, b), rule(x, y)
            assert got.dtype == np.float32
            assert got == want or (np.isnan(got) and np.isnan(want))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_round_after_each_operation(dtype):
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x, y = Var("x", dtype), Var("y", dtype)
    total = value((x + y) - x, x=256.0 if dtype == "bfloat16" else 2048.0, y=1.0)
    assert float(total) == 0.0 and type(total) is kind


def test_minimum_propagates_nan():
    nan = float("nan")
    for a, b in ((nan, 1.0), (1.0, nan)):
        assert np.isnan(binary(Min, "float32", a, b)) and np.isnan(binary(Max, "float64", a, b))


@pytest.mark.parametrize(
    ("source", "given_", "dtype", "result"),
    [
        ("float32", 3.9, "int32", 3), ("float32", -3.9, "int32", -3),
        ("float32", 1e20, "int32", 2**31 - 1), ("float32", -1e20, "int8", -128),
        ("float32", float("nan"), "int32", 0), ("float32", -1.0, "uint8", 0),
        ("float64", 1e30, "int64", 2**63 - 1), ("float32", float("inf"), "uint64", 2**64 - 1),
        ("int32", 300, "int8", 44), ("int32", -1, "uint8", 255), ("int32", 2, "bool", True),
        ("bool", True, "float32", 1.0), ("uint8", 200, "int8", -56),
        ("int64", 2**60 + 2**36 + 1, "float32", float(2**60 + 2**37)),
        ("float32", 1.0009765625, "bfloat16", 1.0),
        ("float64", 0.1, "float16", float(np.float16(0.1))),
        ("float32", 0.0, "bool", False),
    ],
)  # fmt: skip
def test_conversions(source, given_, dtype, result):
    assert value(Cast(dtype, Var("x", source)), x=given_) == result


def test_vector_conversions_saturate_too():
    v = Broadcast(Var("x", "float32"), 4)
    assert value(Cast("int8x4", v), x=1000.0).tolist() == [127] * 4
    assert value(Cast("int8x4", Broadcast(Var("x", "int32"), 4)), x=300).tolist() == [44] * 4
    for kind, want in ((FloorDiv, -4), (FloorMod, 1), (Div, -3), (Mod, -1)):
        a = Broadcast(Var("x", "int32"), 2)
        assert value(kind(a, Broadcast(as_expr(2), 2)), x=-7).tolist() == [want] * 2


FLOATS = {
    "exp": math.exp, "exp2": lambda x: 2**x, "exp10": lambda x: 10**x, "log": math.log,
    "log2": math.log2, "log10": math.log10, "log1p": math.log1p, "expm1": math.expm1,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "asin": math.asin,
    "acos": math.acos, "atan": math.atan, "asinh": math.asinh, "atanh": math.atanh,
    "erf": math.erf, "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "floor": math.floor,
    "ceil": math.ceil, "trunc": math.trunc, "abs": abs,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FLOATS))
@pytest.mark.parametrize(
    ("dtype", "eps"), [("float64", 1e-14), ("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
def test_functions_of_one_argument(name, dtype, eps):
    x = 0.625
    got = value(call(name, Var("x", dtype)), x=x)
    assert abs(float(got) - FLOATS[name](x)) <= eps * max(1.0, abs(FLOATS[name](x)))
    assert got.dtype == DType(dtype).numpy


@pytest.mark.parametrize(
    ("name", "args", "dtype", "result"),
    [
        ("acosh", (2.0,), "float64", math.acosh(2.0)),
        ("pow", (2.0, 10.0), "float32", 1024.0), ("atan2", (1.0, -1.0), "float64", 3 * math.pi / 4),
        ("hypot", (3.0, 4.0), "float32", 5.0), ("fmod", (-7.0, 4.0), "float32", -3.0),
        ("copysign", (3.0, -0.0), "float32", -3.0), ("ldexp", (3.0, 4.0), "float32", 48.0),
        ("round", (2.5,), "float32", 3.0), ("round", (-2.5,), "float32", -3.0),
        ("round", (0.49999997,), "float32", 0.0), ("nearbyint", (2.5,), "float32", 2.0),
        ("fma", (3.0, 4.0, 5.0), "float32", 17.0),
        ("abs", (-128,), "int8", -128), ("popcount", (-1,), "int16", 16),
        ("clz", (1,), "int32", 31), ("clz", (0,), "int64", 64), ("bitwise_not", (5,), "int32", -6),
        ("shift_left", (3, 30), "int32", -(2**30)), ("shift_right", (-8, 1), "int32", -4),
        ("bitwise_and", (12, 10), "uint8", 8), ("bitwise_or", (12, 10), "uint8", 14),
        ("bitwise_xor", (12, 10), "uint8", 6),
        ("q_multiply_shift", (100, 2**30, 31, 1), "int32", 100),
        ("q_multiply_shift", (7, 2**30, 31, 0), "int32", 4), ("fma", (100, 2, 100), "int8", 44),
        ("ignore_loop_partition", (5,), "int32", 5), ("likely", (5,), "int32", 5),
    ],
)  # fmt: skip
def test_operations(name, args, dtype, result):
    names = "abcd"[: len(args)]
    variables = [Var(n, dtype) for n in names]
    got = value(call(name, *variables), **dict(zip(names, args, strict=True)))
    assert got == pytest.approx(result, rel=1e-6)
    assert math.copysign(1, got) == math.copysign(1, result)


def test_predicates_and_bit_operations():
    x = Var("x", "float32")
    assert value(call("isnan", x), x=float("nan")) and not value(call("isnan", x), x=1.0)
    assert value(call("isinf", x), x=float("-inf")) and not value(
        call("isfinite", x), x=float("inf")
    )
    assert value(call("reinterpret", x, dtype="int32"), x=1.0) == 0x3F800000
    assert value(call("reinterpret", Var("i"), dtype="float32"), i=0x3F800000) == 1.0
    with pytest.raises(Exception, match="the widths differ"):
        value(call("reinterpret", x, dtype="int64"), x=1.0)
    assert np.isnan(value(call("undef", dtype="float32")))


def test_operations_on_vectors():
    v = Broadcast(Var("x", "int32"), 3)
    assert value(call("shift_left", v, Broadcast(as_expr(2), 3)), x=3).tolist() == [12] * 3
    f = Broadcast(Var("x", "float32"), 3)
    assert value(call("exp", f), x=0.0).tolist() == [1.0] * 3
    assert value(call("if_then_else", f > 1.0, f, f * 2), x=1.0).tolist() == [2.0] * 3


def test_narrow_integers():
    x = Var("x", "int4")
    assert value(x + as_expr(7, "int4"), x=3) == -6
    assert value(Cast("uint4", Var("i")), i=17) == 1


def test_rows_that_lie_next_to_each_other_are_one_vector():
    n = as_expr
    A, out = Buffer.of("A", (3, 4), "int32"), Buffer.of("out", (8,), "int32")
    load = BufferLoad(A, (n(1), Ramp(n(0), n(1), 8)))
    func = PrimFunc((A, out), BufferStore(out, load, (Ramp(n(0), n(1), 8),)))
    a, result = np.arange(12, dtype="int32").reshape(3, 4), np.zeros(8, "int32")
    run(func, a, result)
    assert result.tolist() == list(range(4, 12))
    past = BufferLoad(A, (n(2), Ramp(n(0), n(1), 8)))
    func = PrimFunc((A, out), BufferStore(out, past, (Ramp(n(0), n(1), 8),)))
    with pytest.raises(InterpretError, match="outside the buffer"):
        run(func, a, result)


def meaning(name):
    return hardware_op(f"llvm.x86.{name}").meaning


def test_byte_products_of_hardware():
    a = np.array([255, 255, 1, 2] * 4, "uint8")
    b = np.array([127, 127, -1, 3] * 4, "int8")
    top = np.full(4, 2**31 - 1, "int32")
    sat = meaning("avx512.vpdpbusds.128")(top, a, b)
    assert sat.tolist() == [2**31 - 1] * 4
    one = np.ones(4, "int32")
    total = 255 * 127 * 2 - 1 + 6
    assert meaning("avx512.vpdpbusd.128")(one, a, b).tolist() == [total + 1] * 4
    pairs = meaning("avx2.pmadd.ub.sw")(np.tile(a, 2), np.tile(b, 2))
    assert pairs.tolist() == [32767, 5] * 8
    with pytest.raises(InterpretError, match="llvm.nothing has no meaning"):
        value(call("call_llvm_pure_intrin", StringImm("llvm.nothing"), dtype="int32"))
