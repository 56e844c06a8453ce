"""merge: nests that may run as one, and those that may not."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.describe import show_expr
from metasched.ir.equal import assert_structural_equal
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def stages(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    B = T.alloc_buffer((4, 6), "int32")
    for i, j in T.grid(4, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * 2


@T.prim_func
def merged(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    T.func_attr({"global_symbol": "stages"})
    B = T.alloc_buffer((4, 6), "int32")
    for i_m, j_m in T.grid(4, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i_m, j_m])
            B[vi, vj] = A[vi, vj] + 1
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i_m, j_m])
            C[vi, vj] = B[vi, vj] * 2


def test_two_nests():
    sch = Schedule(stages, seed=0)
    b, c = sch.get_block("B"), sch.get_block("C")
    loop = sch.merge(sch.get_loops(c)[1], sch.get_loops(b)[1])
    assert_structural_equal(sch.mod["main"], merged)
    assert sch.get(loop) is sch.get(sch.get_loops(b)[1])
    assert sch.get(loop).var.name == "j_m"
    check_transform(stages, sch)


def test_outer_loops_only():
    sch = Schedule(stages, seed=0)
    loop = sch.merge(sch.get_loops("B")[0], sch.get_loops("C")[0])
    assert len(sch.get_child_blocks(loop)) == 2
    assert sch.get(sch.get_loops("B")[0]) is sch.get(sch.get_loops("C")[0])
    assert len(sch.get_loops("B")) == 2
    check_transform(stages, sch)


@T.prim_func
def shifted(A: T.Buffer((8,), "int32"), C: T.Buffer((7,), "int32"), D: T.Buffer((7,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    E = T.alloc_buffer((8,), "int32")
    for i in range(7):
        with T.block("B"):
            v = T.axis.spatial(7, i)
            B[v] = A[v] + 1
    for i in range(1):
        with T.block("E"):
            v = T.axis.spatial(1, i)
            E[v] = 5
    for i in range(7):
        with T.block("C"):
            v = T.axis.spatial(7, i)
            C[v] = B[T.max(v - 1, 0)]
    for i in range(7):
        with T.block("D"):
            v = T.axis.spatial(7, i)
            D[v] = B[6 - v] + E[0]


def test_merge_allows_backward_reads_and_refuses_forward_reads():
    sch = Schedule(shifted, seed=0)
    (b,), (c,), (d,) = (sch.get_loops(n) for n in "BCD")
    check_refused(sch, lambda: sch.merge(b, d), "in-between", "E is between")
    error = check_refused(sch, lambda: sch.merge(c, d, b), "in-between", "E is between")
    assert "depends on it by E" in error.message

    @T.prim_func
    def forward(A: T.Buffer((8,), "int32"), C: T.Buffer((7,), "int32"), D: T.Buffer((7,), "int32")):
        B = T.alloc_buffer((8,), "int32")
        for i in range(7):
            with T.block("B"):
                v = T.axis.spatial(7, i)
                B[v + 1] = A[v] + 1
        for i in range(7):
            with T.block("D"):
                v = T.axis.spatial(7, i)
                D[v] = B[v + 1]
        for i in range(6):
            with T.block("C"):
                v = T.axis.spatial(6, i)
                C[v] = B[v + 2]
        for i in range(7):
            with T.block("W"):
                v = T.axis.spatial(7, i)
                C[v] = A[v]

    sch = Schedule(forward, seed=0)
    (b,), (c,), (d,), (w,) = (sch.get_loops(n) for n in "BCDW")
    check_refused(sch, lambda: sch.merge(b, c), "other-extent", "different extents")
    loop = sch.merge(b, d)
    check_transform(forward, sch)
    check_refused(sch, lambda: sch.merge(loop, w), "in-between", "C is between")

    @T.prim_func
    def ahead(A: T.Buffer((8,), "int32"), C: T.Buffer((7,), "int32")):
        B = T.alloc_buffer((8,), "int32")
        for i in range(7):
            with T.block("B"):
                v = T.axis.spatial(7, i)
                B[v] = A[v] + 1
        for i in range(7):
            with T.block("C"):
                v = T.axis.spatial(7, i)
                C[v] = B[T.min(v + 1, 6)]

    sch = Schedule(ahead, seed=0)
    (b,), (c,) = (sch.get_loops(n) for n in "BC")
    check_refused(
        sch, lambda: sch.merge(b, c), "backward-dependence", "in a later iteration of i_m"
    )


def test_an_independent_statement_may_stand_between():
    sch = Schedule(shifted, seed=0)
    (b,), (c,) = (sch.get_loops(n) for n in "BC")
    sch.merge(b, c)  # max(v - 1, 0) is no affine index, but each iteration can be looked at
    check_transform(shifted, sch)

    @T.prim_func
    def apart(A: T.Buffer((7,), "int32"), C: T.Buffer((7,), "int32"), E: T.Buffer((1,), "int32")):
        B = T.alloc_buffer((7,), "int32")
        for i in range(7):
            with T.block("B"):
                v = T.axis.spatial(7, i)
                B[v] = A[v] + 1
        for i in range(1):
            with T.block("E"):
                v = T.axis.spatial(1, i)
                E[v] = 5
        for i in range(7):
            with T.block("C"):
                v = T.axis.spatial(7, i)
                C[v] = B[v]

    sch = Schedule(apart, seed=0)
    sch.merge(sch.get_loops("B")[0], sch.get_loops("C")[0])
    assert [sch.get(b).name for b in sch.get_child_blocks(sch.get_block("root"))] == ["B", "C", "E"]
    check_transform(apart, sch)


def test_refusals():
    sch = Schedule(stages, seed=0)
    bi, bj = sch.get_loops("B")
    ci, cj = sch.get_loops("C")
    check_refused(sch, lambda: sch.merge(bi), "too-few-loops", "two or more")
    check_refused(sch, lambda: sch.merge(bi, bi), "too-few-loops", "two or more")
    check_refused(sch, lambda: sch.merge(bi, bj), "not-siblings", "inside another")
    check_refused(sch, lambda: sch.merge(bi, cj), "other-depth", "has 2 loops")
    sch.parallel(ci)
    check_refused(sch, lambda: sch.merge(bj, cj), "loop-has-kind", "is parallel already")
    sch.annotate(bi, "note", 1)
    check_refused(sch, lambda: sch.merge(bi, ci), "annotated-loop", "carries annotations")
    check_refused(sch, lambda: sch.merge(bj, cj), "annotated-loop", "loop i carries")


def test_a_chain_is_needed():
    @T.prim_func
    def ragged(
        B: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32"), D: T.Buffer((4,), "int32")
    ):
        for i in range(4):
            with T.block("D"):
                v = T.axis.spatial(4, i)
                D[v] = 1
            for j in range(4):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = 2
        for i, j in T.grid(4, 4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = 3

    sch = Schedule(ragged, seed=0)
    (_, b), (_, c) = sch.get_loops("B"), sch.get_loops("C")
    check_refused(sch, lambda: sch.merge(b, c), "not-a-chain", "not in a chain of loops")
    sch.merge(sch.get_loops("B")[0], sch.get_loops("C")[0])
    check_transform(ragged, sch)


def test_symbolic_extents():
    @T.prim_func
    def symbolic(a: T.handle, c: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,), "int32")
        C = T.match_buffer(c, (n,), "int32")
        B = T.alloc_buffer((n,), "int32")
        for i in range(n):
            with T.block("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] + 1
        for i in range(n):
            with T.block("C"):
                v = T.axis.spatial(n, i)
                C[v] = B[v] * 2

    sch = Schedule(symbolic, seed=0)
    sch.merge(sch.get_loops("B")[0], sch.get_loops("C")[0])
    check_transform(symbolic, sch)


ROWS = """
@T.prim_func
def main(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9,), "int32")):
    for k in range(9):
        for i in range(k + 1, 9):
            with T.block("divide"):
                A[i, k] = A[i, k] * 3 + k
        for i in range({start}):
            for j in range(k + 1, i + 1):
                with T.block("update"):
                    A[i, j] -= A[i, k] * A[{other}, k]
"""


def test_loops_that_start_at_the_same_number_are_merged():
    sch = Schedule(parse(ROWS.format(start="k + 1, 9", other="j")))
    before = sch.func
    loop = sch.merge(sch.get_loops("divide")[1], sch.get_loops("update")[1])
    assert show_expr(sch.get(loop).min) == "k + 1"
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("start", "other", "reason", "message"),
    [
        ("8 - k", "j", "other-start", "i and i start at different numbers"),
        ("k + 2, 9", "j", "other-extent", "different extents"),
        ("k + 1, 9", "8", "backward-dependence", "in a later iteration of i_m"),
    ],
)
def test_other_rows_are_not_merged(start, other, reason, message):
    sch = Schedule(parse(ROWS.format(start=start, other=other)))
    loops = [sch.get_loops(name)[1] for name in ("divide", "update")]
    check_refused(sch, lambda: sch.merge(*loops), reason, message)
