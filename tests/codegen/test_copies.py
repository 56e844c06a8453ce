"""Short loops that read what they store: several iterations between two tests of the end."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import parse

TEXT = """
@T.prim_func
def main(X: T.Buffer((80,), "{dtype}"), L: T.Buffer((2,), "int32"), Y: T.Buffer((84,), "{dtype}")):
    s = {first}
    for i in range({extent}):
        {body}
    Y[83] = s
"""
BODIES = {
    "running sum": ["s += X[i]", "Y[i] = s"],
    "running minimum from behind": ["s = T.min(s, X[79 - i])", "Y[79 - i] = s"],
    "two steps back": ["Y[i + 2] = Y[i + 1] + Y[i] + X[i]"],
    "what a later step overwrites": ["Y[i] = Y[i + 1] + X[i]", "s = Y[i]"],
    "the same element": ["Y[i // 3] = Y[i // 3] + X[i]"],
    "under a condition": ["if X[i] > s:", "    Y[i] = s", "    s = X[i] - s"],
    "in two branches": ["if X[i] > s:", "    s = X[i]", "else:", "    s = s + X[i]", "Y[i] = s"],
    "a bound value": ["t = X[i] + s", "Y[i] = t * t", "s = t - X[79 - i]"],
}


def program(body: str, dtype: str, extent: object) -> PrimFunc:
    text = "\n        ".join(BODIES[body])
    func = parse(TEXT.format(dtype=dtype, first=f"T.{dtype}(1)", extent=extent, body=text))
    assert isinstance(func, PrimFunc)
    return func


def assert_exact(func: PrimFunc, dtype: str, length: int = 0) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, 80).astype(dtype)
    if dtype.startswith("float"):
        x[11], x[30] = np.inf, np.nan
    given = [x, np.array([length, -7], "int32"), np.arange(84).astype(dtype)]
    wanted, found = ([a.copy() for a in given] for _ in range(2))
    with np.errstate(all="ignore"):
        run(func, *wanted)
    ms.build(func)(*found)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("extent", [3, 16, 17, 30, 79])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "uint8"])
@pytest.mark.parametrize("body", BODIES)
def test_each_step_sees_what_the_steps_before_stored(body: str, dtype: str, extent: int) -> None:
    assert_exact(program(body, dtype, extent), dtype)


@pytest.mark.parametrize("length", [0, 1, 4, 15, 63])
@pytest.mark.parametrize("body", BODIES)
def test_lengths_known_at_run_time(body: str, length: int) -> None:
    assert_exact(program(body, "int32", "L[0]"), "int32", length)


def test_no_step_of_a_negative_length_runs() -> None:
    assert_exact(program("running sum", "int64", "L[1]"), "int64")


def test_a_round_has_four_steps() -> None:
    text = {n: ms.build(program("running sum", "int64", n)).llvm_ir for n in (15, 64)}
    assert text[64].count("store i64") == text[15].count("store i64") + 3  # s once


def test_an_extent_that_unrolling_makes_a_small_number():
    """A loop over chunks of which there are none would run once."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((20,), "int32")):
    for t in T.unroll(6):
        for i in range(t, 5 + T.min(t, 2)):
            A[i] = A[i + 1] * 2 + t
""")
    given = np.arange(20, dtype="int32")
    wanted, found = given.copy(), given.copy()
    run(func, wanted)
    ms.build(func)(found)
    np.testing.assert_array_equal(found, wanted)
