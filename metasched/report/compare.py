"""Tuned kernels beside other libraries: rows of a comparison, their text and geometric means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from metasched.errors import MeasureError, MetaschedError
from metasched.report.peers import PEERS, peer_seconds, what_is_missing
from metasched.report.progress import duration
from metasched.report.tables import columns
from metasched.report.tvm_record import Times

OURS, TVM = "metasched", "tvm"
KNOWN = (*PEERS, TVM)


def peers_of(text: str) -> list[str]:
    """The peers that `--against` names; MetaschedError for one that does not exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KNOWN:
            raise MetaschedError(f"no peer is called {name!r}; there are {', '.join(KNOWN)}")
    return names


def usable(names: Sequence[str], tvm: Times | None) -> tuple[list[str], list[str]]:
    """The peers that can be asked here, and a note for each that cannot."""
    there: list[str] = []
    notes: list[str] = []
    for name in names:
        missing = what_is_missing(name) if name != TVM else _no_tvm(tvm)
        if missing:
            notes.append(f"{name} is left out: {missing}")
        else:
            there.append(name)
    return there, notes


def _no_tvm(tvm: Times | None) -> str:
    return "" if tvm is not None else "its times are read from a file, give --tvm-record FILE.json"


def peer_time(
    name: str, op: str, shape: tuple[int, ...], tvm: Times | None
) -> tuple[float | None, str]:
    """Seconds of a peer and an empty note, or None and the reason."""
    if name == TVM:
        seconds = (tvm or {}).get((op, shape))
        return seconds, "" if seconds is not None else "not in the record"
    try:
        seconds = peer_seconds(name, op, shape)
    except MeasureError as error:
        return None, str(error)
    return seconds, "" if seconds is not None else "it lacks the operator"


def row(
    op: str,
    shape: Sequence[int],
    dtype: str,
    peer: str,
    seconds: float | None,
    ours: float | None,
    flops: float,
    peak: float,
    note: str = "",
) -> dict[str, Any]:
    """One line of `metasched bench --json`.

    `ratio` is the peer's time over ours, `peak_fraction` its rate over the measured FMA peak.
    """  # fmt: skip
    rate = None if seconds is None else flops / seconds / 1e9
    return {
        "op": op, "shape": list(shape), "dtype": dtype, "peer": peer, "seconds": seconds,
        "gflops": rate, "ratio": None if seconds is None or ours is None else seconds / ours,
        "peak_gflops": peak, "peak_fraction": None if rate is None else rate / peak, "note": note,
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
        told = ", ".join(f"{peer} {mean:.2f}" for peer, mean in means.items())
        lines.append(f"geometric mean of their times over ours: {told}")
    if rows:
        lines.append(f"measured FMA peak: {rows[0]['peak_gflops']:.0f} GFLOP/s")
    return "\n".join(lines + notes)
