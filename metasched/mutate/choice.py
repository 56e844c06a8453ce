"""categorical, unroll, parallel, compute_location: other values of steps that pick from a list."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.mutate.base import Constraints, choices, noted_under
from metasched.mutate.neighbours import mended, smallest_steps
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace
from metasched.space.modules.parallel_vectorize_unroll import PARALLEL, UNROLL, UNROLL_IMPLICIT
from metasched.target import Target

_LIMITS = {PARALLEL: PARALLEL, UNROLL: UNROLL, UNROLL_IMPLICIT: UNROLL}


@dataclass(frozen=True, slots=True)
class MutateChoice:
    """Change the choice of one step, and of a second step if the constraints require it.

    Attributes:
        name: the name of the mutator.
        kind: the kind of the steps: "categorical" (a vector width), "location" (of a block).
        limit: change only the value annotated under this key, which limits a whole program; ""
            for the values that are annotated under no such key.
    """

    name: str
    kind: str = "categorical"
    limit: str = ""

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        limits = {i: _LIMITS[key] for i, key in noted_under(trace).items() if key in _LIMITS}
        steps = [s for s in choices(trace, (self.kind,)) if limits.get(s[0], "") == self.limit]
        if not steps:
            return None
        position, entry = rng.choice(steps)
        others = list(smallest_steps(entry))
        constraints = Constraints(trace)
        near = mended(constraints, {position: rng.choice(others)}) if others else ()
        return constraints.changed(rng.choice(near)) if near else None


mutate_categorical = MutateChoice("categorical")
mutate_compute_location = MutateChoice("compute_location", "location")
mutate_unroll = MutateChoice("unroll", limit=UNROLL)
mutate_parallel = MutateChoice("parallel", limit=PARALLEL)
