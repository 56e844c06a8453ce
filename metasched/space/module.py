"""Schedule modules: functions `(schedule, block) -> list of schedules`, registered or with fields.

A user's module looks like ours:

    @ms.schedule_module("my.rule", targets=["cpu"])
    def my_rule(sch, block):
        ...
        return [sch]

It gets a schedule of its own, may change it in place, and returns the alternatives it offers: the
schedule as it was for "nothing to do here". A module that raises is named in a warning, and its
block goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from metasched.errors import PluginError, clipped
from metasched.foreign import cause, run_file
from metasched.registry import Registry
from metasched.schedule.handles import BlockRV
from metasched.schedule.rng import derive_seed
from metasched.schedule.schedule import Schedule
from metasched.target import Target

ModuleFn: TypeAlias = "Callable[[Schedule, BlockRV], list[Schedule]]"
RULE = "schedule_rule"
"""Annotation of a block that names the one module that schedules it ("None" for no module)."""


@runtime_checkable
class Module(Protocol):
    """What takes part in a space: a name and a function of a schedule and a block."""

    @property
    def name(self) -> str: ...

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]: ...


@dataclass(frozen=True, slots=True)
class ScheduleModule:
    """A function as a module.

    Attributes:
        name: what warnings and the annotation `schedule_rule` call it.
        targets: the target kinds it is for; all where none is named.
        fn: `(schedule, block) -> alternatives`.
        on_request: only for blocks whose annotation `schedule_rule` names it.
    """

    name: str
    targets: tuple[str, ...]
    fn: ModuleFn
    on_request: bool = False

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        return self.fn(sch, block)

    def suits(self, target: Target) -> bool:
        """Whether it is meant for this target."""
        return not self.targets or target.kind in self.targets


SCHEDULE_MODULES: Registry[ScheduleModule] = Registry("schedule_module")
_loading: list[ScheduleModule] | None = None  # what a plug-in file has registered so far
_loaded: dict[tuple[str, int], tuple[str, ...]] = {}


def schedule_module(
    name: str,
    targets: Sequence[str] = ("cpu",),
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

    Raises RegistryError when the name is taken, TypeError when what is decorated is no function.
    """

    def register(fn: ModuleFn) -> ScheduleModule:
        if not callable(fn):
            raise TypeError(f"schedule module {name!r} must be a function (sch, block) -> list")
        kinds = (targets,) if isinstance(targets, str) else tuple(targets)
        module = ScheduleModule(name, kinds, fn, on_request)
        if _loading is None:
            return SCHEDULE_MODULES.register(name, module, override=override)
        if not override and name in SCHEDULE_MODULES:
            SCHEDULE_MODULES.register(name, module)  # raises, naming the clash
        _loading.append(module)
        return module

    return register


def user_modules(target: Target, *, on_request: bool = False) -> tuple[ScheduleModule, ...]:
    """The registered modules for a target, in order of registration."""
    every = (SCHEDULE_MODULES.get(name) for name in SCHEDULE_MODULES.names())
    return tuple(m for m in every if m.suits(target) and m.on_request == on_request)


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a user's Python file so that the schedule modules in it are registered; their names.

    A file loaded before is not run again. Raises PluginError that says what the file does wrong;
    nothing of it is registered then.
    """
    global _loading
    file = Path(path)
    try:
        key = (str(file.resolve()), file.stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        raise PluginError(f"plug-in {clipped(str(file))} cannot be read: {cause(error)}") from None
    if key in _loaded:
        return _loaded[key]
    before, _loading = _loading, []
    try:
        run_file(file, f"metasched_plugin_{file.stem}_{derive_seed(key[0]):x}", "plug-in")
        found = _loading
    finally:
        _loading = before
    for module in found:
        SCHEDULE_MODULES.register(module.name, module, override=True)
    _loaded[key] = tuple(m.name for m in found)
    return _loaded[key]
