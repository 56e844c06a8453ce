"""An argmin, argmax or extreme of the elements at which a further condition holds, in lanes."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.interp import run
from metasched.lower.pipeline import lower
from metasched.measure.data import Array
from metasched.runtime.build import build
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory
from metasched.schedule.schedule import Schedule
from metasched.script import parse

PAIRS = """
@T.prim_func
def f(V: T.Buffer((4, 40), "{dtype}"), C: T.Buffer((40,), "bool"), S: T.Buffer((4,), "{dtype}"),
      M: T.Buffer((4,), "{dtype}"), N: T.Buffer((4,), "int32")):
    for a, b in T.grid(4, 40):
        with T.block("best"):
            i, k = T.axis.remap("SR", [a, b])
            T.block_attr({{"pragma_fold_lanes": 16}})
            with T.init():
                N[i] = -1
                M[i] = S[i]
            {update}
"""
TAKE = "\n                M[i] = V[i, k]\n                N[i] = k"
FORMS = {
    "and": "if C[k] and V[i, k] > M[i]:" + TAKE,
    "T.And, the smallest": "if T.And(V[i, k] < M[i], T.Not(C[k])):" + TAKE,
    "several": "if C[k] and k != 7 and M[i] < V[i, k] and V[i, k] < 3:" + TAKE,
    "beside": """x: T.{dtype} = V[i, k]
            if k < 31 and x > M[i]:
                M[i] = x
                N[i] = k * 2 + 1""",
    "the value alone": "if C[k] and V[i, k] > M[i]:\n                M[i] = V[i, k]",
}
ODD = {
    "float32": [0.0, -0.0, 1.0, 2.0, np.nan, np.inf, -np.inf, -3.4028234663852886e38],
    "int32": [0, 1, 2, 2**31 - 1, -(2**31)],
}


def lanes(text: str, dtype: str = "float32"):
    func = parse(PAIRS.format(dtype=dtype, update=text.format(dtype=dtype)))
    sch = Schedule(func)
    sch.decompose_reduction("best", sch.get_loops("best")[1])
    return func, sch


@pytest.mark.parametrize("dtype", ODD)
@pytest.mark.parametrize("form", FORMS)
def test_ties_infinities_and_nan(form, dtype):
    func, sch = lanes(FORMS[form], dtype)
    alone = form == "the value alone"
    assert ("top" in lower(sch.func, NATIVE).script()) == (dtype == "float32" or not alone)
    kernel = build(sch, target="native")

    @settings(max_examples=12, deadline=None)
    @given(st.data())
    def check(data):
        def drawn(count):
            allowed = data.draw(st.lists(st.sampled_from(ODD[dtype]), min_size=1, max_size=4))
            cells = st.lists(st.sampled_from(allowed), min_size=count, max_size=count)
            return np.array(data.draw(cells), dtype)

        values, start = drawn(160).reshape(4, 40), drawn(4)
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=40, max_size=40)))
        found = []
        for call in (lambda *arrays: run(func, *arrays), kernel):
            best, index = np.zeros(4, dtype), np.zeros(4, "int32")
            call(values, mask, start, best, index)
            found.append((best.tobytes(), index.tolist()))
        assert found[0] == found[1]

    check()


@pytest.mark.parametrize(
    "update",
    [
        "if C[k] and V[i, k] >= M[i]:" + TAKE,  # with M = -inf, the last k where C holds
        "if N[i] < 30 and V[i, k] > M[i]:" + TAKE,
        "if C[k] or V[i, k] > M[i]:" + TAKE,
        "if C[k] and V[i, k] > M[i] and V[i, k] > M[i] + 1:" + TAKE,
    ],
)
def test_other_conditions_stay_in_order(update):
    func, sch = lanes(update)
    assert "chunk" not in lower(sch.func, NATIVE).script()
    rng = np.random.default_rng(0)
    values = rng.integers(-9, 9, (4, 40)).astype("float32")
    values[0, ::3] = -np.inf
    mask, start = rng.random(40) < 0.5, np.full(4, -np.inf, "float32")
    found = []
    for call in (lambda *arrays: run(func, *arrays), build(sch)):
        best, index = np.zeros(4, "float32"), np.zeros(4, "int32")
        call(values, mask, start, best, index)
        found.append((best.tolist(), index.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("place", [AT_START, AT_END])
def test_elements_that_the_condition_leaves_out_are_not_read(place):
    source = """
@T.prim_func
def f(V: T.Buffer((40,), "float32"), M: T.Buffer((1,), "float32"), N: T.Buffer((1,), "int32")):
    for b in range(48):
        with T.block("best"):
            k = T.axis.reduce(48, b)
            T.block_attr({"pragma_fold_lanes": 16})
            with T.init():
                M[0] = T.float32(0)
                N[0] = -1
            if k >= 5:
                if k < 45:
                    if V[k - 5] > M[0]:
                        M[0] = V[k - 5]
                        N[0] = k
"""
    func = parse(source)
    sch = Schedule(func)
    sch.decompose_reduction("best", sch.get_loops("best")[0])
    layout = [
        Array(name, dtype, (n,), (1,), True, False, 0, 1, 0.0)
        for name, dtype, n in (("V", "float32", 40), ("M", "float32", 1), ("N", "int32", 1))
    ]
    memory = GuardedMemory(layout, place)
    values = np.random.default_rng(1).random(40).astype("float32")
    memory.write(0, values)
    build(sch)(*memory.views)
    assert memory.read(1)[0] == values.max()
    assert memory.read(2)[0] == values.argmax() + 5


def test_rows_with_a_condition_are_divided():
    """Parts of a row, and then the best of the parts: the first of equal values wins."""
    source = PAIRS.format(dtype="float32", update=FORMS["and"])
    func = parse(source.replace("M[i] = S[i]", 'M[i] = -T.infinity("float32")'))
    sch = Schedule(func)
    outer, _ = sch.split(sch.get_loops("best")[1], [None, 8])
    sch.rfactor(outer, 1)
    rng = np.random.default_rng(2)
    for share in (0.5, 0.1, 0.0):
        values = rng.integers(-9, 9, (4, 40)).astype("float32")
        values[0, ::2] = -np.inf
        mask = rng.random(40) < share
        found = []
        for call in (lambda *arrays: run(func, *arrays), build(sch)):
            best, index = np.zeros(4, "float32"), np.zeros(4, "int32")
            call(values, mask, np.zeros(4, "float32"), best, index)
            found.append((best.tolist(), index.tolist()))
        assert found[0] == found[1]
