"""Drafting: thousands of decision vectors drawn, filtered and ranked in NumPy, none replayed.

A design space is a table: one column for each sampled number, one row for each candidate. Domains
are enumerated once and drawn by index, and constraints are evaluated on whole columns. A regression
on the logarithms of the numbers, fitted to the cost model's scores of replayed programs, orders the
rows. Only the first rows are replayed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from metasched.ir import expr as e
from metasched.ir.expr import Expr, FloatImm, IntImm
from metasched.schedule import domain as domains
from metasched.schedule.instruction import Entry
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace

Array: TypeAlias = "np.ndarray[Any, Any]"
# The most decisions of a step in its list; of a larger domain, this many are drawn at random.
ENUMERATED = 30_000
# Most decision vectors of a space that is listed as a whole; a larger space is sampled.
WHOLE = 1 << 20

_UFUNCS: dict[type[Expr], Callable[..., Any]] = {
    e.Add: np.add, e.Sub: np.subtract, e.Mul: np.multiply, e.FloorDiv: np.floor_divide,
    e.FloorMod: np.mod, e.Min: np.minimum, e.Max: np.maximum, e.EQ: np.equal, e.NE: np.not_equal,
    e.LT: np.less, e.LE: np.less_equal, e.GT: np.greater, e.GE: np.greater_equal,
    e.And: np.logical_and, e.Or: np.logical_or, e.Not: np.logical_not,
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Drafted candidates of one space.

    Attributes:
        picks: for each row and sampling step the index into the step's list of decisions.
        numbers: the sampled numbers themselves, one column each.
    """

    picks: Array
    numbers: Array

    def __len__(self) -> int:
        return len(self.picks)


class Draft:
    """One design space as a table, made from any of its traces with known domains."""

    def __init__(self, trace: Trace, seed: int) -> None:
        self.trace = trace
        self.steps = trace.sampling()
        rng = Rng(seed)
        self.lists = [_listed(entry, rng) for _, entry in self.steps]
        self.tables = [
            np.array([domains.values(entry.domain, d) for d in decisions], dtype=np.int64)
            for (_, entry), decisions in zip(self.steps, self.lists, strict=True)
        ]
        self.columns: dict[Any, int] = {}
        start = 0
        for (_, entry), table in zip(self.steps, self.tables, strict=True):
            outputs = entry.outputs if table.shape[1] == len(entry.outputs) else ()
            self.columns.update({rv: start + n for n, rv in enumerate(outputs)})
            start += table.shape[1]
        self.conditions = [x.values[0] for x in trace.entries if x.kind.name == "require"]

    @property
    def size(self) -> int:
        """The number of decision vectors, including vectors that break constraints."""
        return math.prod(len(decisions) for decisions in self.lists)

    def draw(self, count: int, rng: np.random.Generator, whole: int = WHOLE) -> Rows:
        """Distinct rows that keep every constraint: at most `count` random rows, or all rows of a
        space of at most `whole` decision vectors."""
        if not self.steps:
            return Rows(np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64))
        if self.size <= whole:
            return self._every
        picks, left = np.zeros((count, 0), np.int64), self.conditions
        for table in self.tables:
            picks = np.column_stack([picks, rng.integers(0, len(table), len(picks))])
            good, left = self._allowed(self._numbers(picks), left)
            if not good.all():  # replace rows that break constraints by copies of good rows
                rows = np.flatnonzero(good)
                picks = picks[rng.choice(rows, count)] if len(rows) else picks[:0]
        picks = np.unique(picks, axis=0)
        return Rows(picks, self._numbers(picks))

    @cached_property
    def _every(self) -> Rows:
        """All rows that keep every constraint, in their natural order.

        A constraint is evaluated as soon as its numbers are known; rows that break it end there.
        """
        picks, left = np.zeros((1, 0), np.int64), self.conditions
        for table in self.tables:
            own = np.tile(np.arange(len(table)), len(picks))
            picks = np.column_stack([np.repeat(picks, len(table), axis=0), own])
            good, left = self._allowed(self._numbers(picks), left)
            picks = picks[good]
        return Rows(picks, self._numbers(picks))

    def row_of(self, trace: Trace) -> Array | None:
        """The numbers of a trace of this space; None for a trace with other steps."""
        found: list[int] = []
        steps = trace.sampling()
        if len(steps) != len(self.steps):
            return None
        for _, entry in steps:
            found += domains.values(entry.domain, entry.decision)
        return np.array(found) if len(found) == sum(t.shape[1] for t in self.tables) else None

    def decoded(self, rows: Rows, position: int) -> Trace:
        """The trace with the decisions of one row."""
        trace = self.trace
        entries = list(trace.entries)
        for (place, entry), decisions, pick in zip(
            self.steps, self.lists, rows.picks[position], strict=True
        ):
            entries[place] = entry.decided(decisions[int(pick)], entry.domain)
        return Trace(tuple(entries))

    def _numbers(self, picks: Array) -> Array:
        """The sampled numbers for picks of all steps, or of the first steps."""
        count = picks.shape[1]
        return np.concatenate([t[picks[:, n]] for n, t in enumerate(self.tables[:count])], axis=1)

    def _allowed(self, numbers: Array, conditions: Sequence[Expr]) -> tuple[Array, list[Expr]]:
        """Which rows keep the conditions, and the conditions that need numbers not known yet."""
        good, left = np.ones(len(numbers), dtype=bool), []
        for condition in conditions:
            value = self._evaluate(condition, numbers)
            if value is None:
                left.append(condition)
            else:
                good &= np.broadcast_to(np.asarray(value, dtype=bool), good.shape)
        return good, left

    def _evaluate(self, expr: Expr, numbers: Array) -> Any:
        """The values of an expression over whole columns; None if a part is not a column."""
        if isinstance(expr, (IntImm, FloatImm)):
            return expr.value
        column = self.columns.get(expr)
        if column is not None:
            return numbers[:, column] if column < numbers.shape[1] else None
        rule = _UFUNCS.get(type(expr))
        parts = [self._evaluate(child, numbers) for child in expr.children]
        if rule is None or any(p is None for p in parts):
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            return rule(*parts)


def _listed(entry: Entry, rng: Rng) -> Sequence[Any]:
    """All decisions of a step; of a domain too large to list, many random decisions."""
    every = domains.enumerated(entry.domain, ENUMERATED)
    return every or [domains.draw(entry.domain, rng) for _ in range(2048)]
