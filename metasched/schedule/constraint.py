"""Solves a `require`: finds other decisions for the sampling steps that it mentions.

The search computes on numbers and replays nothing. The decisions of the latest mentioned step are
enumerated, so that a constraint on one decision is certain to be solved. If no decision satisfies
the constraint, steps that constraints link to this step are drawn again. Each attempt draws more
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metasched.ir.expr import Expr
from metasched.schedule import domain as domains
from metasched.schedule.instruction import Entry, handles_in
from metasched.schedule.numbers import number_of
from metasched.schedule.rng import Rng

ENUMERATED = 4096  # decisions of one step to try at most
REDRAWN = 64  # redraws of earlier steps before a constraint counts as unsatisfiable


def solve(
    entries: Sequence[Entry], condition: Expr, values: Mapping[Any, Any], rng: Rng
) -> dict[int, Any] | None:
    """New decisions, by position, under which the condition and those before it hold.

    Args:
        entries: the steps so far.
        values: the present number of each sampled value.

    Returns only decisions that change; None if no solution was found.
    """
    mentioned = frozenset(handles_in(condition))
    conditions = [(condition, mentioned)] + [
        (e.values[0], frozenset(handles_in(e.values))) for e in entries if e.kind.name == "require"
    ]
    steps = [i for i, e in enumerate(entries) if e.kind.sampling]
    direct = [i for i in steps if not mentioned.isdisjoint(entries[i].outputs)]
    if not direct:
        return None
    latest = direct[-1]
    linked = _linked(entries, mentioned, conditions)
    others = [i for i in steps if i != latest and not linked.isdisjoint(entries[i].outputs)]
    for attempt in range(REDRAWN if others else 1):
        redrawn = _subset(others, attempt, rng)
        changed = _redraw(entries, [*redrawn, latest], conditions, dict(values), rng)
        if changed is not None:
            return changed
    return None


def _linked(
    entries: Sequence[Entry],
    mentioned: frozenset[Any],
    conditions: Sequence[tuple[Expr, frozenset[Any]]],
) -> frozenset[Any]:
    """The sampled values that constraints link to `mentioned`, directly or indirectly."""
    siblings = [frozenset(e.outputs) for e in entries if e.kind.sampling]
    linked, before = mentioned, frozenset[Any]()
    while linked != before:
        before = linked
        for uses in (*siblings, *(u for _, u in conditions)):
            if not uses.isdisjoint(linked):
                linked |= uses
    return linked


def _subset(others: Sequence[int], attempt: int, rng: Rng) -> list[int]:
    """The other steps to draw again: none at first, then one, and more with later attempts."""
    count = min(len(others), attempt and 1 + attempt * len(others) // REDRAWN)
    return [others[i] for i in rng.sample(len(others), count)]


def _redraw(
    entries: Sequence[Entry],
    steps: Sequence[int],
    conditions: Sequence[tuple[Expr, frozenset[Any]]],
    table: dict[Any, Any],
    rng: Rng,
) -> dict[int, Any] | None:
    """Draw `steps` in order, each under the conditions whose other values are known by then.

    None if no decision of a step satisfies its conditions.
    """
    changed: dict[int, Any] = {}
    undrawn = {rv for step in steps for rv in entries[step].outputs}
    for step in steps:
        entry = entries[step]
        undrawn.difference_update(entry.outputs)
        active = [
            c
            for c, uses in conditions
            if uses.isdisjoint(undrawn) and not uses.isdisjoint(entry.outputs)
        ]
        decision = _take(entry, table, active, rng)
        if decision is None:
            return None
        changed[step] = decision
    return changed


def _take(entry: Entry, table: dict[Any, Any], conditions: Sequence[Expr], rng: Rng) -> Any:
    """Draw a decision of one step that satisfies the conditions and enter it in `table`; None if
    there is none."""

    def holds(decision: Any) -> bool:
        numbers = domains.values(entry.domain, decision)
        table.update(zip(entry.outputs, numbers, strict=True))
        return all(number_of(c, table) for c in conditions)

    every = domains.enumerated(entry.domain, ENUMERATED) if conditions else None
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
