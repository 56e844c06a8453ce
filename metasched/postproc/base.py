"""Postprocs: steps after the decisions of a candidate; the rows of `kinds` hold their order.

A postproc changes the schedule only through public primitives, after the step `enter_postproc`. So
a trace contains the steps of the postprocs, and replays without calling them. A postproc rejects a
candidate by raising ScheduleError; the search counts rejections by the error's reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metasched.errors import ScheduleError
from metasched.registry import Registry
from metasched.schedule.plugin import Postproc
from metasched.schedule.schedule import Schedule
from metasched.target import ON_CPUS, ForTargets, Target, kinds_of
from metasched.watch import called, is_built_in

PostprocFn: TypeAlias = "Callable[[Schedule, Target], None]"


@dataclass(frozen=True, slots=True)
class UserPostproc(ForTargets):
    """A function `(schedule, target) -> None` as a postproc."""

    def __call__(self, sch: Schedule, target: Target) -> None:
        found: None = self.fn(sch, target)
        return found  # `run_postproc` checks the result


POSTPROCS: Registry[UserPostproc] = Registry("postproc", UserPostproc)


def postproc(
    name: str, targets: Sequence[str] = ON_CPUS, *, override: bool = False
) -> Callable[[PostprocFn], UserPostproc]:
    """Register a function as a postproc, which is run after the built-in ones.

    Args:
        name: its unique name, dotted by custom: `my.limit`.
        targets: the target kinds whose default space it joins.
        override: replace a postproc of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """

    def made(fn: PostprocFn) -> UserPostproc:
        return UserPostproc(name, kinds_of(targets), fn)

    return POSTPROCS.decorator(name, "(sch, target) -> None", made, override)


def run_postprocs(sch: Schedule, target: Target, postprocs: Iterable[Postproc]) -> None:
    """Mark the trace by `enter_postproc` and run the postprocs.

    Raises ScheduleError when a postproc rejects the candidate.
    """
    sch.enter_postproc()
    for each in postprocs:
        run_postproc(each, sch, target)


def run_postproc(postproc: Postproc, sch: Schedule, target: Target) -> None:
    """Run one postproc; TypeError when it returns a value: only an error rejects a candidate."""
    if is_built_in(postproc):
        postproc(sch, target)
        return
    name = getattr(postproc, "name", type(postproc).__name__)
    with called(f"postproc {name}", postproc, stop=True):
        found: object = postproc(sch, target)  # type: ignore[func-returns-value]
    if found is not None:
        kind = type(found).__name__
        raise TypeError(f"it must return None, not {kind}; ScheduleError rejects a candidate")


def rejection(postproc: str, reason: str, message: str, node: object = None) -> ScheduleError:
    """The error of a postproc that rejects a candidate."""
    return ScheduleError(postproc, reason, message, block_or_loop=node)
