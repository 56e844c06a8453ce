"""metasched show: a program or a trace file as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import metasched.schedule.primitives  # noqa: F401  the kinds of steps that a trace may hold
from metasched import config
from metasched.autoschedule import autoschedule
from metasched.codegen.compile import compile_func
from metasched.commands.names import HELP
from metasched.commands.source import (
    Program,
    add_size,
    add_source,
    add_target,
    load,
    load_all,
    load_sized,
    run_plugins,
    target_of,
)
from metasched.database.record import TraceFile
from metasched.errors import MetaschedError
from metasched.ir.func import PrimFunc
from metasched.lower.pipeline import lower_and_show
from metasched.report.space import space_data, space_text
from metasched.report.tables import duration, instructions
from metasched.runtime.build import build
from metasched.schedule.trace import Trace
from metasched.search.parts import spaces_of
from metasched.target import Cpu, Target


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("show", help=HELP["show"])
    add_source(parser)
    add_target(parser)
    add_size(parser)
    parser.add_argument(
        "--what",
        choices=("script", "space", "autoscheduled", "passes", "llvm", "asm"),
        default="script",
        help="of a program: its script, the design spaces that tuning searches, its steps and "
        "script as `build` schedules it, the script after each lowering pass, or machine code",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the program or the trace file in the form that `--what` names."""
    run_plugins(arguments)
    if arguments.target is not None and arguments.what == "script":
        raise MetaschedError(
            "--target is for --what space, autoscheduled, passes, llvm and asm; a script is the "
            "same for each target"
        )
    if arguments.size and arguments.what not in ("space", "autoscheduled"):
        raise MetaschedError(
            "--size is for --what space and autoscheduled; other texts are the same for each size"
        )
    if arguments.program.endswith(".json"):
        if arguments.what != "script":
            raise MetaschedError(f"--what {arguments.what} needs a program, not a trace")
        stored = TraceFile.load(arguments.program)
        trace = Trace.from_json(json.dumps(stored.trace))
        steps, used = trace.as_python(), instructions(trace)
        if arguments.json:
            whole = {**json.loads(stored.to_json()), "seconds": stored.seconds, "python": steps}
            print(json.dumps(whole | {"instructions": used}))
            return 0
        print(f"# {stored.workload_name or stored.workload_hash} on {stored.target_value.key}")
        print(f"# {stored.status.value}, {duration(stored.seconds)}, checked: {stored.check}")
        if used:
            print(f"# instruction {', '.join(used)}")
        print(f"{stored.workload}\n{steps}")
        return 0
    target = None if arguments.what == "script" else target_of(arguments, anywhere=True)
    named = (arguments.program, arguments.shape, arguments.constant_weights)
    if target is not None and arguments.what == "autoscheduled":
        return _show_autoscheduled(load_sized(arguments), target, arguments.json)
    if target is not None and arguments.what == "space":
        return _show_spaces(load_sized(arguments), target, arguments.json)
    programs = load_all(*named) if target is None else [load(*named)]
    program = programs[0]
    if target is None:
        text = "\n".join(each.func.script(each.name.rpartition(".")[2]) for each in programs)
    elif arguments.what == "passes":
        text = _after_each_pass(program.func, target)
    else:
        text = _code(program.func, target, arguments.what)
    print(json.dumps({"name": program.name, arguments.what: text}) if arguments.json else text)
    return 0


def _code(func: PrimFunc, target: Target, what: str) -> str:
    """The LLVM text or the assembly, also for a CPU that is not this machine."""
    if isinstance(target, Cpu) and target.here() is not None:
        compiled = compile_func(func, target)
        return compiled.llvm_ir if what == "llvm" else compiled.asm()
    text: str | None = getattr(build(func, target), {"llvm": "llvm_ir"}.get(what, what), None)
    if text is None:
        raise MetaschedError(f"kernels for targets of kind {target.kind!r} have no {what} text")
    return text


def _show_spaces(programs: Sequence[Program], target: Target, as_json: bool) -> int:
    """Print the design spaces that `tune` searches for each program."""
    settings = config.load()
    spaces = spaces_of(None, settings.space, [each.name for each in programs], target)
    data = [
        space_data(p.name, p.func, spaces[p.name], target, settings.seed or 0) for p in programs
    ]
    if as_json:
        print(json.dumps(data if len(data) > 1 else data[0]))
    else:
        print("\n\n".join(map(space_text, data)))
    return 0


def _show_autoscheduled(programs: Sequence[Program], target: Target, as_json: bool) -> int:
    """Print how each program is scheduled without tuning: its steps and its script."""
    made = [(program.name, autoschedule(program.func, target)) for program in programs]
    parts = [(name, sch.trace.simplified().as_python(), sch.script()) for name, sch in made]
    if as_json:
        data = [{"name": n, "autoscheduled": script, "python": steps} for n, steps, script in parts]
        print(json.dumps(data if len(data) > 1 else data[0]))
    else:
        print("\n".join(f"{steps}\n{script}" for _, steps, script in parts))
    return 0


def _after_each_pass(func: PrimFunc, target: Target) -> str:
    """The script as written, and after each pass that changes it."""
    parts = [func.script()]
    lower_and_show(func, target, show=parts.append)
    return "\n\n".join(parts)
