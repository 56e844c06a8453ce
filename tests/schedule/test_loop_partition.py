"""loop_partition: its parts, where the init goes, and what it refuses."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def double(A: T.Buffer((8, 4), "int32"), B: T.Buffer((8, 4), "int32")):
    for i, j in T.grid(8, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2


@T.prim_func
def double_parts(A: T.Buffer((8, 4), "int32"), B: T.Buffer((8, 4), "int32")):
    T.func_attr({"global_symbol": "double"})
    with T.block("B_i_common"):
        T.reads(A[0:8, 0:4])
        T.writes(B[0:8, 0:4])
        with T.block("B_i0_partition"):
            T.reads(A[0:2, 0:4])
            T.writes(B[0:2, 0:4])
            for i0, j in T.grid(2, 4):
                with T.block("B_i0"):
                    vi, vj = T.axis.remap("SS", [i0, j])
                    B[vi, vj] = A[vi, vj] * 2
        with T.block("B_i1_partition"):
            T.reads(A[2:5, 0:4])
            T.writes(B[2:5, 0:4])
            for i1 in range(2, 5):
                for j in range(4):
                    with T.block("B_i1"):
                        vi = T.axis.spatial((2, 5), i1)
                        vj = T.axis.spatial(4, j)
                        B[vi, vj] = A[vi, vj] * 2
        with T.block("B_i2_partition"):
            T.reads(A[5:8, 0:4])
            T.writes(B[5:8, 0:4])
            for i2 in range(5, 8):
                for j in range(4):
                    with T.block("B_i2"):
                        vi = T.axis.spatial((5, 8), i2)
                        vj = T.axis.spatial(4, j)
                        B[vi, vj] = A[vi, vj] * 2


def test_parts_of_a_loop():
    sch = Schedule(double, seed=0)
    loops = sch.loop_partition(sch.get_loops("B")[0], [2, 3])
    assert_structural_equal(sch.mod["main"], double_parts)
    assert [sch.get(rv).var.name for rv in loops] == ["i0", "i1", "i2"]
    names = [r.block.name for r in sch.state.index.blocks.values()]
    assert names == [
        "root", "B_i_common", "B_i0_partition", "B_i0", "B_i1_partition", "B_i1",
        "B_i2_partition", "B_i2",
    ]  # fmt: skip
    check_transform(double, sch)


def test_a_factor_of_none_takes_the_rest_of_the_range():
    sch = Schedule(double, seed=0)
    loops = sch.loop_partition(sch.get_loops("B")[0], [2, None, 1])
    assert [sch.get(rv).extent.value for rv in loops] == [2, 5, 1]
    check_transform(double, sch)


@T.prim_func
def matmul(
    A: T.Buffer((4, 4), "int32"), B: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32")
):
    for i, j, k in T.grid(4, 4, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("preserve", [True, False])
def test_reductions(which, preserve):
    sch = Schedule(matmul, seed=0)
    sch.loop_partition(sch.get_loops("C")[which], [1, None, 2], preserve_unit_iters=preserve)
    names = ["C_" + "ijk"[which] + str(n) for n in range(3)]
    inits = [sch.get(sch.get_block(n)).init is not None for n in names]
    assert inits == ([True, False, False] if which == 2 else [True] * 3)
    check_transform(matmul, sch)


def test_an_init_runs_only_in_the_first_iteration_of_an_outer_loop():
    sch = Schedule(matmul, seed=0)
    i, j, k = sch.get_loops("C")
    sch.reorder(k, i)
    sch.loop_partition(i, [1])
    kinds = [v.kind.value for v in sch.get(sch.get_block("C_i_common")).iter_vars]
    assert sorted(kinds) == ["opaque", "spatial"]
    check_transform(matmul, sch)


def test_a_split_reduction_and_a_start_elsewhere():
    sch = Schedule(matmul, seed=0)
    k0, k1 = sch.split(sch.get_loops("C")[2], [None, 2])
    sch.loop_partition(k1, [1])
    check_transform(matmul, sch)

    @T.prim_func
    def late(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
        for i in range(2, 8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = A[v] + 1

    sch = Schedule(late, seed=0)
    loops = sch.loop_partition(sch.get_loops("B")[0], [3])
    assert [sch.get(rv).min.value for rv in loops] == [2, 5]
    check_transform(late, sch)


def test_several_blocks_and_memory_inside():
    @T.prim_func
    def inside(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32"), D: T.Buffer((6,), "int32")):
        for i in range(6):
            with T.block("C"):
                v = T.axis.spatial(6, i)
                t = T.alloc_buffer((1,), "int32")
                t[0] = A[v] + 1
                C[v] = t[0] * 2
            with T.block("D"):
                v = T.axis.spatial(6, i)
                D[v] = C[v]

    sch = Schedule(inside, seed=0)
    sch.loop_partition(sch.get_loops("C")[0], [2, 2])
    buffers = [b for r in sch.state.index.blocks.values() for b in r.block.alloc_buffers]
    assert len(set(buffers)) == 3
    check_transform(inside, sch)


def test_refusals():
    sch = Schedule(double, seed=0)
    i, j = sch.get_loops("B")
    check_refused(
        sch, lambda: sch.loop_partition(i, [8]), "factors-too-large", "add up to 8, not less"
    )
    check_refused(sch, lambda: sch.loop_partition(i, [3, 5]), "factors-too-large", "not less than")
    check_refused(sch, lambda: sch.loop_partition(i, []), "open-factors", "one factor or more")
    check_refused(sch, lambda: sch.loop_partition(i, [None, -1]), "open-factors", "at most one")
    check_refused(sch, lambda: sch.loop_partition(i, [0]), "bad-factor", "0 is no positive")
    sch.annotate(j, "note", 1)
    check_refused(sch, lambda: sch.loop_partition(j, [2]), "marked-loop", "carries annotations")
    sch.parallel(i)
    check_refused(sch, lambda: sch.loop_partition(i, [2]), "loop-has-kind", "parallel already")

    @T.prim_func
    def symbolic(a: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,), "int32")
        for i in range(n):
            with T.block("A"):
                v = T.axis.spatial(n, i)
                A[v] = 1

    sch = Schedule(symbolic, seed=0)
    (i,) = sch.get_loops("A")
    check_refused(sch, lambda: sch.loop_partition(i, [2]), "symbolic-range", "is not constant")

    @T.prim_func
    def triangle(B: T.Buffer((4, 4, 2), "int32")):
        for i in range(4):
            for j in range(i + 1):
                for k in range(2):
                    with T.block("B"):
                        vi = T.axis.spatial(4, i)
                        vj = T.axis.spatial(4, j)
                        vk = T.axis.spatial(2, k)
                        B[vi, vj, vk] = 1

    sch = Schedule(triangle, seed=0)
    i, j, k = sch.get_loops("B")
    check_refused(sch, lambda: sch.loop_partition(j, [1]), "symbolic-range", "is not constant")
    sch.loop_partition(k, [1])
    check_transform(triangle, sch)
    sch = Schedule(triangle, seed=0)
    i, j, k = sch.get_loops("B")
    sch.loop_partition(i, [1])
    check_transform(triangle, sch)


def test_parts_of_a_triangle_do_not_fill_their_box():
    @T.prim_func
    def triangle(A: T.Buffer((4,), "int32"), C: T.Buffer((4, 4), "int32")):
        for i in range(4):
            for j in range(i + 1):
                with T.block("C"):
                    vi = T.axis.spatial(4, i)
                    vj = T.axis.spatial(4, j)
                    C[vi, vj] = A[vi] + A[vj]

    sch = Schedule(triangle, seed=0)
    sch.loop_partition(sch.get_loops("C")[0], [2])
    check_refused(
        sch, lambda: sch.cache_write("C_i_common", 0, "global"), "region-cover", "written before"
    )
    sch = Schedule(double, seed=0)
    sch.loop_partition(sch.get_loops("B")[0], [2])
    sch.cache_write("B_i_common", 0, "global")
    check_transform(double, sch)


def test_a_loop_over_rows_and_a_reduction_is_not_cut():
    sch = Schedule(matmul, seed=0)
    i, j, k = sch.get_loops("C")
    fused = sch.fuse(j, k)
    step = lambda: sch.loop_partition(fused, [2])  # noqa: E731
    check_refused(sch, step, "cut-reduction", "drives both spatial and reduce iterators of C")


def test_a_reduction_that_goes_on_outside_is_not_cached():
    sch = Schedule(matmul, seed=0)
    i, j, k = sch.get_loops("C")
    sch.reorder(k, i, j)
    sch.loop_partition(i, [1])
    loop = sch.get_loops("C_i0")[0]
    for step in (
        lambda: sch.cache_write("C_i0", 0, "global"),
        lambda: sch.write_at(loop, "C_i0", 0, "global"),
    ):
        check_refused(sch, step, "reduction-outside", "continues a reduction over")


@T.prim_func
def part_that_never_runs(A: T.Buffer((8,), "int32"), C: T.Buffer((5,), "int32")):
    for i in range(8):
        with T.block("C"):
            T.where(i < 5)
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi]


def test_a_part_that_never_runs_declares_no_negative_extent() -> None:
    sch = Schedule(part_that_never_runs, check=False)
    sch.loop_partition(sch.get_loops("C")[0], [7, None])
    check_transform(part_that_never_runs, sch)


@T.prim_func
def in_planes(A: T.Buffer((4, 6), "int32"), C: T.Buffer((2, 4), "int32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[1, vi] = 0
            C[1, vi] = C[1, vi] + A[vi, vk] * C[0, vi]


def test_a_part_without_init_declares_other_elements_of_its_buffer_too() -> None:
    sch = Schedule(in_planes)
    sch.loop_partition(sch.get_loops("C")[1], [None, 1])
    assert "T.reads(C[0:2, vi_2], A[vi_2, vk])" in sch.mod.script()
    check_transform(in_planes, sch)
