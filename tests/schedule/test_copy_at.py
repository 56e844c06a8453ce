"""read_at, write_at: the copies, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    for i0, j0, k0, i1, j1, k1 in T.grid(2, 2, 2, 4, 4, 4):
        with T.block("C"):
            vi = T.axis.spatial(8, i0 * 4 + i1)
            vj = T.axis.spatial(8, j0 * 4 + j1)
            vk = T.axis.reduce(8, k0 * 4 + k1)
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def matmul_cached(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    T.func_attr({"global_symbol": "matmul"})
    A_global = T.alloc_buffer((8, 8), "int32")
    C_local = T.alloc_buffer((8, 8), "int32", scope="local")
    for i0, j0 in T.grid(2, 2):
        for k0 in range(2):
            with T.block("A_global"):
                v0, v1 = T.axis.remap("SS", [i0, k0])
                T.reads(A[v0 * 4 : v0 * 4 + 4, v1 * 4 : v1 * 4 + 4])
                T.writes(A_global[v0 * 4 : v0 * 4 + 4, v1 * 4 : v1 * 4 + 4])
                T.block_attr({"auto_copy": 1})
                for ax0, ax1 in T.grid(4, 4):
                    A_global[v0 * 4 + ax0, v1 * 4 + ax1] = A[v0 * 4 + ax0, v1 * 4 + ax1]
            for i1, j1, k1 in T.grid(4, 4, 4):
                with T.block("C"):
                    vi = T.axis.spatial(8, i0 * 4 + i1)
                    vj = T.axis.spatial(8, j0 * 4 + j1)
                    vk = T.axis.reduce(8, k0 * 4 + k1)
                    T.reads(A_global[vi, vk], B[vk, vj])
                    T.writes(C_local[vi, vj])
                    with T.init():
                        C_local[vi, vj] = 0
                    C_local[vi, vj] = C_local[vi, vj] + A_global[vi, vk] * B[vk, vj]
        with T.block("C_local"):
            v0, v1 = T.axis.remap("SS", [i0, j0])
            T.reads(C_local[v0 * 4 : v0 * 4 + 4, v1 * 4 : v1 * 4 + 4])
            T.writes(C[v0 * 4 : v0 * 4 + 4, v1 * 4 : v1 * 4 + 4])
            T.block_attr({"auto_copy": 1})
            for ax0, ax1 in T.grid(4, 4):
                C[v0 * 4 + ax0, v1 * 4 + ax1] = C_local[v0 * 4 + ax0, v1 * 4 + ax1]


def test_tiles_of_a_product():
    sch = Schedule(matmul, seed=0)
    block = sch.get_block("C")
    i0, j0, k0, *_ = sch.get_loops(block)
    copy = sch.read_at(k0, block, 0, "global")
    back = sch.write_at(j0, block, 0, "local")
    assert (sch.get(copy).name, sch.get(back).name) == ("A_global", "C_local")
    assert_structural_equal(sch.mod["main"], matmul_cached)
    check_transform(matmul, sch)


def test_a_partial_sum_is_kept_between_iterations():
    sch = Schedule(matmul, seed=0)
    sch.write_at(sch.get_loops("C")[2], "C", "C", "local")
    check_transform(matmul, sch)


def test_a_window_that_leaves_the_buffer_is_guarded():
    @T.prim_func
    def window(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        for i, r in T.grid(8, 3):
            with T.block("C"):
                vi, vr = T.axis.remap("SR", [i, r])
                T.reads(A[vi + vr - 1])
                T.writes(C[vi])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + T.if_then_else(
                    vi + vr >= 1 and vi + vr < 9, A[vi + vr - 1], 0, dtype="int32"
                )

    sch = Schedule(window, seed=0)
    sch.read_at(sch.get_loops("C")[0], "C", "A", "local")
    check_transform(window, sch)


def test_symbolic_extents():
    @T.prim_func
    def rows(a: T.handle, c: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n, n), "int32")
        C = T.match_buffer(c, (n, n), "int32")
        for i, j in T.grid(n, n):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] + 1

    sch = Schedule(rows, seed=0)
    sch.read_at(sch.get_loops("C")[0], "C", 0, "local")
    sch.write_at(sch.get_loops("C")[0], "C", 0, "local")
    check_transform(rows, sch)


def test_a_writer_that_may_not_run_is_refused():
    @T.prim_func
    def some(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32")):
        for i, u in T.grid(6, 1):
            with T.block("C"):
                v = T.axis.spatial(6, i)
                T.where(i < 4)
                C[v] = A[v]

    sch = Schedule(some, seed=0)
    for loop in sch.get_loops("C"):
        step = lambda loop=loop: sch.write_at(loop, "C", 0, "global")  # noqa: E731
        check_refused(sch, step, "not-all-written", "not proved to write one whole box")


def test_write_at_in_an_init_is_refused():
    sch = Schedule(matmul, seed=0)
    sch.blockize(sch.get_loops("C")[3])
    loop = sch.get_loops("C_init")[0]
    step = lambda: sch.write_at(loop, "C_init", 0, "local")  # noqa: E731
    check_refused(sch, step, "in-init", "stands in the init of C_o")


def test_a_loop_whose_end_is_another_loop():
    @T.prim_func
    def triangle(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
        for i in range(6):
            for j in range(i + 1):
                with T.block("C"):
                    vi = T.axis.spatial(6, i)
                    vj = T.axis.spatial(6, j)
                    C[vi, vj] = A[vi] + A[vj]

    sch = Schedule(triangle, seed=0)
    sch.write_at(sch.get_loops("C")[1], "C", 0, "global")
    assert [v.dom.extent.value for v in sch.get(sch.get_block("C_global")).iter_vars] == [6, 6]
    check_transform(triangle, sch)


def test_refusals():
    @T.prim_func
    def stages(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
        B = T.alloc_buffer((8, 8), "int32")
        for i in range(8):
            for j in range(8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1
            for j in range(8):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] * 2

    sch = Schedule(stages, seed=0)
    i, j = sch.get_loops("B")
    step = lambda: sch.write_at(i, "B", 0, "local")  # noqa: E731
    check_refused(sch, step, "read-below", "C reads B below i")
    step = lambda: sch.read_at(j, "C", 0, "local")  # noqa: E731
    check_refused(sch, step, "not-below", "C does not stand below j")
    step = lambda: sch.read_at(i, "C", 0, "nowhere")  # noqa: E731
    check_refused(sch, step, "unknown-scope", "no storage scope")
    step = lambda: sch.read_at(i, "C", 3, "local")  # noqa: E731
    check_refused(sch, step, "no-such-buffer", "no read buffer 3")
    sch.read_at(i, "C", "B", "local")
    check_transform(stages, sch)
    check_refused(sch, lambda: sch.read_at(i, "root", 0, "local"), "is-root", "root block")

    @T.prim_func
    def in_place(C: T.Buffer((8, 8), "int32")):
        for i, j in T.grid(8, 8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C[vi, vj] + 1

    sch = Schedule(in_place, seed=0)
    i, j = sch.get_loops("C")
    step = lambda: sch.write_at(i, "C", 0, "local")  # noqa: E731
    check_refused(sch, step, "not-started", "values from outside of i")
    step = lambda: sch.read_at(i, "C", 0, "local")  # noqa: E731
    check_refused(sch, step, "written-below", "written below i at or after")

    @T.prim_func
    def some(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
        for i, j in T.grid(2, 4):
            with T.block("C"):
                v = T.axis.spatial(8, i * 4 + j)
                C[v * 2] = A[v]

    sch = Schedule(some, seed=0)
    i, j = sch.get_loops("C")
    step = lambda: sch.write_at(i, "C", 0, "local")  # noqa: E731
    check_refused(sch, step, "not-all-written", "not proved to write one whole box")

    sch = Schedule(matmul, seed=0)
    loops = sch.get_loops("C")
    outer = sch.blockize(loops[3])
    step = lambda: sch.read_at(loops[2], "C", 0, "local")  # noqa: E731
    check_refused(sch, step, "other-scope", "different blocks")
    sch.read_at(loops[2], outer, 0, "local")
    check_transform(matmul, sch)


def test_an_update_with_an_undeclared_read_is_refused_as_an_update():
    @T.prim_func
    def f(A: T.Buffer((3,), "float32")):
        for i in range(3):
            with T.block("A"):
                vi = T.axis.spatial(3, i)
                A[vi] = A[vi] + 1.0

    sch = Schedule(f)
    sch.unsafe_hide_buffer_access("A", "read", [0])
    (i,) = sch.get_loops("A")
    step = lambda: sch.write_at(i, "A", 0, "global")  # noqa: E731
    check_refused(sch, step, "not-started", "A updates A, which holds values from outside of i")
    step = lambda: sch.cache_write("A", 0, "local")  # noqa: E731
    check_refused(sch, step, "reads-own-output", "A reads A, which it writes")


@T.prim_func
def threads(
    A: T.Buffer((16, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((16, 8), "int32")
):
    for ty in T.thread_binding(4, thread="threadIdx.y"):
        for tx in T.thread_binding(2, thread="threadIdx.x"):
            for k0 in range(2):
                for k1, i, j in T.grid(4, 4, 4):
                    with T.block("C"):
                        vi = T.axis.spatial(16, ty * 4 + i)
                        vj = T.axis.spatial(8, tx * 4 + j)
                        vk = T.axis.reduce(8, k0 * 4 + k1)
                        with T.init():
                            C[vi, vj] = 0
                        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_threads_copy_together(level):
    """Several threads write the same value to one element of a shared copy."""
    sch = Schedule(threads, check=True)
    loop = sch.get_loops("C")[level]
    for name in ("A", "B"):
        sch.read_at(loop, "C", name, "shared")
    sch.write_at(loop, "C", "C", "shared")
    check_transform(threads, sch, compiled=False)


@pytest.mark.parametrize("kind", ["parallel", "threadIdx.x"])
def test_iterations_copy_windows_that_overlap(kind):
    """A window that leaves the buffer is guarded; neighbouring windows share elements."""

    @T.prim_func
    def window(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        for i, r in T.grid(8, 3):
            with T.block("C"):
                vi, vr = T.axis.remap("SR", [i, r])
                T.reads(A[vi + vr - 1])
                T.writes(C[vi])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + T.if_then_else(
                    vi + vr >= 1 and vi + vr < 9, A[vi + vr - 1], 0, dtype="int32"
                )

    sch = Schedule(window, check=True)
    loop = sch.get_loops("C")[0]
    if kind == "parallel":
        sch.parallel(loop)
    else:
        sch.bind(loop, kind)
    sch.read_at(loop, "C", "A", "shared")
    check_transform(window, sch, compiled=False)


def test_a_shared_copy_of_what_each_thread_makes_is_refused():
    @T.prim_func
    def own(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
        B = T.alloc_buffer((8,), "int32", scope="local")
        for i in T.thread_binding(8, thread="threadIdx.x"):
            for j in range(8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vj] = A[vi, vj]
            for j in range(8):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vj]

    sch = Schedule(own)
    loop = sch.get_loops("C")[0]
    check_refused(
        sch, lambda: sch.read_at(loop, "C", "B", "shared"), "carried-dependence",
        "different iterations of loop i may touch the same element of B_shared",
    )  # fmt: skip
    sch.read_at(loop, "C", "B", "local")
    check_transform(own, sch, compiled=False)


@T.prim_func
def columns(A: T.Buffer((6, 3), "int32"), C: T.Buffer((6,), "int32")):
    for k, i in T.grid(3, 6):
        with T.block("C"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


def test_a_reduction_that_another_block_began_is_not_copied():
    sch = Schedule(columns)
    parts = sch.partition_at(*sch.get_loops("C"), 0)
    step = lambda: sch.write_at(parts[0], "C", 0, "global")  # noqa: E731
    check_refused(sch, step, "not-started", r"C below i_0 may continue .* that C_i. began")
    whole = Schedule(columns)
    whole.write_at(whole.get_loops("C")[1], "C", 0, "global")
    check_transform(columns, whole)
