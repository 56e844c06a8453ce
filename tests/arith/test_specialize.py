"""PrimFunc.specialize: numbers for the variables of shapes and for scalar parameters."""

from __future__ import annotations

import numpy as np
import pytest
from schedule.programs import symbolic

import metasched as ms
from metasched.errors import MetaschedError
from metasched.ir.equal import assert_structural_equal
from metasched.script import tir as T


@T.prim_func
def fixed(A: T.Buffer((6, 8), "int32"), C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((6, 8), "int32")
    for i, j in T.grid(6, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, k in T.grid(6, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + B[vi, vk]


@T.prim_func
def shifted(a: T.handle, n: T.int32, scale: T.int32, c: T.handle):
    A = T.match_buffer(a, (n * 4,), "int32", strides=(n // 2,))
    C = T.match_buffer(c, (n * 4,), "int32")
    for i in range(n * 4):
        with T.block("C"):
            vi = T.axis.spatial(n * 4, i)
            C[vi] = A[vi] * scale + n


def test_constant_shapes_everywhere_in_a_function():
    n, m = symbolic.buffers[0].shape
    for values in ({"n": 6, "m": 8}, {n: 6, m: np.int64(8)}):
        made = symbolic.specialize(values)
        assert_structural_equal(made.with_attr("global_symbol", "fixed"), fixed)
    part = symbolic.specialize({"n": 6})
    assert_structural_equal(part.specialize({"m": 8}).with_attr("global_symbol", "fixed"), fixed)
    assert symbolic.specialize({}) is symbolic
    both = ms.Schedule({"f": part, "g": symbolic.specialize({"n": 7})}, seed=0, check=True)
    both.work_on("g")
    both.split(both.get_loops("B")[0], [None, 7])


def test_a_scalar_parameter_with_a_number_is_no_parameter():
    made = shifted.specialize({"n": 4, "scale": 3})
    assert [p.name for p in made.params] == ["A", "C"]
    assert made.script("shifted").splitlines()[1] == (
        'def shifted(A: T.Buffer((16,), "int32", strides=(2,)), C: T.Buffer((16,), "int32")):'
    )
    a, c = np.arange(16, dtype="int32").repeat(2)[::2], np.zeros(16, "int32")
    ms.build(made)(a, c)
    np.testing.assert_array_equal(c, np.arange(16) * 3 + 4)


def test_marks_of_constant_weights_move_with_the_parameters():
    marked = shifted.with_attr("layout_free_buffers", [3]).specialize({"n": 4})
    assert marked.constants == (marked.params[2],) and marked.constants[0].name == "C"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"k": 3}, "'k' is no variable of the function's shapes .* there are: m, n"),
        ({"n": 2.5}, r"n \(int32\) is specialized to 2.5: only integers are"),
        ({"n": 1 << 40}, f"n is {1 << 40}, which int32 does not hold"),
        ({"n": -3}, r"with n = -3 the shape of A is \(-3, m\); extents start at 0"),
        ([("n", 3)], "specialize takes numbers by variable or name"),
    ],
)
def test_what_cannot_be_specialized(values, words):
    with pytest.raises(MetaschedError, match=words):
        symbolic.specialize(values)
