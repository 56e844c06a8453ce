"""show_expr: Python's precedence, no more parentheses than are needed, dots where it is deep."""

from __future__ import annotations

import pytest

from metasched.ir.describe import show_expr
from metasched.ir.expr import And, IntImm, Mod, Not, Or, Var

I, J = Var("i"), Var("j")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (3, "3"),
        (I * (J + 1), "i * (j + 1)"),
        (I - (J - 1), "i - (j - 1)"),
        (I - J - 2, "i - j - 2"),
        (Or(And(I < J, J < 4), I < 2), "i < j and j < 4 or i < 2"),
        (And(Or(I < J, J < 4), I < 2), "(i < j or j < 4) and i < 2"),
        (Not(Or(I < J, J < 4)), "(not (i < j or j < 4))"),
        (Mod(I + 1, IntImm("int32", 4)), "truncmod(i + 1, 4)"),
    ],
)
def test_no_more_parentheses_than_are_needed(expr, text):
    assert show_expr(expr) == text


def test_deep_expressions_are_shown_with_dots():
    expr = I
    for _ in range(40):
        expr = J - expr
    assert "..." in show_expr(expr) and len(show_expr(expr)) < 200
