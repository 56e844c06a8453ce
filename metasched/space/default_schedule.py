"""The default schedule of CPU targets, candidate 0 of a search: no decision, always legal.

It treats each block on its own: one block for each output, unless the block has vectors; vectors
along contiguous memory, the outer loops in parallel, the init of a reduction before its loops.
Loops that several blocks share are distributed where a block has no vectors otherwise. Neighbours
that compute element by element share their loops over vectors. A loop whose iterations use memory
of their own runs in vector lanes, if its blocks have no vectors alone. It tiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.analysis.scope import Child, Scope
from metasched.errors import ScheduleError, warn
from metasched.ir.expr import Var
from metasched.ir.stmt import BlockToken, ForKind
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.space.enclosing import divide_blocks
from metasched.space.generate import Source
from metasched.space.lanes import lane_bits, lane_loop, part_iterations, run_in_lanes
from metasched.space.loop_kinds import (
    child_of,
    decompose_init,
    distribute_and_spread,
    distribute_and_vectorize,
    several_outputs,
    undo_to,
)
from metasched.space.merging import merge_vectors
from metasched.space.modules.cut_digits import FEWEST, cut_digits
from metasched.space.modules.join_iterators import join_iterators
from metasched.space.own_loops import has_own_loops, lanes_of, suits_lanes
from metasched.space.strides import has_vectors
from metasched.target import Target, cpu_of

JOBS_PER_CORE = 4


def vectors_and_threads(func: Source, target: Target) -> Trace:
    """The steps of the default schedule of a program; the same program gives the same steps.

    A refused step is left out for its block; in the worst case the trace is empty and the program
    runs as written. Raises VerifyError for a malformed program only.
    """
    sch = Schedule(func, seed=0)
    several = len(sch.mod.functions) > 1
    for name in list(sch.mod.functions):
        if sch.mod[name].is_schedulable:
            _function(sch, name, name if several else None, target)
    return sch.trace.simplified()


def _function(sch: Schedule, name: str, func: str | None, target: Target) -> None:
    jobs = target.num_cores * JOBS_PER_CORE
    root = sch.get_block(sch.mod[name].root.name, func)
    divide_blocks(sch, root)
    tried: set[Var] = set()

    def vectors(child: Child) -> None:
        block = sch.get_block(child.block.name, func)
        if join_iterators(sch, block, FEWEST) or cut_digits(sch, block):
            child = child_of(sch, child.token)
        if suits_lanes(child.block) or not has_own_loops(child.block):
            lanes = lanes_of(child.block, cpu_of(target).vector_bits)
            distribute_and_vectorize(sch, block, child, lanes)

    def outputs(child: Child) -> None:
        reduces = any(v.is_reduce for v in child.block.iter_vars)
        several = several_outputs(sch.state.scope(child.realize), child)
        if several and (reduces or not has_vectors(child.block)):
            sch.decompose_outputs(sch.get_block(child.block.name, func))

    def merged(child: Child) -> None:
        scope = sch.state.scope(child.realize)
        position = [c.token for c in scope.realizes].index(child.token)
        if position:
            merge_vectors(sch, scope.realizes[position - 1], child, func)

    def whole_iterations(child: Child) -> None:
        if all(loop.kind is not ForKind.VECTORIZED for loop in child.loops):
            found = lane_loop(sch.state.scope(child.realize), child)
            if found is None and part_iterations(sch, child.token, func):
                child = child_of(sch, child.token)
                found = lane_loop(sch.state.scope(child.realize), child)
                if found is None:
                    vectors(child)
            if found is not None:
                bits = lane_bits(sch.state.scope(child.realize), found[0])
                lanes = cpu_of(target).vector_bits // bits
                if run_in_lanes(sch, child.token, lanes, func):
                    merged(child_of(sch, child.token))

    def threads(child: Child) -> None:
        if target.num_cores > 1:
            distribute_and_spread(sch, child, jobs, func, tried, target.num_cores)

    def init(child: Child) -> None:
        if child.block.init is not None:
            decompose_init(sch, child.realize, func)

    for step in (outputs, vectors, merged, whole_iterations, threads, init):
        for child in list(Scope.of(sch.mod[name].root).realizes):
            _contained(sch, child.token, step)


def _contained(sch: Schedule, token: BlockToken, step: Callable[[Child], None]) -> None:
    """Run a step on a block; a refused step is undone."""
    steps = len(sch.trace)
    child = child_of(sch, token)
    try:
        step(child)
    except ScheduleError:
        undo_to(sch, steps)
    except Exception as error:  # a default schedule must exist, even if a primitive is broken
        undo_to(sch, steps)
        warn(
            f"the default schedule leaves block {child.block.name} as it is: "
            f"{type(error).__name__}: {error}"
        )
