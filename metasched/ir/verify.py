"""Checks that a program is well formed: one walk tracks the names in scope and asks the rules.

The rules are in `ir.verify_rules`. Tests run the check after every schedule step, so it must be
fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from metasched.errors import VerifyError
from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.canonical import Leaf, expr_code, shape_leaves
from metasched.ir.describe import context
from metasched.ir.expr import Expr, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    LetStmt,
    Stmt,
    While,
)
from metasched.ir.verify_rules import (
    BUFFERS,
    BY_KIND,
    DEFINED,
    HIDDEN,
    NESTED,
    RULES,
    Rule,
    WalkState,
)

__all__ = ["RULES", "verify"]


def verify(source: PrimFunc | IRModule, *, closed: bool = False) -> None:
    """Check every rule of `RULES` on a function or on all functions of a module.

    Args:
        source: the function or module.
        closed: whether blocks must mention no loop variables around them, and declare all buffers
            that they touch, as in every module that a schedule holds (`analysis.closing`).

    Raises:
        VerifyError: a rule is broken; the message has the rule's sentence, what is wrong, and the
            statements around; `.rule` is the rule's slug and `.node` the node.
    """
    if isinstance(source, IRModule):
        for func in source.values():
            verify(func, closed=closed)
        return
    at = WalkState(source, closed)
    _params(at, source)
    _apply(at, source)
    _visit(at, source.body)


def _params(at: WalkState, func: PrimFunc) -> None:
    at.stack.append(func)
    for param in func.params:
        at.known[param] = "parameter"
    for buffer in func.buffers:
        for leaf in shape_leaves(buffer):
            at.known.setdefault(leaf, "extent")


def _apply(at: WalkState, node: Any) -> None:
    for entry in BY_KIND.get(type(node), ()):
        for complaint in entry.check(at, node):
            raise _error(at, entry, node, complaint)


def _error(at: WalkState, entry: Rule, node: Any, complaint: str) -> VerifyError:
    above = [s for s in at.stack if s is not node]
    text = f"{complaint} [{entry.slug}: {entry.sentence}]\n{context(above, node)}"
    return VerifyError(text, rule=entry.slug, node=node)


# The walk. Each function visits one kind of node: rules first, then definitions, then parts.


def _visit(at: WalkState, stmt: Stmt) -> None:
    at.stack.append(stmt)
    if len(at.stack) > (most := sys.getrecursionlimit() // 4):
        text = f"more than {most} statements nest, each variable that is set once with what follows"
        text += "; keep values in a buffer"
        raise _error(at, NESTED, stmt, text)
    if not isinstance(stmt, Block):
        _uses(at, stmt)
    _apply(at, stmt)
    walk = _WALK.get(type(stmt))
    if walk is not None:
        walk(at, stmt)
    else:
        for sub in stmt.stmts:
            _visit(at, sub)
    at.stack.pop()


def _uses(at: WalkState, stmt: Stmt) -> None:
    """Check that all names in the statement's own expressions and fields are in scope."""
    known, hidden = at.known, at.hidden
    for expr in stmt.exprs:
        for leaf in expr_code(expr)[1]:
            if leaf not in known or (leaf in hidden and at.closed):
                raise _unknown(at, stmt, leaf)
    if isinstance(stmt, BufferStore) and stmt.buffer not in known:
        raise _unknown(at, stmt, stmt.buffer)


def _unknown(at: WalkState, node: Any, leaf: Leaf) -> VerifyError:
    if leaf in at.hidden:
        entry = HIDDEN
        text = f"{leaf.name} is a loop variable outside block {at.blocks[-1].name}"
    elif isinstance(leaf, Buffer):
        entry, text = BUFFERS, f"buffer {leaf.name} is not in scope"
    else:
        entry, text = DEFINED, f"variable {leaf.name} is not in scope"
    return _error(at, entry, node, text)


def _in_loop(at: WalkState, stmt: For | While) -> None:
    new = isinstance(stmt, For) and stmt.var not in at.known
    if isinstance(stmt, For):
        at.known[stmt.var] = "loop"
        at.bound.add(stmt.var)
    at.loops.append(stmt)
    _visit(at, stmt.body)
    at.loops.pop()
    if isinstance(stmt, For) and new:
        del at.known[stmt.var]


def _in_let(at: WalkState, stmt: LetStmt) -> None:
    at.known[stmt.var] = "let"
    at.bound.add(stmt.var)
    _visit(at, stmt.body)
    del at.known[stmt.var]


def _in_attr(at: WalkState, stmt: AttrStmt) -> None:
    launches = stmt.key in ("thread_extent", "virtual_thread") and isinstance(stmt.node, Var)
    if launches and isinstance(stmt.node, Var):
        at.known[stmt.node] = "thread"
    _visit(at, stmt.body)


def _in_allocation(at: WalkState, stmt: Allocate | DeclBuffer) -> None:
    added = _define_buffer(at, stmt.buffer, "allocation", stmt)
    _visit(at, stmt.body)
    for leaf in added:
        del at.known[leaf]


def _define_buffer(at: WalkState, buffer: Buffer, kind: str, node: Any) -> list[Leaf]:
    """Bring a buffer into scope; matched buffers define the variables of their layout."""
    added: list[Leaf] = []
    for leaf in shape_leaves(buffer):
        if leaf in at.hidden:
            raise _unknown(at, node, leaf)
        if leaf not in at.known:
            if leaf is not buffer.data and kind != "match":
                raise _unknown(at, node, leaf)
            at.known[leaf] = "layout"
            added.append(leaf)
    if buffer not in at.known:
        at.known[buffer] = kind
        added.append(buffer)
    return added


def _in_realize(at: WalkState, stmt: BlockRealize) -> None:
    block = stmt.block
    outer_hidden, outer_loops = at.hidden, at.loops
    inside = {loop.var for loop in outer_loops if isinstance(loop, For)}
    at.hidden, at.loops = outer_hidden | inside, []
    at.blocks.append(block)
    added: list[Leaf] = []
    _block_uses(at, block, [e for v in block.iter_vars for e in (v.dom.min, v.dom.extent)])
    for v in block.iter_vars:
        if v.var not in at.known:
            added.append(v.var)
        at.known[v.var] = "iterator"
    for buffer in block.alloc_buffers:
        added += _define_buffer(at, buffer, "allocation", block)
    for match in block.match_buffers:
        _region_uses(at, block, match.source)
        added += _define_buffer(at, match.buffer, "match", block)
    for region in (*block.reads, *block.writes):
        _region_uses(at, block, region)
    _visit(at, block)
    for leaf in added:
        at.known.pop(leaf, None)
    at.blocks.pop()
    at.hidden, at.loops = outer_hidden, outer_loops


def _in_block(at: WalkState, block: Block) -> None:
    at.bound.update(v.var for v in block.iter_vars)
    at.tokens.add(block.token)
    for sub in block.stmts:
        _visit(at, sub)


def _block_uses(at: WalkState, block: Block, exprs: list[Expr]) -> None:
    for expr in exprs:
        for leaf in expr_code(expr)[1]:
            if leaf not in at.known or (leaf in at.hidden and at.closed):
                raise _unknown(at, block, leaf)


def _region_uses(at: WalkState, block: Block, region: BufferRegion) -> None:
    if region.buffer not in at.known:
        raise _unknown(at, block, region.buffer)
    _block_uses(at, block, [e for r in region.region for e in (r.min, r.extent)])


_WALK: dict[type[Any], Callable[[WalkState, Any], None]] = {
    For: _in_loop, While: _in_loop, LetStmt: _in_let, AttrStmt: _in_attr,
    Allocate: _in_allocation, DeclBuffer: _in_allocation, BlockRealize: _in_realize,
    Block: _in_block,
}  # fmt: skip
