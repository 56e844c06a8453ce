"""Small temporaries live in registers: the loops that index them are unrolled."""

from __future__ import annotations

import pytest

import metasched as ms
from metasched.script import parse

ROW = """
@T.prim_func
def main(A: T.Buffer((8, {n}), "int32"), D: T.Buffer((8,), "int32")):
    for i in range(8):
        row = T.allocate(({n} + {lanes},), "int32", scope="local")
        for j in range({n} // {lanes}):
            for l in T.vectorized({lanes}):
                row[j * {lanes} + l] = A[i, j * {lanes} + l]
        for j in range({n} // {lanes}):
            for l in T.vectorized({lanes}):
                row[j * {lanes} + l] = T.min(row[j * {lanes} + l] + 1, row[(j + 1) * {lanes} + l])
        D[i] = row[{n} - 1]
"""


@pytest.mark.parametrize(("n", "lanes", "unrolled"), [(48, 1, 2), (128, 1, 0), (128, 8, 2)])
def test_a_row_is_unrolled_if_its_places_are_not_many_more_than_registers(n, lanes, unrolled):
    """An edit distance in a row of 128 scalars took 2.7 times as long unrolled."""
    text = ROW.format(n=n, lanes=lanes)
    assert ms.lower(parse(text)).script().count("T.unroll(") == unrolled
