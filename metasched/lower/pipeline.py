"""The lowering: the passes of each target kind in order, each with the reason for its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from metasched import config
from metasched.analysis.closing import close_blocks
from metasched.errors import LowerError
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
from metasched.registry import Registry
from metasched.target import Target

Pass = Callable[[PrimFunc], PrimFunc]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The passes for one target, as pairs of a pass and the reason for its place.

    Attributes:
        structured: run on blocks and buffers of several dimensions.
        flat: run after `flatten`, on flat buffers and 64-bit indices.
    """

    structured: tuple[tuple[Pass, str], ...]
    flat: tuple[tuple[Pass, str], ...]


PIPELINES: Registry[Callable[[Target], Pipeline]] = Registry("pipeline", Callable)
"""The pipeline of each target kind: a function of the target."""


def cpu_pipeline(target: Target) -> Pipeline:
    """From blocks to loops, vectors and calls of the OpenMP runtime."""
    return _CPU


_CPU = Pipeline(
    structured=(
        (close_blocks, "later passes may take a block to depend on its iterators alone, a loop to "
         "count by one"),
        (align_addressed, "views of a buffer take its strides"),
        (canonicalize_loops, "later passes may take every loop to start at zero"),
        (lower_init, "needs the blocks' reduce iterators"),
        (lower_match_buffers, "needs the blocks' regions"),
        (skip_zeros, "needs blocks: their iterators say where a stage holds zeros"),
        (insert_prefetches, "needs blocks, which carry the annotation; `skip_zeros`, before it, "
         "takes a block to hold its sum alone"),
        (convert_blocks, "from here on there are loops, tests and statements only"),
        (place_allocations, "indices are still one for each dimension, so boxes can be computed"),
    ),
    flat=(
        (simplify, "indices and conditions are in their final form"),
        (fold_lanes, "needs constant extents; later passes mask and unroll what it leaves"),
        (hoist_guards, "needs simplified conditions"),
        (unroll_register_tiles, "needs the final loop structure"),
    ),
)  # fmt: skip
PIPELINES.register("cpu", cpu_pipeline)


def lower(func: PrimFunc, target: Target) -> PrimFunc:
    """A function of plain loops over flat buffers with 64-bit indices.

    Raises LowerError for what has no plain form on the target, and for a target kind without
    passes.
    """
    return lower_with_symbols(func, target, ())[0]


def lower_with_symbols(
    func: PrimFunc, target: Target, symbols: Sequence[Var]
) -> tuple[PrimFunc, tuple[Var, ...]]:
    """`lower`, and the 64-bit variables that stand for the shape variables `symbols`."""
    wide = tuple(v if v.dtype is INT64 else Var(v.name, INT64) for v in symbols)
    shown = config.load().debug == "passes"
    for name, changed in passes_applied(func, target, dict(zip(symbols, wide, strict=True))):
        if shown and changed is not func:
            print(f"# after {name}\n{changed.script()}", file=sys.stderr)  # noqa: T201  asked for
        func = changed
    return func, wide


def passes_applied(
    func: PrimFunc, target: Target, wide: dict[Var, Var] | None = None
) -> Iterator[tuple[str, PrimFunc]]:
    """The name of each pass and the function after it, in the order of the lowering.

    Args:
        wide: the 64-bit variable for each shape variable.

    Raises LowerError as `lower` does.
    """
    if target.kind not in PIPELINES:
        known = ", ".join(PIPELINES.names())
        raise LowerError(
            f"there are no passes for targets of kind {target.kind!r}; kinds with passes: {known}"
        )
    pipeline = PIPELINES.get(target.kind)(target)
    for run, _ in pipeline.structured:
        func = run(func)
        yield run.__name__, func
    func = flatten(func, wide or {})
    yield flatten.__name__, func
    for run, _ in pipeline.flat:
        func = run(func)
        yield run.__name__, func
