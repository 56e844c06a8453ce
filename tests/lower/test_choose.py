"""Branches around two stores to one place become choices, where both values may be computed."""

from __future__ import annotations

import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.expr import Select
from metasched.ir.stmt import IfThenElse
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.passes.short_loops import COPIES
from metasched.lower.pipeline import lower
from metasched.script import parse

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((9, 9), "{kind}"), B: T.Buffer((8, 8), "{kind}"), K: T.Buffer((8,), "int32")):
    for i in range(8):
        for j in range({columns}):
            {lines}
"""
COLUMNS = 8  # each has a copy of its own
TABLE = """if B[i, j] > 0:
                A[i + 1, j + 1] = A[i, j] + 1
            else:
                A[i + 1, j + 1] = T.max(A[i, j + 1], A[i + 1, j])"""
THREE = """if B[i, j] > 0:
                A[i, j] = A[i, j] + 1
            elif B[i, j] == 0:
                A[i, j] = B[j, i]
            else:
                A[i, j] = 0"""


def branch(then: str, orelse: str, condition: str = "B[i, j] > 0") -> str:
    return f"if {condition}:\n                {then}\n            else:\n                {orelse}"


def program(lines: str, kind: str = "int32", columns: str = "8") -> str:
    return PROGRAM.format(lines=lines, kind=kind, columns=columns)


def found(text: str) -> tuple[int, int]:
    """The numbers of branches and of choices in the lowered program."""
    stmts = list(walk_stmts(lower(parse(text), NATIVE).body))
    exprs = [part for s in stmts for e in s.exprs for part in walk_exprs(e)]
    branches = sum(isinstance(s, IfThenElse) for s in stmts)
    return branches, sum(isinstance(e, Select) for e in exprs)


@pytest.mark.parametrize(
    ("lines", "choices"),
    [
        (TABLE, 1),
        (THREE, 2),
        (branch("A[i, j] = 1", "A[i, j] = 2"), 1),
        (branch("A[i, j] = A[0, i + 1]", "A[i, j] = A[i, 8 - j]", "K[i] < j"), 1),
    ],
)
@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_two_stores_to_one_place_become_a_choice(lines, choices, kind):
    text = program(lines, kind)
    assert found(text) == (0, COLUMNS * choices)
    agree(text, integers((9, 9), kind), integers((8, 8), kind, 1), integers((8,), "int32", 2))


PAIR = """if {condition}:
                A[i, j] = {value}
                A[i, 8] = B[j, i]
            else:
                A[i, j] = 3
                A[i, {place}] = 4"""


@pytest.mark.parametrize(
    ("condition", "value", "place", "choices"),
    [
        ("B[i, j] > 0", "B[i, j] + 1", "8", 2),
        ("B[i, j] > 0", "B[i, j] + 1", "7", 0),  # other places
        ("B[i, j] > 0", "A[i, 0]", "8", 0),  # the second choice would read after the first store
        ("A[i, j] > 0", "B[i, j]", "8", 0),
    ],
)
def test_several_stores_become_choices_where_no_store_changes_what_is_read(
    condition, value, place, choices
):
    text = program(PAIR.format(condition=condition, value=value, place=place))
    assert found(text) == (int(choices == 0), COLUMNS * choices)
    agree(text, integers((9, 9), "int32"), integers((8, 8), "int32", 1), integers((8,), "int32", 2))


@pytest.mark.parametrize(
    "lines",
    [
        branch("A[i, j] = B[i - 1, j]", "A[i, j] = 0", "i > 0"),  # a load may fail
        branch("A[i, j] = B[i, j + 1]", "A[i, j] = 0", "j < 7"),
        branch("A[i, j] = A[K[i] + 4, j]", "A[i, j] = 0", "K[i] > -4"),
        branch("A[i, j] = 7 // K[i]", "A[i, j] = 0", "K[i] > 0"),  # so may a division
        branch("A[i, j] = 7 % K[i]", "A[i, j] = 0", "K[i] > 0"),
        branch("A[i, j] = 1", "A[j, i] = 2"),  # two places
        branch("A[i, j] = 1", "B[i, j] = 2"),
        branch("A[i, j] = B[i, j]" + " * B[i, j]" * 16, "A[i, j] = 2"),  # much work
    ],
)
def test_other_branches_are_no_choice(lines):
    text = program(lines)
    assert found(text)[1] == 0
    agree(text, integers((9, 9), "int32"), integers((8, 8), "int32", 1), integers((8,), "int32", 2))


def test_a_branch_that_calls_a_function_stays():
    text = program(branch("A[i, j] = T.exp(B[i, j])", "A[i, j] = T.float32(0)"), "float32")
    assert found(text) == (COLUMNS, 0)


def test_places_of_a_loop_whose_end_depends_on_another_loop_are_known():
    text = program(branch("A[i, j] = B[7 - j, j]", "A[i, j] = 0"), columns="i + 1")
    assert found(text) == (0, COPIES + 1)
    agree(text, integers((9, 9), "int32"), integers((8, 8), "int32", 1), integers((8,), "int32", 2))


LEAST = """
@T.prim_func
def main(A: T.Buffer((8, 8), "{kind}"), M: T.Buffer((8, 8), "int32"), B: T.Buffer((8,), "{kind}")):
    for i in {loop}(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            m = T.alloc_buffer((2,), "{kind}", scope="local")
            m[0] = A[vi, 0]
            for j in {inner}(7):
                if M[vi, j] > 0:
                    m[{place}] = {value}
            B[vi] = m[0]
"""


@pytest.mark.parametrize(
    ("kind", "value", "choices"),
    [
        ("int32", "T.min(m[0], A[vi, j + 1])", 1),
        ("float32", "T.max(m[0], A[vi, j + 1])", 1),
        ("int32", "m[0] + A[vi, j + 1]", 1),
        ("float32", "m[0] + A[vi, j + 1]", 0),  # a sum takes longer than a branch that is skipped
        ("int32", "A[vi, j + 1]", 0),  # LLVM chooses by itself where the value is known
        ("int32", "T.min(m[0], A[vi + M[vi, j] - 1, j])", 0),  # the load may fail
    ],
)
@pytest.mark.parametrize("loop", ["range", "T.parallel"])
def test_an_update_under_a_condition_of_memory_that_no_thread_shares_becomes_a_choice(
    kind, value, choices, loop
):
    text = LEAST.format(kind=kind, value=value, loop=loop, inner="T.unroll", place=0)
    assert found(text) == (1 - choices, choices)
    mask = integers((8, 8), "int32", 1) > 0
    agree(text, integers((8, 8), kind), mask.astype("int32"), integers((8,), kind))


@pytest.mark.parametrize(("inner", "place"), [("T.parallel", "0"), ("range", "M[vi, j] - 1")])
def test_an_update_that_other_threads_may_see_or_that_may_lie_outside_stays_a_branch(inner, place):
    text = LEAST.format(kind="int32", value=f"T.min(m[{place}], A[vi, j])", loop="range",
                        inner=inner, place=place)  # fmt: skip
    assert found(text)[1] == 0
