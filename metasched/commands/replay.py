"""metasched replay: apply a trace file to a program without tuning."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from metasched.commands.names import HELP
from metasched.commands.source import add_source, add_target, load, target_of
from metasched.database.replay import replay
from metasched.errors import TraceMiss

MISS = 3


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("replay", help=HELP["replay"])
    parser.add_argument("trace", help="a trace file")
    add_source(parser)
    add_target(parser)
    add_extern(parser)
    parser.add_argument(
        "--strict", action="store_true", help=f"exit with {MISS} when the trace does not fit"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def add_extern(parser: argparse.ArgumentParser) -> None:
    """Declare `--allow-extern`, which permits C calls in a trace's program."""
    parser.add_argument(
        "--allow-extern", metavar="NAME", action="append", default=[],
        help="a C function that the trace's program may call; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Show the scheduled program. A trace for another workload or machine is explained, and is an
    error with --strict; a damaged file is always an error."""
    target = target_of(arguments, anywhere=True)
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
