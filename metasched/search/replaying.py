"""Exact replay of one trace with postprocs, in this process or as the job of a worker process."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasched.cost.features import features
from metasched.errors import MeasureError, ScheduleError, TraceError
from metasched.ir.equal import structural_hash
from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Decisions, Trace
from metasched.space.generate import Postproc
from metasched.target import Target

_KEPT = 256  # schedules of a task that are kept for their siblings


@dataclass(frozen=True)
class Replayed:
    """What a replay gave: the schedule, and its trace before the postprocs."""

    schedule: Schedule
    before: Trace


class Replayer:
    """Exact replays of the mutants of one task.

    Everything in a schedule is immutable, so it is kept as it stood before each sampling step, by
    the decisions that led there, and a mutant begins where it first differs from one before it.

    Attributes:
        base: the program, unscheduled.
        spaces: the traces whose decisions are open.
    """

    def __init__(
        self, base: Schedule, spaces: Sequence[Trace], postprocs: Sequence[Postproc], target: Target
    ) -> None:
        self.base, self.spaces = base, spaces
        self.postprocs, self.target = tuple(postprocs), target
        self._kept: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()

    def repaired(self, space: int, decisions: Sequence[Any], seed: int) -> Replayed | str:
        """Replay a member of a space, impossible decisions repaired, and run the postprocs; the
        slug of a refusal otherwise."""
        trace = with_decisions(self.spaces[space], decisions)
        places = [position for position, _ in trace.sampling()]
        keys: list[tuple[Any, ...]] = [(space,)]
        for decision in decisions:
            keys.append((*keys[-1], tuple(decision) if isinstance(decision, list) else decision))
        start, sch = 0, self._resumed(self.base, seed)
        for n in range(len(places) - 1, -1, -1):
            kept = self._kept.get(keys[n])
            if kept is not None:
                self._kept.move_to_end(keys[n])
                start, sch = places[n], self._resumed(kept, seed)
                break
        key_at = dict(zip(places, keys, strict=False))
        try:
            for position in range(start, len(trace.entries)):
                if position in key_at and position != start and sch.state.rng.state == seed:
                    self._keep(key_at[position], sch)
                sch.execute(trace.entries[position], "repair")
        except ScheduleError as error:
            return error.reason
        except TraceError:
            return "trace-does-not-fit"
        return finished(sch, self.postprocs, self.target)

    def _resumed(self, kept: Schedule, seed: int) -> Schedule:
        sch = kept.copy()
        sch.state.rng.state, sch.state.repairs = seed, kept.state.repairs
        return sch

    def _keep(self, key: tuple[Any, ...], sch: Schedule) -> None:
        """Keep a schedule for those that begin alike, the ones used last longest."""
        self._kept[key] = self._resumed(sch, 0)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)


def replayed(
    base: Schedule,
    trace: Trace,
    decisions: Decisions,
    seed: int,
    postprocs: Sequence[Postproc],
    target: Target,
) -> Replayed | str:
    """Replay `trace` on a copy of `base` and run the postprocs; the slug of a refusal otherwise."""
    sch = base.copy()
    sch.state.rng.state = seed
    try:
        trace.apply(sch, decisions=decisions)
    except ScheduleError as error:
        return error.reason
    except TraceError:
        return "trace-does-not-fit"
    return finished(sch, postprocs, target)


def finished(sch: Schedule, postprocs: Sequence[Postproc], target: Target) -> Replayed | str:
    """A schedule with the postprocs run on it, or the slug of a refusal."""
    before = sch.trace
    try:
        sch.enter_postproc()
        for postproc in postprocs:
            postproc(sch, target)
    except ScheduleError as error:
        return error.reason
    except TraceError:
        return "trace-does-not-fit"
    return Replayed(sch, before)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a worker tells of a program: enough to rank it and to make it again.

    Attributes:
        decisions, domains: of the sampling steps, repairs included.
        repairs: how many decisions were repaired.
    """

    key: str
    vector: np.ndarray[Any, Any]
    decisions: list[Any]
    domains: list[Any]
    repairs: int


def summary(made: Replayed, target: Target) -> Summary:
    """What there is to know of a replayed program."""
    sch, steps = made.schedule, [e for _, e in made.before.sampling()]
    return Summary(
        structural_hash(sch.mod), features(sch.mod, target),
        [e.decision for e in steps], [e.domain for e in steps], sch.state.repairs,
    )  # fmt: skip


_tasks: dict[int, Replayer] = {}


def prepare(
    number: int,
    func: PrimFunc,
    spaces: Sequence[str],
    postprocs: tuple[Postproc, ...],
    target: Target,
) -> None:
    """In a worker: get ready for the replays of one task."""
    gc.disable()
    traces = [Trace.from_json(text) for text in spaces]
    base = Schedule(func, seed=0, check=False)
    _tasks[number] = Replayer(base, traces, postprocs, target)


def replay_batch(
    number: int, requests: Sequence[tuple[int, list[Any], int]]
) -> list[Summary | str]:
    """In a worker: replay (space, decisions, seed) each; a slug stands for a refusal."""
    task = _tasks.get(number)
    if task is None:
        raise MeasureError("the worker was restarted and does not know the task")
    out: list[Summary | str] = []
    for space, decisions, seed in requests:
        made = task.repaired(space, decisions, seed)
        out.append(made if isinstance(made, str) else summary(made, task.target))
    gc.collect(1)
    return out


def with_decisions(
    trace: Trace, decisions: Sequence[Any], domains: Sequence[Any] | None = None
) -> Trace:
    """`trace` with decisions (and domains) for its sampling steps, in their order."""
    entries = list(trace.entries)
    for n, (position, entry) in enumerate(trace.sampling()):
        domain = entry.domain if domains is None else domains[n]
        entries[position] = entry.decided(decisions[n], domain)
    return Trace(tuple(entries))
