"""join_loops: makes one loop of two loops that follow each other and run the same steps."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Range
from metasched.ir.equal import structural_equal
from metasched.ir.expr import Expr, Var, maximum, minimum
from metasched.ir.stmt import Block, BlockRealize, Break, For, IterVar, SeqStmt, Stmt, evolve
from metasched.ir.visit import substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_jumps,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.with_sibling)
def join_loops(state: State, first: LoopRV, second: LoopRV) -> LoopRV:
    """Make one loop of two; the inverse of `cut_loop` (Exo calls the step join_loops).

    The blocks below `second` go away; those below `first` run its iterations too. Returns the loop.

    requires  two serial loops without annotation, thread binding and break, the second directly
              after the first, which begins where the first ends; below each, the same loops around
              one block each, equal but for names and for the domains of iterators
    rewrite   for i: for j: B(j); for j: B_1(j)
              ->
              for i: for j in range(8): B(j)
    """
    nodes = [require_plain_loop(state, rv, from_zero=False) for rv in (first, second)]
    for node in nodes:
        require_serial(state, node)
        refuse_jumps(state, node, Break)
    one, two = nodes
    parent = state.parent(one)
    items = parent.items if isinstance(parent, SeqStmt) else ()
    if two not in items or items.index(two) != items.index(one) + 1:
        text = f"the loop {two.var.name} does not directly follow {one.var.name}"
        raise state.error("not-siblings", text, two)
    require_steady_ends(state, nodes)
    known = Analyzer(ranges_of(state.loops_above(one)))
    if not known.equal(one.min + one.extent, two.min):
        raise state.error(
            "not-adjacent", f"{two.var.name} is not proved to begin where {one.var.name} ends", two,
            hint="join loops that cut_loop could have made",
        )  # fmt: skip
    body = _joined(state, one.body, substitute(two.body, {two.var: one.var}), two)
    extent = known.simplify(two.min + two.extent - one.min).astype(one.var.dtype)
    state.commit(edit.replace(one, evolve(one, extent=extent, body=body)), edit.delete(two))
    return state.new_loop(one.var)


def _joined(state: State, one: Stmt, two: Stmt, node: For) -> Stmt:
    """A statement for the iterations of two loops; both must do the same."""
    if isinstance(one, For) and isinstance(two, For):
        plain = one.kind is two.kind and one.annotations == two.annotations == {}
        if plain and one.min is two.min and one.extent is two.extent and one.step is two.step:
            inner = substitute(two.body, {two.var: one.var})
            return evolve(one, body=_joined(state, one.body, inner, node))
    if isinstance(one, BlockRealize) and isinstance(two, BlockRealize):
        iters = _iters(one.block, two.block)
        if iters is not None:
            blocks = [evolve(b.block, name="", iter_vars=iters) for b in (one, two)]
            mine: dict[Var, Expr] = dict(
                zip((v.var for v in two.block.iter_vars),
                    (v.var for v in one.block.iter_vars), strict=True)
            )  # fmt: skip
            pairs = (_bare(blocks[0], {}), _bare(blocks[1], mine))
            same = one.iter_values == two.iter_values and one.predicate is two.predicate
            if same and structural_equal(*pairs):
                made = evolve(one.block, iter_vars=iters)
                reads, writes = block_access_regions(made)
                made = evolve(made, reads=tuple(reads), writes=tuple(writes))
                return evolve(one, block=made)
    raise state.error(
        "not-equal", f"the loops to join do not run the same steps below {node.var.name}", node,
        hint="only loops whose blocks differ in their names can become one loop",
    )  # fmt: skip


def _bare(block: Block, mine: dict[Var, Expr]) -> Stmt:
    """A block without its name, and without regions, which its body gives."""
    body = substitute(block.body, mine) if mine else block.body
    init = block.init and (substitute(block.init, mine) if mine else block.init)
    return Block(
        "", block.iter_vars, (), (), body, init, block.alloc_buffers, block.match_buffers,
        block.annotations,
    )  # fmt: skip


def _iters(one: Block, two: Block) -> tuple[IterVar, ...] | None:
    """The iterators of the joined block, whose domains hold those of both; None if they differ."""
    if len(one.iter_vars) != len(two.iter_vars) or one.init is not None or two.init is not None:
        return None
    found = []
    for a, b in zip(one.iter_vars, two.iter_vars, strict=True):
        if a.kind is not b.kind or a.var.dtype != b.var.dtype:
            return None
        low = Analyzer().simplify(minimum(a.dom.min, b.dom.min))
        ends = (a.dom.min + a.dom.extent, b.dom.min + b.dom.extent)
        extent = Analyzer().simplify(maximum(*ends) - low)
        found.append(IterVar(a.var, Range(low, extent), a.kind))
    return tuple(found)
