"""What takes part in making candidates: the types of a postproc and of a mutator."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.target import Target


class Postproc(Protocol):
    """A named step `(schedule, target)` after the decisions; raises ScheduleError to reject.

    The reason of the error is the slug under which the search counts the rejection. A postproc
    with an attribute `tries` that is False takes no step in order to see whether it is refused;
    where the steps of a candidate are not proved to be legal, its steps are not either.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, sch: Schedule, target: Target) -> None: ...


class Mutator(Protocol):
    """A named change of a trace's decisions; None where it finds nothing to change."""

    @property
    def name(self) -> str: ...

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None: ...


Weighted: TypeAlias = "tuple[tuple[Mutator, float], ...]"
"""Mutators with the weights by which one is drawn."""
