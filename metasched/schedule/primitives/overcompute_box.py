"""overcompute_box: runs a block over the domain of its iterators; extra results are unused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metasched.analysis.added import unsafe_instances
from metasched.analysis.block import is_leaf
from metasched.analysis.cover import covered, shared_loops
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import TRUE, Var, as_expr, as_int
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IterVar, Stmt, evolve
from metasched.ir.visit import walk
from metasched.schedule import edit, ways
from metasched.schedule.checks import confirm_cover, refuse_on, refuse_opaque, refuse_outside
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.new_stage import chain_above
from metasched.schedule.primitives.storage import allocating_block
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def overcompute_box(state: State, block: BlockLike) -> None:
    """Run each loop of `block` whose range is not constant over the domain of its iterator, from
    zero on where possible.

    A triangle becomes the square around it, whose loops have constant extents and can be tiled.
    The results outside of the triangle are computed too, in elements that no other block reads: all
    that other blocks read, this block wrote before. Loops and block keep their handles.

    requires  a leaf block without predicate, alone below its loops, of which each is the value of
              one iterator; constant ranges of the loops of reduce iterators; loops without
              annotation; one buffer written, allocated by the block around, at one place that has
              each spatial iterator as an index; another writer only if the block writes all that
              other blocks read of the buffer; reads that stay in their buffers, and read what was
              written before, in the added instances too; no integer division by zero there
    rewrite   for i in range(4): for j: B(X[i, j] = A[j])
              -> for i in range(4): for j in range(4): B(X[i, j] = A[j])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    old = realize.block
    refuse_on(state, is_leaf(old), realize)
    loops = _loops(state, realize)
    wider = _wider(state, loops)
    if not wider:
        return
    place = _place(state, realize, wider)
    _require_private(state, realize, place.buffer)
    fixed = {v.var: Range(n.min, n.extent) for n, v in loops.items() if n not in wider}
    failure = unsafe_instances(old, {**fixed, **_domains(loops, wider)})
    zero = {n: Range(as_expr(0, r.min.dtype), r.min + r.extent) for n, r in wider.items()}
    grown = all((as_int(r.min) or 0) >= 0 for r in wider.values())
    if grown and unsafe_instances(old, {**fixed, **_domains(loops, zero)}) is None:
        wider, failure = zero, None
    if not state.skip_legality_checks:
        refuse_on(state, failure, realize)
    boxes = _domains(loops, wider)
    iters = tuple(IterVar(v.var, boxes.get(v.var, v.dom), v.kind) for v in old.iter_vars)
    edits = [edit.wrap(loop, _over(box)) for loop, box in wider.items()]
    state.commit(edit.wrap(old, lambda _: _over_domains(old, iters)), *edits)
    confirm_cover(state, old.token)


def _domains(loops: Mapping[For, IterVar], boxes: Mapping[For, Range]) -> dict[Var, Range]:
    return {loops[loop].var: box for loop, box in boxes.items()}


def _loops(state: State, realize: BlockRealize) -> dict[For, IterVar]:
    """The loops above the block, each with the iterator whose value it is."""
    loops = {n.var: n for n in chain_above(state, realize)}
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{realize.block.name} has a predicate", realize)
    if len(loops) != len(realize.iter_values) or loops.keys() != set(realize.iter_values):
        raise state.error(
            "not-plain",
            f"the iterators of {realize.block.name} are not each the value of one loop above it",
            realize,
            hint="take the step before loops are split or fused",
        )
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return {n: v for v, value in pairs for n in loops.values() if n.var is value}


def _wider(state: State, loops: Mapping[For, IterVar]) -> dict[For, Range]:
    """The loops whose range is not constant, and the domain of the iterator of each.

    A loop that reaches beyond the domain is listed, too: an inner loop is empty there.
    """
    found: dict[For, Range] = {}
    for loop, v in loops.items():
        if as_int(loop.min) is not None and as_int(loop.extent) is not None:
            if not _inside(loop, v.dom):
                found[loop] = v.dom
            continue
        if v.is_reduce:
            raise state.error(
                "ragged-reduction",
                f"the range of {loop.var.name}, a loop of a reduction, is not constant",
                loop,
                hint="a reduction over added values would have another result",
            )
        if loop.annotations or loop.thread is not None:
            raise state.error(
                "marked-loop", f"the loop {loop.var.name} carries annotations or a binding", loop,
                hint="take the step before choosing the kinds of loops",
            )  # fmt: skip
        if as_int(v.dom.min) is None or as_int(v.dom.extent) is None:
            raise state.error(
                "symbolic-domain", f"the domain of {v.var.name} is not constant", loop
            )
        found[loop] = v.dom
    return found


def _inside(loop: For, domain: Range) -> bool:
    """Whether all values of a loop are in a domain; True where this is not known."""
    low, size = as_int(domain.min), as_int(domain.extent)
    start, count = as_int(loop.min), as_int(loop.extent)
    if low is None or size is None or start is None or count is None:
        return True
    return low <= start and start + count <= low + size


def _place(state: State, realize: BlockRealize, wider: Mapping[For, Range]) -> BufferStore:
    """A store of the block; all stores and loads of its buffer use one element for each point."""
    block = realize.block
    stores = [s for s in walk(block) if isinstance(s, BufferStore)]
    buffers = {s.buffer for s in stores}
    loads = [e for e in walk(block) if isinstance(e, BufferLoad) and e.buffer in buffers]
    spatial = {v.var for v in block.iter_vars if v.is_spatial}
    wide = {v.var for loop, v in _loops(state, realize).items() if loop in wider}
    others = any(not (v.is_spatial or v.is_reduce) and v.var in wide for v in block.iter_vars)
    places = {(s.buffer, s.indices) for s in stores} | {(e.buffer, e.indices) for e in loads}
    if len(places) != 1 or others or not spatial <= set(stores[0].indices):
        raise state.error(
            "not-plain-index",
            f"{block.name} does not write one element, at its iterators, for each point",
            realize,
            hint="privatize_reduction gives a block a buffer that is indexed by its iterators",
        )
    return stores[0]


def _require_private(state: State, realize: BlockRealize, buffer: Buffer) -> None:
    """Refuse a result in which added instances could change what another block needs."""
    name, scope = realize.block.name, state.scope(realize)
    if allocating_block(state, realize, buffer) is not state.scope_block(realize):
        raise state.error(
            "not-allocated", f"{buffer.name} is not allocated by the block around {name}", realize,
            hint="privatize_reduction gives a block a buffer of its own",
        )  # fmt: skip
    refuse_opaque(state, realize.block, buffer)
    refuse_outside(state, scope, buffer)
    own = scope.child(realize.block.token)
    writers = scope.writers(buffer)
    if len(writers) == 1:
        return  # what is read was written
    for reader in scope.readers(buffer):
        if reader is own or covered(reader, [own], buffer, shared_loops(own, reader)) is None:
            continue
        who, reads = ", ".join(w.block.name for w in writers), reader.block.name
        text = f"{buffer.name} is written by {who}, and {reads} may read what {name} does not write"
        raise state.error("other-writer", text, realize)


def _over_domains(block: Block, iters: tuple[IterVar, ...]) -> Block:
    made = evolve(block, iter_vars=iters)
    reads, writes = block_access_regions(made)
    return evolve(made, reads=tuple(reads), writes=tuple(writes))


def _over(box: Range) -> Callable[[Stmt], Stmt]:
    """The edit of a loop that gives it another range."""

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, For)
        dtype = node.var.dtype
        return evolve(node, min=box.min.astype(dtype), extent=box.extent.astype(dtype))

    return change
