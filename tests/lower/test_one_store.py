"""Updates of one element under conditions become one store, where lanes run the block."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.stmt import BufferStore, IfThenElse
from metasched.ir.visit import loads_of, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((8, 40), "{kind}"), M: T.Buffer((8, 40), "uint8"),
         B: T.Buffer((8, {columns}), "{kind}")):
    for i in range(8):
        for j in {loop}(40):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
{lines}
"""
BORDERS = """if M[vi, vj] > T.uint8(3):
    if vi > 0:
        B[vi, vj] = T.min(B[vi, vj], A[vi - 1, vj])
    if vi < 7:
        B[vi, vj] = T.min(B[vi, vj], A[vi + 1, vj])
    if vj > 0:
        B[vi, vj] = T.min(B[vi, vj], A[vi, vj - 1])
    if vj < 39:
        B[vi, vj] = T.min(B[vi, vj], A[vi, vj + 1])"""
LIMITS = """B[vi, vj] = A[vi, vj]
if B[vi, vj] > {kind}(2):
    B[vi, vj] = {kind}(2)
else:
    B[vi, vj] = B[vi, vj] + A[vi, 3]
    if B[vi, vj] < {kind}(1):
        B[vi, vj] = A[vi, 39 - vj]"""
TWICE = """if M[vi, vj] > T.uint8(6):
    B[vi, vj] = B[vi, vj] + A[vi, vj]
    B[vi, vj] = B[vi, vj] * A[7 - vi, vj]"""


def program(
    lines: str, kind: str = "float32", loop: str = "T.vectorized", columns: int = 40
) -> str:
    shown = "\n".join(" " * 16 + line for line in lines.format(kind=f"T.{kind}").split("\n"))
    return PROGRAM.format(lines=shown, kind=kind, loop=loop, columns=columns)


def stores(text: str) -> int:
    return sum(isinstance(s, BufferStore) for s in walk_stmts(lower(parse(text), NATIVE).body))


def arguments(kind: str, columns: int = 40) -> list[np.ndarray]:
    m = np.random.default_rng(5).integers(0, 10, (8, 40)).astype("uint8")
    return [integers((8, 40), kind), m, integers((8, columns), kind, seed=1)]


@pytest.mark.parametrize("lines", [BORDERS, LIMITS, TWICE])
@pytest.mark.parametrize("kind", ["float32", "int32", "int8", "float64"])
def test_one_store_in_lanes(lines, kind):
    text = program(lines, kind)
    assert stores(text) == 1
    agree(text, *arguments(kind))
    alone = program(lines, kind, "range")
    assert stores(alone) > 1
    agree(alone, *arguments(kind))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_branches_agree_with_the_interpreter(data):
    tests = ["M[vi, vj] > T.uint8(4)", "vj > 3", "vi == 2", "B[vi, vj] > T.int32(0)",
             "A[vi, vj] != B[vi, vj]", "vi > 0 and A[vi - 1, vj] > 1"]  # fmt: skip
    values = ["B[vi, vj] + A[vi, vj]", "A[vi, 39 - vj]", "T.max(B[vi, vj], A[0, vj])",
              "B[vi, vj] * 3 - T.Cast(\"int32\", M[vi, vj])"]  # fmt: skip

    def lines(depth: int) -> list[str]:
        found = []
        for _ in range(data.draw(st.integers(1, 3))):
            if depth < 2 and data.draw(st.booleans()):
                found.append(f"if {data.draw(st.sampled_from(tests))}:")
                found += ["    " + line for line in lines(depth + 1)]
                if data.draw(st.booleans()):
                    found += ["else:", *("    " + line for line in lines(depth + 1))]
            else:
                found.append(f"B[vi, vj] = {data.draw(st.sampled_from(values))}")
        return found

    agree(program("\n".join(lines(0)), "int32"), *arguments("int32"))


@pytest.mark.parametrize("lines", [
    BORDERS.replace("A[vi - 1, vj]", "B[vi - 1, vj]"),  # another element
    BORDERS.replace("B[vi, vj] = T.min", "B[vi, 39 - vj] = T.min", 1),
    "if M[vi, vj] > T.uint8(3):\n    B[vi, vj] = B[vi, vj] + A[vi, vj]",  # one store
    TWICE.split("\n", 1)[1].replace("    B", "B"),  # no condition
])  # fmt: skip
def test_other_blocks_keep_their_stores(lines):
    text = program(lines)
    assert "v_1: T.float32" not in lower(parse(text), NATIVE).script()


def test_an_element_that_may_lie_outside_is_read_under_its_conditions():
    """B has 39 columns: lane 39 has no element, and the conditions keep it away."""
    lines = "if vj < 39:\n    B[vi, vj] = B[vi, vj] + A[vi, vj]\n"
    text = program(f"{lines}    if vi > 2:\n        B[vi, vj] = T.float32(4)", columns=39)
    assert stores(text) > 1
    agree(text, *arguments("float32", 39))


SUMS = """
@T.prim_func
def main(A: T.Buffer((6, 50), "float32"), M: T.Buffer((50,), "int32"),
         B: T.Buffer((6, 50), "float32")):
    for i in {outer}(6):
        for k in {middle}(50):
            for j in T.vectorized(16):
                for t in T.unroll(1):
                    with T.block("B"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        vj = T.axis.spatial(50, {column})
                        {where}
                        if M[vj] > M[vk]:
                            B[{place}] = B[{place}] + A[vi, vk]
"""


def _sums(
    outer: str = "T.parallel", middle: str = "range", column: str = "j * 3 + t", where: str = "",
    place: str = "vi, vj",
) -> str:  # fmt: skip
    return SUMS.format(outer=outer, middle=middle, column=column, where=where, place=place)


def _conditional(text: str) -> bool:
    """Whether the store of the lanes stands under a condition that loads."""
    tests = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, IfThenElse)]
    return any(loads_of(test.condition) for test in tests)


@pytest.mark.parametrize(
    "options", [{}, {"outer": "range"}, {"column": "j", "where": "T.where(j < 13)"}]
)
def test_a_sum_under_a_condition_is_stored_without_it_where_a_loop_keeps_its_place(options):
    text = _sums(**options)
    assert not _conditional(text)
    m = np.random.default_rng(2).integers(0, 9, 50).astype("int32")
    agree(text, integers((6, 50)), m, integers((6, 50), seed=1))


@pytest.mark.parametrize(
    "options",
    [
        {"place": "vi, vk"},  # the serial loop moves the element
        {"outer": "range", "middle": "T.parallel"},  # threads share the element
        {"place": "0, vj"},  # threads share the row
        {"column": "j // 2"},  # lanes share the element
        {"place": "vi, vj // 2"},
    ],
)
def test_elements_that_move_or_are_shared_are_stored_under_their_condition(options):
    assert _conditional(_sums(**options))
