"""cut_loop: cuts the range of a loop in two at a place that loops around may determine."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.ir.describe import show_expr
from metasched.ir.expr import as_expr
from metasched.ir.stmt import Block, Break, For, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, fresh_copy, substitute, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_jumps, require_plain_loop, require_serial
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.with_loops_around)
def cut_loop(state: State, loop: LoopRV, around: LoopRV) -> list[LoopRV]:
    """Cut `loop` at the first value of its end over all iterations of `around`; returns both parts.

    The end of `loop` grows with `around`, as in a triangle. The first part has the iterations that
    run in each iteration of `around`, so its range no longer depends on `around`; the second part
    has the rest. (Exo calls the step cut_loop.) The second part runs copies of the blocks.

    requires  a serial loop without annotation, thread binding and break, with no block below that
              has an init or buffers of its own; `around` stands around it, and its first iteration
              has the smallest end of `loop`; the start of `loop` is never above this end;
              no part that is always empty
    rewrite   for i, j in T.grid(4, 4): for k in range(i + j): B(k)
              ->
              for i, j in T.grid(4, 4):
                  for k_0 in range(i): B(k_0)
                  for k_1 in range(i, i + j): B_cut(k_1)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    outer = state.loop(around)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    above = state.loops_above(node)
    if outer not in above:
        raise state.error(
            "not-around", f"the loop {outer.var.name} does not stand around {node.var.name}", node
        )
    _refuse_reductions(state, node)
    end = node.min + node.extent
    place = Analyzer().simplify(substitute(end, {outer.var: outer.min}))
    known = Analyzer(ranges_of(above))
    for low, high, what in ((node.min, place, "starts after"), (place, end, "ends before")):
        if not known.prove(low <= high):
            raise state.error(
                "no-common-part",
                f"it is not proved that no iteration of {outer.var.name} {what} "
                f"{show_expr(place)}, where {node.var.name} would be cut",
                node,
                hint="take a loop that adds to the end of the loop",
            )
    if known.equal(place, end) or known.equal(node.min, place):
        what = f"one part of {node.var.name} would always be empty"
        raise state.error("empty-part", what, node)
    parts: list[For] = []
    for number, (low, high) in enumerate(((node.min, place), (place, end))):
        var = state.fresh_var(f"{node.var.name}_{number}", node.var.dtype)
        body = substitute(node.body, {node.var: var})
        if number:
            body = _copied(state, body)
        extent = known.simplify(high - low).astype(node.var.dtype)
        parts.append(evolve(node, var=var, min=as_expr(low), extent=extent, body=body))
    state.commit(edit.replace(node, seq(parts)))
    return state.new_loops([part.var for part in parts])


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
