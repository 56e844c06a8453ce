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
from metasched.search.observe import FinalStep
from metasched.search.population import SearchCandidate
from metasched.search.run import TaskRun

INTERRUPTED = "interrupted"  # why a run ended: Ctrl-C
FINALISTS = 8  # the fewest programs in the final
FINALISTS_PER_TRIAL = 1 / 8  # programs in the final of a long run, for each trial
CLOSE = 1.15  # a finalist takes at most this many times the seconds of the best
WRITTEN = 0.95  # the program as written is a candidate if it takes less than this times the best
ALWAYS = 4  # the fastest programs, always in the final: the best time may be far too low
PRELIMINARY_ROUNDS = 3  # the fewest turns that choose the finalists from twice their number
FINAL_ROUNDS = 8  # the fewest turns of the final
SECONDS_PER_TRIAL = 1 / 128  # seconds that all turns together may take, for each trial of the run
# The time of a program differs between processes: one kernel took 35 to 45 us in 38 of 40 processes
# and 68 us in two. So longer runs compare the leaders again in further processes.
LEADERS = 8  # programs of the final that are timed in further processes
PROCESSES = 4  # the most further processes
TRIALS_PER_PROCESS = 65  # trials of a run for each further process


def compared(
    run: TaskRun, again: bool
) -> tuple[tuple[SearchCandidate, float] | None, float | None, float | None]:
    """The winner of a run with its seconds, and the seconds of the default schedule and of the
    program as written, where they are known.

    Ctrl-C ends the comparison: the best program of the search is the winner.

    Args:
        again: compare the fastest programs again, if the runner can.
    """
    default, unscheduled = run.outcomes.get(run.default.key), None
    default_seconds = default.median if default is not None and default.ok else None
    if again and isinstance(run.runner, Compares):
        final = FinalComparison(run, run.runner)
        try:
            unscheduled = final.unscheduled()
            if unscheduled < WRITTEN * run.best_seconds and run.measure_as_written():
                final = FinalComparison(run, run.runner)
            return *final.winner(default_seconds), unscheduled
        except KeyboardInterrupt:
            run.finished = INTERRUPTED
    return run.best, default_seconds, unscheduled


class FinalComparison:
    """The end of a run; its steps are told to the observer of the run.

    Attributes:
        finalists: the programs that are timed in the final.
        near: the fastest programs of the search, from which `finalists` are chosen by a preliminary
            if there are more.
    """

    def __init__(self, run: TaskRun, runner: Compares) -> None:
        self.run, self.runner = run, runner
        trials = run.progress.trials
        self.finalists = max(FINALISTS, int(trials * FINALISTS_PER_TRIAL))
        self.ranking = run.population.measured[: 2 * self.finalists]
        limit = CLOSE * run.best_seconds
        self.near = [
            candidate for n, (candidate, s) in enumerate(self.ranking) if n < ALWAYS or s <= limit
        ]
        self.processes = min(PROCESSES, trials // TRIALS_PER_PROCESS)
        preliminary = len(self.near) > self.finalists
        self.step, self.steps = 0, 3 + preliminary + self.processes

    def unscheduled(self) -> float:
        """The seconds of the program as written, whose results the run may still wait for."""
        self._begin("the program as written is timed")
        with calling(self.runner):
            return self.runner.unscheduled().median

    def winner(
        self, default_seconds: float | None
    ) -> tuple[tuple[SearchCandidate, float] | None, float | None]:
        """The fastest program that is right on normally distributed data, with its seconds; and the
        seconds of the default schedule.

        The fastest programs are timed again, in turns with the default schedule: the minimum of
        many noisy times is biased low. The median over the processes that timed a program counts.
        """
        near, default = self.near, self.run.default
        if len(near) > self.finalists:
            first = self._times_in_turns(near, PRELIMINARY_ROUNDS)
            near = sorted(near, key=lambda each: first.get(each.key, 0.0))[: self.finalists]
        if default_seconds is not None and all(each.key != default.key for each in near):
            near = [*near, default]
        again = self._times_in_turns(near, FINAL_ROUNDS) if len(near) > 1 else {}
        order = sorted((each for each in near if again), key=lambda each: again[each.key])
        leaders = order[:LEADERS]
        seen = [again]
        for number in range(self.processes if again else 0):
            seen.append(self._times_in_turns(leaders, FINAL_ROUNDS, number + 1))
        usual = {key: median(t[key] for t in seen if key in t) for key in again}
        order[:LEADERS] = sorted(leaders, key=lambda each: usual[each.key])
        timed = [(candidate, usual[candidate.key]) for candidate in order]
        untimed = [pair for pair in self.ranking if pair[0].key not in again]
        return self._first_right([*timed, *untimed]), usual.get(default.key, default_seconds)

    def _first_right(
        self, ranking: Sequence[tuple[SearchCandidate, float]]
    ) -> tuple[SearchCandidate, float] | None:
        """The first program that is right on normally distributed data."""
        if ranking:
            self._begin("the fastest program is checked on normally distributed data")
        for candidate, seconds in ranking:
            with calling(self.runner):
                outcome = self.runner.verify(candidate.to_measure())
            if outcome.ok:
                return candidate, seconds
            why = f"{outcome.status.value}: {outcome.message}"
            warn(f"{self.run.name}: a fast candidate was refused at last: {why}")
        return None

    def _times_in_turns(
        self, programs: Sequence[SearchCandidate], least: int, process: int = 0
    ) -> dict[str, float]:
        """Seconds of programs by their keys, timed in turns; empty if the timing fails.

        Args:
            least: the fewest turns.
            process: number of the new process that times the programs; `processes` of them share
                the time. 0 for the process of the run.
        """
        run, options = self.run, self.runner.options
        where = f" in new process {process} of {self.processes}" if process else ""
        self._begin(f"{len(programs)} programs are timed in turns{where}")
        among = self.processes if process else 1
        took = among * len(programs) * max(run.best_seconds, 1e-3 * options.sample_ms)
        rounds = int(min(80, max(least, SECONDS_PER_TRIAL * run.progress.trials / took)))
        try:
            given = [candidate.to_measure() for candidate in programs]
            with calling(self.runner):
                turns = self.runner.interleave(given, rounds, fresh=process > 0)
        except MeasureError as error:
            failed = "in a further process" if process else "beside the default"
            warn(f"{run.name}: the winner was not timed again {failed}: {error}")
            return {}
        return dict(
            zip((candidate.key for candidate in programs), beside_each_other(turns), strict=False)
        )

    def _begin(self, text: str) -> None:
        """Tell the observer what happens next."""
        self.step += 1
        self.run.observer(FinalStep(self.run.name, self.step, self.steps, text))


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
