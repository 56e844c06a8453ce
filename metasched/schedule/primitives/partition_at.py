"""partition_at: cuts a loop before and after the iteration that a loop around it counts."""

from __future__ import annotations

from itertools import pairwise

from metasched.arith.analyzer import Analyzer
from metasched.errors import brief
from metasched.ir.expr import Expr, as_expr, maximum, minimum
from metasched.ir.stmt import Break, For, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_jumps,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.loop_partition import Names, copied, reduces, renamed
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.with_child_and(0))
def partition_at(state: State, outer: LoopRV, inner: LoopRV, offset: int) -> list[LoopRV]:
    """Cut the loop `inner` where it counts `outer + offset`; returns the three loops.

    The first loop runs the iterations before this number, the second loop this iteration, the third
    loop those after it (index-set splitting, Griebl, Feautrier and Lengauer 2000). The iterations
    keep their order, so the step is always legal. It makes others legal: in an elimination or a
    search for shortest paths, all iterations read row k, which only iteration k writes; without
    iteration k, the loop can run in parallel.

    requires  `outer` stands around `inner` in one block; `inner` is serial, has no annotation and
              no thread binding, and drives no reduction with an init; `offset` is a constant;
              nothing below writes what the ends of `inner` read; no break leaves `inner`
    rewrite   for k, i in T.grid(8, 8): S(k, i)
              ->
              for k in range(8):
                  for i_0 in range(k): S(k, i_0)
                  for i_1 in range(k, k + 1): S_i1(k, i_1)
                  for i_2: S_i2(k, i_2)
    """
    node, around = require_plain_loop(state, inner, from_zero=False), state.loop(outer)
    if around not in state.loops_above(node):
        raise state.error(
            "not-around",
            f"the loop {around.var.name} does not stand around {node.var.name} in one block", node,
            hint="give the outer loop first",
        )  # fmt: skip
    more = state.integer(offset)
    if more is None:
        raise state.error("bad-offset", f"the offset {brief(offset)} is no constant", node)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    require_steady_ends(state, [node])
    for realize in blocks_of(node.body):
        if realize.block.init is not None and reduces(realize, node.var):
            raise state.error(
                "cut-reduction", f"{node.var.name} drives the reduction {realize.block.name}, "
                "whose init belongs to its first part alone", node,
                hint="decompose_reduction gives the init loops of its own",
            )  # fmt: skip
    ends = _ends(state, node, around, more)
    names, variables, parts = Names(state), [], []
    for number, (low, high) in enumerate(pairwise(ends)):
        var = state.fresh_var(f"{node.var.name}_{number}", node.var.dtype)
        extent = Analyzer(ranges_of(state.loops_above(node))).simplify(high - low)
        part = evolve(node, var=var, min=low, extent=extent)
        body: Stmt = substitute(node.body, {node.var: var})
        if number:
            body = copied(state, node, part, {node.var: var}, True)
            body = renamed(body, names, f"_{node.var.name}{number}")
        parts.append(evolve(part, body=body))
        variables.append(var)
    state.commit(edit.replace(node, seq(parts)), same_order=True)
    return state.new_loops(variables)


def _ends(state: State, node: For, around: For, offset: int) -> list[Expr]:
    """Where the three loops begin, and where the last loop ends."""
    analyzer = Analyzer(ranges_of(state.loops_above(node)))
    low, high = node.min, node.min + node.extent
    at = around.var.astype(node.var.dtype) + as_expr(offset, node.var.dtype)

    def within(point: Expr) -> Expr:
        """A point, or the nearer end of the loop; what is proved is not computed."""
        if not analyzer.prove(point >= low):
            point = maximum(point, low)
        return point if analyzer.prove(point <= high) else minimum(point, high)

    points = [low, within(at), within(at + as_expr(1, node.var.dtype)), high]
    return [analyzer.simplify(p) for p in points]
