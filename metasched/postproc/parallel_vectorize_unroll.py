"""rewrite_parallel_vectorize_unroll: applies the annotations of the module of the same name."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import AUTO_TENSORIZE, is_leaf
from metasched.analysis.scope import Scope
from metasched.ir.expr import Var
from metasched.ir.stmt import Block, BlockToken, ForKind
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import (
    child_of,
    limit_unrolling,
    spread_nest,
    unroll_reduction,
    vectorize_leaf,
)
from metasched.space.modules.parallel_vectorize_unroll import (
    PARALLEL,
    UNROLL,
    UNROLL_IMPLICIT,
    VECTORIZE,
)
from metasched.space.strides import has_vectors, has_walks
from metasched.target import Target

NAME = "rewrite_parallel_vectorize_unroll"
KEYS = (VECTORIZE, PARALLEL, UNROLL, UNROLL_IMPLICIT)


@dataclass(frozen=True, slots=True)
class RewriteParallelVectorizeUnroll:
    """Vectorise leaves, spread the outer loops of each nest over the cores, unroll reductions.

    An annotation on a block applies to this block. An annotation on the root applies to every block
    without an annotation. The annotations are removed, so that candidates with the same loops are
    the same program. A loop kind that a dependence forbids is not set.
    """

    @property
    def name(self) -> str:
        return NAME

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name in list(sch.mod.functions):
            if sch.mod[name].is_schedulable:
                self._function(sch, name, name if several else None, target.num_cores)

    def _function(self, sch: Schedule, name: str, func: str | None, cores: int) -> None:
        root = _noted(sch.mod[name].root)
        top = [child.token for child in Scope.of(sch.mod[name].root).realizes]
        tokens = _scheduled(sch.mod[name].root)
        own = {token: _noted(child_of(sch, token).block) for token in tokens}
        for token in tokens:
            child, notes = child_of(sch, token), own[token]
            block = sch.get_block(child.block.name, func)
            for key in notes:
                sch.unannotate(block, key)
            vectors = has_vectors(child.block) or has_walks(child.block)
            plain = is_leaf(child.block) is None and vectors
            width = notes.get(VECTORIZE, root.get(VECTORIZE, 0) if plain else 0)
            if width:
                vectorize_leaf(sch, block, child_of(sch, token), width)
        for token in top:
            if PARALLEL in own[token]:
                jobs = own[token][PARALLEL]
                spread_nest(sch, child_of(sch, token), jobs, func, cores=cores)
        if PARALLEL in root:
            self._parallel(sch, sch.mod[name].root, func, root[PARALLEL], cores)
        for token in tokens:
            copies = own[token].get(UNROLL, root.get(UNROLL, 0))
            if copies > 1:
                unroll_reduction(sch, child_of(sch, token), copies, func)
        for token in tokens:
            copies = own[token].get(UNROLL_IMPLICIT, root.get(UNROLL_IMPLICIT, 0))
            if copies > 1:
                limit_unrolling(sch, child_of(sch, token), copies, func)
        if root:
            block = sch.get_block(sch.mod[name].root.name, func)
            for key in root:
                sch.unannotate(block, key)

    def _parallel(
        self, sch: Schedule, scope: Block, func: str | None, jobs: int, cores: int, depth: int = 0
    ) -> None:
        """Parallelise each nest of a block; a loop is tried once, even if blocks share it.

        Where a nest stays serial, the nests inside its block are parallelised.

        Args:
            depth: how many blocks are around the nests, the root left out.
        """
        tried: set[Var] = set()
        for token in [child.token for child in Scope.of(scope).realizes]:
            spread_nest(sch, child_of(sch, token), jobs, func, tried, cores, repeated=depth > 0)
            nest = child_of(sch, token)
            serial = ForKind.PARALLEL not in {loop.kind for loop in nest.loops}
            if (
                serial
                and is_leaf(nest.block) is not None
                and AUTO_TENSORIZE not in nest.block.annotations
            ):
                self._parallel(sch, nest.block, func, jobs, cores, depth + 1)


def _scheduled(scope: Block) -> list[BlockToken]:
    """The blocks below a block in program order, without blocks inside a tensor instruction."""
    found: list[BlockToken] = []
    for child in Scope.of(scope).realizes:
        found.append(child.token)
        if AUTO_TENSORIZE not in child.block.annotations:
            found += _scheduled(child.block)
    return found


def _noted(block: Block) -> dict[str, int]:
    """The annotations of a block that this postproc applies; ScheduleError if one is no number."""
    found = {key: block.annotations[key] for key in KEYS if key in block.annotations}
    for key, value in found.items():
        if type(value) is not int or value < 0:
            raise rejection(
                NAME, "bad-note", f"{key} on block {block.name} is {value!r}, not a number of "
                "lanes, iterations or copies", block,
            )  # fmt: skip
    return found
