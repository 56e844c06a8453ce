"""metasched tune: search for the fastest schedule of one program."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from metasched import config
from metasched.commands.names import HELP
from metasched.commands.source import (
    Program,
    add_data,
    add_size,
    add_source,
    add_target,
    data_given,
    load_all,
    run_plugins,
    sizes_given,
    target_of,
)
from metasched.foreign import printing_to_stderr
from metasched.report.compare import LibraryTime, side_by_side
from metasched.report.progress import progress
from metasched.report.tables import tune_data, tune_text
from metasched.runtime.devices import device_of
from metasched.search.final import INTERRUPTED
from metasched.search.observe import EventLog, PeerTimed
from metasched.search.result import TuneResult
from metasched.tune import EVENTS, require_timed_here, tune_tasks


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("tune", help=HELP["tune"])
    add_source(parser)
    add_target(parser)
    add_size(parser)
    add_data(parser)
    parser.add_argument("--trials", type=int, help="candidates to measure (default 64)")
    parser.add_argument("--time-limit", type=float, help="seconds after which no round begins")
    parser.add_argument("--work-dir", help="folder of the database and the trace file")
    parser.add_argument("--seed", type=int, help="of every random choice")
    parser.add_argument("--strategy", help="search strategy (default evolutionary)")
    parser.add_argument("--model", help="cost model (default lightgbm)")
    parser.add_argument("--features", help="feature extractor of the cost model")
    parser.add_argument("--space", help="search space (default: the target's)")
    parser.add_argument("--scheduler", help="task scheduler of a module (default gradient)")
    parser.add_argument("--database", help="database that keeps the records (default sqlite)")
    parser.add_argument("--runner", help="runner that measures (default: on this machine)")
    parser.add_argument("--builder", help="builder that compiles (default: the runner)")
    parser.add_argument("--observer", action="append", help="observer by name; may be repeated")
    parser.add_argument("--no-prior", action="store_true", help="let the cost model start empty")
    parser.add_argument("--no-peer", action="store_true", help="do not time NumPy")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tune and report; returns 0 when every program has a right candidate and a written trace."""
    target, peak = target_of(arguments, anywhere=True), None
    if arguments.runner is None:
        require_timed_here(target)
    if target.here() is None and target.timed_here() is None:
        target = device_of(target).usable(target)
        peak = device_of(target).peak(target, target.num_cores)
    programs = load_all(arguments.program, arguments.shape, arguments.constant_weights)
    named = config.load(observers=arguments.observer).observers
    with progress(peak, arguments.time_limit) as observer, printing_to_stderr():
        results = _tuned(
            programs, arguments, target=target, observer=[observer, *named],
            plugins=run_plugins(arguments),
        )  # fmt: skip
    data, texts = [], []
    interrupted = any(result.ended == INTERRUPTED for result in results)
    for program, result in zip(programs, results, strict=True):
        peer = LibraryTime()
        if not (interrupted or arguments.no_peer or arguments.data):
            try:
                peer = _peer(program, result, arguments)
            except KeyboardInterrupt:
                interrupted = True
                print("NumPy was not timed: interrupted", file=sys.stderr)
        data.append(tune_data(result, program.shape, peer.seconds, peer.ratio))
        texts.append(tune_text(result, peer.seconds, peer.ratio))
    print(json.dumps(data if len(data) > 1 else data[0]) if arguments.json else "\n".join(texts))
    if interrupted:
        return 130
    return 0 if all(r.best is not None and r.best.path is not None for r in results) else 1


def _tuned(
    programs: list[Program], arguments: argparse.Namespace, **options: Any
) -> list[TuneResult]:
    """The results of the program, or of the functions of a module with one budget for each."""
    options |= {
        "trials": arguments.trials, "seed": arguments.seed, "time_limit": arguments.time_limit,
        "work_dir": arguments.work_dir, "strategy": arguments.strategy, "model": arguments.model,
        "features": arguments.features, "space": arguments.space, "database": arguments.database,
        "runner": arguments.runner, "builder": arguments.builder,
        "prior": False if arguments.no_prior else None,
        "sizes": sizes_given(arguments) or None,
    }  # fmt: skip
    funcs = {program.name: program.func for program in programs}
    options["data"] = data_given(arguments, funcs)
    results = tune_tasks(funcs, scheduler=arguments.scheduler, **options)
    return [results[program.name] for program in programs]


def _peer(program: Program, result: TuneResult, arguments: argparse.Namespace) -> LibraryTime:
    """Time NumPy beside the winner, and write the time to the event log."""
    peer = _numpy(program, None if result.best is None else result.best.path)
    if peer.seconds is not None:
        log = EventLog(Path(config.load(work_dir=arguments.work_dir).work_dir) / EVENTS)
        log(PeerTimed(program.name, "numpy", peer.seconds))
        log.close()
    return peer


def _numpy(program: Program, trace: Path | None) -> LibraryTime:
    """NumPy's time for a workload of the suite, timed in turns with the winner; empty if NumPy
    cannot be timed."""
    if program.workload is None or program.shape is None:
        return LibraryTime()
    print(f"{program.name}: NumPy is timed in turns with the fastest program", file=sys.stderr)
    side = side_by_side(program.workload, program.shape, ["numpy"], trace)["numpy"]
    if side.note:
        print(f"NumPy was not timed: {side.note}", file=sys.stderr)
    return side
