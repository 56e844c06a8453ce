"""Results as text and as JSON data: of a tuning run, of the store, of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `doctor` needs columns, not the tuner
    from metasched.database.record import Record
    from metasched.schedule.trace import Trace
    from metasched.search.result import TuneResult


def duration(seconds: float) -> str:
    """A time as text, in the unit that suits its size."""
    if not math.isfinite(seconds):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def ending(reason: str) -> str:
    """Why a search ended, in words."""
    words = {
        "budget": "all trials are used", "time": "time is up",
        "exhausted": "no other programs are left",
        "storage": "the database cannot be written",
        "runner": "the runner failed",
    }  # fmt: skip
    return words.get(reason, reason)


def instructions(trace: Trace) -> list[str]:
    """The tensor intrinsics that a trace puts into the program, each once, in order."""
    used = (e.attrs["tensor_intrin"] for e in trace if e.kind.name == "tensorize")
    return list(dict.fromkeys(map(str, used)))


def tune_data(
    result: TuneResult,
    shape: Sequence[int] | None,
    peer: float | None = None,
    over: float | None = None,
) -> dict[str, Any]:
    """What `metasched tune --json` prints for one task.

    Args:
        result: the result of the run.
        shape: the shape, for a workload of the suite.
        peer: NumPy's seconds.
        over: NumPy's time over the time of the best program, timed in turns.
    """
    peak = result.peak_gflops()
    best = None
    if result.best is not None and result.gflops is not None:
        best = {
            "seconds": result.best.seconds,
            "gflops": result.gflops,
            "peak_fraction": None if peak is None else result.gflops / peak,
            "trace": None if result.best.path is None else str(result.best.path),
            "instructions": instructions(result.best.trace),
        }
    return {
        "workload": result.workload,
        "shape": None if shape is None else list(shape),
        "target": result.target.key,
        "trials": result.trials,
        "failed": result.failed,
        "failures": {k: {"count": n, "message": m} for k, (n, m) in result.failures.items()},
        "wall_seconds": result.wall_seconds,
        "phases": dict(result.phases),
        "best": best,
        "default_seconds": result.default_seconds,
        "unscheduled_seconds": result.unscheduled_seconds,
        "numpy_seconds": peer,
        "speedup_over_numpy": over,
        "speedup_over_default": result.speedup_over_default,
        "survival": result.survival.share,
        "rejections": dict(result.survival.reasons),
        "peak_gflops": peak,
        "threads": result.threads,
        "seed": result.seed,
        "ended": result.ended,
    }


def tune_text(result: TuneResult, peer: float | None = None, over: float | None = None) -> str:
    """The summary that ends `metasched tune`; `peer` and `over` as in `tune_data`."""
    peak = result.peak_gflops()
    threads = f", {result.threads} threads" if result.threads else ""
    lines = [f"{result.workload} on {result.target.key}{threads}"]
    best = result.best
    if best is None:
        lines.append(f"  no candidate was {'right' if result.trials else 'measured'}")
    else:
        rate = result.gflops or 0.0
        share = "" if peak is None else (
            f", {100 * rate / peak:.0f} % of the measured FMA peak ({peak:.0f} GFLOP/s)"
        )  # fmt: skip
        lines.append(f"  best      {duration(best.seconds)}   {rate:.1f} GFLOP/s{share}")
        if used := instructions(best.trace):
            lines.append(f"  instruction {', '.join(used)}")
        for label, seconds in (
            ("default schedule", result.default_seconds),
            ("unscheduled, serial", result.unscheduled_seconds),
        ):
            if seconds is not None and math.isfinite(seconds):
                lines.append(f"  {seconds / best.seconds:.2f} x {label} ({duration(seconds)})")
        if peer is not None and over is not None:
            turns = f"{duration(peer)} beside {duration(peer / over)}"
            lines.append(f"  {over:.2f} x NumPy ({turns}), timed in turns")
    where = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.phases.items())
    lines.append(f"  took      {result.wall_seconds:.1f} s: {where} (builds run beside the rest)")
    lines.append(f"  trials    {result.trials}, {result.failed} failed; {ending(result.ended)}")
    lines += [f"  model     {note}" for note in result.notes]
    lines += [f"  space     {refusal}" for refusal in result.refusals]
    for status, (count, message) in result.failures.items():
        first = message.strip().splitlines()[0] if message.strip() else ""
        lines.append(f"    {count} {status}: {first[:160]}")
    lines.append(
        f"  replays   {result.survival.tried}, {100 * result.survival.share:.0f} % survived"
    )
    for reason, count in result.survival.reasons.most_common(5):
        lines.append(f"    {count} {reason}")
    if best is not None and best.path is not None:
        lines.append(f"  trace     {best.path}")
    return "\n".join(lines)


def records_text(records: Sequence[Record]) -> str:
    """Stored trials, one a line, the fastest first; trials of several machines by machine."""
    lines, machines = [], {r.machine for r in records if r.ok}
    order = sorted(records, key=lambda r: (r.machine if len(machines) > 1 else "", r.seconds))
    for record in order:
        shown = duration(record.seconds) if record.ok else record.status.value
        name = record.workload_name or record.workload_hash[:12]
        line = f"{name:24} #{record.index:<5} {shown:>14}  {record.candidate_key[:12]}"
        lines.append(f"{line}  {record.machine or 'unknown'}" if len(machines) > 1 else line)
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Print rows of cells as aligned columns."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def quality_text(rows: Sequence[Mapping[str, Any]], records: int, tasks: int, lost: int) -> str:
    """Rank quality of the held-out tasks or operators, one line each."""
    lines = [f"{records} records of {tasks} tasks, {lost} that do not replay any more"]
    lines.append(f"{'held out':12} {'pairs':>8} {'best of 1':>10} {'best of 5':>10}")
    for row in rows:
        lines.append(
            f"{row['held_out']:12} {row['pairs']:8.3f} {row['top1']:10.3f} {row['top5']:10.3f}"
        )
    return "\n".join(lines)
