"""The protocol of search strategies: propose programs to measure, learn from their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from metasched.cost.model import CostModel
from metasched.registry import Registry
from metasched.schedule.schedule import Schedule
from metasched.search.population import CandidateFactory, Population, SearchCandidate


@dataclass
class SearchTask:
    """The task that a strategy searches, with its candidates and its model.

    Attributes:
        name: key of the workload, for the model.
        factory: makes candidates.
        population: the candidates measured in this run and in earlier runs.
        model: ranks candidates.
        seed: every random choice derives from the seed, the round and the slot.
    """

    name: str
    factory: CandidateFactory
    population: Population
    model: CostModel
    seed: int


class Strategy(Protocol):
    """Proposes candidates in rounds; the same seed and outcomes give the same proposals."""

    def propose(self, count: int) -> Sequence[SearchCandidate | Schedule]:
        """Propose at most `count` new programs; none when the space is exhausted.

        A schedule that was made by hand needs no design space; no postproc is run on it.
        """
        ...

    def learn(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Learn from a measured round; infinity means a failure."""
        ...


STRATEGIES: Registry[Callable[[SearchTask], Strategy]] = Registry("strategy", Callable)
"""Factories that take the task, by name."""

Factory = TypeVar("Factory", bound="Callable[[SearchTask], Strategy]")


def strategy(name: str, *, override: bool = False) -> Callable[[Factory], Factory]:
    """Register a search strategy: a class or function `(task) -> Strategy`.

    Args:
        name: what `ms.tune(strategy=...)` and `metasched tune --strategy` call it.
        override: replace a strategy of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(task) -> Strategy"
    return cast(
        "Callable[[Factory], Factory]", STRATEGIES.decorator(name, signature, None, override)
    )
