"""What happened in a work folder: the event log, by workload, sessions put end to end."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

STAGES = {
    "replay": "replay", "build": "build", "run": "run", "wrong": "check", "out": "check",
    "not": "measure",
}  # fmt: skip
"""First word of a status -> the stage in which the candidate failed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured candidate.

    Attributes:
        at: seconds since the first session of its task began, pauses between sessions left out.
        seconds: of one call, infinite for a failure.
        round: number of its round, over all sessions.
        predicted: the model's score, None where there was none.
    """

    number: int
    at: float
    status: str
    message: str
    seconds: float
    round: int
    predicted: float | None

    @property
    def ok(self) -> bool:
        return self.status == "ok" and math.isfinite(self.seconds)


@dataclass
class History:
    """Everything the log says of one workload."""

    name: str
    workload: str
    flops: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)
    ended: str = ""
    _offset: float = 0.0
    _round: int = 0
    _earlier: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """Seconds of the fastest trial, infinite without one."""
        return min((t.seconds for t in self.trials if t.ok), default=math.inf)

    def best_so_far(self) -> list[tuple[Trial, float]]:
        """Each trial with the best seconds up to it, from the first right one on."""
        best, out = math.inf, []
        for trial in self.trials:
            best = min(best, trial.seconds if trial.ok else math.inf)
            if math.isfinite(best):
                out.append((trial, best))
        return out

    def failures(self) -> list[tuple[str, str, int, str]]:
        """(stage, status, count, one message) of each kind of failure, the most frequent first."""
        count = Counter(t.status for t in self.trials if not t.ok)
        message = {t.status: t.message for t in reversed(self.trials) if not t.ok}
        return [
            (STAGES.get(status.split("_")[0], "measure"), status, n, message[status])
            for status, n in count.most_common()
        ]

    def agreement(self) -> float | None:
        """Share of pairs, within a round, that the model put in the order the clock did."""
        told = [(t.round, t.predicted, t.seconds) for t in self.trials if t.ok]
        scored = [(r, score, seconds) for r, score, seconds in told if score is not None]
        pairs = [(a, b) for a, b in combinations(scored, 2) if a[0] == b[0]]
        pairs = [(a, b) for a, b in pairs if a[1] != b[1] and a[2] != b[2]]
        right = sum((a[1] > b[1]) == (a[2] < b[2]) for a, b in pairs)
        return right / len(pairs) if pairs else None

    def enter(self, kind: str, event: Mapping[str, Any]) -> None:
        """Take in one event of this workload."""
        if kind == "TaskStarted":
            self.flops = float(event["flops"])
            self._offset = self.trials[-1].at if self.trials else 0.0
            self._earlier = dict(self.phases)
        elif kind == "TrialDone":
            seconds, score = event.get("seconds"), event.get("predicted")
            self.trials.append(
                Trial(
                    len(self.trials) + 1, self._offset + float(event.get("elapsed") or 0.0),
                    str(event["status"]), str(event.get("message") or ""),
                    math.inf if seconds is None else float(seconds), self._round,
                    None if score is None else float(score),
                )
            )  # fmt: skip
        elif kind == "RoundDone":
            self._round += 1
            spent = dict(event.get("phases") or {})
            self.phases = {k: float(v) + self._earlier.get(k, 0.0) for k, v in spent.items()}
        elif kind == "TaskFinished":
            self.ended = str(event.get("reason") or "")
        elif kind == "PeerTimed":
            self.peers[str(event["peer"])] = float(event["seconds"])


def read_history(path: str | Path) -> list[History]:
    """The histories in an event log, in order of appearance; empty when there is none.

    Lines that are cut off or not ours are left out: a killed run may end in the middle of one.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: dict[tuple[str, str], History] = {}
    current: dict[str, History] = {}
    for event in _events(lines):
        name, kind = event.get("task"), event.get("event")
        if kind == "TaskStarted":
            key = (str(name), str(event.get("workload") or ""))
            current[str(name)] = found.setdefault(key, History(*key))
        history = current.get(str(name))
        if history is not None:
            try:
                history.enter(str(kind), event)
            except (KeyError, TypeError, ValueError):
                continue
    return list(found.values())


def _events(lines: Sequence[str]) -> list[dict[str, Any]]:
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events
