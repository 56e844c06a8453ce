"""The blocks that take part in a pass over blocks of an axis (see `rolling_update`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from metasched.analysis.producers import continues_reduction
from metasched.analysis.reducer import Reduction, match_reducer
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, Expr, FloatImm, Var, as_expr, as_int, cast
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IterVar, SeqStmt, Stmt
from metasched.ir.visit import blocks_of, free_vars, loads_of, walk_stmts
from metasched.schedule.checks import require_plain_loop, require_serial
from metasched.schedule.state import State


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A block of the pass.

    Attributes:
        chain: the loops around the block alone, outermost first.
        loop: the one over the axis.
        along: the iterator of the axis.
        store: the body.
        found: the reduction over the axis, None for a block with an element for each position.
    """

    realize: BlockRealize
    chain: tuple[For, ...]
    loop: For
    along: IterVar
    store: BufferStore
    found: Reduction | None

    @property
    def block(self) -> Block:
        return self.realize.block

    @property
    def top(self) -> Stmt:
        return self.chain[0]

    @property
    def fixed(self) -> tuple[IterVar, ...]:
        """The spatial iterators but that of the axis."""
        return tuple(v for v in self.block.iter_vars if v.is_spatial and v is not self.along)

    @property
    def at(self) -> tuple[Expr, ...]:
        """The element of this instance in buffers with an element for each result."""
        return self.element({})

    def element(self, instance: Mapping[Var, Expr]) -> tuple[Expr, ...]:
        """The element of an instance in such a buffer."""
        places = [(instance.get(v.var, v.var), v.dom.min) for v in self.fixed]
        return tuple(v if as_int(low) == 0 else v - low for v, low in places) or (as_expr(0),)

    @property
    def starts_finite(self) -> bool:
        """Whether the reduction starts from a finite number."""
        identity = self.found.identity[0] if self.found else None
        return isinstance(identity, FloatImm) and isfinite(identity.value)

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(v.dom.extent for v in self.fixed) or (as_expr(1),)


def member_of(state: State, node: For) -> Member:
    """The block below a loop with the nest around it."""
    below = [r for r in blocks_of(node.body) if state.scope_block(r) is state.scope_block(node)]
    if len(below) != 1:
        text = f"{len(below)} blocks are below {node.var.name}"
        raise state.error("not-one-block", text, node)
    (realize,) = below
    block, chain = realize.block, list[For]()
    inner: Stmt = realize
    for loop in reversed(state.loops_above(realize)):
        if loop.body is not inner:
            break
        require_plain_loop(state, state.new_loop(loop.var))
        require_serial(state, loop)
        chain.insert(0, loop)
        inner = loop
    own = {loop.var for loop in chain}
    bound = [e for e in realize.iter_values if not free_vars(e).isdisjoint(own)]
    dependent = any(not own.isdisjoint(free_vars(loop.extent)) for loop in chain)
    apart = node not in chain
    plain = realize.predicate is TRUE and len(bound) == len(own) and set(bound) == own
    if apart or dependent or not plain:
        raise state.error(
            "not-plain", f"block {block.name} has a predicate, a statement between it and its "
            "loops, or a loop that is not the value of one iterator", realize,
            hint="take the step before loops are split or fused",
        )  # fmt: skip
    along = next(
        v for v, e in zip(block.iter_vars, realize.iter_values, strict=True) if e is node.var
    )
    if not isinstance(block.body, BufferStore) or block.alloc_buffers or block.match_buffers:
        text = f"block {block.name} is more than one store"
        raise state.error("no-store", text, realize, hint="decompose_outputs cuts a block")
    found = None if along.is_spatial else _reduction(state, realize, along)
    return Member(realize, tuple(chain), node, along, block.body, found)


def _reduction(state: State, realize: BlockRealize, along: IterVar) -> Reduction:
    """The reduction of a block over one axis."""
    found = match_reducer(realize.block.init, realize.block.body)
    others = [v for v in realize.block.iter_vars if not v.is_spatial and v is not along]
    if found is None or not found.commutative or others or as_int(along.dom.min) != 0:
        raise state.error(
            "no-reducer", f"block {realize.block.name} is no commutative reduction over "
            f"{along.var.name} alone that starts from its identity", realize,
            hint="known are sum, prod, min, max, and, or",
        )  # fmt: skip
    return found


def neighbours(state: State, members: list[Member]) -> list[Member]:
    """The members in program order; raises unless their nests follow each other directly."""
    if len(members) == 1:
        return members
    parents = {state.parent(m.top) for m in members}
    (parent,) = parents if len(parents) == 1 else (None,)
    if isinstance(parent, SeqStmt):
        order = {s: k for k, s in enumerate(parent.items)}
        members.sort(key=lambda m: order[m.top])
        places = [order[m.top] for m in members]
        if places == list(range(places[0], places[0] + len(places))):
            return members
    raise state.error(
        "not-consecutive", "the nests do not follow each other directly", members[0].top
    )


def uses(stmt: Stmt, buffer: Buffer) -> int:
    """How often statements load and store a buffer."""
    stores = sum(isinstance(s, BufferStore) and s.buffer is buffer for s in walk_stmts(stmt))
    exprs = (e for s in walk_stmts(stmt) for e in s.exprs)
    return stores + sum(load.buffer is buffer for e in exprs for load in loads_of(e))


def block_size(state: State, members: Sequence[Member], size: int | Expr) -> int:
    """The size of a block of the axis; raises where the loops differ in extent."""
    first, known = members[0].loop, Analyzer()
    for member in members[1:]:
        if not known.equal(first.extent, cast(first.extent.dtype, member.loop.extent)):
            raise state.error(
                "other-extent",
                f"{member.loop.var.name} and {first.var.name} have different extents",
                member.loop,
            )
    value = as_int(state.expr(size))
    if value is None or value < 1:
        raise state.error("bad-size", f"the size {size} of a block is no positive constant")
    return value


def require_own_position(state: State, member: Member, stages: Mapping[Buffer, int]) -> None:
    """Refuse a read of another position of the axis than the block's own."""
    for expr in (e for s in walk_stmts(member.block) for e in s.exprs):
        for load in loads_of(expr):
            place = stages.get(load.buffer)
            if place is not None and load.indices[place] is not member.along.var:
                raise state.error(
                    "other-position", f"block {member.block.name} reads {load.buffer.name} at "
                    f"another position of the axis than {member.along.var.name}",
                    member.realize,
                )  # fmt: skip


def is_private(state: State, members: Sequence[Member], member: Member) -> bool:
    """Whether only blocks of the pass use what a member computes, under its own name, and no loop
    around the pass goes on with it."""
    buffer = member.store.buffer
    child = state.scope(member.realize).child(member.block.token)
    if continues_reduction(child, member.chain):
        return False
    _, func = state.func_of(member.realize)
    blocks = [s for s in walk_stmts(func.body) if isinstance(s, Block)]
    if not any(buffer in block.alloc_buffers for block in blocks):
        return False
    viewed = any(m.source.buffer is buffer for block in blocks for m in block.match_buffers)
    inside = sum(uses(m.block, buffer) for m in members)
    own = {*(m.block for m in members), *state.ancestors(members[0].top)}
    declared_outside = any(
        region.buffer is buffer
        for block in blocks
        if block not in own
        for region in (*block.reads, *block.writes)
    )
    return not viewed and not declared_outside and uses(func.body, buffer) == inside
