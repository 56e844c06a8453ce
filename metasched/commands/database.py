"""metasched db: what a store holds, how well a model learns from it, and a prior trained on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from metasched import config
from metasched.commands.names import HELP
from metasched.cost import boosting
from metasched.cost.quality import Quality, held_out
from metasched.database.record import Record
from metasched.database.store import Store
from metasched.errors import MetaschedError
from metasched.report.tables import quality_text, records_text
from metasched.search.learning import samples_of
from metasched.tune import STORE


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("db", help=HELP["db"])
    parser.add_argument("work_dir", nargs="?", help="folder of the database")
    parser.add_argument("--workload", help="start of a workload's name or hash")
    parser.add_argument("--limit", type=int, default=20, help="trials of each workload at most")
    parser.add_argument(
        "--quality", action="store_true", help="rank quality of the model on held-out tasks"
    )
    parser.add_argument("--write-prior", metavar="FILE", help="train a prior on every record")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the fastest trials of each workload, or learn from them all."""
    folder = Path(arguments.work_dir or config.load().work_dir)
    path = folder / STORE
    if not path.exists():
        raise MetaschedError(f"{folder} has no database; `metasched tune` makes one")
    if arguments.limit < 0:
        raise MetaschedError(f"--limit {arguments.limit}: must be 0 or more")
    if arguments.quality or arguments.write_prior:
        return _learn(path, arguments)
    chosen: list[Record] = []
    with Store(path, read_only=True) as store:
        for workload in store.workloads():
            for target in store.targets(workload):
                records = sorted(store.all(workload, target), key=lambda r: r.seconds)
                names = {workload, *(r.workload_name for r in records[:1])}
                if any(name.startswith(arguments.workload or "") for name in names):
                    chosen += records[: arguments.limit]
    if arguments.workload and not (chosen or arguments.json or arguments.limit == 0):
        raise MetaschedError(f"no workload in {folder} starts with {arguments.workload!r}")
    if arguments.json:
        print(json.dumps([json.loads(r.to_json()) for r in chosen]))
    else:
        print(records_text(chosen))
    return 0


def _learn(path: Path, arguments: argparse.Namespace) -> int:
    """Measure the rank quality on held-out tasks, and write a prior where one is asked for."""
    trees = boosting()
    with Store(path, read_only=True) as store:
        samples, lost = samples_of(store)
    if len({sample.group for sample in samples}) < 2:
        raise MetaschedError(f"{path} has too few tasks to learn from: two operators at least")
    rows = []
    for held, by_group in (("tasks", False), ("operators", True)):
        quality = Quality.mean(held_out(samples, trees.prior_scores, by_group=by_group))
        rows.append({"held_out": held, **dataclasses.asdict(quality)})
    records = sum(len(sample.seconds) for sample in samples)
    if arguments.write_prior:
        about = {
            "records": records, "tasks": len(samples),
            "targets": sorted({sample.task.partition("@")[2] for sample in samples}),
            "quality": rows,
        }  # fmt: skip
        prior = dataclasses.replace(trees.train_prior(samples), about=about)
        prior.save(Path(arguments.write_prior))
    if arguments.json:
        print(
            json.dumps({"records": records, "tasks": len(samples), "lost": lost, "quality": rows})
        )
    else:
        print(quality_text(rows, records, len(samples), lost))
    return 0
