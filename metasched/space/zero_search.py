"""The default schedule, candidate 0 of every search: no decision, no search, always legal.

Each block on its own: vectors along contiguous memory, the outer loops over the cores, the init of
a reduction before its loops. Nothing is tiled or fused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.visit import blocks_of
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.space.finish import child_of, decompose_init, spread_nest, take_back, vectorize_leaf
from metasched.target import Target

JOBS_PER_CORE = 4


def default_trace(
    func: PrimFunc | IRModule | Mapping[str, PrimFunc], target: Target | None = None
) -> Trace:
    """The steps of the default schedule of a program; the same each time.

    A step that is refused is left out for its block, so that in the worst case the trace is empty
    and the program runs as written. Raises VerifyError for a malformed program only.
    """
    sch = Schedule(func, seed=0)
    machine = target if target is not None else Target.native()
    several = len(sch.mod.functions) > 1
    for name in list(sch.mod.functions):
        if sch.mod[name].is_schedulable:
            _function(sch, name, name if several else None, machine)
    return sch.trace.simplified()


def _function(sch: Schedule, name: str, func: str | None, target: Target) -> None:
    for child in list(Scope.of(sch.mod[name].root).realizes):
        bits = max((r.buffer.dtype.bits for r in child.block.writes), default=32)
        lanes = target.vector_bits // max(8, bits)
        _contained(
            sch, child.block.name,
            lambda c=child, n=lanes: vectorize_leaf(  # type: ignore[misc]
                sch, sch.get_block(c.block.name, func), child_of(sch, c.token), n
            ),
        )  # fmt: skip
    seen: set[object] = set()
    for child in list(Scope.of(sch.mod[name].root).realizes):
        if child.loops and child.loops[0].var not in seen and target.num_cores > 1:
            seen.add(child.loops[0].var)
            jobs = target.num_cores * JOBS_PER_CORE
            _contained(
                sch, child.block.name,
                lambda c=child: spread_nest(sch, child_of(sch, c.token), jobs, func),  # type: ignore[misc]
            )  # fmt: skip
    for realize in list(blocks_of(sch.mod[name].body)):
        if realize.block.init is not None:
            _contained(
                sch, realize.block.name,
                lambda r=realize: decompose_init(sch, child_of(sch, r.block.token).realize, func),  # type: ignore[misc]
            )  # fmt: skip


def _contained(sch: Schedule, block: str, step: object) -> None:
    """Run a step; what is refused is taken back."""
    steps = len(sch.trace)
    try:
        step()  # type: ignore[operator]
    except ScheduleError:
        take_back(sch, steps)
    except Exception as error:  # the default must exist whatever a primitive trips over
        take_back(sch, steps)
        warnings.warn(
            f"the default schedule leaves block {block} as it is: {type(error).__name__}: {error}",
            stacklevel=4,
        )
