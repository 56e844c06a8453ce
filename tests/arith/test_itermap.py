"""Iterator maps: claims of surjectivity and bijectivity, inverses, divisions; by enumeration."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.arith.analyzer import Analyzer
from metasched.arith.itermap import (
    IterMap,
    detect_iter_map,
    inverse_iter_map,
    iter_map_simplify,
    sum_expr,
)
from metasched.arith.subspace import subspace_divide
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, And, Expr, FloorDiv, IntImm, Mul, Var, as_expr, floordiv
from metasched.ir.visit import substitute

from .enumeration import assignments, evaluate

I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")
OFF = And(And(I >= 1, J // 2 >= 1), K < 5)  # minima move away from zero
TWICE = And(J // 3 < 1, J % 3 >= 1)  # the second bound is one on j itself where the first holds
LEVELS = st.sampled_from(["surjective", "bijective"])
FAST = settings(max_examples=60, deadline=None)
R = Range.of


def ranges_of(extents: dict[Var, int]) -> dict[Var, Range]:
    return {v: R(0, e) for v, e in extents.items()}


def points(exprs: list[Expr], extents: dict[Var, int], predicate: Expr = TRUE) -> np.ndarray:
    """The values of all expressions at every instance where the predicate holds, a row each."""
    env = assignments({v: (0, e - 1) for v, e in extents.items()})
    size = next(iter(env.values())).shape
    keep = np.broadcast_to(evaluate(predicate, env)[0] != 0, size)
    return np.stack([np.broadcast_to(evaluate(e, env)[0], size)[keep] for e in exprs], axis=1)


def check_claim(exprs: list[Expr], extents: dict[Var, int], predicate: Expr, level: str) -> IterMap:
    """Check that the sums of a detected map equal the expressions, and that the level is right."""
    found = detect_iter_map(exprs, ranges_of(extents), predicate, level)
    if found.error is not None:
        return found
    rows = points(exprs, extents, predicate)
    again = points(
        [sum_expr(s, found.ranges, e.dtype) for s, e in zip(found.sums, exprs, strict=True)],
        extents,
        predicate,
    )
    assert (rows == again).all(), [show_expr(e) for e in exprs]
    count = 1
    for s in found.sums:
        count *= s.splits[0].extent if s.splits else 1
    distinct = {tuple(r) for r in rows.tolist()}
    assert len(distinct) == count, (found.sums, len(distinct), count)
    if level == "bijective":
        assert len(rows) == count
    return found


@st.composite
def affine(draw: st.DrawFn) -> tuple[list[Expr], dict[Var, int]]:
    """Sums of digits of three iterators, mostly with fitting strides, sometimes not."""
    extents = {v: draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for v in (I, J, K)}
    digits: list[tuple[Expr, int]] = []
    for v, e in extents.items():
        d = draw(st.sampled_from([1, 2, 3, 4]))
        if d > 1 and draw(st.booleans()):
            digits += [(v // d, -(-e // d)), (v % d, min(d, e))]
        else:
            digits.append((v, e))
    digits = draw(st.permutations(digits))
    exprs: list[Expr] = []
    while digits:
        n = draw(st.integers(1, len(digits)))
        part, digits = digits[:n], digits[n:]
        total: Expr = as_expr(draw(st.sampled_from([0, 0, 3])))
        scale = draw(st.sampled_from([1, 1, 1, 2]))
        for digit, e in part:
            total = total + digit * scale
            scale *= e + draw(st.sampled_from([0, 0, 0, 0, 1]))
        how = draw(st.sampled_from(["plain", "plain", "div", "mod", "both"]))
        d = draw(st.sampled_from([2, 3, 4, 6]))
        if how == "plain":
            exprs.append(total)
        if how in ("div", "both"):
            exprs.append(total // d)
        if how in ("mod", "both"):
            exprs.append(total % d)
    return exprs, extents


@FAST
@given(affine(), st.sampled_from(["surjective", "bijective"]))
def test_claims_of_the_iterator_map_hold_on_all_values(
    case: tuple[list[Expr], dict[Var, int]], level: str
) -> None:
    check_claim(*case, TRUE, level)


@FAST
@given(affine(), st.integers(1, 30), st.integers(0, 4), LEVELS)
def test_with_predicates(
    case: tuple[list[Expr], dict[Var, int]], top: int, low: int, level: str
) -> None:
    exprs, extents = case
    fused = I * (extents[J] * extents[K]) + J * extents[K] + K
    for predicate in (
        fused < top,
        And(fused >= low, fused < top + low),
        I < 3,
        J // 2 < 1,
        OFF,
        TWICE,
    ):
        if len(points(exprs, extents, predicate)) == 0:
            continue
        check_claim([*exprs], extents, predicate, level)
        check_claim([fused], extents, predicate, level)
        simple = iter_map_simplify(exprs, ranges_of(extents), predicate)
        before, after = points(exprs, extents, predicate), points(simple, extents, predicate)
        assert (before == after).all()


@st.composite
def bounded_digits(draw: st.DrawFn) -> tuple[list[Expr], dict[Var, int], Expr]:
    """Digits of fused iterators, under bounds of the fused value and of other digits of it."""
    a, b, c = (draw(st.integers(2, 6)) for _ in range(3))
    fused = draw(st.sampled_from([(I * b + J) * c + K, I * b + J]))
    number = st.integers(1, a * b * c)
    bounds = []
    for _ in range(draw(st.integers(1, 3))):
        n, d = draw(number), draw(st.sampled_from([2, 3, 4, 6]))
        bounds.append(
            draw(
                st.sampled_from(
                    [fused < n, fused >= n // 4, fused // d < max(1, n // d), fused % d < 1 + n % d]
                )
            )
        )
    d = draw(st.sampled_from([2, 3, 4, 6]))
    exprs = draw(
        st.sampled_from(
            [[fused], [fused // d, fused % d], [fused // d], [fused % (2 * d) // d, fused % d]]
        )
    )
    return exprs, {I: a, J: b, K: c}, functools.reduce(And, bounds)


@FAST
@given(bounded_digits(), LEVELS)
def test_bounds_on_digits(case: tuple[list[Expr], dict[Var, int], Expr], level: str) -> None:
    exprs, extents, predicate = case
    if len(points(exprs, extents, predicate)):
        check_claim(exprs, extents, predicate, level)


F = I * 2 + J


@pytest.mark.parametrize(
    ("predicate", "exprs"),
    [
        # The digits of the values are digits of i and j, those of the predicate of their sum.
        (And(F < 13, F % 3 < 2), [F % 8 // 4, F % 4]),
        (F % 3 < 1, [F]),
        # The bound on a digit comes before a bound on the sum that it is a digit of.
        (And(F // 3 < 2, F < 9), [F]),
    ],
)
def test_a_bound_on_a_digit_makes_the_map_not_surjective(
    predicate: Expr, exprs: list[Expr]
) -> None:
    found = check_claim(exprs, {I: 5, J: 2}, predicate, "surjective")
    assert found.error is not None


def test_a_symbolic_bound_on_a_digit_is_refused() -> None:
    fused, size = I * 3 + J, N * 2
    tied = And(And(fused < size, fused // 4 < (N + 1) // 2), fused < (N + 3) // 4 * 8)
    found = detect_iter_map(
        [fused % size // N, fused % N], {I: R(0, (N + 3) // 4 * 3), J: R(0, 3)}, tied
    )
    assert found.error is not None


@FAST
@given(affine())
def test_inverse(case: tuple[list[Expr], dict[Var, int]]) -> None:
    exprs, extents = case
    found = detect_iter_map(exprs, ranges_of(extents), TRUE, "bijective")
    if found.error is None:
        back = inverse_iter_map(found.sums, exprs)
        env = assignments({v: (0, e - 1) for v, e in extents.items()})
        for v, e in back.items():
            assert (evaluate(e, env)[0] == env[v]).all(), f"{v.name} = {show_expr(e)}"


@FAST
@given(affine())
def test_iter_map_simplify_keeps_values(case: tuple[list[Expr], dict[Var, int]]) -> None:
    exprs, extents = case
    for trivial in (True, False):
        simple = iter_map_simplify(exprs, ranges_of(extents), simplify_trivial=trivial)
        assert (points(exprs, extents) == points(simple, extents)).all()


@FAST
@given(affine(), st.sets(st.sampled_from([I, J, K])), st.integers(1, 60))
def test_subspace_division(
    case: tuple[list[Expr], dict[Var, int]], inner: set[Var], top: int
) -> None:
    exprs, extents = case
    fused = I * (extents[J] * extents[K]) + J * extents[K] + K
    for predicate, group in (
        (TRUE, exprs),
        (fused < top, [fused]),
        (I < 2, exprs),
        (OFF, exprs),
        (TWICE, exprs),
    ):
        done = subspace_divide(group, ranges_of(extents), inner, predicate)
        if done is None:
            continue
        kept = And(done.outer_predicate, done.inner_predicate)
        env = assignments({v: (0, e - 1) for v, e in extents.items()})
        same = evaluate(kept, env)[0] == evaluate(predicate, env)[0]
        assert np.all(same), show_expr(kept)
        whole = [d.outer * d.inner_extent + d.inner for d in done.bindings]
        assert (points(group, extents, predicate) == points(whole, extents, predicate)).all()
        for d in done.bindings:
            assert show_expr(d.outer) == show_expr(
                substitute(d.outer, {v: as_expr(0) for v in inner})
            )
            outer = {v: as_expr(0) for v in extents if v not in inner}
            assert show_expr(d.inner) == show_expr(substitute(d.inner, outer))


def test_matmul_tiling_is_bijective() -> None:
    names = [Var(f"a{k}") for k in range(4)]
    ranges = {v: R(0, e) for v, e in zip(names, [4, 8, 8, 4], strict=True)}
    a, b, c, d = names
    found = detect_iter_map([((a * 8 + b) * 8 + c) * 4 + d], ranges, level="bijective")
    assert found.error is None and found.sums[0].splits[0].extent == 1024


def test_symbolic_split_is_detected() -> None:
    tile = floordiv(N + 3, 4)
    ranges = {I: R(0, 4), J: Range(as_expr(0), tile)}
    found = detect_iter_map([I * tile + J], ranges)
    assert found.error is None
    limited = detect_iter_map([I * tile + J], ranges, I * tile + J < N)
    assert limited.error is None and limited.sums[0].splits[0].extent is N


def test_symbolic_fuse_is_detected() -> None:
    fused = Var("f")
    ranges = {fused: Range(as_expr(0), Mul(N, IntImm("int32", 16)))}
    found = detect_iter_map([fused // 16, fused % 16], ranges, level="bijective")
    assert found.error is None
    assert found.sums[0].splits[0].extent is N


def test_limited_extent() -> None:
    ranges = {I: R(0, 16), J: R(0, 64)}
    found = detect_iter_map([I * 64 + J], ranges, I * 64 + J < 1000, "bijective")
    assert found.sums[0].splits[0].extent == 1000


def test_units_stay_visible_when_asked() -> None:
    ranges = {I: R(0, 1), J: R(0, 64)}
    assert (
        show_expr(iter_map_simplify([I * 64 + J], ranges, simplify_trivial=False)[0])
        == "i * 64 + j"
    )
    assert iter_map_simplify([I * 64 + J], ranges) == [J]


def test_fused_loops_print_as_the_field_does() -> None:
    f = Var("f")
    ranges = {f: R(0, 128 * 128 * 128)}
    exprs = [f // 128 // 128, f // 128 % 128, f % 128]
    shown = [show_expr(e) for e in iter_map_simplify(exprs, ranges)]
    assert shown == ["f // 16384", "f % 16384 // 128", "f % 128"]


@pytest.mark.parametrize(
    ("exprs", "predicate", "message"),
    [
        ([I + J], TRUE, "i + j: no iterator has the stride 4 that the smaller iterators fill"),
        ([I, I], TRUE, "the parts of i in (i, i) overlap or leave gaps"),
        ([I * J], TRUE, "i * j is a product of iterators"),
        ([I, J], I * 5 + J < 12, "the predicate ties i and j together, but they are used apart"),
        ([I], I * J < 3, "the predicate i * j < 3 is no bound on fused iterators"),
        ([I], I >= 4, "the predicate i >= 4 never holds"),
        ([I * 5 + J], I * 5 + J < 0, "the predicate i * 5 + j < 0 never holds"),
        ([I * -5 + J * -1], TRUE, "runs backwards"),
        ([FloorDiv(I, IntImm("int32", 0))], TRUE, "i // 0 divides by zero"),
        ([(I * 5 + J + N) // 7], TRUE, "divides an iterator that does not start at zero"),
    ],
)
def test_errors_name_the_expression(exprs: list[Expr], predicate: Expr, message: str) -> None:
    found = detect_iter_map(exprs, {I: R(0, 4), J: R(0, 5)}, predicate)
    assert not found and found.error is not None and message in found.error


def test_a_bijective_map_uses_every_iterator() -> None:
    ranges = {I: R(0, 4), J: R(0, 5)}
    found = detect_iter_map([I], ranges, level="bijective")
    assert found.error == "the iterator j is not used"
    assert detect_iter_map([I], ranges).error is None


def test_results_are_memoised_by_value() -> None:
    ranges = {I: R(0, 4)}
    assert detect_iter_map([I], ranges) is detect_iter_map([I], {I: R(0, 4)})
    assert Analyzer(ranges).bounds(I) == (0, 3)


def test_a_lower_bound_in_the_predicate_keeps_the_offset() -> None:
    """`i - 2` under 2 <= i must not be simplified to `i`."""
    i, u = Var("i"), Var("u")
    ranges = {i: Range.of(0, 68), u: Range.of(0, 1)}
    guard = And(as_expr(2) <= i, i < 66)
    (kept,) = iter_map_simplify([i + u - 2], ranges, guard, simplify_trivial=False)
    assert show_expr(kept) == "i + u - 2"


def test_a_bound_that_counts_only_under_another_bound() -> None:
    value, extents = J % 6 + J // 6 - 1, {J: 12}
    predicate = And(J // 6 < 1, J % 6 >= 1)
    simple = iter_map_simplify([value], ranges_of(extents), predicate)
    assert show_expr(simple[0]) == "j - 1"
    check_claim([value], extents, predicate, "bijective")
    done = subspace_divide([value], ranges_of(extents), {J}, predicate)
    assert done is not None and show_expr(done.bindings[0].inner) == "j - 1"
