"""rewrite_parallel_vectorize_unroll: carries out what the module of that name noted on blocks."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import loop_iter_kind
from metasched.analysis.scope import Child, Scope
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockToken, For, ForKind, IterKind
from metasched.schedule.domain import divisors
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.parallel_vectorize_unroll import PARALLEL, UNROLL, VECTORIZE
from metasched.space.strides import contiguous
from metasched.target import Target

SMALL = 2048
"""Nests of fewer iterations stay serial: starting threads costs more."""


@dataclass(frozen=True, slots=True)
class RewriteParallelVectorizeUnroll:
    """Vectorise leaves, spread the outer loops of each nest over the cores, unroll reductions.

    Takes the notes off the blocks, so that candidates with the same loops are the same program.
    What a dependence forbids is left as it is.
    """

    @property
    def name(self) -> str:
        return "rewrite_parallel_vectorize_unroll"

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name in list(sch.mod.functions):
            if sch.mod[name].is_schedulable:
                self._function(sch, name, name if several else None)

    def _function(self, sch: Schedule, name: str, func: str | None) -> None:
        notes = sch.mod[name].root.annotations
        for child in list(Scope.of(sch.mod[name].root).realizes):
            width = child.block.annotations.get(VECTORIZE)
            if width is not None:
                block = sch.get_block(child.block.name, func)
                sch.unannotate(block, VECTORIZE)
                _vectorize(sch, block, _child(sch, child.token), width)
        jobs, copies = notes.get(PARALLEL, 0), notes.get(UNROLL, 0)
        if PARALLEL in notes:
            self._parallel(sch, name, func, jobs)
        if copies > 1:
            for child in list(Scope.of(sch.mod[name].root).realizes):
                _unroll(sch, child, copies, func)
        for key in (PARALLEL, UNROLL):
            if key in notes:
                sch.unannotate(sch.get_block(sch.mod[name].root.name, func), key)

    def _parallel(self, sch: Schedule, name: str, func: str | None, jobs: int) -> None:
        """Each nest of the function once, by its first block."""
        seen: set[object] = set()
        for child in list(Scope.of(sch.mod[name].root).realizes):
            if not child.loops or child.loops[0].var in seen:
                continue
            seen.add(child.loops[0].var)
            _spread(sch, _child(sch, child.token), jobs, func)


def _child(sch: Schedule, token: BlockToken) -> Child:
    realize = sch.state.index.blocks[token]
    return sch.state.scope(realize).child(token)


def _vectorize(sch: Schedule, block: BlockRV, child: Child, width: int) -> None:
    """Cut vectors from the innermost loop of the block's own chain that allows it."""
    loops = list(child.loops)
    if any(loop.kind is ForKind.VECTORIZED for loop in loops):
        return
    own = len(loops)
    below = [*loops[1:], child.realize]
    while own and loops[own - 1].body is below[own - 1]:
        own -= 1
    for position in range(len(loops) - 1, own - 1, -1):
        loop = loops[position]
        lanes = _lanes(child, loop, width)
        if lanes < 2:
            continue
        try:
            handles = sch.get_loops(block)
            cut = handles[position]
            if lanes < (as_int(loop.extent) or 0):
                _, cut = sch.split(cut, [None, lanes])
            sch.reorder(*handles[position + 1 :], cut)
            sch.vectorize(cut)
        except ScheduleError:
            continue
        return


def _lanes(child: Child, loop: For, width: int) -> int:
    """How many lanes a loop can be cut into: the largest divisor of its extent up to `width`."""
    extent = as_int(loop.extent)
    if extent is None or extent < 2 or loop.kind is not ForKind.SERIAL or loop.annotations:
        return 1
    if loop_iter_kind(loop, (child,)) is not IterKind.SPATIAL or not contiguous(child, loop):
        return 1
    return max(d for d in divisors(extent) if d <= width)


def _spread(sch: Schedule, child: Child, jobs: int, func: str | None) -> None:
    """Fuse the leading spatial loops of a nest until they have `jobs` iterations; run in parallel."""
    work = 1
    for loop in child.loops:
        work *= as_int(loop.extent) or 1
    children = sch.state.scope(child.realize).under(child.loops[0])
    kinds = {loop.kind for c in children for loop in c.loops}
    if work < SMALL or kinds & {ForKind.PARALLEL, ForKind.THREAD_BINDING}:
        return
    count, extent = 0, 1
    for position, loop in enumerate(child.loops):
        size = as_int(loop.extent)
        plain = loop.kind is ForKind.SERIAL and not loop.annotations and size is not None
        if not plain or loop_iter_kind(loop, children) is not IterKind.SPATIAL or extent >= jobs:
            break
        if position and child.loops[position - 1].body is not loop:
            break
        count, extent = position + 1, extent * (size or 1)
    if extent < 2:
        return
    handles = sch.get_loops(sch.get_block(child.block.name, func))[:count]
    mark = sch.copy()
    try:
        sch.parallel(sch.fuse(*handles) if count > 1 else handles[0])
    except ScheduleError:
        _back(sch, mark)


def _unroll(sch: Schedule, child: Child, copies: int, func: str | None) -> None:
    """Unroll the innermost loops of a reduction that make at most `copies` of its body."""
    if all(v.is_spatial for v in child.block.iter_vars):
        return
    chosen: list[int] = []
    for position in range(len(child.loops) - 1, -1, -1):
        loop = child.loops[position]
        size = as_int(loop.extent)
        if loop.kind is ForKind.VECTORIZED:
            continue
        if loop.kind is not ForKind.SERIAL or size is None or size > copies:
            break
        copies //= max(1, size)
        if size > 1:
            chosen.append(position)
    if chosen:
        handles = sch.get_loops(sch.get_block(child.block.name, func))
        for position in chosen:
            sch.unroll(handles[position])


def _back(sch: Schedule, mark: Schedule) -> None:
    """Return `sch` to the state of its copy `mark`."""
    while len(sch.trace) > len(mark.trace):
        sch.undo()
