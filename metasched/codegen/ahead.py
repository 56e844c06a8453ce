"""Bins computed ahead: vectors compute where a loop updates, then the updates run one by one.

    for i in range(n):                       n // 16 times:
        b = int32(x[i] * 100)          ->        b = int32(x[i : i + 16] * 100)
        h[b] = h[b] + 1                          for each lane l: h[b[l]] = h[b[l]] + 1

Lanes that update one element would lose updates, so a histogram has no vectors. What it computes
before, a conversion of a float at least, costs more than the update.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.in_memory import to_memory
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import INT64
from metasched.ir.expr import Add, Cast, Expr, FloorDiv, Max, Mul, Var
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import BufferStore, For, ForKind, LetStmt, Stmt
from metasched.ir.visit import free_vars, jumps, loads_of, walk_exprs, walk_stmts

SerialLoop = Callable[[Emitter, For, Val, Val], None]
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
    let = node.body
    if node.kind is not ForKind.SERIAL or e.lane is not None or e.mask is not None:
        return False
    if not isinstance(let, LetStmt) or not is_ahead(let, node.var) or not plain(let.value):
        return False
    loads = loads_of(let.value)
    bits = max(let.var.dtype.bits, *(load.buffer.dtype.bits for load in loads))
    lanes = e.module.vector_bits // bits
    if lanes < 4 or (extent.const is not None and extent.const < lanes):
        return False
    if e.known_memory.disabled:  # buffers may share memory
        return False
    count = binary(e, Max, binary(e, FloorDiv, extent, literal(lanes)), literal(0))
    chunk = Var(node.var.name, INT64)
    body = Ahead(let, node.var, chunk, lanes)
    serial_loop(e, For(chunk, node.min, node.extent, ForKind.SERIAL, body), literal(0), count)
    done = binary(e, Mul, count, literal(lanes))
    if done.const is None or done.const != extent.const:
        serial_loop(e, node, done, extent)
    return True


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


class Ahead(Stmt):
    """The iterations of one vector of such a loop, as the body of the loop over vectors."""

    __slots__ = ("chunk", "lanes", "let", "var")

    def __init__(self, let: LetStmt, var: Var, chunk: Var, lanes: int) -> None:
        self.let, self.var, self.chunk, self.lanes = let, var, chunk, lanes


def emit_ahead_of_updates(e: Emitter, stmt: Ahead) -> None:
    """The rule of `Ahead`: the lanes pass through memory, from which a scalar costs one load."""
    let, n, dtype = stmt.let, stmt.lanes, stmt.let.var.dtype
    base = binary(e, Mul, e.env[stmt.chunk], literal(n))
    base.nonneg = True
    e.lane = Lane(stmt.var, base, n)
    values = e.widen(e.value(let.value), n)
    e.lane = None
    room, kind = e.fresh("ahead"), memory_type(dtype)
    e.allocas.append(f"{room} = alloca [{n} x {kind}], align 64")
    e.line(f"store {to_memory(e, values)}, ptr {room}, align 64")
    for lane in range(n):
        place = e.inline(f"getelementptr {kind}, ptr {room}, i64 {lane}", INT64).text
        one = e.inline(f"load {kind}, ptr {place}, align {dtype.bytes}", dtype)
        here = binary(e, Add, base, literal(lane))
        with e.bound(stmt.var, here), e.bound(let.var, one):
            e.statement(let.body)
