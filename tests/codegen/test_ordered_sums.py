"""Sums of slow values in serial loops: the values in lanes, the additions in their order."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import WIDE, agree, build, call, integers
from hypothesis import given, settings
from hypothesis import strategies as st

NEAR = """
@T.prim_func
def main(n: T.Buffer((7,), "int32"), N: T.Buffer((7, 40), "int32"), X: T.Buffer((90,), "{dtype}"),
         W: T.Buffer((7, 40), "{dtype}"), Y: T.Buffer((7,), "{dtype}"),
         Z: T.Buffer((7,), "{dtype}")):
    for i in range(7):
        for p in range({extent}):
            {body}
"""
BODIES = {
    "root": "Y[i] += T.sqrt(T.abs(W[i, p])) / 3",
    "gather": """
            d = X[i] - X[N[i, p]]
            q = T.sqrt(d * d) / 7
            Y[i] += q""",
    "branches": """
            d = X[i] - X[N[i, p]]
            q = T.sqrt(d * d + 1) / 3
            if q < 2:
                Y[i] = q / 5 + Y[i]
            elif q < 4:
                t = 9 - q
                Y[i] += t / q""",
    "load in a branch": """
            if W[i, p] > 0:
                q = T.sqrt(X[N[i, p]] * X[N[i, p]] + 2)
                Y[i] += q / 3 + q / 7""",
    "guarded": "if W[i, p] > 2: Y[i] += X[i] * W[i, p]",
    "never": "if W[i, p] > 99: Y[i] += X[i] * W[i, p]",
    "two sums": """
            r = T.sqrt(W[i, p] * W[i, p] + 1)
            Z[i] += W[i, p] / r
            if r > 3:
                Y[i] += 1 / r""",
}
LENGTHS = st.lists(st.integers(-2, 40), min_size=7, max_size=7)


def near(body: str, dtype: str = "float32", extent: str = "n[i]") -> str:
    return NEAR.format(dtype=dtype, body=body, extent=extent)


def values_in_lanes(text: str) -> bool:
    code = build(text, target=WIDE).llvm_ir
    return "@llvm.vector.reduce.fadd" in code


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(list(BODIES)), dtype=st.sampled_from(["float32", "float64"]),
    lengths=LENGTHS, extent=st.sampled_from(["n[i]", "n[i]", "37"]),
)  # fmt: skip
def test_sums_are_those_of_one_iteration_after_another(name, dtype, lengths, extent):
    data = [integers(shape, dtype, seed=n) for n, shape in enumerate([(90,), (7, 40), (7,), (7,)])]
    places = np.random.default_rng(0).integers(0, 90, (7, 40)).astype("int32")
    if extent == "n[i]":
        places[np.arange(40) >= np.array(lengths)[:, None]] = 1 << 30  # what no iteration reads
    if name == "load in a branch":
        places[data[1] <= 0] = 1 << 30
    agree(near(BODIES[name], dtype, extent), np.array(lengths, "int32"), places, *data)


def test_nothing_is_added_where_no_branch_is_taken():
    """A sum of -0.0 stays -0.0, also in lanes that a mask leaves out."""
    zeros = np.full(7, -0.0, "float32")
    lengths, places = np.full(7, 37, "int32"), np.full((7, 40), 50, "int32")
    x, w = np.full(90, 100, "float32"), np.ones((7, 40), "float32")
    x[50] = 1
    y, z = zeros.copy(), zeros.copy()
    kernel = agree(near(BODIES["branches"]), lengths, places, x, w, zeros, zeros)
    assert call(kernel, lengths, places, x, w, y, z) == 0
    assert (y == 0).all() and np.signbit(y).all()
    assert values_in_lanes(near(BODIES["branches"]))


GUARDED = """
@T.prim_func
def main(J: T.Buffer((7,), "int32"), W: T.Buffer((7, 40), "float32"), Y: T.Buffer((7,), "float32")):
    for i in range(7):
        j = J[i]
        for p in range(40):
            {body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "if W[i, p] > 2 and j >= 0: Y[j] += T.exp(W[i, p] / 99)",
        """
            if j >= 0:
                if W[i, p] > 2:
                    Y[j] += W[i, p] / 3""",
    ],
)
def test_an_element_that_no_iteration_adds_to_is_not_touched(body):
    """Its index may be outside of the buffer."""
    text = GUARDED.format(body=body)
    weights, sums = integers((7, 40), seed=1), integers((7,), seed=2)
    agree(text, np.array([3, -1, 0, -(1 << 28), 6, 3, -2], "int32"), weights, sums)
    assert values_in_lanes(text)


@pytest.mark.parametrize("name", BODIES)
def test_slow_values_run_in_lanes(name):
    assert values_in_lanes(near(BODIES[name]))


@pytest.mark.parametrize(
    "body",
    [
        "Y[i] += W[i, p] * 3",  # faster than the addition that waits
        "Y[i] += T.sqrt(Y[i] + W[i, p])",
        "Y[i] += T.sqrt(Z[i] + W[i, p])\n            Z[i] += W[i, p] / 2",
        "Y[i] += T.sqrt(W[i, p])\n            Y[i] += W[i, p] / 2",
        "Y[i] = T.sqrt(W[i, p]) - Y[i]",
        "Y[p % 7] += T.sqrt(W[i, p])",
    ],
)
def test_other_loops_run_one_by_one(body):
    text = near(body)
    assert not values_in_lanes(text)
    data = [abs(integers(shape, seed=n)) for n, shape in enumerate([(90,), (7, 40), (7,), (7,)])]
    places = np.zeros((7, 40), "int32")
    if "Y[i])" not in body and "Y[i] +" not in body:
        agree(text, np.array([0, 3, 40, 39, 7, 16, 1], "int32"), places, *data)
