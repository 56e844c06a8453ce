"""The fraction of a nest's iterations that the conditions around a store let through.

A condition is a sum of digits that is at most a limit; each loop gives one digit. Digits count as
independent: exact for the tiles of a dimension, an estimate where one fused loop gives two digits.
Conditions that share digits, as those of skewed loops, are judged together. They also tell how many
cores a parallel loop keeps busy. This feeds a cost model, never a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import NamedTuple

import numpy as np

from metasched.arith.affine import as_written
from metasched.arith.conditions import conjuncts
from metasched.ir import expr as ir
from metasched.ir.expr import Expr, Var

# The least value of a sum, and for each loop (its index) the distance and number of its values; the
# distance is negative if the values fall while the loop runs.
Digits = tuple[int, dict[int, tuple[int, int]]]


class Condition(NamedTuple):
    """Where the values that `digits` (loop, distance, number) add up to are at most `limit`.

    Attributes:
        skips: True when the lowering uses the condition to skip whole loops (products with zero),
            False when the condition guards the store itself.
    """

    limit: int
    digits: tuple[tuple[int, int, int], ...]
    skips: bool = False


def digits_of(expr: Expr, bound: Mapping[Var, Expr | tuple[int, int]]) -> Digits | None:
    """The digits of an integer expression; None if a part of it is unknown, such as an element of a
    buffer or an exclusive or.

    Args:
        bound: the value of each variable: an expression, or a loop's index and extent.
    """
    form = as_written(expr)
    least, digits = form.const, dict[int, tuple[int, int]]()
    for atom, coef in form.terms.items():
        found = _digits_of_atom(atom, bound)
        if found is None:
            return None
        least, digits = _sum(least, digits, *found, coef)
    return least, digits


def _digits_of_atom(atom: Expr, bound: Mapping[Var, Expr | tuple[int, int]]) -> Digits | None:
    if isinstance(atom, Var):
        value = bound.get(atom)
        if isinstance(value, tuple):
            return 0, {value[0]: (1, value[1])}
        return None if value is None else digits_of(value, bound)
    if isinstance(atom, ir.Cast):
        return digits_of(atom.value, bound)
    if not isinstance(atom, ir.BinaryOp):
        return None
    left, right = digits_of(atom.a, bound), digits_of(atom.b, bound)
    if left is None or right is None:
        return None
    (least, digits), (other, more) = left, right
    if isinstance(atom, ir.Mul):
        if digits:
            least, digits, other, more = other, more, least, digits
        return _sum(0, {}, other, more, least)
    if not more and other > 0 and isinstance(atom, (ir.FloorDiv, ir.FloorMod)):
        quotient = isinstance(atom, ir.FloorDiv)
        cut = {loop: _cut(d, other, quotient) for loop, d in digits.items()}
        return least // other if quotient else least % other, cut
    if isinstance(atom, ir.Min) and not more:
        top = {i: (gap, min(n, (other - least) // abs(gap) + 1)) for i, (gap, n) in digits.items()}
        return least, top
    return least, digits


def _sum(
    least: int, digits: dict[int, tuple[int, int]],
    other: int, more: dict[int, tuple[int, int]], times: int,
) -> Digits:  # fmt: skip
    """Add to digits the digits of another sum times a factor."""
    least += other * times
    if not more or not times:
        return least, digits
    out = dict(digits)
    for loop, (gap, count) in more.items():
        gap *= times
        if times < 0:
            least -= abs(gap) * (count - 1)
        if loop in out:
            wide = abs(gap) * (count - 1) + abs(out[loop][0]) * (out[loop][1] - 1)
            gap = min(gap, out[loop][0], key=abs)
            count = wide // abs(gap) + 1
        out[loop] = gap, count
    return least, out


def _cut(digit: tuple[int, int], divisor: int, quotient: bool) -> tuple[int, int]:
    """The quotient or remainder of a digit by a divisor."""
    size, count = abs(digit[0]), digit[1]
    sign = 1 if digit[0] > 0 else -1
    if quotient:
        last = size * (count - 1) // divisor
        return (sign * size // divisor, count) if size % divisor == 0 else (sign, last + 1)
    if size * (count - 1) < divisor:
        return digit
    return (digit[0], divisor // size) if divisor % size == 0 else (sign, divisor)


def conditions(
    test: Expr, bound: Mapping[Var, Expr | tuple[int, int]], skips: bool = False
) -> list[Condition]:
    """Split a conjunction into its comparisons, as conditions on digits."""
    found = [_condition(part, bound, skips) for part in conjuncts(test)]
    return [condition for condition in found if condition is not None]


def _condition(
    test: Expr, bound: Mapping[Var, Expr | tuple[int, int]], skips: bool
) -> Condition | None:
    if isinstance(test, (ir.LT, ir.LE)):
        low, high, strict = test.a, test.b, isinstance(test, ir.LT)
    elif isinstance(test, (ir.GT, ir.GE)):
        low, high, strict = test.b, test.a, isinstance(test, ir.GT)
    else:
        return None
    left, right = digits_of(low, bound), digits_of(high, bound)
    if left is None or right is None:
        return None
    least, digits = _sum(*left, *right, -1)
    parts = sorted((-abs(gap), loop, gap, n) for loop, (gap, n) in digits.items() if n > 1)
    found = tuple((loop, gap, n) for _, loop, gap, n in parts)
    return Condition(-least - strict, found, skips) if found else None


def guard_fraction(
    tests: Iterable[Condition], inner: Collection[int] = (), whole: bool = False
) -> float:
    """The fraction of the outer iterations in which every test holds for some inner iteration.

    Args:
        inner: the loops that are not counted.
        whole: every test must hold for all inner iterations.
    """
    free: list[_Test] = []
    for limit, digits, _ in tests:
        left = tuple([digit for digit in digits if digit[0] not in inner])
        if whole:
            limit -= sum(abs(gap) * (n - 1) for loop, gap, n in digits if loop in inner)
        free.append((limit, left))
    out = 1.0
    for group in _groups(free):
        out *= _together(group) if len(group) > 1 else _alone(*group[0])
    return out


def _groups(tests: Sequence[_Test]) -> list[tuple[_Test, ...]]:
    """The conditions, those that share digits together."""
    groups: list[tuple[_Test, ...]] = []
    for test in tests:
        near = [group for group in groups if any(_digits(test) & _digits(o) for o in group)]
        groups = [group for group in groups if group not in near]
        groups.append((*(other for group in near for other in group), test))
    return groups


_Test = tuple[int, tuple[tuple[int, int, int], ...]]
_COUNTED, _SAMPLES = 1 << 14, 2048
"""The most iterations that are counted one by one, and how many of more iterations are tested."""
_STEPS = 64
"""The most iterations of a parallel loop, and of the loops around or inside, that are tested."""


def _digits(test: _Test) -> set[tuple[int, int]]:
    """The digits of a condition: a loop, and its number of values."""
    return {(loop, n) for loop, _, n in test[1]}


@lru_cache(maxsize=4096)
def _together(tests: tuple[_Test, ...]) -> float:
    """The fraction of iterations that pass every test; equal digits of a loop are one digit."""
    places = sorted(set[tuple[int, int]]().union(*map(_digits, tests)))
    drawn = _drawn([n for _, n in places], _COUNTED)
    at = dict(zip(places, drawn, strict=True))
    return float(np.all([_holds(test, at) for test in tests], axis=0).mean())


def _drawn(counts: list[int], most: int, samples: int = _SAMPLES) -> np.ndarray:
    """All combinations of digits, a column each, or samples where more than `most` are there."""
    if prod(counts) <= most:
        return np.indices(counts).reshape(len(counts), prod(counts))
    top = np.array(counts)[:, None]
    return np.random.default_rng(0).integers(0, top, (len(counts), samples))


def _holds(test: _Test, at: Mapping[tuple[int, int], np.ndarray]) -> np.ndarray:
    """Whether a condition holds, for arrays of digits."""
    limit, digits = test
    parts = [at[loop, n] * gap + max(-gap, 0) * (n - 1) for loop, gap, n in digits]
    return np.asarray(sum(parts) <= limit)


def busy_cores(
    tests: Iterable[Condition], shared: tuple[int, int], around: Collection[int], cores: int
) -> float | None:
    """The mean number of cores that run iterations of a parallel loop under changing conditions.

    In each iteration of the loops around, the cores wait for the core with the most work. None
    where no condition joins the parallel loop with a loop around it.

    Args:
        shared: the parallel loop and its extent.
        around: the loops around the parallel loop.
    """
    groups = _groups([(limit, digits) for limit, digits, _ in tests])
    joined = next((group for group in groups if _joins(group, shared, around)), None)
    return None if joined is None else _busy(joined, shared, frozenset(around), cores)


def _joins(group: tuple[_Test, ...], shared: tuple[int, int], around: Collection[int]) -> bool:
    digits = set[tuple[int, int]]().union(*map(_digits, group))
    return shared in digits and any(loop in around for loop, _ in digits)


@lru_cache(maxsize=4096)
def _busy(
    tests: tuple[_Test, ...], shared: tuple[int, int], around: frozenset[int], cores: int
) -> float:
    """`busy_cores` for one group of conditions.

    Each core takes one contiguous share of the iterations from either end, as the code does.
    """
    places = sorted(set[tuple[int, int]]().union(*map(_digits, tests)) - {shared})
    count = min(shared[1], _STEPS)
    at = {shared: (np.arange(count) * shared[1] // count)[None, :, None]}
    for own, axes in ((True, (1, 2)), (False, (0, 1))):
        some = [place for place in places if (place[0] in around) == own]
        drawn = _drawn([n for _, n in some], _STEPS, _STEPS)
        at |= {place: np.expand_dims(row, axes) for place, row in zip(some, drawn, strict=True)}
    passed = reduce(np.logical_and, [_holds(test, at) for test in tests])
    work = passed.mean(axis=2)
    ends = np.arange(2 * cores + 1)
    each, more = divmod(count, 2 * cores)
    sums = np.pad(np.cumsum(work, axis=1), ((0, 0), (1, 0)))
    parts = np.diff(sums[:, ends * each + np.minimum(ends, more)], axis=1)
    busiest = (parts[:, :cores] + parts[:, : cores - 1 : -1]).max(axis=1)
    return float(work.sum() / max(busiest.sum(), 1e-9)) or 1.0


def _alone(limit: int, digits: tuple[tuple[int, int, int], ...]) -> float:
    return _fraction(tuple([(abs(gap), n) for _, gap, n in digits]), limit)


@lru_cache(maxsize=4096)
def _fraction(digits: tuple[tuple[int, int], ...], limit: int) -> float:
    """The fraction of all combinations of digits whose sum is at most `limit`."""
    if limit < 0:
        return 0.0
    if limit >= sum(gap * (n - 1) for gap, n in digits):
        return 1.0
    (gap, count), rest = digits[0], digits[1:]
    free = sum(g * (n - 1) for g, n in rest)
    sure = max(0, min(count, (limit - free) // gap + 1))
    last = min(count, limit // gap + 1)
    return (sure + sum(_fraction(rest, limit - gap * k) for k in range(sure, last))) / count
