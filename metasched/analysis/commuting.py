"""Updates of one element whose order does not matter: reductions."""

from __future__ import annotations

from metasched.analysis.access import exact_accesses, updates_in_place
from metasched.analysis.any_order import depends_on_order
from metasched.analysis.reducer import choice_of, keeps_order, match_reducer, updates_of
from metasched.analysis.scope import Child, buffer_uses, undetermined_iters
from metasched.ir.buffer import Buffer
from metasched.ir.stmt import Block, BufferStore, For, IterKind, fact
from metasched.ir.visit import free_vars, loads_of, walk_stmts


def feeds_reduction(loop: For, child: Child) -> bool:
    """Whether a loop drives reduction iterators only, of a block that updates its output."""
    block = child.block
    kinds = {
        v.kind
        for v, e in zip(block.iter_vars, child.realize.iter_values, strict=True)
        if loop.var in free_vars(e)
    }
    return kinds == {IterKind.REDUCE} and all(commutes(block, r.buffer) for r in block.writes)


@fact
def commutes(block: Block, buffer: Buffer) -> bool:
    """Whether the instances of a block that update one element of `buffer` may change order.

    They may if the block has reduction iterators and the only element of the buffer that it reads
    is the element that it writes. With an init, the element must determine the spatial iterators,
    so that the init sets each element once. The result of an argmin or argmax must depend on the
    order neither by ties nor by NaN. Several stores that use each other's running values must form
    a known reduction. A store alone must be an update whose order does not matter, as far as can
    be seen (`analysis.any_order`).
    """
    use = buffer_uses(block)[buffer]
    if len(use.writes) != 1 or not all(v.is_spatial or v.is_reduce for v in block.iter_vars):
        return False
    reduced = {v.var for v in block.iter_vars if v.is_reduce}
    written = [e for r in use.writes[0].region for e in (r.min, r.extent)]
    if not reduced or any(not free_vars(e).isdisjoint(reduced) for e in written):
        return False
    if exact_accesses(block) is not None:
        if not updates_in_place(block, buffer):
            return False
    elif any([e for r in x.region for e in (r.min, r.extent)] != written for x in use.reads):
        return False
    if len(block.writes) == 2 and keeps_order(block.body):
        return False
    joint = len(block.writes) > 1 and _uses_running_values(block)
    if not _known_reduction(block) if joint else depends_on_order(block, buffer):
        return False
    return block.init is None or reduced.issuperset(undetermined_iters(block, use.writes[0]))


def _uses_running_values(block: Block) -> bool:
    """Whether a store, or a condition, reads what another store of the block writes."""
    written = {r.buffer.data for r in block.writes}
    for node in walk_stmts(block.body):
        own = {node.buffer.data} if isinstance(node, BufferStore) else set()
        loads = (load for e in node.exprs for load in loads_of(e))
        if any(load.buffer.data in written - own for load in loads):
            return True
    return False


def _known_reduction(block: Block) -> bool:
    stores = updates_of(block.body)
    chosen = stores is not None and choice_of(stores) is not None
    return chosen or match_reducer(block.init, block.body) is not None
