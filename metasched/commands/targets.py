"""metasched targets: list the values of `--target`, and which targets run here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from metasched.commands.names import HELP
from metasched.commands.source import add_plugin, run_plugins
from metasched.hardware import CPU_FEATURES, KNOWN_FEATURES
from metasched.report.tables import columns
from metasched.target import KINDS, TARGETS, Cpu, Gpu, Target

OPTIONS = {
    "mcpu": "LLVM's name of the processor",
    "mattr": "features to add to or take from the processor's: +avx512f,-fma",
    "num-cores": "cores that a kernel may use",
    "mtriple": "LLVM's triple (default: this machine's)",
    "vector-bits": "width in bits of the widest vectors that code may use",
    "l1-bytes": "bytes of a core's L1 data cache",
    "l2-bytes": "bytes of a core's L2 cache",
    "l3-bytes": "bytes of the last-level cache",
}
"""Options that may follow `llvm` in the text of a CPU target, with their meanings."""


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("targets", help=HELP["targets"])
    add_plugin(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the targets, then the options and features that make other targets."""
    run_plugins(arguments)
    rows, kinds = [_row(text) for text in _texts()], _other_kinds()
    if arguments.json:
        data = {"targets": rows, "options": OPTIONS, "features": KNOWN_FEATURES, "kinds": kinds}
        print(json.dumps(data))
        return 0
    shown = [("ok" if r["runs_here"] else "--", r["target"], r["about"], r["why"]) for r in rows]
    print(columns(shown))
    print('\nOptions, as in "llvm -mcpu=znver4 -num-cores=8":')
    print(columns([(f"-{name}=", meaning) for name, meaning in OPTIONS.items()]))
    for kind, options in kinds.items():
        print(f"\nOptions of {kind}: {' '.join(f'-{name}=' for name in options)}")
    for arch, names in KNOWN_FEATURES.items():
        print(f"\nFeatures of {arch}, for -mattr=+NAME,-NAME: {' '.join(sorted(set(names)))}")
    return 0


def _texts() -> list[str]:
    """All named values of `--target`."""
    texts = [
        f"llvm -mtriple={arch}-linux-gnu -mcpu={name}"
        if name == "generic"
        else f"llvm -mcpu={name}"
        for arch, names in CPU_FEATURES.items()
        for name in names
    ]
    return ["native", *texts, *TARGETS.names(), *_other_kinds()]


def _other_kinds() -> dict[str, list[str]]:
    """The options of each kind that a plug-in declares: the numbers and texts of its class."""
    plain = ("int", int, "str", str)
    classes = {KINDS.get(name) for name in KINDS} - {Cpu, Gpu}
    return {
        KINDS.name_of(each) or each.__name__: [
            field.name.replace("_", "-")
            for field in dataclasses.fields(each)
            if field.type in plain and field.name not in ("kind", "model")
        ]
        for each in classes
    }


def _row(text: str) -> dict[str, Any]:
    target = Target.of(text)
    about = target.mcpu
    if isinstance(target, Cpu):
        about = f"{target.num_cores} cores, {target.vector_bits}-bit vectors"
    elif isinstance(target, Gpu):
        about = f"{target.mcpu}, {target.warp_size} threads a warp"
    if text == "native":
        about = f"{target.mcpu}, {about}: this machine"
    why = target.here() or ""
    return {
        "target": text, "kind": target.kind, "mcpu": target.mcpu, "about": about,
        "runs_here": not why, "why": why,
    }  # fmt: skip
