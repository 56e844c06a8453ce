"""Intervals and boxes: upper bounds hold, lower boxes are filled, `covers` is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import (
    SymbolicInterval,
    covers,
    intersect,
    lower_region,
    region_of,
    relax,
    union_regions,
)
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, Max, Min, Var, as_expr, floordiv, logical_and

from .enumeration import X, Y, Z, assignments, bounds_for, boxes, evaluate, integers

FAST = settings(max_examples=80, deadline=None)
R = Range.of
I, J, N = Var("i"), Var("j"), Var("n")


def eval_interval(
    expr: Expr, dom: dict, analyzer: Analyzer | None = None
) -> SymbolicInterval | None:
    """The values of an index while the variables of `dom` run."""
    box = region_of([expr], dom, None, analyzer)
    return None if box is None else SymbolicInterval.of(box[0])


def shown(box: list[Range] | None) -> list[tuple[str, str]]:
    assert box is not None
    return [(show_expr(r.min), show_expr(r.extent)) for r in box]


@FAST
@given(integers(), bounds_for(), st.sets(st.sampled_from([X, Y, Z])))
def test_intervals_hold_every_value(expr: Expr, ranges: dict, running: set[Var]) -> None:
    all_boxes = boxes(ranges)
    found = eval_interval(
        expr,
        {v: r for v, r in all_boxes.items() if v in running},
        Analyzer({v: r for v, r in all_boxes.items() if v not in running}),
    )
    if found is None:
        return
    env = assignments(ranges)
    x, ok = evaluate(expr, env)
    for v in running:  # the ends may not mention what runs
        env[v] = np.full_like(env[v], 77)
    low, fine = evaluate(found.min, env)
    high, good = evaluate(found.max, env)
    assert np.all((low <= x) & (x <= high) | ~(ok & fine & good)), (
        f"{show_expr(expr)} in [{show_expr(found.min)}, {show_expr(found.max)}]"
    )


@FAST
@given(st.lists(st.integers(-3, 4), min_size=3, max_size=3), st.integers(-4, 4), bounds_for())
def test_affine_intervals_are_exact(coefficients: list[int], const: int, ranges: dict) -> None:
    expr = X * coefficients[0] + Y * coefficients[1] + Z * coefficients[2] + const
    found = eval_interval(expr, boxes(ranges))
    x, _ = evaluate(expr, assignments(ranges))
    assert found is not None
    assert (show_expr(found.min), show_expr(found.max)) == (str(np.min(x)), str(np.max(x)))


@FAST
@given(
    st.lists(
        st.tuples(st.sampled_from([X, Y]), st.sampled_from([1, 2, 4]), st.integers(1, 5)),
        min_size=2,
        max_size=2,
    ),
    st.tuples(st.integers(0, 7), st.integers(1, 6)),
    st.tuples(st.integers(0, 7), st.integers(1, 6)),
    st.lists(
        st.tuples(st.integers(-4, 4), st.sampled_from([-4, -1, 0, 1, 2]), st.integers(-3, 12)),
        max_size=2,
    ),
)
def test_lower_regions_are_reached(axes: list, a: tuple, b: tuple, conditions: list) -> None:
    """Each condition is (c, d, bound): c * x + d * y < bound."""
    ranges = {X: R(*a), Y: R(*b)}
    region = [Range.of(v * s, e) for v, s, e in axes]
    predicate = as_expr(True)
    for c, d, bound in conditions:
        predicate = logical_and(predicate, X * c + Y * d < as_expr(bound))
    found = lower_region(region, ranges, predicate)
    if found is None:
        return
    touched = set()
    for x in range(a[0], sum(a)):
        for y in range(b[0], sum(b)):
            if all(c * x + d * y < bound for c, d, bound in conditions):
                at = {X: x, Y: y}
                (u, s, m), (v, t, n) = axes
                touched |= {(at[u] * s + p, at[v] * t + q) for p in range(m) for q in range(n)}
    (p, m), (q, n) = [(int(r.min), int(r.extent)) for r in found]
    assert {(x, y) for x in range(p, p + m) for y in range(q, q + n)} <= touched


_POINTS = st.tuples(st.integers(-3, 5), st.integers(1, 4))


@FAST
@given(st.tuples(_POINTS, _POINTS), st.tuples(_POINTS, _POINTS), st.integers(-3, 3))
def test_boxes_against_sets(a: tuple, b: tuple, shift: int) -> None:
    base = Var("base")
    first = [R(base + lo, n) for lo, n in a]
    second = [R(base + lo + shift, n) for lo, n in b]

    def elements(box: list[Range]) -> set[tuple[int, int]]:
        an = Analyzer()
        (p, m), (q, n) = [(int(an.simplify(r.min - base)), int(r.extent)) for r in box]
        return {(x, y) for x in range(p, p + m) for y in range(q, q + n)}

    one, two = elements(first), elements(second)
    assert elements(union_regions(first, second)) >= one | two
    assert elements(intersect(first, second)) == one & two
    assert covers(first, second) == (one >= two)


def test_a_tile_of_a_buffer() -> None:
    outer = Var("o")
    box = region_of([outer * 64 + I * 4 + J], {I: R(0, 16), J: R(0, 4)})
    assert shown(box) == [("o * 64", "64")]


def test_symbolic_extents() -> None:
    tile = floordiv(N + 3, 4)
    an = Analyzer({N: (1, None)})
    box = region_of([I * tile + J], {J: Range(as_expr(0), tile)}, None, an)
    assert shown(box) == [("i * ((n + 3) // 4)", "(n + 3) // 4")]


def test_triangular_loops() -> None:
    box = region_of([J], {J: Range(as_expr(0), I + 1)})
    assert shown(box) == [("0", "i + 1")]


def test_interval_domains() -> None:
    found = eval_interval(I * 2 + J, {I: SymbolicInterval(N, N + 3)})
    assert found is not None
    assert (show_expr(found.min), show_expr(found.max)) == ("n * 2 + j", "n * 2 + j + 6")


def test_an_unbounded_index_covers_the_whole_dimension() -> None:
    index, data = Buffer.of("I", (8,), "int32"), Buffer.of("A", (100,))
    assert region_of([index[I]], {I: R(0, 8)}) is None
    whole = relax(BufferRegion.point(data, [index[I]]), {I: R(0, 8)})
    assert shown(list(whole.region)) == [("0", "100")]


def test_gaps_have_no_lower_region() -> None:
    assert lower_region([R(I * 2, 1)], {I: R(0, 4)}) is None
    assert shown(lower_region([R(I * 2, 2)], {I: R(0, 4)})) == [("0", "8")]
    assert lower_region([R(I, I)], {I: R(0, 4)}) is None


def test_lower_region_under_a_predicate() -> None:
    ranges = {I: R(0, 4), J: R(0, 8)}
    found = lower_region([R(I * 8 + J, 1)], ranges, I * 8 + J < 30)
    assert shown(found) == [("0", "30")]


def test_symbolic_cover() -> None:
    an = Analyzer({N: (1, None), I: Range(as_expr(0), N)})
    assert covers([R(0, N)], [R(I, 1)], an)
    assert not covers([R(0, N)], [R(I + 1, 1)], an)


def test_a_condition_on_fixed_variables_must_be_proved() -> None:
    known = Analyzer({I: R(0, 3)})
    point = [R(I * 4 + J, 1)]
    assert lower_region(point, {J: R(0, 4)}, I < as_expr(2), known) is None
    assert shown(lower_region(point, {J: R(0, 4)}, I < as_expr(3), known)) == [("i * 4", "4")]
    idle = {J: R(0, 4), N: R(1, 1)}
    assert lower_region(point, idle, N < as_expr(1), known) is None
    assert lower_region(point, idle, N < as_expr(2), known) is not None


def test_a_condition_that_excludes_all_values_gives_no_lower_region() -> None:
    point = [R(I, 1)]
    assert lower_region(point, {I: R(6, 4)}, I < as_expr(5)) is None
    assert lower_region(point, {I: R(6, 1)}, I < as_expr(5)) is None
    assert lower_region(point, {I: R(6, 1)}, I < N) is None
    assert lower_region(point, {I: R(0, 1), J: R(2, 3)}, I + J * 4 < as_expr(3)) is None
    assert shown(lower_region(point, {I: R(6, 4)}, I < as_expr(8))) == [("6", "2")]


def test_narrow_indices_that_may_wrap_have_no_box() -> None:
    """p + k of `uint8` runs from 250 over 255 to 0."""
    p, k = Var("p", "uint8"), Var("k", "uint8")
    run = {k: Range(as_expr(0, "uint8"), as_expr(64, "uint8"))}
    for index in (p + k, p - k, p * as_expr(2, "uint8") + k):
        assert region_of([index], run) is None
    an = Analyzer({p: (100, 150)})
    assert shown(region_of([p + k], run, None, an)) == [("int32(p)", "64")]


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_clamped_sums_that_may_wrap_have_a_box_of_numbers(dtype: str) -> None:
    """max(x - k, 4) of `uint8` is 4 for x = 3 and k = 0, and 255 for k = 4; x + k of an element
    x of `int32` may leave the type, too."""
    x = BufferLoad(Buffer("x", (as_expr(8),), DType(dtype)), [as_expr(0)])
    k = Var("k", dtype)
    run = {k: Range(as_expr(0, dtype), as_expr(8, dtype))}
    four, ninety = as_expr(4, dtype), as_expr(90, dtype)
    for part in (x + k, x - k, k - four if dtype == "uint8" else x * 3 + k):
        assert shown(region_of([Min(Max(part, four), ninety)], run)) == [("4", "87")]
    known = Analyzer({x: (10, 80)})
    clamped = shown(region_of([Min(Max(x + k, four), ninety)], run, None, known))
    assert clamped is not None and "x[0]" in clamped[0][0]
