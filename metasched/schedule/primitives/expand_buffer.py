"""expand_buffer: gives each iteration of a loop its own copy of a temporary buffer."""

from __future__ import annotations

from math import inf

from metasched.analysis.block import is_leaf
from metasched.analysis.closing import closed_over
from metasched.analysis.cover import loop_ranges
from metasched.analysis.producers import continues_reduction, from_same_side, self_contained
from metasched.analysis.scope import Child, Scope, buffer_uses
from metasched.arith.affine import interval, linear
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Var, as_expr
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, Stmt, evolve
from metasched.ir.visit import transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_on,
    refuse_opaque,
    refuse_outside,
    require_serial,
)
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.state import State


@primitive(of_block=ways.with_written_and_loops)
def expand_buffer(state: State, block: BlockLike, write_buffer_index: int, loop: LoopRV) -> None:
    """Give each iteration of `loop` its own copy of a buffer that `block` writes below the loop.

    Below `loop`, the buffer is replaced by a new buffer with one more dimension, which the loop
    indexes (array expansion, Feautrier 1988). Elsewhere the old buffer stays. The iterations no
    longer share memory, so that `fission` and `reorder` may apply.

    requires  a serial loop around the block; a buffer of constant shape that the block around
              allocates, used by leaf blocks alone below the loop, and by no binding; what an
              iteration reads of it was written before in the same iteration; what is read elsewhere
              was not written below `loop`; no value of the loop below zero, and a limit of its
              values: a constant, or a sum of lengths of parameters
    rewrite   for i in range(8): B(T[0] = A[i]); C(C[i] = T[0] * 2)
              ->
              for i in range(8): B(T_i[i, 0] = A[i]); C(C[i] = T_i[i, 0] * 2)
    """
    assert isinstance(block, BlockRV)
    realize, node = state.block(block), state.loop(loop)
    if node not in state.loops_above(realize):
        text = f"the loop {node.var.name} is not above {realize.block.name}"
        raise state.error("not-above", text, node)
    require_serial(state, node)
    scope = state.scope(node)
    buffer = _allocated(state, realize, write_buffer_index)
    users = [c for c in scope.under(node) if buffer in buffer_uses(c.block)]
    for child in users:
        refuse_on(state, is_leaf(child.block), child.realize)
    refuse_opaque(state, scope.block, buffer)
    refuse_outside(state, scope, buffer)
    _require_private(state, scope, node, buffer)
    size = _size(state, node)
    if size is None or buffer.constant_shape() is None:
        text = f"the values of {node.var.name}, or the shape of {buffer.name}, have no limits"
        raise state.error("no-limit", text, node)
    name = f"{buffer.name}_{node.var.name}"
    wide = state.fresh_buffer(name, (size, *buffer.shape), buffer.dtype, buffer.scope)
    edits = []
    for child in users:
        made = _expanded(child, node.var, buffer, wide)
        edits.append(edit.replace(child.realize, made))
    left = any(buffer in buffer_uses(c.block) for c in scope.realizes if c not in users)

    def allocated(stmt: Stmt) -> Stmt:
        assert isinstance(stmt, Block)
        kept = [b for b in stmt.alloc_buffers if left or b is not buffer]
        return evolve(stmt, alloc_buffers=(*kept, wide))

    state.commit(*edits, edit.wrap(scope.block, allocated))


def _allocated(state: State, realize: BlockRealize, index: int) -> Buffer:
    """The buffer that a block writes and the block around it allocates."""
    buffer = pick_buffer(state, realize, "write", index)
    if allocating_block(state, realize, buffer) is not state.scope_block(realize):
        text = f"{buffer.name} is not allocated by the block around {realize.block.name}"
        raise state.error("not-allocated", text, realize)
    return buffer


@proof
def _require_private(state: State, scope: Scope, node: For, buffer: Buffer) -> None:
    """Refuse a value that enters or leaves an iteration of the loop in the buffer."""
    if self_contained(buffer, scope, node):
        return
    loops, below = [*state.loops_above(node), node], scope.under(node)
    for child in scope.readers(buffer):
        if not from_same_side(scope, child, buffer, loops, below):
            raise state.error(
                "value-carried",
                f"block {child.block.name} may read a value of {buffer.name} from another "
                f"iteration of {node.var.name}",
                child.realize,
            )
    for child in scope.under(node):
        inner = child.loops[child.loops.index(node) + 1 :]
        if buffer in buffer_uses(child.block) and continues_reduction(child, inner):
            raise state.error(
                "value-carried",
                f"the reduction {child.block.name} continues in {buffer.name} from one iteration "
                f"of {node.var.name} to the next",
                child.realize,
            )


def _size(state: State, node: For) -> Expr | None:
    """How many values a loop has that begins at or above zero: a number, or a sum of lengths of
    parameters; None where nothing bounds the values."""
    ranges = loop_ranges(state.loops_above(node))
    end = Analyzer().simplify(node.min + node.extent)
    low, high = interval(node.min, ranges)[0], interval(end, ranges)[1] - 1
    if low < 0:
        return None
    if high != inf:
        return as_expr(int(high) + 1, node.var.dtype)
    form, (_, func) = linear(end), state.func_of(node)
    lengths = {extent for b in func.buffers for extent in b.shape}  # none is negative
    sums = all(atom in lengths and factor > 0 for atom, factor in form.terms.items())
    return end if sums and form.const >= 0 else None


def _expanded(child: Child, var: Var, buffer: Buffer, wide: Buffer) -> BlockRealize:
    """A block that uses the wide buffer at the value of the loop."""

    def stored(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, BufferStore) and stmt.buffer is buffer:
            return evolve(stmt, buffer=wide, indices=(var, *stmt.indices))
        return None

    def loaded(expr: Expr) -> Expr | None:
        if isinstance(expr, BufferLoad) and expr.buffer is buffer:
            return BufferLoad(wide, (var, *expr.indices))
        return None

    return closed_over(child, transform(child.block, stored, loaded))
