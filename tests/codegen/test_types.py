"""Arithmetic and conversions in every data type, scalar and vector, against the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from codegen.kernels import agree, build, call

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
N = 37

ELEMENTWISE = """
@T.prim_func
def main(A: T.Buffer((37,), "{dtype}"), B: T.Buffer((37,), "{dtype}"),
         C: T.Buffer((37,), "{out}")):
    for i in T.{kind}(37):
        with T.block("C"):
            vi = T.axis.spatial(37, i)
            C[vi] = {value}
"""


def _values(dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype in INTS:
        info = np.iinfo(dtype)
        edges = [info.min, info.max, 0, 1, info.max // 2]
        rest = rng.integers(info.min, info.max, N - len(edges), dtype=dtype, endpoint=True)
        return np.concatenate([np.array(edges, dtype), rest])
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 65504.0, 3e38]
    rest = rng.standard_normal(N - len(edges)) * 10.0
    with np.errstate(over="ignore"):
        return np.concatenate([edges, rest]).astype(kind)


def _check(dtype: str, out: str, value: str, second: np.ndarray | None = None) -> None:
    kind = ml_dtypes.bfloat16 if out == "bfloat16" else out
    a, b = _values(dtype, 0), _values(dtype, 1)[::-1].copy()
    b = b if second is None else second
    for loop in ("serial", "vectorized"):
        text = ELEMENTWISE.format(dtype=dtype, out=out, kind=loop, value=value)
        agree(text, a, b, np.zeros(N, kind))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "value",
    ["A[vi] + B[vi]", "A[vi] - B[vi]", "A[vi] * B[vi]", "A[vi] / B[vi]",
     "T.max(A[vi], B[vi])", "T.min(A[vi], B[vi])", "T.max(A[vi], T.Cast(\"{dtype}\", 0))"],
)  # fmt: skip
def test_float_arithmetic(dtype: str, value: str) -> None:
    _check(dtype, dtype, value.replace("{dtype}", dtype))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize(
    "value",
    ["A[vi] + B[vi]", "A[vi] * B[vi] - A[vi]", "T.max(A[vi], B[vi])", "T.min(A[vi], B[vi])",
     "T.bitwise_xor(A[vi], T.bitwise_and(A[vi], B[vi]))", "T.bitwise_not(T.bitwise_or(A[vi], B[vi]))"],
)  # fmt: skip
def test_integer_arithmetic_wraps(dtype: str, value: str) -> None:
    _check(dtype, dtype, value)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["floordiv", "floormod", "truncdiv", "truncmod"])
def test_integer_division(dtype: str, op: str) -> None:
    divisors = _values(dtype, 1)
    divisors[divisors == 0] = 3
    _check(dtype, dtype, f"T.{op}(A[vi], B[vi])", divisors)
    for number in (1, 7, 8) if dtype.startswith("u") else (1, 7, 8, -3):
        _check(dtype, dtype, f"T.{op}(A[vi], T.{dtype}({number}))")


def test_division_by_zero_gives_zero_and_never_traps() -> None:
    for dtype in ("int32", "uint8", "int64"):
        for op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            text = ELEMENTWISE.format(
                dtype=dtype, out=dtype, kind="serial", value=f"T.{op}(A[vi], B[vi])"
            )
            out = np.ones(N, dtype)
            assert call(build(text), _values(dtype, 0), np.zeros(N, dtype), out) == 0
            assert not out.any()


@pytest.mark.parametrize("source", [*FLOATS, *INTS, "bool"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_every_conversion(source: str, dtype: str) -> None:
    if source == "bool":
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        a = np.arange(N) % 3 == 0
        text = ELEMENTWISE.format(
            dtype="bool", out=dtype, kind="vectorized", value=f'T.Cast("{dtype}", A[vi])'
        )
        agree(text, a, a, np.zeros(N, kind))
    else:
        _check(source, dtype, f'T.Cast("{dtype}", A[vi])')


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int32", "uint64"])
def test_comparisons_and_logic(dtype: str) -> None:
    _check(dtype, "bool", "(A[vi] < B[vi] or A[vi] == B[vi]) and not (A[vi] != A[vi])")
    _check(dtype, "bool", "A[vi] >= B[vi] or B[vi] > A[vi]")
    _check(dtype, dtype, "T.Select(A[vi] <= B[vi], A[vi], B[vi])")


def test_float_remainders() -> None:
    for dtype in ("float32", "float64"):
        rng = np.random.default_rng(3)
        a, b = rng.uniform(-50, 50, N).astype(dtype), rng.uniform(1, 9, N).astype(dtype)
        b[::2] *= -1
        for value in ("T.floormod(A[vi], B[vi])", "T.truncmod(A[vi], B[vi])"):
            for kind in ("serial", "vectorized"):
                text = ELEMENTWISE.format(dtype=dtype, out=dtype, kind=kind, value=value)
                agree(text, a, b, np.zeros(N, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_shifts_and_bit_counts(dtype: str) -> None:
    amounts = (np.arange(N) % np.iinfo(dtype).bits).astype(dtype)
    for value in ("T.shift_left(A[vi], B[vi])", "T.shift_right(A[vi], B[vi])"):
        _check(dtype, dtype, value, amounts)
    _check(dtype, dtype, "T.popcount(A[vi]) + T.clz(A[vi])")


def test_shifts_by_the_width_or_more() -> None:
    text = ELEMENTWISE.format(dtype="int32", out="int32", kind="vectorized",
                              value="T.shift_left(A[vi], B[vi])")  # fmt: skip
    out = np.ones(N, "int32")
    assert call(build(text), _values("int32", 0), np.full(N, 40, "int32"), out) == 0
    assert not out.any()


def test_reinterpret_and_predicates_on_floats() -> None:
    _check("float32", "int32", 'T.reinterpret("int32", A[vi])')
    _check("bfloat16", "uint16", 'T.reinterpret("uint16", A[vi])')
    for op in ("isnan", "isinf", "isfinite"):
        for dtype in FLOATS:
            _check(dtype, "bool", f"T.{op}(A[vi])")


def test_scalar_parameters_of_every_type() -> None:
    for dtype in [*FLOATS, *INTS, "bool"]:
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        text = f"""
@T.prim_func
def main(x: T.{dtype}, A: T.Buffer((4,), "{dtype}")):
    for i in T.serial(4):
        A[i] = x
"""
        number = np.array(3, kind)[()] if dtype in FLOATS[:2] else 1 if dtype == "bool" else 3
        data = np.zeros(4, kind)
        assert call(build(text), number, data) == 0
        assert (data == np.array(number, kind)).all()
