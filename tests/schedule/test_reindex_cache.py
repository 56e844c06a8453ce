"""reindex_cache_read, reindex_cache_write: a cached copy in a given layout."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import elementwise, matmul
from schedule.stages import under_one_loop

from metasched.arith.indexmap import IndexMap
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def elementwise_read(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    B_local = T.alloc_buffer((12, 4, 2), "float32", scope="local")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for ax0, ax1 in T.grid(8, 12):
        with T.block("B_local"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            B_local[v1, v0 // 2, v0 % 2] = B[v0, v1]
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B_local[vj, vi // 2, vi % 2] + T.float32(1)


@T.prim_func
def elementwise_write(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    B_local = T.alloc_buffer((12, 8), "float32", scope="local")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B_local[vj, vi] = A[vi, vj] * T.float32(2)
    for ax0, ax1 in T.grid(8, 12):
        with T.block("B_local"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            B[v0, v1] = B_local[v1, v0]
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


@T.prim_func
def matmul_read(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), C: T.Buffer((8, 6), "float32")
):
    A_global = T.alloc_buffer((12, 8), "float32")
    for ax0, ax1 in T.grid(8, 12):
        with T.block("A_global"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            A_global[v1, v0] = A[v0, v1]
    for i, j, k in T.grid(8, 6, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A_global[vk, vi] * B[vk, vj]


@T.prim_func
def twice(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in range(8):
        with T.block("again"):
            vi = T.axis.spatial(8, i)
            B[vi] = B[vi] + A[vi]
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


together = under_one_loop("together", "vi")


@T.prim_func
def branches(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        if i < 4:
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]
        else:
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                C[vi] = B[vi - 4]


@T.prim_func
def sometimes(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        if i < 4:
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]


running = under_one_loop("running", "T.max(vi - 1, 0)")


ahead = under_one_loop("ahead", "7 - vi")


@T.prim_func
def tiles(A: T.Buffer((15,), "float32"), C: T.Buffer((15,), "float32")):
    B = T.alloc_buffer((15,), "float32")
    for i in T.parallel(4):
        for j in range(4):
            with T.block("B"):
                vi = T.axis.spatial(15, i * 4 + j)
                T.where(i * 4 + j < 15)
                B[vi] = A[vi] * T.float32(2)
        for j in range(4):
            with T.block("C"):
                vi = T.axis.spatial(15, i * 4 + j)
                T.where(i * 4 + j < 15)
                C[vi] = B[vi]


@T.prim_func
def tiles_read(A: T.Buffer((15,), "float32"), C: T.Buffer((15,), "float32")):
    B = T.alloc_buffer((15,), "float32")
    B_local = T.alloc_buffer((4, 4), "float32", scope="local")
    for i in T.parallel(4):
        for j in range(4):
            with T.block("B"):
                vi = T.axis.spatial(15, i * 4 + j)
                T.where(i * 4 + j < 15)
                B[vi] = A[vi] * T.float32(2)
        for ax0 in range(T.min(15 - i * 4, 4)):
            with T.block("B_local"):
                v0 = T.axis.spatial(15, i * 4 + ax0)
                B_local[v0 // 4, v0 % 4] = B[v0]
        for j in range(4):
            with T.block("C"):
                vi = T.axis.spatial(15, i * 4 + j)
                T.where(i * 4 + j < 15)
                C[vi] = B_local[vi // 4, vi % 4]


@T.prim_func
def row_sums(A: T.Buffer((6, 8, 4), "int32"), C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((6, 8), "int32")
    for i, j in T.grid(6, 8):
        for k in range(4):
            with T.block("B"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    B[vi, vj] = 0
                B[vi, vj] = B[vi, vj] + A[vi, vj, vk]
        with T.block("C"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + B[vi, vj]


def test_below_loops_that_producer_and_consumer_share():
    swap = lambda i, j, *_: (j, i)  # noqa: E731
    sch = Schedule(row_sums)
    sch.reindex_cache_write("B", 0, "local", swap)
    sch.reindex_cache_read("C", 0, "global", swap)
    check_transform(row_sums, sch)
    assert [len(sch.get_loops(b)) for b in ("B_local", "B_global")] == [4, 4]
    halves = lambda i: (i // 4, i % 4)  # noqa: E731
    for func in (together, tiles):
        for made in (True, False):
            sch = Schedule(func)
            if made:
                sch.reindex_cache_write("B", 0, "local", halves)
            else:
                sch.reindex_cache_read("C", 0, "local", halves)
            check_transform(func, sch)
    becomes(tiles, sch, tiles_read)


def test_a_copy_that_threads_would_share_is_refused():
    @T.prim_func
    def threads(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
        B = T.alloc_buffer((8, 8), "float32", scope="local")
        for i in T.thread_binding(8, thread="threadIdx.x"):
            for j in range(8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[0, vj] = A[vi, vj]
            for j in range(8):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[0, vj] + A[vi, 0]

    halves = lambda i, j: (j // 4, j % 4)  # noqa: E731
    sch = Schedule(threads)
    check_refused(
        sch, lambda: sch.reindex_cache_read("C", 0, "shared", halves), "carried-dependence",
        "different iterations of loop i may touch the same element of B_shared",
    )  # fmt: skip
    sch = Schedule(threads)
    sch.reindex_cache_read("C", 0, "local", halves)
    check_transform(threads, sch, compiled=False)


def test_read():
    sch = Schedule(elementwise)
    made = sch.reindex_cache_read("C", 0, "local", lambda i, j: (j, i // 2, i % 2))
    becomes(elementwise, sch, elementwise_read)
    assert sch.get(made).name == "B_local"


def test_read_of_an_input_with_all_iterators_of_a_reduction():
    for given in (0, "A"):
        sch = Schedule(matmul)
        sch.reindex_cache_read("C", given, "global", lambda *i: [i[2], i[0]])
        becomes(matmul, sch, matmul_read)


def test_write():
    swap = IndexMap.of(lambda i, j: [j, i], 2)
    for given in (swap, lambda i, j: (j, i)):
        sch = Schedule(elementwise)
        sch.reindex_cache_write("B", "B", "local", given)
        becomes(elementwise, sch, elementwise_write)


def test_layouts_with_gaps_and_offsets():
    sch = Schedule(elementwise)
    sch.reindex_cache_read("C", 0, "global", lambda i, j: (i * 3 + 1, j))
    check_transform(elementwise, sch)


@T.prim_func
def unit(A: T.Buffer((1, 8), "float32"), B: T.Buffer((1, 8), "float32")):
    for i, j in T.grid(1, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)


def test_an_iterator_of_one_value_may_be_left_out():
    sch = Schedule(unit, check=True)
    sch.reindex_cache_read("B", 0, "global", lambda i, j: (j // 4, j % 4))
    check_transform(unit, sch)


def test_refusals():
    sch = Schedule(elementwise)

    def read(fn, index=0, scope="local", block="C"):
        return lambda: sch.reindex_cache_read(block, index, scope, fn)

    swap = lambda i, j: (j, i)  # noqa: E731
    check_refused(sch, read(swap, scope="nowhere"), "unknown-scope", "is no storage scope")
    check_refused(sch, read(swap, 3), "no-such-buffer", "has no read buffer 3")
    check_refused(sch, read(lambda i, j: (i,)), "other-iterators", "vj occurs in only one")
    check_refused(sch, read(lambda i, j: (i // 2, j)), "not-injective", "two values of vi of C")
    check_refused(sch, read(lambda i, j: (i - 1, j)), "negative-index", "not proved to be >= 0")
    check_refused(sch, read(lambda i: i), "bad-index-map", "takes 1 indices, 2 are needed")
    check_refused(sch, read(7), "bad-index-map", "neither a function nor an index map")
    sch = Schedule(twice)
    one = lambda i: i  # noqa: E731
    check_refused(sch, read(one), "written-in-scope", "written by B, again in this scope")
    check_refused(
        sch, lambda: sch.reindex_cache_write("B", 0, "local", one), "other-writer",
        "written by B, again",
    )  # fmt: skip
    sch = Schedule(branches)
    check_refused(sch, read(one), "other-branch", "B, which writes the buffer, and C do not follow")
    sch = Schedule(sometimes)
    check_refused(
        sch, lambda: sch.reindex_cache_write("B", 0, "local", one), "conditional-block",
        "B is below a statement that is not a loop",
    )  # fmt: skip


@pytest.mark.parametrize("func", [running, ahead], ids=["running", "ahead"])
def test_reads_of_what_other_iterations_make_are_refused(func):
    sch = Schedule(func)
    one = lambda i: i  # noqa: E731
    check_refused(
        sch, lambda: sch.reindex_cache_read("C", 0, "local", one), "region-cover",
        "block B_local reads B",
    )  # fmt: skip
    check_refused(
        sch, lambda: sch.reindex_cache_write("B", 0, "local", one), "region-cover",
        "block C reads B",
    )  # fmt: skip


def rows(last):
    """Rows whose places memory says: memory, or an extent, limits them."""
    return parse(f"""
@T.prim_func
def rows(P: T.Buffer((5,), "int32"), A: T.Buffer((9,), "int32"), B: T.Buffer((4,), "int32")):
    for i in range(4):
        for p in range(P[i], P[i + 1]):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                vp = T.axis.opaque({last}, p)
                B[vi] = B[vi] + A[vp]
""")


def test_an_index_after_the_largest_number_is_refused():
    sch = Schedule(rows(1 << 30))
    message = r"the index vp \* 2 \+ 1 of the copy may be the largest int32 or more"
    copy = lambda: sch.reindex_cache_read("B", 1, "global", lambda i, p: (p * 2 + 1,))  # noqa: E731
    check_refused(sch, copy, "index-overflow", message)


@pytest.mark.parametrize("last", ["(1 << 31) - 1", "P[4]"])
@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.reindex_cache_read("B", 1, "global", lambda i, p: (p,)),
        lambda s: s.reindex("B", "A"),
    ],
)
def test_an_iterator_without_a_limit_has_no_copy(step, last):
    sch = Schedule(rows(last))
    check_refused(sch, lambda: step(sch), "no-limit", "values of vp of B depend on memory")
