"""Simulated annealing on the cost model: chains walk by mutations and cool from round to round.

Each chain starts at a fast measured program (or a random one) and accepts a step by Metropolis'
rule on the model's scores. The programs that the chains met are ranked, and the best new programs
are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metasched.cost.model import predicted, teach
from metasched.mutate.base import mutate
from metasched.schedule.rng import Rng, derive_seed
from metasched.search.population import Request, SearchCandidate
from metasched.search.strategy import SearchTask, strategy


@dataclass(frozen=True, slots=True)
class AnnealingOptions:
    """Sizes of a round and the cooling.

    Attributes:
        chains: walks in parallel.
        steps: steps of each walk in a round; chains * steps exact replays.
        temperature: the temperature of the first round, in standard deviations of the scores.
        cooling: the factor of the temperature from round to round.
    """

    chains: int = 16
    steps: int = 10
    temperature: float = 1.0
    cooling: float = 0.8


@strategy("annealing")
class SimulatedAnnealing:
    """A search strategy: simulated annealing on the model's scores (see the module's docstring)."""

    def __init__(self, task: SearchTask, options: AnnealingOptions | None = None) -> None:
        self.task, self.options = task, options or AnnealingOptions()
        self.round = 0

    def propose(self, count: int) -> list[SearchCandidate]:
        """The best new programs that the walks of this round have met."""
        rng = Rng(derive_seed(self.task.seed, "annealing", self.round))
        chains = self._starts(rng)
        met: dict[str, SearchCandidate] = {candidate.key: candidate for candidate in chains}
        temperature = self.options.temperature * self.options.cooling**self.round
        for _ in range(self.options.steps):
            chains = self._walk(chains, temperature, rng, met)
        self.round += 1
        unseen = [
            candidate
            for candidate in met.values()
            if candidate.key not in self.task.population.seen
        ]
        scores = self._scores(unseen)
        order = np.argsort(-scores, kind="stable")[:count]
        return [unseen[int(i)] for i in order]

    def learn(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Remember the outcomes and train the model on them."""
        self.task.population.add(candidates, seconds)
        teach(self.task.model, self.task.name, candidates, seconds)

    def _starts(self, rng: Rng) -> list[SearchCandidate]:
        """Half the chains start at the fastest measured programs, the others at random programs."""
        factory, wanted = self.task.factory, self.options.chains
        known = [p for p in self.task.population.parents(wanted // 2) if p.space >= 0]
        starts, tries = list(known), 0
        while len(starts) < wanted and tries < 4 * wanted:
            tries += 1
            candidate = factory.random_member(rng.below(len(factory.spaces)), rng.fork())
            if candidate is not None:
                starts.append(candidate)
        return starts

    def _walk(
        self,
        chains: list[SearchCandidate],
        temperature: float,
        rng: Rng,
        met: dict[str, SearchCandidate],
    ) -> list[SearchCandidate]:
        if not chains:  # no sample of any space survives
            return []
        factory = self.task.factory
        mutators, target = factory.generator.mutators, factory.target
        traces = [mutate(candidate.trace, mutators, rng, target) for candidate in chains]
        requests = [
            Request(candidate.trace if trace is None else trace, candidate.space, rng.fork())
            for candidate, trace in zip(chains, traces, strict=True)
        ]
        made = factory.replay_many(requests)
        steps = [new or candidate for candidate, new in zip(chains, made, strict=True)]
        met.update((candidate.key, candidate) for candidate in steps if candidate.key not in met)
        scores = self._scores([*chains, *steps])
        scale = float(scores.std()) * max(temperature, 1e-9) or 1.0
        old, new = scores[: len(chains)], scores[len(chains) :]
        accepted = [
            b > a or rng.random() < math.exp(max(-50.0, float(b - a) / scale))
            for a, b in zip(old, new, strict=True)
        ]
        return [s if ok else c for c, s, ok in zip(chains, steps, accepted, strict=True)]

    def _scores(self, candidates: Sequence[SearchCandidate]) -> np.ndarray:
        return predicted(self.task.model, candidates)
