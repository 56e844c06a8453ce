"""tune_all: rounds for many tasks with one budget, until every task has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from metasched.search.run import TaskRun
from metasched.search.scheduler import GuardedScheduler, Tasks


def tune_all(
    runs: Sequence[TaskRun],
    weights: Sequence[float],
    *,
    round_size: int,
    total: int | None = None,
    deadline: float | None = None,
    seed: int = 0,
    scheduler: str = "gradient",
) -> None:
    """Run rounds until every task has ended, `total` trials are spent or the deadline passes.

    Args:
        deadline: a value of time.perf_counter().
        scheduler: name of the task scheduler.

    Each run knows then why it ended: "budget", "time", "interrupted" (Ctrl-C, with everything
    stored) or a reason of its own.
    """
    chooser = GuardedScheduler(scheduler, Tasks(runs, weights, seed, round_size))
    before = sum(run.progress.trials for run in runs)
    reason = "budget"
    try:
        while True:
            spent = sum(run.progress.trials for run in runs) - before
            left = math.inf if total is None else total - spent
            task = chooser.next()
            if task is None or left <= 0:
                break
            if deadline is not None and time.perf_counter() >= deadline:
                reason = "time"
                break
            runs[task].step(int(min(round_size, left)))
            chooser.ended(task)
    except KeyboardInterrupt:
        reason = "interrupted"
    for run in runs:
        run.finish(reason)
