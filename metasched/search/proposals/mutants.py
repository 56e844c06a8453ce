"""Mutants: mutations and crossings of the fastest measured programs and of the model's best."""

from __future__ import annotations

from collections.abc import Iterator

from metasched.mutate.base import mutate
from metasched.mutate.crossover import crossover
from metasched.schedule.rng import derive_seed
from metasched.schedule.trace import Trace
from metasched.search.population import Request, SearchCandidate
from metasched.search.proposals.source import SearchState, Unreserved

_TRIES = 4  # further mutations if a child was replayed before


class Mutants(Unreserved):
    """Proposes one generation of children, which may be parents in later generations."""

    name = "mutants"

    def requests(self, state: SearchState, count: int) -> Iterator[Request]:
        """`count` children, the parents drawn by their rank."""
        breeding = state.options.parents
        parents = [p for p in state.task.population.parents(breeding) if p.space >= 0]
        parents += [
            candidate for candidate, _ in state.ranked(list(state.pool.values()))[:breeding]
        ]
        if not parents:
            return
        weights = [1.0 / (1 + rank % breeding) for rank in range(len(parents))]
        for slot in range(count):
            parent = parents[state.rng.weighted(weights)]
            trace = _child(state, parent, parents)
            for _ in range(_TRIES):
                if trace is None or not state.replayed(Request(trace, parent.space)):
                    break
                trace = _child(state, parent, parents)
            if trace is not None:
                seed = derive_seed(state.task.seed, state.round, state.generation, slot)
                yield Request(trace, parent.space, seed)


def _child(
    state: SearchState, parent: SearchCandidate, parents: list[SearchCandidate]
) -> Trace | None:
    """One to three mutations of a parent, or its crossing with another program of its space."""
    factory, rng = state.task.factory, state.rng
    if rng.random() < state.options.crossing:
        mates = [p for p in parents if p.space == parent.space and p is not parent]
        if mates:
            return crossover(parent.trace, rng.choice(mates).trace, rng)
    trace: Trace | None = None
    for _ in range(1 + rng.below(3)):
        before = trace or parent.trace
        trace = mutate(before, factory.generator.mutators, rng, factory.target) or trace
    return trace
