"""What a search tells while it runs: events, and who may listen to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task begins: its name, operations of one call, and how many trials it may have."""

    task: str
    flops: float
    budget: int
    known: int
    spaces: int


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One candidate ended."""

    task: str
    index: int
    status: str
    seconds: float
    message: str
    best: float
    trials: int
    failed: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """One round was measured and learnt from; `phases` are the seconds spent so far."""

    task: str
    round: int
    trials: int
    failed: int
    best: float
    elapsed: float
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A task ended: by budget, time, exhaustion or interruption."""

    task: str
    reason: str
    best: float
    trials: int
    failed: int
    elapsed: float


Event: TypeAlias = "TaskStarted | TrialDone | RoundDone | TaskFinished"
Observer: TypeAlias = "Callable[[Event], None]"


def silent(event: Event) -> None:
    """Listen to nothing."""


class EventLog:
    """Writes each event as a JSON line, flushed at once, so that a killed run is still readable."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        data: dict[str, Any] = {"event": type(event).__name__, **asdict(event)}
        plain = {k: (None if v in (float("inf"),) else v) for k, v in data.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def fan_out(*observers: Observer) -> Observer:
    """One observer that tells several."""

    def tell(event: Event) -> None:
        for observer in observers:
            observer(event)

    return tell
