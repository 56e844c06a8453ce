"""masks: a mask that is said to hide a block hides all of it; values there are equal."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.analysis.masks import Instances, Masked
from metasched.arith.analyzer import Analyzer
from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, FloatImm, Var, as_expr, as_int, floordiv
from metasched.ir.op import call
from metasched.ir.visit import substitute

I, J, OUTER, BLOCK = (Var(name, DType("int32")) for name in ("i", "j", "o", "b"))
ROWS, COLUMNS = 3, 4
INSTANCES = Instances(
    {I: OUTER * ROWS + I, J: BLOCK * COLUMNS + J},
    {I: Range(as_expr(0), as_expr(ROWS)), J: Range(as_expr(0), as_expr(COLUMNS))},
)
SIDES = st.builds(
    lambda a, b, c, d: floordiv(I * a + J * b + c, as_expr(d)),
    st.integers(-2, 2), st.integers(-2, 2), st.integers(-9, 9), st.integers(1, 5),
)  # fmt: skip
KINDS = st.sampled_from([ir.EQ, ir.NE, ir.LT, ir.LE, ir.GT, ir.GE])
CONDITIONS = st.recursive(
    st.builds(ir.compare, KINDS, SIDES, SIDES),
    lambda inner: st.one_of(
        st.builds(ir.logical_and, inner, inner),
        st.builds(ir.logical_or, inner, inner),
        st.builds(ir.logical_not, inner),
    ),
    max_leaves=4,
)


def holds(condition: Expr, at: dict[Var, int]) -> bool:
    values = {var: as_expr(value) for var, value in at.items()}
    return bool(as_int(Analyzer().simplify(substitute(condition, values))))


@settings(max_examples=50, deadline=None)
@given(CONDITIONS, st.integers(0, 4), st.integers(0, 4))
def test_a_condition_holds_nowhere_in_a_block_that_is_not_alive(condition, outer, block):
    alive = INSTANCES.alive(condition)
    at = {OUTER: outer, BLOCK: block}
    somewhere = any(
        holds(condition, {I: outer * ROWS + i, J: block * COLUMNS + j})
        for i, j in itertools.product(range(ROWS), range(COLUMNS))
    )
    assert holds(alive, at) or not somewhere


@pytest.mark.parametrize("kind", [ir.EQ, ir.LT, ir.LE, ir.GT, ir.GE])
def test_a_comparison_of_two_iterators_is_exact(kind):
    alive = INSTANCES.alive(ir.compare(kind, J, I))
    for outer, block in itertools.product(range(5), range(5)):
        rows = range(outer * ROWS, (outer + 1) * ROWS)
        columns = range(block * COLUMNS, (block + 1) * COLUMNS)
        somewhere = any(
            holds(ir.compare(kind, J, I), {I: i, J: j}) for i, j in itertools.product(rows, columns)
        )
        assert holds(alive, {OUTER: outer, BLOCK: block}) == somewhere


SHIFT, SCORE, HIDDEN, VALUE = (
    Buffer(name, (as_expr(8),), DType("float32")) for name in ("shift", "score", "hidden", "value")
)
M, X, H, V = (BufferLoad(buffer, (J,)) for buffer in (SHIFT, SCORE, HIDDEN, VALUE))
MINUS, ZERO, HALF = (as_expr(v, "float32") for v in (float("-inf"), 0.0, 0.5))
KEPT = ir.compare(ir.LE, J, I)


@pytest.mark.parametrize(
    ("value", "finite", "wanted"),
    [
        (call("if_then_else", KEPT, X, MINUS), False, MINUS),
        (call("if_then_else", ir.logical_not(KEPT), MINUS, X), False, MINUS),
        (ir.Select(ir.logical_and(KEPT, ir.compare(ir.LT, X, 0.0)), X, MINUS), False, MINUS),
        (ir.Select(ir.logical_or(KEPT, ir.compare(ir.LT, X, 0.0)), X, MINUS), False, None),
        (ir.Select(ir.compare(ir.LT, X, 0.0), H, MINUS), False, MINUS),
        (call("exp", (H - M) * HALF), False, ZERO),
        (call("exp", H * HALF - M), False, ZERO),
        (call("exp", (H - M) * -HALF), False, None),
        (call("exp", H - X), False, None),
        (call("exp", H - X), True, ZERO),
        (call("exp", X + H), True, ZERO),
        (call("exp", H - H), True, None),
        (call("exp", H) * V, False, ZERO * V),
        (V * call("exp", H), True, ZERO),
        (call("exp", H) * H, True, None),
        (call("exp", H) / V, True, None),
        (call("exp", H) / HALF, False, ZERO),
        (H * V, True, None),
        (H + as_expr(float("inf"), "float32"), False, None),
        (ir.cast(DType("float64"), call("exp", H)), False, as_expr(0.0, "float64")),
        (X, True, X),
    ],
)  # fmt: skip
def test_values_in_a_hidden_block(value, finite, wanted):
    masked = Masked(INSTANCES.alive(KEPT), {HIDDEN: MINUS}, {SHIFT}, finite)
    found = masked.value(value, INSTANCES)
    assert found is wanted if wanted is not None else not isinstance(found, FloatImm)
