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

from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary, compare
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.in_memory import mangle, store_masked
from metasched.codegen.memory import lane_offsets, place_of, store
from metasched.codegen.types import register_type
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import INT64, DType
from metasched.ir.expr import LT, Add, Cast, Expr, FloorDiv, Max, Mul, Select, Var, as_int
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, SeqStmt, Stmt
from metasched.ir.visit import free_vars, loads_of, substitute

SerialLoop = Callable[[Emitter, For, Val, Val], None]
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
    if node.kind is not ForKind.SERIAL or e.lane is not None or e.mask is not None:
        return False
    if "avx512f" not in e.module.features or e.known_memory.disabled:  # shared memory
        return False
    found = match_compaction(node)
    if found is None or not all(map(plain, (found.condition, *(s.value for s in found.stores)))):
        return False
    lanes = e.module.vector_bits // max(s.buffer.dtype.bits for s in found.stores)
    if lanes < 4 or (extent.const is not None and extent.const < lanes):
        return False
    width = literal(lanes)
    count = binary(e, Max, binary(e, FloorDiv, extent, width), literal(0))
    chunk = Var(node.var.name, INT64)
    body = Packed(found, node.var, chunk, lanes)
    serial_loop(e, For(chunk, node.min, node.extent, ForKind.SERIAL, body), literal(0), count)
    done = binary(e, Mul, count, width)
    if done.const is None or done.const != extent.const:
        serial_loop(e, node, done, extent)
    return True


def match_compaction(node: For) -> Compaction | None:
    """The loop as a compaction; None for another loop."""
    body = _without_names(node.body)
    first, *rest = body.items if isinstance(body, SeqStmt) else (body,)
    if not isinstance(first, IfThenElse) or first.orelse is not None:
        return None
    inner = _without_names(first.then)
    stores = [*(inner.items if isinstance(inner, SeqStmt) else (inner,)), *rest]
    if len(stores) < 2 or len(rest) > 1:
        return None
    if not all(isinstance(s, BufferStore) and s.predicate is None for s in stores):
        return None
    *packed, counter = (s for s in stores if isinstance(s, BufferStore))
    counts = _counts(counter, node.var, first.condition if rest else None)
    found = Compaction(first.condition, packed, counter)
    return found if counts and _is_apart(found, node.var) else None


def _without_names(stmt: Stmt) -> Stmt:
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


class Packed(Stmt):
    """The iterations of one vector of a compaction, as the body of the loop over vectors."""

    __slots__ = ("chunk", "found", "lanes", "var")

    def __init__(self, found: Compaction, var: Var, chunk: Var, lanes: int) -> None:
        self.found, self.var, self.chunk, self.lanes = found, var, chunk, lanes


def emit_packed(e: Emitter, stmt: Packed) -> None:
    """The rule of `Packed`."""
    found, n = stmt.found, stmt.lanes
    base = binary(e, Mul, e.env[stmt.chunk], literal(n))
    base.nonneg = True
    e.lane = Lane(stmt.var, base, n)
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
        store_masked(e, one.buffer.dtype, where.pointer, _together(e, value, holds), active)
    counter = found.counter
    index = counter.indices[0]
    old = e.value(BufferLoad(counter.buffer, (index,)))
    kind = register_type(old.dtype)
    step = count if kind == "i64" else e.inline(f"trunc i64 {count.text} to {kind}", old.dtype)
    more = e.inline(f"add {old.typed}, {step.text}", old.dtype)
    store(e, counter.buffer, index, more, None)


def _together(e: Emitter, value: Val, holds: Val) -> Val:
    """The active lanes of a vector, one behind the other from the first lane on."""
    name = f"llvm.experimental.vector.compress.{mangle(value.dtype, value.lanes)}"
    rest = Val("poison", value.dtype, value.lanes, 0)
    return e.intrinsic(name, value.dtype, value.lanes, value, holds, rest)
