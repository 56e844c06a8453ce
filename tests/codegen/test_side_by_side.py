"""Registers of lanes side by side: one loop for all of them, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import WIDE, agree, build, integers

CLENSHAW = """
@T.prim_func
def main(c: T.Buffer((9,), "{dtype}"), x: T.Buffer(({n},), "{dtype}"),
         y: T.Buffer(({n},), "{dtype}")):
    b = T.alloc_buffer(({n},), "{dtype}")
    d = T.alloc_buffer(({n},), "{dtype}")
    for i in T.vectorized({n}):
        b[i] = T.{dtype}(0)
        d[i] = T.{dtype}(1)
        for k in range(9):
            t: T.{dtype} = x[i] * b[i] - d[i] + c[8 - k]
            d[i] = b[i]
            b[i] = t
        y[i] = x[i] * b[i] - d[i]
"""


def loops(source: str) -> int:
    """The loops in the code for vectors of 512 bits, but the two that repeat whole calls."""
    return build(source, target=WIDE).llvm_ir.count(" = phi i") - 2


def test_straight_code_has_no_loop():
    assert loops(nest("y[i] = x[i]")) == 0


@pytest.mark.parametrize(("dtype", "n"), [("float32", 64), ("float64", 24), ("int32", 128)])
def test_registers_run_in_one_loop(dtype, n):
    source = CLENSHAW.format(dtype=dtype, n=n)
    assert loops(source) == 1
    agree(source, integers((9,), dtype), integers((n,), dtype, 1) % 3, np.zeros(n, dtype))


@pytest.mark.parametrize("steps", ["0", "T.max(3 - 5, 0)", "1"])
def test_a_loop_of_no_steps_runs_no_step(steps):
    source = CLENSHAW.format(dtype="float32", n=64).replace("range(9)", f"range({steps})")
    agree(source, integers((9,)), integers((64,), seed=1) % 3, np.zeros(64, "float32"))


@pytest.mark.parametrize("n", [7, 17, 70, 100])
def test_lanes_that_fill_no_register(n):
    source = CLENSHAW.format(dtype="float32", n=n)
    agree(source, integers((9,)), integers((n,), seed=1) % 3, np.zeros(n, "float32"))


def test_as_many_registers_as_the_elements_leave():
    """Eight elements of each lane: three groups of lanes would need 24 registers, four 32."""
    source = """
@T.prim_func
def main(x: T.Buffer((96,), "float32"), y: T.Buffer((8, 96), "float32")):
    for i in T.vectorized(96):
        for k in range(50):
            for q in T.unroll(8):
                y[q, i] = y[q, i] * T.float32(0.5) + x[k]
"""
    assert loops(source) == 2
    agree(source, integers((96,)), integers((8, 96)), exact=False)


NESTS = {
    "two loops": """
        for k in range(9): y[i] = y[i] + c[k]
        y[i] = y[i] * x[i]
        for k in range(n): y[i] = y[i] - c[k]""",
    "a loop in a loop": """
        for k in range(n):
            y[i] = y[i] + c[k]
            for q in range(k): y[i] = T.max(y[i], c[q]) + x[i]
            y[i] = y[i] - T.float32(1)""",
    "rows": """
        for k in range(9):
            z[k, i] = c[k] + x[i]
        for k in range(1, 9):
            z[k, i] = z[k, i] + z[k - 1, i]
        y[i] = z[8, i]""",
    "a loop without an iteration": """
        for k in range(n - 5): y[i] = y[i] + c[k]
        y[i] = y[i] + x[i]""",
    "extents from memory": """
        for k in range(p[0]): y[i] = y[i] + c[k]
        y[i] = y[i] + x[i]""",
}
ALONE = {
    "a condition around a loop": """
        if c[0] > T.float32(0):
            for k in range(9): y[i] = y[i] + c[k]""",
    "a variable around a loop": """
        t: T.float32 = x[i]
        for k in range(9): y[i] = y[i] + c[k] * t""",
}


def nest(body: str) -> str:
    return f"""
@T.prim_func
def main(c: T.Buffer((9,), "float32"), x: T.Buffer((64,), "float32"),
         y: T.Buffer((64,), "float32"), z: T.Buffer((9, 64), "float32"),
         p: T.Buffer((1,), "int32"), n: T.int32):
    for i in T.vectorized(64):
        {body.strip()}
"""


@pytest.mark.parametrize("body", [*NESTS.values(), *ALONE.values()], ids=[*NESTS, *ALONE])
@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_same_results(body, n):
    arrays = integers((9,)), integers((64,), seed=1), integers((64,), seed=2), integers((9, 64))
    agree(nest(body), *arrays, np.array([7], "int32"), n)


@pytest.mark.parametrize("body", NESTS.values(), ids=NESTS)
def test_one_loop_for_all_registers(body):
    assert loops(nest(body)) == body.count("for ")


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_registers_that_run_alone(body):
    assert loops(nest(body)) == 4
