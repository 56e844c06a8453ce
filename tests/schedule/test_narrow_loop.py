"""narrow_loop: bands, skewed windows, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def band(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i - 1 <= j and j < i + 2)
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def falling(A: T.Buffer((9, 12), "int32"), B: T.Buffer((9, 12), "int32")):
    """The conditions name j on the other side, and count down."""
    for i, j in T.grid(9, (2, 11)):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            vj = T.axis.spatial(12, j)
            T.where(8 - j > i and 4 >= 8 - j - i)
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def widened(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(T.int64(i) <= T.int64(j) and T.int64(j) < T.int64(i) + T.int64(3))
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def prefix(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < 4)
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def triangle(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j <= i)
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def inner_decides(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j <= i and i < j + 3)
            B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def summed(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9,), "int32")):
    for i, k in T.grid(9, 9):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(k < 3)
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vk]


@T.prim_func
def two_blocks(A: T.Buffer((9,), "int32"), B: T.Buffer((9,), "int32")):
    for i in range(9):
        with T.block("A"):
            vi = T.axis.spatial(9, i)
            T.where(i < 3)
            A[vi] = 1
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[vi] = 2


@T.prim_func
def called(A: T.Buffer((9,), "int32")):
    for i in range(9):
        T.evaluate(T.call_extern("int32", "abs", i))
        with T.block("A"):
            vi = T.axis.spatial(9, i)
            T.where(i < 3)
            A[vi] = 1


@T.prim_func
def windows(X: T.Buffer((9,), "float32"), W: T.Buffer((3,), "float32"),
            Y: T.Buffer((11,), "float32")):  # fmt: skip
    for i, k in T.grid(9, 3):
        with T.block("Y"):
            vi = T.axis.opaque(9, i)
            vk = T.axis.opaque(3, k)
            Y[vi + vk] = Y[vi + vk] + X[vi] * W[vk]


@T.prim_func
def tested(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vj, vi = T.axis.remap("SS", [j, i])
            if A[vi, vj] > 3 and vi - 1 <= vj and vj < vi + 2:
                B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def otherwise(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9, 9), "int32")):
    for i, j in T.grid(9, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vj < 4:
                B[vi, vj] = A[vi, vj] + 1
            else:
                B[vi, vj] = A[vi, vj] - 1


@T.prim_func
def begun(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9,), "int32")):
    for k, i in T.grid(9, 9):
        with T.block("B"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                B[vi] = 0
            if vi < 4:
                B[vi] = B[vi] + A[vi, vk]


@pytest.mark.parametrize(
    ("func", "length", "condition"),
    [
        (band, 3, "1 <= i + j_narrow and i + j_narrow < 10"),
        (falling, 4, "i <= j_narrow + 2"),
        (widened, 3, 'T.Cast("int64", i) + T.Cast("int64", j_narrow) < T.int64(9)'),
        (prefix, 4, ""),
        (tested, 3, "1 <= i + j_narrow and i + j_narrow < 10"),
    ],
)
def test_iterations_that_a_condition_allows(func: PrimFunc, length: int, condition: str) -> None:
    sch = Schedule(func)
    narrow = sch.narrow_loop(sch.get_loops("B")[1])
    assert sch.get(narrow).extent.value == length
    assert condition in sch.script() if condition else "T.where" not in sch.script()
    check_transform(func, sch)


def test_window_over_the_places_of_its_result() -> None:
    """Each place of the result sums at most three terms, in the order of the input."""
    sch = Schedule(windows)
    i, k = sch.get_loops("Y")
    place = sch.skew(i, k, 1)
    sch.reorder(place, i)
    term = sch.narrow_loop(i)
    assert sch.get(term).extent.value == 3
    check_transform(windows, sch)
    sch.unblockize("Y")
    sch.enclose("root")
    assert [v.kind.value for v in sch.get(sch.get_block("Y")).iter_vars] == ["spatial", "opaque"]
    assert "Y[v_k_skewed] = Y[v_k_skewed] + X[v_k_skewed + v_i_narrow - 2]" in sch.script()
    check_transform(windows, sch)


@pytest.mark.parametrize(
    ("func", "at", "reason", "message"),
    [
        (triangle, 1, "no-narrower-range", "no condition of B leaves a constant number"),
        (inner_decides, 0, "no-narrower-range", "iterations of i, less than all"),
        (otherwise, 1, "no-narrower-range", "no condition of B leaves a constant number"),
        (begun, 1, "no-narrower-range", "no condition of B leaves a constant number"),
        (summed, 1, "cut-reduction", "k counts for the init of B"),
        (two_blocks, 0, "not-one-block", "2 blocks are below i"),
        (called, 0, "not-structured", "the loop i holds more than loops and a block"),
    ],
)
def test_refusals(func: PrimFunc, at: int, reason: str, message: str) -> None:
    sch = Schedule(func)
    loop = sch.get_loops(sch.get_child_blocks(sch.get_block("root"))[0])[at]
    check_refused(sch, lambda: sch.narrow_loop(loop), reason, message)


def test_loops_with_a_kind_or_a_note_are_refused() -> None:
    sch = Schedule(band)
    j = sch.get_loops("B")[1]
    sch.annotate(j, "note", 1)
    check_refused(sch, lambda: sch.narrow_loop(j), "annotated-loop", "note")
    sch.unannotate(j, "note")
    sch.unroll(j)
    check_refused(sch, lambda: sch.narrow_loop(j), "loop-has-kind", "j is unroll already")
