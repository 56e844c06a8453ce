"""Updates of one element under conditions, in lanes: the value stays in a register.

    if m[x] > 0:                            on = m[x] > 0
        if y > 0:                           v = B[x]
            B[x] = T.min(B[x], A[x])   ->   v = T.if_then_else(on and y > 0, T.min(v, A[x]), v)
        if y < 9:                           v = T.if_then_else(on and y < 9, T.min(v, C[x]), v)
            B[x] = T.min(B[x], C[x])        if on and y > 0 or on and y < 9: B[x] = v

A load from memory waits for masked stores to the same place, about 15 cycles on a Zen 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import FALSE, TRUE, Expr, Not, Var, logical_and, logical_or
from metasched.ir.func import PrimFunc
from metasched.ir.op import Effect, call, effect_of
from metasched.ir.stmt import (
    Block,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import loads_of, map_body, transform, transform_expr, walk_stmts
from metasched.lower.passes.choose import inside_buffer, ranges_of

_MOST = 16
"""The most stores of a block that become one."""
_PLAIN = (BufferStore, IfThenElse, SeqStmt)


def store_once(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to blocks in lanes."""
    ranges = ranges_of(func.body)
    lanes = {
        block
        for loop in walk_stmts(func.body)
        if isinstance(loop, For) and loop.kind is ForKind.VECTORIZED
        for block in walk_stmts(loop.body)
        if isinstance(block, Block)
    }

    def visit(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block) or stmt not in lanes:
            return None
        place = _place(stmt.body)
        if place is None or not inside_buffer(place, ranges):
            return None
        return evolve(stmt, body=_Steps(place).whole(stmt.body))

    return map_body(func, lambda body: transform(body, visit)) if lanes else func


def _place(body: Stmt) -> BufferLoad | None:
    """The only element that a body stores to, several times under conditions, and reads of its
    buffer; None for other bodies."""
    inside = list(walk_stmts(body))
    stores = [s for s in inside if isinstance(s, BufferStore)]
    if not all(isinstance(s, _PLAIN) for s in inside) or not 1 < len(stores) <= _MOST:
        return None
    first = stores[0]
    place = BufferLoad(first.buffer, first.indices)
    if not any(isinstance(s, IfThenElse) for s in inside) or place.dtype.lanes > 1:
        return None
    for stmt in inside:
        if any(effect_of(e) > Effect.READ for e in stmt.exprs):
            return None
        if isinstance(stmt, BufferStore) and (
            stmt.predicate is not None or stmt.buffer is not first.buffer
            or stmt.indices != first.indices
        ):  # fmt: skip
            return None
        loads = [x for e in stmt.exprs for x in loads_of(e)]
        if any(x.buffer.data is first.buffer.data and x is not place for x in loads):
            return None
    return place


@dataclass(slots=True)
class _Steps:
    """The values of one element, in the order of the statements."""

    place: BufferLoad
    named: list[tuple[Var, Expr]] = field(default_factory=list)
    value: Expr | None = None
    stored: Expr = FALSE

    def whole(self, body: Stmt) -> Stmt:
        self.value = self.name("v", self.place)
        self.step(body, TRUE)
        store: Stmt = BufferStore(self.place.buffer, self.value, self.place.indices)
        result = store if self.stored is TRUE else IfThenElse(self.stored, store)
        for var, value in reversed(self.named):
            result = LetStmt(var, value, result)
        return result

    def name(self, hint: str, value: Expr) -> Var:
        var = Var(hint, value.dtype)
        self.named.append((var, value))
        return var

    def now(self, expr: Expr) -> Expr:
        """An expression with the present value of the element."""
        return transform_expr(expr, lambda x: self.value if x is self.place else None)

    def step(self, stmt: Stmt, on: Expr) -> None:
        """A statement that runs where a condition holds."""
        if isinstance(stmt, BufferStore):
            value = self.now(stmt.value)
            assert self.value is not None
            chosen = value if on is TRUE else call("if_then_else", on, value, self.value)
            self.value = self.name("v", chosen)
            self.stored = logical_or(self.stored, on)
        elif isinstance(stmt, IfThenElse):
            holds = self.name("on", logical_and(on, self.now(stmt.condition)))
            self.step(stmt.then, holds)
            if stmt.orelse is not None:
                self.step(stmt.orelse, self.name("on", logical_and(on, Not(holds))))
        else:
            for inner in stmt.stmts:
                self.step(inner, on)
