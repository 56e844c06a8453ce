"""The local runner: builders work ahead, and are held while the runner times what it has checked.

One thread, no locks: every worker has at most one job and a function to call with its reply;
`_pump` waits for whichever ends first.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

from metasched.analysis.flops import flops
from metasched.codegen.compile import Compiled
from metasched.errors import MeasureError, StandInError
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.measure.candidate import Candidate, OnOutcome, Outcome, Status, single_function
from metasched.measure.data import Task, inexact_reason
from metasched.measure.jobs import Baseline, outcome_of, shared_size
from metasched.measure.priority import (
    FIRST,
    LAST,
    beside_timing,
    takes_every_core,
    team_environment,
)
from metasched.measure.process import Reply, Worker, wait
from metasched.measure.samples import BEHIND, TimingPlan
from metasched.measure.settings import MeasureOptions
from metasched.runtime.timing import beside_each_other
from metasched.target import Target

_JOBS = "metasched.measure.jobs:"
_LONG = 5e8  # operations of a program that is not waited for: see `LocalRunner`
_SLOW_BASELINE = 0.2  # seconds of it from which its run on normal data is started ahead of need
_BEHIND = 5  # nice levels of what nobody waits for while candidates are being chosen
# Candidates after which a new process times the next ones, with other pages for its arrays: in some
# the programs that differ by a quarter in all others run alike, and nothing is to be learnt there.
_PROCESS = 64
_KEPT = 64  # programs that need not be built again when the best are compared at the end
# Times faster that a program must be to become the anchor, and for about how many seconds the two
# take turns then.
_HANDOVER, _TURNS_TAKE = 1.25, 0.12


class LocalRunner:
    """Measures candidates of one workload on this machine, each in other processes.

    Expected results are computed once, by the unscheduled program compiled serially, while the
    first candidates are being built already. Where that takes seconds and results must be equal
    bit for bit, the default schedule stands in for it: candidates are compared with its results,
    until those of the unscheduled program, run beside the search, are there and must equal them.
    Then the stand-in gives the results on normal data as well. Closing ends all workers, and so
    does forgetting the runner or killing its process.
    """

    def __init__(
        self,
        func: PrimFunc,
        target: Target | str | None = None,
        options: MeasureOptions | None = None,
        stand_in: PrimFunc | None = None,
    ) -> None:
        """Start the workers and the unscheduled program; returns at once.

        Args:
            func: the workload, unscheduled.
            target: what candidates are compiled for; must be able to run here.
            options: limits and repetitions.
            stand_in: a quick schedule of it, whose results candidates may be compared with first.

        Raises MeasureError when code for the target cannot run on this machine.
        """
        self.func = func
        self.target = Target.of(target)
        reason = Target.native().supports(self.target)
        if reason is not None:
            raise MeasureError(f"candidates for {self.target.key} cannot run here: {reason}")
        self.options = options or MeasureOptions.of(cores=self.target.num_cores)
        self.best = 0.0
        self.anchor: tuple[Compiled, float] | None = None  # see `TimingPlan`
        self._baseline: Outcome | None = None
        self._written: Baseline | None = None  # what the unscheduled program gave,
        self._quick: Baseline | None = None  # and what stands in for it
        self._tasks: dict[bool, Task] = {}  # by whether the data are normally distributed
        self._kept: dict[str, tuple[float, Compiled]] = {}  # the fastest candidates, by their keys
        self._then: dict[Worker, Callable[[Reply], None]] = {}
        threads = team_environment(self.options.threads)
        self._alone = takes_every_core(self.options.threads)
        # One descriptor for each kind of data, so that a restarted runner gets them again, and one
        # for the unscheduled program where something stands in for it.
        self._fds = fds = [os.memfd_create("metasched-task", os.MFD_CLOEXEC) for _ in range(3)]
        slow = flops(func) > _LONG and not inexact_reason(func)  # equal means equal bit for bit
        self._stand_in = stand_in if slow else None
        self._memory = {False: fds[0], True: fds[1]}
        self._aside = fds[0] if self._stand_in is None else fds[2]
        limits: dict[str, Any] = {"memory": self.options.memory, "preload": _JOBS.rstrip(":")}
        behind = min(LAST, beside_timing() + _BEHIND)
        self._builders = [
            Worker(f"builder {n}", nice=behind, **limits)
            for n in range(max(1, self.options.build_workers))
        ]
        self._runner = Worker("runner", nice=FIRST, fds=fds, environment=threads, **limits)
        self._reference = Worker("reference", nice=behind, fds=fds, **limits)
        self._timed = 0  # candidates since the runner's process was started
        self._closed = False
        self._failure = ""  # why there is no baseline, once that is known
        self._no_verification = ""  # why there are no expected results on normal data
        for worker in (*self._builders, self._runner):
            worker.start()
        self._start_baseline()

    # -- the public face ---------------------------------------------------------------------------

    @property
    def baseline(self) -> Outcome:
        """Time of the unscheduled program run serially, its rows padded; waits for it.

        Raises MeasureError when that program cannot be built or run.
        """
        while self._baseline is None:
            self._pump()
        return self._baseline

    @property
    def proved(self) -> bool:
        """Candidates are compared with the unscheduled program, no more with its stand-in."""
        return self._baseline is not None

    @property
    def task(self) -> Task:
        """The test data and how results are compared; waits for the expected results."""
        while False not in self._tasks:
            self._pump()
        return self._tasks[False]

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`."""
        self._open()
        if self._timed >= _PROCESS and not self._runner.busy:
            self._runner.close()
            self._timed = 0
        self._timed += len(candidates)
        batch = _Batch(self, candidates, on_outcome)
        try:
            batch.feed()
            while not batch.done:
                self._pump()
                batch.feed()
        except BaseException:
            self._abandon()
            raise
        if self._baseline is not None and self._baseline.seconds[0] > _SLOW_BASELINE:
            self.prepare_verification()  # runs beside the search, long before `verify` asks
        return batch.results()

    def verify(self, candidate: Candidate | IRModule) -> Outcome:
        """Check a program on normally distributed data, with tolerance; nothing is timed.

        The expected results come from the unscheduled program, run at low priority on first use;
        where that takes long it was started in the background after the first batch.

        Raises MeasureError when the unscheduled program fails on such data.
        """
        self._open()
        self.prepare_verification()
        while True not in self._tasks:
            if self._no_verification:
                raise MeasureError(self._no_verification)
            self._pump()
        built = self._build_now(candidate)
        if isinstance(built, Outcome):
            return built
        limit = self._run_limit()
        task, fd = self._tasks[True], self._memory[True]
        self._settle(self._runner)
        reply = self._runner.run(_JOBS + "trial", task, fd, built, limit=limit)
        return outcome_of(reply, 0.0)

    def prepare_verification(self) -> None:
        """Start computing the expected results for `verify` at low priority, unless done."""
        assert self.baseline is not None
        if True in self._tasks or self._reference.busy or self._no_verification:
            return
        source = self._quick or self._written
        assert source is not None
        task = self._tasks[False].with_normal_data()
        os.ftruncate(self._memory[True], shared_size(task))
        self._submit(
            self._reference, self._verification_ready, self.options.baseline_timeout,
            "expect", task, self._memory[True], source.program,
        )  # fmt: skip

    def interleave(
        self, candidates: Sequence[Candidate | IRModule], rounds: int = 10, fresh: bool = False
    ) -> list[tuple[float, ...]]:
        """Samples in seconds of programs timed in turn, no build running; with `fresh`, in a new
        process. One that falls far behind gets fewer samples than the rest.

        Raises MeasureError when one of them cannot be built or run.
        """
        self._open()
        assert self.task  # waits for the expected results
        programs: list[Compiled] = []
        for candidate in candidates:
            program = self._build_now(candidate)
            if isinstance(program, Outcome):
                raise MeasureError(f"{program.status.value}: {program.message}")
            programs.append(program)
        while any(w.busy for w in (*self._builders, self._reference, self._runner)):
            self._pump()
        if fresh:
            self._runner.close()
        limit, job, *given = self._in_turns(programs, rounds)
        reply = self._runner.run(_JOBS + job, *given, limit=limit)
        if reply.kind != "value":
            raise MeasureError(f"comparing programs failed: {reply.message}")
        return list(reply.value)

    def close(self) -> None:
        """End all workers; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        for worker in (*self._builders, self._runner, self._reference):
            worker.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the baseline ------------------------------------------------------------------------------

    def _start_baseline(self) -> None:
        """Set the runner to work on the unscheduled program; it needs no attention until it ends,
        so the search goes on meanwhile. Where that takes long and something stands in for it, it
        runs at the side instead."""
        o = self.options
        settings = {
            "key": structural_hash(self.func), "seed": o.seed, "extents": dict(o.extents),
            "scalars": dict(o.scalars),
        }  # fmt: skip
        given, limit = (self.func, self.target), o.baseline_timeout
        worker = self._runner
        if self._stand_in is not None:
            self._submit(
                worker, self._stand_in_ready, limit,
                "baseline", *given, self._memory[False], settings, self._stand_in,
            )  # fmt: skip
            worker = self._reference
        self._submit(worker, self._baseline_ready, limit, "baseline", *given, self._aside, settings)

    def _stand_in_ready(self, reply: Reply) -> None:
        """Candidates can be tried; a stand-in that failed (as candidate 0 will) is done without."""
        if reply.kind == "value":
            self._quick = reply.value
            self._tasks[False] = reply.value.task
        self._stand_in = None
        self._compare_references()

    def _baseline_ready(self, reply: Reply) -> None:
        if reply.kind != "value":
            built = os.fstat(self._aside).st_size > 0
            what = "run" if built else "built"
            self._fail(f"the unscheduled program cannot be {what}: {reply.reason}")
        self._written = reply.value
        self._compare_references()

    def _compare_references(self) -> None:
        """Accept the unscheduled program's results, if they equal those of what stood in for it."""
        if self._written is None or self._stand_in is not None:
            return
        if self._quick is None:
            self._memory[False] = self._aside
            self._tasks[False] = self._written.task
            self._accept(Reply("value", ""))
            return
        fds = (self._aside, self._memory[False])
        self._submit(self._reference, self._accept, 60.0, "agree", self._quick.task, *fds)

    def _accept(self, reply: Reply) -> None:
        if reply.kind != "value":
            self._fail(f"two kinds of expected results cannot be compared: {reply.reason}")
        if reply.value:
            self._failure = (
                "the default schedule gives other results than the program as written: "
                f"{reply.value}"
            )
            raise StandInError(self._failure)
        assert self._written is not None
        self._baseline = Outcome(Status.OK, (self._written.seconds,))

    def _fail(self, reason: str) -> NoReturn:
        self._failure = reason
        raise MeasureError(reason)

    def _verification_ready(self, reply: Reply) -> None:
        self._reference.close()
        if reply.kind != "value":
            self._no_verification = f"no expected results on normal data: {reply.reason}"
            return
        self._tasks[True] = reply.value[0]

    # -- workers -----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed or self._failure:
            raise MeasureError(self._failure or "the runner is closed")

    def _submit(
        self, worker: Worker, then: Callable[[Reply], None], limit: float, job: str, *args: Any
    ) -> None:
        self._then[worker] = then
        worker.submit(_JOBS + job, *args, limit=limit)

    def _pump(self) -> None:
        """Wait until a job ends (or something starts) and deliver the replies."""
        busy = [w for w in self._then if w.busy]
        if not busy:
            raise MeasureError(self._failure or "no worker has anything to do")
        # All are taken out first: what one does may give another of these workers its next job. An
        # interrupt while one is delivered does not lose the others.
        with ExitStack() as replies:
            for worker, reply in reversed(wait(busy)):
                replies.callback(self._then.pop(worker), reply)

    def _settle(self, worker: Worker) -> None:
        while worker.busy:
            self._pump()

    def _abandon(self) -> None:
        """After an interrupt: end what candidates are running, keep the baseline's work."""
        self._pause(False)
        for worker in (*self._builders, self._runner):
            if worker.busy and False in self._tasks:
                self._then.pop(worker, None)
                worker.close(grace=0.0)

    def _build_now(self, source: Candidate | IRModule) -> Compiled | Outcome:
        if isinstance(source, Candidate) and source.key in self._kept:
            return self._kept[source.key][1]
        module = source.module if isinstance(source, Candidate) else source
        builder = self._builders[0]
        self._settle(builder)
        func, limit = single_function(module), self.options.build_timeout
        reply = builder.run(_JOBS + "build", func, self.target, limit=limit)
        if reply.kind != "value":
            return Outcome(Status(f"build_{reply.kind}"), message=reply.reason)
        compiled: Compiled = reply.value
        return compiled

    def _hand_over(self, program: Compiled, seconds: float, enter: Callable[[float], None]) -> None:
        """Make a program the anchor if it is much faster than that, and enter what it took: read
        once more, in turns with the present anchor, while no build runs. It was chosen for its
        reading, in which luck has a part, and some programs suffer from builds half again as much
        as others: either would be handed on to all times read after it."""
        if self.anchor is None or seconds * BEHIND[1] < self.anchor[1]:  # (given up at once there)
            self.anchor = program, seconds
        present, usual = self.anchor
        if seconds * _HANDOVER >= usual:
            enter(seconds)
            return

        def then(reply: Reply) -> None:
            self._pause(False)
            took = seconds
            if reply.kind == "value" and min(map(len, reply.value)) > 1:  # neither was given up
                before, now = beside_each_other(reply.value)
                took = usual * now / before
                self.anchor = program, took
            enter(took)

        sample = 1e-3 * self.options.sample_ms
        rounds = max(5, min(24, int(_TURNS_TAKE / (max(usual, sample) + max(seconds, sample)))))
        self._pause(True)
        self._submit(self._runner, then, *self._in_turns([present, program], rounds))

    def _pause(self, held: bool) -> None:
        """Hold what runs beside the runner: some programs take half again as long beside a busy
        core, others no longer. Kernels that leave cores free have no need of it."""
        if self._alone:
            for worker in (*self._builders, self._reference):
                worker.pause(held)

    def _in_turns(self, programs: list[Compiled], rounds: int) -> tuple[Any, ...]:
        """The job of timing programs in turns, behind its limit."""
        limit = self._run_limit() * (rounds + len(programs))
        task, fd = self._tasks[False], self._memory[False]
        return limit, "interleave", task, fd, programs, rounds, self.options.sample_ms

    def _run_limit(self) -> float:
        """The limit of a run: what is hopeless beside the best need not be waited for."""
        limit = self.options.run_timeout
        if self._baseline is not None:
            limit = max(limit, 4 * self._baseline.seconds[0])
        return min(limit, 1.0 + 40 * self.best) if self.best else limit


class _Batch:
    """The candidates of one call of `measure` on their way through builders and runner."""

    def __init__(
        self, owner: LocalRunner, candidates: Sequence[Candidate], on_outcome: OnOutcome | None
    ) -> None:
        self._owner = owner
        self._candidates = list(candidates)
        self._on_outcome = on_outcome
        self._outcomes: dict[int, Outcome] = {}
        self._to_build = deque(range(len(self._candidates)))
        self._built: deque[tuple[int, Compiled, float, int]] = deque()

    @property
    def done(self) -> bool:
        return len(self._outcomes) == len(self._candidates)

    def results(self) -> list[Outcome]:
        return [self._outcomes[n] for n in range(len(self._candidates))]

    def feed(self) -> None:
        """Give every idle worker its next job."""
        owner = self._owner
        for builder in owner._builders:
            while self._to_build and not builder.busy:
                self._build(builder, self._to_build.popleft())
        if self._built and not owner._runner.busy and False in owner._tasks:
            self._run(*self._built.popleft())

    def _build(self, builder: Worker, number: int) -> None:
        owner = self._owner
        try:
            func = single_function(self._candidates[number].module)
        except MeasureError as error:
            self._end(number, Outcome(Status.BUILD_ERROR, message=str(error)))
            return

        def then(reply: Reply) -> None:
            if reply.kind == "value":
                self._built.append((number, reply.value, reply.seconds, 1))
                return
            status = Status(f"build_{reply.kind}")
            self._end(number, Outcome(status, (), reply.reason, build_seconds=reply.seconds))

        owner._submit(builder, then, owner.options.build_timeout, "build", func, owner.target)

    def _run(self, number: int, compiled: Compiled, built: float, tries: int) -> None:
        """Check a program, then time it while nothing else runs."""
        owner, o = self._owner, self._owner.options
        given = owner._tasks[False], owner._memory[False], compiled

        def checked(reply: Reply) -> None:
            if reply.kind != "value" or reply.value.status is not Status.OK:
                ended(reply)
                return
            plan = TimingPlan(o.sample_ms, o.samples, o.budget_ms, owner.best, anchor=owner.anchor)
            job = "timed", *given, plan, reply.value
            owner._pause(True)
            owner._submit(owner._runner, ended, owner._run_limit(), *job)

        def ended(reply: Reply) -> None:
            owner._pause(False)
            if reply.kind == "crash" and reply.signal == "SIGKILL" and tries < 2:
                # Not a kernel's own doing: killed from outside, or for memory. Once more.
                self._built.appendleft((number, compiled, built, tries + 1))
                return
            outcome, kept = outcome_of(reply, built), owner._kept
            if not outcome.ok:
                self._end(number, outcome, feed=True)
                return
            kept[self._candidates[number].key] = outcome.median, compiled
            if len(kept) > _KEPT:
                del kept[max(kept, key=lambda key: kept[key][0])]

            def enter(seconds: float) -> None:
                times = tuple(seconds / outcome.median * s for s in outcome.seconds)
                self._end(number, replace(outcome, seconds=times), feed=True)

            owner._hand_over(compiled, outcome.median, enter)

        owner._submit(owner._runner, checked, owner._run_limit(), "trial", *given)

    def _end(self, number: int, outcome: Outcome, feed: bool = False) -> None:
        self._outcomes[number] = outcome
        if outcome.ok:
            best = self._owner.best
            self._owner.best = min(best, outcome.median) if best else outcome.median
        if feed:  # the next one runs while this one is being noted down
            self.feed()
        if self._on_outcome is not None:
            self._on_outcome(self._candidates[number], outcome)
