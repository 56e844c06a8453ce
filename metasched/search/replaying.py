"""Exact replay of one trace with postprocs, in this process or as the job of a worker process."""

from __future__ import annotations

import gc
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


@dataclass(frozen=True)
class Replayed:
    """What a replay gave: the schedule, and its trace before the postprocs."""

    schedule: Schedule
    before: Trace


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
        before = sch.trace
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


@dataclass(frozen=True, slots=True)
class _Task:
    base: Schedule
    spaces: list[Trace]
    postprocs: tuple[Postproc, ...]
    target: Target


_tasks: dict[int, _Task] = {}


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
    _tasks[number] = _Task(Schedule(func, seed=0, check=False), traces, postprocs, target)


def replay_batch(
    number: int, requests: Sequence[tuple[int, list[Any], int]]
) -> list[Summary | str]:
    """In a worker: replay (space, decisions, seed) each; a slug stands for a refusal."""
    task = _tasks.get(number)
    if task is None:
        raise MeasureError("the worker was restarted and does not know the task")
    out: list[Summary | str] = []
    for space, decisions, seed in requests:
        trace = with_decisions(task.spaces[space], decisions)
        made = replayed(task.base, trace, "repair", seed, task.postprocs, task.target)
        if isinstance(made, str):
            out.append(made)
            continue
        sch, steps = made.schedule, [e for _, e in made.before.sampling()]
        out.append(
            Summary(
                structural_hash(sch.mod), features(sch.mod, task.target),
                [e.decision for e in steps], [e.domain for e in steps], sch.state.repairs,
            )
        )  # fmt: skip
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
