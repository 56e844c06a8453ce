"""metasched: say a tensor program, schedule it, search its space, ship the trace.

The public names are loaded when first used, so that `import metasched` stays light.
"""

from __future__ import annotations

import importlib
import os
import sys
import types

TYPE_CHECKING = False  # which type checkers take for true; `typing` itself takes long to load
if TYPE_CHECKING:
    from typing import Any

    import metasched.frontend.te as _te
    import metasched.workloads as _workloads

    # The public names for type checkers: the table below, name by name.
    from metasched.arith.indexmap import IndexMap as IndexMap
    from metasched.autoschedule import autoschedule as autoschedule
    from metasched.cost.extractor import feature_extractor as feature_extractor
    from metasched.cost.model import cost_model as cost_model
    from metasched.database.base import database_kind as database_kind
    from metasched.database.record import TraceFile as TraceFile
    from metasched.database.replay import replay as replay
    from metasched.errors import MetaschedError as MetaschedError
    from metasched.errors import ScheduleError as ScheduleError
    from metasched.frontend.einsum import einsum as einsum
    from metasched.ir.equal import assert_structural_equal as assert_structural_equal
    from metasched.ir.equal import structural_equal as structural_equal
    from metasched.ir.equal import structural_hash as structural_hash
    from metasched.ir.func import IRModule as IRModule
    from metasched.ir.func import PrimFunc as PrimFunc
    from metasched.kinds import default_space as default_space
    from metasched.measure.candidate import Builder as Builder
    from metasched.measure.candidate import Runner as Runner
    from metasched.measure.candidate import builder as builder
    from metasched.measure.candidate import runner as runner
    from metasched.measure.cluster import ExecutorBuilder as ExecutorBuilder
    from metasched.measure.cluster import ExecutorRunner as ExecutorRunner
    from metasched.measure.local import LocalRunner as LocalRunner
    from metasched.measure.replay import ReplayRunner as ReplayRunner
    from metasched.mutate.base import mutator as mutator
    from metasched.postproc.base import postproc as postproc
    from metasched.runtime.build import build as build
    from metasched.runtime.build import export as export
    from metasched.runtime.build import lower as lower
    from metasched.runtime.exported import load_exported as load_exported
    from metasched.runtime.kernel import Kernel as Kernel
    from metasched.schedule.anchor import (
        schedule_using_anchor_trace as schedule_using_anchor_trace,
    )
    from metasched.schedule.handles import BlockRV as BlockRV
    from metasched.schedule.handles import ExprRV as ExprRV
    from metasched.schedule.handles import LoopRV as LoopRV
    from metasched.schedule.instruction import primitive as primitive
    from metasched.schedule.intrinsics import TensorIntrin as TensorIntrin
    from metasched.schedule.schedule import Schedule as Schedule
    from metasched.schedule.trace import Trace as Trace
    from metasched.script import parse as parse
    from metasched.search.observe import observer as observer
    from metasched.search.result import TuneResult as TuneResult
    from metasched.search.scheduler import task_scheduler as task_scheduler
    from metasched.search.strategy import strategy as strategy
    from metasched.space.generate import SpaceGenerator as SpaceGenerator
    from metasched.space.generate import search_space as search_space
    from metasched.space.module import schedule_module as schedule_module
    from metasched.target import Target as Target
    from metasched.target import register_target as register_target
    from metasched.target import target_kind as target_kind
    from metasched.tune import tune as tune
    from metasched.tune import tune_tasks as tune_tasks

    te = _te
    workloads = _workloads

__version__ = "0.1.0"

# Public name -> the module that holds it.
_PUBLIC = {
    "MetaschedError": "metasched.errors",
    "ScheduleError": "metasched.errors",
    "PrimFunc": "metasched.ir.func",
    "IRModule": "metasched.ir.func",
    "Target": "metasched.target",
    "parse": "metasched.script",
    "einsum": "metasched.frontend.einsum",
    "structural_equal": "metasched.ir.equal",
    "structural_hash": "metasched.ir.equal",
    "assert_structural_equal": "metasched.ir.equal",
    "IndexMap": "metasched.arith.indexmap",
    "Schedule": "metasched.schedule.schedule",
    "Trace": "metasched.schedule.schedule",  # with the kinds of steps that a trace may hold
    "BlockRV": "metasched.schedule.handles",
    "LoopRV": "metasched.schedule.handles",
    "ExprRV": "metasched.schedule.handles",
    "schedule_using_anchor_trace": "metasched.schedule.anchor",
    "TensorIntrin": "metasched.schedule.intrinsics",
    "primitive": "metasched.schedule.instruction",
    "build": "metasched.runtime.build",
    "export": "metasched.runtime.build",
    "load_exported": "metasched.runtime.exported",
    "Kernel": "metasched.runtime.kernel",
    "schedule_module": "metasched.space.module",
    "postproc": "metasched.postproc.base",
    "mutator": "metasched.mutate.base",
    "strategy": "metasched.search.strategy",
    "cost_model": "metasched.cost.model",
    "feature_extractor": "metasched.cost.extractor",
    "task_scheduler": "metasched.search.scheduler",
    "search_space": "metasched.space.generate",
    "database_kind": "metasched.database.base",
    "observer": "metasched.search.observe",
    "target_kind": "metasched.target",
    "register_target": "metasched.target",
    "TraceFile": "metasched.database.record",
    "lower": "metasched.runtime.build",
    "SpaceGenerator": "metasched.space.generate",
    "default_space": "metasched.kinds",
    "LocalRunner": "metasched.measure.local",
    "ReplayRunner": "metasched.measure.replay",
    "ExecutorRunner": "metasched.measure.cluster",
    "ExecutorBuilder": "metasched.measure.cluster",
    "Builder": "metasched.measure.candidate",
    "Runner": "metasched.measure.candidate",
    "builder": "metasched.measure.candidate",
    "runner": "metasched.measure.candidate",
    "TuneResult": "metasched.search.result",
    "autoschedule": "metasched.autoschedule",
    "tune": "metasched.tune",
    "tune_tasks": "metasched.tune",
    "replay": "metasched.database.replay",
}

# Functions that have the name of one of TVM's modules: `ms.runner.LocalRunner`.
_MODULES_OF_TVM = {"builder", "cost_model", "mutator", "postproc", "runner", "task_scheduler"}

_MODULES = {"te": "metasched.frontend.te", "workloads": "metasched.workloads"}

__all__ = ["__version__", *_MODULES, *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load a public name's module on first use."""
    place = _MODULES.get(name) or _PUBLIC.get(name)
    if place is None:
        raise _no_attribute("metasched", name, __all__)
    module = importlib.import_module(place)
    value = module if name in _MODULES else getattr(module, name)
    if name in _MODULES_OF_TVM:
        importlib.import_module("metasched.tvm_names").answer_below(name, value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _no_attribute(module: str, name: str, known: list[str]) -> AttributeError:
    """The error for an unknown attribute of a module, with what users of TVM write here instead."""
    names = importlib.import_module("metasched.tvm_names")
    if module != __name__ and name in __all__:
        words = f"; it is metasched.{name}"
    else:
        words = names.hint(name, names.PACKAGE, () if name.startswith("_") else known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{words}")


class _Package(types.ModuleType):
    """`metasched.tune` and `metasched.lower` name the functions, also after the modules of those
    names were imported. Other modules answer an unknown attribute as the package does."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            if name in _PUBLIC:
                return
            there = vars(value)

            def unknown(attribute: str) -> Any:
                raise _no_attribute(there["__name__"], attribute, list(there))

            there.setdefault("__getattr__", unknown)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

# Each variable of a script that is set once nests what follows it, and scripts set hundreds. More
# calls than this might overflow a stack of 8 MiB.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 3000))

# In a checkout, the folders `intrinsics`, `traces` and `workloads` stand beside the package.
_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "workloads")):
    __path__.append(os.path.dirname(_HERE))
