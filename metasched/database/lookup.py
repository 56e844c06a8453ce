"""Find the record for a workload on a target: a Hit, or a Miss that says why there is none."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass

from metasched.database.base import Database
from metasched.database.record import Measured, Record
from metasched.hardware import machine_name, times_compare
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that can be used.

    Attributes:
        record: the fastest one.
        exact: whether it was measured on exactly this target.
        note: how the record's target or machine differs, empty when neither does.
    """

    record: Measured
    exact: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why there is no record.

    Attributes:
        reason: a sentence.
        field: the part that did not fit: `workload`, `target` or `status`; empty without records.
        nearest: the record that came closest, or None.
    """

    reason: str
    field: str = ""
    nearest: Measured | None = None


def lookup(
    store: Database, workload_hash: str, target: Target, *, script: str = "", strict: bool = False,
    machine: str | None = None,
) -> Hit | Miss:  # fmt: skip
    """The best record for a workload on a target.

    Times of different machines do not compare. So only records of one machine are considered: the
    records of `machine` if there are any, else of the machine with the most records.

    Args:
        store: the database.
        workload_hash: structural hash of the unscheduled function.
        target: the machine to run on.
        script: the function's script, to name the nearest workload in a miss.
        strict: accept only a record of exactly this target; otherwise a record of another target
            whose code can run here is accepted, too.
        machine: name of the preferred machine; None is this machine.
    """
    here = machine_name() if machine is None else machine
    exact = _best(store, workload_hash, target, here)
    if exact is not None:
        there = "" if times_compare(exact.machine, here) else f"measured on {exact.machine}"
        return Hit(exact, note=there)
    found = [(t, _best(store, workload_hash, t, here)) for t in store.targets(workload_hash)]
    others = [(t, record) for t, record in found if record is not None]
    reasons = []
    for other, record in sorted(others, key=lambda pair: pair[1].seconds):
        reason = target.supports(other)
        if reason is None and not strict:
            return Hit(record, exact=False, note="; ".join(target.differences(other)))
        reasons.append((reason or "; ".join(target.differences(other)), other, record))
    if reasons:
        reason, other, record = reasons[0]
        return Miss(
            f"the workload was tuned for {other.key} only, not for {target.key}: {reason}",
            "target", record,
        )  # fmt: skip
    failed = store.all(workload_hash, target)
    if failed:
        last = failed[-1]
        return Miss(
            f"all {len(failed)} candidates of this workload failed here, the last with "
            f"{last.status.value}: {last.message}",
            "status", last,
        )  # fmt: skip
    return _unknown_workload(store, workload_hash, script)


def _best(store: Database, workload_hash: str, target: Target, machine: str) -> Record | None:
    """The fastest right record of the machine, or else of the machine with the most records."""
    best = store.best(workload_hash, target)
    if best is None or times_compare(best.machine, machine):
        return best
    right = [r for r in store.all(workload_hash, target) if r.ok]
    own = [r for r in right if times_compare(r.machine, machine)]
    most = Counter(r.machine for r in right).most_common(1)[0][0]
    return min(own or [r for r in right if r.machine == most], key=lambda r: r.seconds)


def explain(
    record: Measured, workload_hash: str, target: Target, *, script: str = ""
) -> Hit | Miss:
    """Whether one record (a trace file, say) fits a workload and a target."""
    if record.workload_hash != workload_hash:
        change = first_change(record.workload, script) if script else ""
        detail = f": {change}" if change else ""
        return Miss(
            f"it was made for another workload (hash {record.workload_hash[:12]}, "
            f"this one is {workload_hash[:12]}){detail}",
            "workload", record,
        )  # fmt: skip
    other = record.target_value
    reason = target.supports(other)
    if reason is not None:
        return Miss(reason, "target", record)
    return Hit(record, other == target, "; ".join(target.differences(other)))


def first_change(theirs: str, ours: str) -> str:
    """A sentence about the first line in which two scripts differ; empty for equal scripts."""
    left, right = (text.strip().splitlines() for text in (theirs, ours))
    for a, b in zip(left, right, strict=False):
        if a.strip() != b.strip():
            return f"it has `{a.strip()}` where this one has `{b.strip()}`"
    if len(left) != len(right):
        return f"it has {len(left)} lines, this one {len(right)}"
    return ""


def _unknown_workload(store: Database, workload_hash: str, script: str) -> Miss:
    known = store.workloads()
    if not known:
        return Miss("the database has no records")
    text = f"no record of workload {workload_hash[:12]} among {len(known)}"
    if not script:
        return Miss(text, "workload")
    ratio = {
        key: difflib.SequenceMatcher(None, script.splitlines(), other.splitlines()).ratio()
        for key, other in known.items()
    }
    nearest = max(ratio, key=lambda key: ratio[key])
    record: Record | None = next(iter(store.all(nearest, limit=1)), None)
    return Miss(
        f"{text}; in the nearest, {first_change(known[nearest], script)}", "workload", record
    )
