"""metasched db: what a store holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from metasched import config
from metasched.database.record import Record
from metasched.database.store import Store
from metasched.errors import MetaschedError
from metasched.report.tables import records_text
from metasched.tune import STORE


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("db", help="list the trials of a work folder")
    parser.add_argument("work_dir", nargs="?", help="folder of the database")
    parser.add_argument("--workload", help="start of a workload's name or hash")
    parser.add_argument("--limit", type=int, default=20, help="trials of each workload at most")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the fastest trials of each workload."""
    folder = Path(arguments.work_dir or config.load().work_dir)
    path = folder / STORE
    if not path.exists():
        raise MetaschedError(f"{folder} has no database; `metasched tune` makes one")
    chosen: list[Record] = []
    with Store(path, read_only=True) as store:
        for workload in store.workloads():
            for target in store.targets(workload):
                records = sorted(store.all(workload, target), key=lambda r: r.seconds)
                wanted = arguments.workload
                if (
                    records
                    and wanted
                    and not (
                        workload.startswith(wanted) or records[0].workload_name.startswith(wanted)
                    )
                ):
                    continue
                chosen += records[: arguments.limit]
    if arguments.json:
        print(json.dumps([json.loads(r.to_json()) for r in chosen]))
    else:
        print(records_text(chosen))
    return 0
