"""Short serial loops run several iterations between two tests of their end."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, build, call, integers

from metasched.ir.interp import run
from metasched.ir.stmt import BufferStore, For
from metasched.ir.visit import walk_stmts
from metasched.lower.passes.short_loops import COPIES, MOST
from metasched.lower.pipeline import lower
from metasched.runtime.build import build as kernel_of
from metasched.script import parse

TABLE = """
@T.prim_func
def main(A: T.Buffer(({n},), "uint8"), T_: T.Buffer((256,), "int32"), B: T.Buffer(({n},), "int32")):
    for i in range({n}):
        if A[i] != 7:
            k = T.int32(A[i])
            B[i] = T_[k] + k
"""
SIZES = """
@T.prim_func
def main(a: T.handle, T_: T.Buffer((256,), "int32"), b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "uint8")
    B = T.match_buffer(b, (n,), "int32")
    for i in range(n):
        if A[i] != 7:
            k = T.int32(A[i])
            B[i] = T_[k] + k
"""


def expected(a: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.where(a != 7, table[a] + a, -1).astype(np.int32)


def stores(text: str) -> int:
    """The most stores in one innermost loop of the lowered program."""
    loops = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, For)]
    inner = [list(walk_stmts(s.body)) for s in loops]
    return max(
        sum(isinstance(s, BufferStore) for s in body)
        for body in inner
        if not any(isinstance(s, For) for s in body)
    )


@pytest.mark.parametrize("n", [16, 17, 19, 64])
def test_every_iteration_of_a_constant_loop_runs_once(n):
    text = TABLE.format(n=n)
    assert stores(text) == COPIES
    a, table, b = integers((n,), "uint8"), integers((256,), "int32", 1), np.full(n, -1, np.int32)
    assert call(build(text), a, table, b) == 0
    assert b.tolist() == expected(a, table).tolist()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 18])
def test_every_iteration_of_a_loop_to_a_run_time_extent_runs_once(n):
    assert stores(SIZES) == COPIES
    a, table, b = integers((n,), "uint8"), integers((256,), "int32", 1), np.full(n, -1, np.int32)
    kernel_of(parse(SIZES))(a, table, b)
    assert b.tolist() == expected(a, table).tolist()


TRIANGLE = """
@T.prim_func
def main(A: T.Buffer((9,), "int32"), B: T.Buffer((9, 9), "int32")):
    for i in range(9):
        for j in range({extent}):
            B[{at}] = A[j] + 1
"""


@pytest.mark.parametrize(("at", "copies"), [("i, j", 1), ("j, i", COPIES)], ids=["row", "column"])
@pytest.mark.parametrize("extent", ["4 - i", "A[i]", "7 - 2 * i"])
def test_a_loop_whose_extent_is_negative_does_not_run(extent, at, copies):
    """Code generation runs a row in vectors; a column has copies."""
    text = TRIANGLE.format(extent=extent, at=at)
    assert stores(text) == copies
    a, b = np.array([-9, -5, -1, 0, 4, 7, 9, -3, -2], np.int32), np.full((9, 9), -1, np.int32)
    ends = [eval(extent, {"A": a, "i": i}) for i in range(9)]
    rows = np.where(np.arange(9) < np.array(ends)[:, None], a + 1, -1)
    assert call(build(text), a, b) == 0
    assert (b if copies == 1 else b.T).tolist() == rows.tolist()


@pytest.mark.parametrize(
    "old, new",
    [
        ("range(40)", "range(15)"),
        ("range(40)", "T.vectorized(40)"),
        ("B[i] =", "B[0] ="),
        ("T_[k] + k", "T_[k] + B[i]"),
        ("T_[k] + k", "T_[k]" + " + k" * MOST),
    ],
    ids=["few-iterations", "vector", "one-place", "reads-results", "much-work"],
)
def test_other_loops_stay(old, new):
    text = TABLE.format(n=40).replace(old, new)
    assert text != TABLE.format(n=40)
    assert stores(text) == 1


MINORS = """
@T.prim_func
def main(A: T.Buffer((50, 3, 3), "int32"), B: T.Buffer((50, 3, 3), "int32")):
    for n in range(50):
        for i, j in T.grid(3, {few}):
            B[n, i, j] = A[n, (j + 1) % 3, (i + 1) % 3] * A[n, j, i] - ({other})
"""


@pytest.mark.parametrize(("few", "other", "copies"), [
    (3, "A[n, (i + 2) % 3, j]", 9),
    (3, "A[n, i, i // 2]", 9),
    (2, "B[n, (i + 2) % 3, j]", 6),
    (3, "A[n, (i + 2) % 3, j]" + " - A[n, i, j]" * MOST, 9),
])  # fmt: skip
def test_few_iterations_with_quotients_or_remainders_are_copied(few, other, copies):
    """The copies know them: cross products, minors of 3 x 3 matrices."""
    text = MINORS.format(few=few, other=other)
    assert stores(text) == copies
    a, b = integers((50, 3, 3), "int32"), integers((50, 3, 3), "int32", 1)
    want = b.copy()
    for n, i, j in np.ndindex(50, 3, few):
        value = eval(other, {"A": a, "B": want, "n": n, "i": i, "j": j})
        want[n, i, j] = a[n, (j + 1) % 3, (i + 1) % 3] * a[n, j, i] - value
    assert call(build(text), a, b) == 0
    assert b.tolist() == want.tolist()


@pytest.mark.parametrize(("old", "new", "copies"), [
    ("range(50)", "range(50)", 9),
    ("T.grid(3, 3)", "T.grid(3, 9)", 1),
    ("T.grid(3, 3)", "T.grid(9, 3)", 3),
    ("T.grid(3, 3)", "T.grid(6, 3)", 3),
    ("range(50)", "T.serial(50, annotations={'pragma_auto_unroll_max_step': 0})", 1),
    ("range(50)", "range(1)", 3),
    ("(A[n, i, j])", "(A[n, i, j]" + " - A[n, i, j]" * 300 + ")", 1),
], ids=["few", "long-inside", "long-outside", "stores", "limited", "once", "work"])  # fmt: skip
def test_few_iterations_are_copied_where_a_loop_repeats_them(old, new, copies):
    text = MINORS.replace("(50, 3, 3)", "(50, 9, 9)").format(few=3, other="A[n, i, j]")
    text = text.replace("(j + 1) % 3, (i + 1) % 3", "j, i")
    assert old in text
    assert stores(text.replace(old, new)) == copies


TAPS = """
@T.prim_func
def main(P: T.Buffer((40,), "float32"), W: T.Buffer((40,), "float32"),
         S: T.Buffer((21,), "float32"), B: T.Buffer((40, 4), "int32")):
    for n in range(40):
        at = T.int32(T.floor(P[n]))
        for a in range(2):
            if at + a >= 0 and at + a < 21:
                S[at + a] += W[n] * T.if_then_else(a == 1, P[n] - T.floor(P[n]), T.float32(1))
        for k in range(4):
            B[n, k] = (at >> (6 - 2 * k)) & 3
"""


def test_copies_keep_the_order_of_updates():
    """Interpolation: each point adds to two neighbours; which, its place says."""
    assert stores(TAPS) == 6
    places, weights, sums = integers((40,), "int32"), integers((40,), "float32", 1), (21,)
    given = [np.float32((places % 96 - 8) / 4), weights, integers(sums, "float32", 2)]
    given += [np.zeros((40, 4), "int32")]
    found, wanted = ([a.copy() for a in given] for _ in range(2))
    assert call(build(TAPS), *found) == 0
    run(parse(TAPS), *wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
