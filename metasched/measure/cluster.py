"""Build and measure on other machines, through any `concurrent.futures.Executor`.

The executor (a process pool, dask's `client.get_executor()`, mpi4py.futures, ray's pool adapters)
only transports calls. Each remote process has a LocalRunner for each task and workers that compile,
with the same isolation, limits and checks as on this machine. A remote machine must be able to run
code for the target. Plug-in files that declare a device or an instruction are sent with the calls.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from metasched.errors import MeasureError, words
from metasched.ir.func import IRModule, PrimFunc
from metasched.measure.candidate import (
    Builder,
    Built,
    Candidate,
    OnOutcome,
    Outcome,
    builder,
    runner,
    single_function,
)
from metasched.measure.jobs import built_of
from metasched.measure.local import LocalRunner, needed_plugins
from metasched.measure.pickled import dump
from metasched.measure.process import Worker
from metasched.measure.settings import MeasureOptions
from metasched.registry import load_sources, plugin_sources
from metasched.target import Target

KEPT = 4  # a remote process keeps the runners of this many tasks, which take turns
_JOBS = "metasched.measure.jobs"
_Known = Sequence[tuple[Candidate, float]]
_Sources = Sequence[tuple[str, bytes]]
_RUNNERS: dict[bytes, LocalRunner] = {}  # in order of last use
_ONE_AT_A_TIME = threading.Lock()  # an executor's processes may call from several threads
_LOADING = threading.Lock()
_Idle = tuple[tuple[str, ...], Worker]  # a builder of this process, and its plug-in files
_IDLE: queue.SimpleQueue[_Idle] = queue.SimpleQueue()


class ExecutorBuilder:
    """Compiles programs through an executor; there, each call uses a worker process of its own."""

    def __init__(
        self, executor: Executor, options: MeasureOptions | None = None, *, owned: bool = False
    ) -> None:
        """Nothing is submitted yet.

        Args:
            executor: runs the calls.
            options: limits; `build_workers` is the number of builds at the same time.
            owned: whether `close` shuts the executor down.
        """
        self._executor, self._owned = executor, owned
        self._options = options or MeasureOptions.of()

    def submit(self, func: PrimFunc, target: Target) -> Future[Built]:
        """See `Builder.submit`."""
        limit = self._options.build_timeout
        return self._executor.submit(build_remotely, _sources(), dump((func, target)), limit)

    def close(self) -> None:
        """End the workers that a remote process keeps, if a call still reaches the process."""
        _end(self._executor, end_builders, self._owned)


class ExecutorRunner:
    """Measures candidates through an executor, `chunk` candidates a call.

    An ExecutorRunner has the abilities of a LocalRunner. Outcomes return when the expected results
    are confirmed in the remote process, so this process never holds outcomes back.

    Attributes:
        options: limits and repetitions.
    """

    def __init__(
        self,
        executor: Executor,
        func: PrimFunc,
        target: Target | str | None = None,
        options: MeasureOptions | None = None,
        default_schedule: PrimFunc | None = None,
        *,
        chunk: int = 1,
        builder: Builder | None = None,
        owned: bool = False,
    ) -> None:
        """Nothing is submitted yet.

        Args:
            executor: runs the calls.
            func, target, options, default_schedule: as for LocalRunner.
            chunk: candidates a call; larger chunks hide the latency of the network.
            builder: compiles the candidates on other machines; the caller closes it. None compiles
                on the machine that measures.
            owned: whether `close` shuts the executor down.
        """
        self.options = options or MeasureOptions.of()
        self._executor, self._builder, self._owned = executor, builder, owned
        self._chunk = max(1, chunk)
        self._target, self._func = Target.of(target), func
        self._task = dump((func, self._target, self.options, default_schedule))
        self._known: _Known = ()

    @property
    def reference_confirmed(self) -> bool:
        """True: see the class."""
        return True

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`. Raises MeasureError when the executor itself fails."""
        found: dict[int, Outcome] = {}
        builds = self._builds(candidates)
        waiting = deque(range(0, len(candidates), self._chunk))  # chunks that wait for builds
        runs: dict[Future[list[Outcome]], int] = {}
        with _failures():
            try:
                while waiting or runs:
                    pending = self._begin_runs(candidates, waiting, builds, runs)
                    awaited: list[Future[Any]] = [*runs, *pending]
                    ended = wait(awaited, return_when=FIRST_COMPLETED).done
                    for future in [run for run in runs if run in ended]:
                        for number, outcome in enumerate(future.result(), runs.pop(future)):
                            found[number] = outcome
                            if on_outcome is not None:
                                on_outcome(candidates[number], outcome)
            finally:
                begun: list[Future[Any]] = [*builds.values(), *runs]
                for each in begun:
                    each.cancel()
        return [found[n] for n in range(len(candidates))]

    def _begin_runs(
        self, candidates: Sequence[Candidate], waiting: deque[int],
        builds: dict[str, Future[Built]], runs: dict[Future[list[Outcome]], int],
    ) -> list[Future[Built]]:  # fmt: skip
        """Submit the chunks whose builds have ended; the builds that the next chunk waits for."""
        while waiting:
            chunk = candidates[waiting[0] : waiting[0] + self._chunk]
            mine = {c.key: builds[c.key] for c in chunk if c.key in builds}
            pending = [build for build in mine.values() if not build.done()]
            if pending:
                return pending
            built = {key: build.result() for key, build in mine.items()}
            runs[self._call(measure_chunk, list(chunk), built)] = waiting.popleft()
        return []

    def recall(self, known: _Known) -> None:
        """See `LocalRunner.recall`; a remote process gets the candidates with its runner."""
        self._known = list(known)

    def machine(self) -> str:
        """See `NamesMachine.machine`: the machine of the process that answers."""
        found: str = self._ask("machine")
        return found

    def read_again(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """See `LocalRunner.read_again`, for candidates that the answering process has measured."""
        found: dict[str, float] = self._ask("read_again", list(candidates))
        return found

    def interleave(
        self, candidates: Sequence[Candidate | IRModule], rounds: int = 10, fresh: bool = False
    ) -> list[tuple[float, ...]]:
        """See `LocalRunner.interleave`; all candidates are timed in one remote process."""
        found: list[tuple[float, ...]] = self._ask("interleave", list(candidates), rounds, fresh)
        return found

    def verify(self, candidate: Candidate | IRModule) -> Outcome:
        """See `LocalRunner.verify`."""
        found: Outcome = self._ask("verify", candidate)
        return found

    def unscheduled(self) -> Outcome:
        """See `LocalRunner.unscheduled`."""
        found: Outcome = self._ask("unscheduled")
        return found

    def close(self) -> None:
        """End the runners that a remote process keeps, if a call still reaches the process."""
        _end(self._executor, end_runners, self._owned)

    def _builds(self, candidates: Sequence[Candidate]) -> dict[str, Future[Built]]:
        """Begin to build candidates; the builds by their keys, none without a builder."""
        if self._builder is None:
            return {}
        return {
            c.key: self._builder.submit(single_function(c.module), self._target) for c in candidates
        }

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        given = dump(self._known), dump(arguments)
        return self._executor.submit(function, _sources(), self._task, *given)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of a remote runner and wait for its result."""
        with _failures():
            return self._call(functools.partial(call_runner, method), *arguments).result()


def _sources() -> _Sources:
    """The plug-in files that remote processes need, with their contents."""
    return plugin_sources() if needed_plugins() else ()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn the errors of an executor into MeasureError."""
    try:
        yield
    except (BrokenProcessPool, OSError) as error:
        raise MeasureError(f"the executor failed: {words(error)}") from error


def _end(executor: Executor, function: Callable[[], None], owned: bool) -> None:
    with contextlib.suppress(RuntimeError, OSError):  # shut down or broken: its processes ended
        executor.submit(function).result()
    if owned:
        executor.shutdown()


# -- in the remote process -------------------------------------------------------------------------


def measure_chunk(sources: _Sources, task: bytes, known: bytes, given: bytes) -> list[Outcome]:
    """Measure candidates with the runner of this task.

    Returns when the expected results are confirmed.
    """
    _load(sources)
    candidates, built = pickle.loads(given)
    with _ONE_AT_A_TIME:
        runner = _runner(task, known)
        outcomes = runner.measure_built(candidates, built)
        if not runner.reference_confirmed:
            runner.unscheduled()
    return outcomes


def call_runner(method: str, sources: _Sources, task: bytes, known: bytes, given: bytes) -> Any:
    """Call a method of the runner kept for this task."""
    _load(sources)
    with _ONE_AT_A_TIME:
        return getattr(_runner(task, known), method)(*pickle.loads(given))


def build_remotely(sources: _Sources, given: bytes, limit: float) -> Built:
    """Compile in a worker process, which is kept for the next build."""
    _load(sources)
    plugins = needed_plugins()
    worker = _idle_builder(plugins) or Worker("remote builder", preload=_JOBS, plugins=plugins)
    try:
        return built_of(worker.run(f"{_JOBS}:build", *pickle.loads(given), limit=limit))
    finally:
        _IDLE.put((plugins, worker))


def _idle_builder(plugins: Sequence[str]) -> Worker | None:
    """A kept worker that has loaded these plug-in files; workers with other files are ended."""
    while not _IDLE.empty():
        with contextlib.suppress(queue.Empty):
            loaded, worker = _IDLE.get_nowait()
            if loaded == plugins:
                return worker
            worker.close()
    return None


def _load(sources: _Sources) -> None:
    with _LOADING:
        load_sources(sources)


def _runner(task: bytes, known: bytes) -> LocalRunner:
    """The runner of a task; the runners of the last KEPT tasks stay open."""
    runner = _RUNNERS.pop(task, None)
    if runner is None:
        runner = LocalRunner(*pickle.loads(task))
        runner.recall(pickle.loads(known))
    _RUNNERS[task] = runner
    while len(_RUNNERS) > KEPT:
        _RUNNERS.pop(next(iter(_RUNNERS))).close()
    return runner


def end_runners() -> None:
    """Close the runners kept."""
    while _RUNNERS:
        _RUNNERS.popitem()[1].close()


def end_builders() -> None:
    """End the builders kept."""
    while not _IDLE.empty():
        _IDLE.get_nowait()[1].close()


# -- by name ---------------------------------------------------------------------------------------


@builder("process")
def builder_in_processes() -> ExecutorBuilder:
    """Builds in a process pool of this machine: an example of a use of executors."""
    options = MeasureOptions.of()
    return ExecutorBuilder(_pool(options.build_workers), options, owned=True)


@runner("process")
def runner_in_a_process(
    func: PrimFunc, target: Target, builder: Builder | None = None
) -> ExecutorRunner:
    """Measures in one process of a pool of this machine: an example of a use of executors."""
    options = MeasureOptions.of(cores=target.num_cores)
    return ExecutorRunner(_pool(1), func, target, options, builder=builder, owned=True)


def _pool(processes: int) -> Executor:
    return ProcessPoolExecutor(processes, get_context("spawn"))
