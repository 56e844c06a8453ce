"""replay: apply a stored trace of a file or a database to the function it was made for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from metasched.analysis.sizes import run_time_extents
from metasched.database.base import Database
from metasched.database.equality import EQUALITIES, ModuleEquality
from metasched.database.lookup import Hit, Miss, explain, lookup
from metasched.database.record import Measured, TraceFile
from metasched.errors import MetaschedError, TraceError, TraceMiss, TuneError, shown_at_caller
from metasched.foreign import ANYTHING, failure
from metasched.ir.equal import structural_hash
from metasched.ir.func import DATA, SIZES, IRModule, PrimFunc
from metasched.runtime.foreign import require_known_calls
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.parser import parse
from metasched.target import Target


@shown_at_caller
def replay(
    source: str | Path | Database,
    func: PrimFunc | IRModule,
    *,
    target: Target | str | Mapping[str, Any] | None = None,
    allow_extern: Sequence[str] | str = (),
    equality: str = "structural",
) -> Schedule:
    """Apply a stored trace to the function it was tuned for; nothing is drawn or measured.

    Args:
        source: a trace file (`work/NAME.HASH.trace.json`), or a database: then the fastest record
            whose trace applies is used.
        func: the unscheduled function. If its extents are known at run time only and it names no
            sizes (`tune(sizes=...)`), it takes the sizes of the record. The data that it was
            tuned with (`tune(data=...)`) need not be given.
        target: the machine on which the result shall run; None is this machine.
        allow_extern: names of foreign functions that the result may call. They are refused by
            default, because a trace from elsewhere may name any function.
        equality: the name of the rule by which `func` counts as equal to the function of the
            trace. `structural`: equal programs. `ignore-constants`: equal but for floating
            constants. `anchor-block`: equal blocks with the most operations (other blocks are
            inlined where possible).

    Returns the schedule; `metasched.build(schedule)` compiles it.

    Raises TraceMiss, a TraceError, when there is no trace for this workload, schema version or
    machine; the message says what differs. Raises TraceError when the trace cannot be read, does
    not replay or calls foreign code that is not allowed.
    """
    only, machine, same = single(func), Target.of(target), EQUALITIES.get(equality)
    if isinstance(source, str | Path):
        stored = [_of_file(source, only, machine, equality, same)]
    elif callable(getattr(source, "all", None)):
        stored = _of_database(source, only, machine, equality, same)
    else:
        kind = type(source).__name__
        raise TraceError(f"a trace file is a path, not {kind}; a database has put() and all()")
    where = (
        source if isinstance(source, str | Path) else f"record {stored[0][0].workload_hash[:12]}"
    )
    refused: MetaschedError | None = None
    for record, tuned in stored:
        sch = Schedule(tuned, seed=record.seed)
        try:
            same.apply(sch, Trace.from_json(json.dumps(record.trace)))
        except MetaschedError as error:
            refused = refused or error
            continue
        except ANYTHING as error:
            raise TraceError(f"{where}: the module equality raised {failure(error)}") from error
        require_known_calls(sch.mod, allow_extern, where)
        return sch
    raise TraceError(f"{where}: the trace does not replay: {refused}") from refused


_Stored: TypeAlias = tuple[Measured, PrimFunc]
"""A record, and the function as it was tuned."""


def single(source: PrimFunc | IRModule) -> PrimFunc:
    """The only function of a program; TuneError where there are several functions or none."""
    if isinstance(source, PrimFunc):
        return source
    if not isinstance(source, IRModule):
        raise TuneError(f"a program is a PrimFunc or an IRModule, not {type(source).__name__}")
    if len(source) != 1:
        raise TuneError(
            f"the module has {len(source)} functions ({', '.join(source)}); "
            "pass one of them, or all to tune_tasks"
        )
    return next(iter(source.values()))


def _of_file(
    path: str | Path, func: PrimFunc, machine: Target, equality: str, same: ModuleEquality
) -> _Stored:
    """The record of a trace file, and the function with the sizes of the record; raises TraceMiss
    if the file does not fit."""
    stored = TraceFile.load(path)
    func = _as_tuned(stored.workload, func)
    workload = structural_hash(func)
    if equality != "structural" and _key(same, single(parse(stored.workload))) == _key(same, func):
        workload = stored.workload_hash
    found = explain(stored, workload, machine, script=func.script())
    if isinstance(found, Miss):
        raise TraceMiss(f"{path}: {found.reason}")
    return stored, func


def _as_tuned(text: str, func: PrimFunc) -> PrimFunc:
    """A function with the sizes and the digest of data of a stored workload, where it has none."""
    wanted = [key for key in (SIZES, DATA) if key not in func.attrs and key in text]
    if SIZES in wanted and not run_time_extents(func):
        wanted.remove(SIZES)
    if wanted:
        stored = single(parse(text)).attrs
        for key in wanted:
            func = func.with_attr(key, stored[key]) if key in stored else func
    return func


def _of_database(
    database: Database, func: PrimFunc, machine: Target, equality: str, same: ModuleEquality
) -> list[_Stored]:
    """The best records of all equal workloads, each with the function as it was tuned; the
    function's own workload comes first."""
    own, tuned = structural_hash(func), _as_given(database, func)
    found = [lookup(database, own, machine, script=func.script())]
    found += [lookup(database, workload, machine) for workload in tuned]
    if equality != "structural":
        key = _key(same, func)
        found += [
            lookup(database, workload, machine)
            for workload, text in database.workloads().items()
            if workload != own and _key(same, single(parse(text))) == key
        ]
    hits = [one.record for one in found if isinstance(one, Hit)]
    if not hits and isinstance(found[0], Miss):
        raise TraceMiss(f"the database: {found[0].reason}")
    hits.sort(key=lambda one: (one.workload_hash != own, one.seconds))
    return [(one, tuned.get(one.workload_hash, func)) for one in hits]


def _as_given(database: Database, func: PrimFunc) -> dict[str, PrimFunc]:
    """The workloads of a database that are a function with given sizes or data, which the function
    itself lacks; each with this function."""
    lacking = [key for key in (SIZES, DATA) if key not in func.attrs]
    texts = {w: t for w, t in database.workloads().items() if any(key in t for key in lacking)}
    made = {workload: _as_tuned(text, func) for workload, text in texts.items()}
    return {w: tuned for w, tuned in made.items() if structural_hash(tuned) == w}


def _key(same: ModuleEquality, func: PrimFunc) -> str:
    """The key of a function; TraceError when the equality is broken."""
    try:
        return same.key(func)
    except ANYTHING as error:
        raise TraceError(f"the module equality raised {failure(error)}") from error
