"""Reads under conditions: the loads of a block's body, and the conditions that hold at each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeAlias

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    TRUE,
    And,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Let,
    Mod,
    Not,
    Or,
    Var,
    as_int,
    logical_not,
)
from metasched.ir.op import Call, Effect
from metasched.ir.stmt import (
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    fact,
)
from metasched.ir.visit import (
    jumps,
    loads_of,
    substitute,
    transform_expr,
    walk_exprs,
    walk_stmts,
    walk_unseen,
)


@lru_cache(maxsize=1 << 12)
def uses_pointer(expr: Expr) -> bool:
    """Whether an expression mentions a pointer, or calls what may use one."""
    return any(
        (isinstance(e, Var) and e.dtype.is_handle)
        or (isinstance(e, Call) and e.op.effect > Effect.PURE)
        for e in walk_exprs(expr)
    )


@fact
def transparent(block: Block) -> bool:
    """Whether a block touches memory by its loads and stores alone.

    True when the block holds no block, matches or views no buffer, and uses neither pointers nor
    foreign code.
    """
    return not block.match_buffers and not any(
        isinstance(stmt, (BlockRealize, DeclBuffer)) or any(map(uses_pointer, stmt.exprs))
        for part in block.stmts
        for stmt in walk_stmts(part)
    )


@dataclass(frozen=True, slots=True)
class Read:
    """One load in the body of a block.

    Attributes:
        buffer: the buffer that is read.
        indices: the indices, over the block's iterators and the loops inside the block.
        conditions: the conditions that hold where the load is evaluated.
        loops: the loops inside the block around the load, outermost first, each as (variable,
            first value, extent).
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    conditions: tuple[Expr, ...]
    loops: tuple[tuple[Var, Expr, Expr], ...]


@fact
def guarded_reads(block: Block) -> tuple[Read, ...] | None:
    """The loads in a block's init and body with the conditions around them (cached).

    None for a block that is not transparent, holds vectors, or has indices that depend on its own
    writes.
    """
    if not transparent(block):
        return None
    written = _written(block)
    found: dict[Read, None] = {}
    for part in block.stmts:
        for read in _in_stmt(part):
            if read is None or any(_loads(i, written) for i in read.indices):
                return None
            known = tuple(c for c in read.conditions if not _loads(c, written))
            found[Read(read.buffer, read.indices, known, read.loops)] = None
    return tuple(found)


@fact
def store_conditions(block: Block) -> tuple[tuple[BufferStore, tuple[Expr, ...]], ...]:
    """The stores in a block's init and body, and the conditions around each that the block does
    not change (cached). The values of variables replace them."""
    written = _written(block)
    return tuple(
        (stmt, tuple(c for c in known if not _loads(c, written)))
        for part in block.stmts
        for stmt, known, _ in _placed(part)
        if isinstance(stmt, BufferStore)
    )


def _written(block: Block) -> set[Buffer]:
    return {s.buffer for s in walk_stmts(block) if isinstance(s, BufferStore)}


def _loads(expr: Expr, buffers: set[Buffer]) -> bool:
    return any(load.buffer in buffers for load in loads_of(expr))


_Loops: TypeAlias = "tuple[tuple[Var, Expr, Expr], ...]"


def _in_stmt(top: Stmt) -> Iterator[Read | None]:
    """Every load below a statement; None for a statement that cannot be analysed."""
    seen: dict[tuple[tuple[Expr, ...], _Loops], set[Expr]] = {}
    for stmt, known, loops in _placed(top):
        for expr in stmt.exprs:
            yield from _in_expr(expr, known, loops, seen.setdefault((known, loops), set()))
        if isinstance(stmt, While):
            yield None


def _placed(top: Stmt) -> Iterator[tuple[Stmt, tuple[Expr, ...], _Loops]]:
    """Every statement below a statement, where the values of variables replace them, with the
    conditions and the loops around it."""
    stack: list[tuple[Stmt, tuple[Expr, ...], _Loops]] = [(top, (), ())]
    while stack:
        stmt, known, loops = stack.pop()
        yield stmt, known, loops
        if isinstance(stmt, LetStmt):
            stack.append((substitute(stmt.body, {stmt.var: stmt.value}), known, loops))
        elif isinstance(stmt, For):
            stack.append((stmt.body, known, (*loops, (stmt.var, stmt.min, stmt.extent))))
        elif isinstance(stmt, IfThenElse):
            stack.append((stmt.then, (*known, stmt.condition), loops))
            if stmt.orelse is not None:
                stack.append((stmt.orelse, (*known, logical_not(stmt.condition)), loops))
        else:
            stack += [(part, known, loops) for part in stmt.stmts]


def _in_expr(
    top: Expr, known: tuple[Expr, ...], loops: _Loops, seen: set[Expr]
) -> Iterator[Read | None]:
    """Every load of an expression that is not in `seen`; of `if_then_else` only one side is
    evaluated."""
    for node, conditions in walk_unseen(top, known, _evaluated, seen):
        if isinstance(node, BufferLoad):
            scalar = all(i.dtype.lanes == 1 for i in node.indices) and node.predicate is None
            yield Read(node.buffer, node.indices, conditions, loops) if scalar else None


def _evaluated(node: Expr) -> list[tuple[Expr, tuple[Expr, ...]]]:
    """The parts of a node, last first, a side of a choice under its condition."""
    if isinstance(node, Call) and node.op.name == "if_then_else":
        condition, then, orelse = node.args
        return [(orelse, (logical_not(condition),)), (then, (condition,)), (condition, ())]
    if isinstance(node, Let):
        return [(substitute(node.body, {node.var: node.value}), ()), (node.value, ())]
    return [(child, ()) for child in reversed(node.children)]


def stores_always(block: Block, buffer: Buffer) -> bool:
    """Whether a block stores every element that it may store, whatever the conditions inside.

    The init, both branches of a condition, or an unconditional store must store the element.
    """
    first = set() if block.init is None else _stored(block.init, buffer)[0]
    surely, maybe = _stored(block.body, buffer)
    return maybe <= surely | first


_Places: TypeAlias = "set[tuple[Expr, ...]]"


def _stored(stmt: Stmt, buffer: Buffer) -> tuple[_Places, _Places]:
    """The elements that a statement surely stores, and the elements that it may store."""
    if isinstance(stmt, BufferStore):
        here = {stmt.indices} if stmt.buffer is buffer else set()
        return (here if stmt.predicate is None else set()), here
    parts = [_stored(part, buffer) for part in stmt.stmts]
    surely = set().union(*(a for a, _ in parts))
    if isinstance(stmt, IfThenElse):
        surely = parts[0][0] & parts[1][0] if stmt.orelse is not None else set()
    elif isinstance(stmt, While) or (isinstance(stmt, For) and jumps(stmt.body)):
        surely = set()
    return surely, set().union(*(b for _, b in parts))


CASES = 16
"""The most cases that are told apart."""


def cases(conditions: tuple[Expr, ...]) -> list[tuple[Expr, ...]]:
    """Split each `or`: conjunctions, at least one of which holds where all `conditions` hold."""
    alternatives = [_alternatives(transform_expr(c, _unhinted)) for c in conditions]
    total = 1
    for options in alternatives:
        total *= len(options)
    if total > CASES:
        return [conditions]
    return [tuple(c for part in chosen for c in part) for chosen in product(*alternatives)]


def _unhinted(node: Expr) -> Expr | None:
    return node.args[0] if isinstance(node, Call) and node.op.name == "likely" else None


def _alternatives(condition: Expr) -> list[tuple[Expr, ...]]:
    if condition is TRUE:
        return [()]
    if isinstance(condition, Not):
        inner = Analyzer().simplify(condition)
        return [(condition,)] if isinstance(inner, Not) else _alternatives(inner)
    if isinstance(condition, Or):
        return [*_alternatives(condition.a), *_alternatives(condition.b)]
    if isinstance(condition, And):
        return [(*x, *y) for x in _alternatives(condition.a) for y in _alternatives(condition.b)]
    return [(condition,)]


def may_fail(expr: Expr) -> bool:
    """Whether an expression may fail (a load, a division) if it is evaluated outside its guard."""
    return any(
        isinstance(e, BufferLoad)
        or (isinstance(e, (Div, Mod, FloorDiv, FloorMod)) and as_int(e.b) in (None, 0))
        or (isinstance(e, Call) and e.op.effect > Effect.PURE)
        for e in walk_exprs(expr)
    )


def certain_loads(stmt: Stmt) -> Iterator[BufferLoad]:
    """The loads that each execution of a statement does."""
    if isinstance(stmt, LetStmt) or (isinstance(stmt, BufferStore) and stmt.predicate is None):
        yield from _unconditional(stmt.value)
    elif isinstance(stmt, IfThenElse):
        yield from _unconditional(stmt.condition)
    if isinstance(stmt, (SeqStmt, LetStmt, AttrStmt)) or (
        isinstance(stmt, For) and (as_int(stmt.extent) or 0) > 0
    ):
        for inner in stmt.stmts:
            yield from certain_loads(inner)


def loads_in_any_case(expr: Expr) -> list[BufferLoad]:
    """The loads that each evaluation of an expression does, those of their indices, too."""
    found = list(_unconditional(expr))
    inside = [load for one in found for index in one.indices for load in loads_in_any_case(index)]
    return list(dict.fromkeys([*found, *inside]))


def parts_in_any_case(expr: Expr) -> dict[Expr, None]:
    """The parts that each evaluation of an expression computes, without those in a Let."""
    seen: dict[Expr, None] = {}
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen[node] = None
        if isinstance(node, (And, Or)):
            stack.append(node.a)
        elif isinstance(node, Let):
            stack.append(node.value)
        elif isinstance(node, Call) and node.op.name == "if_then_else":
            stack += [*_of_both_sides(node), node.args[0]]
        else:
            stack += reversed(node.children)
    return seen


@lru_cache(maxsize=1 << 10)
def _of_both_sides(choice: Call) -> tuple[Expr, ...]:
    """The parts that a choice computes whichever side it takes."""
    other = parts_in_any_case(choice.args[2])
    return tuple(part for part in parts_in_any_case(choice.args[1]) if part in other)


def _unconditional(top: Expr) -> Iterator[BufferLoad]:
    """The outermost loads that each evaluation of an expression does, each once."""
    seen: set[Expr] = set()
    stack = [top]
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if isinstance(expr, BufferLoad):
            yield expr
        elif isinstance(expr, (And, Or)):
            stack.append(expr.a)
        elif isinstance(expr, Call) and expr.op.name == "if_then_else":
            stack.append(expr.args[0])
        else:
            stack += reversed(expr.children)
