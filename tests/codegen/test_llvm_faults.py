"""Programs that LLVM 22 compiles wrongly when they are put to it in the obvious way."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call

from metasched.target import Target

NARROWED = """
@T.prim_func
def main(A: T.Buffer((5,), "{wide}"), C: T.Buffer((5,), "{narrow}")):
    for i in T.unroll(2):
        for j in T.vectorized(4):
            if i * 4 + j < 5:
                C[i * 4 + j] = T.cast(A[i * 4 + j] {more}, "{narrow}")
"""
OUT_OF_ORDER = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    with T.decl_buffer((8,), scope="local") as R:
        for j in T.vectorized(4):
            R[j + 4] = A[j]
        for j in T.vectorized(4):
            R[j] = A[j + 4] * T.float32(2)
        for j in T.vectorized(8):
            C[j] = R[j]
"""


@pytest.mark.parametrize(
    ("wide", "narrow", "more"), [("int32", "int8", "// 3"), ("int64", "int16", "+ T.int64(1)")]
)
def test_a_single_lane_of_narrowed_numbers_writes_no_neighbours(wide, narrow, more) -> None:
    compiled = build(NARROWED.format(wide=wide, narrow=narrow, more=more))
    a, c = np.arange(5).astype(wide), np.full(12, 77, narrow)
    assert call(compiled, a, c[:5]) == 0
    assert (c[5:] == 77).all() and (c[:5] == (a // 3 if narrow == "int8" else a + 1)).all()


def test_vectors_stored_in_descending_order_load_as_one_vector() -> None:
    targets = [NATIVE, *(Target.of({"kind": "cpu", "mcpu": m}) for m in ("nehalem", "haswell"))]
    a, c = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    for target in targets:
        if NATIVE.supports(target) is None:
            agree(OUT_OF_ORDER, a, c, target=target)
