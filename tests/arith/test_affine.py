"""Sums of atoms and intervals agree with the expression for every value of its variables."""

from __future__ import annotations

from math import inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.affine import as_written, interval, linear, linear_address, terms
from metasched.arith.analyzer import Analyzer
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    Add,
    Expr,
    FloorMod,
    IntImm,
    Mul,
    Var,
    cast,
    floordiv,
    floormod,
)
from metasched.ir.op import call
from metasched.ir.visit import substitute

from .enumeration import assignments, bounds_for, evaluate, integers

X, Y = Var("x", INT64), Var("y", INT64)


def _at(expr: Expr, x: int, y: int) -> int:
    found = substitute(expr, {X: IntImm(INT64, x), Y: IntImm(INT64, y)})
    value = Analyzer().simplify(found)
    assert isinstance(value, IntImm)
    return value.value


@settings(max_examples=60)
@given(
    c=st.integers(1, 9), d=st.integers(1, 9), a=st.integers(-3, 3), b=st.integers(-3, 3),
    x=st.integers(-30, 30), y=st.integers(-30, 30), joined=st.booleans(),
)  # fmt: skip
def test_quotients_and_remainders_join_in_addresses(c, d, a, b, x, y, joined):
    inner = X * 4 + Y + 1
    whole, rest = floordiv(inner, IntImm(INT64, c)), floormod(inner, IntImm(INT64, c))
    expr = whole * (c * a if joined else d) + rest * a + Y * b + 7
    form = linear_address(expr)
    total = form.const + sum(factor * _at(atom, x, y) for atom, factor in form.terms.items())
    assert total == _at(expr, x, y)
    if joined and a and c > 1:
        assert form.terms.keys() <= {X, Y}


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=4), a=st.integers(-3, 3),
    x=st.integers(-200, 200), y=st.integers(-9, 9), wrong=st.integers(0, 8),
)  # fmt: skip
def test_all_digits_of_a_fused_loop_join_in_addresses(sizes, a, x, y, wrong):
    """x // 12 * 12 + x % 12 // 4 * 4 + x % 4 is x; with another factor it stays as it is."""
    strides = [prod(sizes[n + 1 :]) for n in range(len(sizes))]
    expr, rest = Y * 3, X
    for n, by in enumerate(strides):
        scale = by + (wrong == n and n + 1 < len(strides))
        expr = expr + floordiv(rest, IntImm(INT64, by)) * (scale * a)
        rest = floormod(X, IntImm(INT64, by))
    form = linear_address(expr)
    total = form.const + sum(factor * _at(atom, x, y) for atom, factor in form.terms.items())
    assert total == _at(expr, x, y)
    if a and wrong >= len(sizes):
        assert form.terms == {X: a, Y: 3}


A, B = Var("a", INT64), Var("b", INT64)


@settings(max_examples=200)
@given(integers(), bounds_for())
def test_interval_holds_every_value(expr, bounds):
    values, defined = evaluate(expr, assignments(bounds))
    least, most = interval(expr, bounds)
    assert np.all(~defined | ((least <= values) & (values <= most)))


def test_a_remainder_between_two_multiples_is_exact():
    assert interval(FloorMod(A, IntImm(INT64, 8)), {A: (11, 14)}) == (3, 6)
    assert interval(FloorMod(A, IntImm(INT64, 8)), {A: (7, 8)}) == (0, 7)


BITS = {
    "shift_left": lambda a, b: a << b, "shift_right": lambda a, b: a >> b,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}  # fmt: skip


@pytest.mark.parametrize("name", BITS)
@given(*[st.tuples(st.integers(-9, 70), st.integers(0, 9))] * 2)
def test_operations_on_bits_stay_in_their_interval(name, one, other):
    a, b = ((low, low + more) for low, more in (one, other))
    low, high = interval(call(name, A, B), {A: a, B: b})
    shifts = name.startswith("shift")
    for x in range(a[0], a[1] + 1):
        for y in range(b[0], b[1] + 1):
            if not shifts or 0 <= y < 64:
                assert low <= BITS[name](x, y) <= high
            elif name == "shift_right":  # all bits leave
                assert low <= (-1 if x < 0 else 0) <= high


def test_shifts_are_bounded_where_they_may_not_wrap():
    by, narrow = call("shift_right", IntImm(INT64, 512), B), Var("n", "uint8")
    assert interval(by, {B: (0, 4)}) == (32, 512)
    assert interval(by, {}) == (0, 512)
    assert interval(call("shift_left", A, B), {A: (0, 3), B: (0, 4)}) == (0, 48)
    assert interval(call("shift_left", A, B), {A: (0, 3), B: (0, 30)}) == (-inf, inf)
    assert interval(call("shift_left", narrow, narrow), {narrow: (0, 7)}) == (-inf, inf)


def test_products_of_narrow_integers_may_wrap():
    narrow = Var("n", "int8")
    assert interval(Mul(narrow, narrow), {narrow: (0, 20)}) == (-inf, inf)


def test_views_differ_in_casts_alone():
    i = Var("i")
    wide = cast("int64", i * 3 + 1)
    assert (linear(wide * 2).terms, linear(wide * 2).const) == ({i: 6}, 2)
    assert as_written(wide * 2).terms == {wide: 2}
    assert linear(cast("int32", A)).terms == {cast("int32", A): 1}  # narrowing may lose the value


def test_terms_stand_in_order_of_appearance():
    form = terms(B * 2 + A - (B - A * 3) + 1)
    assert list(form.terms.items()) == [(B, 1), (A, 4)]
    assert form.const == 1
    seen = []
    assert terms(A + B, atoms=lambda atom: seen.append(atom)).terms == {A: 1, B: 1}
    assert seen == [A, B]


def test_sums_of_thousands_of_terms():
    total: Expr = A
    for _ in range(5000):
        total = Add(total, A)
    assert terms(total).terms == {A: 5001}
