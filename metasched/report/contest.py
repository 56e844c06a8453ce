"""Contests: a tuned kernel and other libraries are timed in turns, so that noise affects all alike.

Each contestant is a worker process without tuning variables in its environment (`report.peers`).
Contestants take turns in short bursts. A ratio is a median over rounds: each round divides two
bursts that ran one after the other. So a machine that slows down for a minute does not change the
ratio.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.errors import MeasureError, brief
from metasched.measure.priority import FIRST
from metasched.measure.process import Worker
from metasched.report.peers import OURS, PEAK, PEERS

_TUNING = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_", "GOMP_", "KMP_", "NUMEXPR_")
_JOBS = "metasched.report.peers"
_ROUNDS, _BURST = 7, 0.1
# The idle threads of one contestant (OpenMP, OpenBLAS) spin for up to 0.1 s after its burst.
_PAUSE = 0.15


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of one contestant.

    Attributes:
        bursts: median seconds of a call, a value a round; empty if the contestant was left out.
        note: why the contestant was left out.
    """

    bursts: tuple[float, ...] = ()
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """The median over the rounds."""
        return statistics.median(self.bursts) if self.bursts else None


def clean_environment() -> dict[str, str]:
    """The environment without the variables that tune or limit numerical libraries."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_TUNING)}


class _Contestant:
    """One contestant and its worker process."""

    def __init__(self, name: str, op: str, timeout: float) -> None:
        """Nothing starts yet."""
        self.name, self._op, self._timeout = name, op, timeout
        self._worker = Worker(name, nice=FIRST, whole_environment=clean_environment())

    def prepare(self, shape: Sequence[int], trace: Path | None) -> None:
        """Start the process; MeasureError if it fails, does not answer in time or lacks the
        operator."""
        given = self.name, self._op, tuple(shape), None if trace is None else str(trace)
        if not self._do("prepare", *given):
            raise MeasureError("it lacks the operator")

    def burst(self, seconds: float) -> float:
        """Run one burst; gives the median seconds of a call."""
        return float(self._do("burst", seconds))

    def close(self) -> None:
        """End the process."""
        self._worker.close(grace=0.0)

    def _do(self, job: str, *arguments: Any) -> Any:
        reply = self._worker.run(f"{_JOBS}:{job}", *arguments, limit=self._timeout)
        if reply.kind == "timeout":
            raise MeasureError(f"{self.name} took more than {self._timeout:.0f} s for {self._op}")
        if reply.kind != "value":
            raise MeasureError(f"{self.name} failed on {self._op}: {reply.reason[-300:]}")
        return reply.value


def contest(
    op: str,
    shape: Sequence[int],
    names: Sequence[str],
    trace: Path | None = None,
    *,
    rounds: int = _ROUNDS,
    timeout: float = 300.0,
) -> dict[str, Standing]:
    """Time contestants in turns.

    Args:
        op: a workload of the suite.
        shape: its shape.
        names: peers (`peers.PEERS`), `peers.OURS` for the kernel of `trace`, and `peers.PEAK`.
        trace: a trace file tuned for this operator and shape.
        rounds: the number of bursts of each contestant.
        timeout: the limit in seconds of starting a contestant, and of a burst.

    Returns a standing for each name; a contestant that fails or lacks the operator has the reason
    as its note. Raises MeasureError for an unknown name.
    """
    for name in names:
        if name not in (*PEERS, OURS, PEAK):
            raise MeasureError(f"no peer is called {brief(name)}; there are {', '.join(PEERS)}")
    contestants = {name: _Contestant(name, op, timeout) for name in names}
    bursts: dict[str, list[float]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    try:
        for name, one in contestants.items():  # in turns: they would disturb each other's warm-up
            with _noting(notes, name):
                one.prepare(shape, trace if name in (OURS, PEAK) else None)
        for _ in range(rounds):
            for name in [n for n in names if n not in notes]:
                time.sleep(_PAUSE)
                with _noting(notes, name):
                    bursts[name].append(contestants[name].burst(_BURST))
    finally:
        for one in contestants.values():
            one.close()
    return {n: Standing(note=notes[n]) if n in notes else Standing(tuple(bursts[n])) for n in names}


@contextlib.contextmanager
def _noting(notes: dict[str, str], name: str) -> Iterator[None]:
    """Record the failure of one contestant as its note, and continue the contest."""
    try:
        yield
    except MeasureError as error:
        notes[name] = str(error)


def ratio(theirs: Standing, ours: Standing) -> float | None:
    """The time of `theirs` over the time of `ours`: the median over the rounds; None if either has
    no time."""
    pairs = [t / o for t, o in zip(theirs.bursts, ours.bursts, strict=False)]
    return statistics.median(pairs) if pairs else None
