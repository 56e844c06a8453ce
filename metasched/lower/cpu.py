"""The passes of CPU targets in order, each with the reason for its place."""

from __future__ import annotations

from metasched.analysis.closing import close_blocks
from metasched.lower.passes.align import align_addressed
from metasched.lower.passes.allocation import place_allocations
from metasched.lower.passes.blocks import convert_blocks
from metasched.lower.passes.borders import cut_at_borders
from metasched.lower.passes.canonicalize import canonicalize_loops
from metasched.lower.passes.choose import choose_values
from metasched.lower.passes.clamps import version_clamps
from metasched.lower.passes.flags import raise_flags
from metasched.lower.passes.fold import fold_lanes
from metasched.lower.passes.guarded_sums import guard_sums
from metasched.lower.passes.guards import hoist_guards
from metasched.lower.passes.init import lower_init
from metasched.lower.passes.lane_copies import copies_for_lanes
from metasched.lower.passes.lane_loops import lane_loops
from metasched.lower.passes.lane_rows import copy_rows
from metasched.lower.passes.match_buffers import lower_match_buffers
from metasched.lower.passes.narrow import narrow_comparisons
from metasched.lower.passes.narrow_values import narrow_values
from metasched.lower.passes.one_store import store_once
from metasched.lower.passes.prefetch import insert_prefetches
from metasched.lower.passes.private import note_private
from metasched.lower.passes.ragged import split_ragged
from metasched.lower.passes.remainders import step_over_remainders
from metasched.lower.passes.scan import scan_lanes
from metasched.lower.passes.shifts import shift_by_powers
from metasched.lower.passes.short_loops import unroll_short_loops
from metasched.lower.passes.simplify import simplify
from metasched.lower.passes.tiles import keep_tiles
from metasched.lower.passes.turned_rows import turn_rows
from metasched.lower.passes.unroll import unroll_register_tiles
from metasched.lower.passes.walk import lanes_around_walks
from metasched.lower.passes.zeros import skip_zeros
from metasched.lower.table import PIPELINES, Pipeline
from metasched.target import Target


def cpu_pipeline(target: Target) -> Pipeline:
    """The passes that turn blocks into loops, vectors and calls of the OpenMP runtime."""
    return _CPU


_CPU = Pipeline(
    structured=(
        (close_blocks, "later passes assume blocks that use only their own iterators, and loops "
         "that count by one"),
        (align_addressed, "views of a buffer take its strides"),
        (canonicalize_loops, "later passes may take every loop to start at zero"),
        (note_private, "needs blocks with their inits; comes after the loops have their variables"),
        (lower_init, "needs the blocks' reduce iterators"),
        (lower_match_buffers, "needs the blocks' regions"),
        (skip_zeros, "needs blocks: their iterators say where a stage holds zeros"),
        (insert_prefetches, "needs blocks, which carry the annotation; comes after `skip_zeros`, "
         "which expects blocks that hold only a sum"),
        (choose_values, "needs an index for each dimension, and the iterators' domains"),
        (store_once, "needs blocks with their iterators' domains, and choices in place"),
        (convert_blocks, "from here on there are loops, tests and statements only"),
        (place_allocations, "needs an index for each dimension, to compute the boxes touched"),
    ),
    flat=(
        (simplify, "indices and conditions are in their final form"),
        (step_over_remainders, "needs simplified remainders; later passes read its loops"),
        (fold_lanes, "needs simplified extents; later passes mask and unroll its loops"),
        (scan_lanes, "needs constant extents and simplified conditions"),
        (copies_for_lanes, "needs flat buffers, one index each"),
        (version_clamps, "needs simplified minima; its tests are conditions, which move next"),
        (raise_flags, "needs simplified conditions, which the next passes move out of loops"),
        (split_ragged, "needs simplified conditions"),
        (guard_sums, "needs simplified conditions; later passes move them"),
        (cut_at_borders, "tests of tiles inside would move as tests of loops next"),
        (hoist_guards, "needs simplified conditions, of whole vectors none"),
        (unroll_register_tiles, "needs the final loop structure"),
        (keep_tiles, "needs to know which loops over tiles are unrolled"),
        (narrow_values, "earlier passes match sums and casts as they are written"),
        (narrow_comparisons, "earlier passes read comparisons of 64-bit indices"),
        (lanes_around_walks, "earlier passes read nests as they are written"),
        (lane_loops, "earlier passes read loops and variables as they are written"),
        (turn_rows, "earlier passes read loops as they are written; needs all loops that stay"),
        (copy_rows, "earlier passes read loops as they are written"),
        (shift_by_powers, "earlier passes read quotients and remainders"),
        (unroll_short_loops, "loops that earlier passes turn into vectors stay whole"),
    ),
)  # fmt: skip
PIPELINES.register("cpu", cpu_pipeline)
