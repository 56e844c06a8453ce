"""The local runner: builders work ahead; they are held while it times what it has checked."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from metasched.errors import MeasureError
from metasched.ir.func import IRModule, PrimFunc
from metasched.measure import priority
from metasched.measure.candidate import Candidate, OnOutcome, Outcome, Status, single_function
from metasched.measure.crew import Crew
from metasched.measure.data import Task
from metasched.measure.jobs import Trial, blamed, outcome_of
from metasched.measure.process import Reply, Worker
from metasched.measure.reference import References
from metasched.measure.samples import TimingPlan
from metasched.measure.settings import MeasureOptions
from metasched.measure.yardstick import Yardstick, rounds_of_panel, rounds_of_two, spread
from metasched.registry import plugin_files
from metasched.runtime.devices import DEVICES, Program, programs_of
from metasched.target import Target

_JOBS = "metasched.measure.jobs"
_SLOW_BASELINE = 0.2  # seconds of it from which its run on normal data is started ahead of need
_BEHIND = 5  # nice levels of what nobody waits for while candidates are being chosen
_PROCESS = 64  # candidates that one process times: in some, programs run alike that differ in all
_KEPT = 64  # programs that need not be built again when the best are compared at the end


class LocalRunner:
    """Measures candidates of one workload on this machine, each in other processes.

    Expected results are computed once, while the first candidates are being built already: see
    `measure.reference` for who computes them and what is guaranteed. Closing ends all workers, and
    so does forgetting the runner or killing its process.
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
        reason = self.target.here()
        if reason is not None:
            reason = f"it was made for kind {self.target.kind!r}: {reason}"
            raise MeasureError(f"candidates for {self.target.key} cannot run here: {reason}")
        programs_of(self.target.kind)
        self.options = options or MeasureOptions.of(cores=self.target.num_cores)
        if not self.options.threads and self.target.num_cores < len(os.sched_getaffinity(0)):
            self.options = replace(self.options, threads=self.target.num_cores)
        self.best = 0.0
        self.yardstick = Yardstick()
        self._recalled: Sequence[tuple[Candidate, float]] = ()
        self._kept: dict[str, tuple[float, Program]] = {}  # the fastest candidates, by their keys
        threads = priority.team_environment(self.options.threads)
        # For each kind of data, so that a restarted runner gets them again, and for the stand-in.
        self._fds = fds = [os.memfd_create("metasched-task", os.MFD_CLOEXEC) for _ in range(3)]
        self._expected = References(func, self.target, self.options, fds, stand_in)
        limits: dict[str, Any] = {"memory": self.options.memory, "preload": _JOBS}
        if DEVICES.from_plugin(self.target.kind):
            limits["plugins"] = plugin_files()
        behind = min(priority.LAST, priority.beside_timing() + _BEHIND)
        builders = [
            Worker(f"builder {n}", nice=behind, **limits)
            for n in range(max(1, self.options.build_workers))
        ]
        self._crew = Crew(
            builders,
            Worker("runner", nice=priority.FIRST, fds=fds, environment=threads, **limits),
            Worker("reference", nice=behind, fds=fds, **limits),
            jobs=_JOBS,
            alone=priority.takes_every_core(self.options.threads),
        )
        self._timed = 0  # candidates since the runner's process was started
        self._process: int | None = None  # the process that the yardstick is set for
        self._closed = False
        for worker in (*builders, self._crew.runner):
            worker.start()
        self._expected.start(self._crew)

    # -- the public face ---------------------------------------------------------------------------

    def unscheduled(self) -> Outcome:
        """Time of the unscheduled program run serially, its rows padded; waits for it.

        Raises MeasureError when that program cannot be built or run.
        """
        while self._expected.baseline is None:
            self._open()
            self._crew.pump()
        return self._expected.baseline

    @property
    def proved(self) -> bool:
        """True once the expected results come from the unscheduled program itself."""
        return self._expected.baseline is not None

    @property
    def task(self) -> Task:
        """The test data and how results are compared; waits for the expected results."""
        while False not in self._expected.tasks:
            self._open()
            self._crew.pump()
        return self._expected.tasks[False]

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`."""
        self._open()
        if self._timed >= _PROCESS and not self._crew.runner.busy:
            self._crew.runner.close()
            self._timed = 0
        self._timed += len(candidates)
        batch = _Batch(self, candidates, on_outcome)
        try:
            self._calibrate()
            batch.feed()
            while not batch.done:
                self._crew.pump()
                batch.feed()
        except BaseException:
            self._abandon()
            raise
        baseline = self._expected.baseline
        if baseline is not None and baseline.seconds[0] > _SLOW_BASELINE:
            self.prepare_verification()  # runs beside the search, long before `verify` asks
        return batch.results()

    def recall(self, known: Sequence[tuple[Candidate, float]]) -> None:
        """Take programs that an earlier run measured, with the seconds that they took: what is
        measured from now on is measured by them."""
        self._recalled = spread(known)

    def verify(self, candidate: Candidate | IRModule) -> Outcome:
        """Check a program on normally distributed data, with tolerance; nothing is timed.

        The expected results come from the unscheduled program, run at low priority on first use;
        where that takes long it was started in the background after the first batch.

        Raises MeasureError when the unscheduled program fails on such data.
        """
        self._open()
        self.prepare_verification()
        expected = self._expected
        while True not in expected.tasks:
            if expected.no_verification:
                raise MeasureError(expected.no_verification)
            self._crew.pump()
        built = self._build_now(candidate)
        if isinstance(built, Outcome):
            return built
        job = self._run_limit(), "trial", expected.tasks[True], expected.memory[True], built
        return outcome_of(self._crew.run(self._crew.runner, *job), 0.0)

    def prepare_verification(self) -> None:
        """Start computing the expected results for `verify` at low priority, unless done."""
        assert self.unscheduled() is not None
        self._expected.prepare_verification()

    def interleave(
        self, candidates: Sequence[Candidate | IRModule], rounds: int = 10, fresh: bool = False
    ) -> list[tuple[float, ...]]:
        """Samples in seconds of programs timed in turn, no build running; with `fresh`, in a new
        process. One that falls far behind gets fewer samples than the rest.

        Raises MeasureError when one of them cannot be built or run.
        """
        self._open()
        assert self.task  # waits for the expected results
        programs: list[Program] = []
        for candidate in candidates:
            program = self._build_now(candidate)
            if isinstance(program, Outcome):
                raise MeasureError(f"{program.status.value}: {program.message}")
            programs.append(program)
        crew = self._crew
        crew.settle(*crew.builders, crew.reference, crew.runner)
        if fresh:
            crew.runner.close()
        return self._compare(programs, rounds)

    def read_again(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Seconds of candidates that were measured, by their keys, read once more in turns with the
        anchor: of the first ones that are kept, of fewer or none where a call takes long.

        Raises MeasureError when one of them does not run any more.
        """
        self._open()
        stick, kept = self.yardstick, [c.key for c in candidates if c.key in self._kept]
        count, rounds = stick.turns_with(len(kept), 1e-3 * self.options.sample_ms)
        if stick.anchor is None or not count:
            return {}
        programs = [stick.anchor[0], *(self._kept[key][1] for key in kept[:count])]
        return dict(zip(kept, stick.beside_anchor(self._compare(programs, rounds)), strict=False))

    def close(self) -> None:
        """End all workers; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._expected.stop()
        self._crew.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- workers -----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed or self._expected.failure:
            raise MeasureError(self._expected.failure or "the runner is closed")

    def _abandon(self) -> None:
        """After an interrupt: end what candidates are running, keep the baseline's work."""
        self._crew.pause(False)
        if False in self._expected.tasks:
            self._crew.drop(*self._crew.builders, self._crew.runner)

    def _build_now(self, source: Candidate | IRModule) -> Program | Outcome:
        if isinstance(source, Candidate) and source.key in self._kept:
            return self._kept[source.key][1]
        module = source.module if isinstance(source, Candidate) else source
        given = single_function(module), self.target
        crew, limit = self._crew, self.options.build_timeout
        reply = crew.run(crew.builders[0], limit, "build", *given)
        if reply.kind != "value":
            return Outcome(Status(f"build_{reply.kind}"), message=reply.reason)
        compiled: Program = reply.value
        return compiled

    def _hand_over(self, program: Program, seconds: float, enter: Callable[[float], None]) -> None:
        """Make a program the anchor if it is much faster than that, and enter what it took: read
        once more, in turns with the present anchor."""
        stick = self.yardstick
        if not stick.challenged(program, seconds) or stick.anchor is None:
            enter(seconds)
            return

        def then(reply: Reply) -> None:
            self._crew.pause(False)
            took = stick.replaced(program, reply.value) if reply.kind == "value" else None
            enter(seconds if took is None else took)

        present, usual = stick.anchor
        rounds = rounds_of_two(usual, seconds, 1e-3 * self.options.sample_ms)
        self._crew.pause(True)
        self._crew.submit(self._crew.runner, then, *self._in_turns([present, program], rounds))

    def _calibrate(self) -> None:
        """Let a new process, and that of a resumed run, time what has a known time first."""
        stick = self.yardstick
        if self._recalled:
            built = [(self._build_now(candidate), took) for candidate, took in self._recalled]
            stick.panel = [
                (program, took) for program, took in built if not isinstance(program, Outcome)
            ]
            self._recalled = ()
        elif self._crew.runner.pid == self._process:
            return
        else:
            stick.choose((program, took) for took, program in self._kept.values())
        if stick.panel:
            assert self.task  # waits for the expected results
            times = [took for _, took in stick.panel]
            rounds = rounds_of_panel([*times[:1], *times], 1e-3 * self.options.sample_ms)
            self._crew.settle(self._crew.runner)
            try:
                stick.calibrate(self._compare(stick.beside, rounds))
                self.best = self.best or min(times)
            except MeasureError:
                stick.panel = ()
        self._process = self._crew.runner.pid

    def _compare(self, programs: list[Program], rounds: int) -> list[tuple[float, ...]]:
        """Samples of programs that take turns while nothing else runs."""
        with self._crew.quiet():
            reply = self._crew.run(self._crew.runner, *self._in_turns(programs, rounds))
        if reply.kind != "value":
            raise MeasureError(f"comparing programs failed: {reply.message}")
        return list(reply.value)

    def _in_turns(self, programs: list[Program], rounds: int) -> tuple[Any, ...]:
        """The job of timing programs in turns, behind its limit."""
        expected = self._expected
        given = (
            expected.tasks[False],
            expected.memory[False],
            programs,
            rounds,
            self.options.sample_ms,
        )
        return self._run_limit() * (rounds + len(programs)), "interleave", *given

    def _run_limit(self) -> float:
        """The limit of a run: what is hopeless beside the best need not be waited for."""
        limit = self.options.run_timeout
        baseline = self._expected.baseline
        if baseline is not None:
            limit = max(limit, 4 * baseline.seconds[0])
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
        self._built: deque[tuple[int, Program, float, int]] = deque()

    @property
    def done(self) -> bool:
        return len(self._outcomes) == len(self._candidates)

    def results(self) -> list[Outcome]:
        return [self._outcomes[n] for n in range(len(self._candidates))]

    def feed(self) -> None:
        """Give every idle worker its next job."""
        owner = self._owner
        for builder in owner._crew.builders:
            while self._to_build and not builder.busy:
                self._build(builder, self._to_build.popleft())
        if self._built and not owner._crew.runner.busy and False in owner._expected.tasks:
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

        owner._crew.submit(builder, then, owner.options.build_timeout, "build", func, owner.target)

    def _run(self, number: int, compiled: Program, built: float, tries: int) -> None:
        """Check a program at both ends of its memory, then time it while nothing else runs."""
        owner, o = self._owner, self._owner.options
        given = owner._expected.tasks[False], owner._expected.memory[False], compiled
        places: list[str | None] = [*programs_of(owner.target.kind).guarding] or [None]

        def check(
            where: str | None, then: Callable[[Reply], None], passed: Trial | None = None
        ) -> None:
            limit, runner = owner._run_limit(), owner._crew.runner
            owner._crew.submit(runner, then, limit, "trial", *given, where, passed)

        def check_next(passed: Trial | None) -> None:
            where = places.pop(0)
            check(where, lambda reply: checked(reply, where), passed)

        def checked(reply: Reply, where: str | None) -> None:
            if where is not None and reply.kind == "crash" and reply.signal == "SIGSEGV":
                check(None, lambda usual: ended(blamed(reply, usual)))
                return
            if reply.kind != "value" or reply.value.status is not Status.OK:
                ended(reply)
                return
            if places:
                check_next(reply.value)
                return
            stick, best = owner.yardstick, owner.best * owner.yardstick.unit
            plan = TimingPlan(o.sample_ms, o.samples, o.budget_ms, best, anchor=stick.by_the_clock)
            job = "timed", *given, plan, reply.value
            owner._crew.pause(True)
            owner._crew.submit(owner._crew.runner, ended, owner._run_limit(), *job)

        def ended(reply: Reply) -> None:
            owner._crew.pause(False)
            if reply.kind == "crash" and reply.signal == "SIGKILL" and tries < 2:
                # Not a kernel's own doing: killed from outside, or for memory. Once more.
                self._built.appendleft((number, compiled, built, tries + 1))
                return
            outcome, kept = outcome_of(reply, built), owner._kept
            if outcome.status is Status.WRONG_RESULT:
                owner._expected.doubt()
            if not outcome.ok:
                self._end(number, outcome, feed=True)
                return
            unit = owner.yardstick.unit
            outcome = replace(outcome, seconds=tuple(s / unit for s in outcome.seconds))
            kept[self._candidates[number].key] = outcome.median, compiled
            if len(kept) > _KEPT:
                del kept[max(kept, key=lambda key: kept[key][0])]

            def enter(seconds: float) -> None:
                times = tuple(seconds / outcome.median * s for s in outcome.seconds)
                self._end(number, replace(outcome, seconds=times), feed=True)

            owner._hand_over(compiled, outcome.median, enter)

        check_next(None)

    def _end(self, number: int, outcome: Outcome, feed: bool = False) -> None:
        self._outcomes[number] = outcome
        if outcome.ok:
            best = self._owner.best
            self._owner.best = min(best, outcome.median) if best else outcome.median
        if feed:  # the next one runs while this one is being noted down
            self.feed()
        if self._on_outcome is not None:
            self._on_outcome(self._candidates[number], outcome)
