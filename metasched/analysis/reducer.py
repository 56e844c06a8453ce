"""Reducers: recognise the commutative reduction that an init and an update compute.

A single reduction is a sum (`C = C + x`), product, minimum, maximum, `and` or `or`. A tuple is
several independent single reductions (sum and sum of squares), or an argmin or argmax (see
`analysis.choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TypeAlias

from metasched.analysis.choice import Choice, Test, Values, match_choice, match_extreme
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    Add,
    And,
    BinaryOp,
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
from metasched.ir.stmt import BufferStore, IfThenElse, LetStmt, SeqStmt, Stmt, evolve
from metasched.ir.visit import loads_of, substitute

_Combine: TypeAlias = Callable[[Values, Values], Values]


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """result = combine(result, rhs), starting from the identity.

    Attributes:
        name: sum, prod, min, max, and, or, argmin, argmax, or `tuple` for several reductions.
        buffers: the result buffer of each component.
        indices: the indices of the updated element, equal in all result buffers.
        identity: the start value of each component, which changes no result.
        lhs: for each component the load of the result so far.
        rhs: for each component the value that is combined into the result.
        commutative: whether the order never matters; False for an argmin or argmax that decides
            ties by order.
        liberties: the liberties (see `ir.func.LIBERTIES`) that a function must grant so that the
            values of an argmin or argmax may be combined in another order.
    """

    name: str
    buffers: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    identity: Values
    lhs: Values
    rhs: Values
    commutative: bool
    combiner: _Combine
    liberties: frozenset[str] = frozenset()

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


def identity_of(value: Expr) -> Expr | None:
    """The identity of the operation that computes `value`: a sum, difference, product, minimum or
    maximum. None for another operation."""
    dtype = value.dtype
    if isinstance(value, (Add, Sub, Mul)):
        return as_expr(int(isinstance(value, Mul)), dtype)
    if isinstance(value, (Min, Max)):
        if dtype.is_float:
            return as_expr(dtype.greatest if isinstance(value, Min) else -dtype.greatest, dtype)
        return as_expr(dtype.range[int(isinstance(value, Min))], dtype)
    return None


def match_reducer(init: Stmt | None, update: Stmt) -> Reduction | None:
    """The reduction that the init and the update of one block compute; None for no match.

    The init must store the identity of the operation in the update.
    """
    return None if init is None else _match(init, update)


@lru_cache(maxsize=1 << 10)
def _match(init: Stmt, update: Stmt) -> Reduction | None:
    starts, steps = updates_of(init), updates_of(update)
    if starts is None or steps is None or len(starts) != len(steps):
        return None
    indices = steps[0].indices
    if any(s.indices != indices for s in (*starts, *steps)):
        return None
    buffers = tuple(s.buffer for s in steps)
    given = {s.buffer: s.value for s in starts}
    if given.keys() != set(buffers):
        return None
    lhs = tuple(BufferLoad(b, indices) for b in buffers)
    identity = tuple(given[b] for b in buffers)
    values = tuple(s.value for s in steps)
    singles = _singles(values, lhs, identity)
    if singles is not None:
        name, rhs, combiner = singles
        return Reduction(name, buffers, indices, identity, lhs, rhs, True, combiner)
    found = choice_of(steps)
    if found is None or not _starts(found[0], identity):
        return None
    choice, rhs = found
    order_free = choice.ties in ("smaller", "larger")
    return Reduction(
        choice.name, buffers, indices, identity, lhs, rhs, order_free, choice.combine,
        _needs(choice, lhs[choice.at]),
    )  # fmt: skip


def _needs(choice: Choice, value: Expr) -> frozenset[str]:
    """The liberties without which an argmin or argmax in another order may give another result."""
    if not value.dtype.is_float or (choice.skips_nan and choice.ties != "last"):
        return frozenset()
    return frozenset(("nnan",) if choice.pairs else ("nnan", "reassoc"))


def keeps_order(update: Stmt) -> bool:
    """Whether an update is an argmin or argmax whose result depends on the order of the values."""
    stores = updates_of(update)
    found = choice_of(stores) if stores else None
    if found is None or stores is None:
        return False
    choice = found[0]
    return choice.ties in ("first", "last") or bool(_needs(choice, stores[choice.at].value))


def _starts(choice: Choice, identity: Values) -> bool:
    """Whether each partial result of an argmin or argmax may start from the values of its init.

    Combining a pair with an equal pair gives the same pair, so a start pair may take part more than
    once. But if the last of equal values wins, a later start pair would replace an equal value.
    """
    if not all(isinstance(value, (IntImm, FloatImm)) for value in identity):
        return False
    if choice.ties != "last":
        return True
    start = identity[choice.at]
    finite = start.dtype.is_float and abs(start.value) != inf  # type: ignore[attr-defined]
    return identity_holds("max" if choice.name == "argmax" else "min", start) and not finite


def choice_of(stores: Sequence[BufferStore]) -> tuple[Choice, Values] | None:
    """The argmin or argmax that two stores compute, and the new pair that they compare with the old
    pair, in the order of the stores; None for no match."""
    if len(stores) != 2:
        return None
    lhs = tuple(BufferLoad(s.buffer, s.indices) for s in stores)
    values = tuple(s.value for s in stores)
    own = {s.buffer.data for s in stores}
    for at in (1, 0):
        found = match_choice(values, lhs, at)
        if found is not None and not any(_reads_any(e, own) for e in found[1]):
            return found
    return None


def extreme_of(stores: Sequence[BufferStore]) -> tuple[Test, Expr] | None:
    """The comparison by which one store keeps the largest or smallest float, and the new value;
    None for other stores. NaN changes nothing, and of equal zeros the order decides."""
    if len(stores) != 1 or stores[0].buffer.dtype not in ("float32", "float64"):
        return None
    found = match_extreme(stores[0].value, _own(stores[0]))
    if found is None or _reads_any(found[1], {stores[0].buffer.data}):
        return None
    return found if found[0].by_index is None else None


def updates_of(stmt: Stmt) -> list[BufferStore] | None:
    """The stores of straight-line code, each into another buffer, with lets replaced by values.

    A condition around the code turns each value into a choice between the new and the old content.
    Returns None for other statements, and if a store reads a buffer that an earlier store wrote.
    """
    lets: dict[Var, Expr] = {}
    while isinstance(stmt, LetStmt):
        lets[stmt.var] = substitute(stmt.value, lets)
        stmt = stmt.body
    if isinstance(stmt, IfThenElse) and stmt.orelse is None:
        condition, inside = substitute(stmt.condition, lets), updates_of(stmt.then)
        return inside and [
            evolve(s, value=Select(condition, substitute(s.value, lets), _own(s))) for s in inside
        ]
    out: list[BufferStore] = []
    written: set[Var] = set()
    for item in stmt.items if isinstance(stmt, SeqStmt) else (stmt,):
        if not isinstance(item, BufferStore) or item.predicate is not None:
            return None
        if _reads_any(item.value, written) or item.buffer.data in written:
            return None
        out.append(evolve(item, value=substitute(item.value, lets)))
        written.add(item.buffer.data)
    return out


def _own(store: BufferStore) -> BufferLoad:
    return BufferLoad(store.buffer, store.indices)


def _reads_any(value: Expr, memory: set[Var]) -> bool:
    return any(load.buffer.data in memory for load in loads_of(value))


_Found: TypeAlias = tuple[str, Values, _Combine]


def _singles(values: Values, lhs: Values, identity: Values) -> _Found | None:
    """Independent reductions, one for each component."""
    own = {load.buffer.data for load in lhs if isinstance(load, BufferLoad)}
    kinds: list[type[BinaryOp]] = []
    rhs: list[Expr] = []
    for value, load, start in zip(values, lhs, identity, strict=True):
        found = operand_of(value, load)
        if found is None or _reads_any(found[1], own):
            return None
        if not identity_holds(_SINGLE[found[0]], start):
            return None
        kinds.append(found[0])
        rhs.append(found[1])

    def combine(a: Values, b: Values) -> Values:
        return tuple(k(x, y) for k, x, y in zip(kinds, a, b, strict=True))

    name = _SINGLE[kinds[0]] if len(kinds) == 1 else "tuple"
    return name, tuple(rhs), combine


def grouped(store: BufferStore) -> BufferStore:
    """`S[i] = S[i] + a + b` as `S[i] + (a + b)`, for any operation; other stores as they are."""
    value, own = store.value, _own(store)
    if isinstance(value, BinaryOp) and own in (value.a, value.b):
        return store
    found = operand_of(value, own)
    return store if found is None else evolve(store, value=found[0](own, found[1]))


def operand_of(value: Expr, load: Expr) -> tuple[type[BinaryOp], Expr] | None:
    """(operator, rest) of `load op rest`, where the load may also stand deeper in a chain of one
    operator."""
    if isinstance(value, Sub):
        inner = operand_of(value.a, load) if value.a is not load else (Add, as_expr(0, value.dtype))
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
            below = operand_of(mine, load)
            if below is not None and below[0] is kind:
                return kind, kind(below[1], other)
    return None
