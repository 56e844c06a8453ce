"""rewrite_parallel_vectorize_unroll: carries out what the module of that name noted on blocks."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.scope import Scope
from metasched.schedule.schedule import Schedule
from metasched.space.finish import child_of, spread_nest, unroll_reduction, vectorize_leaf
from metasched.space.modules.parallel_vectorize_unroll import PARALLEL, UNROLL, VECTORIZE
from metasched.target import Target


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
                vectorize_leaf(sch, block, child_of(sch, child.token), width)
        if PARALLEL in notes:
            self._parallel(sch, name, func, notes[PARALLEL])
        if notes.get(UNROLL, 0) > 1:
            for child in list(Scope.of(sch.mod[name].root).realizes):
                unroll_reduction(sch, child, notes[UNROLL], func)
        left = [key for key in (PARALLEL, UNROLL) if key in notes]
        if left:
            root = sch.get_block(sch.mod[name].root.name, func)
            for key in left:
                sch.unannotate(root, key)

    def _parallel(self, sch: Schedule, name: str, func: str | None, jobs: int) -> None:
        """Each nest of the function once, by its first block."""
        seen: set[object] = set()
        for child in list(Scope.of(sch.mod[name].root).realizes):
            if child.loops and child.loops[0].var not in seen:
                seen.add(child.loops[0].var)
                spread_nest(sch, child_of(sch, child.token), jobs, func)
