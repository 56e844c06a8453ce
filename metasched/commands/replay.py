"""metasched replay, metasched build: use a stored trace without tuning."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from metasched.commands.names import HELP
from metasched.commands.source import add_source, add_target, load, target_of
from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.errors import TraceError, TraceMiss
from metasched.ir.func import PrimFunc
from metasched.runtime.build import build
from metasched.script.parser import parse

MISS = 3


def add_to(commands: Any) -> None:
    """Declare both commands."""
    one = commands.add_parser("replay", help=HELP["replay"])
    one.add_argument("trace", help="a trace file")
    add_source(one)
    add_target(one)
    _add_extern(one)
    one.add_argument("--strict", action="store_true", help=f"exit with {MISS} when it does not fit")
    one.add_argument("--json", action="store_true", help="print one JSON value")
    one.set_defaults(run=run_replay)
    two = commands.add_parser("build", help=HELP["build"])
    two.add_argument("trace", help="a trace file")
    two.add_argument("-o", "--output", required=True, help="folder to write to")
    two.add_argument("--name", help="stem of the files and the C name of the kernel")
    two.add_argument(
        "--check-bounds", action="store_true",
        help="check every load and store at run time (slow, for debugging)",
    )  # fmt: skip
    add_target(two)
    _add_extern(two)
    two.add_argument("--json", action="store_true", help="print one JSON value")
    two.set_defaults(run=run_build)


def _add_extern(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-extern", metavar="NAME", action="append", default=[],
        help="a foreign function that the trace's program may call (again for each)",
    )  # fmt: skip


def run_replay(arguments: argparse.Namespace) -> int:
    """Show the scheduled program. A trace for another workload or machine is explained, and is an
    error with --strict; a damaged file is always an error."""
    target = target_of(arguments)
    program = load(arguments.program, arguments.shape, arguments.constant_weights)
    try:
        sch = replay(
            arguments.trace, program.func, target=target, allow_extern=arguments.allow_extern
        )
    except TraceMiss as error:
        if arguments.json:
            print(json.dumps({"hit": False, "reason": str(error)}))
        print(f"miss: {error}", file=sys.stderr)
        return MISS if arguments.strict else 0
    if arguments.json:
        print(json.dumps({"hit": True, "script": sch.script(), "trace": sch.trace.as_python()}))
    else:
        print(sch.mod)
    return 0


def run_build(arguments: argparse.Namespace) -> int:
    """Replay on the workload that the trace file holds itself, compile and export."""
    target = target_of(arguments)
    stored = TraceFile.load(arguments.trace)
    func = parse(stored.workload)
    if not isinstance(func, PrimFunc):
        raise TraceError(f"{arguments.trace}: its workload is no single function")
    sch = replay(arguments.trace, func, target=target, allow_extern=arguments.allow_extern)
    name = arguments.name or stored.workload_name or None
    kernel = build(sch, target, name=name, check_bounds=arguments.check_bounds)
    written = kernel.export(Path(arguments.output), name)
    files = [written.object, written.library, written.header, written.manifest]
    if arguments.json:
        print(json.dumps({"files": [str(f) for f in files if f], "note": written.note}))
    else:
        for file in files:
            if file is not None:
                print(file)
        if written.note:
            print(written.note, file=sys.stderr)
    return 0
