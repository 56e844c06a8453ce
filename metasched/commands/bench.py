"""metasched bench: tuned kernels beside other libraries, all in one run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metasched import workloads
from metasched.commands.names import HELP
from metasched.commands.source import (
    CONSTANT,
    add_target,
    is_file,
    run_plugins,
    shape_of,
    target_of,
)
from metasched.errors import MetaschedError, brief
from metasched.report.compare import KNOWN, comparison_text, peers_of, row, side_by_side, usable
from metasched.report.peers import OURS, PEAK
from metasched.report.progress import progress
from metasched.report.tvm_record import Times, load_record
from metasched.runtime.devices import device_of
from metasched.search.observe import EventLog, PeerTimed
from metasched.target import Target
from metasched.tune import EVENTS, tune

Case = tuple[str, tuple[int, ...]]


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help=HELP["bench"])
    parser.add_argument("ops", nargs="*", help="workloads (gmm, c2d, ...); none with --suite")
    parser.add_argument("--suite", choices=[*workloads.SUITES], help="all operators of a kind")
    parser.add_argument("--shape", help="numbers separated by commas, for a single workload")
    parser.add_argument(
        "--all-shapes", action="store_true", help="every usual shape, not the first"
    )
    parser.add_argument("--constant-weights", action="store_true", help=CONSTANT)
    parser.add_argument("--against", default="numpy", help=f"peers: {','.join(KNOWN)}")
    parser.add_argument("--tvm-record", metavar="FILE", help="JSON list of {op, shape, seconds}")
    parser.add_argument("--trials", type=int, help="of each tuning run (default 64)")
    parser.add_argument("--seed", type=int, help="of every random choice")
    parser.add_argument("--work-dir", help="folder whose store the run continues")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune each operator, or continue from the store, and time the peers in turns with it."""
    target = target_of(arguments)
    cases = _cases(arguments)
    tvm = load_record(arguments.tvm_record) if arguments.tvm_record else None
    peers, notes = usable(peers_of(arguments.against), tvm)
    for note in notes:
        print(note, file=sys.stderr)
    peak = device_of(target).peak(target, target.num_cores)
    if peak is None:
        raise MetaschedError(
            f"bench prints shares of a peak rate, and the device of {target.key} reports none; "
            "`metasched tune` needs none"
        )
    rows: list[dict[str, Any]] = []
    interrupted = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments.work_dir or scratch)
        for case in cases:
            found = _one(case, peers, tvm, folder, target, peak, arguments)
            if found is None:
                interrupted = True
                break
            rows += found
    print(json.dumps(rows) if arguments.json else comparison_text(rows))
    if interrupted:
        return 130
    return 1 if any(r["peer"] == OURS and r["seconds"] is None for r in rows) else 0


def _cases(arguments: argparse.Namespace) -> list[Case]:
    ops = list(workloads.SUITES.get(arguments.suite, arguments.ops))
    if not ops:
        raise MetaschedError("name a workload, or --suite operators")
    if file := next(filter(is_file, ops), None):
        raise MetaschedError(
            f"bench times other libraries beside workloads, and {brief(file)} is none: use "
            "`metasched tune FILE.py:FUNCTION`, which prints the speed-up over the default schedule"
        )
    if arguments.shape and (len(ops) > 1 or arguments.all_shapes):
        raise MetaschedError("--shape is for a single workload")
    return [
        (op, shape)
        for op in ops
        for shape in (
            workloads.get(op).shapes if arguments.all_shapes else (shape_of(op, arguments.shape),)
        )
    ]


def _one(
    case: Case,
    peers: Sequence[str],
    tvm: Times | None,
    folder: Path,
    target: Target,
    peak: float,
    arguments: argparse.Namespace,
) -> list[dict[str, Any]] | None:
    """Tune and time one operator: a row a library; None if Ctrl-C ended the tuning."""  # fmt: skip
    op, shape = case
    work = workloads.get(op)
    constant = arguments.constant_weights and bool(work.weights)
    with progress(peak) as observer:
        result = tune(
            work.func(shape, constant), trials=arguments.trials, work_dir=folder, name=op,
            target=target, seed=arguments.seed, observer=observer, plugins=run_plugins(arguments),
        )  # fmt: skip
    if result.ended == "interrupted":
        return None
    trace = None if result.best is None else result.best.path
    sides = side_by_side(op, shape, [*peers, PEAK], trace, tvm)
    measured = sides.pop(PEAK)
    if measured.seconds is None:
        print(f"{op}: peak measured before the run, not in turns: {measured.note}", file=sys.stderr)
    else:
        peak = 1.0 / measured.seconds
    useful = work.flops(shape)
    log = EventLog(folder / EVENTS)
    for peer, side in sides.items():
        if peer != OURS and side.seconds is not None:
            log(PeerTimed(op, peer, side.seconds))
    log.close()
    return [row(op, shape, work.dtype, p, side, useful, peak) for p, side in sides.items()]
