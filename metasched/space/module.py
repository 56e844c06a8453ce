"""Schedule modules: functions `(schedule, block) -> list of schedules`, registered or with fields.

A user's module looks like ours:

    @ms.schedule_module("my.rule", targets=["cpu"])
    def my_rule(sch, block):
        ...
        return [sch]

It gets a schedule of its own, may change it in place, and returns the alternatives it offers: the
schedule as it was for "nothing to do here". A plug-in that raises is named in a warning, and its
block goes on without it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

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
        targets: the target kinds it is for.
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
        return target.kind in self.targets


SCHEDULE_MODULES: Registry[ScheduleModule] = Registry("schedule_module")
_loading: list[ScheduleModule] | None = None  # what a plug-in file has registered so far
_loaded: dict[tuple[str, int], PluginOutcome] = {}


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


@dataclass(frozen=True, slots=True)
class PluginOutcome:
    """What came of loading a plug-in file: the modules it registered, or why there are none."""

    path: str
    modules: tuple[str, ...] = ()
    error: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


def load_plugin(path: str | Path) -> PluginOutcome:
    """Run a user's Python file so that the schedule modules in it are registered.

    Whatever the file does wrong is contained: a warning names the file, nothing of it is
    registered, and the outcome says what happened. A file loaded before is not run again.
    """
    global _loading
    file = Path(path)
    try:
        key = (str(file.resolve()), file.stat().st_mtime_ns)
    except OSError as error:
        return _broken(file, f"cannot be read: {error.strerror or error}")
    if key in _loaded:
        return _loaded[key]
    name = f"metasched_plugin_{file.stem}_{derive_seed(key[0]):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return _broken(file, "is no Python file")
    code = importlib.util.module_from_spec(spec)
    before, _loading = _loading, []
    sys.modules[name] = code  # dataclasses and pickling look their module up there
    try:
        spec.loader.exec_module(code)
        found = _loading
    except (Exception, SystemExit) as error:  # foreign code: anything may happen in it
        sys.modules.pop(name, None)
        return _broken(file, f"raised {type(error).__name__}: {error}", traceback.format_exc())
    finally:
        _loading = before
    for module in found:
        SCHEDULE_MODULES.register(module.name, module, override=True)
    outcome = _loaded[key] = PluginOutcome(str(file), tuple(m.name for m in found))
    return outcome


def _broken(file: Path, why: str, detail: str = "") -> PluginOutcome:
    warnings.warn(f"plug-in {file} {why}", stacklevel=3)
    return PluginOutcome(str(file), (), why, detail)
