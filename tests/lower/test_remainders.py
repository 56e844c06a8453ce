"""Loops that test a remainder run over the iterations that pass."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.expr import FloorMod, as_int
from metasched.ir.stmt import For, IfThenElse
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

SWEEP = """
@T.prim_func
def main(A: T.Buffer((30, 80), "{dtype}"), B: T.Buffer((30, 80), "{dtype}")):
    for i in range({low}, {low} + 16):
        for j in {kind}({low}, {low} + {extent}):
            if {test}:
                {body}
"""
BODIES = {
    "neighbours": "A[i + 7, j + 8] = (A[i + 6, j + 8] + A[i + 8, j + 8] + A[i + 7, j + 7]"
                  " + A[i + 7, j + 9]) * 0.25",
    "call": "B[i + 7, j + 8] = T.exp(A[i + 7, j + 8])",
    "two": "B[i + 7, j + 8] = A[i + 7, j + 8]; A[i + 7, j + 8] = A[i + 7, j + 8] * 2.0",
}  # fmt: skip


def sweep(test: str, body: str = "neighbours", kind: str = "T.serial", **options: object) -> str:
    values = {"dtype": "float32", "low": 1, "extent": 64, **options}
    lines = BODIES[body].replace("; ", "\n" + " " * 16)
    return SWEEP.format(test=test, kind=kind, body=lines, **values)


def check(text: str, dtype: str = "float32") -> None:
    agree(text, integers((30, 80), dtype), np.zeros((30, 80), dtype), exact=False)


def inner(text: str) -> For:
    return [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, For)][-1]


def remainders(loop: For) -> int:
    exprs = (x for s in walk_stmts(loop.body) for e in s.exprs for x in walk_exprs(e))
    return sum(isinstance(x, FloorMod) for x in exprs)


@settings(max_examples=60, deadline=None)
@given(
    by=st.integers(2, 9), wanted=st.integers(0, 8), a=st.integers(-3, 3), b=st.integers(-9, 9),
    low=st.integers(-5, 3), extent=st.integers(1, 66), relation=st.sampled_from(["==", "!="]),
    kind=st.sampled_from(["T.serial", "T.vectorized", "T.parallel"]), more=st.booleans(),
    body=st.sampled_from(list(BODIES)), dtype=st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_exactly_the_iterations_that_pass_run(
    by, wanted, a, b, low, extent, relation, kind, more, body, dtype
):
    if body == "neighbours" and (kind != "T.serial") and (by > 2 or relation == "!=" or b % 2 == 0):
        body = "call"  # else iterations depend on each other
    test = f"({a} * i + {b} * j + 1) % {by} {relation} {wanted}"
    test = f"j + i < 30 and {test}" if more else test
    check(sweep(test, body, kind, low=low, extent=extent, dtype=dtype), dtype)


@pytest.mark.parametrize(
    "test", ["(i + j) % 2 == 0", "(i - j) % 2 != 1", "(i + 5 * j) % 3 == 2", "((i + j) & 3) == 1"]
)
@pytest.mark.parametrize("kind", ["T.serial", "T.vectorized"])
def test_no_iteration_tests_the_remainder(test, kind):
    text = sweep(test, kind=kind, extent=60)
    loop = inner(text)
    step = 60 // (as_int(loop.extent) or 60)
    assert step in (2, 3, 4) and not remainders(loop)
    assert not any(isinstance(s, IfThenElse) for s in walk_stmts(loop))
    check(text)


def test_lanes_stay_under_a_mask_that_costs_less_than_shuffles():
    assert remainders(inner(sweep("(i + j) % 2 == 0", "two", "T.vectorized"))) == 1
    assert remainders(inner(sweep("(i + j) % 3 == 0", "two", "T.vectorized", extent=63))) == 0


@pytest.mark.parametrize(
    "test", ["(i + 2 * j) % 4 == 1", "(i + j) % 3 != 0", "(i + j * j) % 2 == 0", "(i + j) % 2 == 5"]
)
def test_other_tests_stay(test):
    text = sweep(test)
    assert all(as_int(s.extent) in (16, 64) for s in [inner(text)])
    check(text)


def test_a_remainder_of_data_stays():
    text = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8, 64), "int32")):
    for i in range(8):
        for j in range(64):
            if (A[i] + j) % 3 == 0:
                B[i, j] = j
"""
    assert remainders(inner(text)) > 0
    data = np.random.default_rng(0).integers(-9, 9, 8).astype("int32")
    agree(text, data, np.zeros((8, 64), "int32"))


def test_a_break_leaves_the_loop_at_the_same_iteration():
    text = """
@T.prim_func
def main(A: T.Buffer((8, 64)), B: T.Buffer((8, 64))):
    for i in range(8):
        for j in range(64):
            if (i + j) % 3 == 1:
                if A[i, j] > T.float32(1):
                    break
                B[i, j] = A[i, j]
"""
    agree(text, integers((8, 64)), np.zeros((8, 64), "float32"))


@settings(max_examples=40, deadline=None)
@given(
    by=st.integers(2, 5), first=st.integers(-1, 2), colors=st.integers(1, 5),
    test=st.sampled_from(["(i + j) % {by} == c", "(i - 3 * j) % {by} != c", "(j + c) % {by} == c",
                          "(2 * i + j) % {by} == c * 2 - 1"]),
    kind=st.sampled_from(["T.serial", "T.vectorized"]), extent=st.integers(1, 66),
)  # fmt: skip
def test_a_loop_over_colors(by, first, colors, test, kind, extent):
    """A color may be no remainder at all; then no iteration passes."""
    text = sweep(test.format(by=by), "call", kind, extent=extent)
    head = f"    for c in range({first}, {first + colors}):\n"
    lines = text.splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("    for i"))
    check("".join([*lines[:start], head, *("    " + line for line in lines[start:])]))


@pytest.mark.parametrize(("colors", "stays"), [(2, 0), (1, 0), (3, 1)])
def test_no_iteration_tests_its_color(colors, stays):
    text = sweep("(i + j) % 2 == c").replace(
        "    for i", f"    for c in range({colors}):\n      for i"
    )
    assert remainders(inner(text)) == stays
    check(text)
