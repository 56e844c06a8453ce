"""rolling_buffer: the ring buffer, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.ir.equal import assert_structural_equal
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script
from metasched.script import tir as T


@T.prim_func
def pools(A: T.Buffer((12, 12), "int32"), C: T.Buffer((8, 8), "int32")):
    B = T.alloc_buffer((10, 10), "int32")
    for i, j, r, s in T.grid(10, 10, 3, 3):
        with T.block("B"):
            vi, vj, vr, vs = T.axis.remap("SSRR", [i, j, r, s])
            with T.init():
                B[vi, vj] = 0
            B[vi, vj] = T.max(B[vi, vj], A[vi + vr, vj + vs])
    for i, j, r, s in T.grid(8, 8, 3, 3):
        with T.block("C"):
            vi, vj, vr, vs = T.axis.remap("SSRR", [i, j, r, s])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = T.max(C[vi, vj], B[vi + vr, vj + vs])


@T.prim_func
def pools_rolled(A: T.Buffer((12, 12), "int32"), C: T.Buffer((8, 8), "int32")):
    T.func_attr({"global_symbol": "pools"})
    B = T.alloc_buffer((6, 10), "int32")
    for i_0, j_0 in T.grid(2, 2):
        for ax0, ax1, ax2, ax3 in T.grid(6, 6, 3, 3):
            with T.block("B"):
                T.where((i_0 < 1 or 2 <= ax0) and (j_0 < 1 or 2 <= ax1))
                vi = T.axis.spatial(10, i_0 * 4 + ax0)
                vj = T.axis.spatial(10, j_0 * 4 + ax1)
                vr, vs = T.axis.remap("RR", [ax2, ax3])
                v_i_0 = T.axis.opaque(2, i_0)
                v_j_0 = T.axis.opaque(2, j_0)
                with T.init():
                    B[vi % 6, vj] = 0
                B[vi % 6, vj] = T.max(B[vi % 6, vj], A[vi + vr, vj + vs])
        for i_1, j_1, r, s in T.grid(4, 4, 3, 3):
            with T.block("C"):
                vi = T.axis.spatial(8, i_0 * 4 + i_1)
                vj = T.axis.spatial(8, j_0 * 4 + j_1)
                vr, vs = T.axis.remap("RR", [r, s])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = T.max(C[vi, vj], B[(vi + vr) % 6, vj + vs])


def tiled(func=pools, factors=(4, 4)):
    sch = Schedule(func, seed=0)
    i, j, _, _ = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, factors[0]])
    j0, j1 = sch.split(j, [None, factors[1]])
    sch.reorder(i0, j0, i1, j1)
    return sch, i0, j0


def test_tiles_that_overlap_in_two_dimensions():
    sch, _, j0 = tiled()
    sch.compute_at("B", j0)
    sch.rolling_buffer("B", 0)
    assert_structural_equal(sch.mod["main"], pools_rolled)
    check_transform(pools, sch)


def test_rows():
    for factor in (1, 2, 4):
        sch, i0, _ = tiled(factors=(factor, 8))
        sch.compute_at("B", i0)
        sch.rolling_buffer("B", "B")
        block = sch.get(sch.get_block("B"))
        assert block.writes[0].buffer.constant_shape()[0] == factor + 2
        check_transform(pools, sch)


def test_other_loops_around_and_between():
    sch, i0, j0 = tiled(factors=(2, 2))
    sch.reorder(j0, i0)
    sch.compute_at("B", i0)
    sch.rolling_buffer("B", 0)
    assert sch.get(sch.get_block("B")).writes[0].buffer.constant_shape() == (10, 4)
    check_transform(pools, sch)

    @T.prim_func
    def batched(A: T.Buffer((2, 8, 2), "int32"), C: T.Buffer((2, 6, 2), "int32")):
        B = T.alloc_buffer((2, 8, 2), "int32")
        for b, i, c in T.grid(2, 8, 2):
            with T.block("B"):
                vb, vi, vc = T.axis.remap("SSS", [b, i, c])
                B[vb, vi, vc] = A[vb, vi, vc] * 2
        for b, i, c, r in T.grid(2, 6, 2, 3):
            with T.block("C"):
                vb, vi, vc, vr = T.axis.remap("SSSR", [b, i, c, r])
                with T.init():
                    C[vb, vi, vc] = 0
                C[vb, vi, vc] = C[vb, vi, vc] + B[vb, vi + vr, vc]

    for depth in (1, 2):
        sch = Schedule(batched, seed=0)
        sch.compute_at("B", sch.get_loops("C")[depth])
        sch.rolling_buffer("B", 0)
        assert sch.get(sch.get_block("B")).writes[0].buffer.constant_shape() == (2, 3, 2)
        check_transform(batched, sch)


def refused(sch, reason, message, block="B"):
    check_refused(sch, lambda: sch.rolling_buffer(block, 0), reason, message)


def test_refusals():
    sch, i0, j0 = tiled()
    refused(sch, "no-common-loop", "shares no loop with the readers of B")
    refused(sch, "not-allocated", "C is a parameter", "C")
    sch.compute_at("B", i0)
    sch.parallel(i0)
    refused(sch, "loop-has-kind", "i_0 is parallel already")

    @T.prim_func
    def apart(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        B = T.alloc_buffer((8,), "int32")
        for i in range(8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = A[v] + 1
            with T.block("C"):
                v = T.axis.spatial(8, i)
                C[v] = B[v] * 2

    sch = Schedule(apart, seed=0)
    refused(sch, "no-overlap", "no dimension of B overlaps")
    sch, i0, j0 = tiled()
    sch.compute_at("B", j0)
    sch.rolling_buffer("B", 0)
    refused(sch, "region-cover", "not proved to be written before")


ROWS = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    S = T.alloc_buffer((8,), "int32")
    for i in range(6):
        {before}
        for x in range(3):
            with T.block("B"):
                v = T.axis.spatial(8, i + x)
                {body}
        for r in range(3):
            with T.block("C"):
                vi, vr = T.axis.remap("SR", [i, r])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + B[vi + vr]
"""


def test_elements_that_change_are_not_kept():
    before = """for x in range(3):
            with T.block("S"):
                v = T.axis.spatial(8, i + x)
                k = T.axis.reduce(6, i)
                with T.init():
                    S[v] = 0
                S[v] = S[v] + A[v] * k"""
    func = parse(ROWS.format(before=before, body="B[v] = S[v]"))
    sch = Schedule(func, seed=0)
    refused(sch, "unfinished", "S reduces over a loop that it shares")


def test_a_predicate_on_the_element_alone_is_kept():
    """The last tile is cut short: the predicate of B depends on the element alone."""
    for factors in ((3, 3), (3, 8), (5, 3)):
        sch, _, j0 = tiled(factors=factors)
        sch.compute_at("B", j0)
        assert "T.where" in script(sch.get(sch.get_loops("B")[0]))
        sch.rolling_buffer("B", 0)
        check_transform(pools, sch)


def test_a_predicate_on_the_iteration_is_refused():
    for where in ("x < 2 or i < 1", "x < 7 - i - x", "i < 5 and x < 3"):
        body = f"T.where({where})\n                B[v] = A[v]"
        func = parse(ROWS.format(before="", body=body).replace("(vi + vr)", "(vi)"))
        sch = Schedule(func, seed=0)
        with pytest.raises(ScheduleError) as caught:
            sch.rolling_buffer("B", 0)
        assert caught.value.reason in ("moving-predicate", "region-cover")
    body = "T.where(x < 2)\n                B[v] = A[v]"
    text = ROWS.format(before="", body=body).replace("for r in range(3)", "for r in range(2)")
    sch = Schedule(parse(text), seed=0)
    refused(sch, "moving-predicate", r"x < 2 may skip an element in one iteration of i")


def test_other_uses_of_the_buffer_are_refused():
    after = """
    for i in range(8):
        with T.block("W"):
            v = T.axis.spatial(8, i)
            B[v] = 1
"""
    func = parse(ROWS.format(before="", body="B[v] = A[v]") + after)
    sch = Schedule(func, seed=0)
    with_war = "write-after-read"  # a stage pipeline refuses it first
    refused(sch, with_war, "W overwrites B, which C reads")
    func = parse(
        ROWS.format(before="", body="B[v] = A[v]").replace(
            "                C[vi] = C[vi] + B[vi + vr]",
            "                X = T.match_buffer(B[vi + vr], (1,), 'int32', offset_factor=1)\n"
            "                C[vi] = C[vi] + X[0]",
        )
    )
    sch = Schedule(func, seed=0)
    refused(sch, "opaque-use", "C matches a region of B")


def test_a_second_store_is_refused():
    func = parse(ROWS.format(before="", body="B[v] = A[v]\n                S[v] = 1"))
    sch = Schedule(func, seed=0)
    refused(sch, "not-a-point", "does not write B alone")


def test_a_plain_sum_of_neighbours():
    func = parse(ROWS.format(before="", body="B[v] = A[v] * 3"))
    sch = Schedule(func, seed=0)
    sch.rolling_buffer("B", 0)
    check_transform(func, sch)


STEPPED = """
@T.prim_func
def f(A: T.Buffer((12,), "int32"), C: T.Buffer((8,), "int32")):
    with T.block("all"):
        T.reads(A[0:12])
        T.writes(C[0:8])
        B = T.alloc_buffer((12,), "int32")
        for i in T.serial(0, 16, step=2):
            for j in range(3):
                with T.block("B"):
                    v = T.axis.spatial(12, i // 2 + j)
                    B[v] = A[v]
            with T.block("C"):
                v = T.axis.spatial(8, i // 2)
                C[v] = B[v] + B[v + 2]
"""


def test_a_loop_with_a_step():
    before = parse(STEPPED)
    sch = Schedule(before, check=True)
    sch.rolling_buffer("B", 0)
    check_transform(before, sch)


@T.prim_func
def sweeps(X: T.Buffer((13, 9), "int32"), Y: T.Buffer((9, 5), "int32")):
    A = T.alloc_buffer((11, 7), "int32")
    B = T.alloc_buffer((9, 5), "int32")
    for i, j in T.grid(11, 7):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj + 1] * 2 + X[vi + 2, vj + 2]
    for i, j in T.grid(9, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj + 2] * 3 + A[vi + 2, vj]
    for i, j in T.grid(7, 5):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = B[vi, vj] * 5 + B[vi + 2, vj]


@pytest.mark.parametrize("rows", [2, 3, 7])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_strips(rows, kind):
    """Each strip begins with whole parts; on threads each strip has rings of its own."""
    sch = Schedule(sweeps, seed=0)
    i, _ = sch.get_loops("Y")
    strip, row = sch.split(i, [None, rows])
    if kind == "parallel":
        sch.parallel(strip)
    sch.compute_at("B", row)
    sch.compute_at("A", row)
    sch.rolling_buffer([sch.get_block("A"), sch.get_block("B")], 0)
    made = [sch.get(sch.get_block(b)).writes[0].buffer.constant_shape() for b in "AB"]
    assert made == [(5, 7), (3, 5)]
    check_transform(sweeps, sch)


def test_threads_inside_the_rows_are_refused():
    sch = Schedule(sweeps, seed=0)
    i, j = sch.get_loops("Y")
    sch.reorder(j, i)
    strip, row = sch.split(i, [None, 3])
    sch.compute_at("B", row)
    sch.parallel(row)
    refused(sch, "loop-has-kind", "i_1 is parallel already")
    check_transform(sweeps, sch)


def test_no_block_is_refused():
    sch = Schedule(sweeps, seed=0)
    block = sch.get_block("A")
    for given in ([], [block, block], [[block]]):
        step = lambda given=given: sch.rolling_buffer(given, 0)  # noqa: E731
        check_refused(sch, step, "no-blocks", "needs one block or several different ones")


def test_a_ring_is_no_stage_for_a_second_step():
    sch = Schedule(sweeps, seed=0)
    i, _ = sch.get_loops("Y")
    sch.compute_at("B", i)
    sch.compute_at("A", i)
    sch.rolling_buffer("A", 0)
    refused(sch, "region-cover", "block B reads A")


def test_two_dimensions_that_move_together_are_refused():
    """The iteration before made no element of the new column in the rows that are kept."""

    @T.prim_func
    def diagonal(A: T.Buffer((10, 10), "int32"), C: T.Buffer((8,), "int32")):
        B = T.alloc_buffer((10, 10), "int32")
        for i, j in T.grid(10, 10):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2
        for i, r, s in T.grid(8, 3, 3):
            with T.block("C"):
                vi, vr, vs = T.axis.remap("SRR", [i, r, s])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + B[vi + vr, vi + vs]

    sch = Schedule(diagonal, seed=0)
    sch.compute_at("B", sch.get_loops("C")[0])
    refused(sch, "no-overlap", "no dimension of B overlaps")
