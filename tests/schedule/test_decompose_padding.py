"""decompose_padding: a padded copy as a constant fill and a copy of the inside."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform, picture
from schedule.golden_programs import becomes
from schedule.programs import elementwise

from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def line(X: T.Buffer((128,), "int32"), Y: T.Buffer((140,), "int32")):
    for i in range(140):
        with T.block("block"):
            vi = T.axis.spatial(140, i)
            Y[vi] = T.if_then_else(vi >= 6 and vi < 134, X[vi - 6], 0)


@T.prim_func
def line_decomposed(X: T.Buffer((128,), "int32"), Y: T.Buffer((140,), "int32")):
    for i in range(140):
        with T.block("block_pad_const"):
            vi = T.axis.spatial(140, i)
            Y[vi] = 0
    for i in range(128):
        with T.block("block"):
            vi = T.axis.spatial(128, i)
            Y[vi + 6] = X[vi]


@T.prim_func
def image(X: T.Buffer((2, 7, 5), "float32"), Y: T.Buffer((2, 9, 8), "float32")):
    for n, i, j in T.grid(2, 9, 8):
        with T.block("Y"):
            vn, vi, vj = T.axis.remap("SSS", [n, i, j])
            Y[vn, vi, vj] = T.if_then_else(
                1 <= vi and vi < 8 and vj < 5, X[vn, vi - 1, vj], T.float32(0)
            )


@T.prim_func
def image_inner(X: T.Buffer((2, 7, 5), "float32"), Y: T.Buffer((2, 9, 8), "float32")):
    for n, i in T.grid(2, 9):
        for j in range(8):
            with T.block("Y_pad_const"):
                vn, vi, vj = T.axis.remap("SSS", [n, i, j])
                Y[vn, vi, vj] = T.float32(0)
        for j in range(5):
            with T.block("Y"):
                vn = T.axis.spatial(2, n)
                vi = T.axis.spatial(7, i - 1)
                vj = T.axis.spatial(5, j)
                T.where(1 <= i and i < 8)
                Y[vn, vi + 1, vj] = X[vn, vi, vj]


@T.prim_func
def consumed(X: T.Buffer((6,), "float32"), Z: T.Buffer((8,), "float32")):
    Y = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("Y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = T.if_then_else(1 <= vi and vi < 7, X[vi - 1], T.float32(1))
    for i in range(8):
        with T.block("Z"):
            vi = T.axis.spatial(8, i)
            Z[vi] = Y[vi]


@T.prim_func
def odd(
    X: T.Buffer((8,), "float32"),
    Y: T.Buffer((8,), "float32"),
    Z: T.Buffer((8, 8), "float32"),
    W: T.Buffer((8,), "float32"),
):
    for i in range(8):
        with T.block("reader"):
            vi = T.axis.spatial(8, i)
            W[vi] = Y[vi]
    for i in range(8):
        with T.block("late"):
            vi = T.axis.spatial(8, i)
            Y[vi] = T.if_then_else(1 <= vi, X[vi - 1], T.float32(1))
    for i, j in T.grid(8, 8):
        with T.block("triangle"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = T.if_then_else(vj <= vi, X[vj], T.float32(1))


@T.prim_func
def others(
    X: T.Buffer((8,), "float32"),
    Y: T.Buffer((8,), "float32"),
    Z: T.Buffer((8,), "float32"),
    W: T.Buffer((8,), "float32"),
):
    for i in range(8):
        with T.block("loaded"):
            vi = T.axis.spatial(8, i)
            Y[vi] = T.if_then_else(1 <= vi, X[vi - 1], X[7])
    for i in range(8):
        with T.block("whole"):
            vi = T.axis.spatial(8, i)
            Z[vi] = T.if_then_else(vi < 8, X[vi], T.float32(1))
    for i in range(8):
        with T.block("foreign"):
            vi = T.axis.spatial(8, i)
            T.reads(X[vi])
            T.writes(W[vi])
            W[vi] = T.if_then_else(vi < 7, T.call_extern("f", X[vi], dtype="float32"), T.float32(1))


def test_one_dimension():
    sch = Schedule(line)
    block = sch.get_block("block")
    (loop,) = sch.get_loops(block)
    assert sch.can_decompose_padding(block, loop)
    made = sch.decompose_padding(block, loop)
    becomes(line, sch, line_decomposed)
    assert sch.get(made).name == "block_pad_const"
    assert sch.get(block).name == "block"
    assert sch.get(loop).extent.value == 128


def test_below_outer_loops():
    sch = Schedule(image)
    sch.decompose_padding("Y", sch.get_loops("Y")[2])
    becomes(image, sch, image_inner)


@pytest.mark.parametrize("where", range(5))
def test_anywhere_in_tiled_loops(where):
    sch = Schedule(image)
    n, i, j = sch.get_loops("Y")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 3])
    sch.reorder(n, i0, j0, i1, j1)
    sch.decompose_padding("Y", sch.get_loops("Y")[where])
    check_transform(image, sch)


def test_with_a_consumer_and_below_its_loop():
    sch = Schedule(consumed)
    sch.decompose_padding("Y", sch.get_loops("Y")[0])
    check_transform(consumed, sch)
    sch = Schedule(consumed)
    outer, _ = sch.split(sch.get_loops("Z")[0], [None, 3])
    sch.compute_at("Y", outer)
    sch.decompose_padding("Y", sch.get_loops("Y")[1])
    check_transform(consumed, sch)


def test_can_decompose_padding_changes_nothing():
    sch = Schedule(elementwise)
    block = sch.get_block("B")
    loop = sch.get_loops(block)[0]
    before = picture(sch)
    assert not sch.can_decompose_padding(block, loop)
    assert picture(sch) == before


@pytest.mark.parametrize("shift", [1, 2])
def test_a_block_of_padding_alone_is_refused(shift: int):
    text = (
        '@T.prim_func\ndef f(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):\n'
        '    for i in range(4):\n        with T.block("C"):\n'
        "            v = T.axis.spatial(4, i)\n"
        f"            C[v] = T.if_then_else(v >= {3 + shift}, A[v - {3 + shift}], 7)\n"
    )
    sch = Schedule(parse(text))
    message = "C stores the padding value alone: its condition never holds"
    (loop,) = sch.get_loops("C")
    check_refused(sch, lambda: sch.decompose_padding("C", loop), "no-padding", message)


def test_refusals():
    def try_(func, block, reason, message, of=None):
        sch = Schedule(func)
        loop = sch.get_loops(of or block)[0]
        check_refused(sch, lambda: sch.decompose_padding(block, loop), reason, message)

    try_(elementwise, "B", "no-padding", "not one store of an if_then_else")
    try_(elementwise, "B", "not-above", "is not above B", of="C")
    try_(odd, "late", "read-before", "reader reads Y before it is padded")
    try_(odd, "triangle", "no-box", "does not bound single iterators")
    try_(others, "loaded", "not-constant", "is loaded from memory")
    try_(others, "whole", "no-padding", "whole pads nothing: its condition always holds")
    try_(others, "foreign", "side-effect", "has side effects")
    sch = Schedule(line)
    sch.decompose_padding("block", sch.get_loops("block")[0])
    loop = sch.get_loops("block")[0]
    check_refused(
        sch, lambda: sch.decompose_padding("block", loop), "not-dominant",
        "is not the only writer of Y",
    )  # fmt: skip
