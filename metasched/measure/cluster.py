"""Measuring on other machines: the local runner behind any `concurrent.futures.Executor`.

The executor (a process pool, dask's `client.get_executor()`, mpi4py.futures, ray's pool adapters)
only carries calls; isolation, limits and checks are those of the LocalRunner that each remote
process keeps for the task. The remote machine must be of the same target.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool

from metasched.errors import MeasureError
from metasched.ir.func import PrimFunc
from metasched.measure.candidate import Candidate, OnOutcome, Outcome
from metasched.measure.local import LocalRunner
from metasched.measure.process import dump
from metasched.measure.settings import MeasureOptions
from metasched.target import Target

KEPT = 4  # tasks whose runners a remote process keeps: one round each, in turns, needs all of them
_RUNNERS: dict[bytes, LocalRunner] = {}  # the one used last is the last


class ExecutorRunner:
    """Measures candidates through an executor, `chunk` of them a call."""

    def __init__(
        self,
        executor: Executor,
        func: PrimFunc,
        target: Target | str | None = None,
        options: MeasureOptions | None = None,
        *,
        chunk: int = 1,
    ) -> None:
        """Nothing is submitted yet.

        Args:
            executor: where the calls go; it stays the caller's to shut down.
            func, target, options: as for LocalRunner.
            chunk: candidates a call; more hide the latency of the network.
        """
        self._executor = executor
        self._chunk = max(1, chunk)
        self._task = dump((func, Target.of(target), options or MeasureOptions.of()))

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`. Raises MeasureError when the executor itself fails."""
        found: dict[int, Outcome] = {}
        futures: dict[Future[list[Outcome]], int] = {}
        for start in range(0, len(candidates), self._chunk):
            chunk = candidates[start : start + self._chunk]
            part = dump(list(chunk))
            futures[self._executor.submit(measure_chunk, self._task, part)] = start
        try:
            for future in as_completed(futures):
                for number, outcome in enumerate(future.result(), futures[future]):
                    found[number] = outcome
                    if on_outcome is not None:
                        on_outcome(candidates[number], outcome)
        except (BrokenProcessPool, OSError) as error:
            raise MeasureError(f"the executor failed: {error}") from error
        finally:
            for future in futures:
                future.cancel()
        return [found[n] for n in range(len(candidates))]

    def close(self) -> None:
        """End the runners that remote processes keep, as far as calls still reach them."""
        self._executor.submit(end_runners).result()


def measure_chunk(task: bytes, candidates: bytes) -> list[Outcome]:
    """In the remote process: measure with the runner kept for this task; those of the tasks that
    were measured last are kept too."""
    runner = _RUNNERS.pop(task, None)
    if runner is None:
        func, target, options = pickle.loads(task)
        runner = LocalRunner(func, target, options)
    _RUNNERS[task] = runner
    while len(_RUNNERS) > KEPT:
        _RUNNERS.pop(next(iter(_RUNNERS))).close()
    return runner.measure(pickle.loads(candidates))


def end_runners() -> None:
    """In the remote process: close the runners kept."""
    while _RUNNERS:
        _RUNNERS.popitem()[1].close()
