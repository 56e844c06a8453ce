"""Sums of slow values in serial loops: the values in lanes, then one addition after another.

    for p in range(a, b):                       for a vector of iterations p:
        q = sqrt(f(X[N[p]]))                        v = q * q if q < 1 else -0.0, in all lanes
        if q < 1: s = s + q * q         ->          s = s + v[0]; s = s + v[1]; ...

The additions of floats keep their order. An iteration that adds nothing adds -0.0, which changes no
float. A square root, a division or a condition that nobody can guess takes longer than the addition
that each iteration waits for. Vectors that add nothing are left out, and do not touch the element:
where no test holds, its index may be any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from metasched.codegen.arithmetic import compare, select
from metasched.codegen.chunks import emit_all_in_vectors, emit_if_long
from metasched.codegen.emit import Emitter, SerialLoop
from metasched.codegen.memory import store
from metasched.codegen.reductions import WORTH, Reduction, is_gathered, is_input, values_in_lanes
from metasched.codegen.types import register_type
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import BOOL, INT32, INT64
from metasched.ir.expr import (
    NE,
    Add,
    BinaryOp,
    Div,
    Expr,
    FloatImm,
    Var,
)
from metasched.ir.op import FLOATING, Call, Effect, call, effect_of
from metasched.ir.stmt import BufferStore, For, IfThenElse, LetStmt, SeqStmt, Stmt
from metasched.ir.visit import free_vars, loads_of, substitute, walk_exprs

_MOST = 400
"""The most operations of a value, with all variables replaced."""
_SLOW = frozenset(("if_then_else", *FLOATING.split())) - frozenset(
    ("floor", "ceil", "round", "nearbyint", "trunc")
)


def emit_ordered_sums(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit sums of slow values by vectors, the last one under a mask; returns whether they were
    emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    found = match_sums(node)
    if not found or not all(plain(one.value) for one in found):
        return False
    lanes = e.module.vector_bits // found[0].store.buffer.dtype.bits
    if lanes < 4 or (extent.const is not None and extent.const < lanes):
        return False
    emit = partial(_emit_all, e, node, found, lanes, extent, serial_loop)
    emit_if_long(e, node, extent, lanes // 2, emit, serial_loop)
    return True


def _emit_all(
    e: Emitter, node: For, found: list[Reduction], lanes: int, extent: Val, serial_loop: SerialLoop
) -> None:
    """Emit all iterations as vectors, whose lanes are added one after another."""
    slots: dict[int, str] = {}
    for n, one in enumerate(found):
        if not _guarded(one.value):  # the first iteration adds
            slots[n] = start(e, one)

    def vector(base: Val, mask: Val | None) -> None:
        values = values_in_lanes(e, node, found, lanes, base, mask)
        values = [_or_nothing(e, value, mask) for value in values]
        for n, (one, value) in enumerate(zip(found, values, strict=True)):
            if n in slots:
                _add_at(e, slots[n], value)
            else:
                _where_some_lane_adds(e, value, partial(_add_to, e, one, value))

    emit_all_in_vectors(e, node, extent, lanes, vector, serial_loop)
    for n, slot in slots.items():
        finish(e, found[n], slot)


def start(e: Emitter, one: Reduction) -> str:
    """Copy the element of a sum to a place of the stack, which LLVM keeps in a register."""
    slot = e.fresh("sum")
    e.allocas.append(f"{slot} = alloca {register_type(one.store.buffer.dtype, 1)}")
    e.line(f"store {e.value(one.element).typed}, ptr {slot}")
    return slot


def finish(e: Emitter, one: Reduction, slot: str) -> None:
    """Store a sum from its place of the stack."""
    last = one.store
    kind = register_type(last.buffer.dtype, 1)
    result = e.inline(f"load {kind}, ptr {slot}", last.buffer.dtype, 1)
    store(e, last.buffer, last.indices[0], result, None)


def _or_nothing(e: Emitter, value: Val, mask: Val | None) -> Val:
    """A vector with -0.0 in the lanes where a mask does not hold."""
    if mask is None:
        return value
    return select(e, mask, value, e.widen(literal(-0.0, value.dtype), value.lanes))


def add_lanes(e: Emitter, slot: str, value: Val, mask: Val | None) -> None:
    """Add the lanes of a vector, where a mask holds, to the sum at a place of the stack."""
    _add_at(e, slot, _or_nothing(e, value, mask))


def _add_at(e: Emitter, slot: str, value: Val) -> None:
    """Add the lanes of a vector to the sum at a place of the stack."""
    before = e.inline(f"load {register_type(value.dtype, 1)}, ptr {slot}", value.dtype, 1)
    e.line(f"store {_added(e, before, value).typed}, ptr {slot}")


def _add_to(e: Emitter, one: Reduction, value: Val) -> None:
    """Add the lanes of a vector to the element of a sum."""
    result = _added(e, e.value(one.element), value)
    store(e, one.store.buffer, one.store.indices[0], result, None)


def _added(e: Emitter, before: Val, value: Val) -> Val:
    """A number, with the lanes of a vector added one after another."""
    name = f"llvm.vector.reduce.fadd.v{value.lanes}f{value.dtype.bits}"
    return e.intrinsic(name, value.dtype, 1, before, value)


def _where_some_lane_adds(e: Emitter, value: Val, emit: Callable[[], None]) -> None:
    """Emit code behind a test whether a lane is not -0.0, which tests of the program may make all
    lanes."""
    run, skip = e.fresh_label("some"), e.fresh_label("none")
    dtype, lanes = (INT32 if value.dtype.bits == 32 else INT64), value.lanes
    bits = e.pure(f"bitcast {value.typed} to {register_type(dtype, lanes)}", dtype, lanes, value)
    nothing = e.widen(literal(-(1 << dtype.bits - 1), dtype), lanes)
    differs = compare(e, NE, bits, nothing)
    some = e.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", BOOL, 1, differs)
    e.branch_if(some, run, skip)
    e.label(run)
    e.line('call void asm sideeffect "", ""()')  # LLVM would run what follows in any case
    with e.scope():
        emit()
    e.branch(skip)
    e.label(skip)


def _guarded(value: Expr) -> bool:
    """Whether a value is -0.0 where a test fails."""
    if not isinstance(value, Call) or value.op.name != "if_then_else":
        return False
    return any(
        _guarded(arm) or (isinstance(arm, FloatImm) and _is_nothing(arm.value))
        for arm in value.args[1:]
    )


def _is_nothing(value: float) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def match_sums(node: For) -> list[Reduction]:
    """The loop as sums of floats in elements of their own, of which some values are slow; empty for
    another loop."""
    sums = _Sums()
    if not sums.read(node.body, {}):
        return []
    known = [
        Reduction(one, Add, BufferLoad(one.buffer, one.indices), value)
        for one, value in sums.found.values()
    ]
    stored = {one.store.buffer.data for one in known}
    if len(stored) < len(known) or len({one.store.buffer.dtype for one in known}) != 1:
        return []
    for one in known:
        index = one.store.indices[0]
        if node.var in free_vars(index) or loads_of(index):
            return []
        if not is_input(one.value, one.store, node.var, gathers=True):
            return []
    nodes = {x for one in known for x in walk_exprs(one.value)}
    if len(nodes) > _MOST or any(
        x.buffer.data in stored for x in nodes if isinstance(x, BufferLoad)
    ):
        return []
    floats = [x for x in nodes if isinstance(x, (BinaryOp, Call)) and x.dtype.is_float]
    slow = any(isinstance(x, Div) or (isinstance(x, Call) and x.op.name in _SLOW) for x in floats)
    gathers = sum(is_gathered(x) for x in nodes if isinstance(x, BufferLoad))
    return known if slow and len(floats) >= WORTH * gathers else []


@dataclass(slots=True)
class _Sums:
    """What a body adds to which elements: a store of each sum, and the value that is added."""

    found: dict[tuple[Var, Expr], tuple[BufferStore, Expr]] = field(default_factory=dict)

    def read(self, stmt: Stmt, known: Mapping[Var, Expr]) -> bool:
        """Read a statement with values of variables; False where it is no sum of floats."""
        if isinstance(stmt, LetStmt):
            if effect_of(stmt.value) > Effect.READ:
                return False
            return self.read(stmt.body, {**known, stmt.var: substitute(stmt.value, known)})
        if isinstance(stmt, SeqStmt):
            return all(self.read(part, known) for part in stmt.items)
        if isinstance(stmt, IfThenElse):
            return self._branch(stmt, known)
        if not isinstance(stmt, BufferStore) or stmt.predicate is not None:
            return False
        whole = stmt.value
        if len(stmt.indices) != 1 or not isinstance(whole, Add):
            return False
        if str(stmt.buffer.dtype) not in ("float32", "float64"):
            return False
        for element, value in ((whole.a, whole.b), (whole.b, whole.a)):
            if not isinstance(element, BufferLoad) or element.buffer is not stmt.buffer:
                continue
            if element.indices == stmt.indices and element.predicate is None:
                return self._add(stmt, substitute(value, known))
        return False

    def _add(self, one: BufferStore, value: Expr) -> bool:
        key = one.buffer.data, one.indices[0]
        if key in self.found or effect_of(value) > Effect.READ:
            return False  # two additions to an element in an iteration
        self.found[key] = one, value
        return True

    def _branch(self, stmt: IfThenElse, known: Mapping[Var, Expr]) -> bool:
        condition = substitute(stmt.condition, known)
        then, orelse = _Sums(), _Sums()
        if effect_of(condition) > Effect.READ or not then.read(stmt.then, known):
            return False
        if stmt.orelse is not None and not orelse.read(stmt.orelse, known):
            return False
        for key in dict.fromkeys((*then.found, *orelse.found)):
            one = then.found.get(key) or orelse.found[key]
            nothing = FloatImm(one[0].buffer.dtype, -0.0)
            added, other = (
                side.found[key][1] if key in side.found else nothing for side in (then, orelse)
            )
            if not self._add(one[0], call("if_then_else", condition, added, other)):
                return False
        return True
