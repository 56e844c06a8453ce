"""einsum gives what NumPy's gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import metasched as ms
from metasched import te
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
    ("aib,bjc,ckd->aijkd", (2, 3, 5), (5, 4, 6), (6, 3, 2)),
    ("ijk,jr,kr->ir", (3, 4, 5), (4, 6), (5, 6)),
    ("ijk,jl->il", (3, 4, 5), (4, 6)),
    ("ii,ij,jk,kl->", (6, 6), (6, 5), (5, 4), (4, 7)),
    ("ab,cd,ab,cd->bc", (4, 5), (6, 7), (4, 5), (6, 7)),
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


def nests(*arguments: object, **named: object) -> list[str]:
    """The loop extents of each block."""
    text = ms.einsum(*arguments, **named).script()
    lines = [line.strip() for line in text.splitlines()]
    return [re.sub(r".*(grid|range)|:$", "", line) for line in lines if line.startswith("for ")]


@pytest.mark.parametrize(
    ("subscripts", "shapes", "blocks"),
    [
        # A * (B * C) has 1,540 + 3,600 products, (A * B) * C has 480 + 7,200
        ("ab,bc,cd->ad", [(9, 20), (20, 7), (7, 11)], ["(9, 7, 20)", "(9, 11, 7)"]),
        ("ab,bc,cd->ad", [(11, 7), (7, 20), (20, 9)], ["(7, 9, 20)", "(11, 9, 7)"]),
        ("ijk,jl->il", [(30, 40, 50), (40, 60)], ["(30, 40, 50)", "(30, 60, 40)"]),  # k first
        ("i,j,k->ijk", [(9,), (9,), (9,)], ["(9, 9, 9)"]),  # nothing to save
        ("bi,i,bi->b", [(50, 60), (60,), (50, 60)], ["(50, 60)"]),
        ("ij,jk->ik", [(9, 8), (8, 7)], ["(9, 7, 8)"]),
    ],
)
def test_operands_are_multiplied_in_the_order_with_the_fewest_products(subscripts, shapes, blocks):
    assert nests(subscripts, *shapes) == blocks


def test_products_of_run_time_extents_are_taken_in_pairs():
    n, m = (te.var(name) for name in "nm")
    assert len(nests("ab,bc,cd->ad", (n, m), (m, n), (n, m))) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_once_as_a_part_might_overflow(dtype):
    case = "ab,bc,cd->ad", (9, 20), (20, 7), (7, 11)
    assert len(nests(*case, dtype=dtype)) == 1
    assert len(nests(*case, dtype=dtype, out_dtype="float32")) == 2


def test_nine_operands_are_one_block():
    assert len(nests(",".join("abcdefghi"[n] for n in range(9)) + "->", *[(3,)] * 9)) == 1
    assert len(nests(",".join("abcdefgh"[n] for n in range(8)) + "->", *[(3,)] * 8)) > 1


def test_iterators_are_called_like_the_letters():
    text = ms.einsum("bij,bjk->bik", (2, 3, 4), (2, 4, 5)).script()
    assert "vb, vi, vk, vj = T.axis.remap" in text


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk->ik", [(4, 5)], "it names 2 operands, 1 are given"),
        ("ij,jk->ik", [(4, 5), (6, 7)], "'j' is 5 and 6"),
        ("ij,jk->ik", [4, (5, 6)], "a shape is a tuple such as (8, 16), not 4"),
        ("ij->i", [(4, 5, 6)], "'ij' has 2 letters, its operand 3 dimensions"),
        ("ij->ik", [(4, 5)], "no operand has the letter 'k' of the result"),
        ("ij->ii", [(4, 5)], "a letter stands twice in the result"),
        ("...i->i", [(4, 5)], "'.' is no letter (an ellipsis is written out)"),
    ],
)
def test_einsum_refuses_malformed_subscripts_and_shapes(subscripts, shapes, message):
    with pytest.raises(MetaschedError, match=re.escape(f"einsum {subscripts!r}: {message}")):
        ms.einsum(subscripts, *shapes)
