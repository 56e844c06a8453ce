"""metasched bench: tuned kernels beside other libraries, all in one run."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from metasched import workloads
from metasched.commands.source import add_target
from metasched.errors import MeasureError
from metasched.report.peers import PEERS, peer_seconds
from metasched.report.progress import duration
from metasched.report.tables import columns
from metasched.tune import tune


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="compare tuned kernels with other libraries")
    parser.add_argument("ops", nargs="*", help="workloads; none with --suite")
    parser.add_argument("--suite", choices=("operators",), help="all thirteen operators")
    parser.add_argument("--shape", help="numbers separated by commas, for a single workload")
    parser.add_argument(
        "--all-shapes", action="store_true", help="every usual shape, not the first"
    )
    parser.add_argument("--against", default="numpy", help=f"peers: {','.join(PEERS)}")
    parser.add_argument("--trials", type=int, default=64, help="of each tuning run")
    parser.add_argument("--work-dir", help="folder with the store to go on from")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune each operator (or go on from the store) and time the peers beside it."""
    ops = list(workloads.SUITE) if arguments.suite else arguments.ops
    if not ops:
        raise MeasureError("name a workload, or --suite operators")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments.work_dir or scratch)
        for op in ops:
            rows += _one(op, folder, arguments)
    if arguments.json:
        print(json.dumps(rows))
    else:
        print(_text(rows))
    return 0


def _one(op: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    work = workloads.get(op)
    given = None if not arguments.shape else tuple(int(v) for v in arguments.shape.split(","))
    shapes = work.shapes if arguments.all_shapes else (work.shape_of(given),)
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        result = tune(
            work.func(shape), trials=arguments.trials, work_dir=folder, name=op,
            target=arguments.target,
        )  # fmt: skip
        mine = None if result.best is None else result.best.seconds
        useful = work.flops(shape)
        entry = {"op": op, "shape": list(shape), "dtype": work.dtype}
        for peer, seconds in [("metasched", mine), *_peers(op, shape, arguments.against)]:
            rate = None if seconds is None else useful / seconds / 1e9
            ratio = None if seconds is None or mine is None else seconds / mine
            rows.append({**entry, "peer": peer, "seconds": seconds, "gflops": rate, "ratio": ratio})
    return rows


def _peers(op: str, shape: tuple[int, ...], against: str) -> list[tuple[str, float | None]]:
    names = [name for name in against.split(",") if name]
    return [(name, peer_seconds(name, op, shape)) for name in names]


def _text(rows: list[dict[str, Any]]) -> str:
    cells = [("op", "shape", "peer", "time", "GFLOP/s", "peer's time over ours")]
    for row in rows:
        seconds, rate, ratio = row["seconds"], row["gflops"], row["ratio"]
        cells.append(
            (
                row["op"], ",".join(map(str, row["shape"])), row["peer"],
                "-" if seconds is None else duration(seconds),
                "-" if rate is None else f"{rate:.1f}",
                "-" if ratio is None else f"{ratio:.2f}",
            )
        )  # fmt: skip
    return columns(cells)
