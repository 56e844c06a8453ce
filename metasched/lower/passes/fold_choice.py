"""argmin and argmax along contiguous memory, in the lanes of vectors.

    for k in range(n): if V[k] > M: M = V[k]; N = k        # under the note of `fold`

becomes, with the best value of each lane and the number of its chunk in registers,

    vector l < w: best[l] = -inf; chunk[l] = -1
    for c in range(n // w): vector l < w: take V[c * w + l] and c where the value is better
    p = the first (or last) k of the lanes that hold the best of all values
    the update for k = p alone; the loop as written where no lane took a value

`if V[k] > M: M = V[k]` alone keeps the largest value of floats and the sign of the first zero:

    vector l < w: best[l] = -inf
    for c in range(n // w): vector l < w: best[l] = the better of best[l] and V[c * w + l]
    top = the best of all lanes; the loop as written if top is zero, else: if top > M: M = top

The update for p compares the new pair with the old pair as written, and stores the value at p bit
for bit. If an update may take a NaN, its result depends on the order. Then each lane adds up its
values. The loop runs as written if the total is NaN: after a NaN, or infinities of both signs. A
value `M = T.max(M, V[k])` keeps an old NaN, beside which no condition on the index holds: then the
loop runs as written, too.
"""

from __future__ import annotations

from math import inf

from metasched.analysis.block import FOLD
from metasched.analysis.choice import Choice, Test
from metasched.analysis.reducer import choice_of, extreme_of, updates_of
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT32, INT64, DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    Cast,
    Expr,
    IntImm,
    Max,
    Min,
    Not,
    Select,
    Var,
    as_expr,
    as_int,
    logical_and,
)
from metasched.ir.op import call
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, substitute


def fold_choice(
    loop: For, update: Stmt, width: int, liberties: tuple[str, ...] = ()
) -> Stmt | None:
    """The statements above for a loop around an update; None unless the update is an argmin or
    argmax that these statements can compute.

    Args:
        liberties: of the function. Where it allows `nnan`, a sum that is NaN would be undefined,
            and there is nothing to check.
    """
    stores = updates_of(update)
    if stores is None or any(loop.var in free_vars(s.indices[0]) for s in stores):
        return None
    extreme = extreme_of(stores)
    if extreme is not None:
        return _extreme(loop, stores[0], extreme, width)
    found = choice_of(stores)
    if found is None:
        return None
    choice, new = found
    value, index = new[choice.at], new[1 - choice.at]
    dtype = value.dtype
    first = _takes_first(choice, index, loop.var)
    if first is None or not (dtype.is_int or dtype in ("float32", "float64")):
        return None
    checked = dtype.is_float and not choice.skips_nan and "nnan" not in liberties
    old = _own(stores[choice.at])
    return _Lanes(loop, update, choice, value, old, first, width, checked).stmts()


def takes_lanes(update: Stmt, var: Var) -> DType | None:
    """The type of the values of an argmin, argmax or largest value along an iterator that
    `fold_choice` computes; None for other updates."""
    stores = updates_of(update)
    if stores is None or any(var in free_vars(i) for s in stores for i in s.indices):
        return None
    if extreme_of(stores) is not None:
        return stores[0].buffer.dtype
    found = choice_of(stores)
    if found is None:
        return None
    choice, new = found
    dtype = new[choice.at].dtype
    first = _takes_first(choice, new[1 - choice.at], var)
    takes = dtype.is_int or dtype in ("float32", "float64")
    return dtype if first is not None and takes else None


def _extreme(loop: For, store: BufferStore, extreme: tuple[Test, Expr], width: int) -> Stmt:
    """The statements above for an update that keeps the largest or smallest float."""
    test, value = extreme
    larger, extent, own = test.compare in (GT, GE), as_int(loop.extent) or 0, _own(store)
    worst = as_expr(-inf if larger else inf, value.dtype)
    best = Buffer.of("best", (width,), value.dtype, scope="local")
    top = Buffer.of("top", (1,), value.dtype, scope="local")
    zero, lane = as_expr(IntImm(INT64, 0)), Var("lane", INT64)

    def take(number: Expr, lanes: int) -> Stmt:
        lane = Var("lane", INT64)
        new, old = substitute(value, {loop.var: number * width + lane}), _of(best, lane)
        better = (GT if larger else LT)(new, old)
        return _for(lane, lanes, _set(best, lane, Select(better, new, old)), ForKind.VECTORIZED)

    number = Var(loop.var.name, INT64)
    full, rest = divmod(extent, width)
    found = _of(top, zero)
    steps = [
        _for(lane, width, _set(best, lane, worst), ForKind.VECTORIZED),
        _for(number, full, take(number, width)),
        *([take(as_expr(IntImm(INT64, full)), rest)] if rest else []),
        _set(top, zero, worst),
        _tree(top, Max if larger else Min, best, width),
        IfThenElse(
            EQ(found, as_expr(0.0, value.dtype)),
            loop,
            IfThenElse(test.compare(found, own), evolve(store, value=found)),
        ),
    ]
    return Allocate(best, Allocate(top, seq(steps)))


def _tree(into: Buffer, kind: type[Max | Min | Add], lanes: Buffer, width: int) -> Stmt:
    """Combine all lanes of a buffer in an element; code generation does it as a tree."""
    lane, zero = Var("lane", INT64), as_expr(IntImm(INT64, 0))
    return _folded(lane, width, _set(into, zero, kind(_of(into, zero), _of(lanes, lane))))


def _folded(lane: Var, width: int, store: Stmt) -> Stmt:
    return _for(lane, width, AttrStmt(None, FOLD, IntImm("int32", 1), store))


def _takes_first(choice: Choice, index: Expr, var: Var) -> bool | None:
    """True if the first of equal values wins, False if the last wins, None if neither does."""
    if choice.ties in ("first", "last"):
        return choice.ties == "first"
    inner = index.value if isinstance(index, Cast) and index.dtype.bits >= 32 else index
    step = as_int(Analyzer().simplify(substitute(inner, {var: var + 1}) - inner))
    return None if step is None or step <= 0 else choice.ties == "smaller"


class _Lanes:
    """The loops of one argmin or argmax."""

    def __init__(
        self, loop: For, update: Stmt, choice: Choice, value: Expr, old: Expr, first: bool,
        width: int, checked: bool,
    ) -> None:  # fmt: skip
        self.loop, self.update, self.choice = loop, update, choice
        self.value, self.old = value, old
        self.first, self.width, self.extent = first, width, as_int(loop.extent) or 0
        kind = INT64 if value.dtype.bits == 64 else INT32
        self.larger = choice.name == "argmax"
        self.best = Buffer.of("best", (width,), value.dtype, scope="local")
        self.chunk = Buffer.of("chunk", (width,), kind, scope="local")
        self.sums = Buffer.of("sums", (width,), value.dtype, scope="local")
        self.top = Buffer.of("top", (1,), value.dtype, scope="local")
        self.at = Buffer.of("at", (1,), kind, scope="local")
        self.total = Buffer.of("total", (1,), value.dtype, scope="local")
        self.checked = checked

    def stmts(self) -> Stmt:
        """All statements, with their buffers."""
        kind, zero = self.chunk.dtype, as_expr(IntImm(INT64, 0))
        full, rest = divmod(self.extent, self.width)
        none = kind.range[1] if self.first else -1
        lane = Var("lane", INT64)
        start = [_set(self.best, lane, self._worst()), _set(self.chunk, lane, as_expr(-1, kind))]
        if self.checked:
            start.append(_set(self.sums, lane, as_expr(0, self.value.dtype)))
        steps: list[Stmt] = [_for(lane, self.width, seq(start), ForKind.VECTORIZED)]
        number = Var(self.loop.var.name, INT64)
        steps.append(_for(number, full, self._take(number, self.width)))
        if rest:
            steps.append(self._take(as_expr(IntImm(INT64, full)), rest))
        lane = Var("lane", INT64)
        position = _of(self.chunk, lane) * self.width + Cast(kind, lane)
        holds = And(EQ(_of(self.best, lane), _of(self.top, zero)), _of(self.chunk, lane) >= 0)
        place = Select(holds, position, as_expr(none, kind))
        steps.append(_set(self.top, zero, self._worst()))
        steps.append(_tree(self.top, Max if self.larger else Min, self.best, self.width))
        steps.append(_set(self.at, zero, as_expr(none, kind)))
        nearer = (Min if self.first else Max)(_of(self.at, zero), place)
        steps.append(_folded(lane, self.width, _set(self.at, zero, nearer)))
        sure: Expr = _of(self.at, zero) < none if self.first else _of(self.at, zero) >= 0
        if self.checked:
            steps.append(_set(self.total, zero, as_expr(0, self.value.dtype)))
            steps.append(_tree(self.total, Add, self.sums, self.width))
            sure = logical_and(sure, Not(call("isnan", _of(self.total, zero))))
        if self.checked and not self.choice.pairs:
            sure = logical_and(sure, Not(call("isnan", self.old)))
        won = Cast(self.loop.var.dtype, _of(self.at, zero))
        body = fresh_copy(substitute(self.update, {self.loop.var: won}), _fresh)
        steps.append(IfThenElse(sure, body, self.loop))
        out: Stmt = seq(steps)
        for buffer in (self.best, self.chunk, self.sums, self.top, self.at, self.total):
            if self.checked or buffer not in (self.sums, self.total):
                out = Allocate(buffer, out)
        return out

    def _worst(self) -> Expr:
        """The worst value of the type: the smallest for argmax, the largest for argmin."""
        dtype: DType = self.value.dtype
        if dtype.is_float:
            return as_expr(-inf if self.larger else inf, dtype)
        return as_expr(dtype.range[0 if self.larger else 1], dtype)

    def _take(self, number: Expr, lanes: int) -> Stmt:
        """Take the values of one chunk where they are better."""
        lane = Var("lane", INT64)
        value = substitute(self.value, {self.loop.var: number * self.width + lane})
        old, kind = _of(self.best, lane), self.chunk.dtype
        compare = {(True, True): GT, (True, False): GE, (False, True): LT, (False, False): LE}
        better = compare[self.larger, self.first](value, old)
        body = [
            _set(self.chunk, lane, Select(better, Cast(kind, number), _of(self.chunk, lane))),
            _set(self.best, lane, Select(better, value, old)),
        ]
        if self.checked:
            body.insert(0, _set(self.sums, lane, _of(self.sums, lane) + value))
        return _for(lane, lanes, seq(body), ForKind.VECTORIZED)


def _fresh(var: Var) -> Var:
    return Var(var.name, var.dtype)


def _of(buffer: Buffer, at: Expr) -> BufferLoad:
    return BufferLoad(buffer, (at,))


def _own(store: BufferStore) -> BufferLoad:
    return BufferLoad(store.buffer, store.indices)


def _set(buffer: Buffer, at: Expr, value: Expr) -> BufferStore:
    return BufferStore(buffer, value, (at,))


def _for(var: Var, extent: int, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, IntImm(INT64, 0), IntImm(INT64, extent), kind, body)
