"""categorical, unroll, parallel, compute_location: other values of steps that pick from a list."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.mutate.base import choices, noted_under, other_categories, redrawn
from metasched.mutate.neighbours import mended
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace
from metasched.space.modules.parallel_vectorize_unroll import PARALLEL, UNROLL
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class MutateCategorical:
    """Redraw a categorical step (a vector width) that is neither an unroll nor a parallel limit,
    and with it another decision where the constraints ask for that."""

    @property
    def name(self) -> str:
        return "categorical"

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        noted = noted_under(trace)
        steps = [
            (i, e)
            for i, e in choices(trace, ("categorical",))
            if noted.get(i) not in (PARALLEL, UNROLL)
        ]
        if not steps:
            return None
        position, entry = rng.choice(steps)
        other = other_categories(entry, rng)
        near = [] if other is None else mended(trace.with_decision(position, other), position)
        return rng.choice(near) if near else None


@dataclass(frozen=True, slots=True)
class MutateNoted:
    """Redraw a categorical step whose value is noted under a key: the limits on whole programs.

    Attributes:
        name: of the mutator.
        key: of the annotation.
    """

    name: str
    key: str

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        noted = noted_under(trace)
        steps = [(i, e) for i, e in choices(trace, ("categorical",)) if noted.get(i) == self.key]
        return redrawn(trace, steps, rng, lambda e: other_categories(e, rng))


mutate_unroll = MutateNoted("unroll", UNROLL)
mutate_parallel = MutateNoted("parallel", PARALLEL)


@dataclass(frozen=True, slots=True)
class MutateComputeLocation:
    """Move a block whose location was sampled to another of its places."""

    @property
    def name(self) -> str:
        return "compute_location"

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        steps = choices(trace, ("location",))
        return redrawn(trace, steps, rng, lambda e: rng.choice(e.domain["candidates"]))
