"""Evaluation by enumeration: every assignment of small ranges, as Python integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    TRUE,
    Add,
    And,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
)
from metasched.ir.op import Call

Values = np.ndarray
Env = Mapping[Expr, Values]


def _floor(a: Values, b: Values) -> Values:
    return a // np.where(b == 0, 1, b)


def _trunc(a: Values, b: Values) -> Values:
    b = np.where(b == 0, 1, b)
    q = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), q, -q)


BINARY = {
    Add: np.add, Sub: np.subtract, Mul: np.multiply,
    FloorDiv: _floor, FloorMod: lambda a, b: a - _floor(a, b) * b,
    Div: _trunc, Mod: lambda a, b: a - _trunc(a, b) * b, Min: np.minimum, Max: np.maximum,
    EQ: np.equal, NE: np.not_equal, LT: np.less, LE: np.less_equal, GT: np.greater,
    GE: np.greater_equal,
}  # fmt: skip


def _wrapped(dtype: DType, x: Values) -> Values:
    low, high = dtype.range
    return (x - low) % (high - low + 1) + low if dtype.bits < 64 else x


def evaluate(expr: Expr, env: Env) -> tuple[Values, Values]:
    """(values, whether defined) of an integer or bool expression at every assignment.

    Undefined are division by zero and overflow of an index type; narrow types wrap.
    """
    kind = type(expr)
    if kind is IntImm:
        return np.int64(expr.value), np.True_
    if kind is Var:
        return env[expr], np.True_
    if kind is Not:
        x, ok = evaluate(expr.a, env)
        return 1 - x, ok
    if kind is Let:
        x, ok = evaluate(expr.value, env)
        y, fine = evaluate(expr.body, {**env, expr.var: x})
        return y, ok & fine
    if kind is Cast:
        x, ok = evaluate(expr.value, env)
        return _wrapped(expr.dtype, x), ok
    parts = [evaluate(c, env) for c in expr.children]
    if kind is Select or kind is Call:
        (c, known), (a, ok_a), (b, ok_b) = parts
        return np.where(c, a, b), known & np.where(c, ok_a, ok_b)
    (a, ok_a), (b, ok_b) = parts
    if kind is And:
        return a & b, ok_a & (ok_b | (a == 0))
    if kind is Or:
        return a | b, ok_a & (ok_b | (a != 0))
    ok = ok_a & ok_b
    if kind in (FloorDiv, FloorMod, Div, Mod):
        ok = ok & (b != 0)
    result = BINARY[kind](a, b).astype(np.int64)
    if expr.dtype == "bool":
        return result, ok
    wrapped = _wrapped(expr.dtype, result)
    if expr.dtype in ("int32", "int64"):
        ok = ok & (wrapped == result)
    return wrapped, ok


def assignments(ranges: Mapping[Var, tuple[int, int]]) -> dict[Expr, Values]:
    """Every assignment of values within inclusive bounds, an array for each variable."""
    axes = [np.arange(lo, hi + 1, dtype=np.int64) for lo, hi in ranges.values()]
    return {v: g.ravel() for v, g in zip(ranges, np.meshgrid(*axes, indexing="ij"), strict=True)}


def assert_same(
    before: Expr,
    after: Expr,
    ranges: Mapping[Var, tuple[int, int]],
    where: Expr = TRUE,
) -> None:
    """Check that both expressions are equal where the first is defined and `where` holds."""
    assert before.dtype is after.dtype
    env = assignments(ranges)
    expected, defined = evaluate(before, env)
    found, _ = evaluate(after, env)
    holds, known = evaluate(where, env)
    shape = next(iter(env.values())).shape
    wrong = np.broadcast_to(defined & known & (holds != 0) & (expected != found), shape)
    if wrong.any():
        first = int(np.argmax(wrong))
        shown = {v.name: int(x[first]) for v, x in env.items()}
        raise AssertionError(f"{show_expr(before)} -> {show_expr(after)} at {shown}")


def boxes(ranges: Mapping[Var, tuple[int, int]]) -> dict[Var, Range]:
    """Inclusive bounds as Ranges."""
    return {v: Range.of(lo, hi - lo + 1) for v, (lo, hi) in ranges.items()}


X, Y, Z = Var("x"), Var("y"), Var("z")
_DIVISORS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, -2, -3])
_CONSTANTS = st.integers(-9, 20)


def integers(
    variables: tuple[Var, ...] = (X, Y, Z), dtype: DType | str = "int32", leaves: int = 7
) -> st.SearchStrategy[Expr]:
    """Integer expressions of all kinds over a few variables."""
    low = 0 if DType(dtype).kind == "uint" else -9
    constants = st.integers(low, 20).map(lambda c: IntImm(dtype, c))
    divisors = _DIVISORS.map(lambda c: IntImm(dtype, abs(c) if low == 0 else c))
    base = st.one_of(st.sampled_from(variables), st.sampled_from(variables), constants)

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        def two(kinds: tuple[type, ...], right: st.SearchStrategy[Expr]) -> object:
            return st.builds(lambda k, a, b: k(a, b), st.sampled_from(kinds), inner, right)

        return st.one_of(
            two((Add, Add, Sub), inner),
            two((Mul,), constants),
            two((FloorDiv, FloorMod, FloorDiv, FloorMod, Div, Mod), divisors),
            two((Min, Max), inner),
            two((FloorDiv, FloorMod, Mul), inner),
            st.builds(Select, comparisons(inner), inner, inner),
        )

    return st.recursive(base, extend, max_leaves=leaves)


def comparisons(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """One comparison of two integer expressions."""
    kinds = st.sampled_from((EQ, NE, LT, LE, GT, GE))
    return st.builds(lambda k, a, b: k(a, b), kinds, inner, inner)


def conditions(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Conjunctions, disjunctions and negations of comparisons."""
    return st.recursive(
        comparisons(inner),
        lambda c: st.one_of(st.builds(And, c, c), st.builds(Or, c, c), st.builds(Not, c)),
        max_leaves=4,
    )


def bounds_for(variables: tuple[Var, ...] = (X, Y, Z)) -> st.SearchStrategy[dict]:
    """Small inclusive bounds for each variable, often from zero."""
    low = st.one_of(st.just(0), st.integers(-5, 5))
    one = st.builds(lambda lo, n: (lo, lo + n), low, st.integers(0, 7))
    return st.fixed_dictionaries(dict.fromkeys(variables, one))
