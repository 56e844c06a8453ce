"""Reducers: recognise the commutative reduction that an init and an update compute.

Single reductions (`C = C + x`, product, minimum, maximum, and, or) and tuples: several independent
ones side by side (sum and sum of squares), or argmin and argmax with both tie rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TypeAlias

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    BinaryOp,
    Compare,
    Expr,
    FloatImm,
    IntImm,
    Max,
    Min,
    Mul,
    Or,
    Select,
    Sub,
    Var,
    as_expr,
    sub,
)
from metasched.ir.stmt import BufferStore, LetStmt, SeqStmt, Stmt
from metasched.ir.visit import loads_of, substitute

Values: TypeAlias = tuple[Expr, ...]
_Combine: TypeAlias = Callable[[Values, Values], Values]


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """result = combine(result, rhs), starting from the identity.

    Attributes:
        name: sum, prod, min, max, and, or, argmin, argmax, or `tuple` for several side by side.
        buffers: where the results live, one for each component.
        indices: the element of them that is updated, the same in all.
        identity: for each component the value that changes nothing.
        lhs: the loads of the result so far.
        rhs: what is combined into it.
        commutative: whether the order never matters; False for an argmin or argmax that decides
            ties by order.
    """

    name: str
    buffers: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    identity: Values
    lhs: Values
    rhs: Values
    commutative: bool
    combiner: _Combine

    def combine(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> Values:
        """The components of `lhs` combined with those of `rhs`."""
        return self.combiner(tuple(lhs), tuple(rhs))


_SINGLE: dict[type[BinaryOp], str] = {
    Add: "sum", Mul: "prod", Min: "min", Max: "max", And: "and", Or: "or",
}  # fmt: skip


def identity_holds(name: str, value: Expr) -> bool:
    """Whether `value` is the identity of a single reducer for its type.

    For min and max of floats both the infinity and the largest finite number count.
    """
    if not isinstance(value, (IntImm, FloatImm)):
        return False
    number, dtype = value.value, value.dtype
    if name in ("sum", "or"):
        return number == 0
    if name in ("prod", "and"):
        return number == 1
    if isinstance(value, IntImm):
        return number == dtype.range[1 if name == "min" else 0]
    sign = 1 if name == "min" else -1
    return number == sign * inf or number == sign * dtype.largest


def match_reducer(init: Stmt | None, update: Stmt) -> Reduction | None:
    """The reduction that `init` and `update` (the parts of one block) compute, None for no match.

    The init must store the identity of what the update combines with.
    """
    return None if init is None else _match(init, update)


@lru_cache(maxsize=1 << 10)
def _match(init: Stmt, update: Stmt) -> Reduction | None:
    starts = _stores(init)
    steps = _stores(update)
    if starts is None or steps is None or len(starts) != len(steps):
        return None
    indices = steps[0].indices
    if any(s.indices != indices or s.predicate is not None for s in (*starts, *steps)):
        return None
    buffers = tuple(s.buffer for s in steps)
    given = {s.buffer: s.value for s in starts}
    if len(set(buffers)) != len(buffers) or given.keys() != set(buffers):
        return None
    lhs = tuple(BufferLoad(b, indices) for b in buffers)
    identity = tuple(given[b] for b in buffers)
    values = tuple(s.value for s in steps)
    found = _singles(values, lhs, identity)
    if found is None and len(buffers) == 2:
        found = _arg(values, lhs, identity, 1) or _arg(values, lhs, identity, 0)
    if found is None:
        return None
    name, rhs, commutative, combiner = found
    return Reduction(name, buffers, indices, identity, lhs, rhs, commutative, combiner)


def _stores(stmt: Stmt) -> list[BufferStore] | None:
    """The stores of a straight line of code, with lets replaced; None for anything else.

    None as well where a store reads a buffer that an earlier store wrote: it would read the new
    value.
    """
    lets: dict[Var, Expr] = {}
    early: set[Var] = set()
    while isinstance(stmt, LetStmt):
        lets[stmt.var] = substitute(stmt.value, lets)
        early.add(stmt.var)
        stmt = stmt.body
    items = stmt.items if isinstance(stmt, SeqStmt) else (stmt,)
    out: list[BufferStore] = []
    written: set[Buffer] = set()
    for item in items:
        if not isinstance(item, BufferStore) or _reads_any(item.value, written):
            return None
        value = substitute(item.value, lets)
        out.append(BufferStore(item.buffer, value, item.indices, item.predicate))
        written.add(item.buffer)
    return out


def _reads_any(value: Expr, buffers: set[Buffer]) -> bool:
    return any(load.buffer in buffers for load in loads_of(value))


_Found: TypeAlias = tuple[str, Values, bool, _Combine]


def _singles(values: Values, lhs: Values, identity: Values) -> _Found | None:
    """Independent reductions, one for each component."""
    own = {load.buffer for load in lhs if isinstance(load, BufferLoad)}
    kinds: list[type[BinaryOp]] = []
    rhs: list[Expr] = []
    for value, load, start in zip(values, lhs, identity, strict=True):
        found = _single(value, load)
        if found is None or _reads_any(found[1], own):
            return None
        if not identity_holds(_SINGLE[found[0]], start):
            return None
        kinds.append(found[0])
        rhs.append(found[1])

    def combine(a: Values, b: Values) -> Values:
        return tuple(k(x, y) for k, x, y in zip(kinds, a, b, strict=True))

    name = _SINGLE[kinds[0]] if len(kinds) == 1 else "tuple"
    return name, tuple(rhs), True, combine


def _single(value: Expr, load: Expr) -> tuple[type[BinaryOp], Expr] | None:
    """(operator, rest) of `load op rest`, also where the load stands in a chain of the operator."""
    if isinstance(value, Sub):
        inner = _single(value.a, load) if value.a is not load else (Add, as_expr(0, value.dtype))
        if inner is None or inner[0] is not Add:
            return None
        return Add, sub(inner[1], value.b)
    kind = type(value)
    if kind not in _SINGLE or not isinstance(value, BinaryOp):
        return None
    for mine, other in ((value.a, value.b), (value.b, value.a)):
        if mine is load:
            return kind, other
    for mine, other in ((value.a, value.b), (value.b, value.a)):
        if type(mine) is kind:
            below = _single(mine, load)
            if below is not None and below[0] is kind:
                return kind, kind(below[1], other)
    return None


_ARG: dict[type[BinaryOp], tuple[str, type[Compare]]] = {
    GT: ("argmax", GT), GE: ("argmax", GE), LT: ("argmin", LT), LE: ("argmin", LE),
}  # fmt: skip


def _arg(values: Values, lhs: Values, identity: Values, at: int) -> _Found | None:
    """Match argmin or argmax with the compared value in component `at`, the index in the other."""
    value, index = values[at], values[1 - at]
    load, index_load = lhs[at], lhs[1 - at]
    if not isinstance(index, Select) or index.a is not index_load:
        return None
    decided = _decision(index.condition, load, index_load, index.b)
    if decided is None:
        return None
    name, compare, other, by_index = decided
    if not _picks(value, load, other, name) or _reads_any_of(lhs, (other, index.b)):
        return None
    if not identity_holds("max" if name == "argmax" else "min", identity[at]):
        return None

    def combine(a: Values, b: Values) -> Values:
        chosen: Expr = compare(a[at], b[at])
        wins: Expr = chosen
        if by_index:
            tie = And(EQ(a[at], b[at]), LT(a[1 - at], b[1 - at]))
            wins = Or(chosen, tie)
        pair = (Select(wins, a[1 - at], b[1 - at]), Select(chosen, a[at], b[at]))
        return pair if at == 1 else (pair[1], pair[0])

    rhs = (index.b, other) if at == 1 else (other, index.b)
    return name, rhs, by_index, combine


def _reads_any_of(loads: Values, values: Values) -> bool:
    own = {load.buffer for load in loads if isinstance(load, BufferLoad)}
    return any(_reads_any(v, own) for v in values)


def _decision(
    condition: Expr, load: Expr, index_load: Expr, index: Expr
) -> tuple[str, type[Compare], Expr, bool] | None:
    """(name, comparison, the compared value, ties decided by the smaller index) of a condition."""
    by_index = isinstance(condition, Or)
    first = condition.a if isinstance(condition, Or) else condition
    kind = type(first)
    if kind not in _ARG or not isinstance(first, Compare) or first.a is not load:
        return None
    name, compare = _ARG[kind]
    if isinstance(condition, Or):
        tie = (
            And(EQ(load, first.b), LT(index_load, index)) if index.dtype is index_load.dtype else 0
        )
        if condition.b is not tie or compare not in (GT, LT):
            return None
    return name, compare, first.b, by_index


def _picks(value: Expr, load: Expr, other: Expr, name: str) -> bool:
    """Whether `value` is the larger (smaller, for argmin) of `load` and `other`."""
    if isinstance(value, Select):
        kinds = (GT, GE) if name == "argmax" else (LT, LE)
        ok = isinstance(value.condition, kinds) and value.a is load and value.b is other
        condition = value.condition
        return ok and isinstance(condition, Compare) and condition.children == (load, other)
    wanted = Max if name == "argmax" else Min
    return isinstance(value, wanted) and set(value.children) == {load, other}
