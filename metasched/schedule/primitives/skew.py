"""skew: delays a loop by a multiple of a loop around it."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.errors import brief
from metasched.ir.expr import as_expr, as_int, logical_and
from metasched.ir.stmt import Break, For, ForKind, evolve
from metasched.ir.visit import free_vars
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_jumps,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.fuse import counter
from metasched.schedule.primitives.split import from_start
from metasched.schedule.rebind import ranges_of, rebind
from metasched.schedule.state import State


@primitive(of_loop=ways.with_child_and(1))
def skew(state: State, outer: LoopRV, inner: LoopRV, factor: int) -> LoopRV:
    """Count inner + factor * outer where `inner` was counted; returns the new loop.

    The new loop starts at zero and is long enough for all iterations of `outer`; a predicate leaves
    out the places before and after the old range. The iterations keep their order, so the step is
    always legal. It makes others legal: where an iteration of `outer` needs what the one before
    computed at later places of `inner`, a large enough factor lets `reorder` exchange the loops,
    and `parallel` run the one that stands inside then (loop skewing, Wolf and Lam 1991).

    requires  `outer` stands around `inner` in one block; `inner` is serial, has no annotation and
              no thread binding; `factor` is a constant; no end of `inner` uses the variable of
              `outer`, and nothing below writes what the ends of both read; no break leaves `inner`
    rewrite   for i, j in T.grid(4, 8): S(i, j)
              ->
              for i, j_skewed in T.grid(4, 11): where(i <= j_skewed < i + 8) S(i, j_skewed - i)

    With a negative factor the places move the other way.
    """
    node, around = require_plain_loop(state, inner, from_zero=False), state.loop(outer)
    _require_around(state, around, node)
    times = state.integer(factor)
    if not times:
        what = f"the factor {brief(factor)} is no integer other than zero"
        raise state.error("bad-factor", what, hint="take 1 or another constant")
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    require_steady_ends(state, [around, node])
    longest = (as_int(node.extent) or 1) + abs(times) * ((as_int(around.extent) or 1) - 1)
    dtype = counter(state, [around, node], longest)
    last, size = (around.extent - 1).astype(dtype), node.extent.astype(dtype)
    turn = (around.var - around.min).astype(dtype)
    delay = turn * times if times > 0 else (last - turn) * -times
    ranges = ranges_of(state.loops_above(node))
    var = state.fresh_var(f"{node.var.name}_skewed", dtype)
    extent = Analyzer(ranges).simplify(size + last * abs(times))
    if as_int(around.extent) == 0 or (as_int(extent) or 0) < 0:  # no iteration: nothing moves
        extent = size
    new = For(var, as_expr(0, dtype), extent, ForKind.SERIAL, node.body)
    ranges.update(ranges_of([new]))
    at = Analyzer(ranges).simplify(var - delay)
    guard = Analyzer(ranges).simplify(logical_and(at >= 0, at < size))
    body = rebind(node.body, {node.var: from_start(node, at.astype(node.var.dtype))}, ranges, guard)
    state.commit(edit.replace(node, evolve(new, body=body)))
    return state.new_loop(var)


def _require_around(state: State, outer: For, inner: For) -> None:
    """Refuse loops of which the first is not around the second, or bounds the second."""
    one, other = outer.var.name, inner.var.name
    if outer not in state.loops_above(inner):
        raise state.error(
            "not-around", f"the loop {one} does not stand around {other} in one block", inner,
            hint="give the outer loop first",
        )  # fmt: skip
    if outer.var in free_vars(inner.min) | free_vars(inner.extent):
        raise state.error(
            "dependent-extent", f"the range of {other} depends on {one}", inner,
            hint="skew a loop whose range is the same in each iteration of the outer loop",
        )  # fmt: skip
