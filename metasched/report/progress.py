"""Progress of a tuning run: a live table on a terminal, plain lines elsewhere; both observers."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from metasched.report.tables import duration, ending
from metasched.search.observe import (
    Event,
    FinalStep,
    ModelNews,
    PeerTimed,
    RoundDone,
    SpaceNews,
    TaskFinished,
    TaskStarted,
    TrialDone,
)


class _Row:
    """The displayed state of one task."""

    def __init__(self, started: TaskStarted) -> None:
        self.started, self.best = started, math.inf
        self.trials, self.failed, self.state = started.known, 0, "running"

    def cells(self, peak: float | None) -> list[str]:
        rate = self.started.flops / self.best / 1e9 if math.isfinite(self.best) else 0.0
        share = f"{100 * rate / peak:.0f} %" if peak and rate else "-"
        ok = self.trials - self.failed
        return [
            self.started.task, f"{self.trials}/{self.started.budget}", f"{ok}/{self.failed}",
            duration(self.best), f"{rate:.1f}" if rate else "-", share, self.state,
        ]  # fmt: skip


class LiveProgress:
    """A table that is redrawn in place; use it as a context manager."""

    def __init__(self, peak: float | None, time_limit: float | None = None) -> None:
        self.peak, self.rows = peak, dict[str, _Row]()
        self.deadline = None if time_limit is None else time.perf_counter() + time_limit
        self._live = Live(console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._live.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, TaskStarted):
            self.rows[event.task] = _Row(event)
        if isinstance(event, (PeerTimed, ModelNews, SpaceNews)):
            return
        row = self.rows[event.task]
        if isinstance(event, TrialDone):
            row.best, row.trials, row.failed = event.best, event.trials, event.failed
        elif isinstance(event, TaskFinished):
            row.state = event.reason
        elif isinstance(event, FinalStep):
            row.state = f"final {event.step}/{event.steps}: {event.text}"
        self._live.update(self._table())

    def _table(self) -> Table:
        title = None
        if self.deadline is not None:
            left = max(0.0, self.deadline - time.perf_counter())
            title = f"{left:.0f} s left"
        table = Table(title=title)
        for name in ("task", "trials", "ok/failed", "best", "GFLOP/s", "of peak", "state"):
            table.add_column(name, justify="left" if name in ("task", "state") else "right")
        for row in self.rows.values():
            table.add_row(*row.cells(self.peak))
        return table


class PlainProgress:
    """One line a round, for logs and pipes."""

    def __init__(self, peak: float | None, out: TextIO | None = None) -> None:
        self.peak, self.out = peak, out or sys.stderr
        self._flops: dict[str, float] = {}

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __call__(self, event: Event) -> None:
        if isinstance(event, TaskStarted):
            self._flops[event.task] = event.flops
            known = f", {event.known} known already" if event.known else ""
            self._say(
                f"{event.task}: {event.budget} trials, {event.spaces} "
                f"design space{'' if event.spaces == 1 else 's'}{known}"
            )
        elif isinstance(event, RoundDone):
            rate = self._flops[event.task] / event.best / 1e9
            share = f" ({100 * rate / self.peak:.0f} % of peak)" if self.peak else ""
            self._say(
                f"{event.task}: round {event.round}, {event.trials} trials, {event.failed} failed, "
                f"best {duration(event.best)}, {rate:.1f} GFLOP/s{share}, {event.elapsed:.1f} s"
            )
        elif isinstance(event, ModelNews):
            self._say(f"{event.task}: the cost model {event.text}")
        elif isinstance(event, SpaceNews):
            self._say(f"{event.task}: {event.text}")
        elif isinstance(event, TaskFinished):
            why = ending(event.reason)
            self._say(f"{event.task}: the search ended after {event.elapsed:.1f} s: {why}")
        elif isinstance(event, FinalStep):
            self._say(f"{event.task}: final comparison {event.step}/{event.steps}: {event.text}")

    def _say(self, text: str) -> None:
        print(text, file=self.out, flush=True)


def progress(peak: float | None, time_limit: float | None = None) -> LiveProgress | PlainProgress:
    """Choose the progress observer: a live table if standard error is a terminal, else plain
    lines."""
    return LiveProgress(peak, time_limit) if sys.stderr.isatty() else PlainProgress(peak)
