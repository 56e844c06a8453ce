"""LocalRunner: measures on this machine; builders compile ahead and stop during timings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metasched.analysis.sizes import run_time_extents
from metasched.errors import MeasureError
from metasched.hardware import machine_name, usable_cpus
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.func import SIZES, IRModule, PrimFunc
from metasched.ir.op import HARDWARE
from metasched.measure import priority
from metasched.measure.anchor import TimeReference, rounds_of_calibration, rounds_of_two, spread
from metasched.measure.builder_slot import BuilderSlot
from metasched.measure.candidate import (
    Builder,
    Built,
    Candidate,
    OnOutcome,
    Outcome,
    Status,
    single_function,
)
from metasched.measure.data import Task
from metasched.measure.flow import Alone, Build, Flow, Flows, Job, Run, TakeRunner
from metasched.measure.jobs import Trial, blamed, built_of, outcome_of
from metasched.measure.other_sizes import OtherSizes, other_sizes, twin
from metasched.measure.process import Reply, Worker
from metasched.measure.reference import References
from metasched.measure.samples import TimingPlan
from metasched.measure.settings import MeasureOptions
from metasched.measure.workers import Workers
from metasched.registry import Registry, plugin_files
from metasched.runtime.devices import DEVICES, Program, programs_of
from metasched.target import Target

_JOBS = "metasched.measure.jobs"
_SLOW_BASELINE = 0.2  # a slower unscheduled program runs on normal data before that is needed
_BEHIND = 5  # builders have a nice level higher by this number while the search chooses candidates
_PROCESS = 64  # candidates that one process times: in some processes all programs seem equally fast
_KEPT = 64  # the fastest programs that are kept, so that the final comparison need not build them


class LocalRunner:
    """Measures candidates of one workload on this machine, each in other processes.

    Expected results are computed once, while the first candidates are being built;
    `measure.reference` says by which program, and what is guaranteed. Closing the runner ends all
    workers; they also end when the runner is garbage-collected or its process dies.

    Attributes:
        func, target, options: the arguments.
        best: seconds of the fastest right candidate, 0.0 before the first.
        time_reference: makes the times of several processes and runs comparable.
    """

    def __init__(
        self,
        func: PrimFunc,
        target: Target | str | None = None,
        options: MeasureOptions | None = None,
        default_schedule: PrimFunc | None = None,
        *,
        builder: Builder | None = None,
    ) -> None:
        """Start the workers and the unscheduled program; returns at once.

        Args:
            func: the workload, unscheduled.
            target: the target that candidates are compiled for; its code must run here.
            options: limits and repetitions.
            default_schedule: the workload with its default schedule. Candidates are compared with
                its results while a slow unscheduled program still runs.
            builder: compiles the candidates; the caller closes it. None compiles them in worker
                processes.

        Raises MeasureError when code for the target cannot run on this machine, or the arguments
        need more memory than the machine has.
        """
        self.func = func
        self.target = Target.of(target)
        reason = self.target.here()
        if reason is not None:
            reason = f"it was made for kind {self.target.kind!r}: {reason}"
            raise MeasureError(f"candidates for {self.target.key} cannot run here: {reason}")
        _require_memory(func)
        self._placements: tuple[str | None, ...] = programs_of(self.target.kind).guarding or (None,)
        self.options = options or MeasureOptions.of(cores=self.target.num_cores)
        if not self.options.threads and self.target.num_cores < len(usable_cpus()):
            self.options = replace(self.options, threads=self.target.num_cores)
        self.best = 0.0
        self.time_reference = TimeReference()
        self._recalled: Sequence[tuple[Candidate, float]] = ()
        self._kept: dict[str, tuple[float, Program]] = {}  # the fastest candidates, by their keys
        # Shared memory for each kind of data, which a restarted runner process maps again, and for
        # the results of the default schedule.
        extents = {**func.attrs.get(SIZES, {}), **self.options.extents}
        sizes = other_sizes(func, extents)
        self._fds = fds = [
            os.memfd_create("metasched-task", os.MFD_CLOEXEC) for _ in range(3 + len(sizes))
        ]
        self.options = replace(self.options, extents=extents)
        named = run_time_extents(func)
        usual = twin(func, extents) if all(v.name in extents for v in named) else func
        self._references = References(usual, self.target, self.options, fds[:3], default_schedule)
        settings = self._references.settings
        self._others = OtherSizes(func, self.target, sizes, settings, fds[3:])
        self._workers = _workers(self.options, fds, builder)
        self._timed = 0  # candidates since the runner's process was started
        self._process: int | None = None  # the process that the time reference is set for
        self._closed = False
        for worker in (*self._workers.builders, self._workers.runner):
            worker.start()
        self._references.start(self._workers)

    # -- the public face ---------------------------------------------------------------------------

    def unscheduled(self) -> Outcome:
        """Time of the unscheduled program run serially, its rows padded; waits for it.

        Raises MeasureError when that program cannot be built or run.
        """
        while self._references.baseline is None:
            self._open()
            self._workers.pump()
        return self._references.baseline

    @property
    def reference_confirmed(self) -> bool:
        """Whether the expected results are confirmed by the unscheduled program."""
        return self._references.baseline is not None

    @property
    def task(self) -> Task:
        """The test data and how results are compared; waits for the expected results."""
        while False not in self._references.tasks:
            self._open()
            self._workers.pump()
        return self._references.tasks[False]

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`."""
        return self.measure_built(candidates, {}, on_outcome)

    def measure_built(
        self,
        candidates: Sequence[Candidate],
        built: Mapping[str, Built],
        on_outcome: OnOutcome | None = None,
    ) -> list[Outcome]:
        """`measure` where some candidates are compiled already: `built` has them by their keys."""
        self._open()
        if self._timed >= _PROCESS and not self._workers.runner.busy:
            self._workers.runner.close()
            self._timed = 0
        self._timed += len(candidates)

        def ended(number: int, outcome: Outcome) -> None:
            if on_outcome is not None:
                on_outcome(candidates[number], outcome)

        flows = Flows(
            self._workers,
            [self._measured(candidate, built.get(candidate.key)) for candidate in candidates],
            ready=lambda: False in self._references.tasks,
            ended=ended,
        )
        try:
            self._calibrate()
            outcomes = flows.run()
        except BaseException:
            self._drop_candidates()
            raise
        baseline = self._references.baseline
        if baseline is not None and baseline.seconds[0] > _SLOW_BASELINE:
            self.prepare_verification()  # runs beside the search, long before `verify` asks
        return outcomes

    def machine(self) -> str:
        """See `NamesMachine.machine`: the name of this machine."""
        return machine_name()

    def recall(self, known: Sequence[tuple[Candidate, float]]) -> None:
        """Choose a calibration set from programs of an earlier run with their seconds, so that new
        times compare with the earlier times."""
        self._recalled = spread(known)

    def verify(self, candidate: Candidate | IRModule) -> Outcome:
        """Check a program on normally distributed data, with tolerance; nothing is timed.

        The expected results come from the unscheduled program, run at low priority on first use. A
        slow unscheduled program was started in the background after the first batch.

        Raises MeasureError when the unscheduled program fails on such data.
        """
        self._open()
        self.prepare_verification()
        references = self._references
        while True not in references.tasks:
            if references.no_verification:
                raise MeasureError(references.no_verification)
            self._workers.pump()
        program = self._build_now(candidate)
        if isinstance(program, Outcome):
            return program
        given = references.tasks[True], references.memory[True], program
        workers = self._workers
        return outcome_of(workers.run(workers.runner, self._run_limit(), "trial", *given), 0.0)

    def prepare_verification(self) -> None:
        """Start computing the expected results for `verify` at low priority, unless done."""
        assert self.unscheduled() is not None
        self._references.prepare_verification()

    def interleave(
        self, candidates: Sequence[Candidate | IRModule], rounds: int = 10, fresh: bool = False
    ) -> list[tuple[float, ...]]:
        """Time programs in turns, while no build runs; samples in seconds.

        With `fresh` the programs are timed in a new process. A program that is slower than others
        by the factors of `samples.BEHIND` gets fewer samples.

        Raises MeasureError when a program cannot be built or run.
        """
        self._open()
        assert self.task  # waits for the expected results
        programs: list[Program] = []
        for candidate in candidates:
            program = self._build_now(candidate)
            if isinstance(program, Outcome):
                raise MeasureError(f"{program.status.value}: {program.message}")
            programs.append(program)
        workers = self._workers
        workers.wait_idle(*workers.builders, workers.reference, workers.runner)
        if fresh:
            workers.runner.close()
        return self._compare(programs, rounds)

    def read_again(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Time measured candidates once more in turns with the anchor; seconds by their keys.

        Only candidates whose programs are in memory are timed, fewer or none if a call takes long.
        Raises MeasureError when a candidate fails to run.
        """
        self._open()
        reference, kept = self.time_reference, [c.key for c in candidates if c.key in self._kept]
        count, rounds = reference.turns_with(len(kept), 1e-3 * self.options.sample_ms)
        if reference.anchor is None or not count:
            return {}
        programs = [reference.anchor[0], *(self._kept[key][1] for key in kept[:count])]
        turns = self._compare(programs, rounds)
        return dict(zip(kept, reference.beside_anchor(turns), strict=False))

    def close(self) -> None:
        """End all workers; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._references.stop()
        self._workers.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one candidate -----------------------------------------------------------------------------

    def _measured(self, candidate: Candidate, built: Built | None) -> Flow[Outcome]:
        """Build, check and time a candidate; returns its outcome."""
        if built is None:
            try:
                func = single_function(candidate.module)
            except MeasureError as error:
                return Outcome(Status.BUILD_ERROR, message=str(error))
            built = built_of((yield Build(self._build_job(func))))
        if built.program is None:
            return Outcome(built.status, (), built.message, build_seconds=built.seconds)
        yield TakeRunner()
        reply = yield from self._tried(built.program)
        if reply.kind == "crash" and reply.signal == "SIGKILL":
            # SIGKILL comes from outside or from a lack of memory, not from the kernel: try again.
            reply = yield from self._tried(built.program)
        outcome = outcome_of(reply, built.seconds)
        if outcome.status is Status.WRONG_RESULT:
            self._references.doubt()
        if not outcome.ok:
            return outcome
        read = outcome.median
        seconds = read / self.time_reference.unit
        self._keep(candidate.key, seconds, built.program)
        seconds = yield from self._hand_over(built.program, seconds)
        self.best = min(self.best, seconds) if self.best else seconds
        samples = tuple(seconds / read * s for s in outcome.seconds)
        return replace(outcome, seconds=samples, machine=self.machine())

    def _tried(self, program: Program) -> Flow[Reply]:
        """Check a program in every placement of its arrays, then time it alone."""
        given = self._references.tasks[False], self._references.memory[False], program
        passed: Trial | None = None
        for where in self._placements:
            arguments = *given, where, passed
            reply = yield Run(Job(self._run_limit(), "trial", arguments))
            if where is not None and reply.kind == "crash" and reply.signal == "SIGSEGV":
                usual = yield Run(Job(self._run_limit(), "trial", given))
                return blamed(reply, usual)
            if reply.kind != "value" or reply.value.status is not Status.OK:
                return reply
            passed = reply.value
        patience = self.options.baseline_timeout
        wrong = yield from self._others.tried(program, self._run_limit(), patience)
        if wrong is not None:
            return wrong
        o, reference = self.options, self.time_reference
        best, anchor = self.best * reference.unit, reference.by_the_clock
        plan = TimingPlan(o.sample_ms, o.samples, o.budget_ms, best, anchor=anchor)
        return (yield Alone(Job(self._run_limit(), "timed", (*given, plan, passed))))

    def _hand_over(self, program: Program, seconds: float) -> Flow[float]:
        """Make a program the anchor if it is much faster than the present one (see `HANDOVER`).

        Returns its seconds; if it took turns with the present anchor, these turns give the seconds.
        """
        reference = self.time_reference
        if not reference.challenged(program, seconds) or reference.anchor is None:
            return seconds
        present, usual = reference.anchor
        rounds = rounds_of_two(usual, seconds, 1e-3 * self.options.sample_ms)
        reply = yield Alone(self._in_turns([present, program], rounds))
        took = reference.replaced(program, reply.value) if reply.kind == "value" else None
        return seconds if took is None else took

    def _keep(self, key: str, seconds: float, program: Program) -> None:
        """Keep a program for later comparisons if it is among the fastest."""
        self._kept[key] = seconds, program
        if len(self._kept) > _KEPT:
            del self._kept[max(self._kept, key=lambda key: self._kept[key][0])]

    # -- workers -----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed or self._references.failure:
            raise MeasureError(self._references.failure or "the runner is closed")

    def _drop_candidates(self) -> None:
        """After an interrupt, end the jobs of candidates and keep the jobs of the baseline."""
        self._workers.pause(False)
        if False in self._references.tasks:
            self._workers.drop(*self._workers.builders, self._workers.runner)

    def _build_job(self, func: PrimFunc) -> Job:
        return Job(self.options.build_timeout, "build", (func, self.target))

    def _build_now(self, source: Candidate | IRModule) -> Program | Outcome:
        if isinstance(source, Candidate) and source.key in self._kept:
            return self._kept[source.key][1]
        module = source.module if isinstance(source, Candidate) else source
        job, workers = self._build_job(single_function(module)), self._workers
        reply = workers.run(workers.builders[0], job.limit, job.name, *job.arguments)
        built = built_of(reply)
        return built.program or Outcome(built.status, message=built.message)

    def _calibrate(self) -> None:
        """Let a new process first time the calibration set, also when a run is resumed."""
        reference = self.time_reference
        if self._recalled:
            built = [(self._build_now(candidate), took) for candidate, took in self._recalled]
            reference.calibration = [
                (program, took) for program, took in built if not isinstance(program, Outcome)
            ]
            self._recalled = ()
        elif self._workers.runner.pid == self._process:
            return
        else:
            reference.choose((program, took) for took, program in self._kept.values())
        if reference.calibration:
            assert self.task  # waits for the expected results
            times = [took for _, took in reference.calibration]
            sample = 1e-3 * self.options.sample_ms
            rounds = rounds_of_calibration([*times[:1], *times], sample)
            self._workers.wait_idle(self._workers.runner)
            try:
                reference.calibrate(self._compare(reference.beside, rounds))
                self.best = self.best or min(times)
            except MeasureError:
                reference.calibration = ()
        self._process = self._workers.runner.pid

    def _compare(self, programs: list[Program], rounds: int) -> list[tuple[float, ...]]:
        """Samples of programs that take turns while nothing else runs."""
        job = self._in_turns(programs, rounds)
        with self._workers.quiet():
            reply = self._workers.run(self._workers.runner, job.limit, job.name, *job.arguments)
        if reply.kind != "value":
            raise MeasureError(f"comparing programs failed: {reply.message}")
        return list(reply.value)

    def _in_turns(self, programs: list[Program], rounds: int) -> Job:
        """The job of timing programs in turns."""
        task, memory = self._references.tasks[False], self._references.memory[False]
        limit = self._run_limit() * (rounds + len(programs))
        return Job(limit, "interleave", (task, memory, programs, rounds, self.options.sample_ms))

    def _run_limit(self) -> float:
        """The limit of a run: once there is a best, one second plus 40 times its seconds."""
        limit = self.options.run_timeout
        baseline = self._references.baseline
        if baseline is not None:
            limit = max(limit, 4 * baseline.seconds[0])
        return min(limit, 1.0 + 40 * self.best) if self.best else limit


def needed_plugins() -> tuple[str, ...]:
    """The plug-in files of this process, if a file declares a device or an instruction.

    Without such a file, programs cannot be compiled or run.
    """
    registries: tuple[Registry[Any], ...] = (DEVICES, HARDWARE)
    brought = any(r.from_plugin(name) for r in registries for name in r.names())
    return plugin_files() if brought else ()


def _workers(options: MeasureOptions, fds: Sequence[int], builder: Builder | None) -> Workers:
    """The processes of a runner; nothing starts yet."""
    limits: dict[str, Any] = {
        "memory": options.memory, "preload": _JOBS, "plugins": needed_plugins(),
    }  # fmt: skip
    behind = min(priority.LAST, priority.beside_timing() + _BEHIND)
    threads = priority.team_environment(options.threads)
    names = [f"builder {n}" for n in range(max(1, options.build_workers))]
    return Workers(
        [
            Worker(name, nice=behind, **limits) if builder is None else BuilderSlot(name, builder)
            for name in names
        ],
        Worker("runner", nice=priority.FIRST, fds=fds, environment=threads, **limits),
        Worker("reference", nice=behind, fds=fds, **limits),
        jobs=_JOBS,
        alone=priority.takes_every_core(options.threads),
    )


def _require_memory(func: PrimFunc) -> None:
    """Refuse a function whose arguments alone are larger than the memory of this machine."""
    needed = sum(_bytes(buffer) for buffer in func.buffers)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise MeasureError(
            f"the arguments take {needed / 2**30:.3g} GiB; this machine has "
            f"{there / 2**30:.3g} GiB of memory"
        )


def _bytes(buffer: Buffer) -> int:
    sizes = [as_int(extent) or 1 for extent in buffer.shape]
    return math.prod(sizes) * buffer.dtype.bits // 8
