"""Queries that find blocks and loops; they change nothing but are recorded, so traces replay."""

from __future__ import annotations

import re

from metasched.analysis.block import is_output
from metasched.errors import brief
from metasched.ir.stmt import Block, BlockRealize
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(pure=True)
def get_block(state: State, name: str, func_name: str | None = None) -> BlockRV:
    """The block called `name` in the function worked on (or `func_name`).

    requires  exactly one block of that name
    """
    func = func_name or state.working_func()
    if func not in state.mod.functions:
        known = ", ".join(state.mod.functions)
        raise state.error("no-function", f"no function {brief(func)}; there are {known}")
    found = [r for r in state.index.by_name.get(name, []) if state.func_of(r)[0] == func]
    if len(found) == 1:
        return state.new_block(found[0].block.token)
    if not found:
        names = [r.block.name for r in blocks_of(state.mod[func].body)]
        meant = [n for n in names if re.fullmatch(rf"{re.escape(str(name))}_\d+", n)]
        raise state.error(
            "no-such-block", f"no block is called {brief(name)}; there are {', '.join(names)}",
            state.mod[func].body,
            hint="a schedule numbers the blocks that share a name in the script: "
            + ", ".join(meant) if meant else "",
        )  # fmt: skip
    raise state.error(
        "ambiguous-block", f"{len(found)} blocks are called {name!r}", found[1],
        hint="a primitive that makes a block names it by `state.fresh_block_name`",
    )  # fmt: skip


@primitive(pure=True)
def get_loops(state: State, block: BlockLike) -> list[LoopRV]:
    """The loops between a block and the block around it, outermost first."""
    assert isinstance(block, BlockRV)
    return state.new_loops([loop.var for loop in state.loops_above(state.block(block))])


@primitive(pure=True)
def get_child_blocks(state: State, block_or_loop: BlockRV | LoopRV | str) -> list[BlockRV]:
    """The blocks directly under a block or loop, in program order."""
    if isinstance(block_or_loop, BlockRV):
        body = state.block(block_or_loop).block
        top = [body.init, body.body] if body.init is not None else [body.body]
    else:
        assert isinstance(block_or_loop, LoopRV)
        top = [state.loop(block_or_loop).body]
    found: list[BlockRealize] = []
    stack = list(reversed(top))
    while stack:
        node = stack.pop()
        if isinstance(node, BlockRealize):
            found.append(node)
        else:
            stack.extend(reversed(node.stmts))
    return [state.new_block(r.block.token) for r in found]


@primitive(pure=True)
def get_producers(state: State, block: BlockLike) -> list[BlockRV]:
    """The sibling blocks whose results this block reads or overwrites."""
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    found = state.scope(realize).producers(realize.block.token)
    return [state.new_block(child.token) for child in found]


@primitive(pure=True)
def get_consumers(state: State, block: BlockLike) -> list[BlockRV]:
    """The sibling blocks that read or overwrite this block's results."""
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    found = state.scope(realize).consumers(realize.block.token)
    return [state.new_block(child.token) for child in found]


@primitive(pure=True)
def get_output_blocks(state: State, scope_block: BlockLike) -> list[BlockRV]:
    """The blocks under a block that write a buffer not allocated in the block around them."""
    assert isinstance(scope_block, BlockRV)
    top = state.block(scope_block)
    out = []
    for realize in blocks_of(top.block.body):
        around = state.scope_block(realize)
        if isinstance(around, Block) and is_output(around, realize.block):
            out.append(state.new_block(realize.block.token))
    return out
