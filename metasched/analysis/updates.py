"""Conditional updates as updates by an operation whose identity stands where the condition fails.

    if x > 0: s = s + x        ->        s = s + T.Select(x > 0, x, 0)
    if x > m: m = x            ->        m = T.max(m, x)

Such updates run in any order where the operation permits it. The identity of a sum of floats is
-0.0: zero plus -0.0 keeps its sign. A comparison of floats skips NaN and keeps the sign of the
first zero, so that it is a maximum only where zeros may have either sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from metasched.analysis.guarded import may_fail
from metasched.analysis.reducer import grouped, identity_of
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import negate
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    Add,
    BinaryOp,
    Expr,
    FloatImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    as_expr,
)
from metasched.ir.op import Effect, call, effect_of
from metasched.ir.stmt import (
    Allocate,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    loads_of,
    stmt_vars,
    substitute,
    walk_exprs,
    walk_stmts,
)

_MOST_NODES = 400
"""The largest expression in which the values of variables replace the variables."""


_Around = tuple[IfThenElse | LetStmt, ...]


@dataclass(frozen=True, slots=True)
class Updates:
    """Takes updates that loops run in any order out of the statements around them.

    Attributes:
        loops: around the statements.
        liberties: of the function, see `ir.func.LIBERTIES`.
    """

    loops: Mapping[Var, Range]
    liberties: tuple[str, ...]

    def inside(self, loop: Var, values: Range) -> Updates:
        return replace(self, loops={**self.loops, loop: values})

    def apart(self, stmt: Stmt) -> Stmt:
        """Straight-line code with each such update as a store of its own; `stmt` if none is."""
        parts = list(self._parts(stmt, ()))
        stores = [self._store(_wrapped(around, leaf)) for around, leaf in parts]
        if not any(stores) or _changes_tests(stmt) or _calls(stmt):
            return stmt
        found: list[Stmt] = []
        rest: list[Stmt] = []
        before: _Around = ()
        for (around, leaf), store in zip(parts, stores, strict=True):
            if rest and (store or around != before):
                found.append(fresh_copy(_wrapped(before, seq(rest))))
                rest = []
            if store:
                found.append(store)
            else:
                rest, before = [*rest, leaf], around
        return seq([*found, fresh_copy(_wrapped(before, seq(rest)))] if rest else found)

    def results(self, stmt: Stmt) -> Stmt:
        """Memory and a loop that its data end, with the updates behind the loop as stores of their
        own; `stmt` if there are none.

            ok = 1; for k in range(8): ..; n += ok    ->    (ok = 1; ..; r = ok); n += r

        Iterations of a loop around then share no memory but in the updates.
        """
        own: list[Buffer] = []
        inner = stmt
        while isinstance(inner, Allocate):
            own.append(inner.buffer)
            inner = inner.body
        items = list(inner.items) if isinstance(inner, SeqStmt) else []
        last: list[BufferStore] = []
        while items and (store := self._store(items[-1])) is not None:
            last.insert(0, store)
            items.pop()
        written = [s.buffer for s in last]
        used = {b for s in items for b in _memory(s)} | {b for s in last for b in _operands(s)}
        loops = any(isinstance(s, (For, While)) for s in items)
        if not own or not loops or not last:
            return stmt
        if any(b in own or b.data in used for b in written):
            return stmt
        return _with_results(own, items, last)

    def _parts(self, stmt: Stmt, around: _Around) -> Iterator[tuple[_Around, Stmt]]:
        """The statements of straight-line code, each with the conditions and variables around it.

        A condition that chooses between two values of one update stays whole.
        """
        if isinstance(stmt, SeqStmt):
            for item in stmt.items:
                yield from self._parts(item, around)
        elif isinstance(stmt, LetStmt):
            yield from self._parts(stmt.body, (*around, stmt))
        elif isinstance(stmt, IfThenElse) and as_update(stmt, self.liberties) is None:
            yield from self._parts(stmt.then, (*around, evolve(stmt, orelse=None)))
            if stmt.orelse is not None:
                opposite = negate(Analyzer(), stmt.condition)
                yield from self._parts(stmt.orelse, (*around, IfThenElse(opposite, stmt.orelse)))
        else:
            yield around, stmt

    def _store(self, stmt: Stmt) -> BufferStore | None:
        """The store of one update that may run in any order of a loop around it."""
        found = as_update(stmt, self.liberties)
        if found is None or not _any_order(found, self.liberties):
            return None
        used = frozenset[Var]().union(*map(free_vars, found.indices))
        if used >= self.loops.keys() or any(loads_of(i) for i in found.indices):
            return None
        an = Analyzer(self.loops)
        inside = (
            an.prove(index >= 0) and an.prove(index < extent)
            for index, extent in zip(found.indices, found.buffer.shape, strict=True)
        )
        return found if all(inside) else None


def _changes_tests(stmt: Stmt) -> bool:
    """Whether a condition or a variable reads what the statements below it store, but the last: the
    statements behind would see another value if each had its own condition."""
    if isinstance(stmt, (IfThenElse, LetStmt)):
        leaves = [s for way in stmt.stmts for s in walk_stmts(way) if isinstance(s, BufferStore)]
        read = {load.buffer.data for e in stmt.exprs for load in loads_of(e)}
        if any(store.buffer.data in read for store in leaves[:-1]):
            return True
    return any(map(_changes_tests, stmt.stmts))


def _calls(stmt: Stmt) -> bool:
    """Whether a statement calls foreign code, which must not run once for each update."""
    return any(effect_of(e) > Effect.READ for s in walk_stmts(stmt) for e in s.exprs)


def _memory(stmt: Stmt) -> set[Var]:
    """The memory that a statement uses."""
    inside = list(walk_stmts(stmt))
    loaded = {x.buffer.data for s in inside for e in s.exprs for x in loads_of(e)}
    return loaded | {s.buffer.data for s in inside if isinstance(s, BufferStore)}


def _operands(store: BufferStore) -> set[Var]:
    """The memory of the value that an update combines with its element."""
    operand = _operand(store)
    assert operand is not None
    return {load.buffer.data for load in loads_of(operand)}


def _with_results(own: list[Buffer], items: list[Stmt], updates: list[BufferStore]) -> Stmt:
    """Statements that store the operands of updates, and the updates."""
    zero, steps, after = (as_expr(0),), list(items), list[Stmt]()
    made: list[Buffer] = []
    for store in updates:
        operand, kind = _operand(store), type(store.value)
        assert operand is not None and issubclass(kind, BinaryOp)
        result = Buffer.of(f"{store.buffer.name}_result", (1,), operand.dtype, scope="local")
        steps.append(BufferStore(result, operand, zero))
        after.append(evolve(store, value=kind(_own(store), BufferLoad(result, zero))))
        made.append(result)
    body: Stmt = seq(steps)
    for buffer in reversed(own):
        body = Allocate(buffer, body)
    body = seq([body, *after])
    for buffer in made:
        body = Allocate(buffer, body)
    return body


def _wrapped(around: _Around, stmt: Stmt) -> Stmt:
    """A statement with the conditions around it, and the variables that it mentions; the value of
    such a variable stands in its place in a store that is nothing but this value."""
    for outer in reversed(around):
        if isinstance(outer, LetStmt):
            if isinstance(stmt, BufferStore) and stmt.value is outer.var:
                stmt = substitute(stmt, {outer.var: outer.value})
            elif outer.var in stmt_vars(stmt):
                stmt = evolve(outer, body=stmt)
        else:
            stmt = IfThenElse(outer.condition, stmt)
    return stmt


def as_update(stmt: Stmt, liberties: tuple[str, ...]) -> BufferStore | None:
    """One store `own = own op value` that means the same as straight-line code; None for no such.

    The store loads and stores its element even where the code does neither.
    """
    if isinstance(stmt, BufferStore):
        return None if stmt.predicate is not None else _plain(stmt, liberties)
    if isinstance(stmt, LetStmt):
        inner = as_update(stmt.body, liberties)
        if inner is None or any(stmt.var in free_vars(i) for i in inner.indices):
            return None
        value = substitute(inner.value, {stmt.var: stmt.value})
        small = sum(1 for _ in walk_exprs(value)) <= _MOST_NODES
        new = evolve(inner, value=value)
        return new if small and _operand(new) is not None else None
    if not isinstance(stmt, IfThenElse):
        return None
    return _extreme(stmt, liberties) or _conditional(stmt, liberties)


def _any_order(store: BufferStore, liberties: tuple[str, ...]) -> bool:
    exact = isinstance(store.value, (Min, Max)) or store.buffer.dtype.is_int
    return exact or "reassoc" in liberties


def _plain(store: BufferStore, liberties: tuple[str, ...]) -> BufferStore | None:
    """A store as an update `own op value`, `own + a - b` too where sums have no order."""
    if _operand(store) is not None:
        return store
    if not (store.buffer.dtype.is_int or "reassoc" in liberties):
        return None
    new = grouped(store)
    return new if _operand(new) is not None else None


def _own(store: BufferStore) -> BufferLoad:
    return BufferLoad(store.buffer, store.indices)


def _operand(store: BufferStore) -> Expr | None:
    """The value that a store combines with its own element; None for other stores."""
    value, own = store.value, _own(store)
    if not isinstance(value, (Add, Sub, Mul, Max, Min)):
        return None
    pairs = ((value.a, value.b), (value.b, value.a))
    for before, added in pairs[:1] if isinstance(value, Sub) else pairs:
        if before is own and all(x.buffer.data is not own.buffer.data for x in loads_of(added)):
            return added
    return None


def _conditional(stmt: IfThenElse, liberties: tuple[str, ...]) -> BufferStore | None:
    """An update in one branch or in both."""
    if any(x.buffer.data in _written(stmt) for x in loads_of(stmt.condition)):
        return None
    ways = [as_update(way, liberties) for way in stmt.stmts]
    first = ways[0]
    if first is None or any(way is None for way in ways):
        return None
    operands: list[Expr] = []
    for way in ways:
        if way is None or type(way.value) is not type(first.value) or _own(way) is not _own(first):
            return None
        operand = _operand(way)
        assert operand is not None
        operands.append(operand)
    if len(operands) == 1:
        operands.append(_identity(first.value))
    chosen = _choice(stmt.condition, operands[0], operands[1])
    kind = type(first.value)
    assert issubclass(kind, BinaryOp)
    return evolve(first, value=kind(_own(first), chosen))


def _written(stmt: Stmt) -> set[Expr]:
    if isinstance(stmt, BufferStore):
        return {stmt.buffer.data}
    return set[Expr]().union(*map(_written, stmt.stmts))


def _identity(value: Expr) -> Expr:
    if isinstance(value, Add) and value.dtype.is_float:
        return FloatImm(value.dtype, -0.0)
    found = identity_of(value)
    assert found is not None
    return found


def _choice(condition: Expr, a: Expr, b: Expr) -> Expr:
    """One of two values; each is evaluated alone if it may fail where the condition excludes it."""
    known = set(loads_of(condition))
    safe = all(
        not may_fail(e) or (set(loads_of(e)) <= known and not may_fail(_without_loads(e)))
        for e in (a, b)
    )
    return Select(condition, a, b) if safe else call("if_then_else", condition, a, b)


def _without_loads(e: Expr) -> Expr:
    if isinstance(e, BufferLoad):
        return as_expr(1, e.dtype)
    return e.rebuild(tuple(map(_without_loads, e.children))) if e.children else e


def _extreme(stmt: IfThenElse, liberties: tuple[str, ...]) -> BufferStore | None:
    """`if x > own: own = x` as a maximum, `if x < own: own = x` as a minimum."""
    store, test = stmt.then, stmt.condition
    lets: dict[Var, Expr] = {}
    while isinstance(store, LetStmt):
        lets[store.var] = substitute(store.value, lets)
        store = store.body
    if not isinstance(store, BufferStore) or stmt.orelse is not None or store.predicate is not None:
        return None
    own, value = _own(store), substitute(store.value, lets)
    if not isinstance(test, (GT, GE, LT, LE)) or {test.a, test.b} != {own, value} or own is value:
        return None
    if any(x.buffer.data is own.buffer.data for x in loads_of(value)):
        return None
    greater = isinstance(test, (GT, GE)) is (test.a is value)
    kind = Max if greater else Min
    if value.dtype.is_float:
        if "reassoc" not in liberties:
            return None
        if "nnan" not in liberties:
            least = identity_of(kind(value, value))
            assert least is not None
            value = Select(EQ(value, value), value, least)
    return evolve(store, value=kind(own, value))
