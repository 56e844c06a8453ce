"""Mutators: functions of a trace that change one decision within its domain.

A mutator knows domains, not primitives: it edits decisions as data, and checks the constraints of
the trace (`require`) on the numbers, so that no impossible candidate is replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from metasched.foreign import ANYTHING, failure
from metasched.schedule import domain as domains
from metasched.schedule.instruction import Entry, handles_in
from metasched.schedule.numbers import number_of
from metasched.schedule.plugin import Weighted
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace
from metasched.target import Target

ATTEMPTS = 24
"""Random changes tried by one mutator before it gives up."""


def mutate(trace: Trace, mutators: Weighted, rng: Rng, target: Target) -> Trace | None:
    """A mutant of `trace` by a mutator drawn by weight; others are tried when it has nothing.

    The steps after `enter_postproc` are left out: they are run anew on the mutant.
    """
    trace = trace.before_postproc()
    left = list(mutators)
    while left:
        index = rng.weighted([weight for _, weight in left])
        mutator = left.pop(index)[0]
        try:
            mutant = mutator(trace, rng, target)
            if mutant is not None and not isinstance(mutant, Trace):
                raise TypeError(f"it must return a trace or None, not {type(mutant).__name__}")
        except ANYTHING as error:
            name = getattr(mutator, "name", type(mutator).__name__)
            warnings.warn(f"mutator {name} raised {failure(error)}; others go on", stacklevel=2)
            mutant = None
        if mutant is not None:
            return mutant
        if not any(weight > 0 for _, weight in left):
            return None
    return None


def consistent(trace: Trace) -> bool:
    """Whether the decisions are in their recorded domains and keep every `require`.

    Decided on numbers alone. A domain that depends on an earlier decision may turn out different
    in the replay, which then repairs the decision.
    """
    values: dict[Any, int] = {}
    for entry in trace.entries:
        if entry.kind.sampling:
            if not domains.allows(entry.domain, entry.decision):
                return False
            if entry.domain["kind"] != "location":
                numbers = domains.values(entry.domain, entry.decision)
                values.update(zip(entry.outputs, numbers, strict=True))
        elif entry.kind.name == "require" and number_of(entry.values[0], values) == 0:
            return False
    return True


TILES = ("perfect_tile", "partitioned_tile", "padded_tile")
"""The domain kinds whose decisions are the factors of a size."""


def choices(trace: Trace, kinds: Sequence[str]) -> list[tuple[int, Entry]]:
    """The sampling steps of these domain kinds, with their positions."""
    return [(i, e) for i, e in trace.sampling() if e.domain["kind"] in kinds]


def noted_under(trace: Trace) -> dict[int, str]:
    """Positions of sampling steps whose value is noted by `annotate`: the key."""
    keys: dict[Any, str] = {}
    for entry in trace.entries:
        if entry.kind.name == "annotate":
            for rv in handles_in(entry.values):
                keys[rv] = str(entry.attrs.get("ann_key", ""))
    return {i: keys[rv] for i, e in trace.sampling() for rv in e.outputs if rv in keys}
