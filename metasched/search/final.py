"""The final comparison: the fastest programs are timed again to choose the winner."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from metasched.database.record import TraceFile
from metasched.errors import DatabaseError, MeasureError, warn
from metasched.measure.candidate import Compares, calling
from metasched.runtime.timing import beside_each_other
from metasched.search.population import SearchCandidate
from metasched.search.run import TaskRun

FINALISTS = 8  # the fewest programs in the final
FINALISTS_PER_TRIAL = 1 / 8  # programs in the final of a long run, for each trial
CLOSE = 1.15  # a finalist takes at most this many times the seconds of the best
ALWAYS = 4  # the fastest programs, always in the final: the best time may be far too low
PRELIMINARY_ROUNDS = 3  # the fewest turns that choose the finalists from twice their number
FINAL_ROUNDS = 8  # the fewest turns of the final
SECONDS_PER_TRIAL = 1 / 128  # seconds that all turns together may take, for each trial of the run
# The time of a program differs between processes: one kernel took 35 to 45 us in 38 of 40 processes
# and 68 us in two. So longer runs compare the leaders again in further processes.
LEADERS = 8  # programs of the final that are timed in further processes
PROCESSES = 4  # the most further processes
TRIALS_PER_PROCESS = 65  # trials of a run for each further process


def final_comparison(
    run: TaskRun, runner: Compares, default_seconds: float | None
) -> tuple[tuple[SearchCandidate, float] | None, float | None]:
    """The fastest program that is right on normally distributed data, with its seconds; and the
    seconds of the default schedule.

    The fastest programs are timed again, in turns with the default schedule: the minimum of many
    noisy times is biased low. The median over the processes that timed a program counts.
    """
    count = max(FINALISTS, int(run.progress.trials * FINALISTS_PER_TRIAL))
    ranking, limit = run.population.measured[: 2 * count], CLOSE * run.best_seconds
    near = [candidate for n, (candidate, s) in enumerate(ranking) if n < ALWAYS or s <= limit]
    if len(near) > count:  # the preliminaries choose the programs of the longer final
        first = _times_in_turns(run, runner, near, PRELIMINARY_ROUNDS)
        near = sorted(near, key=lambda candidate: first.get(candidate.key, 0.0))[:count]
    if default_seconds is not None and all(candidate.key != run.default.key for candidate in near):
        near.append(run.default)
    again = _times_in_turns(run, runner, near, FINAL_ROUNDS) if len(near) > 1 else {}
    order = sorted(
        (candidate for candidate in near if again), key=lambda candidate: again[candidate.key]
    )
    leaders, processes = order[:LEADERS], min(PROCESSES, run.progress.trials // TRIALS_PER_PROCESS)
    more = (
        _times_in_turns(run, runner, leaders, FINAL_ROUNDS, processes) for _ in range(processes)
    )
    seen = [again, *(more if again else ())]
    usual = {key: median(t[key] for t in seen if key in t) for key in again}
    order[:LEADERS] = sorted(leaders, key=lambda candidate: usual[candidate.key])
    default_seconds = usual.get(run.default.key, default_seconds)
    finalists = [(candidate, usual[candidate.key]) for candidate in order]
    for candidate, seconds in [*finalists, *(pair for pair in ranking if pair[0].key not in again)]:
        with calling(runner):
            outcome = runner.verify(candidate.to_measure())
        if outcome.ok:
            return (candidate, seconds), default_seconds
        why = f"{outcome.status.value}: {outcome.message}"
        warn(f"{run.name}: a fast candidate was refused at last: {why}")
    return None, default_seconds


def _times_in_turns(
    run: TaskRun, runner: Compares, programs: Sequence[SearchCandidate], least: int, among: int = 0
) -> dict[str, float]:
    """Seconds of programs by their keys, timed in turns; empty if the timing fails.

    Args:
        least: the fewest turns.
        among: time the programs in a new process, one of this many that share the time; 0 for the
            process of the run.
    """
    took = max(1, among) * len(programs) * max(run.best_seconds, 1e-3 * runner.options.sample_ms)
    rounds = int(min(80, max(least, SECONDS_PER_TRIAL * run.progress.trials / took)))
    try:
        given = [candidate.to_measure() for candidate in programs]
        with calling(runner):
            turns = runner.interleave(given, rounds, fresh=among > 0)
    except MeasureError as error:
        where = "in a further process" if among else "beside the default"
        text = f"{run.name}: the winner was not timed again {where}: {error}"
        warn(text)
        return {}
    return dict(
        zip((candidate.key for candidate in programs), beside_each_other(turns), strict=False)
    )


def rescued(run: TaskRun, folder: Path, reason: str) -> str:
    """Save the best trace of a run whose database or runner failed; returns a sentence about it.

    The trace goes beside the database, or into the folder of temporary files. The sentence is empty
    if the run has no best program, or its results were not confirmed yet.

    Args:
        reason: why the run ends: `storage` or `runner`.
    """
    run.finish(reason)
    if run.best is None or (run.held and reason == "runner"):
        return ""
    candidate, seconds = run.best
    kept = TraceFile.from_record(run.record(candidate, run.outcomes[candidate.key], 0))
    text = f"{run.name}: the best program until then takes {seconds:.3g} s"
    for temporary in (False, True):
        try:
            place = Path(tempfile.mkdtemp(prefix="metasched-")) if temporary else folder
            path = kept.save(place / f"{run.name}.{run.workload[:12]}.trace.json")
        except (DatabaseError, OSError):  # this disk is full as well: try the next folder
            continue
        return f"{text}; its trace is {path}"
    return f"{text}; its trace could not be saved, its decisions are {candidate.trace.decisions()}"
