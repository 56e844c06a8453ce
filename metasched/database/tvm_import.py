"""TVM's JSONDatabase (two files of JSON lines) as records: read as data, replayed, never executed.

A line of the workloads is `["<hash>", "<base64 of the module's JSON>"]`. A line of the records is
`[workload, [trace, seconds or null, target or null, arguments or null]]`. Each trace is replayed on
its workload. A trace that does not replay is reported with the reason, and the import goes on.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasched.database.record import Record
from metasched.errors import MetaschedError, ParseError, TraceError, clipped
from metasched.files import path_of
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.verify import verify
from metasched.measure.candidate import Status
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.printer import script
from metasched.script.tvm_json import program_of
from metasched.target import Target

_FAILED = 1e9  # TVM notes a failure as this many seconds, or more
_NOTE = "imported from a database of TVM; the times are TVM's, nothing was measured here"


@dataclass(frozen=True)
class Imported:
    """One line of the records.

    Attributes:
        line: the number of the line, from 1.
        record: the imported record; None when it cannot be used.
        problem: why the line cannot be used; else empty.
    """

    line: int
    record: Record | None = None
    problem: str = ""


def read_tvm_database(workloads: str | Path, records: str | Path) -> list[Imported]:
    """The records of a JSONDatabase of TVM's, each replayed on its workload.

    Raises MetaschedError when a file cannot be read or a line is not JSON of this form. The fault
    of a single workload or trace is the `problem` of its records.
    """
    functions = [_workload(place, line) for place, line in _lines(workloads)]
    found = []
    for number, (place, line) in enumerate(_lines(records), 1):
        if not isinstance(line, list) or len(line) != 2 or not isinstance(line[0], int):
            raise MetaschedError(f"{place}: is not [workload, record]")
        if not 0 <= line[0] < len(functions):
            raise MetaschedError(f"{place}: there is no workload {line[0]}")
        func = functions[line[0]]
        if isinstance(func, str):
            found.append(Imported(number, problem=func))
            continue
        try:
            found.append(Imported(number, _record(func, line[1])))
        except (MetaschedError, RecursionError) as error:
            found.append(Imported(number, problem=_first_line(error)))
    return found


def _lines(path: str | Path) -> list[tuple[str, Any]]:
    """The JSON values of a file, one a line, with the place of each."""
    place = path_of(path, "a file of TVM's database", MetaschedError)
    try:
        texts = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MetaschedError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            found.append((f"{path}:{number}", json.loads(text)))
        except (ValueError, RecursionError) as error:
            raise MetaschedError(f"{path}:{number}: not JSON: {error}") from None
    return found


def _workload(place: str, line: Any) -> PrimFunc | str:
    """The function of a workload, or why it cannot be used."""
    if not isinstance(line, list) or len(line) != 2 or not isinstance(line[1], str):
        raise MetaschedError(f"{place}: is not [hash, module]")
    try:
        module = program_of(_module_text(line[1]))
        functions = list(module.functions.values()) if isinstance(module, IRModule) else [module]
        if len(functions) != 1:
            return f"{place}: a workload of {len(functions)} functions; one is scheduled at a time"
        verify(functions[0])
    except (MetaschedError, RecursionError) as error:
        return f"{place}: {_first_line(error)}"
    func: PrimFunc = functions[0]
    return func


def _module_text(text: str) -> bytes | str:
    """The JSON in a workload: plain, or base64 of its length in eight bytes and the JSON."""
    if text.lstrip().startswith("{"):
        return text
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParseError(f"the module is not base64: {error}") from None
    if not raw.lstrip().startswith(b"{") and int.from_bytes(raw[:8], "little") == len(raw) - 8:
        raw = raw[8:]
    return raw


def _record(func: PrimFunc, data: Any) -> Record:
    if not isinstance(data, list) or len(data) != 4:
        raise TraceError("a record is [trace, seconds, target, arguments]")
    trace = Trace.from_tvm_json(data[0])
    sch = Schedule(func)
    trace.apply(sch)
    times = data[1] if isinstance(data[1], list) else []
    plain = all(isinstance(t, (int, float)) and not isinstance(t, bool) for t in times)
    timed = bool(times) and plain and all(0 < t < _FAILED for t in times)
    return Record(
        workload_hash=structural_hash(func),
        workload=script(func),
        workload_name=f"tvm_{structural_hash(func)[:12]}",
        target=_target(data[2]).to_json(),
        trace=json.loads(sch.trace.to_json()),
        samples=times if timed else [],
        status=Status.OK if timed else Status.NOT_RECORDED,
        message=_NOTE,
        check="every step was checked when it was replayed",
        candidate_key=structural_hash(sch.mod),
    )


def _target(data: Any) -> Target:
    """The Target for TVM's description of a target; without a description, any processor."""
    if data is None or isinstance(data, str):
        return Target.of(data or "llvm")
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise MetaschedError("the target has no kind")
    words = [data["kind"]]
    for key in ("mcpu", "mtriple", "mattr", "num-cores", "arch"):
        value = data.get(key)
        if value:
            words.append(f"-{key}={','.join(value) if isinstance(value, list) else value}")
    return Target.of(" ".join(words))


def _first_line(error: Exception) -> str:
    return clipped(str(error).partition("\n")[0])


def fastest(found: list[Imported]) -> list[Record]:
    """The fastest record of each workload, by TVM's times; the first record if none has a time."""
    best: dict[str, Record] = {}
    for item in found:
        if item.record is None:
            continue
        known = best.setdefault(item.record.workload_hash, item.record)
        if _time(item.record) < _time(known):
            best[item.record.workload_hash] = item.record
    return list(best.values())


def _time(record: Record) -> float:
    return statistics.median(record.samples) if record.samples else math.inf
