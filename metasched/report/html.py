"""One offline HTML page about a work folder: everything inline, nothing fetched, no script."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from metasched.codegen.peak import measured_peak
from metasched.database.record import TraceFile, tool_version
from metasched.database.replay import replay
from metasched.errors import MetaschedError, warn
from metasched.ir.func import PrimFunc
from metasched.report.bandwidth import measured_bandwidth
from metasched.report.history import History, read_history
from metasched.report.svg import Axis, Point, Series, chart
from metasched.report.tables import duration, ending
from metasched.schedule.trace import Trace
from metasched.script.parser import parse
from metasched.target import Target
from metasched.tune import EVENTS

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d5d9de; --code: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe3e8; --paper: #16191d; --line: #3a4048; --code: #20252b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0; }
th, td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--code); padding: 0.8rem; overflow: auto; max-height: 32rem;
  font: 12.5px/1.45 ui-monospace, monospace; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .x, svg .none { text-anchor: middle; }
svg .y { text-anchor: end; }
svg .grid { stroke: var(--line); stroke-width: 1; }
"""


@dataclass(frozen=True)
class Machine:
    """The roofs: multiply-add peak in GFLOP/s and memory bandwidth in GB/s, both measured."""

    peak: float
    bandwidth: float

    @staticmethod
    def measured(target: Target) -> Machine:
        """Measure this machine; takes about half a second."""
        cores = target.num_cores
        return Machine(measured_peak(target, "float32", cores), measured_bandwidth(cores))


@dataclass
class Chapter:
    """One workload: what the log says, the trace file that ships, and peers of a comparison."""

    history: History
    trace: TraceFile | None = None
    path: Path | None = None
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return self.trace.seconds if self.trace is not None else self.history.best


def chapters_of(folder: Path) -> list[Chapter]:
    """The workloads of a work folder.

    Raises MetaschedError when there is neither an event log nor a trace file.
    """
    files: dict[str, tuple[Path, TraceFile]] = {}
    for path in sorted(folder.glob("*.trace.json")):
        try:
            stored = TraceFile.load(path)
            parse(stored.workload)
            Trace.from_json(json.dumps(stored.trace))
        except MetaschedError as error:
            place = "" if str(path) in str(error) else f"{path}: "
            warn(f"{place}{error}; the file is left out")
            continue
        files[stored.workload_hash] = (path, stored)
    found = []
    for history in read_history(folder / EVENTS):
        path_, trace = files.pop(history.workload, (None, None))
        found.append(Chapter(history, trace, path_, dict(history.peers)))
    for path_, trace in files.values():
        name = trace.workload_name or trace.workload_hash[:12]
        found.append(Chapter(History(name, trace.workload_hash), trace, path_))
    if not found:
        raise MetaschedError(f"{folder} holds no tuning run; `metasched tune` makes one")
    return found


def page(chapters: Sequence[Chapter], machine: Machine, title: str) -> str:
    """The whole page."""
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>This machine, measured for this page: {machine.peak:.0f} GFLOP/s of float32 "
        f"multiply-adds, {machine.bandwidth:.1f} GB/s of memory copies. "
        f"metasched {escape(tool_version())}.</p>",
    ]
    if len(chapters) > 1:
        links = ", ".join(
            f'<a href="#w{n}">{escape(c.history.name)}</a>' for n, c in enumerate(chapters)
        )
        body.append(f"<p>Workloads: {links}</p>")
    for number, chapter in enumerate(chapters):
        body += _chapter(number, chapter, machine)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _chapter(number: int, c: Chapter, machine: Machine) -> list[str]:
    h = c.history
    figures = [
        ("Best so far, by trials", _by_trials(h)),
        ("Best so far, by seconds", _by_seconds(h)),
        ("Predicted and measured", _predicted(h)),
        ("Roofline", _roofline(c, machine)),
    ]
    drawn = "".join(f"<figure><figcaption>{t}</figcaption>{s}</figure>" for t, s in figures)
    return [
        f'<section id="w{number}"><h2>{escape(h.name)}</h2>',
        _summary(c, machine),
        f'<div class="two">{drawn}</div>',
        _agreement(h),
        _failures(h),
        *_texts(c),
        "</section>",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if tag == "td" and _numeric(cell) else "" for cell in cells]
        inner = "".join(
            f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)
        )
        return f"<tr>{inner}</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell == "-"


def timed_points(c: Chapter) -> list[tuple[str, float]]:
    """(name, seconds) of every program that was timed on this workload."""
    found = [("best", c.best)]
    if c.trace is not None:
        for name, value in (
            ("default schedule", c.trace.default_seconds),
            ("unscheduled, serial", c.trace.unscheduled_seconds),
        ):
            if value is not None:
                found.append((name, value))
    found += sorted(c.peers.items())
    return [(name, seconds) for name, seconds in found if math.isfinite(seconds) and seconds > 0]


def _summary(c: Chapter, machine: Machine) -> str:
    h, rows = c.history, []
    for name, seconds in timed_points(c):
        rate = h.flops / seconds / 1e9
        rows.append(
            (
                name, duration(seconds), f"{rate:.1f}", f"{100 * rate / machine.peak:.1f} %",
                f"{seconds / c.best:.2f}",
            )
        )  # fmt: skip
    head = ("what", "time", "GFLOP/s", "of peak", "its time over the best")
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in h.phases.items())
    failed = sum(not t.ok for t in h.trials)
    ended = f"; {ending(h.ended)}" if h.ended else ""
    summary = f"{len(h.trials)} trials, {failed} failed{ended}. {spent}"
    machines = sorted({t.machine for t in h.trials if t.machine})
    if machines:
        summary += f". Measured on {'; '.join(machines)}"
    return f"{_table(head, rows)}<p>{escape(summary)}</p>"


def _by_trials(h: History) -> str:
    steps = [(t.number, best * 1e3) for t, best in h.best_so_far()]
    dots = [(t.number, t.seconds * 1e3) for t in h.trials if t.ok]
    return _progress(h, "trials", steps, dots)


def _by_seconds(h: History) -> str:
    steps = [(t.at, best * 1e3) for t, best in h.best_so_far()]
    dots = [(t.at, t.seconds * 1e3) for t in h.trials if t.ok]
    return _progress(h, "seconds of tuning", steps, dots)


def _progress(h: History, label: str, steps: Sequence[Point], dots: Sequence[Point]) -> str:
    titles = [f"trial {t.number}: {duration(t.seconds)}" for t in h.trials if t.ok]
    return chart(
        f"{h.name}: best so far against {label}", Axis(label), Axis("milliseconds", log=True),
        [
            Series("each trial", dots, "dots", titles, 5),
            Series("best so far", steps, "steps", (), 0),
        ],
    )  # fmt: skip


def _predicted(h: History) -> str:
    """Chart of ranks within each round, since the model's scores are not comparable across
    rounds."""
    points: list[tuple[float, float]] = []
    titles: list[str] = []
    for number in sorted({t.round for t in h.trials}):
        rated = [t for t in h.trials if t.ok and t.round == number and t.predicted is not None]
        if len(rated) < 2:
            continue
        guess = sorted(rated, key=lambda t: -(t.predicted or 0.0))
        clock = sorted(rated, key=lambda t: t.seconds)
        for trial in rated:
            points.append((guess.index(trial) + 1, clock.index(trial) + 1))
            titles.append(f"trial {trial.number}, round {number + 1}: {duration(trial.seconds)}")
    top = max((max(p) for p in points), default=1.0)
    return chart(
        f"{h.name}: rank by the model against rank by the clock",
        Axis("rank the model gave within its round"), Axis("measured rank"),
        [
            Series("candidates", points, "dots", titles, 0),
            Series("as predicted", [(1, 1), (top, top)] if points else [], "line", (), 5, True),
        ],
    )  # fmt: skip


def _agreement(h: History) -> str:
    share = h.agreement()
    if share is None:
        return "<p>No predictions were logged: the first round is chosen without a model.</p>"
    return f"<p>The model ordered {100 * share:.0f} % of the pairs of a round as the clock did.</p>"


def _failures(h: History) -> str:
    rows = [(stage, status, str(n), text[:300]) for stage, status, n, text in h.failures()]
    if not rows:
        return "<h3>Failures</h3><p>No trial failed.</p>"
    return f"<h3>Failures</h3>{_table(('stage', 'status', 'trials', 'first reason'), rows)}"


def least_bytes(trace: TraceFile) -> float:
    """Bytes of the buffers of the workload: what any schedule must move at least once."""
    func = parse(trace.workload)
    if not isinstance(func, PrimFunc):
        return 0.0
    total = 0.0
    for buffer in func.buffers:
        shape = buffer.constant_shape()
        if shape is None:
            return 0.0
        total += math.prod(shape) * buffer.dtype.bits / 8
    return total


def _roofline(c: Chapter, machine: Machine) -> str:
    size = least_bytes(c.trace) if c.trace is not None else 0.0
    if not size or not c.history.flops:
        return chart("roofline", Axis(""), Axis(""), [])
    at = c.history.flops / size
    ridge = machine.peak / machine.bandwidth
    low, high = min(at, ridge) / 8, max(at, ridge) * 8
    roof = [(low, low * machine.bandwidth), (ridge, machine.peak), (high, machine.peak)]
    series = [Series("roof", roof, "line", (), 5)]
    for number, (name, seconds) in enumerate(timed_points(c)):
        rate = c.history.flops / seconds / 1e9
        title = f"{name}: {rate:.1f} GFLOP/s at {at:.1f} FLOP/byte"
        series.append(Series(name, [(at, rate)], "dots", (title,), number))
    return chart(
        f"{c.history.name}: roofline", Axis("FLOP for each byte that must move", log=True),
        Axis("GFLOP/s", log=True), series,
    )  # fmt: skip


def _texts(c: Chapter) -> list[str]:
    """The best trace as Python, and the script before and after."""
    if c.trace is None:
        return ["<p>There is no trace file of this workload in the folder.</p>"]
    python = Trace.from_json(json.dumps(c.trace.trace)).as_python()
    after = _scheduled(c)
    shown = [
        f"<h3>The best trace</h3><p>{escape(c.path.name if c.path else '')}</p>",
        f'<pre class="trace">{escape(python)}</pre><h3>The program, before and after</h3>',
        f'<div class="two"><pre class="before">{escape(c.trace.workload)}</pre>'
        f'<pre class="after">{escape(after)}</pre></div>',
    ]
    return shown


def _scheduled(c: Chapter) -> str:
    assert c.trace is not None and c.path is not None
    func = parse(c.trace.workload)
    if not isinstance(func, PrimFunc):
        return "the workload is no single function"
    try:
        return replay(c.path, func, target=c.trace.target_value).mod.script()
    except MetaschedError as error:
        return f"the trace does not replay: {error}"
