"""Exact replay of one trace with postprocs, in this process or as the job of a worker process."""

from __future__ import annotations

import gc
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from metasched.cost.extractor import extracted
from metasched.cost.features import FeatureSet
from metasched.errors import MeasureError, PluginError, ScheduleError, TraceError
from metasched.foreign import ANYTHING, failure
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.kinds import space_of
from metasched.postproc.base import run_postproc
from metasched.registry import load_plugin
from metasched.schedule.handles import RV
from metasched.schedule.instruction import Entry
from metasched.schedule.plugin import Postproc
from metasched.schedule.schedule import Schedule
from metasched.schedule.state import Snapshot
from metasched.schedule.trace import Decisions, Trace
from metasched.search.shared_queue import SharedQueue
from metasched.target import Target
from metasched.watch import note_calls

_KEPT = 2048  # the most outcomes of runs of steps that a task keeps for other candidates

EXTRACTOR = "feature extractor "
BROKEN = "postproc "
"""A refusal by a broken postproc begins with this word; a rejection does not."""

Request: TypeAlias = tuple[int, list[Any] | None, int, bool]
"""(space, decisions or None to draw them, seed, whether its steps are trusted)"""


class Replayer:
    """Replays the traces of one task exactly.

    Everything in a schedule is immutable. So the outcome of a run of steps is kept under the module
    before the run and the arguments of the run; candidates with the same module and arguments reuse
    the outcome. Decisions that no step has used yet do not count as arguments.

    Trusted steps are not proved legal (see `checks.proof`). Other decisions rarely make a legal
    trace illegal, and the proofs take a third of the time.

    Attributes:
        base: the unscheduled program.
        spaces: the traces whose decisions are open.
        work: cycles for only the arithmetic of the unscheduled program.
    """

    def __init__(
        self,
        base: Schedule,
        spaces: Sequence[Trace],
        postprocs: Sequence[Postproc],
        target: Target,
        features: FeatureSet | None = None,
    ) -> None:
        """`features` is the feature set; None takes the set of the target's kind.

        Raises PluginError when the feature set fails on the unscheduled program.
        """
        self.base, self.spaces = base, spaces
        self.postprocs, self.target = tuple(postprocs), target
        self.features = space_of(target).features if features is None else features
        try:
            self.work = float(self.features.work(base.mod, target))
        except ANYTHING as error:
            raise PluginError(f"{EXTRACTOR}{self.features.name} raised {failure(error)}") from error
        self._runs = [runs_of(trace) for trace in spaces]
        self._kept: OrderedDict[tuple[Any, ...], tuple[IRModule, Snapshot]] = OrderedDict()

    def summary_of(self, request: Request) -> Summary | str:
        """Replay a request; the summary of its program, or the reason of a refusal."""
        space, decisions, seed, skip_checks = request
        while True:
            try:
                sch = self.member(space, decisions, seed, skip_checks=skip_checks)
                return self._summary(sch, skip_checks=skip_checks)
            except (ScheduleError, TraceError) as error:
                return slug_of(error)
            except ANYTHING:  # an illegal program may break any step; a replay with proofs says why
                if not skip_checks:
                    raise
                skip_checks = False

    def member(
        self, space: int, decisions: Sequence[Any] | None, seed: int, *, skip_checks: bool = False
    ) -> Schedule:
        """Replay a member of a space, with impossible decisions repaired, and run the postprocs.

        Args:
            decisions: of the sampling steps; None draws them, and proves the steps after the first.

        Raises ScheduleError or TraceError when a step or postproc refuses.
        """
        trace, mode = self.spaces[space], "fresh"
        if decisions is not None:
            trace, mode = with_decisions(trace, decisions), "repair"

        def steps(sch: Schedule) -> None:
            drawn = False
            for run in self._runs[space]:
                entries = trace.entries[run.first : run.end]
                drawn = drawn or (decisions is None and any(e.kind.sampling for e in entries))
                if drawn:  # a `require` that fails draws again, from the history of proved steps
                    sch.state.skip_legality_checks = False
                if run.inputs is not None and not drawn:
                    self._run(sch, entries, (space, run.first), run.inputs)
                else:
                    for entry in entries:
                        sch.execute(entry, mode)

        return self._finished(steps, seed, skip_checks=skip_checks)

    def replayed(self, trace: Trace, decisions: Decisions, seed: int) -> Schedule:
        """Replay any trace and run the postprocs. Raises the same errors as `member`."""
        return self._finished(lambda sch: trace.apply(sch, decisions=decisions), seed)

    def _finished(
        self, steps: Callable[[Schedule], None], seed: int, *, skip_checks: bool = False
    ) -> Schedule:
        sch = self.base.copy()
        state = sch.state
        state.rng.state, state.skip_legality_checks = seed, skip_checks
        steps(sch)
        sch.enter_postproc()
        for postproc in self.postprocs:
            state.skip_legality_checks = skip_checks and not getattr(postproc, "tries", True)
            try:
                run_postproc(postproc, sch, self.target)
            except (ScheduleError, TraceError):
                raise
            except ANYTHING as error:
                if skip_checks:  # the program may be illegal
                    raise
                name = getattr(postproc, "name", type(postproc).__name__)
                raise ScheduleError(name, f"{BROKEN}{name} raised {failure(error)}", "") from error
        state.skip_legality_checks = False
        return sch

    def vector_of(self, mod: IRModule, *, skip_checks: bool = False) -> tuple[np.ndarray, str]:
        """The feature vector of a program, and the fault of the extractor, empty without a fault.

        After a fault the vector is zeros. With `skip_checks` the program may be illegal, and the
        error is raised instead.
        """
        try:
            return extracted(self.features, mod, self.target, self.work), ""
        except ANYTHING as error:
            if skip_checks:
                raise
            text = f"{EXTRACTOR}{self.features.name} raised {failure(error)}"
            return np.zeros(len(self.features.names), np.float32), text

    def _summary(self, sch: Schedule, *, skip_checks: bool) -> Summary:
        steps = [e for _, e in sch.trace.before_postproc().sampling()]
        vector, broken = self.vector_of(sch.mod, skip_checks=skip_checks)
        return Summary(
            structural_hash(sch.mod), vector,
            [e.decision for e in steps], [e.domain for e in steps], sch.state.repairs, broken,
        )  # fmt: skip

    def _run(
        self, sch: Schedule, steps: Sequence[Entry], place: tuple[int, int], inputs: Sequence[RV]
    ) -> None:
        """Reuse the outcome of a run of steps, or execute the run and keep its outcome."""
        state = sch.state
        given = [state.table.get(rv) for rv in inputs]
        before = state.mod  # the outcome keeps the module alive: its identity is part of the key
        key = (*place, state.skip_legality_checks, id(before), state.serial, *given)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            sch.take_over(steps, found[1])
            return
        for entry in steps:
            sch.execute(entry, "repair")
        self._kept[key] = before, state.snapshot(index=True)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps of a trace.

    Attributes:
        first, end: their positions, `end` exclusive.
        inputs: handles of earlier steps that the run uses; only for runs that candidates share.
    """

    first: int
    end: int
    inputs: tuple[RV, ...] | None = None


def runs_of(trace: Trace) -> list[Run]:
    """Split the steps of a trace into runs.

    A run ends at every sampling step, every `require` and every first use of a decision. Candidates
    share these runs, but not the steps after the last use of a decision.
    """
    waiting = {rv for _, entry in trace.sampling() for rv in entry.outputs}
    runs: list[Run] = []
    run: list[Entry] = []
    inputs: dict[RV, None] = {}

    def ended(position: int) -> None:
        if run:
            runs.append(Run(position - len(run), position, tuple(inputs)))
        run.clear()
        inputs.clear()

    for position, entry in enumerate(trace.entries):
        if not waiting:
            break
        uses = [*entry.uses()]
        if entry.kind.sampling or entry.kind.name == "require":
            ended(position)
            runs.append(Run(position, position + 1))
            continue
        if not waiting.isdisjoint(uses):
            ended(position)
        made = {rv for step in run for rv in step.outputs}
        inputs.update((rv, None) for rv in uses if rv not in made)
        run.append(entry)
        waiting.difference_update(uses)
    done = runs[-1].end + len(run) if runs else len(run)
    ended(done)
    return [*runs, Run(done, len(trace))]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a worker returns for a program: enough to rank the program and to make it again.

    Attributes:
        decisions, domains: the repaired decisions of the sampling steps, and their domains.
        repairs: how many decisions were repaired.
        broken: the fault of the feature extractor, after which the vector is zeros; else empty.
    """

    key: str
    vector: np.ndarray[Any, Any]
    decisions: list[Any]
    domains: list[Any]
    repairs: int
    broken: str = ""


def slug_of(error: ScheduleError | TraceError) -> str:
    """The reason of a refused replay, in one word."""
    return error.reason if isinstance(error, ScheduleError) else "trace-does-not-fit"


_tasks: dict[int, Replayer] = {}


def load_plugins(paths: Sequence[str]) -> None:
    """In a worker: load the plug-in files of the search, so that tasks can be unpickled."""
    for path in paths:
        load_plugin(path)


def prepare(
    number: int,
    func: PrimFunc,
    spaces: Sequence[str],
    postprocs: tuple[Postproc, ...],
    target: Target,
    features: FeatureSet | None = None,
) -> None:
    """In a worker: get ready for the replays of one task."""
    gc.disable()
    traces = [Trace.from_json(text) for text in spaces]
    base = Schedule(func, seed=0, check=False)
    _tasks[number] = Replayer(base, traces, postprocs, target, features)


def replay_part(
    number: int, requests: Sequence[Request], fd: int, parts: int, part: int
) -> dict[int, Summary | str]:
    """In a worker: take requests from a queue of `parts` and replay them.

    Gives a summary for each request, or the reason of a refusal.
    """
    task = _tasks.get(number)
    if task is None:
        raise MeasureError("the worker was restarted and does not know the task")
    queue = SharedQueue(parts, fd)
    note = queue.note(part)
    note_calls(note)
    made = {}
    try:
        for n in queue.take(part):
            queue.enter(part, n)
            made[n] = task.summary_of(requests[n])
    finally:
        note_calls(None)
        note.release()
        queue.close()
    return made


def begin_again(plugins: Sequence[str], tasks: bytes) -> None:
    """In a worker that replaces another: load the plug-ins, then the other's pickled tasks."""
    load_plugins(plugins)
    for task in pickle.loads(tasks):
        prepare(*task)


def tidy() -> None:
    """In an idle worker: collect cyclic garbage."""
    gc.collect(1)


def with_decisions(
    trace: Trace, decisions: Sequence[Any], domains: Sequence[Any] | None = None
) -> Trace:
    """`trace` with decisions (and domains) for its sampling steps, in their order."""
    entries = list(trace.entries)
    for n, (position, entry) in enumerate(trace.sampling()):
        domain = entry.domain if domains is None else domains[n]
        entries[position] = entry.decided(decisions[n], domain)
    return Trace(tuple(entries))
