"""Solving a `require`: other decisions for the sampling steps it mentions, found on numbers alone.

Nothing is replayed while looking. The latest step mentioned is enumerated, so a constraint on one
decision is never a matter of luck; when no decision of it will do, earlier ones are drawn again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metasched.ir.expr import Expr
from metasched.schedule import domain as domains
from metasched.schedule.instruction import Entry, handles_in
from metasched.schedule.numbers import number_of
from metasched.schedule.rng import Rng

ENUMERATED = 4096  # decisions of one step that are listed
REDRAWN = 64  # draws of earlier steps before a constraint counts as unsatisfiable


def solve(
    entries: Sequence[Entry], condition: Expr, values: Mapping[Any, Any], rng: Rng
) -> dict[int, Any] | None:
    """New decisions, by position, under which the condition and those before it hold.

    Args:
        entries: the steps so far.
        values: what each sampled value is now.

    Returns None when none were found; only steps whose decision changes are listed.
    """
    mentioned = set(handles_in(condition))
    steps = [
        i for i, e in enumerate(entries) if e.kind.sampling and not mentioned.isdisjoint(e.outputs)
    ]
    if not steps:
        return None
    conditions = [(condition, frozenset(mentioned))] + [
        (e.values[0], frozenset(handles_in(e.values))) for e in entries if e.kind.name == "require"
    ]
    latest = steps[-1]
    for attempt in range(REDRAWN if len(steps) > 1 else 1):
        table, changed = dict(values), {}
        if attempt:
            earlier = steps[(attempt - 1) % (len(steps) - 1)]
            changed[earlier] = _take(entries[earlier], table, (), rng)
        decision = _take(entries[latest], table, conditions, rng)
        if decision is None:
            continue
        changed[latest] = decision
        touched = {rv for step in changed for rv in entries[step].outputs}
        if all(number_of(c, table) for c, uses in conditions if not uses.isdisjoint(touched)):
            return changed
    return None


def _take(
    entry: Entry,
    table: dict[Any, Any],
    conditions: Iterable[tuple[Expr, frozenset[Any]]],
    rng: Rng,
) -> Any:
    """Enter a decision of one step that keeps the conditions on it; None when there is none."""
    mine = [c for c, uses in conditions if not uses.isdisjoint(entry.outputs)]

    def holds(decision: Any) -> bool:
        numbers = domains.values(entry.domain, decision)
        table.update(zip(entry.outputs, numbers, strict=True))
        return all(number_of(c, table) for c in mine)

    every = domains.enumerated(entry.domain, ENUMERATED) if mine else None
    if every is not None:
        good = [d for d in every if holds(d)]
        if not good:
            return None
        decision = rng.choice(good)
        holds(decision)
        return decision
    for _ in range(ENUMERATED):
        decision = domains.draw(entry.domain, rng)
        if holds(decision):
            return decision
    return None
