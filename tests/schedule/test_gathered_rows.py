"""Rows that an index from memory chooses, computed or copied where a reader has a condition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracle import check_transform

from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script

GATHER = """
@T.prim_func
def f(A: T.Buffer((9, 4), "int32"), X: T.Buffer((6,), "int32"), B: T.Buffer((6, 4), "int32")):
    I = T.alloc_buffer((6,), "int32")
    P = T.alloc_buffer((9, 4), "int32")
    for i in range(6):
        with T.block("I"):
            vi = T.axis.spatial(6, i)
            I[vi] = T.min(T.max(X[vi], 0), 8)
    for i, j in T.grid(9, 4):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = A[vi, vj] * 2
    for i, j in T.grid(6, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = P[I[vi], vj]
"""


def row(sch: Schedule) -> object:
    return sch.split(sch.get_loops("B")[0], [None, 4])[1]


def shifted(sch: Schedule) -> object:
    return sch.delay(sch.get_loops("B")[0], 1, 1)


def fused(sch: Schedule) -> object:
    return sch.split(sch.fuse(*sch.get_loops("B")), [None, 5])[1]


@pytest.mark.parametrize("loop", [row, shifted, fused])
def test_rows_of_a_gather_are_computed_where_there_is_an_index(
    loop: Callable[[Schedule], object],
) -> None:
    """I[i_0 * 4 + i_1] has no element 6: what computes the row needs the reader's condition."""
    func = parse(GATHER)
    sch = Schedule(func, check=True)
    sch.compute_at("P", loop(sch))
    check_transform(func, sch)
    build(sch, check_bounds=True)(*(np.zeros(s, "int32") for s in ((9, 4), 6, (6, 4))))
    sch = Schedule(func, check=True)
    sch.read_at(loop(sch), "B", "P", "local")
    check_transform(func, sch)


def test_all_rows_are_computed_where_conditions_differ() -> None:
    again = GATHER[GATHER.index("    for i, j in T.grid(6") :].replace('"B"', '"C"')
    again = again.replace("B[vi, vj] = P[I[vi], vj]", "A[vi, vj] = P[I[vi], 3 - vj]")
    func = parse(GATHER.replace("P[vi, vj] = A[vi, vj] * 2", "P[vi, vj] = vi * 4 + vj") + again)
    sch = Schedule(func, check=True)
    both = sch.delay(sch.get_loops("B")[0], 1, 1), sch.delay(sch.get_loops("C")[0], 2, 0)
    sch.compute_at("P", sch.merge(*both))
    assert "for ax0, ax1 in T.grid(9, 4):" in script(sch.mod)
    check_transform(func, sch)
