"""Serial loops along rows whose lengths memory or another loop says, which store along the row.

    for p in range(a, b): Y[p] = exp(X[p] - m); z = z + Y[p]

An iteration reads of what the loop stores its own elements only, so the iterations may run in
lanes, one statement after another. Reductions in elements of their own may stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metasched.arith.affine import linear_address
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Cast,
    Div,
    Expr,
    Max,
    Min,
    Var,
    as_int,
)
from metasched.ir.op import FLOATING, Call, Effect, effect_of
from metasched.ir.stmt import BufferStore, For, ForKind, LetStmt, SeqStmt, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, substitute, walk_exprs

MOST = 200
"""The most operations and loads of an iteration."""
WORTH = 4
"""The fewest operations for each gather: lanes load their elements one by one."""
FUNCTION = 8
"""The operations that a function or a division counts as."""
TYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")
_SLOW = frozenset(FLOATING.split()) - frozenset(("floor", "ceil", "round", "nearbyint", "trunc"))


@dataclass(frozen=True, slots=True)
class RowLoop:
    """The statements of such a loop, variables replaced by their values.

    Attributes:
        steps: stores along the row, and stores of reductions, in order.
        sums: for the positions of reductions among them, the element and what is combined with it.
    """

    steps: tuple[BufferStore, ...]
    sums: Mapping[int, tuple[BufferLoad, Expr]]


def row_loop(node: For) -> RowLoop | None:
    """The loop as a loop along a row; None for another loop."""
    if node.kind is not ForKind.SERIAL or node.annotations or as_int(node.extent) is not None:
        return None
    bound: set[Var] = set()
    steps = _steps(node.body, {}, bound)
    if not steps:
        return None
    sums = {n: found for n, s in enumerate(steps) if (found := _reduced(s, node.var))}
    rows = {s.buffer.data: s for n, s in enumerate(steps) if n not in sums}
    apart = {s.buffer.data for s in steps}
    types = {s.buffer.dtype.bits for s in steps}
    if not rows or len(apart) < len(steps) or len(types) > 1 or _heavy(steps):
        return None
    stored = rows.keys() | {steps[n].buffer.data for n in sums}
    if not bound.isdisjoint(stored):
        return None
    for n, step in enumerate(steps):
        moved = linear_address(step.indices[0]).terms
        if n not in sums and (moved.get(node.var) != 1 or not _fixed(step, node.var, moved)):
            return None
        if any(x.buffer.data in stored for x in loads_of(step.indices[0])):
            return None
        value = sums[n][1] if n in sums else step.value
        for load in loads_of(value):
            if load.predicate is not None or len(load.indices) != 1:
                return None
            own = rows.get(load.buffer.data)
            same = own is not None and own.buffer is load.buffer and own.indices == load.indices
            if load.buffer.data in stored and not same:
                return None
    added = (steps[n] for n in sums if isinstance(steps[n].value, Add))
    if any(s.buffer.dtype.is_float for s in added) and not _slow(steps):
        return None
    return RowLoop(steps, sums) if _pays(steps, node.var) else None


def _steps(stmt: Stmt, known: Mapping[Var, Expr], bound: set[Var]) -> tuple[BufferStore, ...]:
    """The stores of a body, with values of variables; none for other bodies.

    Args:
        bound: filled with the memory that values of variables load: no store may come between.
    """
    if isinstance(stmt, LetStmt):
        bound.update(load.buffer.data for load in loads_of(stmt.value))
        if effect_of(stmt.value) > Effect.PURE:
            return ()
        return _steps(stmt.body, {**known, stmt.var: substitute(stmt.value, known)}, bound)
    if isinstance(stmt, SeqStmt):
        parts = [_steps(part, known, bound) for part in stmt.items]
        return tuple(s for part in parts for s in part) if all(parts) else ()
    if not isinstance(stmt, BufferStore) or stmt.predicate is not None or len(stmt.indices) != 1:
        return ()
    if str(stmt.buffer.dtype) not in TYPES or effect_of(stmt.value) > Effect.READ:
        return ()
    at, value = substitute(stmt.indices[0], known), substitute(stmt.value, known)
    return (evolve(stmt, indices=(at,), value=value),)


def _fixed(step: BufferStore, var: Var, moved: Mapping[Expr, int]) -> bool:
    """Whether a place moves with the loop's variable alone."""
    return not any(var in free_vars(term) for term in moved if term is not var)


def _reduced(step: BufferStore, var: Var) -> tuple[BufferLoad, Expr] | None:
    """The element of a reduction, and what the store combines with the element."""
    whole, index = step.value, step.indices[0]
    if var in free_vars(index) or loads_of(index) or not isinstance(whole, (Add, Max, Min)):
        return None
    for element, value in ((whole.a, whole.b), (whole.b, whole.a)):
        if not isinstance(element, BufferLoad) or element.buffer is not step.buffer:
            continue
        if element.indices == step.indices and element.predicate is None:
            return element, value
    return None


def _slow(steps: tuple[BufferStore, ...]) -> bool:
    """Whether an iteration takes longer than the addition of floats for which the next one waits:
    it calls a function or divides."""
    return any(_takes_long(x) for s in steps for x in walk_exprs(s.value))


def _takes_long(node: Expr) -> bool:
    called = isinstance(node, Call) and node.op.name in _SLOW
    return node.dtype.is_float and (called or isinstance(node, Div))


def _heavy(steps: tuple[BufferStore, ...]) -> bool:
    return len({x for s in steps for x in walk_exprs(s.value)}) > MOST


def _pays(steps: tuple[BufferStore, ...], var: Var) -> bool:
    """Whether most elements lie side by side."""
    nodes = {x for s in steps for x in walk_exprs(s.value)}
    floats = [x for x in nodes if isinstance(x, (BinaryOp, Call, Cast)) and x.dtype.is_float]
    work = sum(FUNCTION if _takes_long(x) else 1 for x in floats)
    apart = 0
    for load in (x for x in nodes if isinstance(x, BufferLoad)):
        moved = linear_address(load.indices[0]).terms
        inside = any(var in free_vars(term) for term in moved if term is not var)
        apart += inside or moved.get(var, 0) not in (0, 1)
    return work >= WORTH * apart
