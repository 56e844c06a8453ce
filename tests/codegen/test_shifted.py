"""Loops in place whose distances are known at run time: vectors where no lane needs another."""

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
def main(W: T.Buffer((2,), "int32"), X: T.Buffer((200,), "{dtype}"),
         B: T.Buffer((400,), "{dtype}")):
    for r in range({extent}):
        B[{at}] = {value}
"""
UP, DOWN = "r + 100", "299 - r"
DISTANCES = (-40, -17, -16, -15, -9, -8, -7, -1, 0, 1, 5, 8, 16, 40)


def program(**parts: str) -> PrimFunc:
    func = parse(TEXT.format(**{"dtype": "int32", "extent": "200", **parts}))
    assert isinstance(func, PrimFunc)
    return func


def assert_exact(func: PrimFunc, dtype: str, shifts: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    given = [np.array(shifts, "int32"), *(rng.integers(-3, 4, n).astype(dtype) for n in (200, 400))]
    wanted, found = ([x.copy() for x in given] for _ in range(2))
    run(func, *wanted)
    ms.build(func)(*found)
    np.testing.assert_array_equal(wanted[-1], found[-1])


def has_vectors(func: PrimFunc) -> bool:
    return "distances" in compile_func(func, Target.of("llvm -mcpu=x86-64-v4")).llvm_ir


@pytest.mark.parametrize("shift", DISTANCES)
@pytest.mark.parametrize("dtype", ["int32", "float32", "int64", "int8"])
@pytest.mark.parametrize("at", [UP, DOWN])
def test_every_distance_is_exact(at: str, dtype: str, shift: int) -> None:
    func = program(dtype=dtype, at=at, value=f"T.max(B[{at}], B[{at} + W[0]] - X[r])")
    if at == DOWN:
        func = program(dtype=dtype, at=at, value=f"T.max(B[{at}], B[{at} + W[0]] - X[199 - r])")
    assert has_vectors(func)
    assert_exact(func, dtype, (shift, 0))


@pytest.mark.parametrize("shifts", [(3, -3), (-20, 20), (-20, -21), (1, 2), (-64, 0)])
@pytest.mark.parametrize("extent", ["200", "W[0] + 64", "W[1] - 30"])
def test_two_distances_and_a_length_known_at_run_time(shifts: tuple[int, int], extent: str) -> None:
    """A length below zero is no iteration."""
    func = program(extent=extent, at=UP, value=f"B[{UP} + W[0]] - B[{UP} - W[1]]")
    assert has_vectors(func)
    assert_exact(func, "int32", shifts)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (UP, f"B[{UP}] + B[{DOWN} + W[0]]"),  # the distance changes with the loop
        (UP, f"B[{UP}] + B[W[0] + 50]"),  # one element
        (UP, f"B[{UP}] + B[2 * r + W[0] + 50]"),
        ("2 * r", "B[2 * r + W[0] + 50]"),
        (UP, f"B[{UP} - 1] + X[r]"),  # a distance that the compiler knows
    ],
)
def test_loops_that_look_alike_stay_exact(at: str, value: str) -> None:
    func = program(at=at, value=value, extent="150")
    assert not has_vectors(func)
    assert_exact(func, "int32", (-1, 0))
