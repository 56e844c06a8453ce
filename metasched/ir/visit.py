"""The traversals of programs: walk, transform, substitute. No other file walks the tree by hand.

A transformation returns a node with unchanged parts as the same object. Expressions are traversed
with an explicit stack, because sums of thousands of terms are legal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar, overload

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import Expr, Let, Var
from metasched.ir.func import PrimFunc
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    Block,
    BlockRealize,
    BlockToken,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Stmt,
    While,
    evolve,
    fact,
)
from metasched.ir.variables import free_vars as free_vars

_LISTS = 8  # the most lists of conditions under which `walk_under` visits a part then
T = TypeVar("T")
ExprFn = Callable[[Expr], "Expr | None"]
StmtFn = Callable[[Stmt], "Stmt | None"]


def walk_exprs(expr: Expr) -> Iterator[Expr]:
    """Every distinct sub-expression once, parents before children."""
    seen = {expr}
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        for child in reversed(node.children):
            if child not in seen:
                seen.add(child)
                stack.append(child)


def walk_value(expr: Expr) -> Iterator[Expr]:
    """Every distinct sub-expression once, without those in the indices of loads."""
    seen = {expr}
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, BufferLoad):
            new = [child for child in node.children if child not in seen]
            seen.update(new)
            stack += new


def walk_under(
    expr: Expr,
    known: tuple[T, ...],
    parts: Callable[[Expr], Iterable[tuple[Expr, tuple[T, ...]]]],
    *,
    widened: bool = True,
) -> Iterator[tuple[Expr, tuple[T, ...]]]:
    """Every distinct sub-expression with each list of what is known where it is evaluated.

    Shared parts may be reached in a number of ways that is exponential in the depth. In a large
    expression, a part that is reached with over 8 lists is visited with the first 8, then with
    `known` alone.

    Args:
        expr: the expression.
        known: what is known where the expression is evaluated, as conditions.
        parts: the parts of a node in order, each with what is known there in addition.
        widened: whether to visit a part with `known` alone; if not, further lists are left out.
    """
    lists: dict[Expr, set[tuple[T, ...]]] = {}
    large = tree_size(expr) > LARGE
    stack = [(expr, known)]
    while stack:
        node, here = stack.pop()
        seen = lists.setdefault(node, set())
        if large and len(seen) >= _LISTS:
            here = known
            if not widened:
                continue
        if here in seen:
            continue
        seen.add(here)
        yield node, here
        stack += [(part, here + more) for part, more in reversed([*parts(node)])]


def walk_unseen(
    expr: Expr,
    known: tuple[T, ...],
    parts: Callable[[Expr], Iterable[tuple[Expr, tuple[T, ...]]]],
    seen: set[Expr],
) -> Iterator[tuple[Expr, tuple[T, ...]]]:
    """`walk_under` without what earlier walks with the same `known` visited.

    Statements whose variables are replaced by values share large parts. A part that was visited
    with `known` alone needs no visit with more conditions.

    Args:
        seen: what the walks visited with `known` alone; this walk adds its own.
    """
    new = []
    for node, here in walk_under(expr, known, lambda part: () if part in seen else parts(part)):
        if node not in seen:
            yield node, here
        if here == known:
            new.append(node)
    seen.update(new)


def shared_parts(exprs: Sequence[Expr]) -> list[Expr]:
    """The parts that occur twice or more in large expressions, inner parts first; without parts
    that mention a variable of a Let around."""
    if sum(map(tree_size, exprs)) <= LARGE:
        return []
    nodes = list(dict.fromkeys(node for expr in exprs for node in walk_exprs(expr)))
    bound = {node.var for node in nodes if isinstance(node, Let)}
    uses = Counter(child for node in nodes for child in node.children)
    uses.update(exprs)
    twice = (node for node in nodes if tree_size(node) > 4 and uses[node] > 1)
    found = [node for node in twice if bound.isdisjoint(free_vars(node))]
    return sorted(found, key=tree_size)


@lru_cache(maxsize=1 << 14)
def loads_of(expr: Expr) -> tuple[BufferLoad, ...]:
    """Every distinct load in an expression, including loads in indices."""
    return tuple([e for e in walk_exprs(expr) if isinstance(e, BufferLoad)])


def reads_memory(expr: Expr) -> bool:
    """Whether an expression reads memory."""
    return bool(loads_of(expr))


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement of the subtree (blocks included) in program order, parents first."""
    stack = [stmt]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.stmts))


@fact
def jumps(body: Stmt) -> bool:
    """Whether a break or continue in a loop's body belongs to this loop, not to an inner one."""
    if isinstance(body, (Break, Continue)):
        return True
    return not isinstance(body, (For, While)) and any(map(jumps, body.stmts))


@fact
def breaks(body: Stmt) -> bool:
    """Whether a break in a loop's body belongs to this loop, not to an inner one."""
    return isinstance(body, Break) or (
        not isinstance(body, (For, While)) and any(map(breaks, body.stmts))
    )


def walk(stmt: Stmt) -> Iterator[Stmt | Expr]:
    """Every statement and every expression of the subtree, statements in program order."""
    for node in walk_stmts(stmt):
        yield node
        for expr in node.exprs:
            yield from walk_exprs(expr)


def blocks_of(stmt: Stmt) -> Iterator[BlockRealize]:
    """Every realised block of the subtree in program order, outer before inner."""
    return (s for s in walk_stmts(stmt) if isinstance(s, BlockRealize))


def stmt_vars(stmt: Stmt) -> frozenset[Var]:
    """The variables that a statement mentions but does not bind; cached on the node."""
    found = stmt.facts.get("free")
    if found is None:
        parts = [free_vars(e) for e in stmt.exprs] + [stmt_vars(s) for s in stmt.stmts]
        found = frozenset().union(*parts) - bound_vars(stmt)
        if isinstance(stmt, LetStmt):
            found |= free_vars(stmt.value)
        elif isinstance(stmt, Block):
            found -= layout_vars(stmt)
        elif isinstance(stmt, For):
            found = found.union(*map(free_vars, stmt.exprs))
        stmt.facts["free"] = found
    return found


def layout_vars(block: Block) -> frozenset[Var]:
    """The variables that are a whole extent, stride or offset of a matched buffer.

    The match defines such a variable, unless a statement around the block defines it.
    """
    parts: list[Expr | None] = []
    for match in block.match_buffers:
        parts += (*match.buffer.shape, *match.buffer.strides, match.buffer.elem_offset)
    found = frozenset(p for p in parts if isinstance(p, Var))
    return found - frozenset().union(*(free_vars(e) for e in block.exprs))


def bound_vars(stmt: Stmt) -> frozenset[Var]:
    """The variables this statement itself binds (a loop variable, iterators, a let)."""
    if isinstance(stmt, (For, LetStmt)):
        return frozenset((stmt.var,))
    if isinstance(stmt, Block):
        return frozenset(v.var for v in stmt.iter_vars)
    return frozenset()


def transform_expr(expr: Expr, fn: ExprFn, memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rebuild an expression bottom-up.

    Args:
        expr: the expression.
        fn: a function from a node over transformed children to its replacement; None keeps the
            node.
        memo: replacements that are already known; new ones are added.
    """
    memo = {} if memo is None else memo
    stack = [expr]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        children = node.children
        missing = [c for c in children if c not in memo]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        fresh = tuple(memo[c] for c in children)
        rebuilt = node if fresh == children else node.rebuild(fresh)
        result = fn(rebuilt)
        memo[node] = rebuilt if result is None else result
    return memo[expr]


def replace_loads(expr: Expr, buffer: Buffer, fn: Callable[[BufferLoad], Expr]) -> Expr:
    """`expr` with each load of `buffer` replaced by `fn(load)`; loads in indices come first."""
    if all(load.buffer is not buffer for load in loads_of(expr)):
        return expr

    def on_expr(node: Expr) -> Expr | None:
        return fn(node) if isinstance(node, BufferLoad) and node.buffer is buffer else None

    return transform_expr(expr, on_expr)


def transform(stmt: Stmt, on_stmt: StmtFn | None = None, on_expr: ExprFn | None = None) -> Stmt:
    """Rebuild a statement bottom-up.

    Args:
        stmt: the statement.
        on_stmt: a function from a statement over transformed parts to its replacement; None keeps
            the statement.
        on_expr: the same for expressions.
    """
    memo: dict[Expr, Expr] = {}
    whole = on_expr and (lambda e: transform_expr(e, on_expr, memo))
    return map_exprs(stmt, whole, on_stmt)


def map_exprs(
    node: Stmt, whole: Callable[[Expr], Expr] | None, on_stmt: StmtFn | None = None
) -> Stmt:
    """Rebuild as `transform` does; `whole` replaces each expression that a statement directly
    holds."""
    stmts, exprs = node.stmts, node.exprs
    new_stmts = tuple([map_exprs(s, whole, on_stmt) for s in stmts])
    new_exprs = exprs if whole is None else tuple([whole(e) for e in exprs])
    if new_stmts != stmts or new_exprs != exprs:
        node = node.rebuild(new_stmts, new_exprs)
    result = on_stmt(node) if on_stmt is not None else None
    return node if result is None else result


@overload
def substitute(node: Expr, values: Mapping[Var, Expr]) -> Expr: ...
@overload
def substitute(node: Stmt, values: Mapping[Var, Expr]) -> Stmt: ...
def substitute(node: Expr | Stmt, values: Mapping[Var, Expr]) -> Expr | Stmt:
    """Replace free variables; a subtree that mentions no replaced variable is returned unchanged.

    Blocks contain no loop variables, so a substitution of loop variables ends at blocks. Bound
    variables are not renamed: all variables of a program must be unique (`verify` checks this).
    """
    if isinstance(node, Expr):
        names = free_vars(node)
        return node if names.isdisjoint(values) else _substituted(node, *map(values.get, names))
    if stmt_vars(node).isdisjoint(values):
        return node
    stmts = [substitute(s, values) for s in node.stmts]
    return node.rebuild(stmts, [substitute(e, values) for e in node.exprs])


@lru_cache(maxsize=1 << 16)
def _substituted(expr: Expr, *given: Expr | None) -> Expr:
    """`expr` with values for its free variables, in their order; cached, because replays repeat
    calls."""
    pairs = zip(free_vars(expr), given, strict=True)
    memo: dict[Expr, Expr] = {v: e for v, e in pairs if e is not None}
    replaced = frozenset(memo)
    stack = [expr]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        if free_vars(node).isdisjoint(replaced):
            memo[node] = node
            continue
        children = node.children
        missing = [c for c in children if c not in memo]
        if missing:
            stack.extend(missing)
            continue
        memo[node] = node.rebuild([memo[c] for c in children])
    return memo[expr]


def substitute_buffers(stmt: Stmt, buffers: Mapping[Buffer, Buffer]) -> Stmt:
    """Replace buffers wherever they occur: accesses, regions, allocations, views, attributes."""

    def region(r: BufferRegion) -> BufferRegion:
        return BufferRegion(buffers[r.buffer], r.region) if r.buffer in buffers else r

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, (BufferStore, Allocate)) and node.buffer in buffers:
            return evolve(node, buffer=buffers[node.buffer])
        if isinstance(node, DeclBuffer):
            pair = [buffers.get(b, b) for b in (node.buffer, node.source)]
            return DeclBuffer(pair[0], pair[1], node.body)
        if isinstance(node, AttrStmt) and isinstance(node.node, Buffer):
            return evolve(node, node=buffers.get(node.node, node.node))
        if isinstance(node, Block):
            return _block_buffers(node)
        return None

    def _block_buffers(node: Block) -> Block | None:
        reads, writes = tuple(map(region, node.reads)), tuple(map(region, node.writes))
        allocs = tuple(buffers.get(b, b) for b in node.alloc_buffers)
        matches = tuple(
            MatchBufferRegion(buffers.get(m.buffer, m.buffer), region(m.source))
            for m in node.match_buffers
        )
        if all(a is b for a, b in zip(reads, node.reads, strict=True)) and all(
            a is b for a, b in zip(writes, node.writes, strict=True)
        ):
            reads, writes = node.reads, node.writes
            same = allocs == node.alloc_buffers and all(
                a.buffer is b.buffer and a.source is b.source
                for a, b in zip(matches, node.match_buffers, strict=True)
            )
            if same:
                return None
        return evolve(node, reads=reads, writes=writes, alloc_buffers=allocs, match_buffers=matches)

    return map_exprs(stmt, lambda e: _with_buffers(e, *buffers.items()), on_stmt)


def sized_buffers(block: Block, bindings: Mapping[Var, Expr]) -> dict[Buffer, Buffer]:
    """The buffers of a block whose extents mention iterators, over the variables around the block.

    Args:
        bindings: the values of the iterators.
    """
    sized: dict[Buffer, Buffer] = {}
    for buffer in block.alloc_buffers:
        if any(not free_vars(extent).isdisjoint(bindings) for extent in buffer.shape):
            shape = tuple([substitute(extent, bindings) for extent in buffer.shape])
            sized[buffer] = replace(buffer, shape=shape)
    return sized


@lru_cache(maxsize=1 << 14)
def _with_buffers(expr: Expr, *pairs: tuple[Buffer, Buffer]) -> Expr:
    buffers = dict(pairs)
    pointers: dict[Expr, Expr] = {old.data: new.data for old, new in pairs}

    def on_expr(node: Expr) -> Expr | None:
        if isinstance(node, BufferLoad) and node.buffer in buffers:
            return BufferLoad(buffers[node.buffer], node.indices, node.predicate)
        return pointers.get(node)

    return transform_expr(expr, on_expr)


def fresh_copy(stmt: Stmt, fresh_var: Callable[[Var], Var] | None = None) -> Stmt:
    """A clone whose loop variables, iterators, let variables and block tokens are all new.

    `fresh_var` makes the new variable for an old variable (default: same name and type). Buffers
    allocated inside are kept; a caller that duplicates allocations has to replace them.
    """
    make = fresh_var or (lambda v: Var(v.name, v.dtype))
    renamed: dict[Var, Expr] = {}
    for node in walk_stmts(stmt):
        for var in sorted(bound_vars(node), key=lambda v: (v.serial, v.name)):
            renamed[var] = make(var)

    def rename(var: Var) -> Var:
        new = renamed[var]
        assert isinstance(new, Var)
        return new

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, (For, LetStmt)):
            return evolve(node, var=rename(node.var))
        if isinstance(node, Block):
            iters = tuple(IterVar(rename(v.var), v.dom, v.kind) for v in node.iter_vars)
            return evolve(node, iter_vars=iters, token=BlockToken())
        return None if node.stmts else evolve(node)

    return map_exprs(stmt, lambda e: substitute(e, renamed), on_stmt)


def map_body(func: PrimFunc, fn: Callable[[Stmt], Stmt]) -> PrimFunc:
    """`func` with `fn` applied to its body (the same function when the body is unchanged)."""
    body = fn(func.body)
    return func if body is func.body else func.with_body(body)
