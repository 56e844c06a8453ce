"""Arithmetic and conversions in every data type, scalar and vector, against the interpreter."""

from __future__ import annotations

from typing import Any

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


def _kind(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype


def _check(dtype: str, out: str, *values: str, second: np.ndarray | None = None) -> None:
    """Each value computed one by one and in vectors, in one program."""
    a, b = _values(dtype, 0), _values(dtype, 1)[::-1].copy()
    b = b if second is None else second
    _check_many(dtype, a, b, [(out, v) for v in values])


def _check_many(dtype: str, a: np.ndarray, b: np.ndarray, cases: list[tuple[str, str]]) -> None:
    head, body, outputs = "", "", []
    for n, (out, value) in enumerate(cases):
        for loop in ("serial", "vectorized"):
            name = f"C{n}{loop}"
            head += f', {name}: T.Buffer(({N},), "{out}")'
            body += (
                f"    for i in T.{loop}({N}):\n        with T.block('{name}'):\n"
                f"            vi = T.axis.spatial({N}, i)\n            {name}[vi] = {value}\n"
            )
            outputs.append(np.zeros(N, _kind(out)))
    buffers = f'A: T.Buffer(({N},), "{dtype}"), B: T.Buffer(({N},), "{dtype}")'
    agree(f"@T.prim_func\ndef main({buffers}{head}):\n{body}", a, b, *outputs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic(dtype: str) -> None:
    binary = [f"A[vi] {op} B[vi]" for op in "+-*/"]
    extremes = ["T.max(A[vi], B[vi])", "T.min(A[vi], B[vi])", f'T.max(A[vi], T.Cast("{dtype}", 0))']
    _check(dtype, dtype, *binary, *extremes)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_arithmetic_wraps(dtype: str) -> None:
    _check(
        dtype, dtype, "A[vi] + B[vi]", "A[vi] * B[vi] - A[vi]", "T.max(A[vi], B[vi])",
        "T.min(A[vi], B[vi])", "T.bitwise_xor(A[vi], T.bitwise_and(A[vi], B[vi]))",
        "T.bitwise_not(T.bitwise_or(A[vi], B[vi]))",
    )  # fmt: skip


DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division(dtype: str) -> None:
    divisors = _values(dtype, 1)
    divisors[divisors == 0] = 3
    numbers = (1, 7, 8) if dtype.startswith("u") else (1, 7, 8, -3)
    values = [f"T.{op}(A[vi], T.{dtype}({n}))" for op in DIVISIONS for n in numbers]
    _check(dtype, dtype, *values, *(f"T.{op}(A[vi], B[vi])" for op in DIVISIONS), second=divisors)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_division_by_zero_gives_zero_and_never_traps(dtype: str) -> None:
    value = " + ".join(f"T.{op}(A[vi], B[vi])" for op in DIVISIONS)
    out = np.ones(N, dtype)
    text = ELEMENTWISE.format(dtype=dtype, out=dtype, kind="serial", value=value)
    assert call(build(text), _values(dtype, 0), np.zeros(N, dtype), out) == 0
    assert not out.any()


@pytest.mark.parametrize("source", [*FLOATS, *INTS, "bool"])
def test_every_conversion(source: str) -> None:
    a = np.arange(N) % 3 == 0 if source == "bool" else _values(source, 0)
    cases = [(t, f'T.Cast("{t}", A[vi])') for t in (*FLOATS, *INTS, "bool") if t != source]
    _check_many(source, a, a, cases)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int32", "uint64"])
def test_comparisons_and_logic(dtype: str) -> None:
    a, b = _values(dtype, 0), _values(dtype, 1)[::-1].copy()
    cases = [
        ("bool", "(A[vi] < B[vi] or A[vi] == B[vi]) and not (A[vi] != A[vi])"),
        ("bool", "A[vi] >= B[vi] or B[vi] > A[vi]"),
        (dtype, "T.Select(A[vi] <= B[vi], A[vi], B[vi])"),
    ]
    _check_many(dtype, a, b, cases)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_remainders(dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.uniform(-50, 50, N).astype(dtype), rng.uniform(1, 9, N).astype(dtype)
    b[::2] *= -1
    values = ("T.floormod(A[vi], B[vi])", "T.truncmod(A[vi], B[vi])", "T.floordiv(A[vi], B[vi])")
    _check_many(dtype, a, b, [(dtype, v) for v in values])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_quotient_in_16_bits_is_rounded_down_before_it_is_rounded_to_its_type(dtype: str) -> None:
    a, b = np.full(N, 3129.0, _kind(dtype)), np.full(N, 1.25, _kind(dtype))
    a[::2], b[::2] = 65536 if dtype == "bfloat16" else 65504, 16.75
    _check_many(dtype, a, b, [(dtype, "T.floordiv(A[vi], B[vi])")])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_shifts_and_bit_counts(dtype: str) -> None:
    amounts = (np.arange(N) % np.iinfo(dtype).bits).astype(dtype)
    values = ("T.shift_left(A[vi], B[vi])", "T.shift_right(A[vi], B[vi])")
    _check(dtype, dtype, *values, "T.popcount(A[vi]) + T.clz(A[vi])", second=amounts)


def test_shifts_by_the_width_or_more() -> None:
    text = ELEMENTWISE.format(dtype="int32", out="int32", kind="vectorized",
                              value="T.shift_left(A[vi], B[vi])")  # fmt: skip
    out = np.ones(N, "int32")
    assert call(build(text), _values("int32", 0), np.full(N, 40, "int32"), out) == 0
    assert not out.any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_reinterpret_and_predicates_on_floats(dtype: str) -> None:
    bits = 16 if "16" in dtype else 32 if "32" in dtype else 64
    a = _values(dtype, 0)
    cases = [("bool", f"T.{op}(A[vi])") for op in ("isnan", "isinf", "isfinite")]
    _check_many(dtype, a, a, [*cases, (f"int{bits}", f'T.reinterpret("int{bits}", A[vi])')])


def test_scalar_parameters_of_every_type() -> None:
    for dtype in [*FLOATS, *INTS, "bool"]:
        kind = _kind(dtype)
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
