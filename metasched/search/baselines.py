"""Strategies that learn nothing: random members of the spaces, the yardstick of all others."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.schedule.rng import derive_seed
from metasched.search.population import Individual
from metasched.search.strategy import SearchTask, strategy

MAX_FAILURES = 100  # replays in a row without a new program before a space counts as exhausted


@strategy("random")
class RandomSearch:
    """Each candidate is a random design space with fresh decisions (MetaSchedule's ReplayTrace)."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self._drawn = 0

    def propose(self, count: int) -> list[Individual]:
        """New random programs."""
        task, failures = self.task, 0
        found: list[Individual] = []
        keys = set(task.population.seen)
        while len(found) < count and failures < MAX_FAILURES:
            seed = derive_seed(task.seed, "replay-trace", self._drawn)
            self._drawn += 1
            one = task.workshop.fresh(self._drawn % len(task.workshop.spaces), seed)
            if one is None or one.key in keys:
                failures += 1
                continue
            failures = 0
            keys.add(one.key)
            found.append(one)
        return found

    def learn(self, individuals: Sequence[Individual], seconds: Sequence[float]) -> None:
        """Remember what was measured."""
        self.task.population.add(individuals, seconds)
