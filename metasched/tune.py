"""tune, tune_tasks, replay: from a function to its fastest schedule, and back from a trace file."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from metasched import config
from metasched.cost import lightgbm_lack
from metasched.cost.model import (
    COST_MODELS,
    METHODS,
    CostModel,
    StartsFromPrior,
    TakesFeatures,
)
from metasched.cost.prior import Prior, shipped
from metasched.database.lookup import Miss, explain
from metasched.database.record import TraceFile
from metasched.database.store import Store
from metasched.errors import (
    DatabaseError,
    MetaschedError,
    StandInError,
    TraceError,
    TraceMiss,
    TuneError,
    brief,
)
from metasched.foreign import ANYTHING, failure
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.kinds import default_space, default_trace, space_of
from metasched.measure.candidate import Compares, Runner
from metasched.registry import complete, load_plugin
from metasched.runtime.devices import device_of
from metasched.runtime.foreign import require_known_calls
from metasched.runtime.parallel import SERIAL, has_openmp
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.search.final import final_comparison, rescued
from metasched.search.observe import EventLog, Observer, fan_out, silent
from metasched.search.pool import ReplayPool
from metasched.search.population import Individual, Workshop
from metasched.search.result import Best, TuneResult
from metasched.search.run import TaskRun
from metasched.search.strategy import STRATEGIES
from metasched.search.tasks import tune_all
from metasched.space.generate import ScheduleFn, Space, SpaceGenerator, Union
from metasched.target import Target

Source: TypeAlias = "PrimFunc | IRModule"
MakeRunner: TypeAlias = "Callable[[PrimFunc, Target], Runner]"
STORE, EVENTS, MODEL = "metasched.db", "events.jsonl", "model.npz"


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
    prior: bool | None = None,
    space: Space | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    runner: MakeRunner | None = None,
    observer: Observer = silent,
    name: str | None = None,
) -> TuneResult:
    """Search for the fastest schedule of one function on this machine.

    Candidate 0 is the default schedule, so the result is never slower than not tuning. Every
    outcome is in the store under `work_dir` the moment it is known: an interrupted run (Ctrl-C
    ends it cleanly) goes on where it stopped, and nothing is measured twice.

    Args:
        func: a PrimFunc, or a module of one function.
        target: what to compile for; None is this machine.
        trials: candidates to measure, those already in the store included.
        time_limit: seconds after which no new round begins, and the program as written, should it
            still run, is ended.
        work_dir: folder of the store, the event log and the trace file.
        seed: of every random choice.
        strategy, model: names in their registries; a model may be given itself.
        prior: start from what earlier records on other tasks taught (default yes); it is dropped
            when the first measurements do not bear it out. A model that is given starts as it is.
        space: modules with postprocs and mutators, a function of a schedule, or a union of such
            spaces; None takes the target's defaults.
        plugins: Python files (or one) that register what is searched with, see PLUGINS.md.
        runner: makes what measures; None measures on this machine.
        observer: is told what happens.
        name: for reports; None takes the function's.

    Raises TuneError when the function cannot be tuned, TargetError when this machine is to measure
    for a target that it is not, MeasureError when measuring breaks down, DatabaseError when the
    store cannot be written.
    """
    only = _single(func)
    label = name or str(only.attrs.get("global_symbol", "main"))
    results = tune_tasks(
        {label: only}, target=target, trials=trials, time_limit=time_limit, work_dir=work_dir,
        seed=seed, strategy=strategy, model=model, prior=prior, space=space, plugins=plugins,
        runner=runner, observer=observer,
    )  # fmt: skip
    return results[label]


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
    prior: bool | None = None,
    space: Space | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    runner: MakeRunner | None = None,
    observer: Observer = silent,
) -> dict[str, TuneResult]:
    """Tune several functions with one budget, spent where it gains most; see `tune`.

    Args:
        tasks: functions by name.
        weights: calls of each in the program they come from (default 1).
        trials: limit of each task; total_trials: of all together in this run.
    """
    funcs, weights = _checked_tasks(tasks), weights or {}
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit >= 0):
        raise TuneError(f"time_limit is {time_limit!r}; it must be 0 seconds or more")
    if not isinstance(weights, Mapping):
        raise TuneError(f"weights are numbers by the name of the task, not {weights!r}")
    if not isinstance(space, SpaceGenerator | ScheduleFn | Union | None):
        raise TuneError(
            f"space is {brief(space)}; it must be a SpaceGenerator, ScheduleFn or Union"
        )
    for name in weights.keys() - funcs.keys():
        raise TuneError(f"{name!r} has a weight, but the tasks are {', '.join(funcs)}")
    c = config.load(
        trials=trials, work_dir=None if work_dir is None else str(work_dir), seed=seed,
        strategy=strategy, model=model if isinstance(model, str) else None, prior=prior,
    )  # fmt: skip
    given = c.plugins if plugins is None else plugins
    files = [str(p) for p in ([given] if isinstance(given, str | Path) else given)]
    for file in files:
        load_plugin(file)
    STRATEGIES.get(c.strategy)  # a misspelt name is refused before anything starts
    machine = Target.of(target if target is not None else c.target)
    if runner is None:
        machine.require_here(timed=True)
        machine = device_of(machine).usable(machine)
    shared = model if model is not None and not isinstance(model, str) else None
    if shared is not None:
        complete(f"the cost model {type(shared).__name__}", lambda: shared, *METHODS)
    limits = (weights, total_trials, time_limit, observer)
    common = c, machine, shared or _model(c, machine), space, runner, files, time_limit
    try:
        return _Session(*common).run(funcs, *limits)
    except StandInError as error:
        warnings.warn(f"{error}; tuning starts again without it", stacklevel=2)
        common = c, machine, shared or _model(c, machine), space, runner, files, time_limit
        return _Session(*common, compare_with_default=False).run(funcs, *limits)


def _checked_tasks(tasks: Mapping[str, Source]) -> dict[str, PrimFunc]:
    if not isinstance(tasks, Mapping) or not tasks:
        raise TuneError(f"tasks are functions by name, at least one, not {tasks!r}")
    for name in tasks:
        if not name or "/" in name or "\0" in name:
            raise TuneError(f"a task called {name!r} has no place: its trace file bears its name")
    return {name: _single(source) for name, source in tasks.items()}


def _model(settings: config.Config, machine: Target) -> CostModel:
    """The model that the settings name, with the prior that ships for the machine."""
    factory, what = COST_MODELS.get(settings.model), f"the cost model {settings.model}"
    model = complete(what, lambda: factory(settings.seed), *METHODS)
    if not has_openmp() and (settings.model != "lightgbm" or not lightgbm_lack()):
        warnings.warn(SERIAL, stacklevel=4)  # the model of trees says both in one warning
    features = space_of(machine).features
    if isinstance(model, TakesFeatures):
        model.take_features(features)
    path = shipped(machine.mcpu, features) if settings.prior else None
    if path is not None and isinstance(model, StartsFromPrior):
        try:
            model.start_from(Prior.load(path))
        except DatabaseError as error:
            warnings.warn(f"{error}; the model starts without it", stacklevel=4)
    return model


@dataclass
class _Session:
    """One call of tune_tasks: settings, machine and model, shared by its tasks."""

    settings: config.Config
    machine: Target
    model: CostModel
    space: Space | None
    make: MakeRunner | None
    plugins: Sequence[str] = ()
    time_limit: float | None = None
    compare_with_default: bool = True
    start: float = field(default_factory=time.perf_counter)
    pool: ReplayPool = field(init=False)

    def __post_init__(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self.pool = ReplayPool(self.settings.search_workers or min(cores, 8), self.plugins)

    def run(
        self,
        tasks: Mapping[str, PrimFunc],
        weights: Mapping[str, float],
        total: int | None,
        time_limit: float | None,
        observer: Observer,
    ) -> dict[str, TuneResult]:
        c, folder = self.settings, Path(self.settings.work_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            log = EventLog(folder / EVENTS)
        except OSError as error:
            self.pool.close()
            raise TuneError(f"{folder} cannot be written: {error.strerror}") from None
        runners: list[Runner] = []
        self._recall(folder / MODEL)
        try:
            with Store(folder / STORE) as store:
                tell = fan_out(log, observer)
                runs = [
                    self._task(name, func, store, tell, runners) for name, func in tasks.items()
                ]
                try:
                    reason = tune_all(
                        runs, [weights.get(run.name, 1.0) for run in runs],
                        round_size=c.round_size, total=total, seed=c.seed,
                        deadline=None if time_limit is None else self.start + time_limit,
                    )  # fmt: skip
                    self._remember(folder / MODEL)
                    threads = c.threads or self.machine.num_cores
                    return {
                        run.name: _conclude(run, folder, threads, self.start, reason)
                        for run in runs
                    }
                except DatabaseError:  # a full disk: what was found must not be lost with it
                    for sentence in filter(None, [rescued(run, folder) for run in runs]):
                        warnings.warn(sentence, stacklevel=4)
                    raise
        finally:
            for each in runners:
                each.close()
            self.pool.close()
            log.close()

    def _recall(self, path: Path) -> None:
        """Let the model go on from what earlier runs in this folder taught it."""
        if not path.exists():
            return
        try:
            self.model.load(path)
        except ANYTHING as error:
            what = str(error) if isinstance(error, DatabaseError) else failure(error)
            warnings.warn(f"{what}; the model starts anew from the database", stacklevel=4)

    def _remember(self, path: Path) -> None:
        """Keep what the model has learnt for later runs; the database holds it too."""
        try:
            self.model.save(path)
        except ANYTHING as error:
            name = type(self.model).__name__
            text = f"the cost model {name} raised {failure(error)}: {path} is not written"
            warnings.warn(text, stacklevel=4)

    def _task(
        self, name: str, func: PrimFunc, store: Store, tell: Observer, runners: list[Runner]
    ) -> TaskRun:
        """A task ready for its first round; its runner is entered in `runners`."""
        c = self.settings
        default = default_trace(func, self.machine)
        runners.append(self._runner(func, default))
        space = self.space or default_space(self.machine)
        workshop = Workshop(func, self.machine, space, c.seed, self.pool)
        return TaskRun(
            name, func, workshop, runners[-1], store, self.model, default,
            strategy=c.strategy, seed=c.seed, budget=c.trials,
            stop_gain=c.stop_gain, observer=tell,
        )  # fmt: skip

    def _runner(self, func: PrimFunc, default: Trace) -> Runner:
        if self.make is not None:
            return self.make(func, self.machine)
        settings = self.settings
        if self.time_limit is not None:  # the program as written may never end
            limit = min(settings.baseline_timeout, max(self.time_limit, 1.0))
            settings = replace(settings, baseline_timeout=limit)
        by_default = Schedule(func, seed=0, check=False)
        default.apply(by_default)
        default_schedule = _single(by_default.mod) if self.compare_with_default else None
        return space_of(self.machine).runner(func, self.machine, settings, default_schedule)


def _single(source: Source) -> PrimFunc:
    if isinstance(source, PrimFunc):
        return source
    if not isinstance(source, IRModule):
        raise TuneError(f"a program is a PrimFunc or an IRModule, not {type(source).__name__}")
    if len(source) != 1:
        raise TuneError(
            f"the module has {len(source)} functions ({', '.join(source)}); "
            "pass one of them, or all to tune_tasks"
        )
    return next(iter(source.values()))


def _conclude(run: TaskRun, folder: Path, threads: int, start: float, reason: str) -> TuneResult:
    """Compare the winner with the default once more, write its trace, and sum up."""
    default = run.outcomes.get(run.default.key)
    default_seconds = default.median if default is not None and default.ok else None
    unscheduled: float | None = None
    winner: tuple[Individual, float] | None = run.best
    if isinstance(run.runner, Compares) and reason != "interrupted":
        unscheduled = run.runner.unscheduled().median
        winner, default_seconds = final_comparison(run, run.runner, default_seconds)
    best: Best | None = None
    run.settle()
    if run.held:
        winner = None
        warnings.warn(
            f"{run.name}: {len(run.held)} trials are not stored: the program as written had not "
            "confirmed yet the results that they were compared with", stacklevel=4,
        )  # fmt: skip
    if winner is not None:
        one, seconds = winner
        path = folder / f"{run.name}.{run.workload[:12]}.trace.json"
        record = run.record(one, run.outcomes[one.key], 0)
        kept = TraceFile.from_record(
            record, default_seconds=default_seconds, unscheduled_seconds=unscheduled
        )
        written: Path | None = None
        try:
            written = kept.save(path)
        except DatabaseError as error:  # a full disk: the winner itself is not lost
            warnings.warn(str(error), stacklevel=2)
        best = Best(one.shipped, seconds, one.schedule.mod, run.workshop.target, written)
    return TuneResult(
        run.name, run.workshop.target, run.seed, best, default_seconds, unscheduled,
        run.progress.trials, run.progress.failed, run.progress.failures,
        time.perf_counter() - start, run.phases.seconds, run.flops, threads,
        run.workshop.survival, run.finished or reason, tuple(run.progress.history),
        tuple(run.notes), run.refusals,
    )  # fmt: skip


def replay(
    path: str | Path,
    func: Source,
    *,
    target: Target | str | Mapping[str, Any] | None = None,
    allow_extern: Sequence[str] | str = (),
) -> Schedule:
    """Apply a stored trace to the function it was tuned for; nothing is drawn or measured.

    Args:
        path: a trace file (`work/NAME.HASH.trace.json`).
        func: the unscheduled function.
        target: where the result shall run; None is this machine.
        allow_extern: foreign functions that the result may call, by name. A trace from elsewhere
            may name any; a function of your own that calls one is built directly as it stands.

    Returns the schedule; `metasched.build(schedule)` compiles it.

    Raises TraceMiss, a TraceError, when the trace is for another workload, schema version or a
    machine whose features are missing here (the message says what differs), and TraceError when
    the file cannot be read, does not replay or calls foreign code that is not allowed.
    """
    only = _single(func)
    stored = TraceFile.load(path)
    machine = Target.of(target)
    found = explain(stored, structural_hash(only), machine, script=only.script())
    if isinstance(found, Miss):
        raise TraceMiss(f"{path}: {found.reason}")
    sch = Schedule(only, seed=stored.seed)
    try:
        Trace.from_json(json.dumps(stored.trace)).apply(sch)
    except MetaschedError as error:
        raise TraceError(f"{path}: the trace does not replay: {error}") from error
    require_known_calls(sch.mod, allow_extern, path)
    return sch
