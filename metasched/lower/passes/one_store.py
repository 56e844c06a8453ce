"""Updates of one element under conditions, in lanes: the value stays in a register.

    if m[x] > 0:                            on = m[x] > 0
        if y > 0:                           v = B[x]
            B[x] = T.min(B[x], A[x])   ->   v = T.if_then_else(on and y > 0, T.min(v, A[x]), v)
        if y < 9:                           v = T.if_then_else(on and y < 9, T.min(v, C[x]), v)
            B[x] = T.min(B[x], C[x])        if on and y > 0 or on and y < 9: B[x] = v

A load from memory waits for masked stores to the same place, about 15 cycles on a Zen 4. Where the
innermost serial loop does not move the element, the store is unconditional, so that the value stays
in a register throughout the loop:

    for k: for x in lanes: if c: B[x] = B[x] + A[k]
    ->  for k: for x in lanes: B[x] = if_then_else(c, B[x] + A[k], B[x])

No other lane and no other thread may write the element then: each has elements of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.arith.affine import linear_address
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import FALSE, TRUE, Expr, Not, Var, as_int, logical_and, logical_or
from metasched.ir.func import PrimFunc
from metasched.ir.op import Effect, call, effect_of
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, loads_of, map_body, transform, transform_expr, walk_stmts
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

    nests = _nests(func.body, ()) if lanes else {}

    def visit(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block) or stmt not in lanes:
            return None
        place = _place(stmt.body)
        if place is None or not inside_buffer(place, ranges):
            return None
        stays = stmt in nests and _stays(place, *nests[stmt])
        if not stays and sum(isinstance(s, BufferStore) for s in walk_stmts(stmt.body)) < 2:
            return None
        return evolve(stmt, body=_Steps(place, stored=TRUE if stays else FALSE).whole(stmt.body))

    return map_body(func, lambda body: transform(body, visit)) if lanes else func


def _nests(stmt: Stmt, around: tuple[For, ...]) -> dict[Block, tuple[BlockRealize, list[For]]]:
    """The blocks directly below the root block, with the loops around them, outermost first."""
    if isinstance(stmt, BlockRealize) and (around or stmt.block.iter_vars):
        return {stmt.block: (stmt, list(around))}
    inside = (*around, stmt) if isinstance(stmt, For) else around
    found: dict[Block, tuple[BlockRealize, list[For]]] = {}
    for inner in stmt.stmts:
        found |= _nests(inner, inside)
    return found


def _stays(place: BufferLoad, realize: BlockRealize, around: list[For]) -> bool:
    """Whether an element that a block reads and stores stays the same along the innermost serial
    loop, while each lane and each thread has elements of its own."""
    spread = [n for n in around if n.kind in (ForKind.PARALLEL, ForKind.VECTORIZED)]
    serial = [n.var for n in around if n.kind is ForKind.SERIAL]
    if not spread or not serial or any(n.kind is ForKind.THREAD_BINDING for n in around):
        return False
    stored = [s for s in walk_stmts(spread[0]) if isinstance(s, BufferStore)]
    own = [s for s in walk_stmts(realize) if isinstance(s, BufferStore)]
    if sum(s.buffer.data is place.buffer.data for s in stored) != len(own):
        return False
    found: set[Var] = set()
    for iterator, value in realize.bindings.items():
        used = free_vars(value)
        indexed = any(i is iterator for i in place.indices)
        if not indexed and any(iterator in free_vars(i) for i in place.indices):
            return False
        if indexed and serial[-1] in used:
            return False
        if any(n.var in used for n in spread):
            if not indexed or not _distinct(value, around):
                return False
            found |= used
    return all(n.var in found for n in spread)


def _distinct(value: Expr, around: list[For]) -> bool:
    """Whether a sum differs for all values of the loop variables in it."""
    extents = {n.var: as_int(n.extent) for n in around}
    form, reach = linear_address(value), 1
    for atom, factor in sorted(form.terms.items(), key=lambda term: abs(term[1])):
        extent = extents.get(atom) if isinstance(atom, Var) else None
        if extent is None or abs(factor) < reach:
            return False
        reach += abs(factor) * (extent - 1)
    return True


def _place(body: Stmt) -> BufferLoad | None:
    """The only element that a body stores to under conditions, and reads of its buffer; None for
    other bodies."""
    inside = list(walk_stmts(body))
    stores = [s for s in inside if isinstance(s, BufferStore)]
    if not all(isinstance(s, _PLAIN) for s in inside) or not 1 <= len(stores) <= _MOST:
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
