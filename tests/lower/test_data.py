"""Arithmetic on elements of memory wraps, also on elements that a variable names."""

import textwrap

import numpy as np
import pytest

import metasched as ms
from metasched.ir.interp import run
from metasched.kinds import default_trace
from metasched.lower.passes.data import data_vars
from metasched.script import parse
from metasched.target import Target

LOW, HIGH = np.iinfo("int64").min, np.iinfo("int64").max
WORDS = {
    "simplify": "O[i, j] = (x * T.int64(2)) // T.int64(2)",
    "simplify a sum": "O[i, j] = T.cast(T.cast(x, 'int32') + T.cast(y, 'int32'), 'int64') // 3",
    "simplify a comparison": "O[i, j] = T.cast(x + T.int64(1) > x, 'int64')",
    "clamps": "O[i, j] = O[i, T.max(T.min(j + (x + y), T.int64(3)), T.int64(0))] + j",
    "guards": "if j + x > T.int64(5):\n    O[i, j] = T.int64(1)",
    "guards, less": "if x - j < y:\n    O[i, j] = T.int64(1)",
    "choices": "if j + x > T.int64(5):\n    O[i, j] = j\nelse:\n    O[i, j] = y",
    "narrow": "O[i, j] = T.cast(T.cast(x, 'int32') + T.int32(9) > T.int32(3), 'int64')",
}


@pytest.mark.parametrize("extent", [8, 100])
@pytest.mark.parametrize("name", WORDS)
def test_named_elements_wrap(name, extent):
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((9,), "int64"), O: T.Buffer((9, {extent}), "int64")):
    for i in range(9):
        x = A[i]
        y = A[8 - i]
        for j in T.serial(T.int64({extent})):
{textwrap.indent(WORDS[name], " " * 12)}
""")
    assert len(data_vars(func)) == 2
    given = np.array(
        [LOW, LOW + 1, LOW // 2, -1, (1 << 31) - 1, HIGH // 2 + 1, HIGH - 2, HIGH, 7], "int64"
    )
    want, got, scheduled = np.zeros((3, 9, extent), "int64")
    with np.errstate(over="ignore"):
        run(func, given, want)
    ms.build(func)(given, got)
    np.testing.assert_array_equal(got, want)
    sch = ms.Schedule(func)
    default_trace(func, Target.native()).apply(sch)
    ms.build(sch)(given, scheduled)
    np.testing.assert_array_equal(scheduled, want)
