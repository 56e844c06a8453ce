"""Simplified forms as users see them, proofs over symbolic extents, conditions, wide and narrow."""

from __future__ import annotations

import pytest

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    EQ,
    FALSE,
    NE,
    TRUE,
    Add,
    And,
    Cast,
    Div,
    Expr,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Min,
    Mod,
    Not,
    Or,
    Select,
    Var,
    as_expr,
    compare,
    floordiv,
    maximum,
    minimum,
)
from metasched.ir.op import call

I, J, N, F = Var("i"), Var("j"), Var("n"), Var("f")
R = Range.of
AN = Analyzer({I: R(0, 16), J: R(0, 64), F: R(0, 2048), N: (1, None)})


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (I * 64 + J, "i * 64 + j"),
        (J + I * 64, "j + i * 64"),
        ((I * 64 + J) // 64, "i"),
        ((I * 64 + J) % 64, "j"),
        ((I * 64 + J) // 32, "i * 2 + j // 32"),
        ((I * 64 + J) // 128, "i // 2"),
        ((I * 64 + J) % 128, "i % 2 * 64 + j"),
        (F // 32 % 16, "f % 512 // 32"),
        (F // 32 % 64, "f // 32"),
        (F // 8 // 4, "f // 32"),
        (F // 32 * 32 + F % 32, "f"),
        (F // 4 % 8 * 4 + F % 4, "f % 32"),
        (F - F // 8 * 8, "f % 8"),
        (F - F % 8, "f // 8 * 8"),
        (F % 64 % 16, "f % 16"),
        (I * 2 + 1, "i * 2 + 1"),
        (1 + I * 2, "i * 2 + 1"),
        (5 - I, "5 - i"),
        (I - 5, "i - 5"),
        (I * 4 - J * 2 + 3, "i * 4 + 3 - j * 2"),
        (I * 0 + J - J, "0"),
        (minimum(I * 64 + 64, 1000) - I * 64, "min(1000 - i * 64, 64)"),
        (minimum(I, 15), "i"),
        (maximum(I, 0), "i"),
        (minimum(minimum(I, 9), 4), "min(i, 4)"),
        (I * N + N * I, "i * n * 2"),
        ((I * N + N) // N, "i + 1"),
        (floordiv(N + 3, 4) * 4, "(n + 3) // 4 * 4"),
        (I * 64 + J < 1000, "i * 64 + j < 1000"),
        (I * 64 + J < 960, "i < 15"),
        (I * 64 + J < 1024, "True"),
        (I * 4 < 10, "i < 3"),
        (I >= 4, "4 <= i"),
        (I > J, "j < i"),
        (Not(I < 4), "4 <= i"),
        (EQ(I * 2, J * 2 + 1), "False"),
        (compare(NE, I, 16), "True"),
        (And(I < 20, J < 3), "j < 3"),
        (Or(I < 20, J < 3), "True"),
        (And(I < 4, I < 8), "i < 4"),
        (And(I < 4, I >= 4), "False"),
        (Select(I < 16, I, J), "i"),
        (Select(I < 4, minimum(I, 3), I), "i"),
        (call("if_then_else", I < 4, minimum(I, 3), J), "if_then_else(i < 4, i, j)"),
        (call("likely", I < 16), "True"),
        (call("shift_left", I, 2), "i * 4"),
        (call("shift_right", I * 4 + 1, 2), "i"),
        (Div(I, as_expr(4)), "i // 4"),
        (Cast("int64", I * 4 + J), "int64(i) * 4 + int64(j)"),
        (Cast("int32", Cast("int64", I)), "i"),
        (Let(Var("t"), as_expr(3), I + 1), "i + 1"),
    ],
)  # fmt: skip
def test_forms(expr: Expr, expected: str) -> None:
    assert show_expr(AN.simplify(expr)) == expected


def test_let_is_substituted() -> None:
    t = Var("t")
    assert AN.simplify(Let(t, I * 4, t // 4)) is I


def test_a_variable_with_one_value_is_that_value_unless_kept() -> None:
    ranges = {I: R(3, 1), J: R(0, 4)}
    assert show_expr(Analyzer(ranges).simplify(I + J)) == "j + 3"
    assert show_expr(Analyzer(ranges, keep_units=True).simplify(I + J)) == "i + j"


def test_bind_an_expression() -> None:
    an = Analyzer({J: R(0, 4)})
    an.bind(I, J * 2)
    assert show_expr(an.simplify(I + J)) == "j * 3"
    an.bind(J, 1)
    assert show_expr(an.simplify(J + 1)) == "2"


def test_symbolic_split_covers_the_extent() -> None:
    tile = floordiv(N + 3, 4)
    assert Analyzer({N: (1, None)}).prove(tile * 4 >= N)
    an = Analyzer({N: (1, None), I: R(0, 4), J: Range(as_expr(0), tile)})
    assert an.prove(I * tile + J < tile * 4)
    assert an.simplify((I * tile + J) // tile) is I
    assert an.simplify((I * tile + J) % tile) is J


def test_a_loop_over_a_symbolic_extent() -> None:
    an = Analyzer({I: Range(as_expr(0), N)})
    assert an.prove(I < N) and an.prove(N > 0)
    assert not an.prove(I < N - 1)
    assert an.simplify(Min(I, N)) is I
    assert show_expr(an.simplify(FloorMod(I, N))) == "i"
    assert show_expr(an.simplify(FloorDiv(I + N * J, N))) == "j"


def test_assume_does_not_change_the_original_analyzer() -> None:
    an = Analyzer({I: R(0, 16), J: R(0, 16)})
    less = an.assume(I < J)
    assert less.prove(I + 1 <= J) and not an.prove(I + 1 <= J)
    assert an.assume(I + J < 3).prove(I + J < 5)
    assert an.assume(compare(EQ, I % 4, 0)).simplify(I % 2) is IntImm("int32", 0)
    assert an.assume(compare(EQ, I, 3)).simplify(I + J) is an.simplify(J + 3)
    assert an.assume(compare(NE, I, 0)).prove(I >= 1)


def test_opaque_conditions_are_remembered() -> None:
    flag = Var("flag", "bool")
    assert Analyzer().assume(flag).simplify(And(flag, I < 3)) is Analyzer().simplify(I < 3)
    assert Analyzer().assume(Not(flag)).simplify(flag) is FALSE


def test_only_indices_inside_floats_are_simplified() -> None:
    buffer = Buffer.of("A", (1024,))
    load, zero = buffer[(I * 64 + J) // 1], FloatImm("float32", 0.0)
    total = Add(load, zero)
    assert AN.simplify(total) is Add(buffer[I * 64 + J], zero)
    chosen = Select(I < 16, total, zero)
    assert AN.simplify(chosen) is AN.simplify(total)


def test_deep_sums_do_not_recurse() -> None:
    total: Expr = as_expr(0)
    values: Expr = FloatImm("float32", 0.0)
    buffer = Buffer.of("A", (1024,))
    for k in range(3000):
        total = Add(total, I)
        values = Add(values, buffer[I + k % 7])
    assert show_expr(Analyzer().simplify(total)) == "i * 3000"
    assert Analyzer().simplify(values) is values


def test_narrow_types_are_not_assumed_to_stay_in_range() -> None:
    a = Var("a", "uint8")
    one = IntImm("uint8", 1)
    assert Analyzer().simplify((a + one) > a) is not TRUE
    assert Analyzer({a: (0, 10)}).simplify((a + one) > a) is TRUE
    b = Var("b", "int8")  # the square of -128 is 0 in int8
    square = Analyzer({a: (0, 5), b: (-128, -125)}).simplify(Min(Var("c", "int8"), b * b))
    assert isinstance(square, Min)


def test_too_large_constants_leave_the_expression() -> None:
    big = I * (2**30)
    assert Analyzer().simplify(big * 4) is big * 4


def test_nested_minima_do_not_recurse_for_ever() -> None:
    x, y = Var("x"), Var("y")
    left = NE(maximum(x * 15, minimum(y, 1)), maximum(y, x * y))
    right = NE(maximum(x, minimum(y, 19)), maximum(y, x * y))
    an = Analyzer({x: (0, 1), y: (0, 5)})
    assert an.simplify(Or(left, right)) is not FALSE


@pytest.mark.parametrize(
    ("a", "b", "quotient", "rest"),
    [(-2, 2, -1, 0), (-7, 2, -3, -1), (7, -2, -3, 1), (-7, -2, 3, -1), (-1, 2, 0, -1)],
)
def test_truncated_division_of_constants(a: int, b: int, quotient: int, rest: int) -> None:
    for dtype in ("int32", "int64", "int8"):
        x, d = IntImm(dtype, a), IntImm(dtype, b)
        assert AN.simplify(Div(x, d)) is IntImm(dtype, quotient)
        assert AN.simplify(Mod(x, d)) is IntImm(dtype, rest)


def test_truncated_division_without_a_result_is_kept() -> None:
    for least, other in ((-(1 << 31), -1), (-5, 0)):
        for kind in (Div, Mod):
            node = kind(as_expr(least), as_expr(other))
            assert AN.simplify(node) is node


def test_division_by_zero_is_kept() -> None:
    zero = as_expr(0)
    assert AN.simplify(FloorDiv(I, zero)) is FloorDiv(I, zero)


def test_bounds_and_modular() -> None:
    assert AN.bounds(I * 64 + J) == (0, 1023)
    assert AN.bounds(N * 2) == (2, None)
    assert AN.bounds(FloorMod(N, as_expr(8))) == (0, 7)
    assert AN.modular(I * 8 + 3) == (8, 3)
    assert AN.bounds(Var("u", "uint8")) == (0, 255)


def test_calls_with_effects_are_not_combined() -> None:
    event = call("call_extern", "next", dtype="int32")
    assert AN.simplify(event - event) is event - event
    pure = call("call_pure_extern", "size", dtype="int32")
    assert AN.simplify(pure - pure) is IntImm("int32", 0)


def test_a_cast_of_unsigned_numbers_wraps_although_an_index_does_not() -> None:
    top = Cast("int32", IntImm("uint32", (1 << 32) - 1))
    assert AN.simplify(FloorDiv(Cast("int64", top), IntImm("int64", 2))) is IntImm("int64", -1)
    assert AN.simplify(Cast("int8", IntImm("int32", 200)) + IntImm("int8", 1)) is IntImm(
        "int8", -55
    )
    for wide, narrow in (("uint64", "int64"), ("uint32", "int32"), ("uint64", "int32")):
        cast = Cast(narrow, Var("u", wide))
        assert AN.bounds(cast) == (None, None)
        assert AN.simplify(maximum(cast, 0)) is maximum(cast, 0)
    assert AN.bounds(Cast("int32", Var("u", "uint16"))) == (0, 65535)


def test_arithmetic_on_numbers_alone_wraps_as_in_numpy() -> None:
    top = IntImm("int64", (1 << 63) - 1)
    assert AN.simplify(top * IntImm("int64", 2)) is IntImm("int64", -2)
    assert AN.simplify(compare(EQ, top + IntImm("int64", 1), -(1 << 63))) is TRUE


def test_the_dividend_of_a_hash_may_wrap() -> None:
    """Elements of memory are no index: their sums and products may leave the type."""
    x = BufferLoad(Buffer.of("x", (8,), "int32"), (I,))
    for dividend in (x * 97 + I, Cast("int64", x * 97), x * 97 + x):
        hashed = FloorMod(dividend, as_expr(97, dividend.dtype))
        assert AN.simplify(hashed) is hashed
    assert AN.simplify(FloorMod(FloorMod(x, as_expr(8)) * 4 + 1, as_expr(4))) is as_expr(1)
    byte = Cast("int32", BufferLoad(Buffer.of("y", (8,), "uint8"), (I,)))
    assert AN.simplify(FloorDiv(byte * 4 + 3, as_expr(4))) is byte
