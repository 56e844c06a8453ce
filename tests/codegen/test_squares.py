"""Lanes that walk along rows: the same results as step by step, no access outside of the rows."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import NATIVE, WIDE, agree, build, call, integers, program
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir import op
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import HANDLE
from metasched.ir.expr import Var, as_expr
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import LetStmt
from metasched.ir.visit import substitute_buffers
from metasched.measure.data import Array
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory

ROWS = """
@T.prim_func
def main(A: T.Buffer(({rows}, {k}), "{dtype}"), p: T.Buffer(({n},), "int32"),
         x: T.Buffer(({k},), "{dtype}"), m: T.Buffer((2,), "int32"),
         B: T.Buffer(({n},), "{dtype}")):
    for j in T.vectorized({n}):
        if {condition}:
            B[j] = {zero}
            for k in range({extent}):
                B[j] = {value}
"""
VALUES = [
    "B[j] + A[{row}, k] * x[k]",
    "B[j] * {two} - A[{row}, k]",
    "T.max(B[j], A[{row}, k]) + A[{row}, 0]",
    "B[j] + T.if_then_else(x[k] > {zero}, A[{row}, k], x[k])",
    "B[j] + A[{row}, k] * A[j, k]",
    "B[j] + A[{row}, {k} - 1 - k]",
]
DTYPES = ["float32", "float64", "int32", "int64", "int8", "uint16", "float16", "bfloat16"]


def text(n: int, k: int, dtype: str = "float32", value: str = VALUES[0], row: str = "p[j]",
         extent: str | int | None = None, condition: str = "True") -> str:  # fmt: skip
    names = {"row": row, "two": f"T.{dtype}(2)", "zero": f"T.{dtype}(0)", "k": k}
    return ROWS.format(
        rows=max(n, 40), k=k, dtype=dtype, n=n, value=value.format(**names), zero=f"T.{dtype}(0)",
        extent=k if extent is None else extent, condition=condition,
    )  # fmt: skip


def arguments(n: int, k: int, dtype: str, steps: int, active: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n * k)
    rows = rng.integers(0, max(n, 40), n).astype("int32")
    rows[active:] = rng.choice([-(10**9), 10**9], n - active)  # what no lane may use
    m = np.array([steps, active], "int32")
    a, x = integers((max(n, 40), k), dtype), integers((k,), dtype, 1)
    return [a, rows, x, m, np.zeros(n, a.dtype)]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 140), k=st.integers(1, 21), dtype=st.sampled_from(DTYPES),
    value=st.sampled_from(VALUES), row=st.sampled_from(["p[j]", "j"]),
    steps=st.none() | st.integers(0, 21), active=st.none() | st.integers(0, 140),
)  # fmt: skip
def test_rows_are_read_as_step_by_step(n, k, dtype, value, row, steps, active):
    extent = None if steps is None else "m[0]"
    condition = "True" if active is None else "j < m[1]"
    source = text(n, k, dtype, value, row, extent, condition)
    most = n if active is None else min(n, active)
    agree(source, *arguments(n, k, dtype, min(k, steps or 0), most))


@pytest.mark.parametrize("where", [AT_START, AT_END])
@pytest.mark.parametrize("extent", [None, "m[0]"])
@pytest.mark.parametrize("active", [0, 1, 7, 16])
def test_nothing_outside_of_active_rows_is_read(where, extent, active):
    n, k = 16, 11
    given_data = arguments(n, k, "float32", k, active)
    given_data[1][:active] = np.arange(active) * 39 // 15  # first and last row of A
    names = ["A", "p", "x", "m", "B"]
    layout = [
        Array(name, str(a.dtype), a.shape, (a.shape[1], 1) if a.ndim > 1 else (1,), True, False, 0,
              1, 0.0)
        for name, a in zip(names, given_data, strict=True)
    ]  # fmt: skip
    memory = GuardedMemory(layout, where)
    for place, a in enumerate(given_data):
        memory.write(place, a)
    compiled = build(text(n, k, extent=extent, condition="j < m[1]"))
    assert call(compiled, *memory.views) == 0
    a, p, x, *_ = given_data
    wanted = np.zeros(n, "float32")
    wanted[:active] = a[p[:active]] @ x
    np.testing.assert_array_equal(memory.read(4), wanted)


@pytest.mark.parametrize("k", [*range(4, 9), 64])
@pytest.mark.parametrize("row", ["p[j]", "j"])
def test_each_lane_rounds_as_one_lane_alone(k, row):
    """Sums of squares keep the rounding of a loop, in which each product is fused with the sum."""
    source = text(16, k, value="B[j] + (A[{row}, k] - x[k]) * (A[{row}, k] - x[k])", row=row)
    rng = np.random.default_rng(k)
    given_data = arguments(16, k, "float32", k, 16)
    given_data[0], given_data[2] = rng.random((40, k), "float32"), rng.random(k, "float32")
    a, p, x, *_ = given_data
    lanes, alone = (np.zeros(16, "float32") for _ in range(2))
    call(build(source), a, p, x, given_data[3], lanes)
    call(build(source.replace("T.vectorized(16)", "range(16)")), a, p, x, given_data[3], alone)
    np.testing.assert_array_equal(lanes, alone)


@pytest.mark.parametrize("row", ["p[j]", "j"])
def test_a_load_gives_four_steps_of_a_lane(row):
    ir = build(text(16, 64, row=row)).llvm_ir
    body = ir[: ir.index("@kernel_repeat")]
    assert len(re.findall(r"load <4 x float>", body)) == 16
    assert "gather" not in body


@pytest.mark.parametrize(
    ("k", "dtype", "value", "row", "size"),
    [
        (1024, "float32", VALUES[0], "p[j]", 16),
        (1024, "float32", VALUES[0], "j", 16),
        (1024, "float32", VALUES[4], "p[j]", 8),
        (2048, "float16", VALUES[0], "j", 16),
        (512, "float64", VALUES[0], "j", 8),
        (256, "float32", VALUES[0], "p[j]", 4),
        (1000, "float32", VALUES[0], "j", 4),
    ],
)
def test_a_load_gives_a_whole_line_of_rows_that_share_a_set_of_the_cache(
    k, dtype, value, size, row
):
    """A set of the cache has 8 lines or a few more: fewer than 16 rows a multiple of 4,096 bytes
    apart. The loads of a product of two rows share the registers."""
    source = text(16, k, dtype, value, row, extent="m[0]", condition="j < m[1]")
    ir = build(source, target=WIDE).llvm_ir
    kind = {"float16": "half", "float64": "double"}.get(dtype, "float")
    found = re.findall(rf"load <{size} x {kind}>", ir[: ir.index("@kernel_repeat")])
    assert len(found) >= 16
    for steps in (3, 16, 37):
        agree(source, *arguments(16, k, dtype, steps, 13))


@pytest.mark.parametrize(("lanes", "size"), [(64, 8), (8, 8), (4, 4)])
def test_a_load_of_bytes_gives_eight_steps(lanes, size):
    """Bits of bytes are packed in lanes of 64 bytes; four lanes have no square of eight."""
    source = text(lanes, 24, "uint8", "B[j] * T.uint8(2) + A[{row}, k]")
    ir = build(source, target=WIDE).llvm_ir
    rows = re.findall(rf"load <{size} x i8>", ir[: ir.index("@kernel_repeat")])
    assert len(rows) - lanes in (0, 1)  # one more is B
    agree(source, *arguments(lanes, 24, "uint8", 24, lanes))


@pytest.mark.parametrize("value", [
    "B[j] + T.if_then_else(x[k] > T.float32(0), A[p[j], k], T.float32(0))",
    "B[j] + A[p[j], 2 * k % 7]",
    "B[j] + A[p[k], j]",
    "B[j] + x[k]",
])  # fmt: skip
def test_other_loads_stay_as_they_are(value):
    source = text(16, 16, value=value)
    assert "load <4 x float>" not in build(source).llvm_ir
    given_data = arguments(16, 16, "float32", 16, 16)
    agree(source, *given_data)


def test_rows_that_the_loop_changes_are_read_step_by_step():
    source = """
@T.prim_func
def main(A: T.Buffer((40, 16), "float32"), p: T.Buffer((16,), "int32")):
    for j in T.vectorized(16):
        for k in range(15):
            A[j, k + 1] = A[j, k] + A[j, k + 1]
"""
    assert "load <4 x float>" not in build(source).llvm_ir
    agree(source, integers((40, 16)), np.zeros(16, "int32"))


def test_rows_in_memory_that_the_lanes_write_through_a_pointer_are_loaded_step_by_step():
    """V lies in A: a later step loads what an earlier step of another lane stored."""
    lanes = NATIVE.vector_bits // 32
    text = f"""
@T.prim_func
def main(A: T.Buffer((2048,), "float32"), S: T.Buffer(({lanes},), "float32")):
    for j in T.vectorized({lanes}):
        for k in range(64):
            S[j] = S[j] + A[j * 64 + k]
"""
    func = program(text)
    a, s = func.buffers
    view = Buffer("V", s.shape, s.dtype, data=Var("p", HANDLE))
    second = op.call("address_of", BufferLoad(a, (as_expr(1),)), dtype=HANDLE)
    body = LetStmt(view.data, second, substitute_buffers(func.body, {s: view}))
    got = np.arange(2048, dtype="float32")
    want = got.copy()
    for k in range(64):
        want[1 : 1 + lanes] = [want[1 + j] + want[j * 64 + k] for j in range(lanes)]
    call(build(PrimFunc((a,), body, func.attrs)), got)
    assert np.array_equal(got, want)
