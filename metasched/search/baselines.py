"""Random search: draws members of the design spaces and learns nothing; a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.schedule.rng import derive_seed
from metasched.search.population import SearchCandidate
from metasched.search.strategy import SearchTask, strategy

MAX_FAILURES = 100  # replays in a row without a new program before a space counts as exhausted


@strategy("random")
class RandomSearch:
    """Draws each candidate from a random design space (MetaSchedule's ReplayTrace)."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self._drawn = 0

    def propose(self, count: int) -> list[SearchCandidate]:
        """New random programs."""
        task, failures = self.task, 0
        found: list[SearchCandidate] = []
        keys = set(task.population.seen)
        while len(found) < count and failures < MAX_FAILURES:
            seed = derive_seed(task.seed, "replay-trace", self._drawn)
            self._drawn += 1
            candidate = task.factory.random_member(self._drawn % len(task.factory.spaces), seed)
            if candidate is None or candidate.key in keys:
                failures += 1
                continue
            failures = 0
            keys.add(candidate.key)
            found.append(candidate)
        return found

    def learn(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Remember what was measured."""
        self.task.population.add(candidates, seconds)
