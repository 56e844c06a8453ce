"""tune, tune_tasks, replay: from a function to its fastest schedule, and back from a trace file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from metasched import config
from metasched.analysis.sizes import with_sizes_each
from metasched.cost.features import FeatureSet
from metasched.cost.model import COST_MODELS, CostModel
from metasched.database.base import DATABASES, STORE, Database
from metasched.database.record import TraceFile
from metasched.database.replay import single
from metasched.errors import (
    DatabaseError,
    DefaultScheduleError,
    MeasureError,
    TargetError,
    TuneError,
    brief,
    shown_at_caller,
    warn,
)
from metasched.foreign import ANYTHING, failure, warned
from metasched.hardware import usable_cpus
from metasched.ir.func import IRModule, PrimFunc
from metasched.kinds import default_trace, space_of
from metasched.measure import cluster as cluster  # enters runners and builders by name
from metasched.measure.candidate import (
    RUNNERS,
    Builder,
    MakeRunner,
    Runner,
    calling,
    opened_builder,
    opened_runner,
)
from metasched.measure.given import GivenData, given_data, with_data
from metasched.registry import load_plugin
from metasched.runtime import rows as rows  # enters the devices by kind
from metasched.runtime.devices import device_of
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.search.final import INTERRUPTED, compared, rescued
from metasched.search.observe import EventLog, Observer, fan_out, observers_of
from metasched.search.parts import (
    Spaces,
    cost_model_of,
    feature_set,
    guide_of,
    opened_database,
    spaces_of,
)
from metasched.search.pool import ReplayPool
from metasched.search.population import CandidateFactory
from metasched.search.result import Best, TuneResult
from metasched.search.run import TaskRun
from metasched.search.scheduler import TASK_SCHEDULERS
from metasched.search.strategy import STRATEGIES
from metasched.search.tasks import tune_all
from metasched.space.generate import Space
from metasched.target import Target
from metasched.tvm_names import TUNE_WORDS, answered

Observers: TypeAlias = "Observer | str | Sequence[Observer | str] | None"
Source: TypeAlias = "PrimFunc | IRModule"
EVENTS, MODEL = "events.jsonl", "model.npz"
__all__ = ["EVENTS", "MODEL", "STORE", "tune", "tune_tasks"]


@shown_at_caller
@answered(TUNE_WORDS)
def tune(
    func: Source,
    *,
    target: Target | str | Mapping[str, Any] | None = None,
    trials: int | None = None,
    time_limit: float | None = None,
    work_dir: str | Path | None = None,
    seed: int | None = None,
    strategy: str | None = None,
    model: str | CostModel | None = None,
    features: str | FeatureSet | None = None,
    prior: bool | None = None,
    space: Space | str | None = None,
    database: str | Database | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    runner: MakeRunner | str | None = None,
    builder: Builder | str | None = None,
    observer: Observers = None,
    name: str | None = None,
    sizes: Mapping[str, int] | None = None,
    data: Mapping[str, Any] | None = None,
) -> TuneResult:
    """Search for the fastest schedule of one function on this machine.

    Candidate 0 is the default schedule, so the result is never slower than not tuning; candidate 1
    is what `metasched.autoschedule` gives, unless `prior` is False or a model is given. Outcomes
    are stored at once: an interrupted run (Ctrl-C ends a run cleanly) continues where it stopped.

    Args:
        func: a PrimFunc, or a module of one function; target: None is this machine.
        trials: candidates to measure, those already in the store included.
        time_limit: seconds after which no round begins, and the unscheduled program is ended.
        work_dir: folder of the store, the event log and the trace file.
        seed: of every random choice.
        strategy, model: names in their registries; a model may be given itself.
        features: what the model sees of a candidate: the name of a feature extractor, or a set.
        prior: start from a cost model trained on other tasks (default yes), which is dropped when
            the first measurements contradict it. A model object that is given starts unchanged.
        space: modules with postprocs and mutators, a function of a schedule, a union of such
            spaces, or the name of a space; None takes the target's defaults.
        database: keeps the records, or its name; an object stays open. None: a file in `work_dir`.
        plugins: Python files (or one) that register parts of the search, see PLUGINS.md.
        runner: a function that makes the runner, or its name; None measures on this machine.
        builder: compiles candidates elsewhere: a builder, which stays open, or its name.
        observer: is called with each event: a function, its name, or a list of both.
        name: for reports; None takes the function's.
        sizes: the numbers at which extents that are known at run time only are tuned, by name.
        data: arrays and numbers by the names of parameters, for what the time depends on (rows of
            a sparse matrix, edges of a graph); other parameters get drawn values.

    Raises TuneError when the function cannot be tuned, TargetError for the target of another
    machine, MeasureError when measuring breaks down, DatabaseError when the store is not written.
    """
    label = name or str(single(func).attrs.get("global_symbol", "main"))
    return tune_tasks(
        {label: func}, target=target, trials=trials, time_limit=time_limit, work_dir=work_dir,
        seed=seed, strategy=strategy, model=model, features=features, prior=prior, space=space,
        database=database, plugins=plugins, runner=runner, builder=builder, observer=observer,
        sizes=sizes, data=None if data is None else {label: data},
    )[label]  # fmt: skip


@shown_at_caller
@answered(TUNE_WORDS)
def tune_tasks(
    tasks: Mapping[str, Source],
    *,
    weights: Mapping[str, float] | None = None,
    target: Target | str | Mapping[str, Any] | None = None,
    trials: int | None = None,
    total_trials: int | None = None,
    time_limit: float | None = None,
    work_dir: str | Path | None = None,
    seed: int | None = None,
    strategy: str | None = None,
    model: str | CostModel | None = None,
    features: str | FeatureSet | None = None,
    prior: bool | None = None,
    space: Spaces = None,
    scheduler: str | None = None,
    database: str | Database | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    runner: MakeRunner | str | None = None,
    builder: Builder | str | None = None,
    observer: Observers = None,
    sizes: Mapping[str, int] | None = None,
    data: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, TuneResult]:
    """Tune several functions with one budget, spent where the expected gain is largest; see `tune`.

    Args:
        tasks, weights: functions by name, and the calls of each in their program (default 1).
        trials: limit of each task; total_trials: of all together in this run.
        space: of all tasks, or by their names; data: by their names. Others take the default.
        scheduler: name of the task scheduler, which chooses the task of each round.
    """
    funcs, given = _checked_tasks(tasks, weights or {}, time_limit, sizes, data or {}, runner)
    c = config.load(
        trials=trials, work_dir=None if work_dir is None else str(work_dir), seed=seed,
        strategy=strategy, model=model if isinstance(model, str) else None, prior=prior,
        features=features if isinstance(features, str) else None, scheduler=scheduler,
        database=database if isinstance(database, str) else None,
    )  # fmt: skip
    files = _load_plugins(c.plugins if plugins is None else plugins)
    kept = _checked_names(c, c.database if database is None else database)
    tell = observers_of(c.observers if observer is None else observer)
    machine = _machine(target if target is not None else c.target, timed=runner is None)
    make = RUNNERS.get(runner) if isinstance(runner, str) else runner
    spaces = spaces_of(space, c.space, funcs, machine)
    seen = feature_set(c.features if features is None else features, machine)
    limits = (weights or {}, total_trials, time_limit, tell)
    guide = guide_of(machine, seen) if c.prior and isinstance(model, str | None) else None

    def session(compiler: Builder | None, compare_with_default: bool) -> _Session:
        learner = cost_model_of(None if isinstance(model, str) else model, c, machine, seen)
        parts = (machine, learner, guide, seen, spaces, make, compiler, kept)
        return _Session(c, *parts, given, files, time_limit, compare_with_default)

    with opened_builder(builder) as compiler:
        try:
            return session(compiler, True).run(funcs, *limits)
        except DefaultScheduleError as error:
            warn(f"{error}; tuning starts again without it")
            return session(compiler, False).run(funcs, *limits)


def _checked_names(c: config.Config, database: str | Database) -> str | Database:
    """The database; misspelt names are refused before anything starts."""
    STRATEGIES.get(c.strategy)
    TASK_SCHEDULERS.get(c.scheduler)
    if isinstance(database, str):
        DATABASES.get(database)
    return database


def _load_plugins(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Run plug-in files, one or several; their paths."""
    files = [str(path) for path in ([given] if isinstance(given, str | Path) else given)]
    for file in files:
        load_plugin(file)
    return files


def _machine(given: Target | str | Mapping[str, Any], *, timed: bool) -> Target:
    """The target; where programs are timed here, limited to what this process may use of it."""
    machine = Target.of(given)
    if not timed:
        return machine
    require_timed_here(machine)
    return device_of(machine).usable(machine)


def require_timed_here(target: Target) -> None:
    """Nothing when candidates can be timed on this machine; TargetError that says what it takes."""
    space_of(target)
    reason = target.here()
    if reason is not None:
        raise TargetError(
            f"candidates for {target.key} cannot be timed here: {reason}; tune on such a machine, "
            f"or name a runner that reaches one (`runner=`, `--runner`){target.elsewhere}"
        )
    target.require_here(timed=True)


def _check_limits(
    funcs: Mapping[str, PrimFunc], weights: Mapping[str, float], time_limit: float | None
) -> None:
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit >= 0):
        raise TuneError(f"time_limit is {time_limit!r}; it must be 0 seconds or more")
    if not isinstance(weights, Mapping):
        raise TuneError(f"weights are numbers by the name of the task, not {weights!r}")
    for name in weights.keys() - funcs.keys():
        raise TuneError(f"{name!r} has a weight, but the tasks are {', '.join(funcs)}")


def _checked_tasks(
    tasks: Mapping[str, Source], weights: Mapping[str, float], time_limit: float | None,
    sizes: Mapping[str, int] | None, data: Mapping[str, Mapping[str, Any]], runner: object,
) -> tuple[dict[str, PrimFunc], dict[str, GivenData]]:  # fmt: skip
    """The functions with their sizes, and the given data of those that have any."""
    if not isinstance(tasks, Mapping) or not tasks:
        raise TuneError(f"tasks are functions by name, at least one, not {tasks!r}")
    for name in tasks:
        if not name or "/" in name or "\0" in name:
            raise TuneError(f"a task called {name!r} has no place: its trace file bears its name")
    funcs = {name: single(source) for name, source in tasks.items()}
    _check_limits(funcs, weights, time_limit)
    given = _checked_data(funcs, data, runner)
    funcs |= {name: with_data(funcs[name], values, sizes) for name, values in given.items()}
    if sizes is None and runner is not None:
        return funcs, given  # the runner may have sizes of its own
    return with_sizes_each(funcs, {} if sizes is None else sizes), given


def _checked_data(
    funcs: Mapping[str, PrimFunc], data: Mapping[str, Mapping[str, Any]], runner: object
) -> dict[str, GivenData]:
    """The given data by the names of tasks."""
    if not isinstance(data, Mapping):
        raise TuneError(f"data are mappings by the name of the task, not {brief(data)}")
    if data and runner is not None:
        raise TuneError(
            "data are for measuring on this machine, and a runner is given: give the runner its "
            "data (a LocalRunner or ExecutorRunner takes MeasureOptions(data=...))"
        )
    for name in data.keys() - funcs.keys():
        raise TuneError(f"{name!r} has data, but the tasks are {', '.join(funcs)}")
    return {name: given_data(funcs[name], values) for name, values in data.items()}


@dataclass
class _Session:
    """One call of tune_tasks: settings, machine and model, shared by its tasks."""

    settings: config.Config
    machine: Target
    model: CostModel
    guide: CostModel | None
    features: FeatureSet
    spaces: Mapping[str, Space]
    make: MakeRunner | None
    builder: Builder | None
    database: str | Database = "sqlite"
    data: Mapping[str, GivenData] = field(default_factory=dict)
    plugins: Sequence[str] = ()
    time_limit: float | None = None
    compare_with_default: bool = True
    start: float = field(default_factory=time.perf_counter)
    pool: ReplayPool = field(init=False)

    def __post_init__(self) -> None:
        cores = len(usable_cpus())
        self.pool = ReplayPool(self.settings.search_workers or min(cores, 8), self.plugins)

    def run(
        self,
        tasks: Mapping[str, PrimFunc],
        weights: Mapping[str, float],
        total: int | None,
        time_limit: float | None,
        observers: Sequence[Observer],
    ) -> dict[str, TuneResult]:
        c, folder = self.settings, Path(self.settings.work_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            log = EventLog(folder / EVENTS)
        except OSError as error:
            self.pool.close()
            hint = ": it is a file, name a folder" if folder.is_file() else ""
            raise TuneError(f"{folder} cannot be written: {error.strerror}{hint}") from None
        runners: list[Runner] = []
        self._recall(folder / MODEL)
        try:
            with opened_database(self.database, folder) as store:
                tell = fan_out(log, *observers)
                runs = [
                    self._task(name, func, store, tell, runners) for name, func in tasks.items()
                ]
                try:
                    tune_all(
                        runs, [weights.get(run.name, 1.0) for run in runs],
                        round_size=c.round_size, total=total, seed=c.seed, scheduler=c.scheduler,
                        deadline=None if time_limit is None else self.start + time_limit,
                    )  # fmt: skip
                    self._remember(folder / MODEL)
                    threads = c.threads or self.machine.num_cores
                    return {
                        run.name: _conclude(run, runs, folder, threads, self.start) for run in runs
                    }
                except DefaultScheduleError:
                    raise
                except (DatabaseError, MeasureError) as error:  # the best trace must not be lost
                    why = "runner" if isinstance(error, MeasureError) else "storage"
                    for sentence in filter(None, [rescued(run, folder, why) for run in runs]):
                        warn(sentence)
                    raise
        finally:
            for each in runners:
                with warned(f"{RUNNERS.title(each)} could not be closed"), calling(each):
                    each.close()
            self.pool.close()
            log.close()

    def _recall(self, path: Path) -> None:
        """Load the model that earlier runs in this folder saved."""
        if not path.exists():
            return
        try:
            self.model.load(path)
        except ANYTHING as error:
            what = str(error) if isinstance(error, DatabaseError) else failure(error)
            warn(f"{what}; the model starts anew from the database")

    def _remember(self, path: Path) -> None:
        """Save the model for later runs; its training data are in the database, too."""
        try:
            self.model.save(path)
        except ANYTHING as error:
            text = f"{COST_MODELS.title(self.model)} raised {failure(error)}"
            warn(f"{text}: {path} is not written")

    def _task(
        self, name: str, func: PrimFunc, store: Database, tell: Observer, runners: list[Runner]
    ) -> TaskRun:
        """A task ready for its first round; its runner is entered in `runners`."""
        c = self.settings
        default = default_trace(func, self.machine)
        runners.append(self._runner(func, default, self.data.get(name)))
        features = None if self.features is space_of(self.machine).features else self.features
        factory = CandidateFactory(
            func, self.machine, self.spaces[name], c.seed, self.pool, features
        )
        return TaskRun(
            name, func, factory, runners[-1], store, self.model, default,
            strategy=c.strategy, seed=c.seed, budget=c.trials,
            stop_gain=c.stop_gain, observer=tell, guide=self.guide,
        )  # fmt: skip

    def _runner(self, func: PrimFunc, default: Trace, data: GivenData | None) -> Runner:
        given: dict[str, Any] = {} if self.builder is None else {"builder": self.builder}
        if self.make is not None:
            return opened_runner(self.make, func, self.machine, **given)
        settings = self.settings
        if self.time_limit is not None:  # the unscheduled program may never end
            limit = min(settings.baseline_timeout, max(self.time_limit, 1.0))
            settings = replace(settings, baseline_timeout=limit)
        if data is not None:
            given["given"] = data
        by_default = Schedule(func, seed=0, check=False)
        default.apply(by_default)
        default_schedule = single(by_default.mod) if self.compare_with_default else None
        return space_of(self.machine).runner(
            func, self.machine, settings, default_schedule, **given
        )


def _conclude(
    run: TaskRun, runs: Sequence[TaskRun], folder: Path, threads: int, start: float
) -> TuneResult:
    """Compare the winner with the default once more, write its trace, and sum up.

    Nothing is compared once one of all `runs` was interrupted.
    """
    interrupted = any(each.finished == INTERRUPTED for each in runs)
    winner, default_seconds, unscheduled = compared(run, not interrupted)
    best: Best | None = None
    run.flush()
    if run.held:
        winner = None
        warn(
            f"{run.name}: {len(run.held)} trials are not stored: the program as written had not "
            "confirmed yet the results that they were compared with"
        )  # fmt: skip
    if winner is not None:
        candidate, seconds = winner
        path = folder / f"{run.name}.{run.workload[:12]}.trace.json"
        record = run.record(candidate, run.outcomes[candidate.key], 0)
        kept = TraceFile.from_record(
            record, default_seconds=default_seconds, unscheduled_seconds=unscheduled
        )
        written: Path | None = None
        try:
            written = kept.save(path)
        except DatabaseError as error:  # a full disk: the winner itself is not lost
            warn(str(error))
        best = Best(candidate.shipped, seconds, candidate.schedule.mod, run.factory.target, written)
    return TuneResult(
        run.name, run.factory.target, run.seed, best, default_seconds, unscheduled,
        run.progress.trials, run.progress.failed, run.progress.failures,
        time.perf_counter() - start, run.phases.seconds, run.flops, threads,
        run.factory.survival, run.finished, tuple(run.progress.history),
        tuple(run.notes), run.refusals,
    )  # fmt: skip
