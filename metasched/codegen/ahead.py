"""Bins computed ahead: vectors compute where a loop updates, then the updates run one by one.

    for i in range(n):                       n // 16 times:
        b = int32(x[i] * 100)          ->        b = int32(x[i : i + 16] * 100)
        h[b] = h[b] + 1                          for each lane l: h[b[l]] = h[b[l]] + 1

Lanes that update one element would lose updates, so a histogram has no vectors. What it computes
before, a conversion of a float at least, costs more than the update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from metasched.codegen.arithmetic import binary
from metasched.codegen.chunks import emit_in_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.in_memory import to_memory
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import INT64
from metasched.ir.expr import Add, Cast, Expr, Var
from metasched.ir.op import Call, Effect, effect_of
from metasched.ir.stmt import BufferStore, For, LetStmt, Stmt
from metasched.ir.visit import free_vars, jumps, loads_of, transform, walk_exprs, walk_stmts

_MOST = 8
"""The most statements of which a copy is made for each lane."""


def emit_ahead(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop whose updates need a value that vectors compute; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    let = _named(node.body)
    if let is None or not is_ahead(let, node.var) or not plain(let.value):
        return False
    loads = loads_of(let.value)
    bits = max(let.var.dtype.bits, *(load.buffer.dtype.bits for load in loads))
    lanes = e.module.vector_bits // bits
    if lanes < 4 or (extent.const is not None and extent.const < lanes):
        return False
    emit = partial(_emit_vector, e, let, node.var, lanes)
    emit_in_chunks(e, node, extent, lanes, emit, serial_loop)
    return True


def _named(body: Stmt) -> LetStmt | None:
    """A body that names the bin: as written, or a store whose index converts a float."""
    if isinstance(body, LetStmt):
        return body
    if not isinstance(body, BufferStore) or body.predicate is not None:
        return None
    for index in body.indices:
        parts = list(walk_exprs(index))
        if any(isinstance(x, Call) and x.op.name == "if_then_else" for x in parts):
            continue  # one side may stand for loads outside of a buffer
        for part in parts:
            if isinstance(part, Cast) and part.dtype.is_int and part.value.dtype.is_float:
                var = Var("bin", part.dtype)
                named: dict[Expr, Expr] = {part: var}
                return LetStmt(var, part, transform(body, on_expr=named.get))
    return None


def is_ahead(let: LetStmt, var: Var) -> bool:
    """Whether a variable, converted from a float for each iteration, says where stores go, and the
    stores do not decide its value."""
    if let.var.dtype.is_handle or let.var.dtype.lanes > 1 or not let.var.dtype.is_int:
        return False
    if var not in free_vars(let.value) or effect_of(let.value) > Effect.READ or jumps(let.body):
        return False
    converts = any(isinstance(x, Cast) and x.value.dtype.is_float for x in walk_exprs(let.value))
    inside = list(walk_stmts(let.body))
    stores = [s for s in inside if isinstance(s, BufferStore)]
    written = {s.buffer.data for s in stores}
    if not converts or len(inside) > _MOST or any(isinstance(s, For) for s in inside):
        return False
    loads = loads_of(let.value)
    if not loads or any(load.buffer.data in written for load in loads):
        return False
    return any(let.var in free_vars(i) for s in stores for i in s.indices)


def _emit_vector(e: Emitter, let: LetStmt, var: Var, n: int, base: Val) -> None:
    """Emit `n` iterations: the lanes pass through memory, from which a scalar costs one load."""
    dtype = let.var.dtype
    e.lane = Lane(var, base, n)
    values = e.widen(e.value(let.value), n)
    e.lane = None
    room, kind = e.fresh("ahead"), memory_type(dtype)
    e.allocas.append(f"{room} = alloca [{n} x {kind}], align 64")
    e.line(f"store {to_memory(e, values)}, ptr {room}, align 64")
    for lane in range(n):
        place = e.inline(f"getelementptr {kind}, ptr {room}, i64 {lane}", INT64).text
        one = e.inline(f"load {kind}, ptr {place}, align {dtype.bytes}", dtype)
        here = binary(e, Add, base, literal(lane))
        with e.bound(var, here), e.bound(let.var, one):
            e.statement(let.body)
