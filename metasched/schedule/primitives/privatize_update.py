"""privatize_update: gives each loop iteration its own copy of a buffer, and adds the copies.

Histograms and scatter-adds become parallel: each core counts into a copy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.analysis.reducer import Reduction
from metasched.arith.regions import declared
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    loads_of,
    substitute,
    transform,
    walk_stmts,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_from_zero, require_one_block, require_serial
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.new_stage import stage, with_buffers
from metasched.schedule.primitives.privatize_reduction import (
    require_no_init,
    update_of,
    with_sum,
)
from metasched.schedule.rebind import nest
from metasched.schedule.state import State

_KNOWN = (BufferStore, For, IfThenElse, LetStmt, SeqStmt)
"""The statements that a block may hold around its updates."""


@primitive(of_loop=ways.plain())
def privatize_update(state: State, loop: LoopRV) -> list[BlockRV]:
    """Update a copy of the buffer in each iteration of `loop`, then add the copies to the buffer.

    The block below the loop may update any element, like a histogram or a scatter-add. After the
    step it updates `X_copy`, whose first dimension is the loop, so the loop is spatial. A block
    before (`X_identity`) fills the copies. A block after (`X_merge`) adds the copies to the old
    values. Returns these two blocks. Like `rfactor`, the step changes the order in which
    floating-point numbers are added.

    requires  one block under the loop, with nothing but loops between them; serial loops, `loop`
              from zero with a constant extent; a block without init whose stores, under conditions
              and in loops too, update elements of one buffer all by sums and differences, or all by
              products, minima or maxima; values, indices and conditions that do not use the buffer;
              a buffer of constant shape, declared whole by blocks around
    rewrite   for i, k in T.grid(4, 8): C(C[b[i, k]] += A[i, k])
              ->
              for ax0, ax1 in T.grid(4, 6): C_identity(p[ax0, ax1] = 0)
              for i, k in T.grid(4, 8): C(p[i, b[i, k]] += A[i, k])
              for ax0, ax1 in T.grid(6, 4): C_merge(C[ax0] += p[ax1, ax0])
    """
    node = state.loop(loop)
    realize = _alone(state, node)
    updates = _updates(state, realize)
    for above in state.loops_above(realize):
        require_serial(state, above)
    require_from_zero(state, node)
    (buffer,) = {store.buffer for store in updates}
    sizes = [as_int(size) for size in (node.extent, *buffer.shape)]
    if None in sizes or not buffer.shape:
        text = f"loop {node.var.name} and buffer {buffer.name} have no constant extents"
        raise state.error("symbolic-extent", text, node)
    _require_whole(state, realize, buffer)
    shape = (node.extent, *buffer.shape)
    copy = state.fresh_buffer(f"{buffer.name}_copy", shape, buffer.dtype, "global")
    negative = all(subtracts for _, subtracts in updates.values())
    inner = _redirected(state, realize, node, copy, updates, negative)
    found = next(iter(updates.values()))[0]
    before, identity = stage(
        state, f"{realize.block.name}_identity", [Range.of(0, size) for size in shape],
        lambda at: BufferStore(copy, found.identity[0], at),
    )  # fmt: skip
    after, merge = _merged(state, realize, copy, buffer, found, negative)
    state.commit(
        edit.replace(realize, inner),
        edit.wrap(node, lambda s: seq((before, s, after))),
        edit.wrap(state.scope(realize).block, with_buffers(copy)),
    )
    return [state.new_block(identity.token), state.new_block(merge.token)]


def _updates(state: State, realize: BlockRealize) -> dict[BufferStore, tuple[Reduction, bool]]:
    """Each store of a block, the reduction that the store updates an element by, and whether it
    subtracts.

    Raises:
        ScheduleError: `has-init` for a block with an init, `no-update` for any other body.
    """
    block = realize.block
    require_no_init(state, realize)
    nodes = list(walk_stmts(block.body))
    found = {s: update_of(s) for s in nodes if isinstance(s, BufferStore)}
    updates = {s: update for s, update in found.items() if update is not None}
    alike = len({(s.buffer, update.name) for s, (update, _) in updates.items()}) == 1
    known = all(isinstance(s, _KNOWN) for s in nodes)
    if not (known and alike and len(updates) == len(found)) or block.alloc_buffers:
        raise state.error(
            "no-update",
            f"block {block.name} is no update of elements of one buffer by one operation and "
            "values that do not use the buffer",
            realize,
            hint="known are sums, differences, products, minima and maxima",
        )
    (memory,) = {s.buffer.data for s in updates}
    others = [e for s in nodes if not isinstance(s, BufferStore) for e in s.exprs]
    uses = (*(i for s in updates for i in s.indices), *others, *realize.exprs)
    if any(load.buffer.data is memory for e in uses for load in loads_of(e)):
        name = next(iter(updates)).buffer.name
        raise state.error(
            "no-update", f"the indices or the conditions of {block.name} read {name}", realize,
            hint="keep the old values in another buffer",
        )  # fmt: skip
    return updates


def _require_whole(state: State, realize: BlockRealize, buffer: Buffer) -> None:
    """Refuse blocks around that write a part of the buffer: the copies are added to all of it."""
    whole = [(0, as_int(size)) for size in buffer.shape]
    for around in [s for s in state.ancestors(realize) if isinstance(s, Block)]:
        for written in around.writes:
            box = [(as_int(r.min), as_int(r.extent)) for r in written.region]
            if written.buffer is buffer and box != whole:
                raise state.error(
                    "part-of-buffer", f"block {around.name} writes a part of {buffer.name} only",
                    realize, hint="take the step before blockize",
                )  # fmt: skip


def _alone(state: State, node: For) -> BlockRealize:
    """The block below a loop; raises where the loop holds anything else but loops."""
    only = require_one_block(state, node)
    inner: Stmt = only
    for above in reversed(state.loops_above(only)):
        if above.body is not inner:
            text = f"below {node.var.name} there is more than loops around {only.block.name}"
            raise state.error("not-a-chain", text, node)
        if above is node:
            break
        inner = above
    return only


def _redirected(
    state: State, realize: BlockRealize, node: For, copy: Buffer,
    updates: Mapping[BufferStore, tuple[Reduction, bool]], negative: bool,
) -> BlockRealize:  # fmt: skip
    """The given block, changed to update the copy that belongs to the loop's iteration.

    An iterator bound to several loops, `node` among them, is cut into one iterator for each loop.
    Where all updates subtract (`negative`), the copies hold what the merge subtracts.
    """
    old = realize.block
    slot = state.fresh_var(f"v{node.var.name}", node.var.dtype)
    cut: dict[Var, Expr] = {node.var: slot}
    inside: dict[Var, Expr] = {}
    iters, values = [IterVar(slot, Range(node.min, node.extent))], [node.var.astype(slot.dtype)]
    for v, value in zip(old.iter_vars, realize.iter_values, strict=True):
        if node.var not in free_vars(value):
            iters.append(v)
            values.append(value)
            continue
        for loop in state.loops_above(realize):
            if loop.var in free_vars(value) and loop.var not in cut:
                if None in (as_int(loop.min), as_int(loop.extent)):
                    text = f"the range of loop {loop.var.name} is not constant"
                    raise state.error("symbolic-extent", text, loop)
                cut[loop.var] = part = state.fresh_var(f"v{loop.var.name}", loop.var.dtype)
                iters.append(IterVar(part, Range(loop.min, loop.extent), v.kind))
                values.append(loop.var.astype(part.dtype))
        inside[v.var] = substitute(value, cut)

    def into_copy(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, BufferStore):
            return None
        found, subtracts = updates[stmt]
        own = BufferLoad(copy, (slot, *stmt.indices))
        return with_sum(found, own, found.rhs[0], subtracts and not negative)

    body = substitute(transform(old.body, into_copy), inside)
    block = evolve(old, iter_vars=tuple(iters), body=body)
    return BlockRealize(tuple(values), realize.predicate, declared(block))


def _merged(
    state: State, realize: BlockRealize, copy: Buffer, buffer: Buffer, found: Reduction,
    negative: bool,
) -> tuple[Stmt, Block]:  # fmt: skip
    """The block that adds all copies of each element to the old value, under new loops."""
    extents = (*buffer.shape, copy.shape[0])
    last = len(extents) - 1
    iters = []
    for n, size in enumerate(extents):
        var = state.fresh_var(f"v{n}", size.dtype)
        kind = IterKind.REDUCE if n == last else IterKind.SPATIAL
        iters.append(IterVar(var, Range.of(0, size), kind))
    *element, chunk = [v.var for v in iters]
    total = BufferLoad(copy, (chunk, *element))
    body = with_sum(found, BufferLoad(buffer, tuple(element)), total, negative)
    name = state.fresh_block_name(f"{realize.block.name}_merge")
    block = declared(Block(name, tuple(iters), (), (), body, token=BlockToken()))
    loops: list[tuple[Var, Expr | int]] = [
        (state.fresh_var(f"ax{n}", size.dtype), size) for n, size in enumerate(extents)
    ]
    return nest(loops, BlockRealize(tuple(v for v, _ in loops), as_expr(True), block)), block
