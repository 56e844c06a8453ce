"""Temporary buffers enter loops and shrink to the box that is touched there."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.expr import as_int
from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

ROWS = """
@T.prim_func
def main(X: T.Buffer((7, 64), "int32"), Y: T.Buffer((8, 64), "int32")):
    P = T.alloc_buffer((9, 64), "int32")
    for t, c in T.grid(2, 4):
        for a, l in T.grid(7, 16):
            with T.block("pad"):
                vh = T.axis.spatial(9, t * 4 + a)
                vc = T.axis.spatial(64, c * 16 + l)
                T.where(t * 4 + a < 9)
                P[vh, vc] = T.if_then_else(1 <= vh and vh < 8, X[vh - 1, vc], 0)
        for a, l in T.grid(4, 16):
            with T.block("sum"):
                vh = T.axis.spatial(8, t * 4 + a)
                vc = T.axis.spatial(64, c * 16 + l)
                Y[vh, vc] = P[{at}, vc] + P[{at} + 1, vc] * 3 + P[{at} + 2, vc] * 5
"""


@pytest.mark.parametrize(
    ("at", "elements"),
    [
        ("T.min(vh, 6)", 7 * 16),  # as `overcompute` writes the rows of its last tile
        ("T.min(6, vh)", 7 * 16),
        ("T.min(vh, 4)", 7 * 16),  # the second tile starts at the limit
        ("T.min(vh, 3)", 9 * 64),  # the second tile would read a row of the first
        ("T.min(T.max(vh, 3), 6)", 7 * 16),
        ("T.max(T.min(vh, 6), 4)", 9 * 64),  # the first tile would read a row behind its own
    ],
)
def test_a_limit_of_rows_keeps_the_box_of_a_tile(at, elements):
    func = parse(ROWS.format(at=at))
    sizes = [as_int(s.buffer.shape[0]) for s in walk_stmts(lower(func, NATIVE).body)
             if isinstance(s, Allocate)]  # fmt: skip
    assert sizes == [elements]
    agree(func, integers((7, 64), "int32"), np.zeros((8, 64), np.int32))
