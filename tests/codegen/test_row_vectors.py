"""Loops along rows of unknown length: what vectors store and sum is what single iterations do."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import WIDE, agree, build, integers
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = """
@T.prim_func
def main(P: T.Buffer((8,), "int32"), N: T.Buffer((260,), "int32"), X: T.Buffer((260,), "{dtype}"),
         Y: T.Buffer((260,), "{dtype}"), Z: T.Buffer((260,), "{dtype}"),
         S: T.Buffer((7,), "{dtype}"), M: T.Buffer((7,), "{dtype}")):
    {attrs}
    for i in range(7):
        for p in range({extent}):
            {body}
"""
BODIES = {
    "scaled": "Y[p] = X[p] * 3 - S[i]",
    "in place": "Y[p] = Y[p] / M[i] + X[p]",
    "softmax": """
            Y[p] = T.sqrt(T.abs(X[p] - M[i]))
            S[i] = S[i] + Y[p]""",
    "variable": """
            w = T.sqrt(T.abs(X[p]))
            S[i] += w
            Y[p] = w / 3""",
    "two rows": """
            Y[p] = X[p] + 2
            Z[p] = Y[p] * Y[p] + Z[p]""",
    "maximum": """
            Y[p] = T.abs(X[p] - Z[p])
            M[i] = T.max(Y[p], M[i])""",
    "offset": """
            Y[P[i] + p] = T.sqrt(T.abs(X[P[i] + p]))
            S[i] = Y[P[i] + p] / 3 + S[i]""",
    "gather": "Y[p] = (X[N[p]] - M[i]) * (X[N[p]] + M[i]) / 3 + X[p] * X[p]",
    "choice": "Y[p] = T.if_then_else(N[p] < 200, X[N[p]] / 3 + X[p] * X[p] - M[i], X[p])",
}
ORDERED = {
    "neighbour": "Y[p + 1] = Y[p] + X[p]",
    "running sum": """
            S[i] = S[i] + T.sqrt(T.abs(X[p]))
            Y[p] = S[i]""",
    "one place": "Y[P[i]] = X[p] / 3",
    "column": "Y[p * 2] = X[p]",
    "named place": "Y[N[p]] = X[p] / 3",
    "moved place": """
            Y[P[i] + p] = X[p]
            P[i] = 0""",
    "value before a store": """
            w = Y[p] / 3
            Y[p] = X[p] * 2
            Z[p] = w""",
    "fast sum": """
            Y[p] = X[p] * 2
            S[i] = S[i] + Y[p]""",
}


def rows(
    body: str, dtype: str = "float32", extent: str = "P[i + 1] - P[i]", attrs: str = ""
) -> str:
    return ROWS.format(body=body, dtype=dtype, extent=extent, attrs=attrs or "pass")


def arrays(dtype: str, starts: np.ndarray) -> list[np.ndarray]:
    places = np.random.default_rng(0).integers(0, 260, 260).astype("int32")
    shapes = [(260,), (260,), (260,), (7,)]
    data = [integers(shape, dtype, seed=n) for n, shape in enumerate(shapes)]
    return [starts.astype("int32"), places, *data, np.abs(integers((7,), dtype, seed=9)) + 1]


def in_vectors(text: str) -> bool:
    code = build(text, target=WIDE).llvm_ir
    return "<16 x float>" in code and "rest" in code


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from([*BODIES, *ORDERED]), dtype=st.sampled_from(["float32", "float64"]),
    lengths=st.lists(st.integers(0, 36), min_size=7, max_size=7),
    extent=st.sampled_from(["P[i + 1] - P[i]", "i * 17 - 3"]),
)  # fmt: skip
def test_rows_are_those_of_one_iteration_after_another(name, dtype, lengths, extent):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    agree(rows({**BODIES, **ORDERED}[name], dtype, extent), *arrays(dtype, starts))


@pytest.mark.parametrize("name", BODIES)
def test_rows_run_in_vectors(name):
    assert in_vectors(rows(BODIES[name]))


@pytest.mark.parametrize("name", ORDERED)
def test_what_another_iteration_stores_is_not_read_in_lanes(name):
    assert not in_vectors(rows(ORDERED[name]))


def test_a_sum_in_any_order_is_summed_in_lanes():
    for attrs, ordered in (("", True), ('T.func_attr({"tir.fast_math": "reassoc"})', False)):
        code = build(rows(BODIES["softmax"], attrs=attrs), target=WIDE).llvm_ir
        assert ("@llvm.vector.reduce.fadd" in code) is ordered


def test_integers_run_in_vectors_too():
    text = rows("Y[p] = X[p] * 3 + Z[p]\n            S[i] = S[i] + Y[p]", "int32")
    agree(text, *arrays("int32", np.array([0, 3, 40, 41, 90, 120, 190, 260])))
    assert "<16 x i32>" in build(text, target=WIDE).llvm_ir
