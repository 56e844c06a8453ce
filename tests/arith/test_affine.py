"""Sums of coefficients and atoms stand for the same number as the expression."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.ir.dtype import INT64
from metasched.ir.expr import Expr, IntImm, Var, floordiv, floormod
from metasched.ir.visit import substitute

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
def test_quotients_and_remainders_may_join(c, d, a, b, x, y, joined):
    inner = X * 4 + Y + 1
    whole, rest = floordiv(inner, IntImm(INT64, c)), floormod(inner, IntImm(INT64, c))
    expr = whole * (c * a if joined else d) + rest * a + Y * b + 7
    form = linear_address(expr)
    total = form.const + sum(factor * _at(atom, x, y) for atom, factor in form.terms.items())
    assert total == _at(expr, x, y)
    if joined and a and c > 1:
        assert form.terms.keys() <= {X, Y}
