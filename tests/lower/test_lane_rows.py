"""Unrolled loops in lanes that lie in rows are copied; other loops stay."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.stmt import BufferStore, For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

ROWS = """
@T.prim_func
def main(n: T.int32, A: T.Buffer(({stride} * 24,)), B: T.Buffer(({stride} * 24,))):
    for v in T.vectorized(24):
        for i in {loop}({extent}):
            for j in T.unroll(i + 1):
                B[v * {stride} + j] = A[v * {stride} + (j + i) % 4] * B[v * {stride} + i]
"""


def inside(text: str) -> list[For]:
    """The loops inside of the loop over lanes; loops over lanes that copy rows hold none."""
    loops = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, For)]
    lanes = [s.body for s in loops if s.kind is ForKind.VECTORIZED]
    return [s for body in lanes for s in walk_stmts(body) if isinstance(s, For)]


def same(text: str, stride: int) -> None:
    a = integers((stride * 24,)) / 4
    agree(text, 3, a, np.ones_like(a))


@pytest.mark.parametrize("stride", [6, 9])
def test_loops_whose_lengths_depend_on_loops_are_copied(stride):
    text = ROWS.format(stride=stride, loop="T.unroll", extent=4)
    assert inside(text) == []
    same(text, stride)


def test_a_loop_of_unknown_length_stays():
    """A bound is no length: copies of all four iterations would be wrong."""
    text = ROWS.format(stride=6, loop="T.unroll", extent="T.min(n, 4)")
    assert len(inside(text)) == 2
    same(text, 6)


def test_a_serial_loop_stays_a_loop():
    text = ROWS.format(stride=6, loop="range", extent=4)
    assert len(inside(text)) == 2
    same(text, 6)


def test_lanes_near_each_other_keep_their_loops():
    text = ROWS.format(stride=4, loop="T.unroll", extent=4)
    assert len(inside(text)) == 2
    same(text, 4)


FILLED = """
@T.prim_func
def main(n: T.int32, A: T.Buffer((3 * 24,)), B: T.Buffer((3 * 24,))):
    for v in T.vectorized(24):
        for p in {loop}({extent}):
            B[v * 3 + p] = A[v + p * 24] + T.Cast("float32", p + n)
"""


def test_copies_that_fill_short_rows_are_stored_together():
    """Three vectors of lanes, one store of 48 or 72 elements beside each other."""
    text = FILLED.format(loop="T.unroll", extent=3)
    assert inside(text) == []
    same(text, 3)


@pytest.mark.parametrize(("loop", "extent"), [("T.unroll", 2), ("range", 3)])
def test_loops_that_fill_no_rows_stay(loop, extent):
    text = FILLED.format(loop=loop, extent=extent)
    assert len(inside(text)) == 1
    same(text, 3)


def test_many_stores_keep_their_loops():
    text = ROWS.format(stride=30, loop="T.unroll", extent=4).replace("T.unroll(4)", "T.unroll(24)")
    assert len(inside(text)) == 2
    stores = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, BufferStore)]
    assert len(stores) == 1
