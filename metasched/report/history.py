"""Read the event log of a work folder: one history for each workload, its sessions joined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from metasched.errors import brief, clipped, warn
from metasched.files import read_json

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
        machine: name of the machine that measured it, empty if unknown.
    """

    number: int
    at: float
    status: str
    message: str
    seconds: float
    round: int
    predicted: float | None
    machine: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok" and math.isfinite(self.seconds)


@dataclass
class History:
    """The content of the event log about one workload."""

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
        """Each trial with the best seconds so far, from the first right trial on."""
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
        """The share of pairs within a round whose order by the model equals their order by time."""
        measured = [(t.round, t.predicted, t.seconds) for t in self.trials if t.ok]
        scored = [(r, score, seconds) for r, score, seconds in measured if score is not None]
        pairs = [(a, b) for a, b in combinations(scored, 2) if a[0] == b[0]]
        pairs = [(a, b) for a, b in pairs if a[1] != b[1] and a[2] != b[2]]
        right = sum((a[1] > b[1]) == (a[2] < b[2]) for a, b in pairs)
        return right / len(pairs) if pairs else None

    def enter(self, kind: str, event: Mapping[str, Any]) -> None:
        """Add one event of this workload."""
        if kind == "TaskStarted":
            self.flops = _amount(event["flops"])
            self._offset = self.trials[-1].at if self.trials else 0.0
            self._earlier = dict(self.phases)
        elif kind == "TrialDone":
            score = event.get("predicted")
            self.trials.append(
                Trial(
                    len(self.trials) + 1, self._offset + _amount(event.get("elapsed") or 0.0),
                    str(event["status"]), str(event.get("message") or ""),
                    _seconds(event.get("seconds")), self._round,
                    None if score is None else _amount(score, least=-_LARGEST),
                    str(event.get("machine") or ""),
                )
            )  # fmt: skip
        elif kind == "RoundDone":
            phases = event.get("phases") or {}
            spent = {k: _amount(v) + self._earlier.get(k, 0.0) for k, v in phases.items()}
            self._round, self.phases = self._round + 1, spent
        elif kind == "TaskFinished":
            self.ended = str(event.get("reason") or "")
        elif kind == "PeerTimed":
            self.peers[str(event["peer"])] = _seconds(event["seconds"])


_LARGEST = 1e30


def _amount(value: Any, least: float = 0.0) -> float:
    """Check a number from the log; ValueError for a value that no event holds."""
    if type(value) not in (int, float) or not least <= value <= _LARGEST:
        raise ValueError(f"{brief(value)} is no amount")
    return float(value)


def _seconds(value: Any) -> float:
    """A time, infinite where there is none."""
    return math.inf if value is None else _amount(value, least=1e-12)


def read_history(path: str | Path) -> list[History]:
    """The histories in an event log, in order of appearance; empty if there is no log.

    A last line that is cut off is left out: a killed run may end in the middle of a line. Another
    line that cannot be read is left out with a warning.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        warn(f"{path}: cannot be read: {error.strerror}")
        return []
    found: dict[tuple[str, str], History] = {}
    current: dict[str, History] = {}
    lost: list[str] = []
    *whole, last = text.split("\n")
    for number, line in enumerate([*whole, last] if _whole(last) else whole, 1):
        try:
            event = read_json(line or "{}")
            name, kind = str(event.get("task")), str(event.get("event"))
            if kind == "TaskStarted":
                key = (name, str(event.get("workload") or ""))
                current[name] = found.setdefault(key, History(*key))
            if name in current:
                current[name].enter(kind, event)
        except (AttributeError, KeyError, TypeError, ValueError):
            lost.append(f"{path}: line {number} is damaged and left out: {clipped(line)}")
    for sentence in lost[:_NAMED]:
        warn(sentence)
    if lost[_NAMED:]:
        warn(f"{path}: {len(lost[_NAMED:])} more lines are damaged")
    return list(found.values())


_NAMED = 5  # damaged lines that are named one by one


def _whole(line: str) -> bool:
    """Whether a last line without a line end is a complete event."""
    try:
        return isinstance(read_json(line), dict)
    except ValueError:
        return False
