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


WINDOWS = """
@T.prim_func
def main(A: T.Buffer((4, {rows}, {columns}, 16), "float32"), D: T.Buffer((4, 16), "float32")):
    for i in range(4):
        part = T.allocate(({rows} * {columns} * 16,), "float32", scope="local")
        for y, x in T.grid({rows}, {columns}):
            for l in T.vectorized(16):
                part[(y * {columns} + x) * 16 + l] = A[i, y, x, l]
        for l in T.vectorized(16):
            D[i, l] = T.float32(0)
        for y, x, dy, dx in T.grid({rows} - 2, {columns} - 2, 3, 3):
            for l in T.vectorized(16):
                D[i, l] = D[i, l] + part[((y + dy) * {columns} + x + dx) * 16 + l]
"""


@pytest.mark.parametrize(("rows", "columns", "unrolled"), [(10, 3, 5), (11, 3, 0)])
def test_windows_that_overlap_count_each_place_once(rows, columns, unrolled):
    """72 steps read 30 vectors, which registers hold, but not 33 vectors. Such windows of a
    depthwise convolution of 7 x 7 x 1024 took 16 us, and take 9 us unrolled."""
    text = WINDOWS.format(rows=rows, columns=columns)
    assert ms.lower(parse(text)).script().count("T.unroll(") == unrolled
