"""Tuned kernels beside other libraries: rows of a comparison, their text and geometric means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.errors import MetaschedError, brief
from metasched.report.contest import Standing, contest, ratio
from metasched.report.peers import OURS, PEERS, what_is_missing
from metasched.report.tables import columns, duration
from metasched.report.tvm_record import Times

TVM = "tvm"
KNOWN = (*PEERS, TVM)


def peers_of(text: str) -> list[str]:
    """The peers that `--against` names; MetaschedError for an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KNOWN:
            raise MetaschedError(f"no peer is called {brief(name)}; there are {', '.join(KNOWN)}")
    return names


def usable(names: Sequence[str], tvm: Times | None) -> tuple[list[str], list[str]]:
    """The peers that are installed here, and a note for each peer that is not."""
    missing = {n: what_is_missing(n) if n != TVM else _no_tvm(tvm) for n in names}
    there = [name for name in names if not missing[name]]
    return there, [f"{name} is left out: {why}" for name, why in missing.items() if why]


def _no_tvm(tvm: Times | None) -> str:
    return "" if tvm is not None else "its times are read from a file, give --tvm-record FILE.json"


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """The time of one library.

    Attributes:
        seconds: the seconds of a call; None if there is no time.
        ratio: the seconds over the seconds of the tuned kernel.
        note: why there is no time.
    """

    seconds: float | None = None
    ratio: float | None = None
    note: str = ""


def side_by_side(
    op: str,
    shape: Sequence[int],
    peers: Sequence[str],
    trace: Path | None,
    tvm: Times | None = None,
) -> dict[str, LibraryTime]:
    """Time the tuned kernel and its peers in turns.

    Args:
        op: a workload of the suite.
        shape: its shape.
        peers: names of KNOWN, or PEAK.
        trace: the trace file of the tuned kernel; without a trace there are no ratios.
        tvm: recorded times of TVM.

    Returns a time for each peer, and for OURS.
    """
    live = [*([OURS] if trace else []), *(peer for peer in peers if peer != TVM)]
    outcomes = contest(op, shape, live, trace)
    ours = outcomes.get(OURS, Standing(note="no candidate was right"))
    sides = {OURS: LibraryTime(ours.seconds, None if ours.seconds is None else 1.0, ours.note)}
    for peer in peers:
        if peer == TVM:
            seconds = (tvm or {}).get((op, tuple(shape)))
            over = None if seconds is None or ours.seconds is None else seconds / ours.seconds
            sides[TVM] = LibraryTime(
                seconds, over, "" if seconds is not None else "not in the record"
            )
        else:
            found = outcomes[peer]
            sides[peer] = LibraryTime(found.seconds, ratio(found, ours), found.note)
    return sides


def row(
    op: str,
    shape: Sequence[int],
    dtype: str,
    peer: str,
    side: LibraryTime,
    flops: float,
    peak: float,
) -> dict[str, Any]:
    """One line of `metasched bench --json`.

    `ratio` is the peer's time over the time of the tuned kernel. `peak_fraction` is the rate over
    the peak of multiply-adds on the same types, which was measured in turns.
    """  # fmt: skip
    seconds = side.seconds
    rate = None if seconds is None else flops / seconds / 1e9
    return {
        "op": op, "shape": list(shape), "dtype": dtype, "peer": peer, "seconds": seconds,
        "gflops": rate, "ratio": side.ratio, "peak_gflops": peak,
        "peak_fraction": None if rate is None else rate / peak, "note": side.note,
    }  # fmt: skip


def geometric_means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric mean of the ratios of each peer, over the rows that have one."""
    ratios: dict[str, list[float]] = {}
    for each in rows:
        if each["peer"] != OURS and each["ratio"] is not None:
            ratios.setdefault(each["peer"], []).append(each["ratio"])
    return {p: math.exp(sum(map(math.log, r)) / len(r)) for p, r in ratios.items()}


def comparison_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, with a line of geometric means and the notes."""
    cells = [("op", "shape", "peer", "time", "GFLOP/s", "of peak", "its time over ours")]
    notes = []
    for each in rows:
        seconds, ratio = each["seconds"], each["ratio"]
        shape = ",".join(map(str, each["shape"]))
        cells.append(
            (
                each["op"], shape, each["peer"],
                "-" if seconds is None else duration(seconds),
                "-" if seconds is None else f"{each['gflops']:.1f}",
                "-" if seconds is None else f"{100 * each['peak_fraction']:.0f} %",
                "-" if ratio is None else f"{ratio:.2f}",
            )
        )  # fmt: skip
        if each["note"]:
            notes.append(f"{each['op']} {shape} {each['peer']}: {each['note']}")
    lines = [columns(cells)]
    means = geometric_means(rows)
    if means:
        ratios = ", ".join(f"{peer} {mean:.2f}" for peer, mean in means.items())
        lines.append(f"geometric mean of their times over ours: {ratios}")
    if rows:
        peaks = sorted(each["peak_gflops"] for each in rows)
        lines.append(
            f"peak of multiply-adds, in turns with them: {peaks[0]:.0f} to {peaks[-1]:.0f} GFLOP/s"
        )
    return "\n".join(lines + notes)
