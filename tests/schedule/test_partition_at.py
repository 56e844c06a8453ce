"""partition_at: the three loops, where they are cut, what becomes legal, and refusals."""

from __future__ import annotations

import random

import pytest
from oracle import check_numbers, check_refused, check_transform

from metasched.ir.expr import as_int
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def paths(A: T.Buffer((7, 7), "int32")):
    for k, i, j in T.grid(7, 7, 7):
        with T.block("A"):
            A[i, j] = T.min(A[i, j], A[i, k] + A[k, j])


@T.prim_func
def sums(A: T.Buffer((4, 8), "int32"), B: T.Buffer((4,), "int32")):
    for i, j in T.grid(4, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vj]


def test_all_nine_parts_run_in_parallel_and_in_vectors() -> None:
    sch = Schedule(paths, check=True)
    k, i, j = sch.get_loops("A")
    check_refused(sch, lambda: sch.parallel(i), "carried-dependence", "iterations of loop i")
    rows = sch.partition_at(k, i, 0)
    for part in rows:
        [block] = sch.get_child_blocks(part)
        columns = sch.partition_at(k, sch.get_loops(block)[2], 0)
        for column in (columns[0], columns[2]):
            sch.vectorize(sch.split(column, [None, 4])[1])
    for part in (rows[0], rows[2]):
        sch.parallel(part)
    assert [block.name for block in map(sch.get, sch.get_child_blocks(rows[1]))] == [
        "A_i1", "A_i1_j1", "A_i1_j2",
    ]  # fmt: skip
    check_transform(paths, sch)


def test_without_the_cut_of_columns_there_are_no_vectors() -> None:
    sch = Schedule(paths)
    k, i, _ = sch.get_loops("A")
    sch.partition_at(k, i, 0)
    lane = sch.get_loops("A")[2]
    check_refused(sch, lambda: sch.vectorize(lane), "carried-dependence", "iterations of loop j")


def test_a_cut_at_the_wrong_row_does_not_allow_parallel() -> None:
    sch = Schedule(paths)
    k, i, _ = sch.get_loops("A")
    before, _, after = sch.partition_at(k, i, 1)
    check_refused(sch, lambda: sch.parallel(before), "carried-dependence", "loop i_0")
    sch.parallel(after)
    check_transform(paths, sch)


@pytest.mark.parametrize("seed", range(8))
def test_cuts_outside_of_the_loop_leave_empty_parts(seed: int) -> None:
    rng = random.Random(seed)
    low, size, offset = rng.randint(0, 3), rng.randint(1, 6), rng.randint(-8, 8)
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 9), "int32")):
    for k in range(6):
        for i in range({low}, {low + size}):
            with T.block("A"):
                A[k, i] = A[k, i] * 2 + A[5 - k, i]
""")
    sch = Schedule(func, check=True)
    parts = sch.partition_at(*sch.get_loops("A"), offset)
    assert len(parts) == 3
    check_numbers(func, sch.mod, compiled=True)


def test_refusals() -> None:
    sch = Schedule(sums)
    i, j = sch.get_loops("B")
    check_refused(sch, lambda: sch.partition_at(i, j, 0), "cut-reduction", "drives the reduction B")
    check_refused(sch, lambda: sch.partition_at(j, i, 0), "not-around", "j does not stand around i")
    sch = Schedule(paths)
    k, i, j = sch.get_loops("A")
    check_refused(sch, lambda: sch.partition_at(k, i, k), "bad-offset", "is no constant")
    sch.partition_at(k, i, 0)
    assert as_int(sch.get(sch.get_loops("A_i1")[1]).extent) == 1
    sch.unroll(j)
    check_refused(sch, lambda: sch.partition_at(k, j, 0), "loop-has-kind", "unroll already")


def test_parts_match_the_buffer_again() -> None:
    """Each part has a copy of the match; a part that never runs does not set its strides."""

    @T.prim_func
    def tiles(A: T.Buffer((12, 12), "int32"), B: T.Buffer((12, 12), "int32")):
        for i, j in T.grid(3, 3):
            with T.block("tile"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(A[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4])
                T.writes(B[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4])
                s0 = T.int32()
                s1 = T.int32()
                a = T.match_buffer(
                    A[vi * 4 : vi * 4 + 4, vj * 4 : vj * 4 + 4], (4, 4), "int32", strides=[s0, s1]
                )
                for x, y in T.grid(4, 4):
                    with T.block("copy"):
                        vx, vy = T.axis.remap("SS", [x, y])
                        B[vi * 4 + vx, vj * 4 + vy] = a[vy, vx] + s0

    sch = Schedule(tiles, check=True)
    i, j = sch.get_loops("tile")
    sch.partition_at(i, j, 0)
    check_transform(tiles, sch)
