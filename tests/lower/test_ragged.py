"""Loops over lengths that memory says: whole vectors without a test, then the rest."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched import Schedule
from metasched.ir.stmt import For, ForKind, IfThenElse, Stmt
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

ROWS = """
@T.prim_func
def main(b: T.Buffer((9,), "{ints}"), c: T.Buffer((400,), "int32"), A: T.Buffer((8, 12)),
         X: T.Buffer((40, 12)), B: T.Buffer((400,))):
    for i in range(8):
        for p in range(b[i], b[i + 1]):
{body}
"""
BODIES = {
    "one": ["B[p] = B[p] * T.float32(2) + A[i, 3]"],
    "chosen": ["if c[p] > 20:", "    B[p] = B[p] + X[c[p], 2]"],
    "dot": ["s = T.float32(0)", "for k in range(12):", "    s += A[i, k] * X[c[p], k]",
            "B[p] = s * B[p]"],
}  # fmt: skip


def schedule(kind: str, lanes: int, ints: str = "int32") -> Schedule:
    body = "\n".join("            " + line for line in BODIES[kind])
    sch = Schedule(parse(ROWS.format(body=body, ints=ints)), check=True)
    made = sch.enclose(sch.get_block("root"))
    _, inner = sch.split(sch.get_loops(made[0])[1], [None, lanes])
    if kind == "dot":
        sch.expand_buffer(made[0], 0, inner)
    sch.vectorize(inner)
    return sch


def arguments(starts: np.ndarray) -> list[np.ndarray]:
    c = np.random.default_rng(1).integers(0, 40, 400).astype("int32")
    return [starts, c, integers((8, 12)), integers((40, 12), seed=1), integers((400,), seed=2)]


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(list(BODIES)), lanes=st.sampled_from([2, 8, 12, 16, 32]),
    ints=st.sampled_from(["int32", "int64"]),
    starts=st.lists(st.integers(0, 400), min_size=9, max_size=9), ordered=st.booleans(),
)  # fmt: skip
def test_results_are_those_of_each_element_alone(kind, lanes, ints, starts, ordered):
    starts = np.array(sorted(starts) if ordered else starts, ints)  # unordered: negative lengths
    agree(schedule(kind, lanes, ints).mod["main"], *arguments(starts))


@pytest.mark.parametrize("kind", BODIES)
def test_whole_vectors_have_no_test(kind):
    func = lower(schedule(kind, 16).mod["main"], NATIVE)

    def vectors(stmt: Stmt) -> list[For]:
        found = [s for s in walk_stmts(stmt) if isinstance(s, For)]
        return [s for s in found if s.kind is ForKind.VECTORIZED]

    whole, rest = vectors(func.body)
    tests = [[s for s in walk_stmts(v) if isinstance(s, IfThenElse)] for v in (whole, rest)]
    own = kind == "chosen"  # the condition of the program
    assert len(tests[0]) == own and len(tests[1]) == 1
    assert rest.body is tests[1][0]


def test_a_length_that_the_loop_writes_is_read_for_each_element():
    source = """
@T.prim_func
def main(n: T.Buffer((40,), "int32"), B: T.Buffer((40,), "int32")):
    for i in range(8):
        for p_0 in range((n[i] + 15) // 16):
            for p_1 in T.vectorized(16):
                if p_0 * 16 + p_1 < n[i]:
                    n[p_0 * 16 + p_1 + 8] = n[p_0 * 16 + p_1 + 8] + 1
"""
    func = parse(source)
    shown = lower(func, NATIVE).script()
    assert "left" not in shown
    agree(func, np.arange(40, dtype="int32") % 25, np.zeros(40, "int32"))


def test_other_tests_stay():
    """p_0 * 16 + p_1 < n[i] + 1 lets one element more run than the loop's length."""
    source = """
@T.prim_func
def main(n: T.Buffer((8,), "int32"), B: T.Buffer((8, 64), "int32")):
    for i in range(8):
        for p_0 in range((n[i] + 15) // 16):
            for p_1 in T.vectorized(16):
                if p_0 * 16 + p_1 < n[i] + 1:
                    B[i, p_0 * 16 + p_1] = B[i, p_0 * 16 + p_1] + 1
"""
    func = parse(source)
    assert "left" not in lower(func, NATIVE).script()
    agree(func, np.array([0, 1, 15, 16, 17, 31, 32, 48], "int32"), np.zeros((8, 64), "int32"))
