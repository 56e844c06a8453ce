"""An argmin or argmax in vector lanes gives the bits of the program as written."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.interp import run
from metasched.lower.pipeline import lower
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse

ROWS = """
@T.prim_func
def f(V: T.Buffer((4, {n}), "float32"), N: T.Buffer((4,), "int32"), M: T.Buffer((4,), "float32")):
    for a, b in T.grid(4, {n}):
        with T.block("argmax"):
            i, k = T.axis.remap("SR", [a, b])
            T.block_attr({{"pragma_fold_lanes": {width}}})
            with T.init():
                N[i] = -1
                M[i] = {start}
            {update}
"""
KEEPS = """x: T.float32 = V[i, k]
            c = {condition}
            n: T.int32 = T.Select(c, N[i], k)
            M[i] = T.Select(c, M[i], x)
            N[i] = n"""
TAKES = """if V[i, k] {compare} M[i]:
                M[i] = V[i, k]
                N[i] = k"""
FORMS = {
    "first": TAKES.format(compare=">"),
    "last": TAKES.format(compare=">="),
    "minimum": TAKES.format(compare="<"),
    "keeps": KEEPS.format(condition="M[i] >= x"),
    "by index": KEEPS.format(condition="M[i] > x or (M[i] == x and N[i] < k)"),
}
BESIDE = """x: T.float32 = V[i, k]
            n: T.int32 = {index}
            M[i] = T.{best}(M[i], x)
            N[i] = n"""
MAXIMA = {
    "takes": BESIDE.format(index="T.Select(x > M[i], k, N[i])", best="max"),
    "keeps": BESIDE.format(index="T.Select(M[i] >= x, N[i], k)", best="max"),
    "keeps the last": BESIDE.format(index="T.Select(M[i] < x, N[i], k)", best="min"),
}
ODD = [0.0, -0.0, 1.0, 1.0, 2.0, np.nan, np.inf, -np.inf, -3.4028234663852886e38]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "width", "finite"), [(13, 8, True), (40, 16, False), (8, 8, False)])
def test_ties_zeros_infinities_and_nan(form, n, width, finite):
    start = "T.min_value('float32')" if finite else "-T.infinity('float32')"
    if form == "minimum":
        start = start.replace("min_value", "max_value").replace("-T", "T")
    func = parse(ROWS.format(n=n, width=width, start=start, update=FORMS[form]))
    sch = Schedule(func)
    block = sch.get_block("argmax")
    sch.decompose_reduction(block, sch.get_loops(block)[1])
    assert "chunk" in lower(sch.func, NATIVE).script()
    kernel = build(sch, target="native")

    @settings(max_examples=8, deadline=None)
    @given(st.data())
    def check(data):
        allowed = data.draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=4))
        cells = st.lists(st.sampled_from(allowed), min_size=4 * n, max_size=4 * n)
        values = np.array(data.draw(cells), "float32").reshape(4, n)
        found = []
        for call in (lambda *arrays: run(func, *arrays), kernel):
            index, best = np.zeros(4, "int32"), np.zeros(4, "float32")
            call(values, index, best)
            found.append((index.tolist(), best.tobytes()))
        assert found[0] == found[1]

    check()


@pytest.mark.parametrize("form", MAXIMA)
def test_a_maximum_beside_its_index(form):
    """`T.max` keeps a NaN, which no condition on the index takes: of the values, and at the start.
    Of equal zeros it keeps either."""
    func = parse(ROWS.format(n=40, width=8, start="S[i]", update=MAXIMA[form]).replace(
        "N: T", 'S: T.Buffer((4,), "float32"), N: T', 1
    ))  # fmt: skip
    sch = Schedule(func)
    sch.decompose_reduction("argmax", sch.get_loops("argmax")[1])
    assert "chunk" in lower(sch.func, NATIVE).script()
    kernel = build(sch, target="native")

    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def check(data):
        allowed = data.draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=4))
        cells = st.lists(st.sampled_from(allowed), min_size=160, max_size=160)
        values = np.array(data.draw(cells), "float32").reshape(4, 40)
        start = np.array(
            data.draw(st.lists(st.sampled_from(ODD), min_size=4, max_size=4)), "float32"
        )
        found = []
        for call in (lambda *arrays: run(func, *arrays), kernel):
            index, best = np.zeros(4, "int32"), np.zeros(4, "float32")
            call(values, start, index, best)
            found.append((index.tolist(), (best + np.float32(0)).tobytes()))
        assert found[0] == found[1]

    check()


def test_an_index_that_is_not_in_order_decides_no_ties_in_lanes():
    update = FORMS["by index"].replace("N[i] < k", "N[i] < 40 - k").replace(", k)", ", 40 - k)")
    func = parse(ROWS.format(n=40, width=8, start="-T.infinity('float32')", update=update))
    assert "chunk" not in lower(func, NATIVE).script()


def test_without_nan_nothing_is_summed():
    """With `nnan` a sum of infinities of both signs would be undefined."""
    text = ROWS.format(n=40, width=8, start="-T.infinity('float32')", update=FORMS["keeps"])
    free = text.replace("    for a", '    T.func_attr({"tir.fast_math": "nnan"})\n    for a', 1)
    values = np.array([np.inf, -np.inf, 1.0, 2.0] * 40, "float32").reshape(4, 40)
    for source, summed in ((text, True), (free, False)):
        sch = Schedule(parse(source))
        sch.decompose_reduction("argmax", sch.get_loops("argmax")[1])
        made = lower(sch.func, NATIVE).script()
        assert "chunk" in made and ("sums" in made) == summed
        index, best = np.ones(4, "int32"), np.zeros(4, "float32")
        build(sch, target="native")(values, index, best)
        assert index.tolist() == [0, 0, 0, 0] and (best == np.inf).all()


LOOPS = """
@T.prim_func
def f(V: T.Buffer((4, {n}), "{dtype}"), M: T.Buffer((4,), "{dtype}"), N: T.Buffer((4,), "int32")):
    for i in range(4):
        for k in range(3, {n}):
            {update}
"""
PLAIN = {
    "larger": "if V[i, k] > M[i]:\n                M[i] = V[i, k]",
    "as large": "if M[i] <= V[i, k]:\n                M[i] = V[i, k]",
    "smaller": "if V[i, k] < M[i]:\n                M[i] = V[i, k]",
    "named": "x = V[i, k] * 2\n            if x > M[i]:\n                M[i] = x",
    "chosen": "M[i] = T.Select(V[i, k] > M[i], V[i, k], M[i])",
    "pair": "if V[i, k] >= M[i]:\n                M[i] = V[i, k]\n                N[i] = k",
}


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize(("n", "dtype"), [(19, "float32"), (43, "float64"), (11, "float32")])
def test_plain_loops_keep_the_bits_of_their_order(form, n, dtype):
    """Of equal zeros the order decides the sign, and NaN changes nothing."""
    func = parse(LOOPS.format(n=n, dtype=dtype, update=PLAIN[form]))
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    sch.annotate(made, "pragma_fold_lanes", 8)
    assert "best" in lower(sch.func, NATIVE).script()
    kernel = build(sch, target="native")

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def check(data):
        allowed = data.draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=4))
        cells = st.lists(st.sampled_from(allowed), min_size=4 * n, max_size=4 * n)
        values = np.array(data.draw(cells), dtype).reshape(4, n)
        start = np.array(data.draw(st.lists(st.sampled_from(ODD), min_size=4, max_size=4)), dtype)
        found = []
        for call in (lambda *arrays: run(func, *arrays), kernel):
            best, index = start.copy(), np.full(4, -1, "int32")
            call(values, best, index)
            found.append((index.tolist(), best.tobytes()))
        assert found[0] == found[1]

    check()


OTHERS = {
    "takes NaN": "M[i] = T.Select(M[i] >= V[i, k], M[i], V[i, k])",
    "another value": "if V[i, k] > M[i]:\n                M[i] = V[i, k] + 1",
    "moving": "if V[i, k] > M[k % 4]:\n                M[k % 4] = V[i, k]",
    "own value": "if V[i, k] + M[0] > M[i]:\n                M[i] = V[i, k] + M[0]",
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_choices_of_one_value_stay_in_order(form):
    sch = Schedule(parse(LOOPS.format(n=43, dtype="float32", update=OTHERS[form])))
    (made,) = sch.enclose("root")
    sch.annotate(made, "pragma_fold_lanes", 8)
    assert "best" not in lower(sch.func, NATIVE).script()
