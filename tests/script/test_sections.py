"""Slices have the meaning of NumPy, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from as_python import agree, program

from metasched.errors import ParseError
from metasched.ir.stmt import Allocate, BufferStore
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.script import parse

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32"), C: T.Buffer((200,), "float32")):
"""  # noqa: E501

STATEMENTS = [
    "B[0:8, 0:12] = A[0:8, 0:12]",
    "B[:, :] = A[:, :]",
    "B[0:8, 0:12] = 0",
    "B[1:7, 2] = A[3, 1:7]",
    "B[2, 0:8] = A[:, 3]",
    "B[0:4, 0:4] = A[4:8, 8:12] * 2.0 + B[0:4, 0:4]",
    "B[:, :] = A[0, :]",
    "B[:, :] = A[:, 0:1]",
    "B[:, :] = A[2:3, 3:4] + A[0:1, :]",
    "B[0:8:2, 0:12:3] = A[1:8:2, 2:12:3]",
    "B[3, 0:12:2] = A[3, 1:12:2]",
    "C[0:200] = C[0:200] * C[0:200]",
    "C[1:200] = C[0:199]",
    "C[0:199] = C[1:200] + C[0:199]",
    "C[1:9] = C[0:8]",
    "C[1:9] += C[0:8]",
    "C[100:200] = C[0:100]",
    "C[0:200:2] = C[1:200:2]",
    "A[1:8, 1:12] += A[0:7, 0:11]",
    "A[1:8, 1:12] = A[0:7, 0:11] - A[1:8, 0:11]",
    "A[:, :] = -A[:, :]",
    "B[:, 0:6] *= A[:, 6:12]",
    "B[5:2, :] = A[5:2, :]",
    "B[0:1, 0:12] = A[7:8, 0:12]",
    "B[:, :] = T.max(A[:, :], B[:, :]) if C[0] > 0.0 else T.float32(3)",
    "for i in range(8):\n        B[i, 0:i] = A[i, 0:i]",
    "for i in range(8):\n        B[i, i:12] = A[i, 0:12 - i]",
    "for i in range(0):\n        B[i, 0:4] = A[i, 0:4]",
    "for i in range(4):\n        C[i * 4:i * 4 + 4] = C[i * 8:i * 8 + 4] + C[4:5]",
]


def arrays():
    rng = np.random.default_rng(1)
    return [rng.integers(-4, 5, s).astype("float32") for s in ((8, 12), (8, 12), (200,))]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_slices_mean_what_numpy_means(statement):
    agree(HEAD + "    " + statement, *arrays())


@pytest.mark.parametrize("statement", STATEMENTS[:4] + STATEMENTS[12:20])
def test_slices_inside_blocks(statement):
    body = "    with T.block('b'):\n        " + statement
    func = agree(HEAD + body, *arrays(), compiled=False)
    block = list(blocks_of(func.body))[1].block
    assert {r.buffer.name for r in (*block.reads, *block.writes)} <= {"A", "B", "C"}


def test_short_slices_of_one_dimension_stay_vectors():
    func = program(HEAD + "    C[0:4] = C[4:8]\n    C[0:8:2] = A[2:3, 0:4]\n    C[0:8] = A[0, 0:1]")
    stores = [s for s in walk_stmts(func.body) if isinstance(s, BufferStore)]
    assert [s.value.dtype.lanes for s in stores] == [4, 4, 8]


def test_overlapping_slices_go_through_a_temporary_buffer():
    def allocates(statement):
        func = program(HEAD + "    " + statement)
        return any(isinstance(s, Allocate) for s in walk_stmts(func.body))

    assert allocates("A[1:8, :] = A[0:7, :]")
    assert not allocates("A[4:8, :] = A[0:4, :]")
    assert not allocates("A[:, 3] = A[:, 4]") and not allocates("A[:, :] = A[:, :] + 1.0")


@pytest.mark.parametrize("statement, message", [
    ("B[0:8, 0:12] = A[0:8, 0:11]", "sliced to extent 11 where the target of the assignment has "
     "extent 12"),
    ("B[0:4] = 0", "B has 2 dimensions, 1 given\n"),
    ("B[3, 3] = A[0:4, 3]", "a slice is a vector of 1 to 64 elements of the last"),
    ("B[3, 0:8] = A[0:8, 0:12]", "A is sliced to extent 12 where the target of the assignment has "
     "extent 8"),
    ("B[:, 0] = A[:, 0:2]", "A is sliced to extent 2 where the target of the assignment has "
     "extent 8"),
    ("B[0:8, 0:100] = 0", "elements 0 to 99 of dimension 1 are asked for, B has 12; NumPy"),
    ("B[0, -4:-1] = 0", "a negative bound of a slice counts from the end"),
    ("B[0, 0:-1] = 0", "B has 12 elements in dimension 1: write the bound from"),
    ("B[0, 8:0:-1] = 0", "the step of a slice is a positive number"),
    ("x = A[0:4, 0:4] + 1.0", "a slice of 2 dimensions has a value only in an assignment"),
    ("T.evaluate(C[0:100])", "a slice is a vector of 1 to 64 elements"),
    ("if A[0, 0:4] > 0.0:\n        B[0, 0] = 1.0", "the condition has 4 lanes"),
    ("B[0, 0:4] = A[0, 0:4] > 0.0 and B[0, 0:4] > 0.0", "`if` and chained comparisons take one"),
    ("B[0, 0:4] = A[0, 0:4] if not A[0, 0:4] else 0.0", "`if` and chained comparisons take one"),
    ("B[0, 0:4] = 0.0 < A[0, 0:4] < 1.0", "`if` and chained comparisons take one"),

])  # fmt: skip
def test_sections_that_numpy_refuses_or_wraps_are_refused(statement, message):
    with pytest.raises(ParseError) as caught:
        parse(HEAD + "    " + statement)
    assert message in str(caught.value) + "\n", caught.value


def test_bounds_read_from_the_target():
    text = '@T.prim_func\ndef f(P: T.Buffer((200,), "int32")):\n    P[P[0]:P[0] + 100] = 1'
    with pytest.raises(ParseError, match="the slice's bounds read P, which the slice writes"):
        parse(text)


def test_symbolic_extents():
    text = """
@T.prim_func
def f(a: T.handle, b: T.handle):
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n, m), "float32")
    B[0:n, :] = A[:, 0:m] + A[:, 0:1]
"""
    from metasched.ir.interp import run

    a = np.arange(12, dtype="float32").reshape(3, 4)
    b = np.zeros_like(a)
    run(program(text), a, b)
    np.testing.assert_array_equal(b, a + a[:, 0:1])
    with pytest.raises(ParseError, match="extent m where the target .* has extent n"):
        parse(text.replace("B[0:n, :] = A[:, 0:m] + A[:, 0:1]", "B[0:n, 0] = A[0, 0:m]"))
