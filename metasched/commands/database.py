"""metasched db: list a store's records, measure how well a model learns from them, or train a
prior."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from metasched import config
from metasched.commands.names import HELP
from metasched.commands.source import add_plugin, run_plugins
from metasched.cost import boosting
from metasched.cost.quality import Quality, held_out
from metasched.database.record import Record, TraceFile
from metasched.database.store import Store
from metasched.database.tvm_import import fastest, read_tvm_database
from metasched.errors import MetaschedError, brief
from metasched.report.tables import quality_text, records_text
from metasched.search.learning import LEAST, samples_of
from metasched.tune import STORE


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("db", help=HELP["db"])
    parser.add_argument(
        "words", nargs="*", metavar="FOLDER | import WORKLOADS.json RECORDS.json",
        help="folder of the database, or the two files of a TVM JSONDatabase to import",
    )  # fmt: skip
    parser.add_argument("--work-dir", metavar="FOLDER", help="where `import` puts the records")
    parser.add_argument("--workload", help="start of a workload's name or hash")
    parser.add_argument("--machine", default="", help="part of the name of the measuring machine")
    parser.add_argument("--limit", type=int, default=20, help="trials of each workload at most")
    parser.add_argument(
        "--quality", action="store_true", help="rank quality of the model on held-out tasks"
    )
    parser.add_argument("--write-prior", metavar="FILE", help="train a prior on every record")
    add_plugin(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the fastest trials of each workload, or measure and train models on the stored
    trials."""
    run_plugins(arguments)
    words = arguments.words
    if words[:1] == ["import"]:
        return _import(words[1:], arguments)
    if len(words) > 1:
        raise MetaschedError(f"{len(words)} folders given; name one folder")
    folder = Path((words or [arguments.work_dir or config.load().work_dir])[0])
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
                wanted = arguments.machine.lower()
                every = [r for r in store.all(workload, target) if wanted in r.machine.lower()]
                records = sorted(every, key=lambda r: r.seconds)
                names = {workload, *(r.workload_name for r in records[:1])}
                if any(name.startswith(arguments.workload or "") for name in names):
                    chosen += records[: arguments.limit]
    if arguments.workload and not (chosen or arguments.json or arguments.limit == 0):
        raise MetaschedError(f"no workload in {folder} starts with {brief(arguments.workload)}")
    if arguments.json:
        print(json.dumps([json.loads(r.to_json()) for r in chosen]))
    else:
        print(records_text(chosen))
    return 0


def _import(files: list[str], arguments: argparse.Namespace) -> int:
    """Import the records of TVM's tuner, and write the fastest trace of each workload as a trace
    file."""
    if len(files) != 2:
        raise MetaschedError(
            "import needs two files: metasched db import WORKLOADS.json RECORDS.json"
        )
    folder = Path(arguments.work_dir or config.load().work_dir)
    found = read_tvm_database(*files)
    records = [item.record for item in found if item.record is not None]
    folder.mkdir(parents=True, exist_ok=True)
    with Store(folder / STORE) as store:
        store.put(records)
    traces = []
    for record in fastest(found):
        place = folder / f"{record.workload_name}.trace.json"
        traces.append(str(TraceFile.from_record(record).save(place)))
    problems = [{"line": item.line, "problem": item.problem} for item in found if item.problem]
    if arguments.json:
        counts = {"records": len(found), "imported": len(records), "traces": traces}
        print(json.dumps({**counts, "problems": problems}))
    else:
        print(f"{len(records)} of {len(found)} records replayed and stored in {folder / STORE}")
        for trace in traces:
            print(f"fastest of its workload, by TVM's times: {trace}")
        for item in problems:
            print(f"{files[1]}:{item['line']}: {item['problem']}", file=sys.stderr)
    return 0 if records or not found else 1


def _learn(path: Path, arguments: argparse.Namespace) -> int:
    """Measure the rank quality on held-out tasks, and write a prior where one is asked for."""
    trees = boosting()
    with Store(path, read_only=True) as store:
        samples, lost = samples_of(store)
    if len({sample.group for sample in samples}) < 2:
        raise MetaschedError(
            f"{path} has fewer than two operators of which {LEAST} programs or more were measured"
        )
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
