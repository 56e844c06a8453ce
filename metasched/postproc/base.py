"""Postprocs: steps after the decisions of a candidate, an ordered table for each target.

A postproc changes the schedule through the public primitives only, after `enter_postproc`, so the
trace that ships contains what it did and replays without it. It rejects by raising ScheduleError,
whose reason is the slug under which search counts the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from metasched.errors import ScheduleError, TargetError
from metasched.registry import Registry
from metasched.schedule.schedule import Schedule
from metasched.target import Target


class Postproc(Protocol):
    """A named step `(schedule, target)`; raises ScheduleError to reject.

    One with an attribute `tries` that is False takes no step in order to see whether it is refused;
    where the steps of a candidate are not proved to be legal, its steps are not either.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, sch: Schedule, target: Target) -> None: ...


POSTPROCS: Registry[Callable[[Target], tuple[Postproc, ...]]] = Registry("postprocs")
"""The table of each target kind: a function of the target."""


def default_postprocs(target: Target) -> tuple[Postproc, ...]:
    """The postprocs of a target in their order; TargetError when it has none."""
    if target.kind not in POSTPROCS:
        raise TargetError(f"there are no postprocs for targets of kind {target.kind!r}")
    return POSTPROCS.get(target.kind)(target)


def run_postprocs(sch: Schedule, target: Target, postprocs: Iterable[Postproc]) -> None:
    """Mark the trace and run the postprocs; ScheduleError when one rejects the candidate."""
    sch.enter_postproc()
    for postproc in postprocs:
        postproc(sch, target)


def rejection(postproc: str, reason: str, message: str, node: object = None) -> ScheduleError:
    """The error of a postproc that rejects a candidate."""
    return ScheduleError(postproc, reason, message, block_or_loop=node)
