"""cache_inplace: a block updates a copy, which each instance copies in and back."""

from __future__ import annotations

from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import matmul

from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def update(A: T.Buffer((4, 6), "float32"), B: T.Buffer((6,), "float32")):
    for i in range(4):
        with T.block("A"):
            vi = T.axis.spatial(4, i)
            T.reads(A[vi, 0:6], B[0:6])
            T.writes(A[vi, 0:6])
            for j in range(6):
                A[vi, j] = A[vi, j] + B[j]


@T.prim_func
def update_cached(A: T.Buffer((4, 6), "float32"), B: T.Buffer((6,), "float32")):
    A_local = T.alloc_buffer((4, 6), "float32", scope="local")
    for i in range(4):
        for ax0, ax1 in T.grid(1, 6):
            with T.block("A_local"):
                v0 = T.axis.spatial(4, i + ax0)
                v1 = T.axis.spatial(6, ax1)
                A_local[v0, v1] = A[v0, v1]
        with T.block("A"):
            vi = T.axis.spatial(4, i)
            T.reads(A_local[vi, 0:6], B[0:6])
            T.writes(A_local[vi, 0:6])
            for j in range(6):
                A_local[vi, j] = A_local[vi, j] + B[j]
        for ax0, ax1 in T.grid(1, 6):
            with T.block("A_local_back"):
                v0 = T.axis.spatial(4, i + ax0)
                v1 = T.axis.spatial(6, ax1)
                A[v0, v1] = A_local[v0, v1]


@T.prim_func
def neighbours(A: T.Buffer((9,), "float32")):
    for i in range(9):
        with T.block("A"):
            vi = T.axis.spatial(9, i)
            T.reads(A[vi - 1 : vi + 2])
            T.writes(A[vi : vi + 2])
            A[vi] = A[vi] + T.if_then_else(vi >= 1, A[vi - 1], T.float32(0))
            if vi < 5:
                A[vi + 1] = T.float32(3)


@T.prim_func
def strided(A: T.Buffer((4, 4), "float32", strides=(8, 1))):
    for i, j in T.grid(4, 4):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] + T.float32(1)


def test_copies_around_each_instance():
    for given in (0, "A"):
        sch = Schedule(update)
        first, second = sch.cache_inplace("A", given, "local")
        becomes(update, sch, update_cached)
        assert sch.get(first).name == "A_local"
        assert sch.get(second).name == "A_local_back"


def test_untouched_elements_of_the_copied_region_keep_their_values():
    sch = Schedule(neighbours)
    sch.cache_inplace("A", 0, "global")
    check_transform(neighbours, sch)


def test_blocks_around_declare_the_box_that_is_copied():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), X: T.Buffer((2,), "int32")):
    for t in range(2):
        for i in range(2, 4):
            with T.block("A"):
                A[i, 2] = A[i - 2, 0] * 2 + A[i + 2, 0] + X[t]
""")
    sch = Schedule(func)
    sch.loop_partition(sch.get_loops("A")[0], [None, 1])
    sch.cache_inplace("A_t0_partition", 0, "global")
    check_transform(func, sch)


def test_refusals():
    sch = Schedule(matmul)
    check_refused(
        sch, lambda: sch.cache_inplace("C", "A", "local"), "not-updated", "does not write it"
    )
    check_refused(sch, lambda: sch.cache_inplace("C", "C", "local"), "no-such-buffer", "reads A, B")
    check_refused(
        sch, lambda: sch.cache_inplace("C", 0, "nowhere"), "unknown-scope", "no storage scope"
    )
    sch = Schedule(update)
    sch.parallel(sch.get_loops("A")[0])
    check_refused(
        sch, lambda: sch.cache_inplace("A", 0, "local"), "parallel-loop",
        r"i \(parallel\) could overwrite each other's",
    )  # fmt: skip
    sch = Schedule(strided)
    check_refused(
        sch, lambda: sch.cache_inplace("A", 0, "local"), "strided", "strides or an offset"
    )
