"""Variables that name an index give way to it, so that lanes are seen to lie side by side."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build

from metasched.ir.stmt import LetStmt
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse
from metasched.target import Target

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((4, 80), "float32"), I: T.Buffer((4,), "int32"),
         B: T.Buffer((4, 80), "float32")):
    for i in range(4):
        for k in T.vectorized(32):
            {lines}
            B[i, j] = A[i, j + 1] * A[i, 2 * k]
"""
WIDE = Target.of({"kind": "cpu", "mcpu": "x86-64-v4", "num_cores": 1})
NAMED = {
    "one": "j = k * 2 + i % 2",
    "two": "\n            ".join(["n = i % 2", "j = k * 2 + n"]),
    "quotient": "j = (k + i) // 2",
    "wrapped": "j = T.if_then_else(k == 0, 31, k - 1)",
    "wrapped name": "n = k + 1\n            j = T.Select(n > 31, n - 32, n)",
    "clamped": "j = T.min(T.max(k + i - 2, 0), 40)",
}


def names(text: str) -> int:
    return sum(isinstance(s, LetStmt) for s in walk_stmts(lower(parse(text), NATIVE).body))


@pytest.mark.parametrize("name", NAMED)
def test_names_of_indices_go(name: str) -> None:
    text = PROGRAM.format(lines=NAMED[name])
    assert names(text) == 0
    values = np.arange(320, dtype="float32").reshape(4, 80)
    if name not in ("quotient", "clamped"):  # whose lanes store to one element
        agree(text, values, np.zeros(4, "int32"), np.zeros((4, 80), "float32"))


def test_lanes_at_a_named_index_need_no_gather() -> None:
    assert "gather" not in build(PROGRAM.format(lines=NAMED["two"]), target=WIDE).asm()


@pytest.mark.parametrize(
    "line",
    [
        "j = k * 2 + I[i]",
        "j = T.min(k, I[i])",
        "j = T.if_then_else(I[i] > 0, k, k + 1)",
        "j = " + " + ".join(["k // 16"] * 12) + " + i",
    ],
)
def test_other_values_keep_their_names(line: str) -> None:
    assert names(PROGRAM.format(lines=line)) == 1
