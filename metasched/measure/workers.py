"""Worker processes of a LocalRunner: builders, one that runs candidates, one for references.

Each worker has at most one job and a function to call with its reply; `Workers.pump` waits for the
job that ends first. The workers of several runners in one process know each other: while one runner
times a kernel, it may stop the workers of the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from metasched.errors import MeasureError
from metasched.measure.process import Reply, Worker, wait

# The workers of all runners in this process: while one task is timed, the unscheduled programs of
# other tasks may still run.
_ALL: WeakSet[Workers] = WeakSet()
_PAUSING = threading.Lock()


class Workers:
    """The worker processes of one runner.

    Attributes:
        builders: compile candidates.
        runner: runs candidates.
        reference: runs programs in the background, mostly unscheduled programs.
        alone: the runner's kernels take every core: nothing may run while a kernel is timed.
        timing: whether a kernel is timed at present while nothing else runs.
    """

    def __init__(
        self, builders: list[Worker], runner: Worker, reference: Worker, *, jobs: str, alone: bool
    ) -> None:
        """`jobs`: the module whose functions are the workers' jobs."""
        self.builders, self.runner, self.reference = builders, runner, reference
        self.alone, self.timing, self._jobs = alone, False, jobs
        self._then: dict[Worker, Callable[[Reply], None]] = {}
        self._reminder: tuple[float, Callable[[], None]] | None = None
        _ALL.add(self)

    def submit(
        self, worker: Worker, then: Callable[[Reply], None], limit: float, job: str, *args: Any
    ) -> None:
        """Give an idle worker a job; `then` is called with its reply by a later `pump`."""
        self._then[worker] = then
        worker.submit(f"{self._jobs}:{job}", *args, limit=limit)

    def run(self, worker: Worker, limit: float, job: str, *args: Any) -> Reply:
        """Wait until a worker is idle, give it a job, and wait for the reply."""
        self.wait_idle(worker)
        return worker.run(f"{self._jobs}:{job}", *args, limit=limit)

    def remind(self, seconds: float, then: Callable[[], None]) -> None:
        """Let the first `pump` that lasts until then, or begins later, call `then`, once."""
        self._reminder = time.monotonic() + seconds, then

    def forget(self) -> None:
        """Call no function of `remind`."""
        self._reminder = None

    def pump(self) -> None:
        """Wait until a job ends (or something starts) and deliver the replies."""
        busy = [w for w in self._then if w.busy]
        if not busy:
            raise MeasureError("no worker has anything to do")
        # All replies are taken out first: the function of one may give another of these workers its
        # next job. An interrupt while one reply is delivered does not lose the others.
        with ExitStack() as replies:
            for worker, reply in reversed(wait(busy, self._until_reminder())):
                replies.callback(self._then.pop(worker), reply)
        if self._reminder is not None and self._until_reminder() == 0.0:
            _, then = self._reminder
            self.forget()
            then()

    def _until_reminder(self) -> float | None:
        return None if self._reminder is None else max(self._reminder[0] - time.monotonic(), 0.0)

    def wait_idle(self, *workers: Worker) -> None:
        """Wait until these workers have no job."""
        while any(worker.busy for worker in workers):
            self.pump()

    def pause(self, held: bool) -> None:
        """Stop all processes but the runner, or let them continue.

        A program may take 1.5 times as long beside a busy core. Kernels that leave cores free need
        no pause. When two runners time in threads at the same time, each stops only its own
        workers.
        """
        if not self.alone or held == self.timing:
            return
        with _PAUSING:
            self.timing, beside = held, [*self.builders, self.reference]
            others = [workers for workers in _ALL if workers is not self]
            if not held or not any(workers.timing for workers in others):
                beside += [
                    w for each in others for w in (*each.builders, each.runner, each.reference)
                ]
            for worker in beside:
                worker.pause(held)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Stop all processes but the runner while the `with` body runs: see `pause`."""
        self.pause(True)
        try:
            yield
        finally:
            self.pause(False)

    def drop(self, *workers: Worker) -> None:
        """End the jobs of these workers; their replies are not delivered."""
        for worker in workers:
            if worker.busy:
                self._then.pop(worker, None)
                worker.close(grace=0.0)

    def close(self) -> None:
        """End all workers."""
        self.pause(False)
        for worker in (*self.builders, self.runner, self.reference):
            worker.close()
