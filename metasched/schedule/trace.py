"""Trace: the steps of a schedule as a value that can be replayed, edited, simplified and stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from metasched.errors import TraceError
from metasched.ir.intern import quick
from metasched.schedule import codec
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV
from metasched.schedule.instruction import Entry, map_handles
from metasched.schedule.tvm_trace import entries_of_tvm
from metasched.tvm_names import TRACE, TRACE_WORDS, answered, hint

if TYPE_CHECKING:
    from metasched.schedule.state import State

Decisions: TypeAlias = Literal["stored", "fresh", "repair"]
POSTPROC = "enter_postproc"


class Replayer(Protocol):
    """The object to which a trace is applied: a Schedule."""

    state: State

    def execute(self, entry: Entry, mode: str) -> None: ...


@quick
class Trace:
    """A sequence of entries; an immutable value, every change gives a new trace."""

    entries: tuple[Entry, ...] = ()

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            known = () if name.startswith("_") else dir(self)
            raise AttributeError(f"a trace has no {name!r}{hint(name, TRACE, known)}")

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def append(self, entry: Entry) -> Trace:
        """This trace with one more step."""
        return Trace((*self.entries, entry))

    def apply(
        self, sch: Replayer, *, decisions: Decisions = "stored", without_postproc: bool = False
    ) -> None:
        """Run the steps on `sch`, after the steps it already has.

        Args:
            sch: a schedule of the same program.
            decisions: "stored" takes the recorded decisions and never draws. "fresh" draws new
                decisions, and draws again if a `require` fails. "repair" takes the recorded
                decisions and replaces impossible decisions by a fixed rule; `sch.state.repairs`
                counts the replacements.
            without_postproc: whether to stop at the `enter_postproc` mark.

        Raises:
            ScheduleError: a step is refused.
            TraceError: an entry does not fit.
        """
        if not hasattr(sch, "execute"):
            raise TraceError(f"a trace is applied to a Schedule, not {type(sch).__name__}")
        trace = self.before_postproc() if without_postproc else self
        if any(rv in sch.state.table for e in trace.entries for rv in e.outputs):
            trace = trace.renamed()
        for entry in trace.entries:
            sch.execute(entry, decisions)

    def renamed(self) -> Trace:
        """The same steps over new handles, for a schedule that already uses the trace's handles."""
        names: dict[RV, RV] = {}

        def rename(rv: RV) -> RV:
            return names.get(rv, rv)

        out = []
        for e in self.entries:
            values = map_handles(e.values, rename)
            outputs = tuple(type(rv)() for rv in e.outputs)
            names.update(zip(e.outputs, outputs, strict=True))
            out.append(Entry(e.kind, values, outputs, e.decision, e.domain))
        return Trace(tuple(out))

    def before_postproc(self) -> Trace:
        """The steps before the `enter_postproc` mark (all when there is none)."""
        for position, entry in enumerate(self.entries):
            if entry.kind.name == POSTPROC:
                return Trace(self.entries[:position])
        return self

    def sampling(self) -> list[tuple[int, Entry]]:
        """The steps that carry a decision, with their positions."""
        return [(i, e) for i, e in enumerate(self.entries) if e.kind.sampling]

    def with_decision(self, position: int | Entry, decision: Any) -> Trace:
        """This trace with another decision at one sampling step, given by position or entry."""
        if isinstance(position, Entry):
            position = self.entries.index(position)
        entry = self.entries[position]
        if not entry.kind.sampling:
            raise TraceError(f"step {position}, {entry.kind.name}, carries no decision")
        changed = entry.decided(decision, entry.domain)
        return Trace((*self.entries[:position], changed, *self.entries[position + 1 :]))

    def decisions(self) -> tuple[Any, ...]:
        """All decisions in order, as hashable values."""
        return tuple(
            tuple(e.decision) if isinstance(e.decision, list) else e.decision
            for e in self.entries
            if e.kind.sampling
        )

    @answered(TRACE_WORDS)
    def simplified(self, *, without_postproc: bool = False) -> Trace:
        """The trace without the pure steps whose results nothing uses.

        Uses inside lists and expressions count, too. So the result replays if the original replays.
        """
        trace = self.before_postproc() if without_postproc else self
        used: set[RV] = set()
        kept: list[Entry] = []
        for entry in reversed(trace.entries):
            if entry.kind.pure and used.isdisjoint(entry.outputs):
                continue
            used.update(entry.uses())
            kept.append(entry)
        return Trace(tuple(reversed(kept)))

    def names(self) -> dict[RV, str]:
        """The printed name of each handle: b#, l#, v#, numbered over all outputs."""
        letters = {BlockRV: "b", LoopRV: "l", ExprRV: "v"}
        out: dict[RV, str] = {}
        for entry in self.entries:
            for rv in entry.outputs:
                out[rv] = f"{letters[type(rv)]}{len(out)}"
        return out

    def to_json(self, *, indent: int | None = None) -> str:
        """The trace as JSON text with its schema version (see `schedule.codec`)."""
        return codec.to_json(self.entries, self.names(), indent=indent)

    @staticmethod
    def from_json(text: str) -> Trace:
        """Read what `to_json` wrote; TraceError names the field that is wrong."""
        return Trace(codec.from_json(text))

    @staticmethod
    def from_tvm_json(data: Any) -> Trace:
        """Read a trace that Apache TVM wrote (`trace.as_json()`, or the trace of a tuning record).

        Args:
            data: the JSON text, or the parsed JSON.

        Raises:
            TraceError: an instruction cannot be read; the message names it. Nothing is executed.
        """
        return Trace(entries_of_tvm(data))

    @staticmethod
    def apply_json_to_schedule(data: Any, sch: Replayer) -> None:
        """Run the steps of a trace that Apache TVM wrote on `sch` (see `from_tvm_json`)."""
        Trace.from_tvm_json(data).apply(sch)

    def as_python(self) -> str:
        """A function `apply_trace(sch)` with one call a line that rebuilds the schedule."""
        return codec.as_python(self.entries, self.names())

    def __str__(self) -> str:
        return self.as_python()
