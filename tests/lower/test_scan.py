"""Noted scans of any length are computed in lanes; whatever else is noted, stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.stmt import AttrStmt
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

ROWS = """
@T.prim_func
def main(A: T.Buffer((3, {n}), "{dtype}"), B: T.Buffer((3, {size}), "{dtype}")):
    for i, j in T.grid(3, {n}):
        with T.block("b"):
            vi = T.axis.spatial(3, i)
            vj = T.axis.scan({n}, j)
            T.block_attr({{"pragma_scan_lanes": {width}}})
            {body}
"""
STARTS = {
    "sum": "B[vi, vj] = T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])",
    "exclusive": "B[vi, vj] = T.if_then_else(0 < vj, A[vi, vj - 1] + B[vi, vj - 1], {zero})",
    "maximum": "B[vi, vj] = T.if_then_else(vj < 1, A[vi, 0], T.max(B[vi, vj - 1], A[vi, vj]))",
    "on": "B[vi, vj + 1] = B[vi, vj] + A[vi, vj] * A[vi, 0]",
    "product": "B[vi, vj + 1] = A[vi, vj] * B[vi, vj]",
    "backwards": "B[vi, {n} - 1 - vj] = B[vi, {n} - vj] + A[vi, vj]",
}


def _rows(body: str, n: int, width: int, dtype: str = "float32") -> str:
    zero = "T.float32(0)" if dtype == "float32" else "0" if dtype == "int32" else f"T.{dtype}(0)"
    text = STARTS.get(body, body).format(n=n, zero=zero)
    return ROWS.format(n=n, size=n + 1, dtype=dtype, width=width, body=text)


def _in_lanes(text: str) -> bool:
    func = lower(parse(text), NATIVE)
    notes = [s for s in walk_stmts(func.body) if isinstance(s, AttrStmt)]
    return any(s.key == "pragma_scan_lanes" and s.value.value == 1 for s in notes)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 150),
    power=st.integers(0, 6),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    body=st.sampled_from(sorted(STARTS)),
)
def test_every_length_and_width_gives_the_same(n, power, dtype, body):
    text = _rows(body, n, 1 << power, dtype)
    a = integers((3, n), dtype)
    if body == "product":
        a = np.where(a < 0, -1, 1).astype(dtype)
    agree(text, a, integers((3, n + 1), dtype, seed=1))


UNEQUAL = """
@T.prim_func
def main(A: T.Buffer((3, {n}), "{dtype}"), B: T.Buffer((3, {n} + 1), "{dtype}")):
    for i in range(3):
        for j in range({ends}):
            with T.block("b"):
                vi = T.axis.spatial(3, i)
                vj = T.axis.scan({n}, j)
                T.where({kept})
                T.block_attr({{"pragma_scan_lanes": {width}}})
                {body}
"""


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 150),
    power=st.integers(1, 6),
    step=st.integers(-60, 60),
    first=st.integers(-3, 160),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
    body=st.sampled_from(sorted(set(STARTS) - {"product"})),
    bound=st.booleans(),
)
def test_rows_of_unequal_length(n, power, step, first, dtype, body, bound):
    """The length of a row is known at run time: by a condition, or by the bound of the loop."""
    length = f"{first} + i * {step}"
    text = UNEQUAL.format(
        n=n, dtype=dtype, width=1 << power,
        ends=f"T.min(T.max({length}, 0), {n})" if bound else n,
        kept=f"j < {n}" if bound else f"j < {length}",
        body=STARTS[body].format(n=n, zero=f"T.{dtype}(0)"),
    )  # fmt: skip
    agree(text, integers((3, n), dtype), integers((3, n + 1), dtype, seed=1))


def test_the_last_part_of_a_scan_may_be_shorter():
    text = _rows("on", 64, 16).replace(
        "            T.block_attr",
        "            T.where(i * 64 + j < 150)\n            T.block_attr",
    )
    assert _in_lanes(text)
    assert "shufflevector" in build(text).llvm_ir
    assert not _in_lanes(text.replace("i * 64 + j < 150", "A[0, j] < T.float32(1)"))


@pytest.mark.parametrize("body", STARTS)
def test_lanes_are_moved_and_added(body):
    text = _rows(body, 64, 32)
    assert _in_lanes(text)
    assert "shufflevector" in build(text).llvm_ir


@pytest.mark.parametrize(
    "body",
    [
        "B[vi, vj + 1] = B[vi, vj] - A[vi, vj]",  # not associative
        "B[vi, vj + 1] = B[vi, vj] + B[vi, 0]",  # adds what the scan writes
        "B[vi, vj] = B[vi, vj + 1] + A[vi, vj]",  # reads ahead: no scan
        "B[vi, vj] = T.if_then_else(vj % 8 == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])",
        "B[vi, vj // 2 + 1] = B[vi, vj // 2] + A[vi, vj]",  # writes an element twice
        "B[vi, 0] = B[vi, 0] + A[vi, vj]",
    ],
)
def test_what_is_no_scan_stays(body):
    text = _rows(body, 64, 16)
    assert not _in_lanes(text)
    agree(text, integers((3, 64)), integers((3, 65), seed=1))


def test_a_second_name_for_the_result_is_no_operand():
    text = _rows("B[vi, vj + 1] = B[vi, vj] + D[vi, 0]", 64, 16).replace(
        "    for i, j", '    D = T.decl_buffer((3, 65), "float32", data=B.data)\n    for i, j', 1
    )
    assert not _in_lanes(text)


def test_zeros_keep_their_signs_and_nan_goes_on():
    text = _rows("sum", 48, 16)
    a = np.full((3, 48), -0.0, "float32")
    a[1, 20] = np.nan
    out = np.zeros((3, 49), "float32")
    assert call(build(text), a, out) == 0
    assert np.signbit(out[0, :48]).all()
    assert np.isnan(out[1, 20:48]).all() and not np.isnan(out[1, :20]).any()


DECAY = "B[vi, vj + 1] = B[vi, vj] * T.{dtype}({factor}) + A[vi, vj]"


@settings(max_examples=12, deadline=None)
@given(
    n=st.integers(1, 150),
    power=st.integers(0, 6),
    dtype=st.sampled_from(["float32", "float64"]),
    factor=st.floats(1 / 64, 1),
)
def test_decaying_sums_of_every_length_and_width(n, power, dtype, factor):
    text = _rows(
        DECAY.replace("{factor}", str(factor)).replace("{dtype}", dtype), n, 1 << power, dtype
    )
    a, b = integers((3, n), dtype), integers((3, n + 1), dtype, seed=1)
    want = b.astype("float64")
    for j in range(n):
        want[:, j + 1] = want[:, j] * a.dtype.type(factor) + a[:, j]
    call(build(text), a, b)
    scale = np.abs(want).max() + n
    np.testing.assert_allclose(b, want, rtol=0, atol=scale * 64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("factor", [1.25, 0.001, 0.0, -0.5])
def test_powers_that_overflow_or_vanish_are_not_computed_in_lanes(factor):
    decay = DECAY.replace("{dtype}", "float32")
    assert _in_lanes(_rows(decay.replace("{factor}", "0.25"), 64, 8))
    assert not _in_lanes(_rows(decay.replace("{factor}", str(factor)), 64, 8))
