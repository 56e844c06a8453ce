"""Caches in a block over a symbolic number of tiles hold one tile; caches under conditions."""

from __future__ import annotations

import functools

import pytest
from oracle import check_numbers, check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def tiles(a: T.handle, b: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n * 8, 4), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n * 8, 4), "float32")
    for t in range(n):
        with T.block("O"):
            v = T.axis.spatial(n, t)
            T.reads(A[v * 8 : v * 8 + 8, 0:4], B[v])
            T.writes(C[v * 8 : v * 8 + 8, 0:4])
            for i, j in T.grid(8, 4):
                with T.block("I"):
                    w, x = T.axis.remap("SS", [i, j])
                    C[v * 8 + w, x] = A[v * 8 + w, x] + B[v]


@T.prim_func
def windows(a: T.handle, b: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n * 8,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n * 8,), "float32")
    for t in range(n):
        with T.block("O"):
            v = T.axis.spatial(n, t)
            T.reads(A[v * 8 - 1 : v * 8 + 9], B[v])
            T.writes(C[v * 8 : v * 8 + 8])
            for i, r in T.grid(8, 3):
                with T.block("I"):
                    w, k = T.axis.remap("SR", [i, r])
                    with T.init():
                        C[v * 8 + w] = B[v]
                    C[v * 8 + w] = C[v * 8 + w] + T.if_then_else(
                        1 <= v * 8 + w + k and v * 8 + w + k < n * 8 + 1,
                        A[v * 8 + w + k - 1],
                        T.float32(0),
                    )


def test_a_read_cache_holds_a_tile() -> None:
    sch = Schedule(tiles, check=True)
    sch.cache_read("I", 0, "local")
    assert 'A_local = T.alloc_buffer((8, 4), "float32", scope="local")' in sch.script()
    check_transform(tiles, sch)


def test_a_write_cache_holds_a_tile() -> None:
    sch = Schedule(tiles, check=True)
    sch.cache_write("I", 0, "local")
    assert 'C_local = T.alloc_buffer((8, 4), "float32", scope="local")' in sch.script()
    assert "T.where" not in sch.script()
    check_transform(tiles, sch)


def test_a_cache_below_a_loop_holds_all_that_the_block_touches() -> None:
    sch = Schedule(tiles, check=True)
    outer, _ = sch.split(sch.get_loops("I")[0], [None, 4])
    back = sch.cache_write("I", 0, "local")
    sch.reverse_compute_at(back, outer)
    sch.cache_write("I", 0, "shared")
    assert 'C_local_shared = T.alloc_buffer((8, 4), "float32", scope="shared")' in sch.script()
    check_transform(tiles, sch, compiled=False)


def test_windows_are_copied_up_to_the_border() -> None:
    sch = Schedule(windows, check=True)
    sch.cache_read("I", "A", "local")
    assert 'A_local = T.alloc_buffer((10,), "float32", scope="local")' in sch.script()
    assert "T.where(1 <= v * 8 + ax0 and v * 8 + ax0 < n * 8 + 1)" in sch.script()
    check_transform(windows, sch)


def test_a_reader_of_other_tiles_does_not_read_the_cache() -> None:
    @T.prim_func
    def func(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
        B = T.alloc_buffer((16,), "float32")
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                B[vi] = A[vi]
        for t in range(2):
            with T.block("O"):
                v = T.axis.opaque(2, t)
                T.reads(A[0:16], B[0:16])
                T.writes(B[v * 8 : v * 8 + 8], C[v * 8 : v * 8 + 8])
                for i in range(8):
                    with T.block("I"):
                        w = T.axis.spatial(8, i)
                        B[v * 8 + w] = A[v * 8 + w]
                for i in range(8):
                    with T.block("R"):
                        w = T.axis.spatial(8, i)
                        C[v * 8 + w] = B[15 - v * 8 - w]

    sch = Schedule(func)
    message = "R reads more of B than this scope writes"
    check_refused(sch, lambda: sch.cache_write("I", 0, "local", ["R"]), "not-held", message)


@T.prim_func
def sometimes(
    N: T.Buffer((1,), "int32"),
    A: T.Buffer((8,), "int32"),
    B: T.Buffer((8,), "int32"),
    D: T.Buffer((8,), "int32"),
    C: T.Buffer((8,), "int32"),
):
    if N[0] < 0:
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]
        for i in range(8):
            with T.block("D"):
                vi = T.axis.spatial(8, i)
                D[vi] = B[vi] + 1
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


def test_a_reader_outside_of_the_condition_of_the_writer() -> None:
    """The copy that the reader needs runs without the condition, or the step is refused."""
    sch = Schedule(sometimes)
    sch.cache_read("C", 0, "local", ["C"])
    sch.cache_read("D", 0, "local", ["D"])
    sch.cache_write("B", 0, "local")
    check_transform(sometimes, sch)
    for step in (
        lambda sch: sch.cache_read("C", 0, "local"),
        lambda sch: sch.cache_write("B", 0, "local", ["C"]),
    ):
        sch = Schedule(sometimes)
        check_refused(
            sch, functools.partial(step, sch), "conditional-copy",
            "B stands under a condition that a reader does not share",
        )  # fmt: skip


def test_a_copy_reads_what_the_block_around_declares():
    """Two regions of C leave a gap, which the box around them would fill."""

    @T.prim_func
    def triangle(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
        for i in range(6):
            for j in range(i + 1):
                with T.block("C"):
                    vi = T.axis.spatial(6, i)
                    vj = T.axis.spatial(6, j)
                    T.reads(A[vi], A[vj])
                    T.writes(C[vi, vj])
                    with T.block("inner"):
                        C[vi, vj] = A[vi] + A[vj]

    message = "would read more of A than C, the block around it, declares to read: the 2 regions"
    sch = Schedule(triangle)
    check_refused(sch, lambda: sch.cache_read("inner", 0, "global"), "reads-beyond", message)
    sch.annotate_buffer_access("C", 0, "read", lambda vi, vj: ((0, 6),))
    sch.cache_read("inner", 0, "global")
    check_numbers(triangle, sch.mod)


def test_a_copy_is_not_run_where_its_writer_is_skipped():
    """X has rows behind the last tile: the copy would overwrite X[3], which nobody computes."""

    @T.prim_func
    def func(Z: T.Buffer((5,), "int32"), X: T.Buffer((5,), "int32"), Y: T.Buffer((5,), "int32")):
        for i in range(3):
            with T.block("B1"):
                vi = T.axis.spatial(3, i)
                X[vi] = Z[vi] * 2
            with T.block("B2"):
                vi = T.axis.spatial(3, i)
                Y[vi] = Y[vi] + X[vi + 2]

    sch = Schedule(func)
    sch.split(sch.get_loops("B1")[0], [None, 2])
    with pytest.raises(ScheduleError, match="reads X_global.*not proved to be written before"):
        sch.cache_write("B1", 0, "global")
    sch = Schedule(func)
    sch.split(sch.get_loops("B1")[0], [None, 3])
    sch.cache_write("B1", 0, "global")
    check_numbers(func, sch.mod)


def test_a_copy_of_the_last_rows_is_clipped_like_its_writer():
    """Here X ends with the last row that is computed."""

    @T.prim_func
    def func(Z: T.Buffer((5,), "int32"), X: T.Buffer((3,), "int32"), Y: T.Buffer((5,), "int32")):
        for i in range(3):
            with T.block("B1"):
                vi = T.axis.spatial(3, i)
                X[vi] = Z[vi] * 2
            with T.block("B2"):
                vi = T.axis.spatial(3, i)
                Y[vi] = Y[vi] + X[vi]

    sch = Schedule(func)
    sch.split(sch.get_loops("B1")[0], [None, 2])
    sch.cache_write("B1", 0, "global")
    check_numbers(func, sch.mod)


@T.prim_func
def wrapped(A: T.Buffer((256,), "int32"), B: T.Buffer((3, 8), "int32")):
    for i, j in T.grid(3, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[T.max(T.uint8(vj) - T.uint8(3), T.uint8(4))]


def test_a_cache_of_a_narrow_index_that_wraps() -> None:
    """The index is 4 where vj is 3, and 253 where vj is 0; loops over the box count in int32."""
    sch = Schedule(wrapped, check=True)
    sch.compute_at(sch.cache_read("B", "A", "local"), sch.get_loops("B")[0])
    assert "for ax0 in range(252):" in sch.script()
    check_transform(wrapped, sch)
