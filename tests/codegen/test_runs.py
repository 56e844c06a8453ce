"""Vector accesses at known offsets: what they load, and that no gather is left."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import agree, build, integers
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = """
@T.prim_func
def main(C: T.Buffer(({rows}, {row}), "int32"), D: T.Buffer(({n},), "int32")):
    for j in T.vectorized({n}):
        with T.block("D"):
            vj = T.axis.spatial({n}, j)
            D[vj] = C[vj // {part}, vj % {part} + {shift}]
"""


def text(n: int, part: int, row: int, shift: int = 0) -> str:
    return TEXT.format(n=n, part=part, row=row, rows=-(-n // part), shift=shift)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 40), part=st.integers(1, 20), more=st.integers(0, 6), shift=st.integers(0, 3)
)
def test_parts_of_rows_are_loaded(n, part, more, shift):
    row = part + more + shift
    c = integers((-(-n // part), row), "int32")
    agree(text(n, part, row, shift), c, np.zeros(n, "int32"))


@pytest.mark.parametrize(("n", "part", "row"), [(8, 2, 4), (16, 8, 24), (8, 4, 4), (32, 16, 256)])
def test_rows_of_tiles_are_loaded_without_a_gather(n, part, row):
    assert "gather" not in build(text(n, part, row)).llvm_ir
