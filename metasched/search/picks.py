"""Rules that pick candidates to measure besides the model's ranking and the sources' shares.

The model ranks programs well if they resemble measured programs; these rules keep a share of the
round for other programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from metasched.search.population import SearchCandidate
from metasched.search.proposals.source import Decisions, SearchState, changes


def least_measured_spaces(
    state: SearchState, ranked: Sequence[SearchCandidate], count: int
) -> list[SearchCandidate]:
    """The best programs of the spaces with fewer than `EvolutionOptions.fair` measured programs.

    The times of the first programs of a space do not predict the time of its best.
    """
    measured = Counter(candidate.space for candidate, _ in state.task.population.measured)
    members: dict[int, list[SearchCandidate]] = {}
    for candidate in ranked:
        if measured[candidate.space] < state.options.fair:
            members.setdefault(candidate.space, []).append(candidate)
    spaces = sorted(members, key=measured.__getitem__)
    each = max(1, count // max(1, len(spaces)))
    return [candidate for space in spaces for candidate in members[space][:each]][:count]


def best_apart(ranked: Sequence[SearchCandidate], count: int) -> list[SearchCandidate]:
    """Move `count` programs, no two of which differ by a single decision, to the head of a ranking.

    A program that differs from the best by one decision is about as fast, and teaches the model
    little.
    """
    heads: dict[SearchCandidate, Decisions] = {}
    for candidate in ranked:
        if len(heads) == count:
            break
        own = candidate.trace.decisions()
        near = (other for head, other in heads.items() if head.space == candidate.space)
        if all(len(changes(own, other)) > 1 for other in near):
            heads[candidate] = own
    return list(dict.fromkeys([*heads, *ranked]))


def exploratory(
    state: SearchState,
    chosen: Sequence[SearchCandidate],
    rest: Sequence[SearchCandidate],
    count: int,
) -> list[SearchCandidate]:
    """Pick `count` further programs: the best of each innermost tile not measured yet, then any.

    A model that was trained on few tiles ranks only these tiles well.
    """
    seen = {_block(p) for p in (*chosen, *(p for p, _ in state.task.population.measured))}
    unseen: dict[tuple[Any, ...], SearchCandidate] = {}
    for candidate in rest:
        if (block := _block(candidate)) not in seen:
            unseen.setdefault(block, candidate)
    new = list(unseen.values())[:count]
    left = [candidate for candidate in rest if candidate not in new]
    return [*new, *(left[i] for i in state.rng.sample(len(left), count - len(new)))]


def _block(candidate: SearchCandidate) -> tuple[Any, ...]:
    """The decisions that matter most for speed: the innermost tile of each loop, and choices."""
    decisions = candidate.trace.decisions()
    return candidate.space, *(d[-1] if isinstance(d, tuple) else d for d in decisions)
