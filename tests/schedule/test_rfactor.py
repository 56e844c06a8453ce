"""rfactor of reductions next to other blocks, over unit loops, and with ties decided by order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_refused, check_transform

from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.parser import parse


@T.prim_func
def beside(A: T.Buffer((6, 8), "float32"), F: T.Buffer((6,), "float32")):
    C = T.alloc_buffer((6,))
    for i in range(6):
        for k in range(8):
            with T.block("C"):
                ci, ck = T.axis.remap("SR", [i, k])
                with T.init():
                    C[ci] = 0.0
                C[ci] = C[ci] + A[ci, ck]
        with T.block("F"):
            fi = T.axis.remap("S", [i])
            F[fi] = C[fi] * 2.0


def test_both_steps_stay_beside_the_other_block():
    sch = Schedule(beside, check=True)
    part = sch.rfactor(sch.get_loops("C")[1], 0)
    outer = [sch.get_loops(b)[0] for b in (part, sch.get_block("C"), sch.get_block("F"))]
    assert len({sch.get(loop).var for loop in outer}) == 1
    sch.parallel(outer[0])
    check_transform(beside, sch)


def test_a_reduction_around_the_other_block_is_refused():
    @T.prim_func
    def f(
        A: T.Buffer((6, 8), "float32"),
        C: T.Buffer((6,), "float32"),
        D: T.Buffer((8,), "float32"),
    ):
        for k in range(8):
            for i in range(6):
                with T.block("C"):
                    ci, ck = T.axis.remap("SR", [i, k])
                    with T.init():
                        C[ci] = 0.0
                    C[ci] = C[ci] + A[ci, ck]
            with T.block("D"):
                dk = T.axis.remap("S", [k])
                D[dk] = 1.0

    sch = Schedule(f)
    k, _ = sch.get_loops("C")
    check_refused(sch, lambda: sch.rfactor(k, 0), "not-one-block", "2 blocks")
    inner = Schedule(f)
    k, i = inner.get_loops("C")
    check_refused(inner, lambda: inner.rfactor(i, 0), "not-a-chain", "other statements")


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_loop_that_runs_once_gives_one_partial_result(position):
    order = ["i", "o"]
    order.insert(position, "u")
    sizes = {"i": 6, "o": 8, "u": 1}
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 2, 4), "float32"), C: T.Buffer((6,), "float32")):
    for {", ".join(order)} in T.grid({", ".join(str(sizes[x]) for x in order)}):
        with T.block("C"):
            b = T.axis.spatial(6, i)
            v = T.axis.reduce(2, o // 4)
            w = T.axis.reduce(4, o % 4)
            with T.init():
                C[b] = T.float32(0)
            C[b] = C[b] + A[b, v, w]
""")
    sch = Schedule(func, check=True)
    sch.rfactor(sch.get_loops("C")[position], 0)
    check_transform(func, sch)


def arg(compare: str, dtype: str = "int32", attr: str = "") -> PrimFunc:
    found = parse(f"""
@T.prim_func
def f(val: T.Buffer((2, 12), "{dtype}"), m0: T.Buffer((2,), "int32"),
      m1: T.Buffer((2,), "{dtype}")):
    {attr}
    for i0, a, b in T.grid(2, 3, 4):
        with T.block("argmax"):
            i = T.axis.spatial(2, i0)
            k = T.axis.reduce(12, a * 4 + b)
            T.reads(val[i, k])
            T.writes(m0[i], m1[i])
            with T.init():
                m0[i] = -1
                m1[i] = {'-T.infinity("float32")' if dtype == "float32" else 'T.min_value("int32")'}
            v0: T.int32 = T.Select(m1[i] {compare} val[i, k], m0[i], k)
            v1: T.{dtype} = T.Select(m1[i] {compare} val[i, k], m1[i], val[i, k])
            m0[i] = v0
            m1[i] = v1
""")
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.parametrize(("compare", "first"), [(">=", True), (">", False)])
def test_rfactor_keeps_which_of_equal_values_wins(compare, first):
    func = arg(compare)
    sch = Schedule(func, check=True)
    sch.rfactor(sch.get_loops("argmax")[1], 1)
    check_transform(func, sch)
    values = np.zeros((2, 12), "int32")
    values[:, [3, 5, 6, 10]] = 2
    m0, m1 = np.zeros(2, "int32"), np.zeros(2, "int32")
    run(sch.mod, values, m0, m1)
    assert m0.tolist() == ([3, 3] if first else [10, 10]) and m1.tolist() == [2, 2]


@pytest.mark.parametrize("compare", [">=", ">"])
def test_partial_results_out_of_order_would_change_ties(compare):
    sch = Schedule(arg(compare))
    inner = sch.get_loops("argmax")[2]
    check_refused(sch, lambda: sch.rfactor(inner, 1), "tie-order", "not in the order of the values")


def test_nothing_is_initialised_where_no_reduction_is_left():
    sch = Schedule(beside, check=True)
    part = sch.get(sch.rfactor(sch.get_loops("C")[1], 0))
    assert part.init is None and all(v.is_spatial for v in part.iter_vars)
    check_transform(beside, sch)
    halves = Schedule(beside, check=True)
    outer, _ = halves.split(halves.get_loops("C")[1], [2, 4])
    assert halves.get(halves.rfactor(outer, 0)).init is not None


@pytest.mark.parametrize("compare", [">=", ">"])
def test_reorder_refuses_loops_whose_order_decides_ties(compare):
    sch = Schedule(arg(compare))
    _, outer, inner = sch.get_loops("argmax")
    check_refused(sch, lambda: sch.reorder(inner, outer), "reversed-dependence", "m0")


def test_rfactor_of_an_argmax_that_takes_nan_needs_fast_math():
    sch = Schedule(arg(">=", "float32"))
    loop = sch.get_loops("argmax")[1]
    check_refused(sch, lambda: sch.rfactor(loop, 1), "nan-order", "a NaN, or an equal value")
    allowed = Schedule(arg(">=", "float32", "T.func_attr({'tir.fast_math': 'nnan'})"), check=True)
    allowed.rfactor(allowed.get_loops("argmax")[1], 1)


TAKING = """
@T.prim_func
def f(V: T.Buffer((2, 12), "float32"), N: T.Buffer((2,), "int32"), M: T.Buffer((2,), "float32")):
    for i0, a, b in T.grid(2, 3, 4):
        with T.block("argmax"):
            i = T.axis.spatial(2, i0)
            k = T.axis.reduce(12, a * 4 + b)
            with T.init():
                N[i] = -1
                M[i] = {start}
            {update}
"""
FORMS = {
    "if": """if V[i, k] > M[i]:
                M[i] = V[i, k]
                N[i] = k""",
    "turned": """N[i] = T.if_then_else(M[i] < V[i, k], k, N[i])
            M[i] = T.if_then_else(M[i] < V[i, k], V[i, k], M[i])""",
    "not": """x: T.float32 = V[i, k]
            c = not (x > M[i])
            n: T.int32 = T.Select(c, N[i], k)
            M[i] = T.Select(c, M[i], x)
            N[i] = n""",
    "minimum": """if V[i, k] < M[i]:
                N[i] = k
                M[i] = V[i, k]""",
    "by index": """if V[i, k] > M[i] or (V[i, k] == M[i] and k < N[i]):
                N[i] = k
                M[i] = V[i, k]""",
}
ODD = [0.0, -0.0, 1.0, 1.0, 2.0, np.nan, np.inf, -np.inf, -3.4028234663852886e38]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12, deadline=None)
@given(
    values=st.lists(st.sampled_from(ODD), min_size=24, max_size=24),
    finite=st.booleans(),
    axis=st.integers(0, 1),
)
def test_a_test_for_the_better_value_leaves_nan_out_in_any_order(form, values, finite, axis):
    """For ties, zeros of both signs, infinities and NaN, rfactor keeps the results."""
    largest = "T.min_value('float32')" if finite else "-T.infinity('float32')"
    if form == "minimum":
        largest = largest.replace("min_value", "max_value").replace("-T", "T")
    func = parse(TAKING.format(update=FORMS[form], start=largest))
    sch = Schedule(func)
    sch.rfactor(sch.get_loops("argmax")[1], axis)
    found = []
    for program in (func, sch.mod):
        n, m = np.zeros(2, "int32"), np.zeros(2, "float32")
        run(program, np.array(values, "float32").reshape(2, 12), n, m)
        found.append((n.tolist(), m.tobytes()))
    assert found[0] == found[1]


def test_value_and_index_by_different_tests_may_mix_zeros():
    update = """N[i] = T.if_then_else(V[i, k] > M[i], k, N[i])
            M[i] = T.max(M[i], V[i, k])"""
    sch = Schedule(parse(TAKING.format(update=update, start="-T.infinity('float32')")))
    loop = sch.get_loops("argmax")[1]
    check_refused(sch, lambda: sch.rfactor(loop, 0), "nan-order", "the sign of a zero")


@pytest.mark.parametrize(
    "update",
    [
        "if V[i, k] > M[i]:\n                N[i] = k\n                M[i] = V[i, k] + 1.0",
        "if V[i, k] > M[i]:\n                N[i] = N[i] + 1\n                M[i] = V[i, k]",
        "if V[i, k] != M[i]:\n                N[i] = k\n                M[i] = V[i, k]",
    ],
)
def test_rfactor_refuses_updates_that_are_no_argmax(update):
    sch = Schedule(parse(TAKING.format(update=update, start="-T.infinity('float32')")))
    loop = sch.get_loops("argmax")[1]
    check_refused(sch, lambda: sch.rfactor(loop, 0), "no-reducer", "no commutative reduction")
