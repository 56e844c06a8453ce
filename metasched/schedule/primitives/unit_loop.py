"""add_unit_loop: puts a loop of one iteration around a block or loop."""

from __future__ import annotations

from metasched.ir.stmt import For
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_root_free
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_loop=ways.plain(), of_block=ways.plain())
def add_unit_loop(state: State, block_or_loop: LoopRV | BlockRV | str) -> LoopRV:
    """Wrap a block or loop in a loop that runs once.

    requires  not the root block
    rewrite   S
              ->
              for u in range(1): S
    """
    if isinstance(block_or_loop, LoopRV):
        node = state.loop(block_or_loop)
        var = state.fresh_var("u", node.var.dtype)
        state.commit(edit.wrap(node, lambda s: For.serial(var, 1, s)), same_order=True)
    else:
        assert isinstance(block_or_loop, BlockRV)
        realize = require_root_free(state, block_or_loop)
        var = state.fresh_var("u")
        state.commit(edit.wrap(realize, lambda s: For.serial(var, 1, s)), same_order=True)
    return state.new_loop(var)
