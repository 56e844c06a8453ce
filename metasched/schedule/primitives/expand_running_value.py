"""expand_running_value: stores each value that a loop hands from iteration to iteration.

    for i in range(n):
        s[0] = s[0] + A[i]
        C[i] = s[0] / (i + 1)
    ->
    for i in range(n):
        s_i[i] = (s[0] if i == 0 else s_i[i - 1]) + A[i]
        C[i] = s_i[i] / (i + 1)
    s[0] = s_i[n - 1]

Only the block that computes the value depends on earlier iterations then. `fission` gives this
block, a scan, a loop of its own, and the other blocks may run in any order. The step is the array
expansion of P. Feautrier (Array Expansion, 1988) for a value that is carried around a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.block import is_leaf
from metasched.analysis.closing import closed_over
from metasched.analysis.cover import covered
from metasched.analysis.producers import from_same_side
from metasched.analysis.scope import Child, Scope, buffer_uses, writes
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import EQ, TRUE, Expr, as_expr, as_int, compare
from metasched.ir.op import call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    Break,
    BufferStore,
    Continue,
    For,
    IterKind,
    IterVar,
    Return,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, reads_memory, replace_loads, substitute, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_jumps,
    refuse_on,
    refuse_opaque,
    refuse_outside,
    require_from_zero,
    require_serial,
)
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.keep_in_result import Point, only_store, points
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_written_and_loops)
def expand_running_value(
    state: State, block: BlockLike, write_buffer_index: int, loop: LoopRV
) -> None:
    """Store the value that `block` sets in each iteration of `loop` in a place of its own.

    The new buffer has one more dimension, the last, which the loop indexes. Blocks before `block`
    read the value of the iteration before, blocks after it the value of their iteration. In the
    first iteration the value from before the loop takes the place of the value of the iteration
    before (a condition that the example leaves out). If the last value may be read later, a block
    after the loop stores it.

    requires  a loop with a constant extent of at least one, serial and from zero, which `break`,
              `continue` and `return` do not leave; a leaf block in its body, not deeper, which does
              nothing but store one element of a buffer of constant shape that the block around
              allocates; leaf blocks below the loop that use no other element of the buffer, and of
              which `block` alone writes it
    rewrite   for i in range(8): S(T[0] = T[0] + A[i]); B(B[i] = T[0] * 2)
              ->
              for i in range(8): S(T_i[0, i] = T_i[0, i - 1] + A[i]); B(B[i] = T_i[0, i] * 2)
    """
    assert isinstance(block, BlockRV)
    realize, node = state.block(block), state.loop(loop)
    parent = state.parent(realize)
    if node.body is not realize and not (isinstance(parent, SeqStmt) and node.body is parent):
        text = f"{realize.block.name} is no direct part of the body of the loop {node.var.name}"
        raise state.error("not-in-body", text, node)
    require_serial(state, node)
    require_from_zero(state, node)
    refuse_jumps(state, node, Break, Continue, Return)
    buffer = pick_buffer(state, realize, "write", write_buffer_index)
    if allocating_block(state, realize, buffer) is not state.scope_block(realize):
        text = f"{buffer.name} is not allocated by the block around {realize.block.name}"
        raise state.error("not-allocated", text, realize)
    count = as_int(node.extent) or 0
    if count < 1 or buffer.constant_shape() is None:
        text = f"the extent of {node.var.name}, or the shape of {buffer.name}, is no constant"
        raise state.error("no-limit", text, node)
    only_store(state, realize)
    scope = state.scope(node)
    refuse_opaque(state, scope.block, buffer)
    refuse_outside(state, scope, buffer)
    users = [c for c in scope.under(node) if buffer in buffer_uses(c.block)]
    place = _place(state, node, users, realize.block.token, buffer)

    name = f"{buffer.name}_{node.var.name}"
    shape = (*buffer.shape, as_expr(count, node.var.dtype))
    wide = state.fresh_buffer(name, shape, buffer.dtype, buffer.scope)
    expansion = _Expansion(node, buffer, wide, place)
    own = next(c for c in users if c.realize is realize)
    at = users.index(own)
    edits = [edit.replace(c.realize, expansion.before(c)) for c in users[:at]]
    edits.append(edit.replace(own.realize, expansion.update(own)))
    edits += [edit.replace(c.realize, expansion.after(c)) for c in users[at + 1 :]]
    if _read_later(scope, node, users, own, buffer, place):
        last = expansion.last(own, state.fresh_block_name(f"{buffer.name}_last"))
        edits.append(edit.insert(node, last, after=True))
    state.commit(*edits, edit.wrap(scope.block, lambda s: _allocating(s, wide)))


@proof
def _require_leaf_users(state: State, users: Sequence[Child], own: BlockToken, b: Buffer) -> None:
    """The blocks are leaves, and one of them alone writes the buffer."""
    for child in users:
        refuse_on(state, is_leaf(child.block), child.realize)
        if child.token is not own and writes(child.block, b):
            text = f"block {child.block.name} writes {b.name}, too"
            raise state.error("other-writer", text, child.realize)


def _place(
    state: State, node: For, users: Sequence[Child], own: BlockToken, buffer: Buffer
) -> Point:
    """The only element that the blocks below the loop use, by the loops above."""
    _require_leaf_users(state, users, own, buffer)
    child = next(c for c in users if c.token is own)
    store = child.block.body
    assert isinstance(store, BufferStore)
    known = Analyzer(ranges_of(child.loops))
    place = tuple(known.simplify(substitute(i, child.realize.bindings)) for i in store.indices)
    _require_place(state, users, buffer, place)
    if any(node.var in free_vars(e) or reads_memory(e) for e in place):
        text = f"the element of {buffer.name} changes with {node.var.name}, or with memory"
        raise state.error("several-elements", text, child.realize)
    return place


@proof
def _require_place(state: State, users: Sequence[Child], buffer: Buffer, place: Point) -> None:
    """Refuse blocks that use another element."""
    for child in users:
        known = Analyzer(ranges_of(child.loops))
        for indices in points(child.block, buffer):
            found = (substitute(i, child.realize.bindings) for i in indices)
            if not all(map(known.equal, found, place)):
                text = f"block {child.block.name} uses another element of {buffer.name}"
                raise state.error("several-elements", text, child.realize)


def _read_later(
    scope: Scope, node: For, users: Sequence[Child], own: Child, buffer: Buffer, place: Point
) -> bool:
    """Whether a block may read the last value: a block elsewhere, or one below in a later run."""
    above = own.loops[: own.loops.index(node)]
    for child in scope.readers(buffer):
        if child not in users and not from_same_side(scope, child, buffer, own.loops, users):
            return True
    if own.branches:  # a `while` may run the loop again
        return True
    if all(n.var in place for n in above if as_int(n.extent) != 1):
        return False  # each run of the loop has an element of its own
    order = list(scope.realizes)
    early = [p for p in scope.writers(buffer) if order.index(p) < order.index(users[0])]
    setters = [p for p in early if list(p.loops[: len(above)]) == list(above)]
    inside = [c for c in scope.readers(buffer) if c in users and c.token is own.token]
    inside += [c for c in users if order.index(c) < order.index(own)]
    return any(covered(c, setters, buffer, len(above)) is not None for c in inside)


class _Expansion:
    """The blocks of the loop `node` with a place of `wide` for each value of `buffer[place]`."""

    def __init__(self, node: For, buffer: Buffer, wide: Buffer, place: Point) -> None:
        self.node, self.buffer, self.wide, self.place = node, buffer, wide, place
        var = node.var
        self.first = compare(EQ, var, as_expr(0, var.dtype))
        self.before_loop = BufferLoad(buffer, place)
        self.previous = BufferLoad(wide, (*place, var - 1))
        self.now = BufferLoad(wide, (*place, var))

    def before(self, child: Child) -> BlockRealize:
        """A block that reads the value of the iteration before."""
        value = call("if_then_else", self.first, self.before_loop, self.previous)
        return self._reading(child, value)

    def after(self, child: Child) -> BlockRealize:
        """A block that reads the value of its iteration."""
        return self._reading(child, self.now)

    def _reading(self, child: Child, value: Expr) -> BlockRealize:
        def loaded(expr: Expr) -> Expr | None:
            same = isinstance(expr, BufferLoad) and expr.buffer is self.buffer
            return value if same else None

        return closed_over(child, transform(child.block, on_expr=loaded))

    def update(self, child: Child) -> BlockRealize:
        """The block that computes the value of an iteration from the value before."""
        store = child.block.body
        assert isinstance(store, BufferStore)
        start, step = (
            replace_loads(store.value, self.buffer, lambda _, v=v: v)  # type: ignore[misc]
            for v in (self.before_loop, self.previous)
        )
        value = start if step is start else call("if_then_else", self.first, start, step)
        body = BufferStore(self.wide, value, (*self.place, self.node.var))
        pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
        iters = (
            v if v.is_spatial and self.node.var not in free_vars(e) else _of_scan(v)
            for v, e in pairs
        )
        return closed_over(child, evolve(child.block, iter_vars=tuple(iters), body=body))

    def last(self, own: Child, name: str) -> BlockRealize:
        """The block after the loop, which stores the last value where the loop left it."""
        end = as_expr((as_int(self.node.extent) or 1) - 1, self.node.var.dtype)
        value = BufferLoad(self.wide, (*self.place, end))
        plain = Block(name, (), (), (), BufferStore(self.buffer, value, self.place))
        above = own.loops[: own.loops.index(self.node)]
        return closed_over(Child(BlockRealize((), TRUE, plain), above), plain)


def _of_scan(v: IterVar) -> IterVar:
    """An iterator along which values are combined; what may run in any order still may."""
    ordered = v.kind in (IterKind.SPATIAL, IterKind.OPAQUE)
    return IterVar(v.var, v.dom, IterKind.OPAQUE if ordered else IterKind.SCAN)


def _allocating(stmt: Stmt, wide: Buffer) -> Stmt:
    assert isinstance(stmt, Block)
    return evolve(stmt, alloc_buffers=(*stmt.alloc_buffers, wide))
