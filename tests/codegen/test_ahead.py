"""Histograms of floats: vectors compute the bins, updates run one by one and stay exact."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import parse
from metasched.target import Target

TEXT = """
@T.prim_func
def main(X: T.Buffer(({n},), "{dtype}"), L: T.Buffer((2,), "int32"), H: T.Buffer((40,), "int32"),
         K: T.Buffer(({n},), "int32")):
    for i in range({extent}):
        b = {value}
        if b >= 0 and b < 40:
            {update}
"""
BIN = "T.int32(X[i] * 10.0)"
COUNT = "H[b] += 1"


def program(**parts: object) -> PrimFunc:
    given = {"dtype": "float32", "extent": parts.get("n", 100), "value": BIN, "update": COUNT}
    func = parse(TEXT.format(**{"n": 100, **given, **parts}))
    assert isinstance(func, PrimFunc)
    return func


def assert_exact(func: PrimFunc, n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    x = (rng.random(n) * 8 - 2).astype(dtype)
    x[::7] = x[0]
    given = [x, np.array([37, -20], "int32"), np.zeros(40, "int32"), np.zeros(n, "int32")]
    wanted, found = ([a.copy() for a in given] for _ in range(2))
    run(func, *wanted)
    ms.build(func)(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def is_ahead(func: PrimFunc) -> bool:
    return "%ahead" in compile_func(func, Target.of("llvm -mcpu=x86-64-v3")).llvm_ir


@pytest.mark.parametrize("n", [4, 16, 33, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "update",
    [COUNT, "H[b] = T.max(H[b], i)", "H[b] = H[39 - b] + 1", f"K[i] = b\n            {COUNT}"],
)
def test_updates_are_exact(update: str, dtype: str, n: int) -> None:
    func = program(n=n, dtype=dtype, update=update)
    assert is_ahead(func) == (n >= (4 if dtype == "float64" else 8))
    assert_exact(func, n, dtype)


@pytest.mark.parametrize(
    ("update", "ahead"),
    [
        ("H[{bin}] += 1", True),
        ("H[39 - {bin} % 40] = H[{bin} % 40] + K[i]", True),
        ("H[T.max({bin}, 0) % 40] += T.int32(X[i])", True),
        ("H[T.int32(X[i - 51] * 4.0) if K[i] > 50 else {bin}] += 1", False),
    ],
)
def test_bins_without_a_name(update: str, ahead: bool) -> None:
    func = parse(f"""
@T.prim_func
def main(X: T.Buffer((100,), "float32"), H: T.Buffer((40,), "int32"),
         K: T.Buffer((100,), "int32")):
    for i in range(100):
        {update.format(bin="T.int32(X[i] * 4.0)")}
""")
    assert is_ahead(func) is ahead
    x = np.random.default_rng(0).random(100).astype("float32") * 9
    wanted, found = np.zeros((2, 40), "int32")
    run(func, x, wanted, np.arange(100, dtype="int32"))
    ms.build(func)(x, found, np.arange(100, dtype="int32"))
    np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize("extent", ["L[0]", "L[1]"])
def test_lengths_known_at_run_time(extent: str) -> None:
    func = program(extent=extent)
    assert is_ahead(func)
    assert_exact(func, 100, "float32")


@pytest.mark.parametrize(
    ("value", "update"),
    [
        ("T.int32(X[i] * 10.0) + H[0]", COUNT),  # the updates decide the bin
        ("K[i]", COUNT),  # nothing to compute
        (BIN, "K[i] = b"),  # a vector does all of it
    ],
)
def test_loops_that_look_alike_stay_exact(value: str, update: str) -> None:
    func = program(value=value, update=update)
    assert not is_ahead(func)
    assert_exact(func, 100, "float32")
