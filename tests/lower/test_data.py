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


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "index",
    [
        "(x[i] * 31 + k) % 97", "(x[i] * 100 + k) % 100", "(x[i] + x[7 - i] + k) // 3 % 90",
        "T.int64(x[i] * 31) % 97", "T.max(T.min(x[i] + k, 50), 0)",
        "T.truncmod(x[i] * 31, 97) + 97",
    ],
)  # fmt: skip
def test_elements_in_an_index_wrap(index, dtype):
    """The index of a hash table: in 64 bits the product of `int32` would be another."""
    func = parse(f"""
@T.prim_func
def main(x: T.Buffer((8,), "{dtype}"), A: T.Buffer((200,), "int32"),
         O: T.Buffer((8, 40), "int32")):
    for i, k in T.grid(8, 40):
        with T.block("O"):
            vi, vk = T.axis.remap("SS", [i, k])
            O[vi, vk] = A[{index.replace("[i]", "[vi]").replace("k", "vk").replace("- i", "- vi")}]
""")
    top = np.iinfo(dtype).max
    x = np.array([top, -top, top // 2 + 1, top - 20, 5, -6, top // 31 + 2, 0], dtype)
    A, want = np.arange(200, dtype="int32"), np.zeros((8, 40), "int32")
    run(func, x, A, want, check_regions=True)
    cached = ms.Schedule(func)
    cached.compute_at(cached.cache_read("O", 1, "global"), cached.get_loops("O")[0])
    for program in (func, cached):
        for check_bounds in (False, True):
            got = np.zeros((8, 40), "int32")
            ms.build(program, check_bounds=check_bounds)(x, A, got)
            np.testing.assert_array_equal(got, want)


def test_iterations_of_which_memory_says_the_number_wrap_in_a_remainder():
    func = parse("""
@T.prim_func
def main(x: T.Buffer((8,), "int32"), O: T.Buffer((8,), "int32")):
    for i in range(8):
        for k in range(x[i] * 31 % 97):
            O[i] += 1
""")
    x = np.array([1 << 30, (1 << 31) - 1, -5, 3, 97, 0, 1 << 29, -(1 << 31)], "int32")
    got = np.zeros(8, "int32")
    ms.build(func)(x, got)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x * np.int32(31) % 97)
