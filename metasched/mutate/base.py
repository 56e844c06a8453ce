"""Mutators: functions of a trace that change one decision within its domain.

A mutator knows domains, not primitives: it edits decisions as data. It evaluates the constraints of
the trace (`require`) on the new numbers, so that impossible candidates are not replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from metasched.errors import warn
from metasched.foreign import ANYTHING, failure
from metasched.ir.expr import Expr
from metasched.registry import Registry
from metasched.schedule import domain as domains
from metasched.schedule.domain import Decision
from metasched.schedule.instruction import Entry, handles_in
from metasched.schedule.numbers import number_of
from metasched.schedule.plugin import Mutator, Weighted
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace
from metasched.target import ON_CPUS, ForTargets, Target, kinds_of
from metasched.watch import called, is_built_in

ATTEMPTS = 24
"""Random changes tried by one mutator before it gives up."""

MutatorFn: TypeAlias = "Callable[[Trace, Rng, Target], Trace | None]"


@dataclass(frozen=True, slots=True)
class UserMutator(ForTargets):
    """A function `(trace, rng, target) -> trace or None` as a mutator, with its weight."""

    weight: float = 0.1

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        mutant: Trace | None = self.fn(trace, rng, target)
        return mutant


MUTATORS: Registry[UserMutator] = Registry("mutator", UserMutator)


def mutator(
    name: str, weight: float = 0.1, targets: Sequence[str] = ON_CPUS, *, override: bool = False
) -> Callable[[MutatorFn], UserMutator]:
    """Register a function as a mutator.

    Args:
        name: its unique name, dotted by custom: `my.move`.
        weight: its share among the mutators; the built-in weights add up to 1 for a CPU.
        targets: the target kinds whose default space it joins.
        override: replace a mutator of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable. Raises
    ValueError for a weight that is not a number of 0 or more.
    """
    if (
        isinstance(weight, bool)
        or not isinstance(weight, int | float)
        or not 0 <= weight < math.inf
    ):
        raise ValueError(f"mutator {name!r} has the weight {weight!r}; it is a number, 0 or more")

    def made(fn: MutatorFn) -> UserMutator:
        return UserMutator(name, kinds_of(targets), fn, weight)

    return MUTATORS.decorator(name, "(trace, rng, target) -> Trace | None", made, override)


def mutate(trace: Trace, mutators: Weighted, rng: Rng, target: Target) -> Trace | None:
    """A mutant of `trace`, by a mutator drawn by weight; None when no mutator has a mutant.

    If the mutator that was drawn has no mutant, others are tried. The steps after `enter_postproc`
    are left out: postprocs are run anew on the mutant.
    """
    trace = trace.before_postproc()
    left = list(mutators)
    while left:
        index = rng.weighted([weight for _, weight in left])
        drawn = left.pop(index)[0]
        name = getattr(drawn, "name", type(drawn).__name__)
        try:
            mutant = _called(name, drawn, trace, rng, target)
            if mutant is not None and not isinstance(mutant, Trace):
                raise TypeError(f"it must return a trace or None, not {type(mutant).__name__}")
        except ANYTHING as error:
            warn(f"mutator {name} raised {failure(error)}; others go on")
            mutant = None
        if mutant is not None:
            return mutant
        if not any(weight > 0 for _, weight in left):
            return None
    return None


def _called(name: str, mutator: Mutator, trace: Trace, rng: Rng, target: Target) -> Trace | None:
    if is_built_in(mutator):
        return mutator(trace, rng, target)
    with called(f"mutator {name}", mutator, stop=True):
        return mutator(trace, rng, target)


class Constraints:
    """What the decisions of a trace must keep: their recorded domains and every `require`.

    Nothing is replayed. A domain that depends on an earlier decision may turn out different in the
    replay, which then repairs the decision.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._values: dict[Any, int] = {}
        self._outside: set[int] = set()
        self._conditions: list[tuple[Expr, frozenset[Any]]] = []
        for position, entry in enumerate(trace.entries):
            if entry.kind.sampling:
                if domains.allows(entry.domain, entry.decision):
                    self._values.update(_numbers(entry, entry.decision))
                else:
                    self._outside.add(position)
            elif entry.kind.name == "require":
                self._conditions.append((entry.values[0], frozenset(handles_in(entry.values))))
        conditions = enumerate(self._conditions)
        self._broken = {n for n, (c, _) in conditions if number_of(c, self._values) == 0}

    def keep(self, changes: Mapping[int, Decision]) -> bool:
        """Whether the trace with other decisions, by the positions of their steps, keeps all."""
        if not self._outside <= changes.keys():
            return False
        new: dict[Any, int] = {}
        for position, decision in changes.items():
            entry = self.trace.entries[position]
            if not domains.allows(entry.domain, decision):
                return False
            new.update(_numbers(entry, decision))
        values = {**self._values, **new}
        return all(
            number_of(condition, values) != 0
            if n in self._broken or not uses.isdisjoint(new)
            else True
            for n, (condition, uses) in enumerate(self._conditions)
        )

    def changed(self, changes: Mapping[int, Decision]) -> Trace:
        """The trace with other decisions."""
        trace = self.trace
        for position, decision in changes.items():
            trace = trace.with_decision(position, decision)
        return trace


def _numbers(entry: Entry, decision: Decision) -> Iterator[tuple[Any, int]]:
    return zip(entry.outputs, domains.values(entry.domain, decision), strict=True)


def consistent(trace: Trace) -> bool:
    """Whether the decisions of a trace keep its `Constraints`."""
    return Constraints(trace).keep({})


def choices(trace: Trace, kinds: Sequence[str]) -> list[tuple[int, Entry]]:
    """The sampling steps of these domain kinds, with their positions."""
    return [(i, e) for i, e in trace.sampling() if e.domain["kind"] in kinds]


def tilings(trace: Trace) -> list[tuple[int, Entry]]:
    """The sampling steps whose decisions are factors of a size, with their positions."""
    return [(i, e) for i, e in trace.sampling() if domains.is_tiling(e.domain)]


def noted_under(trace: Trace) -> dict[int, str]:
    """Map positions of sampling steps to the key under which `annotate` stores their value."""
    keys: dict[Any, str] = {}
    for entry in trace.entries:
        if entry.kind.name == "annotate":
            for rv in handles_in(entry.values):
                keys[rv] = str(entry.attrs.get("ann_key", ""))
    return {i: keys[rv] for i, e in trace.sampling() for rv in e.outputs if rv in keys}
