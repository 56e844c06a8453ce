"""Applies a trace to a similar function: steps for blocks of both functions; other blocks are
inlined.

For example, a trace found for a matrix product also fits the product followed by a bias and a ReLU.
The product is the anchor block of both functions; TVM calls the trace an anchor trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from metasched.errors import ScheduleError, TraceError, brief
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import RV
from metasched.schedule.instruction import Entry, flat_outputs, handles_in, map_handles
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace

_INLINES = ("compute_inline", "reverse_compute_inline")


@dataclass
class _Run:
    """The trace's handles: `known` maps them to handles of `sch`; `foreign` have no counterpart."""

    sch: Schedule
    known: dict[RV, RV] = field(default_factory=dict)
    foreign: set[RV] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)


def schedule_using_anchor_trace(
    sch: Schedule, anchor_trace: Trace, target: Any = None
) -> list[str]:
    """Apply to `sch` a trace that was recorded on another function with the same anchor block.

    Steps for blocks that `sch` lacks are left out. If an inlining is refused, the block is inlined
    in the other direction. Blocks that the trace does not name are inlined if possible. Every step
    checks its requirements, so the program keeps its meaning.

    Args:
        sch: a schedule of the other function, with no step yet.
        anchor_trace: the trace.
        target: accepted for compatibility with TVM and ignored.

    Returns a text for each step that was left out.

    Raises:
        ScheduleError, TraceError: a step for a block of `sch` does not fit; `sch` is unchanged.
    """
    if not isinstance(sch, Schedule) or not isinstance(anchor_trace, Trace):
        raise TraceError("schedule_using_anchor_trace takes a Schedule and a Trace")
    if len(sch.mod.functions) != 1:
        raise TraceError("an anchor trace is applied to a module of one function")
    trial = _Run(sch.copy())
    named = {e.attrs["name"] for e in anchor_trace if e.kind.name == "get_block"}
    if not named & set(_names(sch)):
        here = ", ".join(_names(sch))
        raise TraceError(f"no block of the trace is here: it names {', '.join(sorted(named))}, "
                         f"the function has {here}")  # fmt: skip
    others = [name for name in _names(sch) if name not in named]
    _inline(trial.sch, others)
    for entry in anchor_trace:
        _apply(trial, entry)
    _inline(trial.sch, reversed(others))
    trial.sch.trace.apply(sch)
    return trial.skipped


def _names(sch: Schedule) -> list[str]:
    """The blocks of the function below its root, in order."""
    (func,) = sch.mod.functions.values()
    return [r.block.name for r in blocks_of(func.root.body)]


def _inline(sch: Schedule, names: Iterable[str]) -> None:
    """Inline those of the named blocks that still exist, into consumers or else the producer."""
    for name in names:
        for how in _INLINES if name in _names(sch) else ():
            try:
                getattr(sch, how)(sch.get_block(name))
            except ScheduleError:
                continue
            break


def _apply(run: _Run, entry: Entry) -> None:
    """Apply one step of the trace, with its handles replaced by handles of the schedule."""
    name = entry.kind.name
    missing = [rv for rv in handles_in(entry.values) if rv in run.foreign]
    absent = name == "get_block" and entry.attrs["name"] not in {"root", *_names(run.sch)}
    if missing or absent:
        run.foreign.update(entry.outputs)
        what = f" {brief(entry.attrs['name'])}" if absent else ""
        run.skipped.append(f"{name}{what}: not in this function")
        return
    values = map_handles(entry.values, lambda rv: run.known.get(rv, rv))
    try:
        made = _perform(run.sch, entry, values)
    except ScheduleError:
        if name not in _INLINES:
            raise
        other = _INLINES[1 - _INLINES.index(name)]
        made = flat_outputs(getattr(run.sch, other)(*values))
    if name != "get_child_blocks" and len(made) != len(entry.outputs):
        raise TraceError(
            f"{name} gives {len(made)} results here, the trace has {len(entry.outputs)}: "
            "the block is not the same"
        )
    run.known.update(zip(entry.outputs, made, strict=False))
    run.foreign.update(entry.outputs[len(made) :])


def _perform(sch: Schedule, entry: Entry, values: Sequence[Any]) -> Sequence[RV]:
    """Call the step's primitive on the schedule, which records it."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for param, value in zip(entry.kind.params, values, strict=True):
        if param.variadic:
            args = list(value)
        else:
            kwargs[param.name] = value
    if entry.kind.sampling:
        kwargs["decision"] = entry.decision
    return flat_outputs(getattr(sch, entry.kind.name)(*args, **kwargs))
