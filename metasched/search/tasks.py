"""Many tasks, one budget: which one gets the next round.

The gradient rule of Ansor (Zheng et al., 2020, section 6) and MetaSchedule: spend a round where the
weighted time is expected to fall most, judged by a task's recent gain and by what it could still
gain. Tasks that differ in numbers alone are similar: where one of them reaches a higher rate, the
others are expected to come near it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from metasched.ir.func import PrimFunc
from metasched.schedule.rng import Rng
from metasched.search.run import TaskRun


@dataclass
class GradientScheduler:
    """Chooses among live tasks.

    Attributes:
        runs: the tasks.
        weights: how often each function is called in the program they come from.
        alpha: trust in the recent slope against the outlook.
        beta: a similar task's rate, divided by this, can surely be reached.
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
        # A task that goes on from an earlier run has had its first round, and the later ones.
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
        """Expected fall of the weighted time, in seconds a round; 0 where nothing ran yet."""
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
        """What a call would take at the best rate of the similar tasks over beta."""
        rates = [
            other.flops / self.history[n][-1]
            for n, other in enumerate(self.runs)
            if n != task and self._kinds[n] == self._kinds[task] and self.history[n]
        ]
        fastest = max(rates, default=0.0)
        return self.beta * self.runs[task].flops / fastest if fastest else math.inf


def structure(func: PrimFunc) -> str:
    """The script of a function without its numbers: equal for operators of different sizes."""
    return re.sub(r"\b\d+\b", "#", func.script())


def tune_all(
    runs: Sequence[TaskRun],
    weights: Sequence[float],
    *,
    round_size: int,
    total: int | None = None,
    deadline: float | None = None,
    seed: int = 0,
) -> str:
    """Run rounds until every task has ended, `total` trials are spent or the deadline passes.

    Args:
        deadline: a value of time.perf_counter().

    Returns why it ended: "budget", "time" or "interrupted" (Ctrl-C, with everything stored).
    """
    scheduler = GradientScheduler(runs, weights, seed, round_size=round_size)
    before = sum(run.progress.trials for run in runs)
    reason = "budget"
    try:
        while True:
            spent = sum(run.progress.trials for run in runs) - before
            left = math.inf if total is None else total - spent
            task = scheduler.next()
            if task is None or left <= 0:
                break
            if deadline is not None and time.perf_counter() >= deadline:
                reason = "time"
                break
            runs[task].step(int(min(round_size, left)))
            scheduler.ended(task)
    except KeyboardInterrupt:
        reason = "interrupted"
    for run in runs:
        run.finish(reason)
    return reason
