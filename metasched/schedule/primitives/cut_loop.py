"""cut_loop: cuts the range of a loop in two at a place that loops around may determine."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.errors import brief
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, as_expr
from metasched.ir.stmt import Block, Break, For, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, free_vars, fresh_copy, substitute, transform
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


@primitive(of_loop=ways.with_loops_around)
def cut_loop(state: State, loop: LoopRV, around: LoopRV | int | Expr) -> list[LoopRV]:
    """Cut `loop` in two parts, which follow each other; returns both.

    With a number, the first part has that many iterations; a negative number counts from the end.
    With a loop around, one part has the
    iterations that run in each iteration of `around`, so its range no longer depends on `around`;
    the other part has the rest, as the triangle of a tile. If the end of `loop` grows with
    `around`, the common part comes first; if the start grows, it comes last. (Exo calls the step
    cut_loop.) The second part runs copies of the blocks.

    requires  a serial loop without annotation, thread binding and break, with no block below that
              has an init or buffers of its own; a number of iterations that the loop has; or a loop
              around it whose first iteration has the smallest end, or whose last iteration has the
              largest start; no iteration without common part; no part that is always empty
    rewrite   for i, j in T.grid(4, 4): for k in range(i + j): B(k)
              ->
              for i, j in T.grid(4, 4):
                  for k_0 in range(i): B(k_0)
                  for k_1 in range(i, i + j): B_cut(k_1)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    _refuse_reductions(state, node)
    require_steady_ends(state, [node])
    place = _common(state, node, state.loop(around)) if isinstance(around, LoopRV) else _count(
        state, node, around
    )  # fmt: skip
    known = Analyzer(ranges_of(state.loops_above(node)))
    end = Analyzer().simplify(node.min + node.extent)
    if known.equal(place, end) or known.equal(node.min, place):
        what = f"one part of {node.var.name} would always be empty"
        raise state.error("empty-part", what, node)
    parts: list[For] = []
    for number, (low, high) in enumerate(((node.min, place), (place, end))):
        var = state.fresh_var(f"{node.var.name}_{number}", node.var.dtype)
        body = substitute(node.body, {node.var: var})
        if number:
            body = _copied(state, body)
        low, extent = as_expr(low).astype(node.var.dtype), known.simplify(high - low)
        parts.append(evolve(node, var=var, min=low, extent=extent.astype(var.dtype), body=body))
    state.commit(edit.replace(node, seq(parts)), same_order=True)
    return state.new_loops([part.var for part in parts])


def _count(state: State, node: For, at: int | Expr) -> Expr:
    """The end of a first part with a given number of iterations, or with all but a number."""
    count = state.integer(at)
    known = Analyzer(ranges_of(state.loops_above(node)))
    if count is None or not known.prove(abs(count) <= node.extent):
        shown = show_expr(at) if isinstance(at, Expr) else brief(at)
        raise state.error(
            "bad-count", f"the loop {node.var.name} is not proved to have {shown} iterations", node,
        )  # fmt: skip
    start = node.min if count >= 0 else node.min + node.extent
    return Analyzer().simplify(start + count)


def _common(state: State, node: For, outer: For) -> Expr:
    """Where the iterations end, or begin, that run in each iteration of a loop around."""
    above = state.loops_above(node)
    if outer not in above:
        raise state.error(
            "not-around", f"the loop {outer.var.name} does not stand around {node.var.name}", node
        )
    known = Analyzer(ranges_of(above))
    end = Analyzer().simplify(node.min + node.extent)
    first, last = outer.min, outer.min + outer.extent - 1
    places = [
        Analyzer().simplify(substitute(bound, {outer.var: value}))
        for bound, value in ((end, first), (node.min, last))
        if outer.var in free_vars(bound)
    ] or [end]
    for place in places:
        if known.prove(node.min <= place) and known.prove(place <= end):
            return place
    raise state.error(
        "no-common-part",
        f"it is not proved that every iteration of {outer.var.name} runs the same iterations of "
        f"{node.var.name}, up to {show_expr(places[0])} or from {show_expr(places[-1])} on", node,
        hint="take a loop that adds to the end or to the start of the loop",
    )  # fmt: skip


def _refuse_reductions(state: State, node: For) -> None:
    """Refuse blocks that the second part could not continue."""
    for realize in blocks_of(node.body):
        block = realize.block
        if block.alloc_buffers or block.match_buffers:
            raise state.error("own-buffers", f"block {block.name} has buffers of its own", realize)
        if block.init is not None:
            raise state.error(
                "has-init", f"the second part would repeat the init of block {block.name}", realize,
                hint="decompose_reduction moves the init out of the loop",
            )  # fmt: skip


def _copied(state: State, body: Stmt) -> Stmt:
    """A copy of a statement, its blocks under new names."""
    taken: set[str] = set()

    def renamed(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block):
            return None
        name, n = state.fresh_block_name(f"{stmt.name}_cut"), 0
        while name in taken:
            n += 1
            name = state.fresh_block_name(f"{stmt.name}_cut_{n}")
        taken.add(name)
        return evolve(stmt, name=name)

    copy = fresh_copy(body, lambda v: state.fresh_var(v.name, v.dtype))
    return transform(copy, renamed)
