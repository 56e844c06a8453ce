"""Whether a program is well formed: one walk that keeps what is in scope and asks the rules.

The rules are in `ir.verify_rules`. It runs after every schedule step in tests, so it must stay
within a few milliseconds.
"""

from __future__ import annotations

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
from metasched.ir.verify_rules import BUFFERS, BY_KIND, DEFINED, HIDDEN, RULES, Rule, Scope

__all__ = ["RULES", "verify"]


def verify(source: PrimFunc | IRModule, *, closed: bool = False) -> None:
    """Check every rule of `RULES` on a function or on all functions of a module.

    Args:
        closed: demand that blocks mention no loop variables around them and declare all buffers
            that they touch, as in every module that a schedule holds (`analysis.closing`).

    Raises:
        VerifyError: a rule is broken; the message has the rule's sentence, what is wrong, and the
            statements around; `.rule` is the rule's slug and `.node` the node.
    """
    if isinstance(source, IRModule):
        for func in source.values():
            verify(func, closed=closed)
        return
    scope = Scope(source, closed)
    _params(scope, source)
    _apply(scope, source)
    _visit(scope, source.body)


def _params(scope: Scope, func: PrimFunc) -> None:
    scope.stack.append(func)
    for param in func.params:
        scope.known[param] = "parameter"
    for buffer in func.buffers:
        for leaf in shape_leaves(buffer):
            scope.known.setdefault(leaf, "extent")


def _apply(scope: Scope, node: Any) -> None:
    for entry in BY_KIND.get(type(node), ()):
        for complaint in entry.check(scope, node):
            raise _error(scope, entry, node, complaint)


def _error(scope: Scope, entry: Rule, node: Any, complaint: str) -> VerifyError:
    above = [s for s in scope.stack if s is not node]
    text = f"{complaint} [{entry.slug}: {entry.sentence}]\n{context(above, node)}"
    return VerifyError(text, rule=entry.slug, node=node)


# The walk. Each function visits one kind of node: rules first, then definitions, then parts.


def _visit(scope: Scope, stmt: Stmt) -> None:
    scope.stack.append(stmt)
    if not isinstance(stmt, Block):
        _uses(scope, stmt)
    _apply(scope, stmt)
    walk = _WALK.get(type(stmt))
    if walk is not None:
        walk(scope, stmt)
    else:
        for sub in stmt.stmts:
            _visit(scope, sub)
    scope.stack.pop()


def _uses(scope: Scope, stmt: Stmt) -> None:
    """Everything that the statement's own expressions and fields mention is in scope."""
    known, hidden = scope.known, scope.hidden
    for expr in stmt.exprs:
        for leaf in expr_code(expr)[1]:
            if leaf not in known or (leaf in hidden and scope.closed):
                raise _unknown(scope, stmt, leaf)
    if isinstance(stmt, BufferStore) and stmt.buffer not in known:
        raise _unknown(scope, stmt, stmt.buffer)


def _unknown(scope: Scope, node: Any, leaf: Leaf) -> VerifyError:
    if leaf in scope.hidden:
        entry = HIDDEN
        text = f"{leaf.name} is a loop variable outside block {scope.blocks[-1].name}"
    elif isinstance(leaf, Buffer):
        entry, text = BUFFERS, f"buffer {leaf.name} is not in scope"
    else:
        entry, text = DEFINED, f"variable {leaf.name} is not in scope"
    return _error(scope, entry, node, text)


def _in_loop(scope: Scope, stmt: For | While) -> None:
    new = isinstance(stmt, For) and stmt.var not in scope.known
    if isinstance(stmt, For):
        scope.known[stmt.var] = "loop"
        scope.bound.add(stmt.var)
    scope.loops.append(stmt)
    _visit(scope, stmt.body)
    scope.loops.pop()
    if isinstance(stmt, For) and new:
        del scope.known[stmt.var]


def _in_let(scope: Scope, stmt: LetStmt) -> None:
    scope.known[stmt.var] = "let"
    scope.bound.add(stmt.var)
    _visit(scope, stmt.body)
    del scope.known[stmt.var]


def _in_attr(scope: Scope, stmt: AttrStmt) -> None:
    launches = stmt.key in ("thread_extent", "virtual_thread") and isinstance(stmt.node, Var)
    if launches and isinstance(stmt.node, Var):
        scope.known[stmt.node] = "thread"
    _visit(scope, stmt.body)


def _in_allocation(scope: Scope, stmt: Allocate | DeclBuffer) -> None:
    added = _define_buffer(scope, stmt.buffer, "allocation", stmt)
    _visit(scope, stmt.body)
    for leaf in added:
        del scope.known[leaf]


def _define_buffer(scope: Scope, buffer: Buffer, kind: str, node: Any) -> list[Leaf]:
    """Bring a buffer into scope; matched buffers define the variables of their layout."""
    added: list[Leaf] = []
    for leaf in shape_leaves(buffer):
        if leaf in scope.hidden:
            raise _unknown(scope, node, leaf)
        if leaf not in scope.known:
            if leaf is not buffer.data and kind != "match":
                raise _unknown(scope, node, leaf)
            scope.known[leaf] = "layout"
            added.append(leaf)
    if buffer not in scope.known:
        scope.known[buffer] = kind
        added.append(buffer)
    return added


def _in_realize(scope: Scope, stmt: BlockRealize) -> None:
    block = stmt.block
    outer_hidden, outer_loops = scope.hidden, scope.loops
    inside = {loop.var for loop in outer_loops if isinstance(loop, For)}
    scope.hidden, scope.loops = outer_hidden | inside, []
    scope.blocks.append(block)
    added: list[Leaf] = []
    _block_uses(scope, block, [e for v in block.iter_vars for e in (v.dom.min, v.dom.extent)])
    for v in block.iter_vars:
        if v.var not in scope.known:
            added.append(v.var)
        scope.known[v.var] = "iterator"
    for buffer in block.alloc_buffers:
        added += _define_buffer(scope, buffer, "allocation", block)
    for match in block.match_buffers:
        _region_uses(scope, block, match.source)
        added += _define_buffer(scope, match.buffer, "match", block)
    for region in (*block.reads, *block.writes):
        _region_uses(scope, block, region)
    _visit(scope, block)
    for leaf in added:
        scope.known.pop(leaf, None)
    scope.blocks.pop()
    scope.hidden, scope.loops = outer_hidden, outer_loops


def _in_block(scope: Scope, block: Block) -> None:
    scope.bound.update(v.var for v in block.iter_vars)
    scope.tokens.add(block.token)
    for sub in block.stmts:
        _visit(scope, sub)


def _block_uses(scope: Scope, block: Block, exprs: list[Expr]) -> None:
    for expr in exprs:
        for leaf in expr_code(expr)[1]:
            if leaf not in scope.known or (leaf in scope.hidden and scope.closed):
                raise _unknown(scope, block, leaf)


def _region_uses(scope: Scope, block: Block, region: BufferRegion) -> None:
    if region.buffer not in scope.known:
        raise _unknown(scope, block, region.buffer)
    _block_uses(scope, block, [e for r in region.region for e in (r.min, r.extent)])


_WALK: dict[type[Any], Callable[[Scope, Any], None]] = {
    For: _in_loop, While: _in_loop, LetStmt: _in_let, AttrStmt: _in_attr,
    Allocate: _in_allocation, DeclBuffer: _in_allocation, BlockRealize: _in_realize,
    Block: _in_block,
}  # fmt: skip
