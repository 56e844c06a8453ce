"""Lanes that run loops of their own: masks, jumps, and what stays one lane at a time."""

from __future__ import annotations

import numpy as np
import pytest
from lower.random_lane_loops import random_pair
from oracle import check_numbers

import metasched as ms
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.lower.passes.lane_loops import MOST_LANES, holds_lane_loop
from metasched.script import parse
from metasched.target import Target

LANES = Target.native().vector_bits // 32


@pytest.mark.parametrize("seed", range(24))
def test_random_loops_of_lanes_compute_the_same(seed):
    serial, lanes = random_pair(seed)
    check_numbers(serial, lanes, compiled=True)


ESCAPE = """
@T.prim_func
def main(C: T.Buffer((40, {columns}), "int32"), n: T.int32):
    for i, j in T.grid(40, {columns}):
        re = T.Cast("float32", j) / 20.0 - 1.5
        im = T.Cast("float32", i) / 20.0 - 1.0
        x = T.float32(0)
        y = T.float32(0)
        k = 0
        while k < n and x * x + y * y < 4.0:
            t = x * x - y * y + re
            y = 2.0 * x * y + im
            x = t
            k += 1
        C[i, j] = k
"""


def vectors(script: str) -> int:
    return script.count("T.vectorized")


@pytest.mark.parametrize("columns", [64, 50])
def test_a_while_runs_in_lanes_and_rounds_as_written(columns):
    """The default schedule takes two registers; the last lanes of a row may be masked."""
    func = parse(ESCAPE.format(columns=columns))
    sch = ms.autoschedule(func)
    assert f"T.vectorized({2 * LANES})" in sch.script()
    lowered = ms.lower(sch).script()
    assert "T.any_lane(" in lowered and "if not T.any_lane" in lowered
    found, expected = np.zeros((2, 40, columns), "int32")
    ms.build(func)(expected, 50)
    ms.build(sch)(found, 50)
    assert np.array_equal(found, expected) and len(np.unique(found)) > 10


SEARCH = """
@T.prim_func
def main(A: T.Buffer((30, 9), "int32"), B: T.Buffer((30,), "int32")):
    for i in {loop}(30):
        B[i] = -1
        for j in range(9):
            if A[i, j] > 2:
                B[i] = j
                break
"""


def test_a_break_switches_its_lane_off():
    func, lanes = (parse(SEARCH.format(loop=loop)) for loop in ("range", "T.vectorized"))
    check_numbers(func, ms.Schedule(lanes).mod, compiled=True)
    assert "T.any_lane" in ms.lower(lanes).script()


def test_a_lane_that_is_off_reads_nothing():
    """Lanes with x = 3 never load A[1000000 * x]."""
    text = """
@T.prim_func
def main(X: T.Buffer((8,), "int32"), A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in T.vectorized(8):
        x = X[i]
        n = 0
        while x < 3:
            n = n + A[x + n * 0]
            if x == 1:
                x = 3
            else:
                x = x + 1
        B[i] = n + 0 * x
"""
    kernel = ms.build(parse(text.replace("A[x + n * 0]", "A[x * 100000000 % 8 + x]")))
    x, a, b = np.array([3, 0, 1, 2, 3, 3, 0, 1], "int32"), np.arange(8, dtype="int32"), None
    b = np.zeros(8, "int32")
    kernel(x, a, b)
    assert b.tolist() == [0, 1, 1, 2, 0, 0, 1, 1]


def test_a_lane_loop_ends_though_other_memory_is_far_away():
    text = """
@T.prim_func
def main(X: T.Buffer((16,), "int32"), A: T.Buffer((4,), "int32"), B: T.Buffer((16,), "int32")):
    for i in T.vectorized(16):
        p = X[i]
        n = 0
        while p < 4:
            p = A[p]
            n += 1
        B[i] = n
"""
    kernel = ms.build(parse(text))
    a = np.array([1, 2, 3, 1 << 30], "int32")
    b = np.zeros(16, "int32")
    kernel(np.arange(16, dtype="int32") % 5, a, b)
    assert b.tolist() == [4, 3, 2, 1, 0] * 3 + [4]


def test_loops_that_are_left_alone():
    def only(text: str) -> For:
        func = parse(text)
        return next(
            s for s in walk_stmts(func.body) if isinstance(s, For) and s.kind is ForKind.VECTORIZED
        )

    head = "@T.prim_func\ndef main(A: T.Buffer((999,), 'int32'), n: T.int32):\n"
    loop = "    for i in T.vectorized({n}):\n        while A[i] < 3:\n            A[i] = {value}\n"
    plain = "    for i in T.vectorized(8):\n        A[i] = A[i] + 1\n"
    assert holds_lane_loop(only(head + loop.format(n=8, value="A[i] + 1")))
    foreign = "T.call_extern('int32', 'abs', A[i])"
    pure = "T.call_pure_extern('int32', 'abs', A[i])"
    pointer = "A[i] + T.Cast('int32', T.address_of(A[i]) == T.address_of(A[0]))"
    for text in (
        plain,
        loop.format(n=MOST_LANES + 1, value="A[i] + 1"),
        loop.format(n="n", value="A[i] + 1"),
        loop.format(n=8, value=foreign),
        loop.format(n=8, value=pure),
        loop.format(n=8, value=pointer),
    ):
        assert not holds_lane_loop(only(head + text)), text


def test_a_lane_that_is_off_stores_nothing_in_memory_of_its_own():
    """Lanes with x >= 4 have no place in their memory."""
    text = """
@T.prim_func
def main(X: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in T.vectorized(8):
        s = T.allocate((4,), "int32")
        s[1] = 0
        x = X[i]
        while x > 0:
            if x < 4:
                s[x] = x
            x = x - T.if_then_else(x < 10, 3, 3000000)
        B[i] = s[1]
"""
    kernel = ms.build(parse(text))
    b = np.zeros(8, "int32")
    kernel(np.array([1, 2, 7, 2000000000, 0, 1500000001, 5, 4], "int32"), b)
    assert b.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]


TRIANGLE = """
@T.prim_func
def main(A: T.Buffer((8, 160), "float32"), B: T.Buffer((8, 40), "float32")):
    for c in range(8):
        for i in {loop}(40):
            B[c, i] = 0.5
            for k in range({begin}, {begin} + {length}):
                {body}
"""
SUM = "B[c, i] = B[c, i] + A[c, k] * A[c, k + i]"
NESTED = f"if k % 3 != 1:\n                    for j in range(i + k, 2 * i + 7):\n{' ' * 24}" + (
    "B[c, i] = B[c, i] * 0.5 + A[c, j]"
)


@pytest.mark.parametrize("body", [SUM, NESTED], ids=["sum", "nested"])
@pytest.mark.parametrize("begin", ["0", "2"])
@pytest.mark.parametrize(
    ("length", "shared"),
    [("i", True), ("i + 9", True), ("40 - i", True), ("21 - i", True), ("2 * i - 7", True),
     ("(i // 3)", False), ("i * i // 40", False), ("T.min(i, 9)", False)],
)  # fmt: skip
def test_lanes_of_a_triangle_count_together(length, shared, begin, body):
    """The lanes of an even triangle have no counters; some lanes may have no steps at all."""
    text = TRIANGLE.replace("{body}", body).replace("{begin}", begin).replace("{length}", length)
    serial, lanes = (parse(text.replace("{loop}", f"T.{k}")) for k in ("serial", "vectorized"))
    lowered = ms.lower(lanes).script()
    assert ("any_lane" not in lowered) == (shared and body is SUM)
    check_numbers(serial, ms.IRModule.of(lanes), compiled=True)
