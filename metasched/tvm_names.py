"""What people who know TVM type, and what to write here instead: the ends of error messages."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_SCRIPT = "`from metasched.script import tir as T, ir as I`"
_TUNE = "ms.tune(func, trials=64, work_dir=...), ms.tune_tasks for several functions"
_ARRAYS = "kernels take NumPy arrays and tensors with DLPack as they are"
_SPACE = "a space is ms.default_space(target) or ms.SpaceGenerator(modules=..., postprocs=...)"
_SETTINGS = "settings are arguments of ms.tune: trials, time_limit, seed, strategy, model"

# Name -> what to write. Of the package itself, as `ms.NAME`.
PACKAGE = {
    **dict.fromkeys(
        ("topi", "relay", "relax"),
        "there are no operator libraries and no graphs: write the operator with ms.te, or as a "
        f"T.prim_func, {_SCRIPT}",
    ),
    **dict.fromkeys(
        ("relay_integration", "relax_integration", "extract_tasks", "extract_task_from_relay"),
        "ms.tune_tasks(functions, weights=calls) tunes the functions of a graph, both by name",
    ),
    **dict.fromkeys(("tir", "script", "s_tir", "T", "I", "tirx"), f"the script is {_SCRIPT}"),
    **dict.fromkeys(("tune_tir", "tune_te", "tune_relay", "tune_relax", "optimize_tasks"), _TUNE),
    "meta_schedule": f"this package is it: {_TUNE}",
    **dict.fromkeys(
        ("TuneConfig", "TuneContext", "EvolutionarySearchConfig", "ReplayTraceConfig"),
        _SETTINGS,
    ),
    "TaskScheduler": "write one with @ms.task_scheduler(name), and name it in "
    "ms.tune_tasks(..., scheduler=)",
    **dict.fromkeys(
        ("SearchStrategy", "PySearchStrategy", "search_strategy"),
        "write a strategy with @ms.strategy(name), and name it in ms.tune(..., strategy=)",
    ),
    **dict.fromkeys(
        ("tir_integration", "compile_tir", "ApplyHistoryBest", "PostOrderApply"),
        "the best program is result.best, and ms.build(result.best) compiles it; "
        "ms.replay(path, func) brings it back",
    ),
    **dict.fromkeys(
        ("nd", "ndarray", "array", "empty", "runtime", "device", "cpu", "cuda", "gpu"), _ARRAYS
    ),
    **dict.fromkeys(("compile", "driver", "build_module"), "ms.build(func, target) compiles"),
    "time_evaluator": "kernel.time(*arguments) times a kernel",
    **dict.fromkeys(
        ("database", "Database", "JSONDatabase", "MemoryDatabase"),
        "ms.tune keeps a database in its work_dir; `metasched db` lists it",
    ),
    **dict.fromkeys(
        ("RPCRunner", "LocalBuilder"),
        "ms.tune(..., runner=) takes a function (func, target) -> ms.LocalRunner(func, target), "
        "which builds too",
    ),
    **dict.fromkeys(
        ("space_generator", "schedule_rule", "ScheduleRule", "PyScheduleRule", "MultiLevelTiling",
         "AutoInline", "ScheduleFn"),
        f"write a rule with @ms.schedule_module(name); {_SPACE}",
    ),
    **dict.fromkeys(
        ("Postproc", "PyPostproc", "Mutator", "PyMutator"),
        f"write one with @ms.postproc(name) or @ms.mutator(name); {_SPACE}",
    ),
    **dict.fromkeys(
        ("CostModel", "PyCostModel", "XGBModel"),
        "ms.tune(..., model=) takes lightgbm, line, random, or what @ms.cost_model(name) entered; "
        "a model is a subclass of metasched.cost.model.CostModel",
    ),
    **dict.fromkeys(
        ("measure_callback", "MeasureCallback"), "ms.tune(..., observer=) takes a function"
    ),
    "target": "targets are ms.Target.of(...); `metasched targets` lists them",
    "transform": "lowering is ms.lower(func, target); kernels are ms.build(func, target)",
    "autotvm": _TUNE, "auto_scheduler": _TUNE,
    "register_func": "foreign functions are called by T.call_extern",
}  # fmt: skip

# Names in TVM's modules -> what to write; `ms.runner` and the others are functions here.
BELOW = {
    "runner": ("LocalRunner RPCRunner PyRunner EvaluatorConfig RPCConfig", PACKAGE["RPCRunner"]),
    "builder": ("LocalBuilder PyBuilder", PACKAGE["LocalBuilder"]),
    "cost_model": ("XGBModel RandomModel MLPModel PyCostModel CostModel", PACKAGE["CostModel"]),
    "task_scheduler": ("GradientBased RoundRobin PyTaskScheduler", PACKAGE["TaskScheduler"]),
    "postproc": (
        "DisallowDynamicLoop DisallowAsyncStridedMemCopy RewriteCooperativeFetch RewriteLayout "
        "RewriteParallelVectorizeUnroll RewriteReductionBlock RewriteTensorize "
        "RewriteUnboundBlock VerifyGPUCode VerifyVTCMLimit PyPostproc",
        PACKAGE["Postproc"],
    ),
    "mutator": (
        "MutateComputeLocation MutateParallel MutateThreadBinding MutateTileSize MutateUnroll "
        "PyMutator",
        PACKAGE["Mutator"],
    ),
}

KERNEL = {
    "time_evaluator": "time(*arguments) gives a Timing with samples, min, median and mean",
    "entry_name": "a kernel is called itself: kernel(a, b, c)",
    "entry_func": "a kernel is called itself: kernel(a, b, c)",
    **dict.fromkeys(("export_library", "save"), "export(folder) writes .o, .so, .h and .json"),
    **dict.fromkeys(
        ("get_source", "inspect_source", "imported_modules"), "llvm_ir and asm are its texts"
    ),
}

SCHEDULE = {
    **dict.fromkeys(
        ("set_axis_separator", "set_axis_separators"),
        "memory is flat on the machines that have code here: there are no axis separators",
    ),
    "get_sref": "a handle is used as its node: get(handle) gives it",
    "func_working_on": "work_on(name) chooses the function; handles remember theirs",
    "tile": "split both loops, then reorder",
    **dict.fromkeys(("pragma", "prefetch", "double_buffer"), "annotate(block_or_loop, key, value)"),
    **dict.fromkeys(("lower", "build"), "ms.lower(sch, target) and ms.build(sch, target)"),
}

TRACE = {
    "as_json": "to_json() gives a text; ms.Trace.from_json reads it, and from_tvm_json TVM's own",
    "apply_to_schedule": "apply(sch) applies the steps; ms.Trace.from_json(text) makes a trace",
    "insts": "entries are the steps, and iterating gives them",
    "get_decision": "sampling() gives the sampling steps, each with its decision",
}

MODULE = {
    **dict.fromkeys(
        ("get_global_var", "get_global_vars"),
        'a function is named by a text: mod["main"], and list(mod) gives the names',
    ),
    **dict.fromkeys(("update_func", "update"), "with_func(name, func) gives a new module"),
    "functions_items": "items() gives the names with the functions",
}

# Keywords of TVM's functions -> what to write.
TUNE_WORDS = {
    **dict.fromkeys(
        ("max_trials_global", "max_trials_per_task", "num_trials_per_iter"), "write trials=64"
    ),
    "mod": "the function is the first argument",
    "num_tuning_cores": "the setting `search_workers` limits the processes of the search",
    "cost_model": 'write model="lightgbm", or another name of a cost model',
    "measure_callbacks": "write observer=, a function that takes events",
    "task_name": "write name=",
    "module_equality": "ms.replay(path, func, equality=) chooses how programs are compared",
    "task_scheduler": "ms.tune_tasks(..., scheduler=) takes the name of a task scheduler",
    "params": "constant weights are parameters marked `layout_free_buffers`",
}
SCHEDULE_WORDS = {
    "error_render_level": "an error shows the block or loop when it is printed",
    "enable_check": "steps are always checked; check=True verifies the program after each step",
}
TRACE_WORDS = {"remove_postproc": "write without_postproc=True"}


class Absent:
    """Stands for a name of TVM: a call is refused with what to write instead."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self.words = name, words

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise AttributeError(f"metasched has no {self.name}; {self.words}")


def answer_below(name: str, function: object) -> None:
    """Give a function that has the name of a module of TVM what answers the names in it."""
    names, words = BELOW[name]
    for each in names.split():
        setattr(function, each, Absent(f"{name}.{each}", words))


def answered(table: dict[str, str]) -> Callable[[F], F]:
    """A decorator: an unknown keyword is refused with what `table` says to write instead."""

    def around(fn: F) -> F:
        known = inspect.signature(fn).parameters

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs.keys() - known.keys():
                owner = fn.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{owner} takes no {name}={hint(name, table, known)}")
            return fn(*args, **kwargs)

        return cast("F", called)

    return around


def hint(name: str, table: dict[str, str], known: Iterable[str] = ()) -> str:
    """What follows "there is no `name`": the words for it here, else the nearest known names."""
    if name in table:
        return f"; {table[name]}"
    folded = {each.lower(): each for each in known}
    near = [folded[each] for each in difflib.get_close_matches(name[:100].lower(), folded, n=3)]
    return f"; did you mean {', '.join(near)}?" if near else ""
