"""The types of the plug-ins that make candidates: postprocs and mutators."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.target import Target


class Postproc(Protocol):
    """A named step `(schedule, target)` after all decisions; raises ScheduleError to reject.

    The search counts rejections by the slug of the error. The attribute `tries = False` promises
    that the postproc never takes a step only to test whether the step is refused. Its steps then
    skip legality checks if the other steps of the candidate skip them.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, sch: Schedule, target: Target) -> None: ...


class Mutator(Protocol):
    """A named change of a trace's decisions; returns None if there is nothing to change."""

    @property
    def name(self) -> str: ...

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None: ...


Weighted: TypeAlias = "tuple[tuple[Mutator, float], ...]"
"""Mutators with their weights in a random choice."""
