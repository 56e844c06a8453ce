"""Loops whose extent depends on other loops or on data: which steps are legal below."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.analysis.block import region_cover
from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.parser import parse


def sums(span: str) -> Schedule:
    """A sum over a row whose length depends on the row."""
    return Schedule(
        parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 6), "int32"), P: T.Buffer((7,), "int32"), D: T.Buffer((6,), "int32")):
    for i in range(6):
        for k in {span}:
            with T.block("D"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    D[vi] = 0
                D[vi] = D[vi] + A[vi, vk]
"""),
        check=True,
    )


@pytest.mark.parametrize("span", ["range(i)", "range(5 - i)", "range(P[i])"])
@pytest.mark.parametrize("level", [0, 1])
def test_the_init_of_an_empty_row_cannot_be_taken_out(span, level):
    sch = sums(span)
    loop = sch.get_loops("D")[level]
    message = "the loop k may leave D without an iteration"
    check_refused(sch, lambda: sch.decompose_reduction("D", loop), "empty-reduction", message)


@pytest.mark.parametrize("span", ["range(i + 1)", "range(6 - i)", "range(i // 2 + 1)"])
@pytest.mark.parametrize("level", [0, 1])
def test_the_init_of_rows_that_are_not_empty_is_taken_out(span, level):
    sch = sums(span)
    before = sch.mod["main"]
    sch.decompose_reduction("D", sch.get_loops("D")[level])
    check_transform(before, sch)


def test_a_condition_that_leaves_a_row_empty_is_seen():
    @T.prim_func
    def f(A: T.Buffer((6, 6), "int32"), D: T.Buffer((6,), "int32")):
        for i, k in T.grid(6, 6):
            with T.block("D"):
                vi, vk = T.axis.remap("SR", [i, k])
                T.where(k < A[i, 0])
                with T.init():
                    D[vi] = 0
                D[vi] = D[vi] + A[vi, vk]

    sch = Schedule(f)
    loop = sch.get_loops("D")[0]
    with pytest.raises(ScheduleError) as caught:
        sch.decompose_reduction("D", loop)
    assert caught.value.reason in ("not-affine", "empty-reduction")


def test_partial_results_of_rows_of_different_length_have_no_size():
    sch = sums("range(i + 1)")
    loop = sch.get_loops("D")[1]
    check_refused(sch, lambda: sch.rfactor(loop, 0), "dependent-extent", "the reduction loop k")


def test_a_stage_holds_no_row_that_is_not_written():
    sch = sums("range(i)")
    check_refused(
        sch,
        lambda: sch.cache_write("D", 0, "global"),
        "region-cover",
        r"D_global\[vi\] by D; the loop k may have no iteration ",
    )
    sch = sums("range(i + 1)")
    before = sch.mod["main"]
    sch.cache_write("D", 0, "global")
    check_transform(before, sch)


def stages(span: str, bound: str = "") -> Scope:
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 6), "int32"), C: T.Buffer((6, 6), "int32")):
    B = T.alloc_buffer((6, 6), "int32")
    for i in range(6):
        for j in {span}:
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]
        for j in {bound or span}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj]
""")
    return Scope.of(Schedule(func).mod["main"].root)


@pytest.mark.parametrize("span", ["range(i)", "range(i, 6)", "range(T.min(i, 4))"])
def test_the_same_triangle_is_covered(span):
    scope = stages(span)
    assert region_cover(scope, scope.realizes[1].token) is None


@pytest.mark.parametrize(
    ("span", "bound"), [("range(T.min(i, 4))", "range(4)"), ("range(i)", "range(i + 1)")]
)
def test_a_larger_consumer_is_not_covered(span, bound):
    """The largest extent of the producer is not the extent of each iteration."""
    scope = stages(span, bound)
    failure = region_cover(scope, scope.realizes[1].token)
    assert failure is not None and failure.slug == "region-cover"


def test_a_producer_below_an_empty_loop_covers_nothing():
    @T.prim_func
    def f(C: T.Buffer((6,), "int32")):
        B = T.alloc_buffer((6,), "int32")
        for i in range(6):
            for _r in range(i):
                with T.block("B"):
                    vi = T.axis.spatial(6, i)
                    B[vi] = vi
            with T.block("C"):
                vi = T.axis.spatial(6, i)
                C[vi] = B[vi]

    scope = Scope.of(Schedule(f).mod["main"].root)
    failure = region_cover(scope, scope.realizes[1].token)
    assert failure is not None and failure.slug == "region-cover"


def test_a_view_does_not_run_on_beyond_its_buffer():
    @T.prim_func
    def f(A: T.Buffer((5,), "int32"), C: T.Buffer((5,), "int32")):
        B = T.alloc_buffer((5,), "int32")
        for i in range(5):
            with T.block("B"):
                vi = T.axis.spatial(5, i)
                S = T.match_buffer(A[vi], ())
                B[vi] = S[()] + 1
        for i in range(5):
            with T.block("C"):
                vi = T.axis.spatial(5, i)
                C[vi] = B[vi]

    sch = Schedule(f)
    check_refused(sch, lambda: sch.overcompute("B", [4]), "opaque-use", "would leave its buffer")


@T.prim_func
def halves(A: T.Buffer((5, 5), "float32"), C: T.Buffer((5, 5), "float32")):
    B = T.alloc_buffer((5, 5), "float32")
    for i in range(5):
        for j in range(i // 2 + 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + T.float32(1)
    for i in range(5):
        for j in range(i // 2 + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] * T.float32(2)


def test_merged_loops_have_extents_of_the_merged_loops_above():
    sch = Schedule(halves, check=True)
    sch.merge(sch.get_loops("B")[1], sch.get_loops("C")[1])
    check_transform(halves, sch)


def test_a_new_block_has_a_domain_without_the_loops_around_it():
    text = halves.script().replace("for j in range(i // 2 + 1)", "for j in range(5)", 1)
    sch = Schedule(parse(text), check=True)
    before = sch.mod["main"]
    _, tiles = sch.get_loops("C")
    outer, _ = sch.split(tiles, [None, 2])
    sch.compute_at("B", outer)
    sch.blockize(sch.get_loops("B")[-1])
    check_transform(before, sch)


CENTRED = """
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), S: T.Buffer((6,), "int32"), C: T.Buffer((6, 5), "int32")):
    B = T.alloc_buffer((6, 5), "int32")
    for i, k in T.grid(6, 5):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0
            S[vi] = S[vi] + A[vi, vk]
    for i in range(6):
        with T.block("halve"):
            vi = T.axis.spatial(6, i)
            S[vi] = S[vi] // 2
    for i, k in T.grid(6, 5):
        with T.block("A"):
            vi, vk = T.axis.remap("SS", [i, k])
            A[vi, vk] = A[vi, vk] - S[vi]
    for i, k in T.grid(6, 5):
        with T.block("B"):
            vi, vk = T.axis.remap("SS", [i, k])
            B[vi, vk] = A[vi, vk] * 2
    for i, k in T.grid(6, 5):
        with T.block("C"):
            vi, vk = T.axis.remap("SS", [i, k])
            C[vi, vk] = B[vi, vk] + 1
"""


def test_a_block_moves_though_other_blocks_overwrite_what_it_reads():
    """The blocks S and A, in conflict over A, keep their order when B moves."""
    func = parse(CENTRED)
    sch = Schedule(func, check=True)
    sch.overcompute("B", [1, 4])
    sch.compute_at("B", sch.get_loops("C")[0])
    check_transform(func, sch)


def test_an_init_is_taken_out_though_a_later_nest_writes_the_results():
    func = parse(CENTRED)
    sch = Schedule(func, check=True)
    sch.decompose_reduction("S", sch.get_loops("S")[0])
    check_transform(func, sch)


@pytest.mark.parametrize("level", [0, 1])
def test_an_init_is_taken_out_though_a_later_block_of_the_loop_writes_the_results(level):
    func = parse(CENTRED)
    sch = Schedule(func, check=True)
    sch.merge(sch.get_loops("S")[0], sch.get_loops("halve")[0])
    sch.decompose_reduction("S", sch.get_loops("S")[level])
    check_transform(func, sch)
