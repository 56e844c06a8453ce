"""Lanes that walk along rows run around the loop over the rows, where each keeps its elements."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.stmt import For, ForKind, SeqStmt
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

SUM = """
@T.prim_func
def main(A: T.Buffer((40, 24), "float32"), p: T.Buffer((40,), "int32"),
         x: T.Buffer((24,), "float32"), B: T.Buffer((40, 40), "float32")):
    for i in range(3):
        for k in range(21):
            for j in T.vectorized(20):
                {statement}
"""
OWN = [
    "B[i, j] = B[i, j] + A[j, k] * x[k]",
    "B[i, j] = B[i, j] * x[k] + A[p[j], k + 3]",
    "B[j, 2] = B[j, 2] + A[p[j], k]",
    "B[i, 2 * j + 1] = T.max(B[i, 2 * j + 1], A[j + 20, k])",
]
SHARED = [
    "B[i, j] = B[i, j + 1] + A[j, k]",  # another lane's element
    "B[k, j] = B[i, j] + A[j, k]",  # another element in each step
    "B[k, j] = A[j, k] + x[k]",
    "B[p[j], k] = A[p[j], k]",
    "A[j, k] = A[j, k + 1] + x[k]",
]
NEAR = [
    "B[i, j] = B[i, j] + A[k, j]",
    "B[i, j] = B[i, j] + A[j, 24 - 1 - k]",
    "B[i, j] = B[i, j] + T.if_then_else(x[k] > T.float32(0), A[j, k], T.float32(1))",
]


def lanes_outside(source: str) -> bool:
    loops = [s for s in walk_stmts(lower(parse(source), NATIVE).body) if isinstance(s, For)]
    return any(s.kind is ForKind.VECTORIZED and isinstance(s.body, For) for s in loops)


def arguments() -> list[np.ndarray]:
    p = np.random.default_rng(0).permutation(40).astype("int32")
    return [integers((40, 24)), p, integers((24,), seed=1), integers((40, 40), seed=2)]


@pytest.mark.parametrize("statement", OWN)
def test_lanes_with_elements_of_their_own_go_outside(statement):
    source = SUM.format(statement=statement)
    assert lanes_outside(source)
    agree(source, *arguments(), exact=False)


@pytest.mark.parametrize("statement", SHARED + NEAR)
def test_other_nests_stay(statement):
    source = SUM.format(statement=statement)
    assert not lanes_outside(source)
    agree(source, *arguments(), exact=False)


def test_a_loop_with_other_statements_stays():
    source = SUM.format(statement=OWN[0]).replace(
        "            for j in T.v",
        "            x[k] = x[k] + T.float32(1)\n            for j in T.v",
    )
    assert not lanes_outside(source)
    assert any(isinstance(s, SeqStmt) for s in walk_stmts(lower(parse(source), NATIVE).body))
    agree(source, *arguments(), exact=False)
