"""Loops that pack their outputs run in vectors where they have this form, and stay exact."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import parse
from metasched.target import Target

HEAD = """
@T.prim_func
def main(X: T.Buffer((4, {n}), "{dtype}"), M: T.Buffer((4, {n}), "bool"),
         B: T.Buffer((4, {n}), "{dtype}"), P: T.Buffer((4, {n}), "int32"),
         C: T.Buffer((4,), "int32")):
"""
PACKED = """
    for r in range(4):
        C[r] = 0
        for i in range({n}):
            if X[r, i] > {zero}:
                B[r, C[r]] = X[r, i] * X[r, i]
                P[r, C[r]] = i
                C[r] += 1
"""
SCALAR = """
    n = T.int32(0)
    for r in range(4):
        n = 0
        for i in range({n}):
            x = X[r, i]
            if M[r, i]:
                B[r, n] = x
                n += 1
        C[r] = n
"""
AVX512 = "llvm -mcpu=x86-64-v4"


def arguments(n: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 10, (4, n)).astype(dtype)
    mask = rng.random((4, n)) < np.array([[0.0], [0.1], [0.6], [1.0]])
    return [x, mask, np.zeros((4, n), dtype), np.zeros((4, n), "int32"), np.zeros(4, "int32")]


def check(text: str, n: int, dtype: str, enclosed: bool) -> ms.Schedule:
    sch = ms.Schedule(parse(text))
    if enclosed:
        sch.enclose("root")
    wanted, found = arguments(n, dtype), arguments(n, dtype)
    run(parse(text), *wanted)
    ms.build(sch)(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)
    return sch


def packs(text: str, target: str = AVX512) -> bool:
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return "vector.compress" in compile_func(func, Target.of(target)).llvm_ir


@pytest.mark.parametrize("enclosed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64"])
@pytest.mark.parametrize("n", [5, 16, 33, 160])
@pytest.mark.parametrize("body", [PACKED, SCALAR], ids=["memory", "scalar"])
def test_packed_outputs_are_exact(body: str, n: int, dtype: str, enclosed: bool) -> None:
    zero = "0.5" if dtype.startswith("float") else "0"
    check((HEAD + body).format(n=n, dtype=dtype, zero=zero), n, dtype, enclosed)
    text = (HEAD + body).format(n=n, dtype=dtype, zero=zero)
    lanes = 8 if dtype.endswith("64") else 16
    assert packs(text) == (n >= lanes)
    assert not packs(text, "llvm -mcpu=x86-64-v3")


LOOP = """
@T.prim_func
def main(X: T.Buffer((160,), "int32"), B: T.Buffer((400,), "int32"), C: T.Buffer((2,), "int32")):
    for i in range(160):
        {body}
"""
ONE = "if X[i] > 0:\n            B[C[0]] = X[i]\n            C[0] += 1"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("B[C[0]] = X[i]", "B[2 * C[0]] = X[i]"),  # not one behind the other
        ("B[C[0]] = X[i]", "B[C[1]] = X[i]"),  # another counter
        ("B[C[0]] = X[i]", "B[C[0] + i] = X[i]"),  # moves with the loop, too
        ("B[C[0]] = X[i]", "B[C[0]] = X[i] + C[0]"),  # stores the counter
        ("B[C[0]] = X[i]", "B[C[0]] = X[i] + B[i]"),  # reads what it may have stored
        ("X[i] > 0", "X[i] > B[i]"),
        ("X[i] > 0", "X[i] > C[0]"),
        ("C[0] += 1", "C[0] += 2"),
        ("C[0] += 1", "C[0] = C[0] + X[i]"),
        ("B[C[0]] = X[i]", "B[C[0]] = X[i]\n            B[C[0] + 1] = 0"),  # stored again later
    ],
)
def test_loops_that_look_alike_stay_exact(old: str, new: str) -> None:
    text = LOOP.format(body=ONE.replace(old, new))
    assert packs(LOOP.format(body=ONE))
    assert not packs(text)
    x = np.random.default_rng(0).integers(0, 2, 160).astype("int32")
    wanted, found = ([x, np.zeros(400, "int32"), np.zeros(2, "int32")] for _ in range(2))
    run(parse(text), *wanted)
    ms.build(parse(text))(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_packed_rows_of_run_time_length_end_where_the_rows_end() -> None:
    """A row that begins behind its end has no iteration."""
    func = parse("""
@T.prim_func
def main(P: T.Buffer((5,), "int32"), X: T.Buffer((200,)), B: T.Buffer((4, 200)),
         C: T.Buffer((4,), "int32")):
    for r in range(4):
        C[r] = 0
        for i in range(P[r], P[r + 1]):
            if X[i] > 0.0:
                B[r, C[r] + r] = X[i]
                C[r] += 1
""")
    ends, x = np.array([0, 100, 40, 41, 200], "int32"), np.random.default_rng(0).random(200) - 0.5
    wanted, found = (
        [ends, x.astype("float32"), np.zeros((4, 200), "float32"), np.zeros(4, "int32")]
        for _ in range(2)
    )
    run(func, *wanted)
    ms.build(func)(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)
