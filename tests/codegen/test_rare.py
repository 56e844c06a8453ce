"""Loops behind a rare condition: vectors test ahead, and results stay exact."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import parse
from metasched.target import Target

LARGEST = """
@T.prim_func
def main(X: T.Buffer((3, {n}), "{dtype}"), V: T.Buffer((3, 9), "{dtype}"),
         I: T.Buffer((3, 9), "int32")):
    for i in range(3):
        for t in range(9):
            V[i, t] = T.{dtype}(-100)
            I[i, t] = -1
        for j in range({extent}):
            if {test}:
                p = T.int32(3)
                while p > 0 and X[i, j] > V[i, T.max(p - 1, 0)]:
                    V[i, p] = V[i, p - 1]
                    I[i, p] = I[i, p - 1]
                    p = p - 1
                V[i, p] = X[i, j]
                I[i, p] = j
"""
TEST = "X[i, j] > V[i, 3]"


def program(n: int, dtype: str = "float32", test: str = TEST, extent: str = "") -> PrimFunc:
    func = parse(LARGEST.format(n=n, dtype=dtype, test=test, extent=extent or n))
    assert isinstance(func, PrimFunc)
    return func


def is_tested_ahead(func: PrimFunc) -> bool:
    return "vector.reduce.or" in compile_func(func, Target.of("llvm -mcpu=x86-64-v3")).llvm_ir


def assert_exact(func: PrimFunc, n: int, dtype: str, order: int = 0) -> None:
    x = np.random.default_rng(n).integers(-50, 50, (3, n)).astype(dtype)
    x = np.sort(x, axis=1)[:, ::order] if order else x
    if dtype.startswith("float"):
        x[:, 1::9] = np.nan
    given = [x, np.zeros((3, 9), dtype), np.zeros((3, 9), "int32")]
    wanted, found = ([a.copy() for a in given] for _ in range(2))
    run(func, *wanted)
    ms.build(func)(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int16"])
@pytest.mark.parametrize("n", [7, 64, 100, 131])
def test_the_largest_of_a_row_are_exact(n: int, dtype: str, order: int) -> None:
    """In ascending order each iteration changes what the next one tests."""
    func = program(n, dtype)
    lanes = 32 // np.dtype(dtype).itemsize
    assert is_tested_ahead(func) == (n >= 2 * lanes)
    assert_exact(func, n, dtype, order)


@pytest.mark.parametrize("extent", ["I[i, 0] + 90", "I[i, 0] - 20"])
def test_lengths_known_at_run_time(extent: str) -> None:
    func = program(100, extent=extent)
    assert is_tested_ahead(func)
    assert_exact(func, 100, "float32")


def test_places_that_the_loop_changes_are_not_read_ahead() -> None:
    func = program(100, "int32", "X[i, T.max(T.min(j, V[i, 3] + 100), 0)] > V[i, 3]")
    assert not is_tested_ahead(func)
    assert_exact(func, 100, "int32")


DIAGONAL = """
@T.prim_func
def main(B: T.Buffer((40, 40), "int32"), C: T.Buffer((40,), "int32")):
    for i in range(40):
        if B[i, i] == 1:
            for j in range(i):
                C[j] = C[j] + 1
"""


def test_the_test_may_read_a_diagonal():
    """Its lanes lie in rows of their own."""
    func = parse(DIAGONAL)
    assert isinstance(func, PrimFunc) and is_tested_ahead(func)
    b = (np.random.default_rng(0).random((40, 40)) < 0.3).astype("int32")
    wanted, found = np.zeros((2, 40), "int32")
    run(func, b, wanted)
    ms.build(func)(b, found)
    np.testing.assert_array_equal(found, wanted)
