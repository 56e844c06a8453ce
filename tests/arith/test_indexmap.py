"""Index maps: lambdas of all shapes, application, shapes, inverses with and without padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.describe import show_expr
from metasched.ir.expr import Var, as_expr, as_int

from .enumeration import assignments, evaluate

FAST = settings(max_examples=60, deadline=None)


def shown(values: object) -> list[str]:
    return [show_expr(v) for v in values]


def test_from_functions() -> None:
    tiled = IndexMap.of(lambda i, j: (i // 4, j, i % 4))
    assert shown(tiled.outputs) == ["i // 4", "j", "i % 4"]
    assert shown(IndexMap.of(lambda *idx: list(reversed(idx)), 3).outputs) == ["i2", "i1", "i0"]
    assert shown(IndexMap.of(lambda i, *rest: [*rest, i], 3).outputs) == ["i0", "i1", "i"]
    assert shown(IndexMap.of(lambda i: i * 2).outputs) == ["i * 2"]
    assert shown(IndexMap.of(lambda i: (i, 0)).outputs) == ["i", "0"]
    assert IndexMap.of(tiled, 2) is tiled


def test_apply_simplifies_and_follows_the_type() -> None:
    tiled = IndexMap.of(lambda i: (i // 4, i % 4))
    a, b = Var("a"), Var("b", "int64")
    assert shown(tiled(a * 4)) == ["a", "0"]
    assert all(e.dtype == "int64" for e in tiled.apply([b]))
    assert shown(tiled.apply([as_expr(13)])) == ["3", "1"]


def test_shapes() -> None:
    tiled = IndexMap.of(lambda i, j: (i // 4, j, i % 4))
    assert shown(tiled.map_shape([16, 5])) == ["4", "5", "4"]
    assert shown(tiled.map_shape([14, 5])) == ["4", "5", "4"]
    assert shown(tiled.map_shape([as_expr(16, "int64"), as_expr(5, "int64")])) == ["4", "5", "4"]


@FAST
@given(
    st.sampled_from(
        [
            lambda i, j: (j, i),
            lambda i, j: (i // 4, j // 2, i % 4, j % 2),
            lambda i, j: i * 6 + j,
            lambda i, j: ((i * 6 + j) // 4, (i * 6 + j) % 4),
            lambda i, j: (i // 4, i % 4 // 2, j, i % 2),
        ]
    )
)
def test_inverse(fn: object) -> None:
    forward = IndexMap.of(fn)
    back = forward.inverse([8, 6])
    env = assignments(dict(zip(forward.inputs, [(0, 7), (0, 5)], strict=True)))
    again = back.apply(forward.outputs)
    for v, e in zip(forward.inputs, again, strict=True):
        assert (evaluate(e, env)[0] == env[v]).all()
    assert back.inverse([1] * len(back.inputs)) == forward


@FAST
@given(
    st.integers(1, 20),
    st.integers(0, 5),
    st.sampled_from([(4,), (2, 8), (3,), (4, 16), (3, 6)]),
)
def test_inverse_with_padding(size: int, offset: int, steps: tuple[int, ...]) -> None:
    def tile(i: Var) -> list:
        x, out = i + offset, []
        top = x // steps[-1]
        for k in reversed(range(1, len(steps))):
            out.append(x % steps[k] // steps[k - 1])
        return [top, *out, x % steps[0]]

    forward = IndexMap.of(tile)
    back, padding = forward.non_surjective_inverse([size])
    shape = [as_int(e) for e in forward.map_shape([size])]
    env = assignments({v: (0, n - 1) for v, n in zip(back.inputs, shape, strict=True)})
    real = {
        tuple(int(evaluate(o, {forward.inputs[0]: np.int64(i)})[0]) for o in forward.outputs): i
        for i in range(size)
    }
    total = next(iter(env.values())).shape
    outside = np.broadcast_to(evaluate(padding, env)[0] != 0, total)
    source = np.broadcast_to(evaluate(back.outputs[0], env)[0], total)
    for k, point in enumerate(zip(*[env[v].tolist() for v in back.inputs], strict=True)):
        assert outside[k] == (point not in real), (point, show_expr(padding))
        if point in real:
            assert source[k] == real[point]


def test_padding_before_the_first_index() -> None:
    _, padding = IndexMap.of(lambda i: ((i + 3) // 3, (i + 3) % 3)).non_surjective_inverse([1])
    assert show_expr(padding) == "axis0 < 1 or 1 <= axis1"


def test_equality_ignores_names() -> None:
    a = IndexMap.of(lambda i, j: (j, i * 4))
    assert a == IndexMap.of(lambda x, y: (y, x * 2 + x * 2))
    assert a != IndexMap.of(lambda x, y: (y, x * 3))
    assert a != IndexMap.of(lambda x: (x, x)) and a != 3
    assert hash(a) == hash(IndexMap.of(lambda x, y: (y, x * 4)))


def test_a_given_inverse_is_used_where_it_leads_back() -> None:
    known = IndexMap.of(lambda i: (i // 3, i % 3), inverse=lambda a, b: b + 3 * a)
    assert known.inverse([6]) is known.inverse_map
    assert known.inverse([9]).inverse([3, 3]) == known
    other = IndexMap.of(lambda i, j: (j, i), inverse=lambda a, b: (a, b))
    with pytest.raises(MetaschedError, match="not proved to lead back: i becomes j"):
        other.inverse([4, 8])
    gaps = IndexMap.of(lambda i: (i * 3, 0), inverse=lambda a, b: a // 3)
    with pytest.raises(MetaschedError, match="some new indices correspond to no old indices"):
        gaps.inverse([5])
    short = IndexMap.of(lambda i, j: (i * 4 + j,), inverse=lambda a: (a,))
    with pytest.raises(MetaschedError, match="the given inverse has 1 outputs, not 2"):
        short.inverse([4, 4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IndexMap.of(lambda *i: i), r"how many indices \*i stands for"),
        (lambda: IndexMap.of(lambda i: i, 2), "takes 1 indices, 2 are needed"),
        (lambda: IndexMap.of(IndexMap.of(lambda i: i), 2), "an index map of 1 indices for 2"),
        (lambda: IndexMap.of(lambda i, j: (i, j)).apply([1]), "takes 2 indices, not 1"),
        (lambda: IndexMap.of(lambda i: i * 2 // 3).inverse([7]), "has no inverse"),
        (lambda: IndexMap.of(lambda i: i * 2).inverse([4]), "correspond to no old indices"),
        (lambda: IndexMap.of(lambda i: i + 3).inverse([4]), "correspond to no old indices"),
        (lambda: IndexMap.of(lambda i: i * 2 - 3).inverse([4]), "correspond to no old indices"),
        (lambda: IndexMap.of(lambda i, j: i + j).non_surjective_inverse([3, 4]), "no inverse"),
        (
            lambda: IndexMap.of(lambda i: i // 4).non_surjective_inverse([Var("n")]),
            "padding needs constant extents",
        ),
    ],
)
def test_errors(make: object, message: str) -> None:
    with pytest.raises(MetaschedError, match=message):
        make()


def test_a_map_applies_to_indices_of_64_bits_without_casts():
    i = Var("i", "int64")
    back = IndexMap((i,), (i // 4, i % 4)).inverse([as_expr(8, "int64")])
    a, b = Var("a", "int64"), Var("b", "int64")
    (value,) = back.apply([a, b])
    assert str(value.dtype) == "int64" and "Cast" not in str(value)
