"""parallel_vectorize_unroll: sample limits for the loops of blocks that no module has tiled.

The limits are noted on blocks; the postproc of the same name parallelises, vectorises and unrolls
the final loops, which may differ from candidate to candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import STEPS
from metasched.analysis.block import FOLD, SCAN, TILED, is_leaf
from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.ir.expr import Var
from metasched.ir.stmt import Block, BlockRealize, ForKind, Stmt
from metasched.ir.visit import blocks_of, free_vars
from metasched.lower.passes.lane_loops import MOST_LANES
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import steps
from metasched.space.modules.whole_iterations import STRUCTURE
from metasched.space.own_loops import has_own_loops, lanes_of
from metasched.space.strides import gathers, has_vectors, has_walks
from metasched.space.tiling import choice

PARALLEL = "meta_schedule.parallel"
"""Note on the root or a block: how many iterations a parallel loop should have at least."""
UNROLL = "meta_schedule.unroll_explicit"
"""Note on the root or a block: the most copies of a reduction's body that unrolling may make."""
UNROLL_IMPLICIT = "meta_schedule.unroll_implicit"
"""Note on the root or a block: the most statements to which the code generator may unroll loops of
a reduction; the loops stay in the program."""
MASKED = 512
"""Vectors of this many bits have masks of one bit for each lane."""
FULL = 32
"""Without such masks: how many vectors the longest row of a triangle holds at least, if a vector
spans several registers. The end of each row is masked, which takes longer than a whole vector."""
VECTORIZE = "meta_schedule.vectorize"
"""Note on a block, or on the root for every leaf: the most lanes of its vectors."""


@dataclass(frozen=True, slots=True)
class ParallelVectorizeUnroll:
    """Note sampled limits on the root (parallel, unroll) and on each untiled leaf (vectors).

    Attributes:
        cores: the number of cores of the machine.
        jobs_per_core: choices of parallel iterations for each core.
        vector_bits: the bits of a vector register.
        vectors: choices of how many registers one vector operation spans.
        unroll: choices of the most copies.
        serial: nests of at most this many iterations may stay on one core, because starting
            threads takes microseconds.
    """

    cores: int = 1
    jobs_per_core: Sequence[int] = (1, 4, 16)
    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4)
    unroll: Sequence[int] = (0, 16, 64)
    serial: int = 1 << 17

    @property
    def name(self) -> str:
        return "parallel_vectorize_unroll"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None:
            self._root(sch, block, realize)
        elif not has_loop_kinds(sch, realize) and _can_vectorize(realize.block):
            lanes = max(1, lanes_of(realize.block, self.vector_bits))
            if self.vectors and lanes > 1:
                widths = [lanes * v for v in self.vectors]
                if has_own_loops(realize.block):
                    widths = [1, *(n for n in widths if n <= MOST_LANES)]
                elif gathers(realize.block):
                    widths.insert(0, 1)  # one lane: no vectors
                elif not has_vectors(realize.block) and lanes >= 2 * STEPS:
                    widths.insert(0, lanes // 2)  # rows may push each other out of the cache
                elif self.vector_bits < MASKED and (row := _varying_row(sch, realize)):
                    widths = [n for n in widths if n * FULL <= row] or widths[:1]
                width = choice(sch, widths)
                sch.annotate(block, VECTORIZE, width)
        return [sch]

    def _root(self, sch: Schedule, root: BlockRV, realize: BlockRealize) -> None:
        blocks = list(blocks_of(realize.block.body))
        open_ones = [r for r in blocks if not has_loop_kinds(sch, r)]
        notes = realize.block.annotations
        whole = [r for r in blocks if r.block.annotations.get(TILED) == STRUCTURE]
        # whole iterations in lanes have no threads yet
        serial = [r for r in (*open_ones, *whole) if ForKind.PARALLEL not in _kinds(sch, r)]
        if serial and self.jobs_per_core and PARALLEL not in notes:
            jobs = [self.cores * j for j in self.jobs_per_core]
            if max(steps(_own_nest(sch, r)) for r in serial) <= self.serial:
                jobs.insert(0, 1)  # one job: the loop stays serial
            sch.annotate(root, PARALLEL, choice(sch, jobs))
        plain = [r.block for r in open_ones if FOLD not in r.block.annotations]
        reductions = [block for block in plain if any(v.is_reduce for v in block.iter_vars)]
        if reductions and self.unroll and UNROLL not in notes:
            sch.annotate(root, UNROLL, choice(sch, list(self.unroll)))


def _can_vectorize(block: Block) -> bool:
    noted = {VECTORIZE, SCAN} & block.annotations.keys()
    vectors = has_vectors(block) or has_walks(block)
    return not noted and is_leaf(block) is None and vectors


def _varying_row(sch: Schedule, realize: BlockRealize) -> float:
    """The longest run of the innermost loop, if its length depends on loops around it; else 0."""
    loops = sch.state.loops_above(realize)
    if not loops or free_vars(loops[-1].extent).isdisjoint(n.var for n in loops):
        return 0
    ranges: dict[Var, Interval] = {}
    for loop in loops[:-1]:
        low, high = interval(loop.min, ranges)
        ranges[loop.var] = low, high + max(interval(loop.extent, ranges)[1] - 1, 0)
    return interval(loops[-1].extent, ranges)[1]


def has_loop_kinds(sch: Schedule, realize: BlockRealize) -> bool:
    """Whether a tiling has chosen the loop kinds over a block: parallel outside, vectors inside."""
    kinds = _kinds(sch, realize)
    tiled = TILED in realize.block.annotations
    return ForKind.VECTORIZED in kinds and (tiled or ForKind.PARALLEL in kinds)


def _own_nest(sch: Schedule, realize: BlockRealize) -> Stmt:
    """The loops of a block without the loops around, as a loop over time, in which no threads run.

    A loop that holds other statements, too, belongs to the block if it drives spatial iterators.
    """
    spatial = [
        e for e, v in zip(realize.iter_values, realize.block.iter_vars, strict=True) if v.is_spatial
    ]
    used = frozenset().union(*map(free_vars, spatial))
    nest: Stmt = realize
    for loop in reversed(sch.state.loops_above(realize)):
        if loop.body is not nest and loop.var not in used:
            break
        nest = loop
    return nest


def _kinds(sch: Schedule, realize: BlockRealize) -> set[ForKind]:
    return {loop.kind for loop in sch.state.loops_above(realize)}
