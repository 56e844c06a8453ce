"""metasched build: compile a program scheduled without tuning, or the trace of a tuned program."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from metasched.autoschedule import autoschedule
from metasched.commands.names import HELP
from metasched.commands.replay import add_extern
from metasched.commands.source import CONSTANT, add_size, add_target, load_sized, target_of
from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.errors import MetaschedError, TraceError
from metasched.ir.func import PrimFunc
from metasched.runtime.build import export
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.target import Target


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("build", help=HELP["build"])
    parser.add_argument(
        "program",
        help="a trace file, or a program to schedule without tuning: a workload (gmm, c2d, ...), "
        "FILE.py:FUNCTION or FILE.py:MODULE",
    )
    parser.add_argument("--shape", help="numbers separated by commas, for a workload")
    parser.add_argument("--constant-weights", action="store_true", help=CONSTANT)
    parser.add_argument("-o", "--output", required=True, help="folder to write to")
    parser.add_argument("--name", help="stem of the files and the C name of the kernel")
    parser.add_argument(
        "--check-bounds", action="store_true",
        help="check every load and store at run time (slow, for debugging)",
    )  # fmt: skip
    add_size(parser)
    add_target(parser)
    add_extern(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay the trace on the program that its file holds, or autoschedule the program; compile and
    export each kernel."""
    target = target_of(arguments, anywhere=True)
    found = _replayed(arguments, target) if _is_trace(arguments) else _scheduled(arguments, target)
    if arguments.name and len(found) > 1:
        raise MetaschedError(f"--name names one kernel; {arguments.program} has {len(found)}")
    files: list[str] = []
    notes: list[str] = []
    for stem, sch in found:
        folder, checked = Path(arguments.output), arguments.check_bounds
        named = next(iter(sch.mod.values())).with_attr("global_symbol", stem) if stem else sch
        written = export(named, folder, target, name=arguments.name, check_bounds=checked)
        made = (written.object, written.library, written.header, written.manifest)
        files += [str(file) for file in made if file is not None]
        notes += [written.note] if written.note else []
    note = "; ".join(dict.fromkeys(notes))
    if arguments.json:
        print(json.dumps({"files": files, "note": note}))
    else:
        print("\n".join(files))
        if note:
            print(note, file=sys.stderr)
    return 0


def _is_trace(arguments: argparse.Namespace) -> bool:
    """Whether the arguments name a trace file; raises MetaschedError for options that a trace
    cannot take."""
    text = arguments.program
    if not text.endswith(".json") and (text.endswith(".py") or not Path(text).is_file()):
        return False
    if arguments.shape is not None or arguments.constant_weights:
        option = "--constant-weights" if arguments.shape is None else "--shape"
        raise MetaschedError(f"{option} is for a workload; a trace file holds its own program")
    if arguments.size:
        raise MetaschedError("--size is for a program; a trace file holds its own sizes")
    return True


def _replayed(arguments: argparse.Namespace, target: Target) -> list[tuple[str | None, Schedule]]:
    """The schedule of a trace file with the name of its program."""
    stored = TraceFile.load(arguments.program)
    func = parse(stored.workload)
    if not isinstance(func, PrimFunc):
        raise TraceError(f"{arguments.program}: its workload is no single function")
    sch = replay(arguments.program, func, target=target, allow_extern=arguments.allow_extern)
    return [(stored.workload_name or None, sch)]


def _scheduled(arguments: argparse.Namespace, target: Target) -> list[tuple[str | None, Schedule]]:
    """The schedules of a program, or of the functions of a module, with their names."""
    programs = load_sized(arguments)
    return [
        (program.name.rpartition(".")[2], autoschedule(program.func, target))
        for program in programs
    ]
