"""The replay runner: answers from a recorded table, so that search is tested without hardware."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metasched.errors import MeasureError, words
from metasched.files import atomic_write, read_json
from metasched.measure.candidate import Candidate, OnOutcome, Outcome, Status

TABLE_VERSION = 1
Cost = Callable[[Candidate], "Outcome | float"]


class ReplayRunner:
    """Looks up the outcomes of candidates by their keys.

    For an unknown key the outcome comes from `cost`, a deterministic function of the candidate that
    gives seconds or an Outcome. Without `cost` the status is NOT_RECORDED.

    Attributes:
        measured: the keys of all measured candidates, in order.
    """

    def __init__(
        self, table: Mapping[str, Outcome] | None = None, cost: Cost | None = None
    ) -> None:
        self._table = dict(table or {})
        self._cost = cost
        self.measured: list[str] = []

    @staticmethod
    def load(path: str | Path, cost: Cost | None = None) -> ReplayRunner:
        """Read a table; MeasureError names the file and the entry that cannot be read."""
        try:
            data = read_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            reason = words(error)
            raise MeasureError(f"{path}: the recorded table cannot be read: {reason}") from None
        if not isinstance(data, dict) or data.get("schema_version") != TABLE_VERSION:
            found = data.get("schema_version") if isinstance(data, dict) else None
            raise MeasureError(f"{path}: table version {found!r}, this reads {TABLE_VERSION}")
        table = {}
        for key, entry in data.get("outcomes", {}).items():
            try:
                table[key] = outcome_from(entry)
            except (TypeError, ValueError, KeyError) as error:
                raise MeasureError(f"{path}: entry {key!r}: {error}") from None
        return ReplayRunner(table, cost)

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`."""
        outcomes = []
        for candidate in candidates:
            self.measured.append(candidate.key)
            outcome = self._answer(candidate)
            outcomes.append(outcome)
            if on_outcome is not None:
                on_outcome(candidate, outcome)
        return outcomes

    def close(self) -> None:
        """Nothing to end."""

    def _answer(self, candidate: Candidate) -> Outcome:
        known = self._table.get(candidate.key)
        if known is not None:
            return known
        if self._cost is None:
            return Outcome(Status.NOT_RECORDED, message=f"no entry for {candidate.key}")
        answer = self._cost(candidate)
        return answer if isinstance(answer, Outcome) else Outcome(Status.OK, (answer,))


class RecordingRunner:
    """Measures with another runner and keeps the table for a ReplayRunner."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.table: dict[str, Outcome] = {}

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """See `Runner.measure`."""
        outcomes: list[Outcome] = self.inner.measure(candidates, on_outcome)
        self.table.update({c.key: o for c, o in zip(candidates, outcomes, strict=True)})
        return outcomes

    def save(self, path: str | Path) -> None:
        """Write the table, whole or not at all; MeasureError when the path cannot be written."""
        outcomes = {key: outcome_data(o) for key, o in sorted(self.table.items())}
        text = json.dumps({"schema_version": TABLE_VERSION, "outcomes": outcomes}, indent=1)
        try:
            atomic_write(path, text + "\n")
        except OSError as error:
            raise MeasureError(f"{path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the inner runner."""
        self.inner.close()


def outcome_data(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON data, empty fields left out."""
    fields = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
    return {
        "status": outcome.status.value,
        **{k: v for k, v in fields.items() if v and k != "status"},
    }


def outcome_from(data: Mapping[str, Any]) -> Outcome:
    """An outcome from JSON data; ValueError, TypeError or KeyError for other data."""
    fields = dict(data)
    status = Status(fields.pop("status"))
    seconds = tuple(float(s) for s in fields.pop("seconds", ()))
    return Outcome(status, seconds, **fields)
