"""From decisions to programs: candidates, the factory that replays them, and the population."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from metasched.cost.features import FeatureSet
from metasched.errors import ScheduleError, TraceError, TuneError, warn
from metasched.foreign import ANYTHING
from metasched.ir.equal import structural_hash
from metasched.ir.func import IRModule, PrimFunc
from metasched.measure.candidate import Candidate
from metasched.measure.instruction_costs import measure_costs
from metasched.schedule.rng import derive_seed
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Decisions, Trace
from metasched.search.pool import ReplayPool
from metasched.search.replaying import (
    BROKEN,
    EXTRACTOR,
    Replayer,
    Summary,
    slug_of,
    with_decisions,
)
from metasched.space.generate import Space, design_spaces
from metasched.target import Target


class SearchCandidate:
    """A program made by a trace; its schedule, module and vector are computed on first use.

    Attributes:
        trace: the steps with their decisions, without the postprocs.
        key: structural hash of the program.
        space: position of the candidate's design space; -1 for the default schedule.
        vector: the feature vector.
        score: the model's score when the candidate was chosen, None without a score.
    """

    def __init__(
        self,
        trace: Trace,
        key: str,
        space: int,
        factory: CandidateFactory,
        *,
        vector: np.ndarray[Any, Any] | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.trace, self.key, self.space = trace, key, space
        self.score: float | None = None
        self._factory, self._vector, self._schedule = factory, vector, schedule

    @property
    def schedule(self) -> Schedule:
        """The whole schedule with postprocs, every step proved; raises ScheduleError if a step is
        illegal (see `CandidateFactory.admits`)."""
        if self._schedule is None:
            self._schedule = self._factory.remade(self.trace, self.key, self.space)
        return self._schedule

    @property
    def module(self) -> IRModule:
        """The scheduled program, as it was ranked; its steps are not proved legal here."""
        if self._schedule is None:
            return self._factory.ranked(self.trace, self.space).mod
        return self._schedule.mod

    @property
    def target(self) -> Target:
        """What the program is compiled for."""
        return self._factory.target

    def to_measure(self, index: int = 0) -> Candidate:
        """The candidate for a runner; raises ScheduleError if a step is illegal."""
        return Candidate(index, self.schedule.mod, self.key)

    @property
    def vector(self) -> np.ndarray[Any, Any]:
        if self._vector is None:
            self._vector = self._factory.vector_of(self.module)
        return self._vector

    @cached_property
    def shipped(self) -> Trace:
        """The trace that is stored: the steps with the postprocs, without unused steps."""
        return self.schedule.trace.simplified()


@dataclass
class Survival:
    """How many replays gave a program, and the reasons of the refused replays."""

    tried: int = 0
    survived: int = 0
    repaired: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of the replays that gave a program."""
        return self.survived / self.tried if self.tried else 1.0


class Request(NamedTuple):
    """A replay to do: a trace of a space, and the seed of the decisions that it draws."""

    trace: Trace
    space: int
    seed: int = 0


class CandidateFactory:
    """Makes candidates of one task: spaces, postprocs and the exact replay.

    Attributes:
        spaces: the design spaces, traces whose decisions are open.
        work: cycles for only the arithmetic of the unscheduled program.
        survival: counts over all replays.
    """

    def __init__(
        self,
        func: PrimFunc,
        target: Target,
        generator: Space,
        seed: int = 0,
        pool: ReplayPool | None = None,
        features: FeatureSet | None = None,
    ) -> None:
        """Generate the design spaces.

        Args:
            pool: replays on several cores; without a pool, this process replays.
            features: the feature set; None takes the set of the target's kind.

        Raises PluginError when the space or the feature extractor is broken.
        """
        self.func, self.target, self.generator = func, target, generator
        self.base = Schedule(func, seed=derive_seed(seed, "base"), check=False)
        self.spaces = design_spaces(generator, func, target, derive_seed(seed, "space"))
        if pool is not None:
            measure_costs(self.spaces, target)
        self._replayer = Replayer(self.base, self.spaces, generator.postprocs, target, features)
        self.work = self._replayer.work
        self.survival = Survival()
        self._pool = pool
        self._number: int | None = None
        self._named: set[str] = set()  # broken plug-ins that a warning named
        self._doubted: set[int] = set()  # spaces of which an illegal program was chosen
        if pool is not None:
            postprocs = tuple(generator.postprocs)
            self._number = pool.prepare(func, self.spaces, postprocs, target, features)

    def random_member(self, space: int, seed: int) -> SearchCandidate | None:
        """A random member of a space."""
        return self._make(self.spaces[space], space, "fresh", seed)

    def sample(self, space: int, seed: int) -> SearchCandidate | None:
        """`random_member`, whose steps are not proved legal until the program is chosen, as those
        of `replay_many`; it shares steps with these replays."""
        request = Request(self.spaces[space], space, seed)
        found = self._replayer.summary_of((space, None, seed, space not in self._doubted))
        return self._entered(request, found)

    def replay(
        self, trace: Trace, space: int, seed: int = 0, decisions: Decisions = "repair"
    ) -> SearchCandidate | None:
        """The program of a trace with the decisions, repaired if needed; None if refused."""
        if decisions != "repair":
            return self._make(trace, space, decisions, seed)
        return self.replay_many([Request(trace, space, seed)])[0]

    def replay_many(self, requests: Sequence[Request]) -> list[SearchCandidate | None]:
        """`replay` of each request, on all cores if there is a pool; the results are the same."""
        found: list[Summary | str] | None = None
        jobs = [(r.space, _decisions(r.trace), r.seed, r.space not in self._doubted)
                for r in requests]  # fmt: skip
        if self._pool is not None and self._number is not None:
            found = self._pool.replay(self._number, jobs, self._replayer.summary_of)
        if found is None:
            found = [self._replayer.summary_of(job) for job in jobs]
        return [self._entered(r, candidate) for r, candidate in zip(requests, found, strict=True)]

    def admits(self, candidate: SearchCandidate) -> bool:
        """Whether all steps of a candidate can be proved legal.

        After a failure, all programs of the candidate's space are replayed with proofs.
        """
        try:
            _ = candidate.schedule
        except (ScheduleError, TraceError) as error:
            self._doubted.add(candidate.space)
            self.survival.survived -= 1
            self._refused(slug_of(error))
            return False
        return True

    def finished(self, trace: Trace) -> SearchCandidate:
        """The program of a trace that already holds the steps of its postprocs, such as the default
        schedule.

        Raises ScheduleError or TraceError when the trace does not apply.
        """
        sch = self.base.copy()
        trace.apply(sch)
        key = structural_hash(sch.mod)
        return SearchCandidate(trace.before_postproc(), key, -1, self, schedule=sch)

    def recalled(self, trace: Trace, key: str, space: int, seed: int) -> SearchCandidate:
        """The candidate of a stored trace: the member of a space that is the program `key`, else a
        candidate of no space.

        Args:
            space: the position that the space had when the trace was stored, -1 for none. With
                other modules, as without a plug-in file, other spaces stand at other positions.

        Raises ScheduleError or TraceError when the trace does not apply.
        """
        drawn = [entry for _, entry in trace.before_postproc().sampling()]
        kinds, decisions = [e.kind for e in drawn], [e.decision for e in drawn]
        for place in sorted(range(len(self.spaces)), key=lambda n: n != space):
            own = self.spaces[place]
            if space >= 0 and [entry.kind for _, entry in own.sampling()] == kinds:
                made = self.replay(with_decisions(own, decisions), place, seed, "stored")
                if made is not None and made.key == key:
                    return made
        return self.finished(trace)

    def remade(self, trace: Trace, key: str, space: int) -> Schedule:
        """Make the schedule of a candidate anew from its trace, with every step proved.

        Raises ScheduleError when a step is illegal, also if a postproc takes it back then, and
        TuneError when another program comes out.
        """
        sch = self._replayer.member(space, _decisions(trace), 0)
        if structural_hash(sch.mod) != key:
            if structural_hash(self.ranked(trace, space).mod) == key:
                raise ScheduleError("replay", "unproved-step", "a step of a postproc is illegal")
            raise TuneError(f"the replay of {key} in another process gave another program")
        return sch

    def ranked(self, trace: Trace, space: int) -> Schedule:
        """The schedule of a replayed candidate, for a model that ranks programs; without proofs."""
        decisions = _decisions(trace)
        try:
            return self._replayer.member(space, decisions, 0, skip_checks=True)
        except ANYTHING:  # the replay that gave its summary proved the steps
            return self._replayer.member(space, decisions, 0)

    def vector_of(self, mod: IRModule) -> np.ndarray[Any, Any]:
        """The feature vector of a program; zeros and a warning if the extractor fails."""
        vector, broken = self._replayer.vector_of(mod)
        self._name_extractor(broken)
        return vector

    def _name_extractor(self, broken: str) -> None:
        """Warn of a feature extractor that failed on a program, once."""
        if broken and EXTRACTOR not in self._named:
            self._named.add(EXTRACTOR)
            warn(f"{broken}; the model is given zeros instead")

    def _entered(self, request: Request, result: Summary | str) -> SearchCandidate | None:
        """The candidate of a replayed request; None if the replay was refused."""
        self.survival.tried += 1
        if isinstance(result, str):
            self._refused(result)
            return None
        self._name_extractor(result.broken)
        self.survival.survived += 1
        self.survival.repaired += result.repairs
        trace = with_decisions(request.trace, result.decisions, result.domains)
        return SearchCandidate(trace, result.key, request.space, self, vector=result.vector)

    def _refused(self, slug: str) -> None:
        """Count a refusal; warn of a broken postproc once."""
        self.survival.reasons[slug] += 1
        what = slug.partition(" raised ")[0]
        if slug.startswith(BROKEN) and what not in self._named:
            self._named.add(what)
            warn(f"{slug}; the candidates on which it does are left out")

    def _make(
        self, trace: Trace, space: int, decisions: Decisions, seed: int
    ) -> SearchCandidate | None:
        self.survival.tried += 1
        try:
            sch = self._replayer.replayed(trace, decisions, seed)
        except (ScheduleError, TraceError) as error:
            self._refused(slug_of(error))
            return None
        self.survival.survived += 1
        self.survival.repaired += sch.state.repairs
        before = sch.trace.before_postproc()
        return SearchCandidate(before, structural_hash(sch.mod), space, self, schedule=sch)


def _decisions(trace: Trace) -> list[Any]:
    return [entry.decision for _, entry in trace.sampling()]


class Population:
    """The candidates that were measured, each program once.

    Attributes:
        measured: (candidate, median seconds) of each right candidate, the fastest first.
        seen: keys of all programs measured in this or an earlier run, failures too.
    """

    def __init__(self, seen: set[str] | None = None) -> None:
        self.measured: list[tuple[SearchCandidate, float]] = []
        self.seen: set[str] = set(seen or ())

    def add(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Enter measured candidates; of a failure (infinite seconds) only the key is kept."""
        for candidate, time in zip(candidates, seconds, strict=True):
            self.seen.add(candidate.key)
            if time < float("inf"):
                self.measured.append((candidate, time))
        self.measured.sort(key=lambda pair: pair[1])

    def correct(self, seconds: Mapping[str, float]) -> None:
        """Replace the times of candidates, by their keys, after they were timed again."""
        self.measured = [
            (candidate, seconds.get(candidate.key, time)) for candidate, time in self.measured
        ]
        self.measured.sort(key=lambda pair: pair[1])

    def parents(self, count: int) -> list[SearchCandidate]:
        """The fastest measured candidates."""
        return [candidate for candidate, _ in self.measured[:count]]
