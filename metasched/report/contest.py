"""A contest: our kernel and its peers timed in turns, so that a noisy machine is noisy for all.

Each contestant is a child process without tuning variables in its environment (`report.peers`).
They take turns in short bursts; a ratio is the median over the rounds of two bursts that stood
next to each other, which a machine that slows down for a minute does not move.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from metasched.errors import MeasureError
from metasched.report.peers import OURS, PEAK, PEERS

_TUNING = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_", "GOMP_", "KMP_", "NUMEXPR_")
_ROUNDS, _BURST = 7, 0.1
# An idle OpenMP team of one contestant spins for some milliseconds beside the next one's burst.
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contestant did.

    Attributes:
        bursts: median seconds of a call, a value a round; empty when it could not take part.
        note: why not.
    """

    bursts: tuple[float, ...] = ()
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """The median round."""
        return statistics.median(self.bursts) if self.bursts else None


def clean_environment() -> dict[str, str]:
    """The environment without variables that tune or cripple numerical libraries."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_TUNING)}


class _Child:
    """One contestant's process."""

    def __init__(self, name: str, op: str, shape: Sequence[int], trace: Path | None) -> None:
        self.name, self.op = name, op
        command = [sys.executable, "-m", "metasched.report.peers", name, op]
        command += [",".join(map(str, shape)), *([str(trace)] if trace else [])]
        # A pipe that nobody reads would stop a talkative child.
        self._told = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._told, start_new_session=True,
        )  # fmt: skip

    def answer(self, timeout: float) -> dict[str, float]:
        """The next line it says; MeasureError when it fails or is silent for too long."""
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout)[0]:
            raise MeasureError(f"{self.name} took more than {timeout:.0f} s for {self.op}")
        line = out.readline()
        if not line:
            self._process.wait()
            self._told.seek(0)
            told = self._told.read().decode(errors="replace").strip()
            raise MeasureError(f"{self.name} failed on {self.op}: {told[-300:]}")
        return dict(json.loads(line))

    def burst(self, seconds: float, timeout: float) -> float:
        """Median seconds of a call."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{seconds}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` tells what it died of
        return self.answer(timeout)["seconds"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._told.close()


def contest(
    op: str,
    shape: Sequence[int],
    names: Sequence[str],
    trace: Path | None = None,
    *,
    rounds: int = _ROUNDS,
    timeout: float = 300.0,
) -> dict[str, Outcome]:
    """Time contestants in turns.

    Args:
        op: a workload of the suite.
        shape: its shape.
        names: peers (`peers.PEERS`), `peers.OURS` for the kernel of `trace`, and `peers.PEAK`.
        trace: a trace file tuned for this operator and shape.
        rounds: bursts of each.
        timeout: seconds for getting ready, and for a burst.

    Returns an outcome for each name; one that fails or lacks the operator has its reason as a
    note. Raises MeasureError for a name that does not exist.
    """
    for name in names:
        if name not in (*PEERS, OURS, PEAK):
            raise MeasureError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    children: dict[str, _Child] = {}
    bursts: dict[str, list[float]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    try:
        for name in names:  # one after another: they would disturb each other's warm-up
            children[name] = _Child(name, op, shape, trace if name == OURS else None)
            _noting(notes, children[name], lambda child: _ready(child, timeout))
        for _ in range(rounds):
            for name in [n for n in names if n not in notes]:
                time.sleep(_PAUSE)
                _noting(
                    notes,
                    children[name],
                    lambda child: bursts[child.name].append(child.burst(_BURST, timeout)),
                )
    finally:
        for child in children.values():
            child.close()
    return {n: Outcome(note=notes[n]) if n in notes else Outcome(tuple(bursts[n])) for n in names}


def _ready(child: _Child, timeout: float) -> None:
    if not child.answer(timeout)["ready"]:
        raise MeasureError("it lacks the operator")


def _noting(notes: dict[str, str], child: _Child, work: Callable[[_Child], None]) -> None:
    """Do a step of one contestant; its failure is its own note, not the end of the contest."""
    try:
        work(child)
    except MeasureError as error:
        notes[child.name] = str(error)


def ratio(theirs: Outcome, ours: Outcome) -> float | None:
    """Their time over ours: the median over the rounds; None when one of them has no time."""
    pairs = [t / o for t, o in zip(theirs.bursts, ours.bursts, strict=False)]
    return statistics.median(pairs) if pairs else None
