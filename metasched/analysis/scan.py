"""Scans: recognise a store that combines its own last result with a new value.

    B[j] = B[j - 1] + x(j)                                    # a cumulative sum
    B[j] = T.if_then_else(j == 0, y, B[j - 1] + x(j))         # with an explicit first value
    if j == 0: B[j] = y                                       # the same
    else:      B[j] = B[j - 1] + x(j)
    B[j] = B[j - 1] * 0.9 + x(j)                              # a decaying sum

Sum, product, minimum and maximum are associative, so several steps may be computed at once: first
x(0), x(0) + x(1), ... without the last result, then each partial sum plus the last result. Sums and
products of floats in plain loops keep their order (`in_fixed_order`). In a decaying sum a result
that is n steps older counts by the n-th power of the factor; these powers must neither overflow nor
vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import BufferLoad, Range
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Expr,
    FloatImm,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Select,
    Var,
    as_int,
)
from metasched.ir.op import Call, call
from metasched.ir.stmt import Block, BufferStore, IfThenElse, IterKind, Stmt, evolve
from metasched.ir.visit import loads_of, substitute

_KINDS = (Add, Mul, Max, Min)
LEAST_DECAY = 1 / 64
"""The smallest factor of a decaying sum: its 16th power is a normal number of float32."""


@dataclass(frozen=True, slots=True)
class Scan:
    """result(j) = kind(decay * result(j - 1), added(j)), or start(j) where `restarts` holds.

    Attributes:
        kind: the operator.
        before: the load of the last result.
        added: the value that a step combines with the last result.
        restarts: the condition under which a step stores `start`; it can hold in the first step
            only. None if the first step reads its last result from the buffer, too.
        start: the value that is stored where `restarts` holds.
        decay: the factor of the last result, of a sum of floats; from LEAST_DECAY to 1.
    """

    kind: type[BinaryOp]
    before: BufferLoad
    added: Expr
    restarts: Expr | None = None
    start: Expr | None = None
    decay: float = 1.0

    @property
    def step(self) -> Expr:
        """The value of a step that does not restart."""
        before: Expr = self.before
        if self.decay != 1:
            before = before * FloatImm(before.dtype, self.decay)
        combined: Expr = self.kind(before, self.added)
        return combined

    @property
    def identity(self) -> Expr:
        """The identity of the operator; -0.0 for sums of floats, because -0.0 + 0.0 is 0.0."""
        dtype = self.before.dtype
        if self.kind in (Add, Mul):
            number = int(self.kind is Mul)
            return FloatImm(dtype, number or -0.0) if dtype.is_float else IntImm(dtype, number)
        if dtype.is_float:
            return FloatImm(dtype, inf if self.kind is Min else -inf)
        return IntImm(dtype, dtype.range[self.kind is Min])


def block_scan(block: Block) -> tuple[int, Scan] | None:
    """The scan that a block computes, and the position of its iterator; None for other blocks.

    The scan runs along an iterator that is not spatial; others of the kind are indices of the
    store. If all iterators are spatial, as in `T.axis.remap("SS", ...)`, exactly one of them fits:
    the store decides then.
    """
    store = one_store(block.body)
    if store is None or block.init is not None or block.alloc_buffers or block.match_buffers:
        return None
    ordered = [n for n, v in enumerate(block.iter_vars) if not v.is_spatial]
    found = []
    for n in ordered or range(len(block.iter_vars)):
        v = block.iter_vars[n]
        scan = match_scan(store, v.var, as_int(v.dom.extent)) if as_int(v.dom.min) == 0 else None
        if scan is not None:
            found.append((n, scan))
    beside = {block.iter_vars[n].var for n in ordered} - {block.iter_vars[n].var for n, _ in found}
    return found[0] if len(found) == 1 and beside <= {*store.indices} else None


def in_fixed_order(block: Block, position: int, scan: Scan) -> bool:
    """Whether a scan must combine its values one after the other: a sum or product of floats along
    an iterator of unknown kind, as plain loops have it."""
    exact = scan.kind in (Max, Min) or not scan.before.dtype.is_float
    return not exact and block.iter_vars[position].kind is IterKind.OPAQUE


def one_store(stmt: Stmt) -> BufferStore | None:
    """A store, also written as two stores to one element in the branches of a condition; None for
    other statements."""
    if isinstance(stmt, BufferStore):
        return stmt
    if not isinstance(stmt, IfThenElse) or stmt.orelse is None:
        return None
    a, b = one_store(stmt.then), one_store(stmt.orelse)
    if a is None or b is None or a.buffer is not b.buffer or a.indices != b.indices:
        return None
    if a.predicate is not None or b.predicate is not None:
        return None
    return evolve(a, value=call("if_then_else", stmt.condition, a.value, b.value))


def match_scan(store: BufferStore, var: Var, extent: int | None) -> Scan | None:
    """The scan along a variable that a store computes; None for another store.

    Args:
        store: the only statement of a block.
        var: the iterator of the scan, which counts from 0.
        extent: the number of steps; None if unknown.
    """
    dtype = store.buffer.dtype
    if store.predicate is not None or not (dtype.is_int or dtype in ("float32", "float64")):
        return None
    known = Analyzer()
    if extent is not None:
        known.bind(var, Range(IntImm(var.dtype, 0), IntImm(var.dtype, extent)))
    if not _advances(known, store, var):
        return None
    last = {var: var - 1}
    wanted = [substitute(index, last) for index in store.indices]
    own = store.buffer.data
    for restarts, start, value in _starts(store.value):
        if not isinstance(value, _KINDS):
            continue
        for last_result, added in ((value.a, value.b), (value.b, value.a)):
            before, decay = _decayed(last_result) if type(value) is Add else (last_result, 1.0)
            if not isinstance(before, BufferLoad) or before.buffer is not store.buffer:
                continue
            if not all(map(known.equal, before.indices, wanted)):
                continue
            others = [e for e in (added, restarts, start) if e is not None]
            if any(load.buffer.data is own for e in others for load in loads_of(e)):
                continue
            if restarts is None or _only_first(restarts, var, extent):
                return Scan(type(value), before, added, restarts, start, decay)
    return None


def _decayed(value: Expr) -> tuple[Expr, float]:
    """A value without its factor, and the factor, if it may be that of a decaying sum."""
    for a, b in ((value.a, value.b), (value.b, value.a)) if isinstance(value, Mul) else ():
        if isinstance(b, FloatImm) and LEAST_DECAY <= b.value <= 1:
            return a, b.value
    return value, 1.0


def _advances(known: Analyzer, store: BufferStore, var: Var) -> bool:
    """Whether each step of `var` moves the store by the same distance, which is not 0."""
    following = [substitute(index, {var: var + 1}) for index in store.indices]
    steps = [as_int(known.simplify(b - a)) for a, b in zip(store.indices, following, strict=True)]
    return None not in steps and any(steps)


def _starts(value: Expr) -> list[tuple[Expr | None, Expr | None, Expr]]:
    """The ways to read a value as (condition of the start, start, value of the other steps)."""
    if isinstance(value, Select):
        condition, a, b = value.condition, value.a, value.b
    elif isinstance(value, Call) and value.op.name == "if_then_else":
        condition, a, b = value.args
    else:
        return [(None, None, value)]
    return [(condition, a, b), (Not(condition), b, a)]


def _only_first(condition: Expr, var: Var, extent: int | None) -> bool:
    """Whether a condition can hold for `var` = 0 alone."""
    if extent == 1:
        return True
    most = extent or var.dtype.range[1]
    known = Analyzer({var: Range(IntImm(var.dtype, 1), IntImm(var.dtype, most - 1))})
    return known.prove(Not(condition))
