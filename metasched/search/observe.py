"""Events of a running search, and observers, the functions that are called with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from metasched.errors import TuneError, brief, warn
from metasched.foreign import ANYTHING, failure
from metasched.measure.candidate import Candidate, Outcome
from metasched.registry import Registry
from metasched.schedule.trace import Trace
from metasched.watch import called, is_built_in

_NOT_LOGGED = {"only in memory": True}


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task begins: its name, operations of one call, how many trials it may have, how many the
    store knows, and the hash of its workload."""

    task: str
    flops: float
    budget: int
    known: int
    spaces: int
    workload: str = ""


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One candidate ended, `elapsed` seconds after its task began.

    Attributes:
        predicted: the model's score (higher is faster) before it was measured, None without one.
        candidate: the program that was measured: `module` and `key`.
        trace: its steps, including the steps of postprocs; `Trace.apply` replays them.
        outcome: status, all samples, and how the results were compared.
        machine: name of the machine that measured the candidate.

    Candidate, trace and outcome are not written to the event log; the database holds them.
    """

    task: str
    index: int
    status: str
    seconds: float
    message: str
    best: float
    trials: int
    failed: int
    elapsed: float = 0.0
    predicted: float | None = None
    candidate: Candidate | None = field(default=None, repr=False, metadata=_NOT_LOGGED)
    trace: Trace | None = field(default=None, repr=False, metadata=_NOT_LOGGED)
    outcome: Outcome | None = field(default=None, repr=False, metadata=_NOT_LOGGED)
    machine: str = ""


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
    """The search of a task ended: by budget, time, exhaustion or interruption."""

    task: str
    reason: str
    best: float
    trials: int
    failed: int
    elapsed: float


@dataclass(frozen=True, slots=True)
class FinalStep:
    """The final comparison of a task, after its search, begins step `step` of at most `steps`."""

    task: str
    step: int
    steps: int
    text: str


@dataclass(frozen=True, slots=True)
class PeerTimed:
    """Another library was timed on the same operator, in the same run."""

    task: str
    peer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelNews:
    """A message of the cost model: it started from a prior, or dropped the prior."""

    task: str
    text: str


@dataclass(frozen=True, slots=True)
class SpaceNews:
    """A schedule module gave up some or all of its alternatives on a block: steps were refused."""

    task: str
    text: str


Event: TypeAlias = (
    "TaskStarted | TrialDone | RoundDone | TaskFinished | FinalStep | PeerTimed | ModelNews"
    " | SpaceNews"
)
Observer: TypeAlias = "Callable[[Event], None]"


OBSERVERS: Registry[Observer] = Registry("observer", Callable)
"""Functions of an event, by name."""

Observing = TypeVar("Observing", bound="Callable[..., None]")


def observer(name: str, *, override: bool = False) -> Callable[[Observing], Observing]:
    """Register a function of an event as an observer.

    Args:
        name: what `ms.tune(observer=...)` and `metasched tune --observer` call it.
        override: replace an observer of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(event) -> None"
    return cast(
        "Callable[[Observing], Observing]", OBSERVERS.decorator(name, signature, None, override)
    )


def observers_of(given: Observer | str | Sequence[Observer | str] | None) -> list[Observer]:
    """Resolve the argument `observer`: one or several, each a function or a name.

    Raises RegistryError for an unknown name, TuneError for an object that is not callable.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: list[Observer] = []
    for each in several:
        if each is None:
            continue
        one = OBSERVERS.get(each) if isinstance(each, str) else each
        if not callable(one):
            raise TuneError(f"observer is {brief(one)}; it must be a function of an event")
        found.append(one)
    return found


def silent(event: Event) -> None:
    """An observer that ignores every event."""


class EventLog:
    """Writes each event as a JSON line, flushed at once, so that a killed run is still readable.

    A full disk ends the log with one warning: the log is for people, the store holds the results.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._broken = False

    def __call__(self, event: Event) -> None:
        if self._broken:
            return
        plain: dict[str, Any] = {"event": type(event).__name__}
        for each in fields(event):
            if not each.metadata.get("only in memory"):
                value = getattr(event, each.name)
                plain[each.name] = None if value in (math.inf,) else value
        try:
            self._file.write((json.dumps(plain) + "\n").encode())
        except OSError as error:
            self._broken = True
            warn(f"{self._file.name}: the log ends here: {error.strerror}")

    def close(self) -> None:
        self._file.close()


def fan_out(*observers: Observer) -> Observer:
    """Combine observers into one; an observer that raises an error is dropped with a warning."""
    listening = list(observers)

    def tell(event: Event) -> None:
        for observer in list(listening):
            what = OBSERVERS.title(observer)
            try:
                with called(what, observer, stop=not is_built_in(observer)):
                    observer(event)
            except ANYTHING as error:
                listening.remove(observer)
                warn(f"{what} raised {failure(error)}; it is not called any more")

    return tell
