"""Flags that a loop raises: one store after the loop, where all stores are the same."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((9, 100), "{kind}"), K: T.Buffer((100,), "int32"), B: T.Buffer((9,), "int32")):
    for i in range(9):
        for j in {loop}:
            if {condition}:
                {store}
"""
FLAG = {"kind": "int32", "loop": "range(100)", "condition": "A[i, j] > 9", "store": "B[i] = 5"}


def program(**parts: str) -> str:
    return PROGRAM.format(**{**FLAG, **parts})


def raised(text: str) -> int:
    """How many flags the lowered program has."""
    stmts = walk_stmts(lower(parse(text), NATIVE).body)
    return sum(isinstance(s, Allocate) and s.buffer.name.startswith("any") for s in stmts)


def check(text: str, kind: str, above: int) -> None:
    """The kernel and the interpreter agree; the condition holds in some rows once, in others not
    at all."""
    a = np.zeros((9, 100), integers((1,), kind).dtype)
    a[2, 3], a[4, 99], a[5, 0], a[8, 50:70] = 10, 11, 10, above
    agree(text, a, np.arange(100, dtype="int32") % 7, integers((9,), "int32"))


@pytest.mark.parametrize("kind", ["int32", "float32", "uint8", "int64", "float64"])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"condition": "A[i, j] > 9 and K[j] == 2"},
        {"condition": "A[i, j] > 9 or K[j] > i"},
        {"store": "B[8 - i] = i"},
        {"loop": "range(64)"},
        {"loop": "range(i * 11)"},
    ],
)
def test_a_flag_is_stored_once(kind, parts):
    text = program(kind=kind, **parts)
    assert raised(text) == 1
    check(text, kind, 12)


@pytest.mark.parametrize(
    "parts",
    [
        {"store": "B[i] = j"},  # the last store counts
        {"store": "B[j % 9] = 5"},
        {"store": "B[i] = B[i] + 1"},
        {"store": "B[i] = K[i]"},
        {"condition": "A[i, j] > 9 and B[i] < 3"},
        {"condition": "j > 2 and A[i, j - 3] > 9"},  # a load that may lie outside
        {"condition": "A[i, j] % 3 == 1"},
        {"condition": "i > 3"},
        {"condition": "A[i, j]" + " + A[i, j]" * 16 + " > 99"},  # much work
        {"loop": "range(63)"},
    ],
)
def test_other_stores_stay_where_they_are(parts):
    text = program(**parts)
    assert raised(text) == 0
    check(text, "int32", 12)


def test_a_loop_in_lanes_stays():
    text = program().replace("range(9)", "T.vectorized(9)")
    assert raised(text) == 0
    check(text, "int32", 12)


def test_both_branches_stay():
    text = program() + "            else:\n                B[i] = 4\n"
    assert raised(text) == 0
    check(text, "int32", 12)
