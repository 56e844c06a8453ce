"""Divisions by powers of two that are known at run time become shifts, where they are proved."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree

from metasched.ir.expr import FloorDiv, FloorMod
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((40,), "{kind}"), B: T.Buffer(({stages}, 40), "{kind}"),
         C: T.Buffer(({stages}, 40), "{kind}")):
    for s in range({stages}):
        for i in {loop}(40):
            {power}
            B[s, i] = A[i] // h
            C[s, i] = A[i] % h
"""


def divisions(text: str) -> int:
    stmts = walk_stmts(lower(parse(text), NATIVE).body)
    exprs = (x for s in stmts for e in s.exprs for x in walk_exprs(e))
    return sum(isinstance(x, (FloorDiv, FloorMod)) for x in exprs)


def program(kind: str, stages: int, loop: str, shift: str = "s", one: str = "1") -> str:
    power = f"h = T.shift_left(T.{kind}({one}), T.{kind}({shift}))"
    return PROGRAM.format(kind=kind, stages=stages, loop=loop, power=power)


def check(text: str, kind: str, stages: int) -> None:
    values = np.random.default_rng(0).integers(-(2**31), 2**31, 40)
    data = np.concatenate([values[:34], [0, 1, -1, 2, -2, 7]]).astype(kind)
    agree(text, data, *(np.zeros((stages, 40), kind) for _ in range(2)))


@pytest.mark.parametrize("loop", ["range", "T.vectorized"])
@pytest.mark.parametrize(
    "kind, stages", [("int32", 31), ("uint32", 32), ("int64", 63), ("int8", 7), ("uint16", 16)]
)
def test_quotients_and_remainders_by_proved_powers_are_shifts(kind, stages, loop):
    text = program(kind, stages, loop)
    assert divisions(text) == 0
    check(text, kind, stages)


def test_an_exponent_that_a_mask_limits_is_proved():
    text = program("int32", 8, "range", "T.bitwise_and(A[i], 3)")
    assert divisions(text) == 0
    check(text, "int32", 8)


@pytest.mark.parametrize(
    "stages, shift, one",
    [(32, "s", "1"), (8, "T.popcount(A[i]) // 8", "1"), (8, "s", "3")],
    ids=["negative-power", "unknown-exponent", "no-power"],
)
def test_other_divisions_stay(stages, shift, one):
    text = program("int32", stages, "range", shift, one)
    assert divisions(text) > 0
    check(text, "int32", stages)
