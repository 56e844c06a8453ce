"""Comparisons of lanes take 32 bits where and only where both sides fit, with the same results."""

from __future__ import annotations

import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.dtype import INT32
from metasched.ir.expr import Compare
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

MASKED = """
@T.prim_func
def main(A: T.Buffer(({rows}, 24), "{dtype}"), N: T.Buffer(({rows},), "int64"),
         B: T.Buffer(({rows}, 24), "{dtype}")):
    for i in range({rows}):
        for j in T.{kind}(24):
            with T.block("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.if_then_else({condition}, A[vi, vj], T.cast(7, "{dtype}"))
"""


def _program(condition: str, kind: str = "vectorized", dtype: str = "float32", rows: int = 9):
    return MASKED.format(condition=condition, kind=kind, dtype=dtype, rows=rows)


def _narrow(text: str) -> list[bool]:
    """Whether the operands of each comparison in the lowered program have 32 bits."""
    exprs = [e for s in walk_stmts(lower(parse(text), NATIVE).body) for e in s.exprs]
    return [n.a.dtype is INT32 for e in exprs for n in walk_exprs(e) if isinstance(n, Compare)]


@settings(max_examples=15, deadline=None)
@given(
    a=st.integers(-7, 7), b=st.integers(-7, 7), c=st.integers(-60, 60),
    order=st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    side=st.sampled_from(["vi * {b} + {c}", "{c} - vj // 3 * {b}", "vj % 5 * {b} + vi"]),
    dtype=st.sampled_from(["float32", "int8"]),
)  # fmt: skip
def test_masks_are_the_same_in_32_bits(a, b, c, order, side, dtype):
    text = _program(f"vj * {a} {order} {side.format(b=b, c=c)}", dtype=dtype)
    agree(text, integers((9, 24), dtype), integers((9,), "int64"), integers((9, 24), dtype))


@pytest.mark.parametrize("edge", [2**31 - 1, 2**31, 2**31 + 5, -(2**31), -(2**31) - 1])
def test_numbers_at_the_edge_of_32_bits(edge):
    text = _program(f'T.cast(vj, "int64") + T.int64({edge - 12}) <= vi + T.int64({edge})')
    agree(text, integers((9, 24)), integers((9,), "int64"), integers((9, 24)))
    far = _program(f"vj * T.int64(5) <= vi + T.int64({edge})")
    agree(far, integers((9, 24)), integers((9,), "int64"), integers((9, 24)))


@pytest.mark.parametrize(
    ("program", "narrow"),
    [
        (_program("vj <= vi"), True),
        (_program("vj * 3 <= vi + 20 and vi < vj + 4"), True),
        (_program("vj <= vi", kind="serial"), False),
        (_program("vj <= vi", dtype="float64"), False),
        (_program("vj <= N[vi]"), False),
        (_program("vj * T.int64(200000001) <= vi * T.int64(200000000)"), False),
    ],
)
def test_what_is_narrowed(program, narrow):
    found = _narrow(program)
    assert found and set(found) == {narrow}


def test_run_time_extents_keep_64_bits():
    text = """
    @T.prim_func
    def main(a: T.handle, b: T.handle, n: T.int32):
        A = T.match_buffer(a, (n, 24), "float32")
        B = T.match_buffer(b, (n, 24), "float32")
        for i in range(n):
            for j in T.vectorized(24):
                with T.block("b"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = T.if_then_else(vj <= vi, A[vi, vj], T.float32(7))
    """
    assert set(_narrow(text)) == {False}
