"""The workers of a runner: builders, the one that runs programs, and the one beside.

One thread, no locks: every worker has at most one job and a function to call with its reply;
`Crew.pump` waits for whichever ends first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from metasched.errors import MeasureError
from metasched.measure.process import Reply, Worker, wait


class Crew:
    """Workers, and who waits for their replies.

    Attributes:
        builders: compile candidates.
        runner: runs them.
        reference: runs what nobody waits for.
        alone: the runner's kernels take every core: nothing may run beside what is timed.
    """

    def __init__(
        self, builders: list[Worker], runner: Worker, reference: Worker, *, jobs: str, alone: bool
    ) -> None:
        """`jobs`: the module whose functions are the workers' jobs."""
        self.builders, self.runner, self.reference = builders, runner, reference
        self.alone, self._jobs = alone, jobs
        self._then: dict[Worker, Callable[[Reply], None]] = {}

    def submit(
        self, worker: Worker, then: Callable[[Reply], None], limit: float, job: str, *args: Any
    ) -> None:
        """Give an idle worker a job; `then` is called with its reply by a later `pump`."""
        self._then[worker] = then
        worker.submit(f"{self._jobs}:{job}", *args, limit=limit)

    def run(self, worker: Worker, limit: float, job: str, *args: Any) -> Reply:
        """Give a worker a job, once it is idle, and wait for the reply."""
        self.settle(worker)
        return worker.run(f"{self._jobs}:{job}", *args, limit=limit)

    def pump(self) -> None:
        """Wait until a job ends (or something starts) and deliver the replies."""
        busy = [w for w in self._then if w.busy]
        if not busy:
            raise MeasureError("no worker has anything to do")
        # All are taken out first: what one does may give another of these workers its next job. An
        # interrupt while one is delivered does not lose the others.
        with ExitStack() as replies:
            for worker, reply in reversed(wait(busy)):
                replies.callback(self._then.pop(worker), reply)

    def settle(self, *workers: Worker) -> None:
        """Wait until these are idle."""
        while any(worker.busy for worker in workers):
            self.pump()

    def pause(self, held: bool) -> None:
        """Hold what runs beside the runner, or let it go on: some programs take half again as long
        beside a busy core, others no longer. Kernels that leave cores free have no need of it."""
        if self.alone:
            for worker in (*self.builders, self.reference):
                worker.pause(held)

    def drop(self, *workers: Worker) -> None:
        """End what these are doing; nobody hears of it."""
        for worker in workers:
            if worker.busy:
                self._then.pop(worker, None)
                worker.close(grace=0.0)

    def close(self) -> None:
        """End all workers."""
        for worker in (*self.builders, self.runner, self.reference):
            worker.close()
