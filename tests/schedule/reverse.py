"""A primitive in the form of a plug-in file: `reverse` runs a loop backwards."""

from __future__ import annotations

import metasched as ms
from metasched.ir.stmt import ForKind, evolve
from metasched.ir.visit import substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_independent, require_plain_loop
from metasched.schedule.state import State


@ms.primitive(of_loop=ways.plain())
def reverse(state: State, loop: ms.LoopRV) -> ms.LoopRV:
    """Run the iterations of `loop` from the last to the first.

    requires  the loop counts from zero and has no annotation; no iteration depends on another
    rewrite   for i in range(8): S(i)
              ->
              for i in range(8): S(7 - i)
    """
    node = require_plain_loop(state, loop)
    hint = "only loops whose iterations are independent can be reversed"
    require_independent(state, node, ForKind.PARALLEL, None, hint)
    var = state.fresh_var(node.var.name, node.var.dtype)
    body = substitute(node.body, {node.var: node.extent - 1 - var})
    state.commit(edit.replace(node, evolve(node, var=var, body=body)))
    return state.new_loop(var)
