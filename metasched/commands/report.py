"""metasched report: a work folder as one HTML page that needs no network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from metasched import config
from metasched.commands.names import HELP
from metasched.commands.source import add_plugin, run_plugins
from metasched.database.store import Store
from metasched.errors import ExportError, MetaschedError
from metasched.files import atomic_write
from metasched.report.html import Machine, chapters_of, page, timed_points
from metasched.target import Target
from metasched.tune import STORE


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("report", help=HELP["report"])
    parser.add_argument("work_dir", nargs="?", help="folder of the database and the event log")
    parser.add_argument("-o", "--output", help="the file to write (default WORK_DIR/report.html)")
    add_plugin(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    run_plugins(arguments)
    folder = Path(config.load(work_dir=arguments.work_dir).work_dir)
    if not folder.is_dir():
        raise MetaschedError(f"there is no folder {folder}")
    _name_damaged_records(folder / STORE)
    chapters = chapters_of(folder)
    text = page(chapters, Machine.measured(Target.native()), f"Tuning in {folder.name}")
    output = Path(arguments.output or folder / "report.html")
    try:
        atomic_write(output, text)
    except OSError as error:
        raise ExportError(f"{output}: cannot be written: {error.strerror}") from None
    if arguments.json:
        rows = [{"workload": c.history.name, "seconds": dict(timed_points(c))} for c in chapters]
        print(json.dumps({"report": str(output), "workloads": rows}))
    else:
        print(output)
    return 0


def _name_damaged_records(path: Path) -> None:
    """Read every record: the store names each that is damaged, and the page leaves it out."""
    if path.exists():
        with Store(path, read_only=True) as store:
            store.all()
