"""Reductions along memory in serial loops: lanes where the order does not matter."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import WIDE, agree, build, integers
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = """
@T.prim_func
def main(b: T.Buffer((6,), "int32"), X: T.Buffer((900,), "{dtype}"), W: T.Buffer((900,), "{dtype}"),
         Y: T.Buffer((5,), "{dtype}")):
    T.func_attr({{"tir.fast_math": "{liberty}"}})
    for i in range(5):
        for p in range({ends}):
            Y[i] = {value}
"""
VALUES = {
    "max": "T.max(Y[i], X[p])", "min": "T.min(X[p] * W[i], Y[i])", "sum": "Y[i] + X[p] * W[p]",
    "offset": "T.max(X[p + 3] + W[p], Y[i])",
}  # fmt: skip
DTYPES = ["float32", "float64", "int32", "int64", "uint32"]


def rows(value: str, dtype: str = "float32", liberty: str = "reassoc", extent: int = 0) -> str:
    ends = f"{extent}" if extent else "b[i], b[i + 1]"
    return ROWS.format(value=value, dtype=dtype, liberty=liberty, ends=ends)


def vectors(text: str) -> int:
    """The vector operations in the code of a program."""
    return len(
        re.findall(r"<\d+ x \w+> @llvm\.\w*(?:max|min)|= f?add [\w ]*<", build(text).llvm_ir)
    )


@settings(max_examples=80, deadline=None)
@given(
    value=st.sampled_from(list(VALUES.values())), dtype=st.sampled_from(DTYPES),
    starts=st.lists(st.integers(0, 890), min_size=6, max_size=6), ordered=st.booleans(),
    extent=st.sampled_from([0, 0, 5, 16, 63, 512, 890]), liberty=st.sampled_from(["", "reassoc"]),
)  # fmt: skip
def test_results_are_those_of_one_iteration_after_another(
    value, dtype, starts, ordered, extent, liberty
):
    starts = np.array(sorted(starts) if ordered else starts, "int32")  # unordered: negative lengths
    data = [integers((900,), dtype, seed=n) for n in (0, 1)]
    agree(rows(value, dtype, liberty, extent), starts, *data, integers((5,), dtype, seed=2))


@pytest.mark.parametrize("place", [0, 17, 270, 300, 879])
@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_propagates_from_every_place(place, name):
    x = integers((900,))
    x[place] = np.nan
    starts = np.array([0, 7, 280, 280, 300, 880], "int32")
    agree(rows(VALUES[name]), starts, x, integers((900,), seed=1) + 9, integers((5,), seed=2))


@pytest.mark.parametrize("value", VALUES.values())
def test_rows_run_in_lanes(value):
    assert vectors(rows(value)) > 0


@pytest.mark.parametrize(
    "value",
    ["T.max(Y[i], X[p * 2])", "T.max(Y[i], X[b[p % 4]])", "T.max(Y[i], X[p] + Y[0])",
     "T.max(Y[i], X[i])"],
)  # fmt: skip
def test_other_values_run_one_by_one(value):
    """A value that reads what the loop stores, or does not run along memory."""
    text = rows(value)
    assert vectors(text) == 0
    agree(
        text,
        np.array([0, 4, 4, 99, 180, 440], "int32"),
        *(integers((900,)),) * 2,
        np.zeros(5, "f4"),
    )


def test_sums_of_floats_keep_their_order_without_reassoc():
    assert vectors(rows(VALUES["sum"], liberty="")) == 0
    assert vectors(rows(VALUES["sum"], "int32", liberty="")) > 0
    assert vectors(rows(VALUES["max"], liberty="")) > 0


TOGETHER = """
@T.prim_func
def main(n: T.Buffer((7,), "int32"), N: T.Buffer((7, 40), "int32"), X: T.Buffer((90,), "{dtype}"),
         W: T.Buffer((7, 40), "{dtype}"), Y: T.Buffer((7,), "{dtype}"),
         Z: T.Buffer((7,), "{dtype}")):
    T.func_attr({{"tir.fast_math": "{liberty}"}})
    for i in range(7):
        for p in range(n[i]):
            {first}
            {second}
"""
NEAR = "(X[i] - X[N[i, p]])"
PAIRS = {
    "sums": ("Y[i] = Y[i] + W[i, p]", "Z[i] = Z[i] + W[i, p] * W[i, p]"),
    "extremes": ("Y[i] = T.max(Y[i], W[i, p])", "Z[i] = T.min(W[i, p], Z[i])"),
    "gathers": (
        f"Y[i] = Y[i] + T.if_then_else({NEAR} * {NEAR} < 9, {NEAR} * {NEAR} * {NEAR}, 0)",
        f"Z[i] = Z[i] + T.if_then_else({NEAR} * {NEAR} < 9, {NEAR} + 2, W[i, p])",
    ),
    "one gather": (f"Y[i] = Y[i] + {NEAR} * {NEAR} * (W[i, p] + 1)", "pass"),
}  # fmt: skip


def together(name: str, dtype: str = "float32", liberty: str = "reassoc") -> str:
    first, second = PAIRS[name]
    return TOGETHER.format(dtype=dtype, liberty=liberty, first=first, second=second)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(PAIRS)), dtype=st.sampled_from(DTYPES[:4]),
    lengths=st.lists(st.integers(-2, 40), min_size=7, max_size=7),
)  # fmt: skip
def test_several_results_and_gathers_are_those_of_one_iteration_after_another(name, dtype, lengths):
    places = np.random.default_rng(0).integers(0, 90, (7, 40)).astype("int32")
    places[np.arange(40) >= np.array(lengths)[:, None]] = 1 << 30  # what no iteration reads
    data = [integers(shape, dtype, seed=n) for n, shape in enumerate([(90,), (7, 40), (7,), (7,)])]
    agree(together(name, dtype), np.array(lengths, "int32"), places, *data)


@pytest.mark.parametrize("name", PAIRS)
def test_several_results_and_gathers_run_in_lanes(name):
    assert vectors(together(name)) > 0
    code = build(together("gathers"), target=WIDE).llvm_ir
    assert code.count("call <16 x float> @llvm.masked.gather") == 2  # whole vectors, and the rest


def test_results_that_read_each_other_run_one_by_one():
    text = together("sums").replace("W[i, p] * W[i, p]", "Y[i] * W[i, p]")
    assert vectors(text) == 0
    assert vectors(together("sums", liberty="")) == 0


def test_a_gather_for_few_operations_runs_one_by_one():
    few = "Y[i] = Y[i] + W[i, p] * X[N[i, p]]"
    assert vectors(together("one gather").replace(PAIRS["one gather"][0], few)) == 0
