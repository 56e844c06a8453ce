"""reindex_cache_read, reindex_cache_write: a cached copy in a layout of one's own."""

from __future__ import annotations

from oracle import check_refused, check_transform
from schedule.expected import becomes
from schedule.programs import elementwise, matmul

from metasched.arith.indexmap import IndexMap
from metasched.schedule.schedule import Schedule
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


@T.prim_func
def together(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


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
    sch = Schedule(together)
    check_refused(sch, read(one), "shared-loop", "B, which writes B, shares a loop with C")
    check_refused(
        sch, lambda: sch.reindex_cache_write("B", 0, "local", one), "not-single-branch",
        "holds more than the block B",
    )  # fmt: skip
