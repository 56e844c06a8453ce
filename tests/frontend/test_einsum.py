"""einsum gives what NumPy's gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import metasched as ms
from metasched.errors import MetaschedError
from metasched.ir.interp import run

CASES = [
    ("ij,jk->ik", (4, 5), (5, 6)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("ij,jk", (4, 5), (5, 6)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->i", (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("bhqd, bhkd -> bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
    ("i,i,i->i", (5,), (5,), (5,)),
    (",i->i", (), (3,)),
]


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_einsum_equals_numpy_einsum(case):
    subscripts, *shapes = case
    func = ms.einsum(subscripts, *shapes)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype("float32") for shape in shapes]
    want = np.einsum(subscripts, *arrays)
    got = [np.zeros(want.shape, "float32") for _ in range(2)]
    run(func, *arrays, got[0], check_regions=True)
    ms.build(func)(*arrays, got[1])
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], want)


def test_products_are_summed_in_the_type_of_the_result():
    func = ms.einsum("ij,kj->ik", (4, 64), (3, 64), dtype="int8", out_dtype="int32", name="dots")
    assert func.attrs["global_symbol"] == "dots"
    a, b = (np.full((n, 64), 100, "int8") for n in (4, 3))
    z = np.zeros((4, 3), "int32")
    ms.build(func)(a, b, z)
    assert (z == 640_000).all()


def test_iterators_are_called_like_the_letters():
    text = ms.einsum("bij,bjk->bik", (2, 3, 4), (2, 4, 5)).script()
    assert "vb, vi, vk, vj = T.axis.remap" in text


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk->ik", [(4, 5)], "it names 2 operands, 1 are given"),
        ("ij,jk->ik", [(4, 5), (6, 7)], "'j' is 5 and 6"),
        ("ij->i", [(4, 5, 6)], "'ij' has 2 letters, its operand 3 dimensions"),
        ("ij->ik", [(4, 5)], "no operand has the letter 'k' of the result"),
        ("ij->ii", [(4, 5)], "a letter stands twice in the result"),
        ("...i->i", [(4, 5)], "'.' is no letter (an ellipsis is written out)"),
    ],
)
def test_einsum_refuses_malformed_subscripts_and_shapes(subscripts, shapes, message):
    with pytest.raises(MetaschedError, match=re.escape(f"einsum {subscripts!r}: {message}")):
        ms.einsum(subscripts, *shapes)
