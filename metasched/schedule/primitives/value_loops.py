"""Where the stage of a value stands if other statements share loops with its block.

    for c in range(4):
        for i, j in T.grid(8, 6): A(A[c, i] += T.exp(B[c, j]) * X[i, j])
        for i in range(8): S(S[i] = S[i] + A[c, i])

The stage stands right before the outermost loop that does not change the value, here the first i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metasched.analysis.binding import trivial_binding
from metasched.ir.expr import TRUE, Expr, as_int
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    Evaluate,
    For,
    ForKind,
    Return,
    SeqStmt,
    Stmt,
)
from metasched.ir.visit import free_vars, loads_of, reads_memory, substitute, walk_stmts
from metasched.schedule.checks import refuse_on, require_from_zero
from metasched.schedule.rebind import nest
from metasched.schedule.state import State

_APART = "fission gives the block a nest of its own, and a stage stands before that"


class Place(NamedTuple):
    """Where a stage stands.

    Attributes:
        anchor: the loop that the stage comes before.
        around: the loops around the anchor on which the value depends.
        below: the loops of the anchor on which the value depends; the stage has copies of them.
    """

    anchor: For
    around: tuple[For, ...]
    below: tuple[For, ...]

    def nested(self, state: State, block: Block) -> Stmt:
        """The stage: a block with an iterator for each loop on which the value depends."""
        domains = [v.dom.extent for v in block.iter_vars[len(self.around) :]]
        fresh = {
            loop.var: state.fresh_var(f"ax{n}", extent.dtype)
            for n, (loop, extent) in enumerate(zip(self.below, domains, strict=True))
        }
        loops = [(fresh[loop.var], substitute(loop.extent, fresh)) for loop in self.below]
        values: Sequence[Expr] = [*(loop.var for loop in self.around), *fresh.values()]
        return nest(loops, BlockRealize(tuple(values), TRUE, block))


def is_apart(state: State, realize: BlockRealize) -> bool:
    """Whether the block is alone below its loops, which run over whole domains."""
    top: Stmt = realize
    loops = state.loops_above(realize)
    for loop, v in zip(reversed(loops), reversed(realize.block.iter_vars), strict=False):
        if loop.body is not top or (extent := as_int(loop.extent)) is None:
            return False
        if extent != as_int(v.dom.extent):
            return False
        top = loop
    return True


def place_of(state: State, realize: BlockRealize, value: Expr) -> Place:
    """Where the stage of a value stands among the loops of its block; raises if nowhere."""
    block, loops = realize.block, state.loops_above(realize)
    refuse_on(state, trivial_binding(realize, loops), realize)
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{block.name} has a predicate", realize)
    used = [v.var in free_vars(value) for v in block.iter_vars]
    first = used.index(False)
    for loop in loops:
        require_from_zero(state, loop)
        if loop.kind is not ForKind.SERIAL:
            kind = f"the loop {loop.var.name} is not serial"
            raise state.error(
                "not-serial", kind, loop, hint="make the stage before lanes and threads"
            )
    _require_chain(state, realize, loops[first])
    _require_unchanged(state, loops[first], value)
    left = {loop.var for loop, uses in zip(loops, used, strict=True) if not uses}
    for loop, uses in zip(loops[first:], used[first:], strict=True):
        known = not reads_memory(loop.extent) and left.isdisjoint(free_vars(loop.extent))
        if not (known if uses else (as_int(loop.extent) or 0) > 0):
            raise state.error(
                "unknown-iterations",
                f"the extent of the loop {loop.var.name} does not tell for which iterations "
                f"{block.name} computes the value",
                loop,
                hint="it may depend on the iterators of the value alone",
            )
    inner = zip(loops[first:], used[first:], strict=True)
    return Place(loops[first], loops[:first], tuple(loop for loop, uses in inner if uses))


def _require_chain(state: State, realize: BlockRealize, anchor: For) -> None:
    """Refuse conditions and declarations between a block and a loop around it."""
    node = state.parent(realize)
    while node is not None and node is not anchor:
        if not isinstance(node, (For, SeqStmt)):
            raise state.error(
                "conditional-block",
                f"{realize.block.name} stands under a condition or declaration in the loop "
                f"{anchor.var.name}",
                node,
                hint=_APART,
            )
        node = state.parent(node)


def _require_unchanged(state: State, anchor: For, value: Expr) -> None:
    """Refuse a loop that may write what the value reads, or whose iterations may end early."""
    read = {load.buffer.data: load.buffer.name for load in loads_of(value)}
    for stmt in walk_stmts(anchor):
        if isinstance(stmt, BufferStore) and stmt.buffer.data in read:
            raise state.error(
                "value-changes",
                f"the loop {anchor.var.name} writes {read[stmt.buffer.data]}, which the value "
                "reads",
                anchor,
                hint=_APART,
            )
        if isinstance(stmt, (AssertStmt, Break, Continue, Return)):
            raise state.error(
                "jumps",
                f"an iteration of the loop {anchor.var.name} may end early",
                anchor,
                hint=_APART,
            )
        if isinstance(stmt, Evaluate) or (isinstance(stmt, Block) and stmt.match_buffers):
            raise state.error(
                "unknown-writes",
                f"what the loop {anchor.var.name} writes is unknown",
                anchor,
                hint=_APART,
            )
