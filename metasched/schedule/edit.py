"""The five edits of a tree, which copy paths: replace, insert, delete, wrap, move.

An edit maps statements of the old tree to changes. A change is a function from a node, whose parts
are already edited, to its replacement, or to None to remove the node. Several edits merge into one
mapping and are applied in one pass. So every edit of a primitive refers to the tree before the
step.
Idea: Exo's cursors (core/internal_cursors.py), with identities instead of forwarding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from metasched.errors import VerifyError
from metasched.ir.stmt import Block, BlockRealize, For, IfThenElse, SeqStmt, Stmt, seq

Change: TypeAlias = "Callable[[Stmt], Stmt | None]"
Edits: TypeAlias = "dict[Stmt, Change]"
Parents: TypeAlias = "Mapping[Stmt, Stmt | None]"


def replace(node: Stmt, new: Stmt) -> Edits:
    """Replace `node` by `new`; other edits inside `node` are lost."""
    return {node: lambda _: new}


def insert(anchor: Stmt, stmt: Stmt, *, after: bool = False) -> Edits:
    """Insert `stmt` just before (or after) `anchor`."""
    if after:
        return {anchor: lambda node: seq((node, stmt))}
    return {anchor: lambda node: seq((stmt, node))}


def delete(node: Stmt) -> Edits:
    """Delete `node`, and the loops and sequences that hold nothing else."""
    return {node: lambda _: None}


def wrap(node: Stmt, fn: Callable[[Stmt], Stmt]) -> Edits:
    """Replace `node` by `fn(node)`, with the edits inside `node` applied."""
    return {node: fn}


def move(node: Stmt, anchor: Stmt, moved: Stmt, *, after: bool = False) -> Edits:
    """Delete `node` and insert `moved`, its new form, before (or after) `anchor`."""
    return merge(delete(node), insert(anchor, moved, after=after))


def merge(*edits: Edits) -> Edits:
    """Merge several edits into one; edits of the same node are applied in the order given."""
    out: Edits = {}
    for edit in edits:
        for node, change in edit.items():
            out[node] = change if node not in out else after(out[node], change)
    return out


def after(first: Change, second: Change) -> Change:
    """The change that applies `first`, then `second`."""

    def both(node: Stmt) -> Stmt | None:
        result = first(node)
        return None if result is None else second(result)

    return both


def apply(root: Stmt, edits: Edits, parents: Parents) -> Stmt:
    """The tree after `edits`; `parents` maps each statement of the old tree to its parent.

    Only the paths from edited nodes to the root are copied. Raises VerifyError when nothing would
    be left of the root.
    """
    if len(edits) == 1:
        ((node, change),) = edits.items()
        result = _replaced(node, change(node), parents)
    else:
        touched: set[Stmt] = set()
        for node in edits:
            walk: Stmt | None = node
            while walk is not None and walk not in touched:
                touched.add(walk)
                walk = parents[walk]
        result = _apply(root, edits, touched)
    if result is None:
        raise VerifyError("an edit would leave the function without a body")
    return result


def _replaced(node: Stmt, new: Stmt | None, parents: Parents) -> Stmt | None:
    """The new root after `node` has become `new`."""
    above, same = parents[node], new is node
    while above is not None:
        if not same:
            new = _loop_over(above, new) if type(above) is For else _over(above, {node: new})
        node, above = above, parents[above]
    return node if same else new


def _loop_over(loop: For, body: Stmt | None) -> For | None:
    """The loop with another body; None without a body."""
    if body is None:
        return None
    return For(
        loop.var, loop.min, loop.extent, loop.kind, body, loop.thread, loop.annotations, loop.step
    )


def _apply(node: Stmt, edits: Edits, touched: set[Stmt]) -> Stmt | None:
    """The replacement of a statement on a path to an edit; None if the statement is removed."""
    below = {c: _apply(c, edits, touched) for c in node.stmts if c in touched}
    result = _over(node, below) if below else node
    change = edits.get(node)
    return result if result is None or change is None else change(result)


def _over(node: Stmt, below: Mapping[Stmt, Stmt | None]) -> Stmt | None:
    """`node` with the children in `below` replaced; None if no child is left."""
    if type(node) is For:
        body = below[node.body]
        return node if body is node.body else _loop_over(node, body)
    if type(node) is BlockRealize:
        block = below[node.block]
        assert block is None or isinstance(block, Block)
        return None if block is None else BlockRealize(node.iter_values, node.predicate, block)
    if type(node) is Block:
        body = below.get(node.body, node.body)
        init = node.init and below.get(node.init, node.init)
        return body and Block(
            node.name, node.iter_vars, node.reads, node.writes, body, init, node.alloc_buffers,
            node.match_buffers, node.annotations, node.token,
        )  # fmt: skip
    new = [below.get(c, c) for c in node.stmts]
    if type(node) is SeqStmt and all(type(s) is For for s in new):
        return SeqStmt(tuple(new))  # type: ignore[arg-type]
    return _with_children(node, new)


def _with_children(node: Stmt, new: list[Stmt | None]) -> Stmt | None:
    """`node` over other children; None for a branch that lost its body."""
    if isinstance(node, SeqStmt):
        kept = [s for s in new if s is not None]
        return seq(kept) if kept else None
    if isinstance(node, IfThenElse):
        orelse = new[1] if len(new) > 1 else None
        if new[0] is None:
            return None
        return IfThenElse(node.condition, new[0], orelse)
    if any(s is None for s in new):
        return None
    return node.rebuild([s for s in new if s is not None], node.exprs)
