"""The content of a state: a module, an index into it, and the table of handles.

A replay runs hundreds of steps, and most steps use only a part of the content. So this file, and no
other file, defers copies and edits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from metasched.ir.expr import Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BlockToken, For, Stmt
from metasched.schedule import edit
from metasched.schedule.handles import RV
from metasched.schedule.selfcheck import check_index, check_module

Pending: TypeAlias = "Mapping[Any, tuple[For | Block, edit.Change]]"
"""Deferred relabelling, by variable or token: the loop (or block) with its new kind and
annotations, and the edit that will put it into the tree. Its children may be out of date."""


class Index:
    """The index of a module: node -> parent, loop variable -> loop, token -> block.

    It is built by one walk; an edit updates it from the paths that the edit copied.
    """

    __slots__ = ("_by_name", "blocks", "func_of", "loops", "parent")

    def __init__(self, mod: IRModule) -> None:
        self.parent: dict[Stmt, Stmt | None] = {}
        self.loops: dict[Var, For] = {}
        self.blocks: dict[BlockToken, BlockRealize] = {}
        self.func_of: dict[Stmt, str] = {}
        self._by_name: dict[str, list[BlockRealize]] | None = None
        for name, func in mod.functions.items():
            self.func_of[func.body] = name
            self._add(func.body, None)

    @property
    def by_name(self) -> dict[str, list[BlockRealize]]:
        """The blocks by their names."""
        if self._by_name is None:
            self._by_name = {}
            for node in self.blocks.values():
                self._by_name.setdefault(node.block.name, []).append(node)
        return self._by_name

    def copy(self) -> Index:
        """A copy that can be updated independently."""
        other = Index.__new__(Index)
        other.parent, other.loops = self.parent.copy(), self.loops.copy()
        other.blocks, other.func_of = self.blocks.copy(), self.func_of.copy()
        other._by_name = None
        return other

    def carry_on(self, name: str, old: Stmt, new: Stmt) -> None:
        """Update the index for a function whose body `old` has become `new`. Shared subtrees stay,
        so the cost is proportional to the paths that the edit copied."""
        self._by_name = None
        del self.func_of[old]
        self.func_of[new] = name
        kept = self._add(new, None)
        parent, loops, stack = self.parent, self.loops, [old]
        while stack:
            node = stack.pop()
            while type(node) is For and node not in kept:
                del parent[node]
                if loops[node.var] is node:
                    del loops[node.var]
                node = node.body
            if node in kept:
                continue
            parent.pop(node, None)  # the same leaf may stand in two places
            if type(node) is BlockRealize and self.blocks[node.block.token] is node:
                del self.blocks[node.block.token]
            stack.extend(node.stmts)

    def _add(self, body: Stmt, above: Stmt | None) -> set[Stmt]:
        """Enter a body in the index; returns the topmost statements that the index already
        holds, whose subtrees are not walked again."""
        parent, loops, stack = self.parent, self.loops, [(body, above)]
        kept: set[Stmt] = set()
        while stack:
            node, above = stack.pop()
            while type(node) is For and node not in parent:  # fast path: most nodes are loops
                parent[node], loops[node.var] = above, node
                node, above = node.body, node
            if node in parent:
                kept.add(node)
                parent[node] = above
                continue
            parent[node] = above
            if type(node) is BlockRealize:
                self.blocks[node.block.token] = node
            stack.extend([(child, node) for child in reversed(node.stmts)])
        return kept


class Content:
    """Module, index and table, with the work that is deferred.

    Three things are deferred, each until it is needed:

    - new kinds and annotations (`defer_relabelling`) enter the tree when module or index are read;
    - the index is built at its first use, and updated by later edits;
    - an index or table that a snapshot or copy shares (it is *lent*) is copied before it is changed
      here. A lent object is never changed.

    Invariant: the module plus the pending relabelling is the result of all steps so far; the index,
    if there is one, describes the module without the pending relabelling.
    """

    __slots__ = ("_index", "_index_lent", "_mod", "_pending", "_table_lent", "check", "table")

    def __init__(self, mod: IRModule, check: bool) -> None:
        self._mod = mod
        self._pending: Pending = {}
        self._index: Index | None = None
        self._index_lent = False
        self.table: dict[RV, Any] = {}
        self._table_lent = False
        self.check = check

    # -- looking ---------------------------------------------------------------------------------

    @property
    def mod(self) -> IRModule:
        """The module as it stands."""
        if self._pending:
            self.apply_pending()
        return self._mod

    @property
    def index(self) -> Index:
        """The index of the module, after pending changes."""
        if self._pending:
            self.apply_pending()
        if self._index is None:
            self._index, self._index_lent = Index(self._mod), False
        return self._index

    def before_pending(self) -> Index:
        """The index of the tree without pending relabelling, for callers that need positions
        only."""
        if self._index is None:
            self._index, self._index_lent = Index(self._mod), False
        return self._index

    def relabelled(self, key: Var | BlockToken) -> For | Block | None:
        """The loop or block of a variable or token, if a relabelling of it is pending; else
        None."""
        found = self._pending.get(key)
        return None if found is None else found[0]

    # -- sharing ---------------------------------------------------------------------------------

    def lend(self) -> Content:
        """A copy; later changes of either do not affect the other."""
        self._table_lent = self._index_lent = True
        other = Content.__new__(Content)
        for name in Content.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def saved(self, *, index: bool) -> tuple[IRModule, Index | None, dict[RV, Any], Pending]:
        """The arguments of `go_back`, with the index if `index` says so."""
        self._table_lent = True
        if index:  # nodes of the index are compared by identity
            self.apply_pending()
            self._index_lent = True
        return self._mod, self._index if index else None, self.table, self._pending

    def go_back(self, mod: IRModule, index: Index | None, pending: Pending) -> None:
        """Restore a saved module."""
        if self._mod is not mod:  # otherwise the index is still valid
            self._mod, self._index, self._index_lent = mod, index, True
        self._pending = pending

    def use_table(self, table: dict[RV, Any]) -> None:
        """Restore a saved table."""
        self.table, self._table_lent = table, True

    def writable_table(self) -> dict[RV, Any]:
        """The table as an unshared object, for entering or removing handles."""
        if self._table_lent:
            self.table, self._table_lent = self.table.copy(), False
        return self.table

    # -- changing --------------------------------------------------------------------------------

    def defer_relabelling(self, node: For | Block, change: Callable[[Stmt], For | Block]) -> None:
        """Note a new kind or new annotations; `apply_pending` enters them into the tree."""
        key = node.var if isinstance(node, For) else node.token
        known = self._pending.get(key)
        whole = change if known is None else edit.after(known[1], change)
        self._pending = {**self._pending, key: (change(node), whole)}

    def apply_pending(self) -> None:
        """Apply the pending changes of labels to the tree."""
        pending, self._pending = self._pending, {}
        if pending:
            loops, blocks = self.index.loops, self.index.blocks
            at = {k: loops[k] if isinstance(k, Var) else blocks[k].block for k in pending}
            self.commit({at[k]: change for k, (_, change) in pending.items()})

    def commit(self, *edits: edit.Edits) -> None:
        """Apply edits, all stated in terms of the present tree."""
        merged = edit.merge(*edits)
        name, func = self.func_of(next(iter(merged)))
        body = edit.apply(func.body, merged, self.index.parent)
        self.set_func(name, func.with_body(body))

    def func_of(self, node: Stmt) -> tuple[str, PrimFunc]:
        """Name and body of the function that holds `node`."""
        if len(self.mod.functions) == 1:
            return next(iter(self.mod.functions.items()))
        parent, top = self.index.parent, node
        while (above := parent[top]) is not None:
            top = above
        name = self.index.func_of[top]
        return name, self.mod[name]

    def set_func(self, name: str, func: PrimFunc) -> None:
        """Replace the function called `name`."""
        old = self.mod[name].body
        self._mod = self.mod.with_func(name, func)
        if self._index is not None:
            if self._index_lent:
                self._index, self._index_lent = self._index.copy(), False
            self._index.carry_on(name, old, func.body)
        if self.check:
            check_module(self.mod)
            check_index(self.index, Index(self.mod))
