"""Loops over Python values: each value gets a copy of the body, with the meaning of Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from as_python import agree

from metasched.errors import ParseError
from metasched.ir.stmt import For
from metasched.ir.visit import walk_stmts
from metasched.runtime.build import build
from metasched.script import parse
from metasched.script import tir as T

HEAD = """
@T.prim_func
def f(A: T.Buffer((9,), "int32"), B: T.Buffer((9,), "int32"), n: T.int32):
"""
BODIES = {
    "enumerate": "for k, w in enumerate((1, 2, 1)):\n    B[k] += A[k + 1] * w",
    "start": "for k, w in enumerate([5, 6], start=2):\n    B[k] = w",
    "pairs": "for dy, dx in ((0, 1), (1, 0)):\n    B[dy] += A[3 * dx]",
    "zip": "for a, b in zip((1, 2), range(5, 7)):\n    B[a] = A[b]",
    "nested": "for i, (a, b) in enumerate(((1, 2), (3, 0))):\n    B[i] = A[a] - A[b]",
    "star": "for a, *b in ((1, 2, 3), (4, 5, 6)):\n    B[a] = A[b[0]] + b[1]",
    "reversed": "for k in reversed(range(4)):\n    B[k] = B[k + 1] + A[k]",
    "inside": "for i in range(6):\n    for k in (0, 2):\n        B[i] += A[i + k]",
    "outside": "for k in (0, 2):\n    for i in range(6):\n        B[i] += A[i + k]",
    "both": "for a in (-1, 0, 1):\n    for b in (0, 3):\n        B[1 + a] -= A[1 + a + b]",
    "variable": "s = 0\nfor w in (1, 2, 1):\n    s = s * 3 + w * A[w]\nB[0] = s",
    "after": "for w in (1, 2):\n    t = A[w]\n    B[w] = t * t\nB[0] = t",
    "taken": "for k in (1, 2):\n    if k == 2:\n        B[k] = 7\n    else:\n        B[k] = -A[k]",
    "continue": "for k in (0, 1, 2):\n    if k == 1:\n        continue\n"
                "    B[k] = A[4 // (1 - k) + 4]",
    "break": "for k in (0, 1, 2):\n    t = A[k]\n    if k == 1:\n        break\n    B[k] = t",
    "two": "for k in (0, 1):\n    for j in (0, 1, 2):\n        if j > k:\n            break\n"
           "        B[3 * k + j] = A[j]",
    "return": "for k in (0, 1, 2):\n    if k == 1:\n        return\n    B[k] = A[k]",
    "may return": "for k in (0, 1, 2):\n    if A[k] > n:\n        return\n    B[k] = A[k]",
    "inner break": "for k in (1, 2):\n    for i in range(9):\n        if A[i] > n:\n"
                   "            break\n        B[i] += k",
    "one": "for k in (4,):\n    if k == 4:\n        continue\n    B[k // 0] = 1",
    "none": "for k in ():\n    B[k] = 1",
    "read before": "for x in (A[0], A[1]):\n    A[1] = 5\n    B[0] += x",
    "changed": "m = n\nfor x in (m, m + 1):\n    m = m * 2\n    B[0] = B[0] * 10 + x + m",
    "buffers": "for M, N in ((A, B), (B, A)):\n    M[0] += N[1]",
    "dictionary": "for k in {3: 1, 4: 2}:\n    B[k] = 1",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_copy_for_each_value(name):
    lines = "\n".join("    " + line for line in BODIES[name].splitlines())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, 9, dtype=np.int32) for _ in range(2))
    agree(HEAD + lines, a, b, 3)


def test_values_of_the_users_code():
    weights = np.array([0.25, 0.5, 0.25], "float32")
    taps = {(-1, 0): 1.0, (1, 0): 2.0}

    @T.prim_func
    def f(A: T.Buffer((6, 6), "float32"), B: T.Buffer((6, 6), "float32")):
        for i, j in T.grid(4, 4):
            s = T.float32(0)
            for (dy, dx), w in taps.items():
                s += A[i + 1 + dy, j + 1 + dx] * w
            for k, w in enumerate(weights):
                s += A[i, j + k] * w
            for y, x in itertools.product(range(3), (0, 2)):
                s += A[i + y, j + x]
            for x in (v * 2 for v in range(2)):
                s = s + T.float32(x)
            B[i + 1, j + 1] = s

    a, b = np.arange(36, dtype="float32").reshape(6, 6), np.zeros((6, 6), "float32")
    build(f)(a, b)
    want = a[0:4, 1:5] + 2 * a[2:6, 1:5] + (a[0:4, 0:4] + 2 * a[0:4, 1:5] + a[0:4, 2:6]) / 4 + 2
    want += sum(a[y : y + 4, x : x + 4] for y in range(3) for x in (0, 2))
    np.testing.assert_allclose(b[1:5, 1:5], want)


def test_blocks_of_the_copies_have_names_of_their_own():
    func = parse(
        HEAD + '    for k in (0, 4):\n        for i in range(4):\n            with T.block("b"):\n'
        "                vi = T.axis.spatial(4, i)\n                B[vi + k] = A[vi]"
    )
    assert [s.body.block.name for s in walk_stmts(func.body) if isinstance(s, For)] == ["b", "b_1"]


def test_endless_values_are_refused():
    with pytest.raises(ParseError, match="makes more than 256 copies of its body"):

        @T.prim_func
        def f(B: T.Buffer((9,), "int32")):
            for k in itertools.count():
                B[k] = 1
