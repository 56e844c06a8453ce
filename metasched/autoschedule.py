"""autoschedule: from a function to a good schedule in seconds, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metasched import config
from metasched.analysis.sizes import how_to_name, with_sizes, with_strides, without_size
from metasched.database.replay import single
from metasched.errors import shown_at_caller, warn
from metasched.ir.func import SIZES, IRModule, PrimFunc
from metasched.kinds import default_trace
from metasched.registry import load_plugin
from metasched.schedule.schedule import Schedule
from metasched.search.autoscheduler import first_guess
from metasched.search.parts import guide_of, spaces_of
from metasched.search.population import CandidateFactory
from metasched.search.run import paused_collection
from metasched.space.generate import Space
from metasched.target import Target


@shown_at_caller
def autoschedule(
    func: PrimFunc | IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    space: Space | str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Schedule:
    """Schedule a function without a measurement (as Adams et al. do for Halide, 2019).

    The search spaces are those of `tune`. Their programs are ranked by a model of the machine and
    by a cost model trained on measurements of other programs. The same function and target give the
    same schedule in every process.

    Args:
        func: a PrimFunc, or a module of one function.
        target: what to schedule for; None is this machine.
        space: as for `tune`.
        sizes: a representative number for each run-time extent, as for `tune`.

    Returns the schedule, postprocs included; `metasched.build(schedule)` compiles it, and its trace
    replays. Where no program can be ranked the result is the default schedule, and a warning says
    why.

    Raises TuneError for a module of several functions or none, TargetError for a target without a
    search space, PluginError when a plug-in is broken, MetaschedError for sizes that do not fit.
    """
    settings = config.load()
    for file in settings.plugins:
        load_plugin(file)
    only, machine = single(func), Target.of(target)
    only = with_sizes(only, sizes) if sizes is not None else only
    lacking = without_size(only, with_strides(only, only.attrs.get(SIZES, {})))
    only = only if lacking else with_sizes(only, {})
    chosen = spaces_of(space, settings.space, ["main"], machine)["main"]
    with paused_collection():
        schedule, lack = _guessed(only, machine, chosen, how_to_name(lacking) if lacking else "")
    if lack:
        warn(f"autoschedule gives the default schedule: {lack}")
    return schedule


def _guessed(func: PrimFunc, machine: Target, space: Space, sizeless: str) -> tuple[Schedule, str]:
    """The schedule of the first guess, and why it is the default schedule, "" if it was ranked.

    All other candidates are gone when the function returns, so that a collection of garbage does
    not visit them.

    Args:
        sizeless: the run-time extents without a size, in words.
    """
    factory = CandidateFactory(func, machine, space)
    default = factory.finished(default_trace(func, machine))
    if sizeless:
        return default.schedule, f"run-time extents have no sizes to schedule for: {sizeless}"
    guess = first_guess(factory, guide_of(machine), default)
    return guess.candidate.schedule, guess.lack
