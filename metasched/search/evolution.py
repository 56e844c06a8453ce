"""Evolutionary search guided by a cost model, in small rounds.

A round replays at most `REPLAYS` traces exactly: fresh samples of the spaces, mutants and crossings
of the fastest programs measured and of those the model likes. The model ranks what survives; the
best are measured, with a share of random ones among them so that the model meets the unexpected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from metasched.mutate.crossover import crossover
from metasched.schedule.rng import Rng, derive_seed
from metasched.schedule.trace import Trace
from metasched.search.population import Individual
from metasched.search.strategy import STRATEGIES, SearchTask


@dataclass(frozen=True, slots=True)
class EvolutionOptions:
    """Sizes and shares of a round.

    Attributes:
        replays: exact replays in a round at most.
        first: fresh samples in the first round.
        generations: mutation rounds within a round, each from the best so far.
        fresh: share of later rounds spent on fresh samples.
        crossing: share of children that cross two parents of one space.
        epsilon: share of measured candidates taken at random.
        parents: how many measured programs breed.
    """

    replays: int = 224
    first: int = 192
    generations: int = 3
    fresh: float = 0.25
    crossing: float = 0.15
    epsilon: float = 0.1
    parents: int = 12


class EvolutionarySearch:
    """See the module's docstring."""

    def __init__(self, task: SearchTask, options: EvolutionOptions | None = None) -> None:
        self.task, self.options = task, options or EvolutionOptions()
        self.round = 0

    def propose(self, count: int) -> list[Individual]:
        """The programs of the next round, the most promising first."""
        rng = Rng(derive_seed(self.task.seed, "round", self.round))
        pool: dict[str, Individual] = {}
        learnt = bool(self.task.population.measured)
        fresh = self.options.first if not learnt else int(self.options.replays * self.options.fresh)
        self._enter(pool, self._fresh(fresh))
        if learnt:
            share = (self.options.replays - fresh) // self.options.generations
            for generation in range(self.options.generations):
                self._enter(pool, self._children(pool, share, generation, rng))
        self.round += 1
        return self._pick(pool, count, rng)

    def learn(self, individuals: Sequence[Individual], seconds: Sequence[float]) -> None:
        """Remember the outcomes and train the model on them."""
        self.task.population.add(individuals, seconds)
        self.task.model.update(self.task.name, [one.vector for one in individuals], seconds)

    def _enter(self, pool: dict[str, Individual], found: Iterator[Individual | None]) -> None:
        for one in found:
            if one is not None and one.key not in self.task.population.seen:
                pool.setdefault(one.key, one)

    def _fresh(self, count: int) -> Iterator[Individual | None]:
        """Random members, the spaces in turn."""
        spaces = len(self.task.workshop.spaces)
        for slot in range(count):
            seed = derive_seed(self.task.seed, self.round, "fresh", slot)
            yield self.task.workshop.fresh(slot % spaces, seed)

    def _children(
        self, pool: dict[str, Individual], count: int, generation: int, rng: Rng
    ) -> Iterator[Individual | None]:
        """Mutants and crossings of the fastest measured and the best predicted programs."""
        parents = [p for p in self.task.population.parents(self.options.parents) if p.space >= 0]
        ranked = self._ranked(list(pool.values()))[: self.options.parents]
        parents = parents + [one for one, _ in ranked]
        if not parents:
            return
        weights = [1.0 / (1 + rank % self.options.parents) for rank in range(len(parents))]
        for slot in range(count):
            parent = parents[rng.weighted(weights)]
            trace = self._vary(parent, parents, rng)
            if trace is not None:
                seed = derive_seed(self.task.seed, self.round, generation, slot)
                yield self.task.workshop.replay(trace, parent.space, seed)

    def _vary(self, parent: Individual, parents: list[Individual], rng: Rng) -> Trace | None:
        """One to three mutations of a parent, or its crossing with another of its space."""
        mutators = self.task.workshop.generator.mutators
        if rng.random() < self.options.crossing:
            mates = [p for p in parents if p.space == parent.space and p is not parent]
            if mates:
                return crossover(parent.trace, rng.choice(mates).trace, rng)
        trace: Trace | None = None
        for _ in range(1 + rng.below(3)):
            mutator = mutators[rng.weighted([w for _, w in mutators])][0]
            changed = mutator(trace or parent.trace, rng, self.task.workshop.target)
            trace = changed or trace
        return trace

    def _ranked(self, individuals: list[Individual]) -> list[tuple[Individual, float]]:
        """Individuals with the model's scores, the best first; ties keep their order."""
        if not individuals:
            return []
        scores = self.task.model.predict(np.stack([one.vector for one in individuals]))
        order = np.argsort(-np.asarray(scores), kind="stable")
        return [(individuals[i], float(scores[i])) for i in order]

    def _pick(self, pool: dict[str, Individual], count: int, rng: Rng) -> list[Individual]:
        """The best of the pool by the model, a share of it at random."""
        ranked = [one for one, _ in self._ranked(list(pool.values()))]
        bold = min(round(count * self.options.epsilon), max(0, len(ranked) - count))
        chosen = ranked[: count - bold]
        rest = ranked[count - bold :]
        return chosen + [rest[i] for i in rng.sample(len(rest), bold)]


STRATEGIES.register("evolutionary", EvolutionarySearch)
