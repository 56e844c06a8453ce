"""The table of target kinds: what may be done to a program, and how a candidate is judged.

A kind of target has one row, a `SpaceOf` that `SPACES.register` enters under the kind's name. The
row stands in a file of this folder, in a plug-in file or behind an entry point `metasched.space`.
Everything above asks the row; nothing above names a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.cost.features import FeatureSet
from metasched.errors import TargetError
from metasched.measure.candidate import Runner
from metasched.mutate.base import MUTATORS
from metasched.postproc.base import POSTPROCS
from metasched.registry import Registry
from metasched.schedule.plugin import Postproc, Weighted
from metasched.schedule.trace import Trace
from metasched.space.generate import Source, SpaceGenerator
from metasched.space.module import Module, user_modules
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class SpaceOf:
    """How programs are scheduled and measured for the targets of one kind.

    Attributes:
        modules: the built-in schedule modules, in the order in which they visit a program.
        postprocs: run on every candidate after its decisions, in this order.
        mutators: with their weights.
        default: the trace of the default schedule of a program, candidate 0 of every search.
        features: what the cost model sees of a candidate.
        runner: `(unscheduled function, target, settings, function by the default schedule or None)
            -> ` what measures the candidates of a task; where a builder is asked for, it is given
            as the argument `builder`, and where a user gives data, they are the argument `given`.
    """

    modules: Callable[[Target], tuple[Module, ...]]
    postprocs: Callable[[Target], tuple[Postproc, ...]]
    mutators: Callable[[Target], Weighted]
    default: Callable[[Source, Target], Trace]
    features: FeatureSet
    runner: Callable[..., Runner]


SPACES: Registry[SpaceOf] = Registry("space", SpaceOf)


def space_of(target: Target) -> SpaceOf:
    """The row of a target's kind; TargetError when the kind has none."""
    if target.kind not in SPACES:
        known = ", ".join(SPACES.names())
        raise TargetError(
            f"there is no default space for targets of kind {target.kind!r}; kinds with one: "
            f"{known}"
        )
    return SPACES.get(target.kind)


def default_modules(target: Target) -> tuple[Module, ...]:
    """The modules of a target: first the modules that users registered for it, then the built-in
    modules.

    Raises TargetError for a kind without a row, as all functions of this file do.
    """
    return (*user_modules(target), *space_of(target).modules(target))


def default_postprocs(target: Target) -> tuple[Postproc, ...]:
    """The postprocs of a target in their order; postprocs that users registered come last."""
    mine = (one for one in POSTPROCS.values() if one.suits(target))
    return (*space_of(target).postprocs(target), *mine)


def default_mutators(target: Target) -> Weighted:
    """The mutators of a target with their weights; mutators that users registered come last."""
    mine = ((one, one.weight) for one in MUTATORS.values() if one.suits(target))
    return (*space_of(target).mutators(target), *mine)


def default_trace(func: Source, target: Target | None = None) -> Trace:
    """The steps of the default schedule of a program; the same each time.

    Raises VerifyError for a malformed program.
    """
    machine = target if target is not None else Target.native()
    return space_of(machine).default(func, machine)


def default_space(target: Target | str | Mapping[str, Any] | None = None) -> SpaceGenerator:
    """The default modules, postprocs and mutators of a target, which `Target.of` reads."""
    machine = Target.of(target)
    return SpaceGenerator(
        default_modules(machine), default_postprocs(machine), default_mutators(machine)
    )
