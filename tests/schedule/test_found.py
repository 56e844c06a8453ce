"""The smallest case of each bug that the random machine found."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers, check_refused, check_transform
from schedule.programs import (
    convolution,
    elementwise,
    fan_out,
    matmul,
    matmul_relu,
    padded,
    softmax,
    strided,
    triangle,
    unit,
)
from schedule.test_blocks import start

from metasched.analysis.scope import EdgeKind, Scope
from metasched.ir.expr import as_int
from metasched.runtime.build import build
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


def test_a_cache_beside_a_guarded_consumer_stays_within_the_buffer() -> None:
    sch, (c,), ((i, j),) = start(elementwise, "C")
    sch.split(j, [None, 5])
    sch.compute_at("B", sch.get_loops(c)[-1])
    sch.cache_write("B", 0, "global")
    check_transform(elementwise, sch, "found_cache_guarded")


def test_a_stage_is_not_cut_to_what_its_producer_makes() -> None:
    sch, (b, c), (loops, _) = start(padded, "B", "C")
    check_refused(sch, lambda: sch.reverse_compute_inline(c), "reads-beyond", "outside of B")
    check_refused(sch, lambda: sch.reverse_compute_at(c, loops[1]), "reads-beyond", "outside of B")
    trusted = sch.copy()
    trusted.state.skip_legality_checks = True
    trusted.reverse_compute_at(c, loops[0])  # the bounds are a proof
    sch.compute_inline(b)
    check_transform(padded, sch)


@T.prim_func
def last_counts(B: T.Buffer((3,), "int32"), C: T.Buffer((3,), "int32")):
    for i in range(3):
        with T.block("b"):
            v = T.axis.spatial(3, 2 - i)
            C[1] = B[v]


def test_instances_that_overwrite_each_other_keep_their_order() -> None:
    """compute_at generates them in the order of v: C[1] was B[2], not B[0]."""
    sch = Schedule(last_counts)
    sch.cache_write("b", 0, "global")
    place = sch.get_loops("C_global")[0]
    text = "may set C_global.0. again for another value of v: the order of its instances counts"
    check_refused(sch, lambda: sch.compute_at("b", place), "not-complete-or-reduction", text)
    check_transform(last_counts, sch)


@T.prim_func
def set_twice(B: T.Buffer((2,), "int32"), C: T.Buffer((2,), "int32")):
    D = T.alloc_buffer((2,), "int32")
    for i, j in T.grid(2, 2):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi] = B[vi] + 7
    for i in range(2):
        with T.block("C"):
            vi = T.axis.spatial(2, i)
            C[vi] = D[vi]


def test_instances_that_set_an_element_to_one_value_are_moved() -> None:
    sch = Schedule(set_twice)
    sch.compute_at("D", sch.get_loops("C")[0])
    check_transform(set_twice, sch)


def test_iterators_of_one_value_need_no_inverse() -> None:
    sch, (b, c), _ = start(unit, "B", "C")
    copy = sch.cache_read(c, 0, "local")
    sch.vectorize(sch.get_loops(copy)[1])
    sch.compute_inline(copy)
    sch.reverse_compute_inline(c)
    check_transform(unit, sch)


def test_an_offset_under_a_predicate_is_kept() -> None:
    """P runs where 1 <= i < 8; fusing its loop must keep the offset of `i - 1`."""
    sch, (p,), (loops,) = start(convolution, "P")
    copy = sch.cache_read(p, 0, "global")
    sch.compute_at(copy, loops[1])
    sch.fuse(*sch.get_loops(p)[:2])
    check_transform(convolution, sch)


def test_a_copy_comes_before_the_first_of_several_readers() -> None:
    sch, (b, x), (loops, _) = start(fan_out, "B", "X")
    sch.reverse_compute_at(x, loops[0])
    sch.cache_write(b, 0, "global", ["Y"])
    sch.cache_read("Z", 0, "global")
    check_transform(fan_out, sch)


def test_a_repeated_reduction_keeps_its_init_inside() -> None:
    sch, (m, e), (_, (i, j)) = start(softmax, "M", "E")
    sch.compute_at(m, j)
    check_refused(sch, lambda: sch.decompose_reduction(m, i), "repeated-reduction", "of j")
    sch.decompose_reduction(m, sch.get_loops(m)[-1])
    check_transform(softmax, sch)


def test_a_reduction_is_not_read_before_it_ends() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    copy = sch.cache_write(c, 0, "local")
    sch.reorder(k, i, j)
    message = "continues its reduction"
    check_refused(sch, lambda: sch.reverse_compute_at(copy, i), "unfinished-reduction", message)


def test_a_block_that_skips_part_of_its_domain_is_not_moved() -> None:
    """Only the predicate of the factored block excludes the padded parts of its iterators."""
    sch, (y,), ((i, r),) = start(strided, "Y")
    r0, r1 = sch.split(r, [None, 4])
    part = sch.rfactor(r0, -1)
    loop = sch.get_loops(y)[0]
    check_refused(sch, lambda: sch.compute_at(part, loop), "partial-domain", "on its whole domain")
    check_transform(strided, sch)


def test_a_foreign_value_is_an_unknown_handle() -> None:
    v = Schedule(matmul, seed=0).sample_categorical([1], [1.0])
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    check_refused(sch, lambda: sch.split(i, [None, v + 1]), "unknown-handle", "value handle")


@T.prim_func
def inner_reduction(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4,), "int32")):
    for i, o in T.grid(4, 3):
        with T.block("outer"):
            vi = T.axis.spatial(4, i)
            vo = T.axis.opaque(3, o)
            T.reads(A[vi, vo * 2 : vo * 2 + 2])
            T.writes(C[vi])
            for k in range(2):
                with T.block("C"):
                    vj = T.axis.spatial(4, vi)
                    vk = T.axis.reduce(6, vo * 2 + k)
                    with T.init():
                        C[vj] = 0
                    C[vj] = C[vj] + A[vj, vk]


def test_a_reduction_that_goes_on_outside_of_its_scope_stays_as_it_is() -> None:
    sch, (c,), ((k,),) = start(inner_reduction, "C")
    for step in (
        lambda: sch.decompose_reduction(c, k),
        lambda: sch.rfactor(k, 0),
        lambda: sch.reindex(c, ("write", 0)),
        lambda: sch.reindex_cache_write(c, 0, "global", lambda i, _: i),
    ):
        check_refused(sch, step, "reduction-outside", "over vo of the block outer around it")


def test_a_cache_within_a_block_stays_within_the_buffer() -> None:
    """The block around declares X[-1:...]; only elements inside X are copied."""

    @T.prim_func
    def shifted(A: T.Buffer((4,), "int32"), C: T.Buffer((6,), "int32")):
        with T.block("outer"):
            T.reads(A[-1:5])
            T.writes(C[0:6])
            for i in range(6):
                with T.block("C"):
                    vi = T.axis.spatial(6, i)
                    C[vi] = T.if_then_else(vi >= 1 and vi < 5, A[vi - 1], 0)

    sch, (c,), _ = start(shifted, "C")
    sch.cache_read(c, 0, "global")
    check_transform(shifted, sch, "found_cache_declared")


def test_a_block_is_not_made_of_a_triangle() -> None:
    sch, (c,), ((i, j),) = start(triangle, "C")
    check_refused(sch, lambda: sch.blockize(i), "dependent-bound", "bound of j uses another loop")


def test_a_result_is_not_cached_within_an_init() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.blockize(i)
    init = sch.get_block("C_init")
    check_refused(sch, lambda: sch.cache_write(init, 0, "local"), "in-init", "the init of C_o")


def test_bounds_that_depend_on_loops_are_relaxed_to_the_end() -> None:
    """The bound `i + 1` of the copy must be relaxed over i, too."""
    sch, (c,), _ = start(triangle, "C")
    check_refused(sch, lambda: sch.cache_write(c, 0, "global"), "region-cover", "not proved")
    sch.cache_read(c, 0, "global")
    check_transform(triangle, sch)


def test_an_iterator_that_does_not_start_at_zero_is_solved_from_its_start() -> None:
    """The domain of the consumer is [2, 14)."""

    @T.prim_func
    def part(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
        B = T.alloc_buffer((16,), "int32")
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                B[vi] = A[vi] * 3
        for i in range(12):
            with T.block("C"):
                vi = T.axis.spatial((2, 14), i + 2)
                C[vi] = B[vi] + 1

    for step in ("compute_inline", "reverse_compute_inline"):
        sch, (b, c), _ = start(part, "B", "C")
        getattr(sch, step)(b if step == "compute_inline" else c)
        check_transform(part, sch)


def test_a_block_at_an_iterator_around_it_is_not_padded() -> None:
    """The padded copy would read beyond the block around."""

    @T.prim_func
    def rows(A: T.Buffer((5, 7), "int32"), C: T.Buffer((5, 7), "int32")):
        B = T.alloc_buffer((5, 7), "int32")
        for i, j in T.grid(5, 7):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + 1
        for i, j in T.grid(5, 7):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj]

    sch, (b,), ((_, j),) = start(rows, "B")
    sch.blockize(j)
    check_refused(sch, lambda: sch.pad_einsum(b, [4]), "outer-iterator", "at vi_o, an iterator of")


def test_a_cache_within_a_part_stays_within_what_the_part_declares() -> None:
    """The copy of the part [0, 7), split by two, must not read elements of the next part."""
    sch, (b, c), ((i, _), _) = start(elementwise, "B", "C")
    sch.reverse_compute_at(c, i)
    sch.loop_partition(i, [None, 1])
    sch.split(sch.get_loops("B_i0")[0], [None, 2])
    sch.cache_read("C_i0", 0, "global")
    sch.cache_write("B_i0", 0, "local")
    check_transform(elementwise, sch, "found_cache_in_part")


def test_copies_at_a_part_of_a_loop_stay_within_the_part() -> None:
    @T.prim_func
    def update(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        for i in range(8):
            with T.block("A"):
                vi = T.axis.spatial(8, i)
                A[vi] = A[vi] * 2 + C[vi]

    for step in ("read_at", "cache_inplace"):
        sch, _, ((i,),) = start(update, "A")
        sch.loop_partition(i, [None, 1])
        outer, _ = sch.split(sch.get_loops("A_i0")[0], [None, 2])
        if step == "read_at":
            sch.read_at(outer, "A_i0", 1, "local")
        else:
            sch.cache_inplace("A_i0", 0, "local")
        check_transform(update, sch)


def test_an_init_apart_declares_what_it_reads() -> None:
    """The init block declares to read `index_var_0[vi]`, which an index of the init loads."""
    for apart in ("blockize", "decompose_reduction"):
        sch, (c,), ((i, _, k),) = start(matmul, "C")
        sch.reindex_cache_write(c, 0, "global", lambda i, j, k: (i // 2, j, i % 2))
        sch.cache_index(c, "global", 0)
        made = sch.blockize(i) if apart == "blockize" else sch.decompose_reduction(c, k)
        assert sch.get(made).name in ("C_o", "C_init")
        check_transform(matmul, sch)


def test_a_block_that_never_runs_fills_no_copy() -> None:
    """The last part of the copy of X runs where 1 <= i < 8 and 8 <= i < 9, so never."""
    sch, (p,), _ = start(convolution, "P")
    copy = sch.reindex(p, ("read", 0))
    sch.loop_partition(sch.get_loops(copy)[1], [None, 1])
    last = sch.get_block("X_reindex_ax11")
    refused = check_refused(sch, lambda: sch.reindex(last, ("write", 0)), "partial-domain", "X_rei")
    assert refused.primitive == "reindex"
    check_transform(convolution, sch)


def test_an_inlined_buffer_is_no_longer_declared_either() -> None:
    """C declares to read B but does not; inlining B removes the declaration."""

    @T.prim_func
    def idle(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
        B = T.alloc_buffer((4,), "int32")
        for i in range(4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi]
        for i in range(4):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                T.reads(A[vi], B[vi])
                T.writes(C[vi])
                C[vi] = A[vi] + 1

    sch, (b,), _ = start(idle, "B")
    sch.compute_inline(b)
    check_transform(idle, sch)


@T.prim_func
def double(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * T.float32(2)


def test_views_follow_the_iterators() -> None:
    """transform_block_layout also replaces iterators in the views of a tensorized block."""
    TensorIntrin.register("test.double", double, double)
    sch, (b,), ((i, j),) = start(elementwise, "B")
    inner = sch.split(j, [None, 4])[1]
    outer = sch.blockize(inner)
    sch.tensorize(outer, "test.double")
    sch.transform_block_layout(outer, lambda i, j: (i * 3 + j,))
    check_transform(elementwise, sch)


@T.prim_func
def spread(A: T.Buffer((6, 8), "int32"), X: T.Buffer((8,), "int32"), C: T.Buffer((8, 6), "int32")):
    S = T.alloc_buffer((6,), "int32")
    for i, k in T.grid(6, 8):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0
            S[vi] = S[vi] + A[vi, vk]
    for i, j in T.grid(8, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = X[vi] + S[vj]


def test_a_reduction_repeated_by_part_of_a_loop_keeps_its_init_inside() -> None:
    """Below the fused loop each element `f % 6` of S is computed eight times."""
    sch, (s,), _ = start(spread, "S")
    sch.compute_at(s, sch.get_loops("C")[1])
    sch.fuse(*sch.get_loops(s)[:2])
    outer, inner = sch.get_loops(s)
    check_refused(
        sch, lambda: sch.decompose_reduction(s, outer), "repeated-reduction", "computes S anew"
    )
    sch.decompose_reduction(s, inner)
    check_transform(spread, sch)


def test_a_result_that_a_block_around_declares_does_not_grow() -> None:
    sch, (c,), _ = start(matmul_relu, "C")
    sch.blockize([c, "D"])
    check_refused(
        sch,
        lambda: sch.overcompute(c, [1, 4, 1]),
        "not-allocated",
        "C is allocated outside of the block around",
    )


@T.prim_func
def shifted_sums(
    A: T.Buffer((4, 6), "int32"), E: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")
):
    C = T.alloc_buffer((4,), "int32")
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
    for i in range(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[vi] + E[vi]


def test_an_init_comes_after_what_it_reads() -> None:
    sch, (c,), ((i, k),) = start(shifted_sums, "C")
    sch.fuse_reduction_epilogue(c, "D")
    sch.compute_at(sch.cache_read(c, 0, "global"), i)
    check_refused(
        sch, lambda: sch.decompose_reduction(c, i), "in-between", "E_global below i computes what"
    )
    sch.decompose_reduction(c, k)
    check_transform(shifted_sums, sch)


@T.prim_func
def filled_in_parts(A: T.Buffer((8,), "int32"), C: T.Buffer((6,), "int32")) -> None:
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B0"):
            v = T.axis.spatial(8, i)
            B[v] = 0
    with T.block("scope"):
        T.reads(A[0:8], B[0:8])
        T.writes(B[1:7], C[0:6])
        for i in range(6):
            with T.block("B"):
                v = T.axis.spatial(6, i)
                B[v + 1] = A[v]
        for i in range(6):
            with T.block("C"):
                v = T.axis.spatial(6, i)
                C[v] = B[v] + B[v + 2]


def test_a_cache_of_what_is_written_here_lacks_what_is_written_elsewhere() -> None:
    sch = Schedule(filled_in_parts, seed=0)
    says = "C reads more of B than this scope writes"
    check_refused(sch, lambda: sch.cache_write("B", 0, "global", ["C"]), "not-held", says)
    check_refused(sch, lambda: sch.cache_read("C", "B", "global"), "not-held", says)


def test_a_loop_that_may_be_empty_says_nothing_to_what_stands_beside_it() -> None:
    sch = Schedule(triangle, seed=0)
    _, j = sch.get_loops("C")
    sch.read_at(j, "C", 0, "global")
    sch.cache_write("A_global", 0, "global", ["C"])
    sch.split(sch.get_loops("C")[1], [None, 2])
    check_transform(triangle, sch)


@T.prim_func
def beside_an_empty_loop(
    A: T.Buffer((6,), "int32"), B: T.Buffer((6,), "int32"), D: T.Buffer((6, 6), "int32")
) -> None:
    C = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = A[vi] + 1
    with T.block("all"):
        T.reads(C[0:6])
        T.writes(B[0:6], D[0:6, 0:6])
        for j in range(6):
            for k in range(6):
                D[j, k] = 1
            for k in range(3 - j):
                D[j, k] = 0
            B[j] = C[j]


def test_a_layout_is_not_simplified_by_loops_that_may_be_empty() -> None:
    sch = Schedule(beside_an_empty_loop, seed=0)
    sch.transform_layout("C", ("write", 0), lambda i: (i // 3, i % 3))
    check_transform(beside_an_empty_loop, sch)


@T.prim_func
def part_of_a_padded_row(A: T.Buffer((6,), "int32"), D: T.Buffer((6,), "int32")) -> None:
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial(8, i)
            B[v] = T.if_then_else(v < 6, A[v], 0)
    with T.block("part"):
        T.reads(B[0:6])
        T.writes(D[0:6])
        for j in range(8):
            with T.block("D"):
                v = T.axis.spatial(8, j)
                T.where(j < 6)
                D[v] = T.max(B[v], 0)


def test_a_copy_in_a_layout_stays_within_what_the_block_around_it_reads() -> None:
    sch = Schedule(part_of_a_padded_row, seed=0)
    sch.reindex_cache_read("D", 0, "global", lambda i: i)
    check_transform(part_of_a_padded_row, sch)


@T.prim_func
def padding_in_a_scope(A: T.Buffer((2,), "int32"), B: T.Buffer((8,), "int32")) -> None:
    for i in range(8):
        with T.block("one"):
            vo = T.axis.spatial(8, i)
            T.reads(A[vo - 3])
            T.writes(B[vo])
            with T.block("B"):
                T.reads(A[vo - 3])
                T.writes(B[vo])
                B[vo] = T.if_then_else(vo >= 3 and vo < 5, A[vo - 3], 0)


def test_reindex_copies_no_region_declared_beyond_the_buffer() -> None:
    sch = Schedule(padding_in_a_scope, seed=0)
    sch.reindex("B", ("read", 0))
    check_transform(padding_in_a_scope, sch)


@T.prim_func
def started_by_a_load(
    A: T.Buffer((6, 3), "int32"), E: T.Buffer((6,), "int32"), D: T.Buffer((6,), "int32")
) -> None:
    for i in range(6):
        with T.block("D_o"):
            vi = T.axis.spatial(6, i)
            T.reads(E[vi], A[vi, 0:3])
            T.writes(D[vi])
            with T.init():  # noqa: SIM117
                with T.block("D_init"):
                    T.reads(E[vi])
                    T.writes(D[vi])
                    D[vi] = E[vi]
            for k in range(3):
                with T.block("D"):
                    vk = T.axis.reduce(3, k)
                    T.reads(D[vi], A[vi, vk], E[vi])
                    T.writes(D[vi])
                    D[vi] = D[vi] + A[vi, vk] * E[vi]


def test_a_cache_is_not_read_by_an_init_that_runs_before_it() -> None:
    sch = Schedule(started_by_a_load, seed=0)
    early = lambda: sch.cache_read("D", 2, "global", ["D_init"])  # noqa: E731
    check_refused(sch, early, "in-init", "D_init stands in the init of D_o")
    sch.cache_read("D", 2, "global")
    check_transform(started_by_a_load, sch)


@T.prim_func
def gathered(
    A: T.Buffer((5,), "int32"), I: T.Buffer((5,), "int32"), B: T.Buffer((8,), "int32")
) -> None:
    for i in range(5):
        with T.block("B"):
            v = T.axis.spatial(5, i)
            T.reads(A[I[v] % 5], I[v])
            T.writes(B[v])
            B[v] = A[I[v] % 5] + 1


def test_a_copy_of_what_an_index_buffer_tells_reads_that_too() -> None:
    sch = Schedule(gathered, seed=0)
    sch.read_at(sch.get_loops("B")[0], "B", "A", "global")
    check_transform(gathered, sch)


@T.prim_func
def counted(A: T.Buffer((4,), "int32")) -> None:
    for i in range(4):
        with T.block("A"):
            v = T.axis.spatial(4, i)
            T.reads(A[v])
            T.writes(A[v])
            A[v] = A[v] + 1


def test_a_hidden_read_of_its_own_output_is_not_redirected() -> None:
    sch = Schedule(counted, seed=0)
    sch.unsafe_hide_buffer_access("A", "read", [0])
    step = lambda: sch.reindex("A", ("write", 0))  # noqa: E731
    check_refused(sch, step, "reads-own-output", "both reads and writes A")


def test_blockize_keeps_a_condition_on_a_loop_of_one_iteration() -> None:
    """The last part has one iteration; the condition excludes j = 14 of 12."""
    sch, _, ((_, j),) = start(elementwise, "C")
    _, last = sch.loop_partition(sch.split(j, [None, 5])[1], [None, 1])
    sch.blockize(last)
    check_transform(elementwise, sch)


def test_a_conditional_indirect_read_covers_the_whole_buffer() -> None:
    """The block around the last part must not declare to read A[I[5] % 5], beyond I."""
    sch, _, ((i,),) = start(gathered, "B")
    sch.loop_partition(sch.split(i, [None, 2])[1], [None, 1])
    (a, _) = sch.get(sch.get_block("B_i_11_partition")).reads
    assert [(as_int(r.min), as_int(r.extent)) for r in a.region] == [(0, 5)]
    check_transform(gathered, sch)


def test_a_reduction_shared_by_threads_is_not_put_into_a_block() -> None:
    """The init would run in the first iteration only, but the threads have no order."""
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.reorder(k, i, j)
    sch.bind(k, "threadIdx.x")
    check_refused(
        sch, lambda: sch.loop_partition(i, [None, 1]), "carried-reduction", "threads of k share"
    )


@T.prim_func
def overwritten(A: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32")):
    """Each iteration sets t anew; M reads it before the next iteration does so."""
    t = T.alloc_buffer((1,), "int32")
    B = T.alloc_buffer((8,), "int32")
    C = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] + 1
        with T.block("W"):
            vi = T.axis.opaque(8, i)
            t[0] = A[vi] * 3
        with T.block("M"):
            vi = T.axis.spatial(8, i)
            B[vi] = t[0] * 2
    for i in range(8):
        with T.block("K"):
            vi = T.axis.spatial(8, i)
            D[vi] = B[vi] + C[vi] + t[0]


def test_a_block_does_not_move_away_from_values_that_a_loop_overwrites() -> None:
    sch, (p, m, k), ((i,), _, (j,)) = start(overwritten, "P", "M", "K")
    for step in (lambda: sch.compute_inline(m), lambda: sch.compute_at(m, j)):
        check_refused(sch, step, "changed-input", "M reads t, of which iterations of i may set")
    step = lambda: sch.reverse_compute_at(k, i)  # noqa: E731
    check_refused(sch, step, "changed-input", "K reads t, of which iterations of i may set")
    sch.compute_inline(p)
    check_transform(overwritten, sch)


@T.prim_func
def tiles_of_temporaries(A: T.Buffer((8, 4), "int32"), D: T.Buffer((8, 4), "int32")):
    """Each iteration of i fills t anew, and all readers stand in the same iteration."""
    t = T.alloc_buffer((4,), "int32")
    B = T.alloc_buffer((4,), "int32")
    for i in range(8):
        for j in range(4):
            with T.block("W"):
                vi, vj = T.axis.opaque(8, i), T.axis.spatial(4, j)
                t[vj] = A[vi, vj] * 3
        for j in range(4):
            with T.block("M"):
                vj = T.axis.spatial(4, j)
                B[vj] = t[vj] * 2
        for j in range(4):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = B[vj] + 1


def test_a_block_moves_inside_the_loop_that_sets_its_inputs() -> None:
    sch, (m,), _ = start(tiles_of_temporaries, "M")
    sch.compute_inline(m)
    check_transform(tiles_of_temporaries, sch)
    sch, (m, d), (_, (_, j)) = start(tiles_of_temporaries, "M", "D")
    sch.compute_at(m, j)
    check_transform(tiles_of_temporaries, sch)


def test_a_copy_inside_a_block_is_as_long_as_an_iterator_of_the_block() -> None:
    sch, (c,), ((i, _),) = start(triangle, "C")
    sch.read_at(i, c, 0, "global")
    sch.enclose(sch.get_block("A_global"))
    sch.reindex_cache_read("A_global_1", 0, "global", lambda i0: (i0,))
    check_transform(triangle, sch)
    check_numbers(triangle, sch.mod, compiled=True)


@T.prim_func
def remainders(A: T.Buffer((3, 3), "int32"), C: T.Buffer((3, 6), "int32")):
    """The fused loops of a triangle: without an iteration where vi is zero."""
    for i in range(3):
        for f in range(3 * i):
            with T.block("c"):
                vi = T.axis.spatial(3, i)
                vf = T.axis.spatial(6, f)
                C[vi, vf] = A[vi, vf % vi]


def test_a_copy_does_not_divide_by_zero_beside_the_triangle() -> None:
    sch = Schedule(remainders)
    step = lambda: sch.reindex("c", ("read", 0))  # noqa: E731
    check_refused(
        sch, step, "divides", "an index may divide by zero beside the elements of c: by v"
    )
    check_transform(remainders, sch)


@T.prim_func
def half_skipped(A: T.Buffer((5,), "int32"), B: T.Buffer((1, 5), "int32")):
    for i, j in T.grid(2, 5):
        with T.block("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i < 1)
            B[vi, vj] = A[vj]


def test_skewed_loops_are_fused_where_a_condition_leaves_one_row() -> None:
    """vj was one too small: f % 6 >= 1 is f >= 1 where f // 6 < 1 holds, and counted twice."""
    sch, _, ((i, j),) = start(half_skipped, "b")
    sch.fuse(i, sch.skew(i, j, -1))
    check_transform(half_skipped, sch)


@T.prim_func
def sums_of_nothing(A: T.Buffer((3, 4), "int32"), B: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, 0):
        with T.block("b"):
            vi, vk = T.axis.spatial(3, i), T.axis.reduce(4, k)
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vk]


def test_a_block_around_an_empty_reduction_would_run_its_init() -> None:
    """The results stay as they are; a block around the loop would set them."""
    sch, _, ((_, k),) = start(sums_of_nothing, "b")
    text = "the loop k may leave b without an iteration for some results"
    check_refused(sch, lambda: sch.blockize(k), "empty-reduction", text)
    check_transform(sums_of_nothing, sch)


@T.prim_func
def beside_what_is_written(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for t in range(3):
        for i in range(1, 2):
            with T.block("c"):
                vi = T.axis.spatial((1, 2), i)
                C[vi] = A[vi] * 2
        for i in range(1, 2):
            with T.block("a"):
                vi = T.axis.spatial((1, 2), i)
                A[vi] = A[vi] + C[vi + 1]


def test_a_reader_of_other_elements_reads_no_new_buffer() -> None:
    """`a` reads what C held before the call; the new buffer holds nothing there."""
    sch = Schedule(beside_what_is_written, check=True)
    check_refused(
        sch, lambda: sch.cache_write("c", 0, "global", ["a"]), "not-a-consumer",
        "a reads no element of C that c writes",
    )  # fmt: skip


@T.prim_func
def between_what_is_written(
    A: T.Buffer((10,), "int32"), C: T.Buffer((31,), "int32"), D: T.Buffer((10,), "int32")
):
    for i in range(10):
        with T.block("c"):
            vi = T.axis.spatial(10, i)
            C[vi * 3] = A[vi]
        with T.block("d"):
            vi = T.axis.spatial(10, i)
            D[vi] = C[vi * 3 + 1] + C[vi * 3 + 2]


def test_a_reader_between_the_written_elements_reads_what_it_read_before() -> None:
    """The iterator of the copy takes all indices, so it may seem to write what `d` reads."""
    sch = Schedule(between_what_is_written, check=True)
    sch.cache_write("c", 0, "global")
    check_transform(between_what_is_written, sch)


@pytest.mark.parametrize(("first", "empty"), [("vr", True), ("vr + 1", False)])
def test_an_iterator_around_may_leave_a_reduction_nothing(first: str, empty: bool) -> None:
    """An init that runs for results without an iteration would set them, and a copy of the
    results, back from a new buffer, would bring elements that nobody wrote."""
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((3, 4)), D: T.Buffer((3,))):
    for r in range(3):
        with T.block("row"):
            vr = T.axis.spatial(3, r)
            for k in range({first}):
                with T.block("D"):
                    vi = T.axis.spatial(3, vr)
                    vk = T.axis.reduce(4, k)
                    with T.init():
                        D[vi] = T.float32(0)
                    D[vi] = D[vi] + A[vi, vk]
""")
    sch = Schedule(func, check=True)
    (loop,) = sch.get_loops("D")
    if empty:
        text = "the loop k may leave D without an iteration"
        check_refused(sch, lambda: sch.decompose_reduction("D", loop), "empty-reduction", text)
        copy = "the loop k may have no iteration"
        check_refused(sch, lambda: sch.cache_write("D", 0, "global"), "region-cover", copy)
        text = "D is not proved to run for all values of its iterators"
        again = lambda: sch.reindex_cache_write("D", 0, "global", lambda i, k: (i,))  # noqa: E731
        check_refused(sch, again, "partial-domain", text)
    else:
        sch.cache_write("D", 0, "global")
        sch.decompose_reduction("D", loop)
        check_transform(func, sch)


def test_a_variable_from_memory_may_leave_a_reduction_nothing() -> None:
    """The copy of the results brought an element that nobody wrote over the old one."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((3, 4)), N: T.Buffer((3,), "int32"), D: T.Buffer((3,))):
    for r in range(3):
        m = N[r]
        for k in range(m):
            with T.block("D"):
                vi = T.axis.spatial(3, r)
                vk = T.axis.reduce(4, k)
                with T.init():
                    D[vi] = T.float32(0)
                D[vi] = D[vi] + A[vi, vk]
""")
    sch = Schedule(func)
    text = "the loop k may have no iteration"
    check_refused(sch, lambda: sch.cache_write("D", 0, "global"), "region-cover", text)


ROWS = """
@T.prim_func
def f(
    A: T.Buffer((3, 4)), N: T.Buffer((3,), "int32"), B: T.Buffer((3,)), R: T.Buffer((3,)),
    C: T.Buffer((3,)), n: T.int32,
):
    for r in range(3):
        with T.block("row"):
            vr = T.axis.spatial(3, r)
            m = {length}
            for k in range(m):
                with T.block("C"):
                    vk = T.axis.reduce(4, k)
                    with T.init():
                        C[vr] = T.float32(0)
                    C[vr] = C[vr] + A[vr, vk]
    for r in range(3):
        with T.block("R"):
            vr = T.axis.spatial(3, r)
            R[vr] = C[vr]
"""


@pytest.mark.parametrize("length", ["N[vr]", "vr", "T.min(N[vr], n)"])
def test_rows_of_variable_length_leave_their_results_as_they_were(length: str) -> None:
    """Blocks around, variables and memory decide lengths, which no kernel asserts."""
    sch = Schedule(parse(ROWS.format(length=length)))
    text = "reads C_global.*which is not proved to be written before: C_global.* by row"
    check_refused(sch, lambda: sch.cache_write("row", 0, "global", ["R"]), "region-cover", text)


def test_a_rolling_update_of_rows_without_an_iteration_is_refused() -> None:
    """The result so far begins with the identity, which the step brought over the old value."""
    sch = Schedule(parse(ROWS.format(length="N[vr]")))
    (loop,) = sch.get_loops("C")
    text = "the loop k may leave C without an iteration"
    check_refused(sch, lambda: sch.rolling_update([loop], 2), "empty-reduction", text)
    sch = Schedule(func := parse(ROWS.format(length="n")), check=True)
    sch.rolling_update(sch.get_loops("C"), 2)
    assert sch.get(sch.get_block("C_final")).writes[0].buffer is func.params[4]


FILLED = """    C = T.alloc_buffer((3,))
    for r in range(3):
        with T.block("B"):
            vr = T.axis.spatial(3, r)
            C[vr] = B[vr]
    for r in range(3):
        with T.block("row"):"""


@pytest.mark.parametrize(("length", "kept"), [("N[vr]", True), ("vr", True), ("n", False)])
def test_an_expanded_buffer_keeps_what_rows_without_an_iteration_leave(
    length: str, kept: bool
) -> None:
    """The values of the first stage moved to a buffer of their own, where nothing read them."""
    first = ROWS.index("    for r in range(3):")
    second = ROWS.index("            vr = T.axis", first)
    text = ROWS[:first].replace("C: T.Buffer((3,)), ", "") + FILLED + "\n" + ROWS[second:]
    func = parse(text.format(length=length))
    sch = Schedule(func, check=True)
    (loop,) = sch.get_loops("B")
    if kept:
        said = "block R may read a value of C from another iteration of r"
        check_refused(sch, lambda: sch.expand_buffer("B", 0, loop), "value-carried", said)
    else:
        sch.expand_buffer("B", 0, loop)


@pytest.mark.parametrize("length", ["vr + 1", "4 - vr", "n", "T.max(N[vr], 1)"])
def test_rows_with_an_iteration_are_results(length: str) -> None:
    """A scalar parameter is a length that kernels assert."""
    func = parse(ROWS.format(length=length))
    sch = Schedule(func, check=True)
    sch.cache_write("row", 0, "global", ["R"])


@T.prim_func
def places_by_a_variable(
    N: T.Buffer((9,), "int32"), A: T.Buffer((32,)), B: T.Buffer((8,)), C: T.Buffer((8,))
):
    for r in range(8):
        m = N[r]
        with T.block("A"):
            vr = T.axis.spatial(8, r)
            A[m + vr] = B[vr]
        with T.block("C"):
            vr = T.axis.spatial(8, r)
            C[vr] = A[m + vr + 1]


@T.prim_func
def places_that_change(
    N: T.Buffer((9,), "int32"), A: T.Buffer((32,)), B: T.Buffer((8,)), C: T.Buffer((8,))
):
    for r in range(8):
        m = N[r] % 16
        for k in range(4):
            with T.block("A"):
                vk = T.axis.spatial(4, k)
                A[m + vk] = B[vk]
        with T.block("C"):
            vr = T.axis.spatial(8, r)
            C[vr] = A[m + 4]
        with T.block("N"):
            vr = T.axis.spatial(8, r)
            N[vr + 1] = m + 1


def test_a_variable_that_reads_memory_has_another_value_in_each_iteration() -> None:
    """The variable counted as one number, so its iterations seemed to store to different
    elements, and the two blocks seemed to touch different elements."""
    sch = Schedule(places_by_a_variable)
    (loop,) = sch.get_loops("A")
    for step in (lambda: sch.parallel(loop), lambda: sch.vectorize(loop)):
        check_refused(sch, step, "carried-dependence", r"block A writes A\[N\[vr\] \+ vr\]")
    sch = Schedule(places_that_change)
    outer, inner = sch.get_loops("A")
    text = "different iterations of loop r may touch the same element of A"
    check_refused(sch, lambda: sch.parallel(outer), "carried-dependence", text)
    edges = Scope.of(sch.mod["main"].root).edges
    assert ("A", EdgeKind.RAW) in [(e.buffer.name, e.kind) for e in edges]
    sch.vectorize(inner)  # one iteration of r has one value
    check_transform(places_that_change, sch)


def test_a_variable_around_blocks_gives_way_to_its_value() -> None:
    """A variable kept a scope from being a pipeline of stages, so that no stage moved."""
    func = parse("""
@T.prim_func
def f(S: T.Buffer((4,)), A: T.Buffer((4, 6)), B: T.Buffer((4, 6))):
    T_ = T.alloc_buffer((4, 6))
    for r in range(4):
        s = S[r] * T.float32(2)
        for j in range(6):
            with T.block("T"):
                vr, vj = T.axis.remap("SS", [r, j])
                T_[vr, vj] = A[vr, vj] * s
    for r, j in T.grid(4, 6):
        with T.block("B"):
            vr, vj = T.axis.remap("SS", [r, j])
            B[vr, vj] = T_[vr, vj] + T.float32(1)
""")
    sch = Schedule(func, check=True)
    sch.compute_inline("T")
    check_transform(func, sch)


def test_a_copy_does_not_stand_where_a_variable_has_no_value() -> None:
    sch = Schedule(places_that_change)
    copy = lambda: sch.reindex_cache_write("A", 0, "global", lambda k: (k,))  # noqa: E731
    check_refused(sch, copy, "uses-variable", "an index of the copy is over m, which has no value")


def test_a_copy_in_place_reads_its_ends_where_the_block_runs() -> None:
    """The ends of the copy's loop read an element beyond the buffer where the block skips."""
    func = parse("""
@T.prim_func
def f(N: T.Buffer((2,), "int32"), X: T.Buffer((10,), "int32")):
    for r in range(2):
        with T.block("O"):
            vr = T.axis.spatial(2, r)
            for k in range(N[vr] % 4):
                with T.block("X"):
                    vk = T.axis.opaque(4, k)
                    X[vr * 5 + vk] = X[vr * 5 + vk] + 1
""")
    sch = Schedule(func, check=True)
    sch.split(sch.get_loops("O")[0], [None, 3])
    sch.cache_inplace("O", "X", "global")
    check_transform(func, sch)


def test_a_region_that_no_iteration_touches_has_no_negative_extent() -> None:
    """The extent T.min(2 - vr, -1) became -1 in a tensor intrinsic, which no buffer may have."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((4, 3)), C: T.Buffer((4,))):
    for r in range(4):
        with T.block("O"):
            vr = T.axis.spatial(4, r)
            for k in range(T.min(vr, 3), T.min(vr, 3)):
                with T.block("C"):
                    vk = T.axis.reduce(3, k)
                    T.where(k > vr)
                    with T.init():
                        C[vr] = T.float32(0)
                    C[vr] = C[vr] + A[vr, vk]
""")
    (read,) = func.body.block.body.body.block.reads
    assert as_int(read.region[1].extent) == 0


@pytest.mark.parametrize(("read", "stored"), [("A", "V"), ("V", "A")])
def test_a_variable_keeps_its_name_beside_a_view_of_its_memory(read: str, stored: str) -> None:
    """A store to the view changed what the value in place of the variable reads."""
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    with T.block("b"):
        T.reads(A[0:8])
        T.writes(A[0:8], C[0:8])
        V = T.match_buffer(A[0:8], (8,), "int32", offset_factor=1)
        for r in range(8):
            x = {read}[r]
            with T.block("store"):
                vr = T.axis.opaque(8, r)
                {stored}[vr] = 100 + vr
            with T.block("C"):
                vr = T.axis.spatial(8, r)
                C[vr] = x
""")
    check_transform(func, Schedule(func, check=True))
    a, c = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    build(func)(a, c)
    assert c.tolist() == list(range(8))


def test_enclosed_statements_keep_a_variable_beside_a_view_of_its_memory() -> None:
    """The place B[A[r]] was read after the store to the view of A."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), B: T.Buffer((200,), "int32"), C: T.Buffer((8,), "int32")):
    with T.block("b"):
        T.reads(A[0:8], B[0:200])
        T.writes(A[0:8], C[0:8])
        V = T.match_buffer(A[0:8], (8,), "int32", offset_factor=1)
        for r in range(8):
            x = T.max(A[r], 0)
            V[r] = 100 + r
            for j in range(2):
                C[r] = B[x + j]
""")
    sch = Schedule(func, check=True)
    sch.enclose("b")
    check_transform(func, sch)
