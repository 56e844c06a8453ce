"""TaskRun: tunes one task in rounds of propose, measure and learn, and stores every outcome."""

from __future__ import annotations

import gc
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from types import FrameType

from metasched.analysis.flops import flops
from metasched.analysis.sizes import at_sizes
from metasched.cost.model import CostModel, teach
from metasched.database.base import Database
from metasched.database.record import Record
from metasched.errors import (
    DefaultScheduleError,
    MeasureError,
    ScheduleError,
    TraceError,
    warn,
)
from metasched.hardware import times_compare
from metasched.ir.equal import structural_hash
from metasched.ir.func import PrimFunc
from metasched.measure.candidate import (
    Candidate,
    Confirms,
    NamesMachine,
    Outcome,
    ReadsAgain,
    Recalls,
    Runner,
    calling,
    outcomes_of,
)
from metasched.schedule.rng import derive_seed
from metasched.schedule.trace import Trace
from metasched.search.autoscheduler import first_guess
from metasched.search.guard import GuardedStrategy
from metasched.search.observe import (
    ModelNews,
    Observer,
    RoundDone,
    SpaceNews,
    TaskFinished,
    TaskStarted,
    TrialDone,
)
from metasched.search.phases import Phases, timed
from metasched.search.population import CandidateFactory, Population, SearchCandidate
from metasched.search.strategy import SearchTask
from metasched.space.generate import Explains

_RELOADED = 128  # a resumed run replays this many stored programs to fill its population
_FROM_OTHER_MACHINES = 16  # a run first measures this many of the fastest of other machines
_RETIMED = 3  # this many programs with the fewest times, and with the most, are timed again
_RETIMED_AMONG = 12  # they are chosen from this many of the fastest programs
_RETIMED_CLOSE = 1.15  # a program timed again takes at most this many times the best seconds
_GAIN_ROUNDS = 4  # rounds from which the expected gain is judged
_EMPTY_ROUNDS = 3  # rounds without a new program before the space counts as exhausted


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause cyclic garbage collection within the body.

    Replays make little cyclic garbage, and full collections over a large heap took a quarter of
    their time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the body is done, so that an outcome is counted and stored, or neither."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no interrupt is raised here
        return
    # A mask of signals is not enough: another thread may get the signal, and Python calls the
    # handler in the main thread nevertheless.
    delayed: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: delayed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if delayed:
            handler(*delayed[0])


@dataclass
class Progress:
    """Progress of a task.

    Attributes:
        trials: candidates measured, in earlier runs on the same store too.
        failed: candidates that failed.
        history: best seconds after each trial of this run.
        failures: statuses of the failures of this run with one message each.
    """

    trials: int = 0
    failed: int = 0
    history: list[float] = field(default_factory=list)
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)


class TaskRun:
    """The tuning of one function; `step` does a round.

    Attributes:
        best: the fastest right candidate, with its median seconds, or None.
        outcomes: all outcomes of this run, and the right outcomes of earlier runs, by keys.
        held: trials that are not stored yet: see `flush`.
        notes: messages of the model, for example about its prior.
        default: the default schedule as a candidate; it is candidate 0.
    """

    def __init__(
        self,
        name: str,
        func: PrimFunc,
        factory: CandidateFactory,
        runner: Runner,
        store: Database,
        model: CostModel,
        default: Trace,
        *,
        strategy: str = "evolutionary",
        seed: int = 0,
        budget: int = 64,
        stop_gain: float = 0.0,
        observer: Observer,
        guide: CostModel | None = None,
    ) -> None:
        """`guide` ranks programs before anything is measured; the program that it ranks first is
        candidate 1."""
        self.guide = guide
        self.name, self.func, self.factory = name, func, factory
        self.runner, self.store, self.observer = runner, store, observer
        self.seed, self.budget, self.stop_gain = seed, budget, stop_gain
        self.phases, self.progress = Phases(), Progress()
        self.workload, self.text = structural_hash(func), func.script()
        self.flops = flops(at_sizes(func))
        self.started = time.perf_counter()
        self.outcomes: dict[str, Outcome] = {}
        self._model = timed(model, self.phases)
        with self.phases.of("search"):
            self.default = factory.finished(default)
            self.population = Population()
            self._reload(self._model)
        task = SearchTask(self.workload, factory, self.population, self._model, seed)
        self.strategy = GuardedStrategy(strategy, task)
        self.round = 0
        self._empty = 0
        self._open = any(trace.sampling() for trace in factory.spaces)  # decisions are left
        self.held: list[Record] = []
        self._unlearnt: list[tuple[SearchCandidate, float]] = []  # the round that has not ended
        self._bests: list[float] = []
        self._readings: dict[str, list[float]] = {}  # times of right programs of this run, by keys
        self._machines: set[str] = set()
        self.finished = ""
        self.notes: list[str] = []
        known = self.progress.trials
        observer(TaskStarted(name, self.flops, budget, known, len(factory.spaces), self.workload))
        self.refusals: tuple[str, ...] = ()
        if isinstance(factory.generator, Explains):
            refused = (each.text for each in factory.generator.refusals)
            self.refusals = (*refused, *factory.generator.notes)
        for text in self.refusals:
            observer(SpaceNews(name, text))
        self._tell_news()

    # -- state -------------------------------------------------------------------------------------

    @property
    def best(self) -> tuple[SearchCandidate, float] | None:
        return self.population.measured[0] if self.population.measured else None

    @property
    def best_seconds(self) -> float:
        return self.best[1] if self.best else math.inf

    @property
    def done(self) -> bool:
        """Whether the budget is spent or the space exhausted."""
        if not self.finished and self.progress.trials >= self.budget:
            self.finished = "budget"
        if not self.finished and self.expected_gain() < self.stop_gain:
            self.finished = "no gain expected"
        return bool(self.finished)

    def expected_gain(self) -> float:
        """The share by which the next `_GAIN_ROUNDS` rounds are expected to cut the best time.

        The estimate is the share by which the last `_GAIN_ROUNDS` rounds have cut the best time;
        infinite in earlier rounds.
        """
        best = self._bests
        if len(best) <= _GAIN_ROUNDS or not math.isfinite(best[-1 - _GAIN_ROUNDS]):
            return math.inf
        return max(0.0, 1.0 - best[-1] / best[-1 - _GAIN_ROUNDS])

    # -- a round -----------------------------------------------------------------------------------

    def step(self, count: int) -> None:
        """Propose, measure and learn from at most `count` candidates."""
        count = min(count, self.budget - self.progress.trials)
        chosen: list[SearchCandidate] = []
        if self.default.key not in self.population.seen:
            chosen.append(self.default)
            self.population.seen.add(self.default.key)
            if count > 1 and self.guide is not None:
                chosen += self._guessed(self.guide)
        while self._elsewhere and len(chosen) < count:
            candidate = self._elsewhere.pop(0)
            if candidate.key not in self.population.seen:
                chosen.append(candidate)
                self.population.seen.add(candidate.key)
        if len(chosen) < count:
            with self.phases.of("search"), paused_collection():
                for candidate in self.strategy.propose(count - len(chosen)):
                    if self.factory.admits(candidate):
                        chosen.append(candidate)
                    else:
                        self.population.seen.add(candidate.key)
        self.round += 1
        if not chosen:
            self._empty += 1
            if self._empty >= _EMPTY_ROUNDS or not self._open:
                self.finished = "exhausted"
            return
        self._empty = 0
        outcomes = self._measure(chosen)
        with self.phases.of("search"):
            self.strategy.learn(chosen, [o.median for o in outcomes])
        self._unlearnt.clear()
        self._read_again()
        self._tell_news()
        self.phases.seconds["search"] = max(0.0, self.phases.seconds["search"])
        self._bests.append(self.best_seconds)
        p = self.progress
        self.observer(
            RoundDone(
                self.name, self.round, p.trials, p.failed, self.best_seconds,
                time.perf_counter() - self.started, dict(self.phases.seconds),
            )
        )  # fmt: skip

    def measure_as_written(self) -> bool:
        """Measure the program as written, one trial beyond the budget, so that a result is never
        slower than not tuning; False if it was measured before."""
        with self.phases.of("search"):
            written = self.factory.finished(Trace())
        if written.key in self.population.seen:
            return False
        self.population.seen.add(written.key)
        outcomes = self._measure([written])
        self.strategy.learn([written], [o.median for o in outcomes])
        self._unlearnt.clear()
        return True

    def _guessed(self, guide: CostModel) -> list[SearchCandidate]:
        """The program that `metasched.autoschedule` gives; none if it was measured before."""
        with self.phases.of("search"), paused_collection():
            guess = first_guess(self.factory, guide, self.default).candidate
        if guess.key in self.population.seen:
            return []
        self.population.seen.add(guess.key)
        return [guess]

    def _read_again(self) -> None:
        """Time `_RETIMED` of the fastest programs again; the median of all readings counts.

        The minimum of many noisy times is biased low: the speed of a machine drifts for seconds,
        and the layout of a process's memory matters. Programs that were timed several times serve
        as the reference for the others.
        """
        if not isinstance(self.runner, ReadsAgain):
            return
        fastest, limit = (
            self.population.measured[:_RETIMED_AMONG],
            _RETIMED_CLOSE * self.best_seconds,
        )
        near = [
            candidate for candidate, s in fastest if s <= limit and candidate.key in self._readings
        ]
        near.sort(key=lambda candidate: len(self._readings[candidate.key]))
        fewest, others = near[:_RETIMED], near[_RETIMED:]
        chosen = [*fewest, *others[-_RETIMED:]]
        try:
            with self.phases.of("run"), calling(self.runner):
                read = self.runner.read_again([candidate.to_measure() for candidate in chosen])
        except DefaultScheduleError:
            raise
        except MeasureError as error:
            warn(f"{self.name}: the fastest were not timed again: {error}")
            return
        known = {candidate.key: seconds for candidate, seconds in fastest}
        often = [known[key] / read[key] for key in read if len(self._readings[key]) > 1]
        unit = median(often) if len(often) > 1 else 1.0
        for key, seconds in read.items():
            self._readings[key].append(unit * seconds)
        self.population.correct({key: median(self._readings[key]) for key in read})

    def _tell_news(self) -> None:
        """Pass the messages of the model on to the observer."""
        text = self._model.news()
        if text:
            self.notes.append(text)
            self.observer(ModelNews(self.name, text))

    def finish(self, reason: str = "") -> None:
        """Tell the observer that the task has ended, with the outcomes of an interrupted round."""
        for candidate, seconds in self._unlearnt:
            self.population.add([candidate], [seconds])
        self._unlearnt.clear()
        self.finished = self.finished or reason
        p, elapsed = self.progress, time.perf_counter() - self.started
        self.observer(
            TaskFinished(self.name, self.finished, self.best_seconds, p.trials, p.failed, elapsed)
        )

    def _measure(self, chosen: Sequence[SearchCandidate]) -> list[Outcome]:
        first = self.progress.trials
        candidates = [candidate.to_measure(first + n) for n, candidate in enumerate(chosen)]

        def ended(measured: Candidate, outcome: Outcome) -> None:
            with uninterrupted():
                self._note(measured, chosen[measured.index - first], outcome)

        return outcomes_of(self.runner, candidates, ended)

    def _note(self, measured: Candidate, candidate: SearchCandidate, outcome: Outcome) -> None:
        """Store an outcome as soon as it is known."""
        p, seconds = self.progress, self.phases.seconds
        p.trials += 1
        seconds["build"] += outcome.build_seconds
        seconds["run"] += outcome.run_seconds
        seconds["check"] += outcome.check_seconds
        if not outcome.ok:
            p.failed += 1
            count, message = p.failures.get(outcome.status.value, (0, outcome.message))
            p.failures[outcome.status.value] = (count + 1, message)
        else:
            self._readings[candidate.key] = [outcome.median]
            self._note_machine(outcome.machine)
        self._unlearnt.append((candidate, outcome.median))
        self.outcomes[candidate.key] = outcome
        best = min(self.best_seconds, outcome.median, *(p.history[-1:] or [math.inf]))
        p.history.append(best)
        self.held.append(self.record(candidate, outcome, measured.index))
        self.flush()
        self.observer(
            TrialDone(
                self.name, measured.index, outcome.status.value, outcome.median,
                outcome.message, best, p.trials, p.failed, time.perf_counter() - self.started,
                candidate.score, measured, candidate.shipped, outcome, outcome.machine,
            )
        )  # fmt: skip

    def _note_machine(self, machine: str) -> None:
        """Warn when a run gets times of machines that do not compare."""
        other = [name for name in self._machines if not times_compare(name, machine)]
        if other and machine not in self._machines:
            warn(
                f"{self.name}: the runner measures on {other[0]} and on {machine}, whose times do "
                "not compare; give the runner machines of one kind, and a builder the others"
            )
        self._machines.add(machine)

    def flush(self) -> None:
        """Store the trials held back, once the expected results are confirmed (see `Confirms`).

        So no wrong program enters the store, even for a short time.
        """
        if not isinstance(self.runner, Confirms) or self.runner.reference_confirmed:
            held, self.held = self.held, []
            self.store.put(held)

    def record(self, candidate: SearchCandidate, outcome: Outcome, index: int) -> Record:
        """The record of a trial for the store."""
        return Record(
            workload_hash=self.workload, workload=self.text, workload_name=self.name,
            target=self.factory.target.to_json(), seed=self.seed,
            trace=json.loads(candidate.shipped.to_json()), samples=list(outcome.seconds),
            status=outcome.status, message=outcome.message, check=outcome.check,
            candidate_key=candidate.key, index=index, space=candidate.space,
            build_seconds=outcome.build_seconds, predicted=candidate.score, machine=outcome.machine,
        )  # fmt: skip

    # -- resuming ----------------------------------------------------------------------------------

    def _reload(self, model: CostModel) -> None:
        """Take over the records of the store, so that no program is measured twice.

        Records of machines whose times do not compare only say which programs to measure first.
        """
        stored = self.store.all(self.workload, self.factory.target)
        machine = ""
        if isinstance(self.runner, NamesMachine) and any(r.machine for r in stored):
            with calling(self.runner):
                machine = self.runner.machine()
        records = [r for r in stored if times_compare(r.machine, machine)]
        others = [r for r in stored if r.ok and not times_compare(r.machine, machine)]
        others.sort(key=lambda r: r.seconds)
        lost: list[str] = []
        found = (self._reloaded(r, lost) for r in others[:_FROM_OTHER_MACHINES])
        self._elsewhere = [candidate for candidate in found if candidate is not None]
        self.population.seen |= {r.candidate_key for r in records}
        self.progress.trials = len(records)
        self.progress.failed = sum(not r.ok for r in records)
        right = sorted((r for r in records if r.ok), key=lambda r: r.seconds)
        reloaded: list[SearchCandidate] = []
        times: list[float] = []
        for record in right[:_RELOADED]:
            candidate = self._reloaded(record, lost)
            if candidate is not None:
                reloaded.append(candidate)
                times.append(record.seconds)
                kept = Outcome(
                    record.status, tuple(record.samples), check=record.check,
                    machine=record.machine,
                )  # fmt: skip
                self.outcomes[candidate.key] = kept
        if lost:
            count = f"{len(lost)} of {len(stored)} stored programs cannot be replayed"
            warn(f"{self.name}: {count} and are left out; the first: {lost[0]}")
        self.population.add(reloaded, times)
        if isinstance(self.runner, Recalls):
            measured = self.population.measured
            with calling(self.runner):
                self.runner.recall([(one.to_measure(), seconds) for one, seconds in measured])
        if len(reloaded) > 1 and not model.knows(self.workload):
            teach(model, self.workload, reloaded, times)

    def _reloaded(self, record: Record, lost: list[str]) -> SearchCandidate | None:
        """The program of a record; None if it cannot be replayed, with the reason in `lost`."""
        try:
            trace = Trace.from_json(json.dumps(record.trace))
            seed = derive_seed(self.seed, "reload")
            return self.factory.recalled(trace, record.candidate_key, record.space, seed)
        except (TraceError, ScheduleError) as error:
            lost.append(str(error).partition("\n")[0])
            return None
