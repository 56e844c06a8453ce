"""Task schedulers: which of the tasks of a run gets the next round.

A task scheduler is a class or function of `Tasks` under `@task_scheduler(name)`. If a task
scheduler fails, a warning names it, and the gradient rule replaces it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from metasched.errors import warn
from metasched.foreign import ANYTHING, failure
from metasched.ir.func import PrimFunc
from metasched.registry import Registry, complete
from metasched.schedule.rng import Rng
from metasched.search.run import TaskRun
from metasched.watch import called


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a run, from which a task scheduler is made.

    Attributes:
        runs: the tasks; a task scheduler may read `name`, `func`, `flops`, `best_seconds` (infinite
            before a program was right), `done` and `progress.trials` of each.
        weights: how often each function is called in the program that the tasks come from.
        seed: the seed of every random choice.
        round_size: trials of a round.
    """

    runs: Sequence[TaskRun]
    weights: Sequence[float]
    seed: int = 0
    round_size: int = 16


class TaskScheduler(Protocol):
    """Chooses the task of the next round."""

    def next(self) -> int | None:
        """The position of a task that is not done; None ends the run."""
        ...

    def ended(self, task: int) -> None:
        """A round of a task has been measured, and the model has learnt from it."""
        ...


TASK_SCHEDULERS: Registry[Callable[[Tasks], TaskScheduler]] = Registry("task scheduler", Callable)
"""Factories that take the tasks, by name."""

Factory = TypeVar("Factory", bound="Callable[[Tasks], TaskScheduler]")


def task_scheduler(name: str, *, override: bool = False) -> Callable[[Factory], Factory]:
    """Register a task scheduler: a class or function `(tasks) -> TaskScheduler`.

    Args:
        name: what `ms.tune_tasks(scheduler=...)` and `metasched tune --scheduler` call it.
        override: replace a task scheduler of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(tasks) -> TaskScheduler"
    return cast(
        "Callable[[Factory], Factory]", TASK_SCHEDULERS.decorator(name, signature, None, override)
    )


@task_scheduler("round-robin")
class RoundRobin:
    """Gives each task that is not done one round in turn."""

    def __init__(self, tasks: Tasks) -> None:
        self.runs = tasks.runs
        self._last = -1

    def next(self) -> int | None:
        """The first task after the last task that is not done."""
        count = len(self.runs)
        order = ((self._last + 1 + n) % count for n in range(count))
        return next((n for n in order if not self.runs[n].done), None)

    def ended(self, task: int) -> None:
        """Remember the task whose round ended."""
        self._last = task


@dataclass
class GradientScheduler:
    """Gives the next round to the task whose weighted time is expected to fall most.

    The rule of Ansor (Zheng et al., 2020, section 6) and MetaSchedule: a task is judged by its
    recent gain and by the gain that it may still reach. Tasks that differ only in numbers are
    similar: when one of them reaches a higher rate, the others are expected to come near this rate.

    Attributes:
        runs: the tasks.
        weights: how often each function is called in the program that the tasks come from.
        alpha: weight of the recent slope, against the weight 1 - alpha of the possible gain.
        beta: a task is expected to reach the rate of a similar task divided by beta.
        window: rounds over which the slope is taken.
        round_size: trials of a round, to count the rounds of earlier runs.
    """

    runs: Sequence[TaskRun]
    weights: Sequence[float]
    seed: int = 0
    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    round_size: int = 16
    history: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A task that continues an earlier run has had these rounds already.
        self._earlier = [-(-run.progress.trials // self.round_size) for run in self.runs]
        self.history = [
            [run.best_seconds] if rounds else []
            for run, rounds in zip(self.runs, self._earlier, strict=True)
        ]
        self._kinds = [structure(run.func) for run in self.runs]
        self._rng = Rng(self.seed)

    def next(self) -> int | None:
        """The task for the next round: each once, then by expected gain; None when all ended."""
        live = [n for n, run in enumerate(self.runs) if not run.done]
        if not live:
            return None
        for n in live:
            if not self.history[n]:
                return n
        scores = [self._gain(n) for n in live]
        top = max(scores)
        return self._rng.choice([n for n, s in zip(live, scores, strict=True) if s == top])

    def ended(self, task: int) -> None:
        """Note what a round of a task has reached."""
        self.history[task].append(self.runs[task].best_seconds)

    def _gain(self, task: int) -> float:
        """Expected fall of the weighted time, in seconds a round; 0 before the first round."""
        past = self.history[task]
        if past[-1] == math.inf:
            return math.inf  # nothing right yet: its whole time may be gained
        slope = 0.0
        if len(past) > self.window and past[-1 - self.window] < math.inf:
            slope = (past[-1 - self.window] - past[-1]) / self.window
        outlook = past[-1] / max(len(past) + self._earlier[task] - 1, 1)
        outlook = max(outlook, past[-1] - self._seconds_at_similar_rate(task))
        return self.weights[task] * (self.alpha * slope + (1 - self.alpha) * outlook)

    def _seconds_at_similar_rate(self, task: int) -> float:
        """The seconds of a call at the best rate of the similar tasks, divided by beta."""
        rates = [
            other.flops / self.history[n][-1]
            for n, other in enumerate(self.runs)
            if n != task and self._kinds[n] == self._kinds[task] and self.history[n]
        ]
        fastest = max(rates, default=0.0)
        return self.beta * self.runs[task].flops / fastest if fastest else math.inf


@task_scheduler("gradient")
def _gradient(tasks: Tasks) -> GradientScheduler:
    return GradientScheduler(tasks.runs, tasks.weights, tasks.seed, round_size=tasks.round_size)


class GuardedScheduler:
    """Calls a registered task scheduler and checks its choices.

    If a task scheduler raises an error, or chooses a task that is done, a warning names it. From
    then on the gradient rule chooses.
    """

    def __init__(self, name: str, tasks: Tasks) -> None:
        """Raises RegistryError for an unknown name, PluginError when it cannot be constructed."""
        self._what, self.tasks = f"the task scheduler {name}", tasks
        factory = TASK_SCHEDULERS.get(name)
        self.inner: TaskScheduler = complete(self._what, lambda: factory(tasks), "next", "ended")

    def next(self) -> int | None:
        """The task of the next round; None when the run ends."""
        try:
            with called(self._what):
                task = self.inner.next()
            return self._checked(task)
        except ANYTHING as error:
            self._replace(error)
            return self.inner.next()

    def ended(self, task: int) -> None:
        """Tell the task scheduler that a round has ended."""
        try:
            with called(self._what):
                self.inner.ended(task)
        except ANYTHING as error:
            self._replace(error)  # the gradient rule reads the times of the tasks itself

    def _checked(self, task: Any) -> int | None:
        runs = self.tasks.runs
        if task is None:
            return None
        if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < len(runs):
            raise TypeError(f"it must choose a position from 0 to {len(runs) - 1}, not {task!r}")
        if runs[task].done:
            raise ValueError(f"it chose the task {runs[task].name!r}, which is done")
        return task

    def _replace(self, error: BaseException) -> None:
        """Use the gradient rule; raises the error if the gradient rule was used already."""
        if isinstance(self.inner, GradientScheduler):
            raise error
        text = f"{self._what} raised {failure(error)}; the gradient rule goes on"
        warn(text)
        self.inner = _gradient(self.tasks)


def structure(func: PrimFunc) -> str:
    """The script of a function without its numbers: equal for operators of different sizes."""
    return re.sub(r"\b\d+\b", "#", func.script())
