"""Every rule of the simplifier, proved by enumeration on generated expressions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.analyzer import Analyzer
from metasched.ir.expr import EQ, TRUE, Cast, Expr, FloorDiv, FloorMod, IntImm, Var

from .enumeration import (
    X,
    Y,
    Z,
    assert_same,
    assignments,
    bounds_for,
    boxes,
    conditions,
    evaluate,
    integers,
)

FAST = settings(max_examples=60, deadline=None)


@FAST
@given(integers(), bounds_for())
def test_simplify_keeps_the_value(expr: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    an = Analyzer(boxes(ranges))
    simple = an.simplify(expr)
    assert_same(expr, simple, ranges)
    assert an.simplify(expr) is simple
    assert Analyzer(boxes(ranges)).simplify(expr) is simple


@FAST
@given(integers(), bounds_for())
def test_simplify_without_ranges(expr: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    assert_same(expr, Analyzer().simplify(expr), ranges)


@FAST
@given(integers(), bounds_for())
def test_keeping_units(expr: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    assert_same(expr, Analyzer(boxes(ranges), keep_units=True).simplify(expr), ranges)


@FAST
@given(conditions(integers(leaves=4)), bounds_for())
def test_conditions_keep_their_truth(cond: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    assert_same(cond, Analyzer(boxes(ranges)).simplify(cond), ranges)


@FAST
@given(conditions(integers(leaves=3)), integers(leaves=5), bounds_for())
def test_assumptions(cond: Expr, expr: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    simple = Analyzer(boxes(ranges)).assume(cond).simplify(expr)
    assert_same(expr, simple, ranges, where=cond)


@FAST
@given(integers(), bounds_for())
def test_bounds_and_congruences_hold(expr: Expr, ranges: dict[Var, tuple[int, int]]) -> None:
    an = Analyzer(boxes(ranges))
    lo, hi = an.bounds(expr)
    coeff, base = an.modular(expr)
    x, ok = evaluate(expr, assignments(ranges))
    x = np.broadcast_to(x, np.shape(ok) or np.shape(x))[ok] if np.shape(ok) else np.atleast_1d(x)
    assert (lo is None or (lo <= x).all()) and (hi is None or (x <= hi).all())
    assert ((x - base) % coeff == 0 if coeff else x == base).all()


NARROW = {
    dtype: (variables, integers(variables, dtype, leaves=6))
    for dtype in ("int8", "uint8", "int16", "uint32")
    for variables in [(Var("a", dtype), Var("b", dtype))]
}


@FAST
@given(st.sampled_from(list(NARROW)), st.tuples(*[st.integers(0, 2)] * 2), st.data())
def test_narrow_types_wrap_as_before(dtype: str, at: tuple[int, ...], data: st.DataObject) -> None:
    variables, expressions = NARROW[dtype]
    expr = data.draw(expressions)
    low, top = (0, 255) if dtype[0] == "u" else (-128, 127)
    near = [(low, low + 3), (0, 5), (top - 4, top)]
    ranges = {v: near[k] for v, k in zip(variables, at, strict=True)}
    assert_same(expr, Analyzer(boxes(ranges)).simplify(expr), ranges)
    assert_same(expr, Analyzer().simplify(expr), ranges)


@FAST
@given(integers(leaves=5), st.sampled_from(["int64", "int8", "uint8", "int16"]), bounds_for())
def test_casts(expr: Expr, dtype: str, ranges: dict[Var, tuple[int, int]]) -> None:
    an = Analyzer(boxes(ranges))
    there = Cast(dtype, expr)
    assert_same(there, an.simplify(there), ranges)
    back = Cast("int32", there) + 1
    assert_same(back, an.simplify(back), ranges)


@FAST
@given(integers(leaves=5), integers(leaves=5), bounds_for())
def test_equal_is_true_only_for_equal_values(a: Expr, b: Expr, ranges: dict) -> None:
    an = Analyzer(boxes(ranges))
    if an.equal(a, b):
        assert_same(a, b, ranges, where=EQ(b, b))


@FAST
@given(
    st.lists(st.tuples(st.sampled_from([X, Y, Z]), st.integers(-6, 6)), min_size=1, max_size=4),
    st.integers(-10, 10),
    st.sampled_from([2, 4, 6, 8]),
    bounds_for(),
)
def test_quotient_and_remainder_join(
    terms: list[tuple[Var, int]], const: int, d: int, ranges: dict
) -> None:
    total: Expr = terms[0][0] * terms[0][1] + const
    for v, c in terms[1:]:
        total = total + v * c
    an = Analyzer(boxes(ranges))
    assert an.equal((total // d) * d + total % d, total)
    assert an.prove(total % d >= 0) and an.prove(total % d < d)
    assert an.simplify((total // d) * d + total % d - total + 1 >= 1) is TRUE


@FAST
@given(
    st.lists(
        st.tuples(
            st.sampled_from((FloorDiv, FloorMod)),
            st.sampled_from((2, 3, 4, 5, 6, 7, 8, 12)),
            st.sampled_from((1, 2, 3, 5)),
            st.sampled_from((-12, -6, -4, -3, -2, -1, 1, 2, 3, 4, 6)),
        ),
        min_size=2,
        max_size=4,
    ),
    st.booleans(),
    bounds_for((X,)),
)
def test_parts_of_one_value_join(
    parts: list[tuple[type, int, int, int]], whole: bool, ranges: dict
) -> None:
    total: Expr = X * int(whole)
    for kind, by, then, factor in parts:
        total = total + kind(X, IntImm("int32", by)) // then * factor
    ranges = {X: (ranges[X][0], ranges[X][0] + 40)}
    an = Analyzer(boxes(ranges))
    assert_same(total, an.simplify(total), ranges)
    assert_same(total >= 1, an.simplify(total >= 1), ranges)


@pytest.mark.parametrize("large, small", [(5, 3), (6, 4), (8, 7), (9, 6)])
def test_remainders_by_numbers_that_do_not_divide_stay_apart(large: int, small: int) -> None:
    assert not Analyzer().prove(X % small <= X % large)
    assert Analyzer().prove(X % small <= X % (small * 3))
