"""storage_align: rows are padded in memory, also in machine code."""

from __future__ import annotations

from oracle import check_numbers, check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import elementwise, matmul_relu

from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.target import Target


@T.prim_func
def aligned(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            T.block_attr({"buffer_dim_align": [[0, 0, 128, 127]]})
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


@T.prim_func
def viewed(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi, 0:12])
            T.writes(B[vi, 0:12])
            s = T.int32()
            V = T.match_buffer(
                B[vi : vi + 1, 0:12], (1, 12), "float32", strides=(s, 1), offset_factor=1
            )
            for j in range(12):
                V[0, j] = A[vi, j] + T.Cast("float32", s - s)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


def sizes(sch):
    body = lower(sch.mod["main"], Target.of("native")).body
    return [n.buffer.shape[0].value for n in walk_stmts(body) if isinstance(n, Allocate)]


def test_the_note_on_the_block():
    for axis, given in ((0, 0), (-2, "B")):
        sch = Schedule(elementwise)
        sch.storage_align("B", given, axis=axis, factor=128, offset=127)
        becomes(elementwise, sch, aligned)


def test_a_second_note_on_an_axis_replaces_the_first():
    sch = Schedule(elementwise)
    sch.storage_align("B", 0, 0, 64, 1)
    sch.storage_align("B", 0, 1, 2, 0)
    sch.storage_align("B", 0, 0, 16, 4)
    assert sch.get(sch.get_block("B")).annotations["buffer_dim_align"] == [
        [0, 0, 16, 4],
        [0, 1, 2, 0],
    ]
    check_transform(elementwise, sch)
    assert sizes(sch) == [8 * 36]


def test_rows_are_padded_in_memory():
    sch = Schedule(elementwise)
    sch.storage_align("B", 0, 0, 16, 4)
    check_transform(elementwise, sch)
    assert sizes(sch) == [8 * 20]


def test_a_compacted_buffer_is_aligned_in_its_final_shape():
    sch = Schedule(matmul_relu)
    i, _ = sch.get_loops("D")
    sch.reverse_compute_at("D", sch.get_loops("C")[0])
    sch.storage_align("C", 0, 0, 16, 1)
    check_transform(matmul_relu, sch)
    assert sizes(sch) == [17]
    del i


def test_views_see_the_strides():
    sch = Schedule(viewed)
    sch.storage_align("B", 0, 0, 16, 4)
    check_transform(viewed, sch)
    assert sizes(sch) == [8 * 20]


def test_refusals():
    sch = Schedule(elementwise)

    def try_(reason, message, block="B", index=0, axis=0, factor=16, offset=4):
        step = lambda: sch.storage_align(block, index, axis, factor, offset)  # noqa: E731
        check_refused(sch, step, reason, message)

    try_("no-such-buffer", "has no write buffer 1", index=1)
    try_("no-such-axis", "B has 2 axes, there is no axis 2", axis=2)
    try_("no-such-axis", "there is no axis -3", axis=-3)
    try_("bad-factor", "0 is not positive", factor=0)
    try_("not-allocated", "is a parameter or view", block="C")
    try_("not-an-integer", "factor is 1.5", factor=1.5)


@T.prim_func
def two_results(
    A: T.Buffer((6, 5), "int32"), O: T.Buffer((6, 5), "int32"), Q: T.Buffer((6, 5), "int32")
):
    X = T.alloc_buffer((6, 5), "int32")
    for i, j in T.grid(6, 5):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            Q[vi, vj] = A[vi, vj] * 3
            X[vi, vj] = A[vi, vj] * 2
    for i, j in T.grid(6, 5):
        with T.block("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = X[vi, vj] + 1


def notes(sch, *names):
    return [sch.get(sch.get_block(n)).annotations.get("buffer_dim_align") for n in names]


def test_the_note_follows_the_store_into_a_block_of_its_own():
    """The position of X among the results of its block changes from 1 to 0."""
    sch = Schedule(two_results)
    sch.storage_align("X", "X", 0, 8, 3)
    assert notes(sch, "X") == [[[1, 0, 8, 3]]]
    sch.decompose_outputs("X")
    assert notes(sch, "X", "X_X") == [None, [[0, 0, 8, 3]]]
    assert sizes(sch) == [66]
    check_numbers(two_results, sch.mod, compiled=True)


def test_no_note_stays_on_a_buffer_of_fewer_dimensions():
    """The block inside of B writes a single element."""
    sch = Schedule(elementwise)
    sch.enclose("B")
    sch.storage_align("B_1", 0, 1, 16, 4)
    sch.reindex("B_1", ("write", 0))
    assert notes(sch, "B_1") == [None]
    check_numbers(elementwise, sch.mod, compiled=True)
