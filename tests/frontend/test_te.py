"""Tensor expressions: what they build is what NumPy computes, and what a script would say."""

from __future__ import annotations

import re

import numpy as np
import pytest

import metasched as ms
from metasched import te
from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.interp import run
from metasched.script import parse
from metasched.script import tir as T


def computes(func, *inputs):
    """What a function makes of its inputs, interpreted and compiled (which agree)."""
    assert_structural_equal(parse(func.script()), func)
    out = func.buffers[-1]
    shape = out.constant_shape()
    results = [np.zeros(shape, out.dtype.numpy) for _ in range(2)]
    run(func, *inputs, results[0], check_regions=True)
    ms.build(func)(*inputs, results[1])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    return results[1]


def numbers(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def product(n=5, m=6, k=7, dtype="float32"):
    A, B = te.placeholder((n, k), dtype, "A"), te.placeholder((k, m), dtype, "B")
    r = te.reduce_axis((0, k), name="k")
    return A, B, te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")


def test_numbers_of_a_type():
    assert [str(te.const(x).dtype) for x in (1, 1.0, True)] == ["int32", "float32", "bool"]
    assert [te.const(2, t).dtype for t in ("int8", "float16", "float64")] == [
        "int8", "float16", "float64",
    ]  # fmt: skip
    A = te.placeholder((4, 4), "float32", "A")
    one, zero = te.const(1, "float32"), te.const(0.0)
    B = te.compute((4, 4), lambda i, j: A[i, j] * te.Select(te.all(i == 1, j < 2), one, zero), "B")
    given = numbers(4, 4)
    want = np.zeros((4, 4), "float32")
    want[1, :2] = given[1, :2]
    np.testing.assert_array_equal(computes(te.create_prim_func([A, B]), given), want)


def test_a_product_is_the_script_of_it():
    @T.prim_func
    def script(
        A: T.Buffer((5, 7), "float32"),
        B: T.Buffer((7, 6), "float32"),
        C: T.Buffer((5, 6), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tir.noalias": True})
        for i, j, k in T.grid(5, 6, 7):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    func = te.create_prim_func([*product()])
    assert_structural_equal(func, script)
    assert "vi, vj, vk = T.axis.remap" in func.script() and 'T.block("C")' in func.script()
    a, b = numbers(5, 7), numbers(7, 6, seed=1)
    np.testing.assert_allclose(computes(func, a, b), a @ b)


def test_stages_stand_in_the_order_in_which_they_are_needed():
    A, B, C = product()
    bias = te.placeholder((6,), name="bias")
    D = te.compute((5, 6), lambda i, j: C[i, j] + bias[j], name="D")
    E = te.compute((5, 6), lambda i, j: te.max(D[i, j], 0.0) * te.exp(C[i, j] * 0.0), name="E")
    func = te.create_prim_func([A, B, bias, E], name="dense")
    assert func.attrs["global_symbol"] == "dense"
    blocks = re.findall(r'T\.block\("(\w+)"\)', func.script())
    assert blocks == ["C", "D", "E"]
    a, b, c = numbers(5, 7), numbers(7, 6, seed=1), numbers(6, seed=2)
    np.testing.assert_allclose(computes(func, a, b, c), np.maximum(a @ b + c, 0))


def test_softmax_and_axes_that_several_tensors_reduce_over():
    X = te.placeholder((4, 9), name="X")
    k = te.reduce_axis((0, 9), "k")
    M = te.compute((4,), lambda i: te.max(X[i, k], axis=k), name="M")
    E = te.compute((4, 9), lambda i, j: te.exp(X[i, j] - M[i]), name="E")
    S = te.compute((4,), lambda i: te.sum(E[i, k], axis=[k]), name="S")
    Y = te.compute((4, 9), lambda i, j: E[i, j] / S[i], name="Y")
    x = numbers(4, 9)
    e = np.exp(x - x.max(1, keepdims=True))
    got = computes(te.create_prim_func([X, Y]), x)
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "float64"])
def test_minimum_and_maximum_start_from_the_ends_of_their_type(dtype):
    X = te.placeholder((3, 5), dtype, "X")
    k = te.reduce_axis((0, 5))
    x = numbers(3, 5, dtype="int8").astype(dtype)
    for word, reference in ((te.max, np.max), (te.min, np.min)):
        Y = te.compute((3,), lambda i, word=word: word(X[i, k], axis=k), name="Y")
        np.testing.assert_array_equal(computes(te.create_prim_func([X, Y]), x), reference(x, 1))


def test_a_reduction_may_begin_anywhere_and_run_over_several_axes():
    X = te.placeholder((4, 6, 8), name="X")
    i, j = te.reduce_axis((1, 6), "i"), te.reduce_axis((2, 5), "j")
    Y = te.compute((4,), lambda n: te.sum(X[n, i, j], axis=[i, j]), name="Y")
    x = numbers(4, 6, 8)
    got = computes(te.create_prim_func([X, Y]), x)
    np.testing.assert_allclose(got, x[:, 1:6, 2:5].sum((1, 2)))


def test_words_of_scripts_and_windows():
    X = te.placeholder((8,), "float32", "X")
    P = te.compute(
        (10,),
        lambda i: te.if_then_else(te.all(i >= 1, i < 9), X[i - 1], te.float32(0)),
        name="P",
    )
    k = te.reduce_axis((0, 3), "k")
    Y = te.compute((8,), lambda i: te.sum(te.cast(P[i + k], "float64"), axis=k), name="Y")
    x = numbers(8)
    got = computes(te.create_prim_func([X, Y]), x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.convolve(x, np.ones(3), "same"))
    Z = te.compute((8,), lambda i: te.Select(te.any(i == 0, te.EQ(i, 7)), 1.0, X[i]), name="Z")
    np.testing.assert_allclose(computes(te.create_prim_func([X, Z]), x), [1.0, *x[1:7], 1.0])


def test_comparisons_and_bits_of_indices():
    A = te.placeholder((4, 4), "float32", "A")
    f = te.create_prim_func([A, te.compute(
        (4, 4), lambda i, j: te.if_then_else(te.all(i == j, j != 2), A[i, j ^ 1], 0.0), name="B"
    )])  # fmt: skip
    a = numbers(4, 4)
    eye = np.diag([1, 1, 0, 1])
    np.testing.assert_array_equal(computes(f, a), np.where(eye, a[:, [1, 0, 3, 2]], 0))


def test_a_computed_tensor_may_be_an_argument_on_the_way():
    A, B, C = product()
    D = te.compute((5, 6), lambda i, j: C[i, j] + 1, name="D")
    func = te.create_prim_func([A, B, C, D])
    assert "alloc_buffer" not in func.script()
    a, b, c = numbers(5, 7), numbers(7, 6, seed=1), np.zeros((5, 6), "float32")
    np.testing.assert_allclose(computes(func, a, b, c), a @ b + 1)
    np.testing.assert_allclose(c, a @ b)


def test_extents_may_be_variables():
    n = te.var("n")
    X = te.placeholder((n, 4), name="X")
    k = te.reduce_axis((0, 4), "k")
    Y = te.compute((n,), lambda i: te.sum(X[i, k], axis=k), name="Y")
    func = te.create_prim_func([X, Y])
    for size in (1, 3, 10):
        x, y = numbers(size, 4), np.zeros(size, "float32")
        ms.build(func)(x, y)
        np.testing.assert_allclose(y, x.sum(1))


def test_numbers_without_dimensions():
    X = te.placeholder((6,), name="X")
    k = te.reduce_axis((0, 6), "k")
    S = te.compute((), lambda: te.sum(X[k], axis=k), name="S")
    Y = te.compute((6,), lambda i: X[i] / S[()], name="Y")
    x = np.arange(1, 7, dtype="float32")
    np.testing.assert_allclose(computes(te.create_prim_func([X, Y]), x), x / x.sum(), rtol=1e-6)


def test_blocks_of_one_name_are_told_apart():
    X = te.placeholder((4,), name="X")
    Y = te.compute((4,), lambda i: X[i] + 1)
    Z = te.compute((4,), lambda *i: Y[i] * 2)
    func = te.create_prim_func([X, Z])
    sch = ms.Schedule(func)
    sch.compute_inline("compute")
    sch.vectorize(sch.get_loops("compute_1")[0])
    x, z = numbers(4), np.zeros(4, "float32")
    ms.build(sch.mod)(x, z)
    np.testing.assert_allclose(z, (x + 1) * 2)


def test_a_long_chain_and_two_functions_of_the_same_tensors():
    X = te.placeholder((2,), "int32", "X")
    last = X
    for _ in range(600):
        last = te.compute((2,), lambda i, last=last: last[i] + 1)
    first, again = te.create_prim_func([X, last]), te.create_prim_func([X, last])
    assert first.buffers[0] is not again.buffers[0]
    got = np.zeros(2, "int32")
    run(first, np.zeros(2, "int32"), got)
    assert got.tolist() == [600, 600]


X4 = te.placeholder((4,), name="X")
K = te.reduce_axis((0, 4), "k")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: te.compute((4, 4), lambda i: X4[i]), "has 2 dimensions, the function takes 1"),
        (lambda: te.compute((4,), lambda i: (X4[i], X4[i])), "gives several values, not one"),
        (lambda: te.compute((4,), lambda i: None), "gives NoneType, not one expression"),
        (lambda: te.compute((4,), lambda i: X4[K]), "k is a reduce_axis that nothing reduces"),
        (lambda: te.compute((4,), lambda i: te.sum(X4[K], K) + 1), "compute it as a tensor of its"),
        (lambda: te.compute((4,), lambda i: 2 * te.max(X4[K], K)), "compute it as a tensor of its"),
        (lambda: te.sum(X4[K], axis=[]), "axis takes what te.reduce_axis gives"),
        (lambda: te.sum(X4[0], axis=0), "axis takes what te.reduce_axis gives"),
        (lambda: te.sum(X4[0]), "gives, one or a list of them: axis=k"),
        (lambda: X4 + 1, "X is a tensor, not an element; write te.compute(X.shape, "),
        (lambda: 2.0 * X4, "is a tensor, not an element"),
        (lambda: -X4, "is a tensor, not an element"),
        (
            lambda: te.create_prim_func([te.compute((4,), lambda i: X4[i], name="Y")]),
            "'X' is used and no argument; the list holds all placeholders, then the outputs",
        ),
    ],
)
def test_te_refuses_invalid_definitions(make, message):
    with pytest.raises(MetaschedError, match=re.escape(message)):
        make()


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match=r"te has no 'create_schedule'.* a T.prim_func can"):
        te.create_schedule
    assert ms.te is te


def test_a_function_is_found_in_a_file_by_the_command_line(tmp_path):
    from metasched.commands.source import load

    file = tmp_path / "mine.py"
    file.write_text(
        "import metasched as ms\n"
        "from metasched import te\n"
        "X = te.placeholder((8, 8), name='X')\n"
        "double = te.create_prim_func([X, te.compute((8, 8), lambda i, j: X[i, j] * 2)])\n"
        "pairs = ms.einsum('ij,ij->i', (8, 8), (8, 8))\n"
    )
    assert load(f"{file}:double", None).func.is_schedulable
    assert load(f"{file}:pairs", None).func.is_schedulable


def test_a_called_tensor_gives_an_element_as_in_tvm():
    X = te.placeholder((4, 6), name="X")
    called, indexed = (
        te.create_prim_func([X, te.compute((6, 4), value, name="Y")])
        for value in (lambda i, j: X(j, i) * 2.0, lambda i, j: X[j, i] * 2.0)
    )
    ms.assert_structural_equal(called, indexed)


def test_an_index_is_no_key_of_a_dictionary():
    with pytest.raises(TypeError, match="it is no key of a dict, a set or a cached function"):
        te.compute((4,), lambda i: {0: 1.0}.get(i, 2.0))
    with pytest.raises(TypeError, match="it is no key of a dict, a set or a cached function"):
        IndexMap.of(lambda i: (i in {0}, i))


def test_a_reduce_axis_of_a_number_says_what_to_write():
    with pytest.raises(MetaschedError, match=r"te.reduce_axis: .*not 5; write \(0, n\)"):
        te.reduce_axis(5)
