"""Which programs of a round are measured: rules beside the model's ranking and the sources' shares.

The model ranks what it has seen programs like; these rules keep a share for what it has not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from metasched.search.population import Individual
from metasched.search.proposals.source import Decisions, SearchState, changes


def least_measured_spaces(
    state: SearchState, ranked: Sequence[Individual], count: int
) -> list[Individual]:
    """The best of each space of which fewer than `EvolutionOptions.fair` programs were measured:
    the first members of a space say little of its best."""
    met = Counter(one.space for one, _ in state.task.population.measured)
    found = dict.fromkeys(one.space for one in ranked if met[one.space] < state.options.fair)
    spaces = sorted(found, key=met.__getitem__)
    each = max(1, count // max(1, len(spaces)))
    return [one for n in spaces for one in [p for p in ranked if p.space == n][:each]][:count]


def best_apart(ranked: Sequence[Individual], count: int) -> list[Individual]:
    """A ranking headed by its first `count` programs of which no two are a single decision apart.

    What the model cannot tell from its best is almost as good, and teaches almost nothing.
    """
    heads: dict[Individual, Decisions] = {}
    for one in ranked:
        if len(heads) == count:
            break
        own = one.trace.decisions()
        near = (other for head, other in heads.items() if head.space == one.space)
        if all(len(changes(own, other)) > 1 for other in near):
            heads[one] = own
    return list(dict.fromkeys([*heads, *ranked]))


def exploratory(
    state: SearchState, chosen: Sequence[Individual], rest: Sequence[Individual], count: int
) -> list[Individual]:
    """`count` of the rest whatever the model says: the best of each block that was not met, then
    any. A model that saw few blocks is sure of those it saw, and wrong about the others."""
    seen = {_block(p) for p in (*chosen, *(p for p, _ in state.task.population.measured))}
    fresh = {block: one for one in reversed(rest) if (block := _block(one)) not in seen}
    new = [one for one in rest if fresh.get(_block(one)) is one][:count]
    left = [one for one in rest if one not in new]
    return [*new, *(left[i] for i in state.rng.sample(len(left), count - len(new)))]


def _block(one: Individual) -> tuple[Any, ...]:
    """What matters most of a program: the innermost tile of each loop, and what was chosen."""
    decisions = one.trace.decisions()
    return one.space, *(d[-1] if isinstance(d, tuple) else d for d in decisions)
