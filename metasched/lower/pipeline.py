"""The lowering: passes in order, each with the reason why it stands where it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.closing import close_blocks
from metasched.ir.dtype import INT64
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.lower.passes.align import align_addressed
from metasched.lower.passes.allocation import place_allocations
from metasched.lower.passes.blocks import convert_blocks
from metasched.lower.passes.canonicalize import canonicalize_loops
from metasched.lower.passes.flatten import flatten
from metasched.lower.passes.fold import fold_lanes
from metasched.lower.passes.guards import hoist_guards
from metasched.lower.passes.init import lower_init
from metasched.lower.passes.match_buffers import lower_match_buffers
from metasched.lower.passes.prefetch import insert_prefetches
from metasched.lower.passes.simplify import simplify
from metasched.lower.passes.unroll import unroll_register_tiles
from metasched.lower.passes.zeros import skip_zeros
from metasched.target import Target

Pass = Callable[[PrimFunc], PrimFunc]

# (pass, why here). `flatten` comes between the two lists: it takes the shape symbols.
STRUCTURED: tuple[tuple[Pass, str], ...] = (
    (close_blocks, "later passes may take a block to depend on its iterators alone"),
    (align_addressed, "views of a buffer take its strides"),
    (canonicalize_loops, "later passes may take every loop to start at zero with step one"),
    (lower_init, "needs the blocks' reduce iterators"),
    (lower_match_buffers, "needs the blocks' regions"),
    (skip_zeros, "needs blocks: what a stage holds where is said by its iterators"),
    (insert_prefetches, "the notes stand on blocks, which hold more than their sum then"),
    (convert_blocks, "from here on there are loops, tests and statements only"),
    (place_allocations, "indices are still one for each dimension, so boxes can be computed"),
)
FLAT: tuple[tuple[Pass, str], ...] = (
    (simplify, "indices and conditions are in their final form"),
    (fold_lanes, "needs constant extents; what it leaves to mask and unroll comes after"),
    (hoist_guards, "needs simplified conditions"),
    (unroll_register_tiles, "needs the final loop structure"),
)


def lower(func: PrimFunc, target: Target) -> PrimFunc:
    """A function of plain loops over flat buffers with 64-bit indices.

    Raises LowerError for what has no plain form on the target.
    """
    return lower_with_symbols(func, target, ())[0]


def lower_with_symbols(
    func: PrimFunc, target: Target, symbols: Sequence[Var]
) -> tuple[PrimFunc, tuple[Var, ...]]:
    """`lower`, and the 64-bit variables that stand for the shape variables `symbols`."""
    for run, _ in STRUCTURED:
        func = run(func)
    wide = tuple(v if v.dtype is INT64 else Var(v.name, INT64) for v in symbols)
    func = flatten(func, dict(zip(symbols, wide, strict=True)))
    for run, _ in FLAT:
        func = run(func)
    return func, wide
