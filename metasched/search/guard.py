"""GuardedStrategy: calls a user's strategy; a failure gives a warning, and the search goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metasched.errors import warn
from metasched.foreign import ANYTHING, failure
from metasched.registry import complete
from metasched.schedule.schedule import Schedule
from metasched.search.baselines import RandomSearch
from metasched.search.population import SearchCandidate
from metasched.search.strategy import STRATEGIES, SearchTask, Strategy
from metasched.watch import called, is_built_in


class GuardedStrategy:
    """Calls a registered strategy and checks its proposals.

    If a strategy raises an error or returns no list of programs, a warning names it, and programs
    are drawn at random from then on. Measured programs enter the population whether or not the
    strategy enters them. Proposals that were seen before, or exceed the count, are left out.
    """

    def __init__(self, name: str, task: SearchTask) -> None:
        """Raises RegistryError for an unknown name, PluginError when no strategy can be made."""
        self.name, self.task = name, task
        factory = STRATEGIES.get(name)
        self.inner: Strategy = complete(
            f"the strategy {name}", lambda: factory(task), "propose", "learn"
        )
        self._patient = is_built_in(self.inner)  # a round of a built-in one may take long

    def propose(self, count: int) -> list[SearchCandidate]:
        """At most `count` programs not seen before."""
        try:
            with called(f"the strategy {self.name}", patient=self._patient):
                found = self.inner.propose(count)
            return self._unseen(found)[:count]
        except ANYTHING as error:
            self._replace(error)
            return self._unseen(self.inner.propose(count))[:count]

    def learn(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Let the strategy learn, and enter the programs that it has not entered."""
        population = self.task.population
        before = {id(candidate) for candidate, _ in population.measured}
        try:
            with called(f"the strategy {self.name}", patient=self._patient):
                self.inner.learn(candidates, seconds)
        except ANYTHING as error:
            self._replace(error)
        entered = {id(candidate) for candidate, _ in population.measured} - before
        for candidate, time in zip(candidates, seconds, strict=True):
            if id(candidate) not in entered:
                population.add([candidate], [time])

    def _unseen(self, found: Any) -> list[SearchCandidate]:
        whole = isinstance(found, Sequence) and all(
            isinstance(candidate, (SearchCandidate, Schedule)) for candidate in found
        )
        if not whole:
            raise TypeError(f"it must propose a list of candidates, not {type(found).__name__}")
        seen, once = self.task.population.seen, dict[str, SearchCandidate]()
        for given in found:
            candidate = given
            if isinstance(given, Schedule):  # a schedule made by hand
                candidate = self.task.factory.finished(given.trace)
            if candidate.key not in seen:
                once.setdefault(candidate.key, candidate)
        return list(once.values())

    def _replace(self, error: BaseException) -> None:
        """Draw at random from now on; raises the error if the strategy draws at random already."""
        if isinstance(self.inner, RandomSearch):
            raise error
        text = f"the strategy {self.name} raised {failure(error)}; programs are drawn at random"
        warn(text)
        self.inner, self._patient = RandomSearch(self.task), True
