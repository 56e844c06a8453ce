"""Steps of an unrolled reduction that must not share loads, because the registers are full.

    for q in T.unroll(3): for j in T.unroll(14): for o in T.vectorized(16):
        s[j, o] = s[j, o] + x[j + q] * w[q, o]

Step q + 1 reads x[j + 1] as step q did for j + 1. LLVM keeps such values in registers between the
steps. Beside an accumulator in nearly every register, it then spills both. The code here hides from
LLVM that the steps read the same memory: each step takes the pointers through an empty assembly
statement. The values are then loaded again, which costs less than spilling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

from metasched.arith.affine import linear_address
from metasched.codegen.emit import Emitter
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.op import Ramp
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt
from metasched.ir.visit import free_vars, walk_exprs

_MOST = 4096  # loads of all steps, beyond which a loop is left alone
_OPERANDS = 2  # registers for the factors of one product
Place: TypeAlias = tuple[Var, frozenset[tuple[Expr, int]], int]
"""The buffer of a load, its address without the unrolled loops, and their share of the address."""


@dataclass(frozen=True, slots=True)
class _Update:
    """A store inside unrolled loops around one loop over lanes.

    Attributes:
        loops: the unrolled loops inside the reduction, with their extents.
        lane: the variable of the vectorized loop, None outside one; `lanes` is its extent.
    """

    store: BufferStore
    loops: Mapping[Expr, int]
    lane: Var | None
    lanes: int

    def bits(self, access: BufferLoad | BufferStore) -> int:
        """How wide the value of an access is, once it is in a vector register."""
        index = access.indices[0]
        explicit = index.lanes if isinstance(index, Ramp) else 1
        along = self.lanes if self.lane is not None and self.lane in free_vars(index) else 1
        return max(explicit, along) * access.buffer.dtype.bits


def separate_step(e: Emitter, node: For) -> None:
    """Let the loads of a step of an unrolled loop look like loads from other memory."""
    for data in _loaded(node):
        base = e.pointers.get(data)
        if base is not None and base.text not in e.stack:
            text = f'call ptr asm "", "=r,0"(ptr {base.text})'
            e.pointers[data] = e.pure(text, base.dtype, 1, base)


def shares_too_much(e: Emitter, node: For) -> bool:
    """Whether the steps of an unrolled loop add to values on the stack, and share more loads than
    there are registers."""
    key = ("shares_too_much", e.module.vector_bits, e.module.vector_registers)
    if key not in node.facts:
        node.facts[key] = _crowded(node, e.module.vector_bits, e.module.vector_registers)
    if not node.facts[key]:
        return False
    bases = (e.pointers.get(u.store.buffer.data) for u in _updates(node.body, {}, None, 1) or ())
    return all(base is not None and base.text in e.stack for base in bases)


def _crowded(node: For, vector_bits: int, registers: int) -> bool:
    found = _updates(node.body, {}, None, 1)
    steps = as_int(node.extent)
    if steps is None or not found or any(node.var in free_vars(u.store.indices[0]) for u in found):
        return False
    if steps * sum(prod(u.loops.values()) * len(_loads(u)) for u in found) > _MOST:
        return False
    written = {u.store.buffer.data for u in found}
    accumulators: dict[Place, int] = {}
    span: dict[Place, tuple[int, int, int]] = {}
    for update in found:
        size = -(-update.bits(update.store) // vector_bits)
        accumulators |= dict.fromkeys(_places(update, update.store, {}), size)
        loads = [load for load in _loads(update) if load.buffer.data not in written]
        for load, step in product(loads, range(steps)):
            size = -(-update.bits(load) // vector_bits)
            for place in _places(update, load, {node.var: step}):
                first, _, _ = span.get(place, (step, step, size))
                span[place] = first, step, size
    held = max(
        sum(size for first, last, size in span.values() if first <= step < last)
        for step in range(steps)
    )
    return held > 0 and sum(accumulators.values()) + held + _OPERANDS > registers


def _updates(
    stmt: Stmt, loops: Mapping[Expr, int], lane: Var | None, lanes: int
) -> list[_Update] | None:
    """The stores of a body that holds nothing but stores, tests, unrolled loops and vectorized
    loops; None for other bodies."""
    if isinstance(stmt, BufferStore):
        return [_Update(stmt, loops, lane, lanes)] if stmt.predicate is None else None
    if isinstance(stmt, (SeqStmt, IfThenElse)):
        parts = [_updates(item, loops, lane, lanes) for item in stmt.stmts]
        return None if None in parts else [u for part in parts if part for u in part]
    if not isinstance(stmt, For) or (extent := as_int(stmt.extent)) is None:
        return None
    if stmt.kind is ForKind.VECTORIZED and lane is None:
        return _updates(stmt.body, loops, stmt.var, extent)
    if stmt.kind is ForKind.UNROLLED or extent == 1:
        return _updates(stmt.body, {**loops, stmt.var: extent}, lane, lanes)
    return None


def _places(
    update: _Update, access: BufferLoad | BufferStore, at: Mapping[Expr, int]
) -> Iterator[Place]:
    """The places that an access touches in all copies of its statement, at values of more loops."""
    index = access.indices[0]
    address = linear_address(index.base if isinstance(index, Ramp) else index)
    moved = {var: factor for var, factor in address.terms.items() if var in update.loops}
    fixed = address.const + sum(address.terms.get(var, 0) * value for var, value in at.items())
    rest = {t: f for t, f in address.terms.items() if t not in moved and t not in at}
    key = frozenset(rest.items())
    for values in product(*(range(update.loops[var]) for var in moved)):
        share = sum(factor * n for factor, n in zip(moved.values(), values, strict=True))
        yield access.buffer.data, key, fixed + share


def _loads(update: _Update) -> list[BufferLoad]:
    return [x for x in walk_exprs(update.store.value) if isinstance(x, BufferLoad)]


def _loaded(node: For) -> list[Var]:
    """The buffers that the stores of a loop read and do not write, in the order of the loads."""
    found = _updates(node.body, {}, None, 1) or []
    written = {u.store.buffer.data for u in found}
    loaded = dict.fromkeys(load.buffer.data for u in found for load in _loads(u))
    return [data for data in loaded if data not in written]
