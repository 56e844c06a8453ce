"""loop_partition: cuts a loop into loops that follow each other, each over a part of its range."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from metasched.analysis.begun import without_init
from metasched.analysis.block import loop_iter_kind
from metasched.analysis.scope import Child
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import region_of
from metasched.arith.regions import block_access_regions
from metasched.errors import brief
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var, as_int
from metasched.ir.stmt import Block, BlockRealize, Break, For, IterKind, IterVar, Stmt, evolve, seq
from metasched.ir.visit import (
    blocks_of,
    free_vars,
    fresh_copy,
    stmt_vars,
    substitute,
    substitute_buffers,
    transform,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_jumps, require_serial
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.block_division import fixed_domain
from metasched.schedule.rebind import ranges_of, rebind
from metasched.schedule.state import State


@primitive(of_loop=ways.plain([1]))
def loop_partition(
    state: State,
    loop: LoopRV,
    factors: Sequence[int | Expr | None],
    preserve_unit_iters: bool = True,
) -> list[LoopRV]:
    """Cut the range of `loop` into parts of the given lengths and one part with the rest.

    One factor may be None (or -1) and gets what the other factors leave. Each part is a loop over a
    copy of the body in a block of its own (`<block>_<var><n>_partition`). One block
    (`<block>_<var>_common`) holds all parts. Returns the loops.

    requires  a serial loop of constant range without annotation, thread binding and break, with a
              block below it; positive constant factors, at most one None, together less than the
              extent; no loop that drives both spatial and reduce iterators of a block with init;
              around it no loop bound to threads that reduces a block with init
    rewrite   for i in range(8): B(i)
              ->
              B_i_common(B_i0_partition(for i0 in range(0, 2): B_i0(i0))
                         B_i1_partition(for i1 in range(2, 8): B_i1(i1)))
    """
    node = state.loop(loop)
    low, lengths = _parts(state, node, factors)
    children = state.scope(node).under(node)
    first = children[0].block.name
    used = stmt_vars(node)
    outer = [n for n in state.loops_above(node) if n.var in used]
    kinds = [_kind(state, n, children) for n in outer]
    cut = {c.block.name for c in children if reduces(c.realize, node.var)}
    prefix = f"{first}_{node.var.name}"
    taken = Names(state)
    common, own = _holder(state, taken.fresh(f"{prefix}_common"), outer, kinds)
    pieces: list[Stmt] = []
    variables: list[Var] = []
    for number, length in enumerate(lengths):
        holder, mine = _holder(state, taken.fresh(f"{prefix}{number}_partition"), outer, kinds)
        var = state.fresh_var(f"{node.var.name}{number}", node.var.dtype)
        start = IntImm(var.dtype, low)
        piece = evolve(node, var=var, min=start, extent=IntImm(var.dtype, length))
        values: dict[Var, Expr] = {**mine, node.var: var}
        body = copied(state, node, piece, values, preserve_unit_iters)
        body = _narrowed(body, [*state.loops_above(node), piece], mine)
        if number:
            _require_no_init(state, node, body, cut)
        body = renamed(body, taken, f"_{node.var.name}{number}")
        pieces.append(_realized(holder, evolve(piece, body=body), [own[n.var] for n in outer]))
        variables.append(var)
        low += length
    whole = _realized(common, seq(pieces), [n.var for n in outer])
    state.commit(edit.replace(node, whole), same_order=True)
    return state.new_loops(variables)


def _parts(state: State, node: For, factors: Sequence[int | Expr | None]) -> tuple[int, list[int]]:
    """Where the loop begins and the lengths of its parts."""
    if node.annotations or node.thread is not None:
        what = "carries annotations" if node.annotations else f"is bound to {node.thread}"
        raise state.error("marked-loop", f"the loop {node.var.name} {what}", node)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    low, extent = as_int(node.min), as_int(node.extent)
    if low is None or extent is None:
        raise state.error("symbolic-range", f"the range of {node.var.name} is not constant", node)
    lengths: list[int | None] = []
    for factor in factors:
        length = None if factor is None else state.integer(factor)
        if factor is not None and (length is None or (length < 1 and length != -1)):
            raise state.error(
                "bad-factor", f"the factor {brief(factor)} is no positive constant", node
            )
        lengths.append(None if length == -1 else length)
    if not lengths or lengths.count(None) > 1:
        raise state.error("open-factors", "give one factor or more, at most one of them None", node)
    left = extent - sum(n for n in lengths if n is not None)
    if left < 1:
        raise state.error(
            "factors-too-large", f"the factors add up to {extent - left}, not less than the extent "
            f"{extent} of {node.var.name}", node,
        )  # fmt: skip
    filled = [left if n is None else n for n in lengths]
    return low, filled if None in lengths else [*filled, left]


class Names:
    """Chooses block names that are free, and never the same name twice."""

    def __init__(self, state: State) -> None:
        self.taken = set(state.index.by_name)

    def fresh(self, name: str) -> str:
        candidate, n = name, 0
        while candidate in self.taken:
            n += 1
            candidate = f"{name}_{n}"
        self.taken.add(candidate)
        return candidate


def _holder(
    state: State, name: str, outer: Sequence[For], kinds: Sequence[IterKind]
) -> tuple[Block, dict[Var, Var]]:
    """An empty block with an iterator for each outer loop, and the map from loop to iterator."""
    iters = [
        IterVar(state.fresh_var(f"v{n.var.name}", n.var.dtype), fixed_domain(state, n), kind)
        for n, kind in zip(outer, kinds, strict=True)
    ]
    mine = {n.var: v.var for n, v in zip(outer, iters, strict=True)}
    return Block(name, tuple(iters), (), (), seq(())), mine


def _kind(state: State, loop: For, children: Sequence[Child]) -> IterKind:
    """The kind of an outer loop's iterator; opaque if an init inside runs only in the loop's
    first iteration."""
    kind = loop_iter_kind(loop, children)
    waits = kind is IterKind.REDUCE and any(c.block.init is not None for c in children)
    if waits and loop.thread is not None:
        raise state.error(
            "carried-reduction", f"the threads of {loop.var.name} share a reduction: inside a "
            "block they would have to run in order", loop,
            hint="partition before binding, or decompose_reduction first",
        )  # fmt: skip
    return IterKind.OPAQUE if waits else kind


def _realized(holder: Block, body: Stmt, values: Sequence[Expr]) -> BlockRealize:
    made = evolve(holder, body=body)
    reads, writes = block_access_regions(made)
    return BlockRealize(tuple(values), TRUE, evolve(made, reads=reads, writes=writes))


def copied(state: State, node: For, piece: For, values: dict[Var, Expr], preserve: bool) -> Stmt:
    """A copy of the loop's body over its new variable, with its own allocated buffers."""
    body = fresh_copy(node.body, lambda v: state.fresh_var(v.name, v.dtype))
    again: dict[Buffer, Buffer] = {
        b: dataclasses.replace(b, data=Var(b.name, b.data.dtype))
        for r in blocks_of(body)
        for b in (*r.block.alloc_buffers, *(m.buffer for m in r.block.match_buffers))
    }
    body = substitute_buffers(body, again) if again else body
    if preserve:
        return substitute(body, values)
    ranges = ranges_of([*state.loops_above(node), piece])
    return rebind(body, values, ranges, preserve_unit_iters=False)


def _narrowed(body: Stmt, loops: Sequence[For], mine: dict[Var, Var]) -> Stmt:
    """The body of a part, its direct blocks narrowed to the values their iterators take there."""
    ranges = {mine.get(n.var, n.var): Range(n.min, n.extent) for n in loops}
    piece = loops[-1].var

    def visit(stmt: Stmt, known: dict[Var, Range]) -> Stmt:
        if isinstance(stmt, BlockRealize):
            return _narrow(stmt, known, piece)
        if isinstance(stmt, For):
            known = {**known, stmt.var: Range(stmt.min, stmt.extent)}
        return stmt.rebuild([visit(s, known) for s in stmt.stmts], stmt.exprs)

    return visit(body, ranges)


def _narrow(realize: BlockRealize, known: dict[Var, Range], piece: Var) -> BlockRealize:
    """Narrow one block to this part; its init is removed if the reduction begins elsewhere."""
    block, analyzer = realize.block, Analyzer()
    iters: list[IterVar] = []
    begins = True
    for old, value in zip(block.iter_vars, realize.iter_values, strict=True):
        dom = old.dom
        mine = free_vars(value)
        found = region_of([value], known) if not mine or piece in mine else None
        if found is not None:
            box = found[0]
            inside = analyzer.prove(old.dom.min <= box.min) and analyzer.prove(
                box.min + box.extent <= old.dom.min + old.dom.extent
            )
            later = old.is_reduce and analyzer.prove(old.dom.min < box.min)
            begins = begins and not later
            keeps = old.is_reduce and block.init is not None and not later
            if inside and not keeps and as_int(box.min) is not None:
                dom = Range(box.min, box.extent)
        iters.append(IterVar(old.var, dom, old.kind))
    if block.init is not None and not begins:
        block = without_init(block)
    return evolve(realize, block=evolve(block, iter_vars=tuple(iters)))


def reduces(realize: BlockRealize, var: Var) -> bool:
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return any(v.is_reduce and var in free_vars(e) for v, e in pairs)


def _require_no_init(state: State, node: For, body: Stmt, cut: set[str]) -> None:
    """Refuse a later part that needs the init of a reduction which the partition cuts."""
    for realize in blocks_of(body):
        if realize.block.name in cut and realize.block.init is not None:
            raise state.error(
                "cut-reduction", f"{node.var.name} drives both spatial and reduce iterators of "
                f"{realize.block.name}: a later part would continue a reduction of an earlier "
                "part and start others", node, hint="partition before fusing",
            )  # fmt: skip


def renamed(body: Stmt, names: Names, suffix: str) -> Stmt:
    """Rename all blocks of a part."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Block):
            return evolve(stmt, name=names.fresh(f"{stmt.name}{suffix}"))
        return None

    return transform(body, on_stmt)
