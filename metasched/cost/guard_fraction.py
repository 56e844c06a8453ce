"""The fraction of a nest's iterations that the conditions around a store let through.

A condition is a sum of digits that is at most a limit; each loop gives one digit. Digits and
conditions count as independent: exact for the tiles of a dimension, an estimate where one fused
loop gives two digits. This feeds a cost model, never a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from metasched.arith.affine import as_written
from metasched.arith.conditions import conjuncts
from metasched.ir import expr as ir
from metasched.ir.expr import Expr, Var

# The least value of a sum, and for each loop (its index) the distance and number of its values.
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


def digits_of(expr: Expr, bound: Mapping[Var, Expr | tuple[int, int]]) -> Digits:
    """The digits of an integer expression; a part that is not affine counts as constant.

    Args:
        bound: the value of each variable: an expression, or a loop's index and extent.
    """
    form = as_written(expr)
    least, digits = form.const, dict[int, tuple[int, int]]()
    for atom, coef in form.terms.items():
        least, digits = _sum(least, digits, *_digits_of_atom(atom, bound), coef)
    return least, digits


def _digits_of_atom(atom: Expr, bound: Mapping[Var, Expr | tuple[int, int]]) -> Digits:
    if isinstance(atom, Var):
        found = bound.get(atom)
        if isinstance(found, tuple):
            return 0, {found[0]: (1, found[1])}
        return digits_of(found, bound) if found is not None else (0, {})
    if not isinstance(atom, ir.BinaryOp):
        return 0, {}
    least, digits = digits_of(atom.a, bound)
    other, more = digits_of(atom.b, bound)
    if isinstance(atom, ir.Mul):
        if digits:
            least, digits, other, more = other, more, least, digits
        return _sum(0, {}, other, more, least)
    if not more and other > 0 and isinstance(atom, (ir.FloorDiv, ir.FloorMod)):
        quotient = isinstance(atom, ir.FloorDiv)
        cut = {loop: _cut(d, other, quotient) for loop, d in digits.items()}
        return least // other if quotient else least % other, cut
    if isinstance(atom, ir.Min) and not more:
        top = {i: (gap, min(n, (other - least) // gap + 1)) for i, (gap, n) in digits.items()}
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
        gap *= abs(times)
        if times < 0:
            least -= gap * (count - 1)
        if loop in out:
            wide = gap * (count - 1) + out[loop][0] * (out[loop][1] - 1)
            gap = min(gap, out[loop][0])
            count = wide // gap + 1
        out[loop] = gap, count
    return least, out


def _cut(digit: tuple[int, int], divisor: int, quotient: bool) -> tuple[int, int]:
    """The quotient or remainder of a digit by a divisor."""
    gap, count = digit
    if quotient:
        last = gap * (count - 1) // divisor
        return (gap // divisor, count) if gap % divisor == 0 else (1, last + 1)
    if gap * (count - 1) < divisor:
        return digit
    return (gap, divisor // gap) if divisor % gap == 0 else (1, divisor)


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
    least, digits = _sum(*digits_of(low, bound), *digits_of(high, bound), -1)
    parts = sorted((-gap, loop, n) for loop, (gap, n) in digits.items() if n > 1)
    found = tuple((loop, -gap, n) for gap, loop, n in parts)
    return Condition(-least - strict, found, skips) if found else None


def guard_fraction(
    tests: Iterable[Condition], inner: Collection[int] = (), whole: bool = False
) -> float:
    """The fraction of the outer iterations in which every test holds for some inner iteration.

    Args:
        inner: the loops that are not counted.
        whole: every test must hold for all inner iterations.
    """
    out = 1.0
    for limit, digits, _ in tests:
        free = tuple([(gap, n) for loop, gap, n in digits if loop not in inner])
        if whole:
            limit -= sum(gap * (n - 1) for loop, gap, n in digits if loop in inner)
        out *= _fraction(free, limit)
    return out


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
