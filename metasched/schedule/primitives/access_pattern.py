"""Finds at which indices, and over which ranges, a block accesses a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from metasched.analysis import block as block_facts
from metasched.analysis.access import accesses
from metasched.analysis.cover import runs
from metasched.analysis.overlap import Outside, overlap_distances
from metasched.arith.affine import linear, range_interval
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, intersect, lower_region, relax_ranges
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    Expr,
    IntImm,
    Var,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterVar,
    LetStmt,
)
from metasched.ir.visit import free_vars, reads_memory, walk, walk_exprs, walk_stmts
from metasched.schedule.checks import (
    refuse_on,
    refuse_opaque,
)
from metasched.schedule.primitives.new_stage import _stores_always
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State

Indices: TypeAlias = tuple[Expr, ...]


def one_pattern(
    state: State, realize: BlockRealize, buffer: Buffer, place: int | None = None
) -> Indices:
    """The indices, over its iterators, at which a leaf block accesses `buffer`.

    Raises if the block accesses the buffer at several different places, unless `place` gives the
    position of one of them.
    """
    block = realize.block
    refuse_on(state, block_facts.is_leaf(block), realize)
    refuse_opaque(state, block, buffer)
    found: dict[Indices, None] = {}
    for node in walk(block):
        if isinstance(node, (BufferLoad, BufferStore)) and node.buffer is buffer:
            found.setdefault(node.indices)
    if place is not None and 0 <= place < len(found):
        found = dict.fromkeys([list(found)[place]])
    if len(found) != 1:
        raise state.error(
            "several-patterns",
            f"{block.name} accesses {buffer.name} at {len(found)} different places",
            realize,
            hint="one new index can only stand for one old index",
        )
    indices = next(iter(found))
    if any(i.dtype.lanes > 1 for i in indices):
        raise state.error(
            "vector-index", f"{block.name} accesses {buffer.name} by vectors", realize
        )
    own = {v.var for v in block.iter_vars}
    foreign = [v for i in indices for v in free_vars(i) if v not in own and _bound_in(block, v)]
    if foreign:
        raise state.error(
            "inner-variable",
            f"the indices of {buffer.name} in {block.name} use {foreign[0].name}, which the block "
            "binds inside",
            realize,
        )
    loads = [e for i in indices for e in walk_exprs(i) if isinstance(e, BufferLoad)]
    if loads:
        raise state.error(
            "indirect-access",
            f"{block.name} accesses {buffer.name} at an index loaded from {loads[0].buffer.name}",
            realize,
        )
    return indices


def _bound_in(block: Block, var: Var) -> bool:
    return any(getattr(n, "var", None) is var for n in walk_stmts(block))


def refuse_partial(
    state: State, realize: BlockRealize, buffer: Buffer, outer: Sequence[For] = ()
) -> None:
    """Refuse a block that may skip its store for some values of its iterators.

    The loops `outer` above the block are fixed; the other loops must reach every value, and those
    that only repeat the stores must have an iteration.
    """
    block = realize.block
    if not _stores_always(block.body, buffer):
        raise state.error(
            "conditional-store",
            f"{block.name} stores to {buffer.name} under a condition, so a copy of its whole "
            "result would hold elements that were never written",
            realize,
        )
    loops = state.loops_above(realize)
    ranges = ranges_of([n for n in loops if n not in outer])
    points = [Range(v, IntImm(v.dtype, 1)) for v in realize.iter_values]
    still = Analyzer(ranges_of(outer))
    filled = lower_region(points, ranges, realize.predicate, still if outer else None)
    child = state.scope(realize).child(block.token)
    if filled is not None and runs(child, buffer, len(outer)):
        taken = run_ranges(state, realize, outer)
        if covers(filled, taken, still if outer else Analyzer(ranges)):
            return
    raise state.error(
        "partial-domain",
        f"{block.name} is not proved to run for all values of its iterators, so a copy of its "
        "whole result would hold elements that were never written",
        realize,
    )


def known_ranges(state: State, realize: BlockRealize) -> dict[Var, Range]:
    """The ranges of the iterators of a block and of all blocks around it."""
    out = {v.var: v.dom for v in realize.block.iter_vars}
    for above in state.ancestors(realize):
        if isinstance(above, Block):
            out.update((v.var, v.dom) for v in above.iter_vars)
    return out


def run_ranges(state: State, realize: BlockRealize, outer: Sequence[For] = ()) -> list[Range]:
    """The range of each iterator while the scope around the block runs once.

    The loops in `outer` are fixed: only the other loops above the block run.
    """
    loops = [n for n in state.loops_above(realize) if n not in outer]
    still = Analyzer(ranges_of(outer))
    inner = {n.var for n in state.ancestors(realize) if isinstance(n, LetStmt)}
    out = []
    for v, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        found: list[Range] | None = [Range(value, IntImm(value.dtype, 1))]
        for loop in reversed(loops):  # an inner loop's bounds may mention outer loops
            found = None if found is None else relax_ranges(found, ranges_of([loop]))
        if found is not None and any(
            reads_memory(e) or not free_vars(e).isdisjoint(inner)
            for r in found
            for e in (r.min, r.extent)
        ):
            found = None  # the range holds at the block only
        if found is None or covers(found, [v.dom], still):
            out.append(v.dom)
        elif covers([v.dom], found, still):
            out.append(found[0])
        else:
            out.append(intersect(found, [v.dom], still)[0])
    return out


def undetermined_iter(indices: Sequence[Expr], iters: Sequence[IterVar]) -> Var | None:
    """An iterator whose value `indices` are not proved to determine; None if there is none."""
    ranges = {v.var: range_interval(v.dom.min, v.dom.extent) for v in iters}
    box = [(linear(i), 1.0) for i in indices]
    met = overlap_distances(box, box, Outside(ranges), ranges)
    if met is None:
        return None
    for var, (low, high) in ranges.items():
        if low != high and met.get(var, (low, high)) != (0, 0):
            return var
    return None


def updates(block: Block, buffer: Buffer) -> bool:
    """Whether a block without an init reads `buffer`, declared or not."""
    body = accesses(block) if block.init is None else ()
    return any(a.buffer is buffer and not a.is_write for a in body)
