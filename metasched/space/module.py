"""Schedule modules: functions `(schedule, block) -> list of schedules`, registered or with fields.

A user's module looks like a built-in one:

    @ms.schedule_module("my.rule", targets=["cpu"])
    def my_rule(sch, block):
        ...
        return [sch]

A module gets a schedule of its own, may change it in place, and returns the alternatives that it
offers. A module with nothing to do returns the schedule unchanged. A module that raises is named in
a warning, and its block is scheduled without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from metasched.registry import Registry
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.target import ON_CPUS, ForTargets, Target, kinds_of

ModuleFn: TypeAlias = "Callable[[Schedule, BlockRV], list[Schedule]]"
RULE = "schedule_rule"
"""Annotation of a block that names the one module that schedules it ("None" for no module)."""


@runtime_checkable
class Module(Protocol):
    """The protocol of modules: a name, and a call with a schedule and a block."""

    @property
    def name(self) -> str: ...

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]: ...


@dataclass(frozen=True, slots=True)
class ScheduleModule(ForTargets):
    """A function `(schedule, block) -> alternatives` as a module.

    Attributes:
        on_request: run only on blocks whose annotation `schedule_rule` names the module.
    """

    on_request: bool = False

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        found: list[Schedule] = self.fn(sch, block)
        return found


SCHEDULE_MODULES: Registry[ScheduleModule] = Registry("schedule module", ScheduleModule)


def schedule_module(
    name: str,
    targets: Sequence[str] = ON_CPUS,
    *,
    on_request: bool = False,
    override: bool = False,
) -> Callable[[ModuleFn], ScheduleModule]:
    """Register a function as a schedule module.

    Args:
        name: its unique name, dotted by custom: `my.rule`.
        targets: the target kinds whose default space it joins.
        on_request: run it only where a block's annotation `schedule_rule` names it.
        override: replace a module of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """

    def made(fn: ModuleFn) -> ScheduleModule:
        return ScheduleModule(name, kinds_of(targets), fn, on_request)

    return SCHEDULE_MODULES.decorator(name, "(sch, block) -> list", made, override)


def user_modules(target: Target, *, on_request: bool = False) -> tuple[ScheduleModule, ...]:
    """The registered modules for a target, in order of registration."""
    return tuple(
        m for m in SCHEDULE_MODULES.values() if m.suits(target) and m.on_request == on_request
    )
