"""Proves that a system of linear inequalities has no integer solution.

Fourier and Motzkin's elimination (see Banerjee 1988, Pugh 1991): an unknown is eliminated by adding
each of its upper bounds to each of its lower bounds. Every inequality is divided by the common
divisor of its coefficients, and its constant rounded down, so that some systems with rational
solutions are proved to have no integer solution.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import gcd
from typing import TypeAlias

Terms: TypeAlias = Mapping[Hashable, int]
"""Unknown -> integer coefficient."""
Inequality: TypeAlias = tuple[Terms, int]
"""The sum of the terms is at most the constant."""

_MOST = 400  # the most inequalities with which the elimination continues


class _Empty(Exception):
    """An inequality without unknowns is false."""


_Rows: TypeAlias = dict[frozenset[tuple[Hashable, int]], int]


def is_empty(system: Iterable[Inequality]) -> bool:
    """Whether no integers satisfy all inequalities. False where elimination does not prove this."""
    rows: _Rows = {}
    try:
        for terms, most in system:
            _add(rows, terms, most)
        while rows:
            unknown = _cheapest(rows)
            if unknown is None:
                return False
            rows = _without(rows, unknown)
    except _Empty:
        return True
    return False


def _add(rows: _Rows, terms: Terms, most: int) -> None:
    """Add an inequality, in its normal form, unless a tighter one has the same terms."""
    left = {key: c for key, c in terms.items() if c}
    if not left:
        if most < 0:
            raise _Empty
        return
    by = gcd(*left.values())
    form = frozenset((key, c // by) for key, c in left.items())
    rows[form] = min(rows.get(form, most // by), most // by)


def _cheapest(rows: _Rows) -> Hashable | None:
    """The unknown whose elimination adds the fewest inequalities; None if these are too many."""
    signs: dict[Hashable, list[int]] = {}
    for form in rows:
        for key, c in form:
            signs.setdefault(key, [0, 0])[c > 0] += 1
    best = min(signs, key=lambda key: _growth(signs[key]))
    return best if len(rows) + _growth(signs[best]) <= _MOST else None


def _growth(signs: list[int]) -> int:
    return signs[0] * signs[1] - sum(signs)


def _without(rows: _Rows, unknown: Hashable) -> _Rows:
    """Eliminate an unknown: the inequalities that the other unknowns satisfy."""
    left: _Rows = {}
    low: list[tuple[dict[Hashable, int], int]] = []
    high: list[tuple[dict[Hashable, int], int]] = []
    for form, most in rows.items():
        terms = dict(form)
        c = terms.get(unknown, 0)
        if c:
            (high if c > 0 else low).append((terms, most))
        else:
            left[form] = most
    for upper, above in high:
        for lower, below in low:
            a, b = upper[unknown], -lower[unknown]
            total = {key: c * b for key, c in upper.items()}
            for key, c in lower.items():
                total[key] = total.get(key, 0) + c * a
            _add(left, total, above * b + below * a)
    return left
