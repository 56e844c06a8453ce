"""From decisions to programs: exact replay with postprocs, and the population that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from metasched.cost.features import features
from metasched.errors import ScheduleError, TraceError
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.schedule.rng import derive_seed
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Decisions, Trace
from metasched.space.generate import SpaceGenerator
from metasched.target import Target


@dataclass(eq=False)
class Individual:
    """A program that a trace gave.

    Attributes:
        trace: the steps with their decisions, without the postprocs.
        shipped: the steps with the postprocs, simplified: what is stored.
        module: the scheduled program.
        key: its structural hash.
        space: position of the design space that it comes from; -1 for the default schedule.
        score: what the model said of it when it was chosen, None when it said nothing.
    """

    trace: Trace
    module: IRModule
    key: str
    space: int
    target: Target = field(repr=False)
    full: Trace = field(repr=False)
    score: float | None = None

    @cached_property
    def vector(self) -> np.ndarray[Any, Any]:
        """What the cost model sees."""
        return features(self.module, self.target)

    @cached_property
    def shipped(self) -> Trace:
        """The whole trace, without steps whose results nothing uses."""
        return self.full.simplified()


@dataclass
class Survival:
    """How many replays gave a program, and why the others did not."""

    tried: int = 0
    survived: int = 0
    repaired: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Survivors among those tried."""
        return self.survived / self.tried if self.tried else 1.0


class Workshop:
    """Makes individuals of one task: spaces, postprocs and the exact replay.

    Attributes:
        spaces: the design spaces, traces whose decisions are open.
        survival: counts over all replays.
    """

    def __init__(
        self, func: PrimFunc, target: Target, generator: SpaceGenerator, seed: int = 0
    ) -> None:
        self.func, self.target, self.generator = func, target, generator
        self.base = Schedule(func, seed=derive_seed(seed, "base"), check=False)
        self.spaces = generator.generate(func, target, derive_seed(seed, "space"))
        self.survival = Survival()

    def fresh(self, space: int, seed: int) -> Individual | None:
        """A random member of a space."""
        return self._make(self.spaces[space], space, "fresh", seed)

    def replay(
        self, trace: Trace, space: int, seed: int = 0, decisions: Decisions = "repair"
    ) -> Individual | None:
        """The program of a trace with (repaired) decisions; None when it is refused."""
        return self._make(trace, space, decisions, seed)

    def finished(self, trace: Trace) -> Individual:
        """The program of a trace that holds its postprocs already, such as the default schedule.

        Raises ScheduleError or TraceError when it does not apply.
        """
        sch = self.base.copy()
        trace.apply(sch)
        key = structural_hash(sch.mod)
        return Individual(trace.before_postproc(), sch.mod, key, -1, self.target, sch.trace)

    def _make(self, trace: Trace, space: int, decisions: Decisions, seed: int) -> Individual | None:
        self.survival.tried += 1
        sch = self.base.copy()
        sch.state.rng.state = seed
        try:
            trace.apply(sch, decisions=decisions)
            self.survival.repaired += sch.state.repairs
            before = sch.trace
            sch.enter_postproc()
            for postproc in self.generator.postprocs:
                postproc(sch, self.target)
        except (ScheduleError, TraceError) as error:
            self.survival.reasons[getattr(error, "reason", "trace-does-not-fit")] += 1
            return None
        self.survival.survived += 1
        key = structural_hash(sch.mod)
        return Individual(before, sch.mod, key, space, self.target, sch.trace)


class Population:
    """Individuals that were scored or measured, each program once.

    Attributes:
        measured: (individual, median seconds) of those measured and right, the fastest first.
        seen: keys of all programs measured in this or an earlier run, failures too.
    """

    def __init__(self, seen: set[str] | None = None) -> None:
        self.measured: list[tuple[Individual, float]] = []
        self.seen: set[str] = set(seen or ())

    def add(self, individuals: Sequence[Individual], seconds: Sequence[float]) -> None:
        """Enter measured individuals; infinity marks a failure, which is remembered only."""
        for one, time in zip(individuals, seconds, strict=True):
            self.seen.add(one.key)
            if time < float("inf"):
                self.measured.append((one, time))
        self.measured.sort(key=lambda pair: pair[1])

    def parents(self, count: int) -> list[Individual]:
        """The fastest measured individuals."""
        return [one for one, _ in self.measured[:count]]
