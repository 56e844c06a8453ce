"""delay: starts a loop some iterations later, so that `merge` can run it behind another loop."""

from __future__ import annotations

from metasched.arith.analyzer import Analyzer
from metasched.errors import brief
from metasched.ir.expr import as_expr, as_int, logical_and
from metasched.ir.stmt import Break, For, ForKind, evolve
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


@primitive(of_loop=ways.plain(1, 1))
def delay(state: State, loop: LoopRV, before: int, after: int = 0) -> LoopRV:
    """Put iterations without work before and after those of `loop`; returns the new loop.

    The new loop starts at zero; a predicate leaves out the new iterations. The others keep their
    order, so the step is always legal. It makes others legal: where a loop needs what the loop
    before it computes in later iterations, `merge` accepts both once the second is delayed and the
    first has as many iterations `after` (loop shifting before fusion, Darte and Huard 2000).

    requires  the loop is serial, has no annotation and no thread binding; `before` and `after` are
              constants, none negative; nothing below writes what the loop's ends read, and no
              break leaves the loop
    rewrite   for i in range(8): S(i)
              ->
              for i_delayed in range(10): where(2 <= i_delayed) S(i_delayed - 2)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    start, rest = state.integer(before), state.integer(after)
    for count, given in ((start, before), (rest, after)):
        if count is None or count < 0:
            what = f"{brief(given)} is no number of iterations to add"
            raise state.error("bad-count", what, hint="take 0 or a larger constant")
    assert start is not None and rest is not None
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    require_steady_ends(state, [node])
    dtype = counter(state, [node], (as_int(node.extent) or 1) + start + rest)
    size = node.extent.astype(dtype)
    ranges = ranges_of(state.loops_above(node))
    var = state.fresh_var(f"{node.var.name}_delayed", dtype)
    extent = Analyzer(ranges).simplify(size + (start + rest))
    new = For(var, as_expr(0, dtype), extent, ForKind.SERIAL, node.body)
    ranges.update(ranges_of([new]))
    at = Analyzer(ranges).simplify(var - start)
    guard = Analyzer(ranges).simplify(logical_and(at >= 0, at < size))
    body = rebind(node.body, {node.var: from_start(node, at.astype(node.var.dtype))}, ranges, guard)
    state.commit(edit.replace(node, evolve(new, body=body)))
    return state.new_loop(var)
