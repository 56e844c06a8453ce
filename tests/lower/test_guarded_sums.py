"""Sums of choices with zero become statements under a test, where a zero changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers

from metasched.ir.interp import run
from metasched.ir.stmt import For, IfThenElse
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

SUM = """
@T.prim_func
def main(x: T.Buffer((6, 9), "{dtype}"), w: T.Buffer((6, 3, 16), "{dtype}"),
         y: T.Buffer((7, 16), "{dtype}")):
    s = T.alloc_buffer((7, 16), "{dtype}", scope="local")
    for i, o in T.grid(7, 16):
        s[i, o] = T.{dtype}({start})
    for c in range(6):
        for q, i in T.grid(3, 7):
            for o in T.vectorized(16):
                s[i, o] = s[i, o] + {term}
    for i, o in T.grid(7, 16):
        y[i, o] = s[i, o]{end}
"""
PRODUCT = "x[c, i + q] * w[c, q, o]"
CHOICE = f"T.if_then_else(i + q > 2, {PRODUCT}, T.{{dtype}}(0))"


def text(term: str, dtype: str = "float32", start: str = "0", end: str = "") -> str:
    return SUM.format(term=term.format(dtype=dtype), dtype=dtype, start=start, end=end)


def inside(source: str) -> list[IfThenElse]:
    """The tests inside of the loop over `c`, with the sums under them."""
    stmts = walk_stmts(lower(parse(source), NATIVE).body)
    loop = next(s for s in stmts if isinstance(s, For) and s.var.name == "c")
    return [s for s in walk_stmts(loop) if isinstance(s, IfThenElse)]


def same(source: str, dtype: str = "float32") -> None:
    x, w = integers((6, 9), dtype), integers((6, 3, 16), dtype, 1)
    agree(source, x, w, np.zeros((7, 16), dtype))
    if dtype == "float32":
        x[:, 1], w[:, 0] = np.inf, np.nan  # terms of which some are left out
        agree(source, x, w, np.zeros((7, 16), dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("term", [
    CHOICE,
    f"T.Select(i + q > 2, {PRODUCT}, T.{{dtype}}(0))",
    "T.if_then_else(i > 2, T.if_then_else(q < 2, " + PRODUCT + ", T.{dtype}(0)), T.{dtype}(0))",
])  # fmt: skip
def test_a_choice_with_zero_becomes_a_test(term, dtype):
    source = text(term, dtype)
    assert inside(source)
    same(source, dtype)


@pytest.mark.parametrize(("term", "start"), [
    pytest.param("T.if_then_else(o > 2, " + PRODUCT + ", T.float32(0))", "0", id="lanes"),
    pytest.param("T.if_then_else(i > 2, " + PRODUCT + ", T.float32(1))", "0", id="one"),
    pytest.param("T.if_then_else(x[0, i] > 0, " + PRODUCT + ", T.float32(0))", "0", id="memory"),
    pytest.param(CHOICE, "-0.0", id="the sum may be -0.0"),
    pytest.param("T.if_then_else(i > 2, x[c, i + q], T.float32(0)) * w[c, q, o]", "0", id="factor"),
])  # fmt: skip
def test_other_choices_stay(term, start):
    source = text(term, start=start)
    assert not inside(source)
    same(source)


UPDATE = """
@T.prim_func
def main(n: T.int32, x: T.Buffer((6, 16)), y: T.Buffer((16,))):
    for c in range(6):
        for o in T.vectorized(16):
            y[o] = y[o] + T.if_then_else(c < n, x[c, o], T.float32({zero}))
"""


@pytest.mark.parametrize(("zero", "moves"), [("0.0", False), ("-0.0", True)])
@pytest.mark.parametrize("n", [0, 4])
def test_only_a_zero_that_changes_nothing_is_left_out(zero, moves, n):
    """A parameter may hold -0.0, which 0.0 changes."""
    func = parse(UPDATE.format(zero=zero))
    assert ("if_then_else" in lower(func, NATIVE).script()) != moves
    x, expected = np.full((6, 16), -0.0, "float32"), np.full(16, -0.0, "float32")
    actual = expected.copy()
    run(func, n, x, expected)
    assert call(build(func), n, x, actual) == 0
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
    assert np.signbit(expected).all() == moves


def test_a_maximum_of_the_same_buffer_keeps_its_choices():
    """An element that another statement may set to -0.0 is no sum from zero."""
    source = text(CHOICE).replace(
        "    for c in range(6):",
        """    for i, o in T.grid(7, 16):
        s[i, o] = T.max(s[i, o], x[0, i])
    for c in range(6):""",
    )
    assert not inside(source)
    same(source)


def test_a_buffer_whose_address_is_taken_keeps_its_choices():
    source = text(CHOICE).replace(
        "    for c in range(6):",
        """    for i in range(7):
        T.evaluate(T.call_extern("int32", "memset", T.address_of(s[i, 0]), 0, 4))
    for c in range(6):""",
    )
    assert not inside(source)
