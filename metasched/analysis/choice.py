"""argmin and argmax: recognise an update that keeps the better of two pairs (value, index).

    if V[k] > M: M = V[k]; N = k                       # takes the new pair where it is better
    N, M = Select(M >= V[k], (N, M), (k, V[k]))        # keeps the old pair where it is as good

The two forms treat NaN differently, because no comparison with NaN holds. The first form never
takes a NaN, so NaN changes nothing in any order of the values. The second form takes a NaN, and
then takes the value after it. Its result depends on the order, so only programs without NaN may be
reordered.

A further condition, as in `if c[k] and V[k] > M`, is part of the new value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import TypeAlias

from metasched.arith.conditions import conjuncts
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    And,
    Compare,
    Expr,
    Max,
    Min,
    Not,
    Or,
    Select,
    as_expr,
    logical_and,
)
from metasched.ir.op import Call, call

Values: TypeAlias = tuple[Expr, ...]
FLIPPED: dict[type[Compare], type[Compare]] = {GT: LT, LT: GT, GE: LE, LE: GE, EQ: EQ}
"""Each comparison with its sides exchanged."""


@dataclass(frozen=True, slots=True)
class Test:
    """The condition that decides whether a component keeps its old content or takes the new.

    Attributes:
        keeps: True if the component keeps its old content where the condition holds; False if it
            takes the new content there.
        compare: the comparison (winner's value, loser's value) in the condition.
        by_index: the comparison (winner's index, loser's index) for equal values; None if `compare`
            decides ties.
    """

    keeps: bool
    compare: type[Compare]
    by_index: type[Compare] | None = None

    def holds(self, value: Sequence[Expr], index: Sequence[Expr]) -> Expr:
        """The condition for the pairs `value` and `index`, each (old, new)."""
        first, second = (0, 1) if self.keeps else (1, 0)
        better: Expr = self.compare(value[first], value[second])
        if self.by_index is None:
            return better
        order: Expr = self.by_index(index[first], index[second])
        either: Expr = Or(better, And(EQ(value[first], value[second]), order))
        return either

    def chosen(self, condition: Expr, old: Expr, new: Expr) -> Expr:
        """The content of a component after the update."""
        return Select(condition, old, new) if self.keeps else Select(condition, new, old)


@dataclass(frozen=True, slots=True)
class Choice:
    """An argmin or argmax over two components, one for the value and one for the index.

    Attributes:
        at: the position of the value component, 0 or 1.
        index: the condition by which the index changes.
        value: the condition by which the value changes; None if the value is the minimum or maximum
            of both.
        ties: the index that is kept for equal values: `first` or `last` in the order of the
            updates, or the `smaller` or `larger` index.
    """

    at: int
    index: Test
    value: Test | None

    @property
    def name(self) -> str:
        """argmax or argmin."""
        return "argmax" if self.index.compare in (GT, GE) else "argmin"

    @property
    def ties(self) -> str:
        if self.index.by_index is not None:
            return "smaller" if self.index.by_index is LT else "larger"
        strict = self.index.compare in (GT, LT)
        return "first" if strict != self.index.keeps else "last"

    @property
    def pairs(self) -> bool:
        """Whether one condition decides both components, so that value and index belong
        together."""
        return self.value == self.index

    @property
    def skips_nan(self) -> bool:
        """Whether a NaN among the values never changes the result."""
        return self.pairs and not self.index.keeps

    def combine(self, old: Values, new: Values) -> Values:
        """The better of the pairs `old` and `new`, by the conditions of both components."""
        at = self.at
        value, index = (old[at], new[at]), (old[1 - at], new[1 - at])
        condition = self.index.holds(value, index)
        other = self.index.chosen(condition, *index)
        if self.value is None:
            best: Expr = (Max if self.name == "argmax" else Min)(*value)
        else:
            best = self.value.chosen(self.value.holds(value, index), *value)
        return (other, best) if at == 1 else (best, other)


def match_choice(values: Values, lhs: Values, at: int) -> tuple[Choice, Values] | None:
    """The argmin or argmax that two updates compute, and the new pair that they compare with the
    old pair; None for no match.

    Args:
        values: the values that the updates store in the two components.
        lhs: the loads of the old contents.
        at: the position of the value component.
    """
    values = _unmasked(values, lhs, at)
    picked = _pick(values[1 - at], lhs[1 - at])
    if picked is None:
        return None
    keeps, condition, index = picked
    found = _test(condition, keeps, lhs[at], (lhs[1 - at], index))
    if found is None:
        return None
    test, new = found
    value = values[at]
    if isinstance(value, (Max, Min)):
        wanted = Max if test.compare in (GT, GE) else Min
        if type(value) is not wanted or set(value.children) != {lhs[at], new}:
            return None
        second = None
    else:
        other = _pick(value, lhs[at])
        if other is None or other[2] is not new:
            return None
        same = _test(other[1], other[0], lhs[at], (lhs[1 - at], index))
        if same is None or same[1] is not new or _direction(same[0]) != _direction(test):
            return None
        second = same[0]
    return Choice(at, test, second), (index, new) if at == 1 else (new, index)


def match_extreme(value: Expr, load: Expr) -> tuple[Test, Expr] | None:
    """The comparison by which an update takes a better value, and never a NaN, and this value; None
    for other updates."""
    (value,) = _unmasked((value,), (load,), 0)
    picked = _pick(value, load)
    if picked is None or picked[0]:
        return None
    found = _test(picked[1], False, load, (load, load))
    return found if found is not None and found[1] is picked[2] else None


def _unmasked(values: Values, lhs: Values, at: int) -> Values:
    """Updates `if c and V > M`, as updates that compare with V where c holds, else with the worst
    value, which a strict comparison never takes; other updates as they are."""
    picked = [_pick(value, load) for value, load in zip(values, lhs, strict=True)]
    first = picked[at]
    if first is None or first[0] or any(p is None or p[:2] != first[:2] for p in picked):
        return values
    new, parts = first[2], conjuncts(first[1])
    tests = [p for p in parts if isinstance(p, (GT, LT)) and {p.a, p.b} == {new, lhs[at]}]
    if len(parts) < 2 or len(tests) != 1 or not (new.dtype.is_float or new.dtype.is_int):
        return values
    (test,) = tests
    larger = isinstance(test, GT) == (test.a is new)
    if new.dtype.is_float:
        worst = as_expr(-inf if larger else inf, new.dtype)
    else:
        worst = as_expr(new.dtype.range[0 if larger else 1], new.dtype)
    mask = reduce(logical_and, (p for p in parts if p is not test))
    masked = call("if_then_else", mask, new, worst)
    better = (GT if larger else LT)(masked, lhs[at])
    contents = (masked if p is not None and p[2] is new else p and p[2] for p in picked)
    return tuple(
        Select(better, as_expr(content), load)
        for content, load in zip(contents, lhs, strict=True)
        if content is not None
    )


def _direction(test: Test) -> bool:
    return test.compare in (GT, GE)


def _pick(value: Expr, load: Expr) -> tuple[bool, Expr, Expr] | None:
    """Split a choice between the old content `load` and a new content.

    Returns (whether the condition keeps the old content, the condition, the new content).
    """
    if isinstance(value, Select):
        condition, a, b = value.condition, value.a, value.b
    elif isinstance(value, Call) and value.op.name == "if_then_else":
        condition, a, b = value.args
    else:
        return None
    while isinstance(condition, Not):
        condition, a, b = condition.a, b, a
    if a is load:
        return True, condition, b
    return (False, condition, a) if b is load else None


def _test(
    condition: Expr, keeps: bool, load: Expr, indices: tuple[Expr, Expr]
) -> tuple[Test, Expr] | None:
    """A condition as a `Test`, and the new value that it compares with the old value.

    Args:
        load: the old value.
        indices: the old index and the new index.
    """
    for better, tie in _sides(condition, Or):
        if not isinstance(better, Compare) or load not in better.children:
            continue
        new = better.b if better.a is load else better.a
        winner = load if keeps else new
        kind = type(better) if better.a is winner else FLIPPED.get(type(better))
        if kind not in (GT, GE, LT, LE):
            continue
        assert kind is not None
        if tie is None:
            return Test(keeps, kind), new
        by_index = _tie(tie, (load, new), indices if keeps else indices[::-1])
        if by_index is not None and kind in (GT, LT):
            return Test(keeps, kind, by_index), new
    return None


def _tie(
    condition: Expr, values: tuple[Expr, Expr], indices: tuple[Expr, ...]
) -> type[Compare] | None:
    """The comparison of indices in a condition `values are equal and indices compare`; None for
    another condition."""
    for equal, order in _sides(condition, And):
        if not isinstance(equal, EQ) or {equal.a, equal.b} != set(values):
            continue
        if isinstance(order, Compare) and {order.a, order.b} == set(indices):
            kind = type(order) if order.a is indices[0] else FLIPPED.get(type(order))
            return kind if kind in (LT, GT) else None
    return None


def _sides(condition: Expr, kind: type[Or] | type[And]) -> list[tuple[Expr, Expr | None]]:
    """The two sides of an operator in both orders, or the whole condition."""
    if not isinstance(condition, kind):
        return [(condition, None)]
    return [(condition.a, condition.b), (condition.b, condition.a)]
