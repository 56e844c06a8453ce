"""Builds a new stage (its block, loops and buffers) and finds where to insert it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis import block as block_facts
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import (
    TRUE,
    Expr,
    Var,
    as_int,
)
from metasched.ir.stmt import (
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import reads_memory, substitute
from metasched.schedule import edit
from metasched.schedule.checks import (
    refuse_on,
    require_from_zero,
)
from metasched.schedule.rebind import nest
from metasched.schedule.state import State


def init_around(state: State, realize: BlockRealize) -> Block | None:
    """The block whose init contains this block, or None."""
    below: Stmt = realize
    for above in state.ancestors(realize):
        if isinstance(above, Block):
            return above if above.init is below else None
        below = above
    return None


def require_free_of_init(state: State, realize: BlockRealize) -> None:
    """Refuse a block inside an init, because an init may write only its block's results."""
    above = init_around(state, realize)
    if above is not None:
        raise state.error(
            "in-init", f"{realize.block.name} stands in the init of {above.name}, which may write "
            "nothing but its results", realize,
        )  # fmt: skip


def own_axes(
    state: State, realize: BlockRealize, iters: Sequence[IterVar]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The shape of a buffer with a dimension for each of the iterators, and their indices into it.

    A minimum that may be negative is taken from the index.
    """
    shape: list[Expr] = []
    indices: list[Expr] = []
    for v in iters:
        require_limit(state, realize, v)
        from_zero = Analyzer().prove(v.dom.min >= 0)
        shape.append(v.dom.min + v.dom.extent if from_zero else v.dom.extent)
        indices.append(v.var if from_zero else v.var - v.dom.min)
    return tuple(shape), tuple(indices)


def require_limit(state: State, realize: BlockRealize, v: IterVar) -> None:
    """Refuse an iterator whose values memory limits: no buffer has a dimension for them."""
    low, extent = v.dom.min, v.dom.extent
    if reads_memory(low) or reads_memory(extent) or as_int(extent) == extent.dtype.range[1]:
        raise state.error(
            "no-limit",
            f"the values of {v.var.name} of {realize.block.name} depend on memory, so a buffer "
            "with a dimension for them would have no known size",
            realize,
        )


def _stores_always(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, BufferStore):
        return stmt.buffer is buffer and stmt.predicate is None
    if isinstance(stmt, (SeqStmt, LetStmt, AttrStmt)):
        return any(_stores_always(s, buffer) for s in stmt.stmts)
    return (
        isinstance(stmt, For)
        and (as_int(stmt.extent) or 0) > 0
        and (_stores_always(stmt.body, buffer))
    )


def top_of(state: State, node: Stmt) -> Stmt:
    """The outermost statement around `node` in its enclosing block, or in a sequence there."""
    parent = state.parent(node)
    while parent is not None and not isinstance(parent, Block):
        if isinstance(parent, SeqStmt) and isinstance(state.parent(parent), Block):
            break
        node, parent = parent, state.parent(parent)
    return node


def chain_above(state: State, realize: BlockRealize) -> tuple[For, ...]:
    """The loops above a block; raises if a loop holds anything beside the block."""
    loops = state.loops_above(realize)
    top: Stmt = realize
    for loop in reversed(loops):
        if loop.body is not top:
            raise state.error(
                "not-single-branch",
                f"the loop {loop.var.name} contains more than the block {realize.block.name}",
                loop,
                hint="the block must be alone below the loops of its block",
            )
        top = loop
    return loops


def own_loops(state: State, realize: BlockRealize) -> tuple[For, ...]:
    """The loops above a block, one for each iterator.

    Raises if a loop holds anything beside the block, or does not run over its iterator's domain.
    """
    loops = chain_above(state, realize)
    refuse_on(state, block_facts.trivial_binding(realize, loops), realize)
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{realize.block.name} has a predicate", realize)
    an = Analyzer()
    for loop, v in zip(loops, realize.block.iter_vars, strict=True):
        require_from_zero(state, loop)
        if as_int(v.dom.min) != 0 or not an.equal(v.dom.extent, loop.extent):
            raise state.error(
                "other-domain",
                f"the loop {loop.var.name} does not run over the domain of {v.var.name}",
                loop,
            )
    return loops


def stage(
    state: State,
    name: str,
    domains: Sequence[Range],
    body: Callable[[tuple[Var, ...]], Stmt],
    guard: Callable[[tuple[Var, ...]], Expr] | None = None,
    loops: Sequence[Range] | None = None,
    taken: Sequence[str] = (),
) -> tuple[Stmt, Block]:
    """A new block of spatial iterators under a loop for each, and the block itself.

    Args:
        state: the state, for names that are free.
        name: the name of the block, changed if it is taken.
        domains: the domain of each iterator.
        body: a function from the iterators to the statement of the block, from which the regions
            are inferred.
        guard: a function from the iterators to the predicate.
        loops: the range of each iterator's loop (default: the iterator's domain).
        taken: the names of other new blocks of the same step.
    """
    block = stage_block(state, name, domains, body, taken)
    point = tuple(v.var for v in block.iter_vars)
    run = domains if loops is None else loops
    above: list[tuple[Var, Expr | int]] = [
        (state.fresh_var(f"ax{d}", r.min.dtype), r.extent) for d, r in enumerate(run)
    ]
    values = tuple(
        var if as_int(r.min) == 0 else r.min + var for r, (var, _) in zip(run, above, strict=True)
    )
    predicate = TRUE if guard is None else guard(point)
    predicate = substitute(predicate, dict(zip(point, values, strict=True)))
    return nest(above, BlockRealize(values, predicate, block)), block


def stage_block(
    state: State,
    name: str,
    domains: Sequence[Range],
    body: Callable[[tuple[Var, ...]], Stmt],
    taken: Sequence[str] = (),
) -> Block:
    """The block of a new stage; the arguments are those of `stage`."""
    iters = tuple(IterVar(state.fresh_var(f"v{d}", r.min.dtype), r) for d, r in enumerate(domains))
    fresh, number = state.fresh_block_name(name), 0
    while fresh in taken:
        number += 1
        fresh = state.fresh_block_name(f"{name}_{number}")
    block = Block(fresh, iters, (), (), body(tuple(v.var for v in iters)))
    reads, writes = block_access_regions(block)
    return evolve(block, reads=reads, writes=writes)


def with_buffers(*new: Buffer, before: Stmt | None = None) -> Callable[[Stmt], Stmt]:
    """The edit of a scope block that allocates buffers and puts `before` at its start."""

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, Block)
        body = node.body if before is None else seq((before, node.body))
        return evolve(node, body=body, alloc_buffers=(*node.alloc_buffers, *new))

    return change


def beside(anchor: Stmt, before: Sequence[Stmt] = (), after: Sequence[Stmt] = ()) -> edit.Edits:
    """The edits that put statements right before and right after `anchor`."""
    return edit.wrap(anchor, lambda s: seq((*before, s, *after)))


def with_extent(extent: Expr) -> Callable[[Stmt], Stmt]:
    """The edit of a loop that gives it another extent."""

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, For)
        return evolve(node, extent=extent.astype(node.var.dtype))

    return change
