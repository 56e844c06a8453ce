"""Noted reductions over few contiguous elements are trees of lanes; others keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import agree, build, integers

ROWS = """
@T.prim_func
def main(A: T.Buffer((5, {n}), "{dtype}"), C: T.Buffer((5,), "{dtype}")):
    for i in range(5):
        for j in range({n}):
            with T.block("c"):
                vi, vj = T.axis.remap("SR", [i, j])
                T.block_attr({{"{note}": 1}})
                C[vi] = {update}
"""
UPDATES = (
    "C[vi] + A[vi, vj]", "A[vi, vj] * C[vi]", "T.max(C[vi], A[vi, vj])", "T.min(A[vi, vj], C[vi])",
    "C[vi] + A[vi, vj] * A[vi, 0]", "C[vi] - A[vi, vj]",
)  # fmt: skip


def _rows(update: str, dtype: str = "float32", n: int = 16, note: str = "pragma_fold_lanes") -> str:
    return ROWS.format(update=update, dtype=dtype, n=n, note=note)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("update", UPDATES)
def test_lanes_are_folded_as_a_tree(update: str, dtype: str) -> None:
    a, c = integers((5, 16), dtype), integers((5,), dtype, seed=1)
    a[a == 0] = 1
    compiled = agree(_rows(update, dtype), a, c)
    assert "shufflevector" in compiled.llvm_ir


def test_a_maximum_of_lanes_keeps_nan_wherever_it_stands() -> None:
    a = np.zeros((5, 16), "float32")
    a[range(4), [0, 7, 8, 15]] = np.nan
    agree(_rows("T.max(C[vi], A[vi, vj])"), a, np.array([0, 0, 0, 0, np.nan], "float32"))


@pytest.mark.parametrize(
    "text",
    [
        _rows("C[vi] + A[vi, vj]", note="other"),
        _rows("C[vi] + A[vi, vj]", n=12),
        _rows("A[vi, vj] - C[vi]"),
        _rows("C[vi] + C[vi] * A[vi, vj]"),
        _rows("C[vi] + T.call_pure_extern('float32', 'cbrtf', A[vi, vj])"),
    ],
)
def test_everything_else_stays_in_order(text: str) -> None:
    assert "shufflevector" not in build(text).llvm_ir
    a = np.random.default_rng(0).standard_normal((5, 12 if "12" in text else 16))
    if "extern" not in text and "C[vi] * A" not in text:  # (that one is fused to a multiply-add)
        agree(text, a.astype("float32"), np.ones(5, "float32"))
