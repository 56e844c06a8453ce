"""Packed outputs: a loop that stores where a condition holds, one element behind the other.

    for i in range(n):                    n // 16 times:
        if m[i]:                              hold = m[i : i + 16]
            B[c[0]] = x[i]            ->      B[c[0] : c[0] + count(hold)] = x[i : i + 16] packed
            c[0] = c[0] + 1                   c[0] = c[0] + count(hold)

A branch whose outcome is random costs more than the work behind it. The vectors store exactly what
the loop stores. AVX-512 has an instruction that moves the active lanes of a register together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import compare
from metasched.codegen.chunks import emit_in_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.in_memory import mangle, store_masked
from metasched.codegen.memory import store
from metasched.codegen.places import lane_offsets, place_of
from metasched.codegen.types import register_type
from metasched.codegen.values import Val
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import INT64, DType
from metasched.ir.expr import LT, Add, Cast, Expr, Select, Var, as_int
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import BufferStore, For, IfThenElse, LetStmt, SeqStmt, Stmt
from metasched.ir.visit import free_vars, loads_of, substitute

_PACKED_BITS = (32, 64)
"""The bits of elements for which AVX-512F packs lanes."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A loop that packs its outputs.

    Attributes:
        condition: where elements are stored.
        stores: what is stored; each index is the counter plus what the loop does not change.
        counter: the store that counts one more.
    """

    condition: Expr
    stores: Sequence[BufferStore]
    counter: BufferStore


def emit_compaction(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop that packs its outputs by vectors; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    if "avx512f" not in e.module.features:
        return False
    found = match_compaction(node)
    if found is None or not all(map(plain, _inputs(found))):
        return False
    lanes = e.module.vector_bits // max(s.buffer.dtype.bits for s in found.stores)
    if lanes < 4 or (extent.const is not None and extent.const < lanes):
        return False
    emit = partial(_emit_vector, e, found, node.var, lanes)
    emit_in_chunks(e, node, extent, lanes, emit, serial_loop)
    return True


def match_compaction(node: For) -> Compaction | None:
    """The loop as a compaction; None for another loop."""
    body = _without_variables(node.body)
    first, *rest = body.items if isinstance(body, SeqStmt) else (body,)
    if not isinstance(first, IfThenElse) or first.orelse is not None:
        return None
    inner = _without_variables(first.then)
    stores = [*(inner.items if isinstance(inner, SeqStmt) else (inner,)), *rest]
    if len(stores) < 2 or len(rest) > 1:
        return None
    if not all(isinstance(s, BufferStore) and s.predicate is None for s in stores):
        return None
    *packed, counter = (s for s in stores if isinstance(s, BufferStore))
    counts = _counts(counter, node.var, first.condition if rest else None)
    found = Compaction(first.condition, packed, counter)
    return found if counts and _is_apart(found, node.var) else None


def _without_variables(stmt: Stmt) -> Stmt:
    """A statement with the values of variables around it in their place."""
    while isinstance(stmt, LetStmt) and effect_of(stmt.value) <= Effect.READ:
        if stmt.var.dtype.is_handle:
            break
        stmt = substitute(stmt.body, {stmt.var: stmt.value})
    return stmt


def _counts(store: BufferStore, var: Var, condition: Expr | None) -> bool:
    """Whether a store adds one to its element; under a condition, by a choice of one or zero."""
    value, index = store.value, store.indices
    if not store.buffer.dtype.is_int or len(index) != 1 or not isinstance(value, Add):
        return False
    old, step = value.a, value.b
    if condition is not None:
        if not isinstance(step, Select) or step.condition is not condition or as_int(step.b) != 0:
            return False
        step = step.a
    same = isinstance(old, BufferLoad) and old.buffer is store.buffer and old.indices == index
    return same and as_int(step) == 1 and var not in free_vars(index[0]) and not loads_of(index[0])


def _is_apart(found: Compaction, var: Var) -> bool:
    """Whether each output is memory of its own, filled where the counter says, and neither the
    outputs nor the counter decide what is stored."""
    counter = found.counter
    written = [s.buffer.data for s in (*found.stores, counter)]
    read = {load.buffer.data for e in _inputs(found) for load in loads_of(e)}
    if len({*written}) < len(written) or not read.isdisjoint(written):
        return False
    if any(s.buffer.dtype.bits not in _PACKED_BITS for s in found.stores):
        return False
    return all(
        len(s.indices) == 1 and _at_counter(s.indices[0], counter, var) for s in found.stores
    )


def _inputs(found: Compaction) -> list[Expr]:
    return [found.condition, *(s.value for s in found.stores)]


def _at_counter(index: Expr, counter: BufferStore, var: Var) -> bool:
    """Whether an index is the counter plus numbers that the loop does not change."""
    used = 0
    for atom, factor in linear_address(index).terms.items():
        value = atom.value if isinstance(atom, Cast) else atom
        if isinstance(value, BufferLoad) and value.buffer is counter.buffer:
            if factor != 1 or value.indices != counter.indices:
                return False
            used += 1
        elif var in free_vars(atom) or loads_of(atom):
            return False
    return used == 1


def _emit_vector(e: Emitter, found: Compaction, var: Var, n: int, base: Val) -> None:
    """Emit `n` iterations of a compaction."""
    e.lane = Lane(var, base, n)
    holds = e.widen(e.value(found.condition), n)
    with e.masked(holds):
        values = [e.widen(e.value(s.value), n) for s in found.stores]
    e.lane = None
    bits = DType(f"uint{max(n, 8)}")
    word = e.pure(f"bitcast {holds.typed} to i{n}", bits, 1, holds).text
    number = e.inline(f"call i{n} @llvm.ctpop.i{n}(i{n} {word})", bits)
    e.module.declare(f"llvm.ctpop.i{n}", f"i{n} @llvm.ctpop.i{n}(i{n})")
    count = e.inline(f"zext i{n} {number.text} to i64", INT64)
    active = compare(e, LT, lane_offsets(e, n), e.widen(count, n))
    for one, value in zip(found.stores, values, strict=True):
        where = place_of(e, one.buffer, one.indices[0])
        e.known_memory.touched(one.buffer.data, written=True)
        store_masked(e, one.buffer.dtype, where.pointer, _compressed(e, value, holds), active)
    counter = found.counter
    index = counter.indices[0]
    old = e.value(BufferLoad(counter.buffer, (index,)))
    kind = register_type(old.dtype)
    step = count if kind == "i64" else e.inline(f"trunc i64 {count.text} to {kind}", old.dtype)
    more = e.inline(f"add {old.typed}, {step.text}", old.dtype)
    store(e, counter.buffer, index, more, None)


def _compressed(e: Emitter, value: Val, holds: Val) -> Val:
    """The active lanes of a vector, one behind the other from the first lane on."""
    name = f"llvm.experimental.vector.compress.{mangle(value.dtype, value.lanes)}"
    rest = Val("poison", value.dtype, value.lanes, 0)
    return e.intrinsic(name, value.dtype, value.lanes, value, holds, rest)
