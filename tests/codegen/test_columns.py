"""Lanes in rows of their own: what is loaded and stored, and no access outside."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import WIDE, agree, build, call, integers
from codegen.test_interleaved import text
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.measure.data import Array
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory

DTYPES = ["float32", "float64", "int64", "int8", "bfloat16"]
ROWS = """
@T.prim_func
def main(A: T.Buffer(({n}, {stride}), "{dtype}"), B: T.Buffer(({n}, {stride}), "{dtype}")):
    for i in T.vectorized({n}):
        with T.block("B"):
            vi = T.axis.spatial({n}, i)
{stores}
"""


def rows(n: int, values: list[tuple[int, str]], stride: int, dtype: str = "float32") -> str:
    stores = "\n".join(f"            B[vi, {at}] = {value}" for at, value in values)
    return ROWS.format(n=n, stride=stride, stores=stores, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 70), stride=st.integers(5, 20), dtype=st.sampled_from(DTYPES),
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=9),
)  # fmt: skip
def test_columns_are_loaded(n, stride, dtype, starts):
    size = stride * (n - 1) + max(starts) + 1
    source = text(n, stride, starts, dtype)
    agree(source, integers((size,), dtype), np.zeros(n, integers((1,), dtype).dtype))


@pytest.mark.parametrize("where", [AT_START, AT_END])
@pytest.mark.parametrize("stride", [5, 9, 16])
@pytest.mark.parametrize("starts", [[0, 1], [8, 0, 3], [0, 17, 20], [40, 2, 0]])
def test_nothing_outside_of_the_rows_is_read(where, stride, starts):
    """The page beside the array cannot be read; the array begins at the lowest load."""
    n, size = 40, stride * 39 + max(starts) + 1
    layout = [
        Array(name, "float32", (m,), (1,), True, False, 0, 1, 0.0)
        for name, m in (("A", size), ("B", n))
    ]
    memory = GuardedMemory(layout, where)
    memory.write(0, integers((size,)))
    assert call(build(text(n, stride, starts)), *memory.views) == 0
    wanted = sum(integers((size,))[s : s + stride * 39 + 1 : stride] for s in starts)
    np.testing.assert_array_equal(memory.read(1), wanted)


def test_columns_of_a_row_share_a_load_for_each_lane():
    ir = build(text(16, 9, list(range(9))), target=WIDE).llvm_ir
    body = ir[: ir.index("@kernel_repeat")]
    assert "load float" not in body
    assert len(set(re.findall(r"load <\d+ x float>, ptr (%\w+)", body))) <= 32


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 40), stride=st.integers(5, 18), dtype=st.sampled_from(DTYPES), data=st.data()
)
def test_neighbours_in_rows_are_stored(n, stride, dtype, data):
    """In any order, with gaps, and with elements that are stored twice."""
    places = data.draw(st.lists(st.integers(0, stride - 1), min_size=1, max_size=20))
    values = [(p, f"A[vi, {(p * 3 + k) % stride}] + A[vi, 0]") for k, p in enumerate(places)]
    before = integers((n, stride), dtype)
    agree(rows(n, values, stride, dtype), before, np.ones_like(before))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 40), stride=st.integers(5, 18), data=st.data())
def test_a_row_that_is_changed_in_place_keeps_its_order(n, stride, data):
    """Stored elements are read again, also from another lane's row."""
    place = st.integers(0, stride - 1)
    steps = data.draw(st.lists(st.tuples(place, place, place), min_size=1, max_size=20))
    values = [(p, f"B[vi, {a}] - A[vi, {b}] + B[vi, {p}]") for p, a, b in steps]
    before = integers((n, stride))
    agree(rows(n, values, stride), before, before[::-1].copy())


def test_stores_in_rows_have_no_store_for_each_element():
    ir = build(rows(16, [(k, f"A[vi, {8 - k}]") for k in range(8)], 9)).llvm_ir
    body = ir[: ir.index("@kernel_repeat")]
    assert "store float" not in body
    assert "store <8 x float>" in body


def test_rows_that_memory_names_are_stored_lane_by_lane():
    source = """
@T.prim_func
def main(I: T.Buffer((16,), "int32"), A: T.Buffer((16,)), B: T.Buffer((400,))):
    for i in T.vectorized(16):
        k = I[i]
{stores}
"""
    a = integers((16,))
    for stride in (2, 4, 6):
        stores = "\n".join(
            f"        B[{stride} * i + k + {n}] = A[i] + {n}.0" for n in range(stride)
        )
        where = np.arange(16, dtype=np.int32) // 4 * stride
        agree(source.format(stores=stores), where, a, np.zeros(400, np.float32))
