"""reindex: lets a block access a buffer directly by its iterators, through a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.access import accesses
from metasched.analysis.added import in_bounds, perhaps_zero
from metasched.analysis.scope import Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, Var, as_int, logical_and
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IterVar, Stmt, evolve
from metasched.ir.variables import is_named
from metasched.ir.visit import free_vars, map_exprs, replace_loads, substitute, walk_exprs
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_root_free,
    require_stage_pipeline,
    require_whole_reduction,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import (
    Indices,
    known_ranges,
    one_pattern,
    refuse_partial,
    run_ranges,
    undetermined_iter,
)
from metasched.schedule.primitives.layout_arguments import (
    BufferChoice,
    buffer_by_index,
    choose_buffer,
    plain_int,
)
from metasched.schedule.primitives.new_stage import (
    beside,
    chain_above,
    own_axes,
    require_free_of_init,
    stage,
    top_of,
    with_buffers,
)
from metasched.schedule.primitives.scope_box import scope_bounds
from metasched.schedule.primitives.storage_align import realigned
from metasched.schedule.state import State


@primitive(respell=buffer_by_index, before={"keep_units": True}, of_block=ways.with_accesses())
def reindex(
    state: State, block: BlockLike, buffer: BufferChoice, keep_units: bool = False
) -> BlockRV:
    """Let `block` access `buffer` directly by its iterators; returns the block that copies.

    The copy has one dimension for each iterator that the buffer's indices depend on. An iterator of
    extent one gets a dimension if it is an index by itself (a batch of one). In an index with other
    iterators (`h + kh` with a kernel of one element) it gets a dimension only with `keep_units`. A
    read buffer is copied before the block, a written buffer is copied back after the block. If the
    block reads a buffer at several places, ("read", i, n) redirects only place n, counted from 0.

    requires  a leaf block in a stage pipeline, whose inputs later blocks may overwrite, alone below
              its loops, that accesses the buffer without pointers, at one place or at the given
              place; a read buffer that the block
              does not write; or a written buffer that the block does not read, whose indices
              determine the iterators, and of which all elements are written
    rewrite   B[i, j] = A[j, i] * 2
              -> A_reindex[i, j] = A[j, i]; B[i, j] = A_reindex[i, j] * 2
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    which: tuple[int, ...] = ()
    if isinstance(buffer, (tuple, list)) and len(buffer) == 3 and buffer[0] == "read":
        which = (plain_int(state, buffer[2], "the place"),)
        buffer = tuple(buffer[:2])
    side, position, target = choose_buffer(state, realize, buffer)
    state.canonical = {"buffer": (side, position, *which)}
    scope = require_stage_pipeline(state, realize, realize.block, in_place=True)
    chain_above(state, realize)
    old = one_pattern(state, realize, target, *which)
    plain = plain_indices(realize.block, old, keep_units)
    covered = covered_iters(realize.block, plain)
    shape, new = own_axes(state, realize, covered)
    cache = state.fresh_buffer(f"{target.name}_reindex", shape, target.dtype, target.scope)
    anchor = top_of(state, realize)

    def place(copy: Stmt) -> list[edit.Edits]:
        read = side == "read"
        return [beside(anchor, [copy] if read else [], [] if read else [copy])]

    return put_stage(state, realize, side, target, cache, old, new, scope, place, plain)


def plain_indices(block: Block, indices: Indices, keep_units: bool = False) -> Indices:
    """Simplify indices of an access; the iterators that are left get a dimension of the copy.

    Unless `keep_units`, an iterator of extent one stays only in an index that is constant but for
    this iterator.
    """
    ranges = {v.var: v.dom for v in block.iter_vars}
    kept = tuple(map(Analyzer(ranges, keep_units=True).simplify, indices))
    if keep_units:
        return kept
    less = tuple(map(Analyzer(ranges).simplify, indices))
    return tuple([k if as_int(i) is not None else i for k, i in zip(kept, less, strict=True)])


def covered_iters(block: Block, indices: Sequence[Expr]) -> list[IterVar]:
    """The iterators that occur in `indices`, in the block's order."""
    used = frozenset().union(*(free_vars(i) for i in indices))
    return [v for v in block.iter_vars if v.var in used]


def put_stage(
    state: State,
    realize: BlockRealize,
    side: str,
    target: Buffer,
    cache: Buffer,
    old: Indices,
    new: Indices,
    scope: Scope,
    place: Callable[[Stmt], list[edit.Edits]],
    plain: Indices | None = None,
    outer: Sequence[For] = (),
) -> BlockRV:
    """Copy between `target[old]` and `cache[new]`, and let the block use the cache.

    Args:
        side: "read" or "write".
        target, cache, old, new: the used buffer and its copy, and the indices into each.
        place: a function from the copy to the edits that insert it.
        plain: the old indices in simpler form, if they have one.
        outer: the loops above the block that also stand above the copy.
    """
    require_free_of_init(state, realize)
    block = realize.block
    where = plain or old
    covered = covered_iters(block, where)
    refuse_in_place(state, realize, side, target)
    if side == "write":
        require_whole_reduction(state, realize)
        refuse_partial(state, realize, target, outer)
        require_injective(state, realize, where, covered, target.name)
    require_injective(state, realize, new, covered, cache.name)
    analyzer = Analyzer(known_ranges(state, realize))
    _require_values(state, realize, [*where, *new], analyzer)
    missing = in_bounds(where, target.whole().region, analyzer)
    declared = scope_bounds(scope, target, f"{side}s")
    missing = logical_and(missing, in_bounds(where, declared, analyzer.assume(missing)))
    names = [v.var for v in block.iter_vars]
    taken = dict(zip(names, run_ranges(state, realize, outer), strict=True))

    def at(point: tuple[Var, ...], indices: Sequence[Expr]) -> Indices:
        values = dict(zip([v.var for v in covered], point, strict=True))
        return tuple(substitute(i, values) for i in indices)

    def body(point: tuple[Var, ...]) -> Stmt:
        there, here = BufferLoad(target, at(point, where)), BufferLoad(cache, at(point, new))
        source, sink = (there, here) if side == "read" else (here, there)
        return BufferStore(sink.buffer, source, sink.indices)

    nested, made = stage(
        state,
        cache.name,
        [v.dom for v in covered],
        body,
        lambda point: at(point, [missing])[0],
        loops=[taken[v.var] for v in covered],
    )
    edits = [edit.wrap(realize, lambda s: _redirected(s, target, cache, old, new)), *place(nested)]
    state.commit(*edits, edit.wrap(scope.block, with_buffers(cache)))
    return state.new_block(made.token)


def _require_values(
    state: State, realize: BlockRealize, indices: Sequence[Expr], an: Analyzer
) -> None:
    """Refuse indices that divide by zero at elements of the copy which the block does not touch,
    or that use variables which statements around the block define."""
    iters = {v.var for v in realize.block.iter_vars}
    for divisor in perhaps_zero((n for i in indices for n in walk_exprs(i)), an):
        if not iters.isdisjoint(free_vars(divisor)):
            what = f"may divide by zero beside the elements of {realize.block.name}"
            raise state.error("divides", f"an index {what}: by {show_expr(divisor)}", realize)
    for name in sorted(v.name for v in frozenset().union(*map(free_vars, indices)) if is_named(v)):
        text = f"an index of the copy is over {name}, which has no value where the copy stands"
        raise state.error("uses-variable", text, realize)


def refuse_in_place(state: State, realize: BlockRealize, side: str, target: Buffer) -> None:
    """Refuse a block that also writes the buffer it reads (or the reverse), declared or not."""
    block = realize.block
    other = block.writes if side == "read" else inputs(block)
    hidden = {a.is_write for a in accesses(block) if a.buffer is target and block.init is None}
    if (side == "read") in hidden or any(r.buffer is target for r in other):
        raise state.error(
            "reads-own-output",
            f"{block.name} both reads and writes {target.name}",
            realize,
            hint="cache_inplace copies such a buffer in and out",
        )


def require_injective(
    state: State, realize: BlockRealize, indices: Sequence[Expr], covered: list[IterVar], what: str
) -> None:
    """Refuse indices at which two combinations of the iterators may access one element."""
    var = undetermined_iter(indices, covered)
    if var is not None:
        raise state.error(
            "not-injective",
            f"two values of {var.name} of {realize.block.name} may name one element of {what}",
            realize,
        )


def _redirected(stmt: Stmt, target: Buffer, cache: Buffer, old: Indices, new: Indices) -> Stmt:
    """The block with every access of `target[old]` replaced by an access of `cache[new]`."""
    point = BufferRegion.point(cache, new)

    def moved(load: BufferLoad) -> Expr:
        return BufferLoad(cache, new, load.predicate) if load.indices == old else load

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer is target:
            return evolve(node, buffer=cache, indices=new)
        if isinstance(node, Block):
            left = [a.region for a in accesses(node) if a.buffer is target and not a.is_write]
            reads = tuple(swapped(r, left) for r in node.reads) + ((point,) if left else ())
            writes = tuple(swapped(r, []) for r in node.writes)
            return realigned(evolve(node, reads=reads, writes=writes), node.writes)
        return None

    def swapped(region: BufferRegion, left: list[BufferRegion]) -> BufferRegion:
        """The region to declare in place of `region`; regions still read in `target` (`left`) stay
        declared."""
        if region.buffer is not target or len(left) > 1:
            return region
        return left[0] if left else point

    return map_exprs(stmt, lambda e: replace_loads(e, target, moved), on_stmt)
