"""wavefront: stencils in place with time steps interleaved, and tiles of them on threads."""

from __future__ import annotations

import pytest
from oracle import check_numbers

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.modules.wavefront import Wavefront


@T.prim_func
def sweeps(A: T.Buffer((18, 18), "int32")):
    for t in range(9):
        for i, j in T.grid((1, 17), (1, 17)):
            with T.block("A"):
                A[i, j] = A[i - 1, j + 1] + A[i, j - 1] * 3 + A[i, j] + A[i + 1, j]


@T.prim_func
def rows(A: T.Buffer((50, 50), "int32")):
    for i, j in T.grid((1, 50), (1, 50)):
        with T.block("A"):
            vi = T.axis.opaque((1, 50), i)
            vj = T.axis.opaque((1, 50), j)
            A[vi, vj] = A[vi - 1, vj] * 3 + A[vi, vj - 1]


@T.prim_func
def independent(A: T.Buffer((18, 18), "int32")):
    for t in range(9):
        for i, j in T.grid(18, 18):
            with T.block("A"):
                A[i, j] = A[i, j] * 2 + 1


@T.prim_func
def scan(A: T.Buffer((64, 64), "int32")):
    for i, j in T.grid(64, (1, 64)):
        with T.block("A"):
            A[i, j] = A[i, j] + A[i, j - 1]


@T.prim_func
def scattered(A: T.Buffer((50,), "int32"), P: T.Buffer((900, 3), "int32")):
    for e, i, j in T.grid(900, 3, 3):
        with T.block("A"):
            A[P[e, i]] = A[P[e, i]] + P[e, j]


def offered(func: PrimFunc, cores: int = 2) -> list[Schedule]:
    sch = Schedule(func, seed=3)
    return Wavefront(cores)(sch, sch.get_block("A"))


def test_rows_too_short_for_two_at_a_time_are_left_alone() -> None:
    """A factor of 2 or 3 makes every order legal, but runs one row after the other."""
    (only,) = offered(scattered)
    assert "T.unroll" not in only.script()


@pytest.mark.parametrize("func", [sweeps, rows])
def test_interleaved_and_tiled(func: PrimFunc) -> None:
    found = offered(func)
    assert [len(sch.trace.entries) > 3 for sch in found] == [True, True, False]
    interleaved, tiled, _ = (sch.script() for sch in found)
    assert "T.unroll" in interleaved and "T.parallel" not in interleaved
    assert "T.unroll" in tiled and "T.parallel" in tiled
    for sch in found:
        check_numbers(func, sch.mod, compiled=True)


@T.prim_func
def spreading(A: T.Buffer((18, 18), "int32"), M: T.Buffer((18, 18), "bool")):
    for t in range(9):
        for i, j in T.grid((1, 17), (1, 17)):
            if A[i, j] > 0:
                A[i, j] = T.max(A[i, j], T.max(A[i - 1, j], A[i, j - 1]))


@T.prim_func
def obstacles(A: T.Buffer((18, 18), "int32"), M: T.Buffer((18, 18), "bool")):
    for t in range(9):
        for i, j in T.grid((1, 17), (1, 17)):
            if M[i, j]:
                A[i, j] = T.max(A[i, j], T.max(A[i - 1, j], A[i, j - 1]))


@pytest.mark.parametrize(("func", "count"), [(spreading, 1), (obstacles, 3)])
def test_a_test_of_what_the_block_updates_is_left_in_order(func: PrimFunc, count: int) -> None:
    sch = Schedule(func)
    (block,) = sch.enclose("root")
    found = Wavefront(2)(sch, block)
    assert len(found) == count
    for one in found:
        check_numbers(func, one.mod, compiled=True)


def test_one_core_gets_no_tiles() -> None:
    assert len(offered(sweeps, cores=1)) == 2


@pytest.mark.parametrize("func", [independent, scan])
def test_nothing_for_loops_with_independent_iterations(func: PrimFunc) -> None:
    assert len(offered(func)) == 1
