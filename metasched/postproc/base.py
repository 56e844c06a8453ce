"""Postprocs: steps after the decisions of a candidate; the rows of `kinds` hold their order.

A postproc changes the schedule through the public primitives only, after `enter_postproc`, so the
trace that ships contains what it did and replays without it. It rejects by raising ScheduleError,
whose reason is the slug under which search counts the loss.
"""

from __future__ import annotations

from collections.abc import Iterable

from metasched.errors import ScheduleError
from metasched.schedule.plugin import Postproc
from metasched.schedule.schedule import Schedule
from metasched.target import Target


def run_postprocs(sch: Schedule, target: Target, postprocs: Iterable[Postproc]) -> None:
    """Mark the trace and run the postprocs; ScheduleError when one rejects the candidate."""
    sch.enter_postproc()
    for postproc in postprocs:
        postproc(sch, target)


def rejection(postproc: str, reason: str, message: str, node: object = None) -> ScheduleError:
    """The error of a postproc that rejects a candidate."""
    return ScheduleError(postproc, reason, message, block_or_loop=node)
