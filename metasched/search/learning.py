"""Training data from a store: its records as vectors and times, task by task.

Priors are trained on these data, and the rank quality of a model is measured on them.
"""

from __future__ import annotations

import json

import numpy as np

from metasched.cost.quality import Sample
from metasched.database.record import Record
from metasched.database.store import Store
from metasched.errors import MetaschedError
from metasched.kinds import space_of
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.parser import parse
from metasched.target import Target

LEAST = 8  # a task with fewer programs is left out


def samples_of(store: Store) -> tuple[list[Sample], int]:
    """The tasks of a store, and the number of records that this version cannot replay.

    A task is a workload on a target and machine; each program counts once, with its latest time.
    """
    samples: list[Sample] = []
    lost = 0
    for workload, text in store.workloads().items():
        by_machine: dict[tuple[str, str], list[Record]] = {}
        for record in store.all(workload):
            place = record.target_value.key, record.machine.partition(" ")[2]
            by_machine.setdefault(place, []).append(record)
        for (key, _), records in by_machine.items():
            func = parse(text)
            base = Schedule(func, seed=0, check=False)
            found = _vectors(base, list({r.candidate_key: r for r in records}.values()))
            lost += sum(vector is None for vector, _ in found)
            kept = [(vector, seconds) for vector, seconds in found if vector is not None]
            if len(kept) >= LEAST:
                vectors = np.stack([vector for vector, _ in kept])
                seconds = np.array([seconds for _, seconds in kept])
                group = records[0].workload_name
                samples.append(Sample(f"{workload}@{key}", group, vectors, seconds))
    return samples, lost


def _vectors(base: Schedule, records: list[Record]) -> list[tuple[np.ndarray | None, float]]:
    """The feature vector and the time of each record of one target; the vector is None if the trace
    does not replay."""
    target: Target = records[0].target_value
    features = space_of(target).features
    ideal = features.work(base.mod, target)
    found: list[tuple[np.ndarray | None, float]] = []
    for record in records:
        sch = base.copy()
        try:
            Trace.from_json(json.dumps(record.trace)).apply(sch)
        except MetaschedError:
            found.append((None, record.seconds))
            continue
        found.append((features.vector(sch.mod, target, ideal), record.seconds))
    return found
