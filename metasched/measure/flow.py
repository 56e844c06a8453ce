"""Flows: the way of each candidate through builders and runner, written as one generator.

A flow yields the steps that it needs, receives the reply to each step, and returns its result.
`Flows` drives any number of flows. It gives builds to idle builders in order. It gives the runner
to one flow at a time, which keeps the runner until the flow ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from metasched.measure.process import Reply
from metasched.measure.workers import Workers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A function of the jobs' module with its arguments and a limit in seconds."""

    limit: float
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Build:
    """Do a job in an idle builder."""

    job: Job


@dataclass(frozen=True, slots=True)
class TakeRunner:
    """Wait for the runner, and keep it until the flow ends; the reply is empty."""


@dataclass(frozen=True, slots=True)
class Run:
    """Do a job in the runner while builders work."""

    job: Job


@dataclass(frozen=True, slots=True)
class Alone:
    """Do a job in the runner while nothing else runs."""

    job: Job


Step: TypeAlias = "Build | TakeRunner | Run | Alone"
Flow: TypeAlias = Generator[Step, Reply, T]
_NOTHING = Reply("value")


class Flows(Generic[T]):
    """Flows that share the workers of a runner.

    Attributes:
        results: the results of the flows that have ended, by the numbers of the flows.
    """

    def __init__(
        self,
        workers: Workers,
        flows: Iterable[Flow[T]],
        ready: Callable[[], bool],
        ended: Callable[[int, T], None],
    ) -> None:
        """Nothing starts before `run`.

        Args:
            workers: the workers that do the jobs.
            flows: the flows, numbered in this order.
            ready: tells whether a flow may get the runner.
            ended: called with each result, after the next flow has got the runner.
        """
        self._workers, self._ready, self._ended = workers, ready, ended
        self._flows = list(flows)
        self._new = deque(range(len(self._flows)))
        self._builds = deque[tuple[int, Job]]()
        self._waiting = deque[int]()  # flows that wait for the runner
        self._holder: int | None = None  # the flow that has the runner
        self.results: dict[int, T] = {}

    def run(self) -> list[T]:
        """Drive all flows to their ends; the results in order."""
        self._feed()
        while len(self.results) < len(self._flows):
            self._workers.pump()
            self._feed()
        return [self.results[number] for number in range(len(self._flows))]

    def _feed(self) -> None:
        """Give every idle worker its next job."""
        for builder in self._workers.builders:
            while not builder.busy and (self._builds or self._new):
                if not self._builds:
                    self._resume(self._new.popleft(), None)
                    continue
                number, job = self._builds.popleft()
                self._submit(builder, number, job)
        free = self._holder is None and not self._workers.runner.busy
        if self._waiting and free and self._ready():
            self._holder = self._waiting.popleft()
            self._resume(self._holder, _NOTHING)

    def _resume(self, number: int, reply: Reply | None) -> None:
        """Send a flow its reply (None starts the flow), and begin the step that it yields next."""
        flow = self._flows[number]
        try:
            step = next(flow) if reply is None else flow.send(reply)
        except StopIteration as end:
            self._end(number, end.value)
            return
        if isinstance(step, Build):
            self._builds.append((number, step.job))
        elif isinstance(step, TakeRunner):
            self._waiting.append(number)
        else:
            self._workers.pause(isinstance(step, Alone))
            self._submit(self._workers.runner, number, step.job)

    def _submit(self, worker: Any, number: int, job: Job) -> None:
        def then(reply: Reply) -> None:
            if worker is self._workers.runner:
                self._workers.pause(False)
            self._resume(number, reply)

        self._workers.submit(worker, then, job.limit, job.name, *job.arguments)

    def _end(self, number: int, result: T) -> None:
        self.results[number] = result
        if self._holder == number:  # the next flow runs while this result is stored
            self._holder = None
            self._feed()
        self._ended(number, result)
