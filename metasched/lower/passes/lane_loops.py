"""Loops of lanes: each lane of a vectorized loop runs a loop until its own condition fails.

    for j in T.vectorized(16):
        n = T.allocate((1,)); n[0] = 0
        while n[0] < A[j]: n[0] = n[0] + 1
        B[j] = n[0]

becomes, with a copy of n and a mask for each lane,

    for j in T.vectorized(16): n[j] = 0
    for j in T.vectorized(16): on[j] = True
    while True:
        for j in T.vectorized(16): on[j] = T.if_then_else(on[j], n[j] < A[j], False)
        if not T.any_lane(on[0:16]): break
        for j in T.vectorized(16): n[j] = T.Select(on[j], n[j] + 1, n[j])
    for j in T.vectorized(16): B[j] = n[j]

A `for` whose ends differ between the lanes, and a break or a continue, are loops of this kind, too.
Where lanes can count the steps of a `for` together (see `even_lanes`), they do.
The steps of a lane stay in their order, and a lane that is switched off loads and stores nothing
(SPMD on SIMD, Pharr and Mark 2012). The condition stands before the body, as in the loop of one
lane: then both round in the same way where LLVM fuses products and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import BOOL, INT64, DType
from metasched.ir.expr import (
    FALSE,
    And,
    Expr,
    IntImm,
    Not,
    Select,
    Var,
    as_expr,
    as_int,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call, Effect, Ramp, call
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    Break,
    BufferStore,
    Continue,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import (
    jumps,
    map_body,
    reads_memory,
    substitute,
    transform,
    transform_expr,
    walk_exprs,
    walk_stmts,
)
from metasched.lower.passes.even_lanes import differs, in_step

MOST_LANES = 64
"""The most lanes of a vectorized loop that holds a loop of lanes."""
_PLAIN = (
    Allocate,
    AttrStmt,
    Break,
    BufferStore,
    Continue,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    While,
)


def lane_loops(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to each vectorized loop whose lanes run loops of their own."""
    return map_body(func, lambda body: transform(body, _vectorized))


def holds_lane_loop(loop: For) -> bool:
    """Whether lanes of a vectorized loop may run different numbers of iterations of a loop in it,
    and `lane_loops` can run these lanes at once."""
    lanes, inside = as_int(loop.extent), list(walk_stmts(loop.body))
    if (
        lanes is None
        or not 2 <= lanes <= MOST_LANES
        or not all(isinstance(s, _PLAIN) for s in inside)
    ):
        return False
    if any(isinstance(s, For) and s.kind is not ForKind.SERIAL for s in inside):
        return False
    own = [s.buffer for s in inside if isinstance(s, Allocate)]
    if any(b.constant_shape() is None or len(b.shape) != 1 for b in own):
        return False
    if any(e.dtype.lanes > 1 for s in inside for e in s.exprs):
        return False
    calls = (x for s in inside for e in s.exprs for x in walk_exprs(e) if isinstance(x, Call))
    if any(x.op.effect > Effect.PURE or x.op.arity is None for x in calls):
        return False  # pointers and foreign code know nothing of lanes
    varying = _varying(loop)
    return any(_of_lanes(s, varying) for s in inside)


def _varying(loop: For) -> set[Expr]:
    """The variables and the memory whose values may differ between the lanes."""
    found: set[Expr] = {loop.var}
    found |= {s.buffer.data for s in walk_stmts(loop.body) if isinstance(s, Allocate)}
    size = 0
    while size < len(found):
        size = len(found)
        for stmt in walk_stmts(loop.body):
            if isinstance(stmt, LetStmt) and differs(stmt.value, found):
                found.add(stmt.var)
            if isinstance(stmt, For) and (differs(stmt.min, found) or differs(stmt.extent, found)):
                found.add(stmt.var)
    return found


def _of_lanes(stmt: Stmt, varying: set[Expr]) -> bool:
    """Whether a statement is a loop that lanes may leave at different times."""
    if isinstance(stmt, For):
        return differs(stmt.min, varying) or differs(stmt.extent, varying) or jumps(stmt.body)
    return isinstance(stmt, While)


def _vectorized(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.VECTORIZED:
        return None
    if not holds_lane_loop(stmt):
        return None
    together = evolve(stmt, body=transform(stmt.body, partial(in_step, stmt, _varying(stmt))))
    return _Lanes(together).whole() if holds_lane_loop(together) else together


@dataclass
class _Masks:
    """The masks that a jump out of a loop switches off.

    Attributes:
        own: the lanes that run further iterations.
        inside: the masks of the present iteration, of the loop's body and of conditions in it.
    """

    own: Buffer | None
    inside: list[Buffer]


class _Lanes:
    """The rewriting of one vectorized loop."""

    def __init__(self, loop: For) -> None:
        self.loop, self.varying = loop, _varying(loop)
        self.count = as_int(loop.extent) or 0
        self.buffers: list[Buffer] = []
        self.own: set[Var] = set()
        self.copies: dict[Var, Buffer] = {}
        self.values: dict[Var, Expr] = {}
        self.loops: list[_Masks] = []

    def whole(self) -> Stmt:
        body = self.body(self.loop.body, None)
        for buffer in reversed(self.buffers):
            body = Allocate(buffer, body)
        return body

    # -- memory of lanes

    def memory(self, name: str, dtype: DType, size: int = 1) -> Buffer:
        """New memory with `size` elements for each lane."""
        made = Buffer(name, (IntImm(INT64, size * self.count),), dtype, scope="local")
        self.buffers.append(made)
        self.own.add(made.data)
        return made

    def at(self, buffer: Buffer) -> BufferLoad:
        """The element of memory that belongs to a lane."""
        return BufferLoad(buffer, (self.loop.var,))

    def place(self, index: Expr) -> Expr:
        """The place in memory of lanes of an element that a lane knows by an index."""
        return index.astype(self.loop.var.dtype) * self.count + self.loop.var

    def moved(self, expr: Expr) -> Expr:
        """An expression with the memory and the values of its lane."""

        def load(node: Expr) -> Expr | None:
            if isinstance(node, BufferLoad) and node.buffer.data in self.copies:
                return BufferLoad(self.copies[node.buffer.data], (self.place(node.indices[0]),))
            return None

        return transform_expr(substitute(expr, self.values), load, {})

    def bound(self, exprs: Sequence[Expr], use: Callable[..., Stmt]) -> Stmt:
        """A statement that uses expressions, with what they read of the lane's memory in variables.

        A variable is read without a mask, so that LLVM keeps the memory in registers.
        """
        names: dict[Expr, Var] = {}

        def load(node: Expr) -> Expr | None:
            if not isinstance(node, BufferLoad) or node.buffer.data not in self.own:
                return None
            start = Analyzer().simplify(node.indices[0] - self.loop.var)
            if as_int(start) is None:
                return None
            return names.setdefault(node, Var(node.buffer.name, node.dtype))

        stmt = use(*(transform_expr(expr, load, {}) for expr in exprs))
        for node, var in reversed(names.items()):
            stmt = LetStmt(var, node, stmt)
        return stmt

    def store(self, buffer: Buffer, value: Expr, on: Expr | None = None) -> Stmt:
        """Set the element of each lane that is on."""
        return self.set(buffer, self.loop.var, value, on)

    def set(self, buffer: Buffer, place: Expr, value: Expr, on: Expr | None) -> Stmt:
        if on is None:
            return self.bound((value,), lambda v: BufferStore(buffer, v, (place,)))
        if as_int(Analyzer().simplify(place - self.loop.var)) is None:
            # The place of a lane that is off may lie outside the memory.
            def masked(on: Expr, value: Expr, place: Expr) -> Stmt:
                return IfThenElse(on, BufferStore(buffer, value, (place,)))

            return self.bound((on, value, place), masked)
        old = BufferLoad(buffer, (place,))

        def kept(on: Expr, value: Expr, old: Expr) -> Stmt:
            return BufferStore(buffer, _chosen(on, value, old), (place,))

        return self.bound((on, value, old), kept)

    # -- statements

    def lanes(self, body: Stmt) -> Stmt:
        """A vectorized loop over a body."""
        var = Var(self.loop.var.name, self.loop.var.dtype)
        return evolve(self.loop, var=var, body=substitute(body, {self.loop.var: var}))

    def straight(self, stmt: Stmt) -> bool:
        """Whether a statement holds no loop of lanes, and no memory."""
        return not any(
            isinstance(s, (Allocate, Break, Continue)) or _of_lanes(s, self.varying)
            for s in walk_stmts(stmt)
        )

    def body(self, stmt: Stmt, mask: Buffer | None) -> Stmt:
        """The statements that run `stmt` in the lanes of a mask."""
        if self.straight(stmt):
            return self.lanes(self.under(stmt, None if mask is None else self.at(mask)))
        if isinstance(stmt, SeqStmt):
            return seq([self.body(part, mask) for part in self.grouped(stmt)])
        if isinstance(stmt, Allocate):
            size = stmt.buffer.constant_shape()
            assert size is not None
            name, dtype = stmt.buffer.name, stmt.buffer.dtype
            self.copies[stmt.buffer.data] = self.memory(name, dtype, prod(size))
            return self.body(stmt.body, mask)
        if isinstance(stmt, AttrStmt):
            return evolve(stmt, body=self.body(stmt.body, mask))
        if isinstance(stmt, LetStmt):
            return self.let(stmt, mask)
        if isinstance(stmt, IfThenElse):
            return self.condition(stmt, mask)
        if isinstance(stmt, (Break, Continue)):
            return self.jump(isinstance(stmt, Break), mask)
        if isinstance(stmt, While):
            return self.until(stmt.condition, stmt.body, mask, [])
        assert isinstance(stmt, For)
        return self.iterations(stmt, mask)

    def grouped(self, stmt: SeqStmt) -> list[Stmt]:
        """The parts of a sequence, neighbours without loops of lanes together."""
        found: list[list[Stmt]] = []
        for part in stmt.items:
            if found and self.straight(part) and self.straight(found[-1][-1]):
                found[-1].append(part)
            else:
                found.append([part])
        return [seq(parts) for parts in found]

    def let(self, stmt: LetStmt, mask: Buffer | None) -> Stmt:
        """A value that lanes keep in memory, since several loops use it."""
        if not differs(stmt.value, self.varying) and not reads_memory(stmt.value):
            return LetStmt(stmt.var, self.moved(stmt.value), self.body(stmt.body, mask))
        kept = self.memory(stmt.var.name, stmt.var.dtype)
        on = None if mask is None else self.at(mask)
        first = self.lanes(self.store(kept, self.moved(stmt.value), on))
        self.values[stmt.var] = self.at(kept)
        self.varying.add(stmt.var)
        return seq([first, self.body(stmt.body, mask)])

    def masked(self, name: str, mask: Buffer | None, condition: Expr) -> tuple[Buffer, Stmt]:
        """A new mask: the lanes of a mask where a condition holds."""
        made = self.memory(name, BOOL)
        if mask is None:
            return made, self.lanes(self.store(made, condition))
        return made, self.lanes(self.test(made, self.at(mask), condition))

    def test(self, made: Buffer, on: Expr, condition: Expr) -> Stmt:
        """Set a mask to the lanes that are on and where a condition holds.

        Memory of other lanes may never have been set, so a choice keeps their condition out.
        """

        def both(on: Expr, condition: Expr) -> Stmt:
            return BufferStore(made, _chosen(on, condition, FALSE), (self.loop.var,))

        return self.bound((on, condition), both)

    def any(self, mask: Buffer) -> Expr:
        """Whether a lane of a mask is on."""
        dtype = self.loop.var.dtype
        ramp = Ramp(as_expr(0, dtype), as_expr(1, dtype), self.count)
        return call("any_lane", BufferLoad(mask, (ramp,)), dtype=BOOL)

    def condition(self, stmt: IfThenElse, mask: Buffer | None) -> Stmt:
        """Both branches of a condition, each in its lanes."""
        on, first = self.masked("holds", mask, self.moved(stmt.condition))
        parts, branches = [first], [(on, stmt.then)]
        if stmt.orelse is not None:
            off, second = self.masked("fails", mask, Not(self.at(on)))
            parts.append(second)
            branches.append((off, stmt.orelse))
        for each, branch in branches:
            inside = self.loops[-1].inside if self.loops else []
            inside.append(each)
            parts.append(self.body(branch, each))
            inside.pop()
        return seq(parts)

    def jump(self, leaves: bool, mask: Buffer | None) -> Stmt:
        """Switch the lanes of a mask off, for the rest of the iteration or of the loop."""
        assert mask is not None
        masks = self.loops[-1]
        outer = [masks.own] if leaves and masks.own is not None else []
        off = [*outer, *(m for m in masks.inside if m is not mask), mask]
        return self.lanes(seq([self.store(m, And(self.at(m), Not(self.at(mask)))) for m in off]))

    def until(
        self, condition: Expr, body: Stmt, mask: Buffer | None, step: Sequence[tuple[Buffer, Expr]]
    ) -> Stmt:
        """A loop that each lane leaves when its condition fails; `step` ends an iteration."""
        on, first = self.masked("on", mask, as_expr(True))
        tested = self.lanes(self.test(on, self.at(on), self.moved(condition)))
        inside = [tested, IfThenElse(Not(self.any(on)), Break()), *self.iteration(on, body)]
        inside += [self.lanes(self.store(b, value, self.at(on))) for b, value in step]
        return seq([first, While(as_expr(True), seq(inside))])

    def iteration(self, on: Buffer, body: Stmt) -> list[Stmt]:
        """An iteration of a loop in the lanes that are still in the loop."""
        made = []
        live = on
        if jumps(body):
            live = self.memory("live", BOOL)
            made.append(self.lanes(self.store(live, self.at(on))))
        self.loops.append(_Masks(on, [live]))
        made.append(self.body(body, live))
        self.loops.pop()
        return made

    def iterations(self, loop: For, mask: Buffer | None) -> Stmt:
        """A `for` with jumps, or with ends that differ between the lanes."""
        loaded = mask is not None and (reads_memory(loop.min) or reads_memory(loop.extent))
        if not loaded and not any(differs(e, self.varying) for e in (loop.min, loop.extent)):
            ends = {"min": self.moved(loop.min), "extent": self.moved(loop.extent)}
            if not jumps(loop.body):
                self.loops.append(_Masks(mask, []))
                body = self.body(loop.body, mask)
                self.loops.pop()
                return evolve(loop, body=body, **ends)
            on, first = self.masked("on", mask, as_expr(True))
            leave = IfThenElse(Not(self.any(on)), Break())
            body = seq([*self.iteration(on, loop.body), leave])
            return seq([first, evolve(loop, body=body, **ends)])
        counter, end = (self.memory(f"{loop.var.name}{s}", loop.var.dtype) for s in ("", "_end"))
        on_ = None if mask is None else self.at(mask)
        start = [
            self.lanes(self.store(counter, self.moved(loop.min), on_)),
            self.lanes(self.store(end, self.moved(loop.min + loop.extent), on_)),
        ]
        self.values[loop.var] = self.at(counter)
        self.varying.add(loop.var)
        step = [(counter, self.at(counter) + 1)]
        return seq([*start, self.until(loop.var < self.at(end), loop.body, mask, step)])

    # -- statements without loops of lanes, in a vectorized loop

    def under(self, stmt: Stmt, on: Expr | None) -> Stmt:
        """A statement that takes effect in the lanes where `on` holds."""
        if isinstance(stmt, SeqStmt):
            return seq([self.under(part, on) for part in stmt.items])
        if isinstance(stmt, AttrStmt):
            return evolve(stmt, body=self.under(stmt.body, on))
        if isinstance(stmt, LetStmt):
            return self.named(stmt, on)
        if isinstance(stmt, For):
            return self.uniform(stmt, on)
        if isinstance(stmt, IfThenElse):
            return self.branches(stmt, on)
        assert isinstance(stmt, BufferStore)
        value = self.moved(stmt.value)
        own = self.copies.get(stmt.buffer.data)
        if own is not None:
            return self.set(own, self.place(self.moved(stmt.indices[0])), value, on)

        def plain(value: Expr, *rest: Expr) -> Stmt:
            indices = rest[: len(stmt.indices)]
            store = evolve(stmt, value=value, indices=indices)
            return store if on is None else IfThenElse(rest[-1], store)

        indices = [self.moved(i) for i in stmt.indices]
        return self.bound((value, *indices, *([] if on is None else [on])), plain)

    def named(self, stmt: LetStmt, on: Expr | None) -> Stmt:
        """A variable; lanes that are off read nothing for it."""
        body = self.under(stmt.body, on)
        value = self.moved(stmt.value)
        if on is None:
            return self.bound((value,), lambda v: LetStmt(stmt.var, v, body))
        none = as_expr(0, value.dtype)
        return self.bound((on, value), lambda o, v: LetStmt(stmt.var, _chosen(o, v, none), body))

    def uniform(self, loop: For, on: Expr | None) -> Stmt:
        """A loop that all lanes run equally often."""
        ends = {"min": self.moved(loop.min), "extent": self.moved(loop.extent)}
        made = evolve(loop, body=self.under(loop.body, on), **ends)
        loaded = reads_memory(loop.min) or reads_memory(loop.extent)
        return IfThenElse(on, made) if on is not None and loaded else made

    def branches(self, stmt: IfThenElse, on: Expr | None) -> Stmt:
        """Both branches of a condition; the condition is evaluated once."""
        holds, fails = Var("holds", BOOL), Var("fails", BOOL)
        body = self.under(stmt.then, holds)
        if stmt.orelse is not None:
            body = seq([body, self.under(stmt.orelse, fails)])

        def tested(condition: Expr, on: Expr | None = None) -> Stmt:
            value = condition if on is None else _chosen(on, condition, FALSE)
            other: Expr = Not(holds) if on is None else And(on, Not(holds))
            inner = body if stmt.orelse is None else LetStmt(fails, other, body)
            return LetStmt(holds, value, inner)

        condition = self.moved(stmt.condition)
        return self.bound((condition,) if on is None else (condition, on), tested)


def _chosen(on: Expr, value: Expr, other: Expr) -> Expr:
    """A value in lanes that are on; other lanes do not read its memory."""
    if reads_memory(value):
        return call("if_then_else", on, value, other)
    return Select(on, value, other)
