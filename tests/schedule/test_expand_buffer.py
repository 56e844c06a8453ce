"""expand_buffer: what gets a copy for each iteration, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

import metasched as ms
from metasched.ir.stmt import IterKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse

PRODUCTS = """
@T.prim_func
def main(A: T.Buffer((5, 6), "int32"), B: T.Buffer((6, 6), "int32"), X: T.Buffer((6,), "int32")):
    t = T.alloc_buffer((6,), "int32")
    for i in range({low}5):
        for j in range(6):
            with T.block("start"):
                t[j] = {first}
        for j, k in T.grid(6, 6):
            with T.block("sum"):
                vi = T.axis.opaque(5, i)
                vj, vk = T.axis.remap("SR", [j, k])
                t[vj] += A[vi, vk] * B[vk, vj]
        for j in range(6):
            with T.block("store"):
                A[i, j] = t[j]
    for j in range(6):
        with T.block("again"):
            t[j] = X[j]
    for j in range(6):
        with T.block("last"):
            X[j] = {last}
"""


def products(low: str = "", first: str = "0", last: str = "t[j]") -> Schedule:
    return Schedule(parse(PRODUCTS.format(low=low, first=first, last=last)))


@pytest.mark.parametrize("low", ["", "2, "])
def test_each_row_has_its_own_sums(low):
    sch = products(low)
    before = sch.func
    loop = sch.get_loops("start")[0]
    sch.expand_buffer("start", 0, loop)
    buffer = sch.get(sch.get_block("sum")).writes[0].buffer
    assert buffer.constant_shape() == (5, 6)
    kinds = [v.kind for v in sch.get(sch.get_block("start")).iter_vars]
    assert kinds == [IterKind.SPATIAL, IterKind.SPATIAL]
    assert len(sch.fission(loop)) == 3
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("case", "reason", "message"),
    [
        ({"first": "t[j] * 2"}, "value-carried", "block start may read a value of t from another"),
        ({"first": "t[0] + 1"}, "value-carried", "block start may read a value of t from another"),
    ],
)
def test_a_value_that_comes_from_another_iteration(case, reason, message):
    sch = products(**case)
    loop = sch.get_loops("start")[0]
    check_refused(sch, lambda: sch.expand_buffer("start", 0, loop), reason, message)


def test_a_value_that_leaves_the_loop():
    text = PRODUCTS.format(low="", first="0", last="t[j]")
    sch = Schedule(parse(text.replace("            t[j] = X[j]", "            X[j] = 1")))
    loop = sch.get_loops("start")[0]
    message = "block last may read a value of t from another"
    check_refused(sch, lambda: sch.expand_buffer("start", 0, loop), "value-carried", message)


def test_what_is_no_temporary_buffer_of_the_loop():
    sch = products()
    loop, other = sch.get_loops("start")[0], sch.get_loops("last")[0]
    check_refused(
        sch,
        lambda: sch.expand_buffer("store", 0, loop),
        "not-allocated",
        "A is a parameter or view",
    )
    check_refused(
        sch, lambda: sch.expand_buffer("start", 0, other), "not-above", "is not above start"
    )
    sch.parallel(sch.get_loops("again")[0])
    again = sch.get_loops("again")[0]
    check_refused(sch, lambda: sch.expand_buffer("again", 0, again), "loop-has-kind", "parallel")


def test_loops_without_a_limit():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((9,), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in range(-1, 8):
        with T.block("start"):
            t[0] = A[i + 1]
        with T.block("last"):
            A[i + 1] = t[0] * 2
""")
    )
    loop = sch.get_loops("start")[0]
    check_refused(sch, lambda: sch.expand_buffer("start", 0, loop), "no-limit", "values of i")


RUN_TIME = """
@T.prim_func
def main(a: T.handle, b: T.handle, k: T.int32):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
    B = T.match_buffer(b, (n + 3,), "int32")
    t = T.alloc_buffer((1,), "int32")
    for i in range({extent}):
        with T.block("start"):
            t[0] = A[{place}]
        with T.block("last"):
            B[i] = t[0] * 2
"""


@pytest.mark.parametrize(
    ("extent", "place", "shape"),
    [("n", "i", "(n, 1)"), ("n + 3", "T.min(i, n - 1)", "(n + 3, 1)")],
)
@pytest.mark.parametrize("n", [1, 2, 37])
def test_a_loop_over_the_length_of_a_parameter_has_a_limit(extent, place, shape, n):
    sch = Schedule(parse(RUN_TIME.format(extent=extent, place=place)))
    (loop,) = sch.get_loops("start")
    sch.expand_buffer("start", 0, loop)
    sch.fission(loop, [])
    assert f"t_i = T.alloc_buffer({shape}" in sch.mod.script()
    a, b = np.arange(n, dtype="int32") + 5, np.zeros(n + 3, "int32")
    ms.build(sch.mod)(a, b, 0)
    np.testing.assert_array_equal(b[:n], 2 * a)
    assert (b[n:] == (2 * a[-1] if extent != "n" else 0)).all()


def test_a_loop_over_no_element_leaves_an_empty_buffer():
    sch = Schedule(parse(RUN_TIME.format(extent="n", place="i")))
    sch.expand_buffer("start", 0, sch.get_loops("start")[0])
    b = np.zeros(3, "int32")
    ms.build(sch.mod)(np.zeros(0, "int32"), b, 0)
    assert not b.any()


@pytest.mark.parametrize("extent", ["k", "n - 1", "n // 2", "n + k"])
def test_an_extent_that_may_be_negative_is_no_limit(extent):
    sch = Schedule(parse(RUN_TIME.format(extent=extent, place="T.min(T.max(i, 0), n - 1)")))
    loop = sch.get_loops("start")[0]
    check_refused(sch, lambda: sch.expand_buffer("start", 0, loop), "no-limit", "values of i")


def test_a_buffer_without_another_use_goes():
    text, _, _ = PRODUCTS.partition('    for j in range(6):\n        with T.block("again")')
    sch = Schedule(parse(text.format(low="", first="0")))
    sch.expand_buffer("start", 0, sch.get_loops("start")[0])
    assert [b.constant_shape() for b in sch.func.root.alloc_buffers] == [(5, 6)]


def test_a_binding_does_not_read_the_buffer():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((9,), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in range(9):
        with T.block("start"):
            t[0] = i
        with T.block("last"):
            v = T.axis.opaque(9, t[0])
            A[v] = A[v] * 2
""")
    )
    loop = sch.get_loops("start")[0]
    message = "outside of any block, uses t"
    check_refused(sch, lambda: sch.expand_buffer("start", 0, loop), "outside-blocks", message)


NESTED = """
@T.prim_func
def main(A: T.Buffer((4, 2), "int32")):
    t = T.alloc_buffer((4, 2), "int32")
    for i in range(4):
        with T.block("outer"):
            vi = T.axis.spatial(4, i)
            for j in range(2):
                with T.block("inner"):
                    vj = T.axis.spatial(2, j)
                    t[vi, vj] = A[vi, vj]
"""


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("outer", "not-leaf", "outer is no leaf: block inner stands inside it"),
        ("inner", "not-allocated", "t is not allocated by the block around inner"),
    ],
)
def test_blocks_inside_of_blocks(name, reason, message):
    sch = Schedule(parse(NESTED))
    loop = sch.get_loops(name)[0]
    check_refused(sch, lambda: sch.expand_buffer(name, 0, loop), reason, message)


def test_a_reduction_over_the_loop_carries_its_value():
    sch = Schedule(
        parse("""
@T.prim_func
def main(X: T.Buffer((2, 8), "int32"), O: T.Buffer((2,), "int32")):
    M = T.alloc_buffer((2,), "int32")
    for i, k in T.grid(2, 8):
        with T.block("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = 0
            M[vi] = T.max(M[vi], X[vi, vk])
        with T.block("O"):
            vi = T.axis.spatial(2, i)
            O[vi] = M[vi]
""")
    )
    before, (i, k) = sch.func, sch.get_loops("M")
    message = "the reduction M continues in M from one iteration of k to the next"
    check_refused(sch, lambda: sch.expand_buffer("M", 0, k), "value-carried", message)
    sch.expand_buffer("M", 0, i)
    check_transform(before, sch)


FORWARD_AND_BACK = """
@T.prim_func
def main(A: T.Buffer((6, 5), "int32"), X: T.Buffer((6, 5), "int32")):
    t = T.alloc_buffer((6,), "int32")
    for s in range(5):
        with T.block("first"):
            t[0] = A[0, s]
        for i in range({low}, 6):
            with T.block("next"):
                t[i] = A[i, s] + t[i - 1]
        for i in range(6):
            with T.block("back"):
                X[5 - i, s] = t[5 - i]
"""


def test_parts_that_together_fill_a_row():
    """As in a solver of a tridiagonal system: the first element, the others, then all backwards."""
    sch = Schedule(parse(FORWARD_AND_BACK.format(low=1)))
    before = sch.func
    sch.expand_buffer("first", 0, sch.get_loops("first")[0])
    sch.vectorize(sch.get_loops("first")[0])
    check_transform(before, sch)


def test_parts_that_leave_an_element_out():
    sch = Schedule(parse(FORWARD_AND_BACK.format(low=2)))
    loop = sch.get_loops("first")[0]
    message = "block next may read a value of t from another iteration of s"
    check_refused(sch, lambda: sch.expand_buffer("first", 0, loop), "value-carried", message)
