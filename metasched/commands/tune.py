"""metasched tune: search for the fastest schedule of one program."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from metasched import config
from metasched.codegen.peak import measured_peak
from metasched.commands.names import HELP
from metasched.commands.source import Program, add_source, add_target, load, target_of
from metasched.report.compare import Side, side_by_side
from metasched.report.progress import progress
from metasched.report.tables import tune_data, tune_text
from metasched.runtime.parallel import usable
from metasched.search.observe import EventLog, PeerTimed
from metasched.tune import EVENTS, tune


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tune", help=HELP["tune"])
    add_source(parser)
    add_target(parser)
    parser.add_argument("--trials", type=int, help="candidates to measure (default 64)")
    parser.add_argument("--time-limit", type=float, help="seconds after which no round begins")
    parser.add_argument("--work-dir", help="folder of the database and the trace file")
    parser.add_argument("--seed", type=int, help="of every random choice")
    parser.add_argument("--strategy", help="search strategy (default evolutionary)")
    parser.add_argument("--model", help="cost model (default lightgbm)")
    parser.add_argument("--no-prior", action="store_true", help="let the cost model start empty")
    parser.add_argument("--plugin", action="append", help="Python file with schedule modules")
    parser.add_argument("--no-peer", action="store_true", help="do not time NumPy beside it")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune, report, and return 0 when a right candidate was found and its trace written."""
    target = usable(target_of(arguments))
    program = load(arguments.program, arguments.shape, arguments.constant_weights)
    peak = measured_peak(target, "float32", target.num_cores)
    with progress(peak, arguments.time_limit) as observer:
        result = tune(
            program.func, target=target, trials=arguments.trials, seed=arguments.seed,
            time_limit=arguments.time_limit, work_dir=arguments.work_dir,
            strategy=arguments.strategy, model=arguments.model, plugins=arguments.plugin,
            prior=False if arguments.no_prior else None,
            observer=observer, name=program.name,
        )  # fmt: skip
    peer = Side()
    if not arguments.no_peer and result.ended != "interrupted":
        peer = _numpy(program, None if result.best is None else result.best.path)
    if peer.seconds is not None:
        log = EventLog(Path(config.load(work_dir=arguments.work_dir).work_dir) / EVENTS)
        log(PeerTimed(program.name, "numpy", peer.seconds))
        log.close()
    if arguments.json:
        print(json.dumps(tune_data(result, program.shape, peer.seconds, peer.ratio)))
    else:
        print(tune_text(result, peer.seconds, peer.ratio))
    if result.ended == "interrupted":
        return 130
    return 0 if result.best is not None and result.best.path is not None else 1


def _numpy(program: Program, trace: Path | None) -> Side:
    """NumPy's time for a workload of the suite beside ours, empty when it cannot be had."""
    if program.workload is None or program.shape is None:
        return Side()
    side = side_by_side(program.workload, program.shape, ["numpy"], trace)["numpy"]
    if side.note:
        print(f"NumPy was not timed: {side.note}", file=sys.stderr)
    return side
