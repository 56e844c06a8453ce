"""Serial loops in chunks: a rule that knows the form of a loop emits a vector of its iterations.

The rules are in the modules `compaction`, `shifted`, `ahead`, `rare`, `reductions` and
`ordered_sums`. Iterations that fill no vector run one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from metasched.codegen.arithmetic import binary, compare
from metasched.codegen.emit import Emitter, SerialLoop
from metasched.codegen.places import lane_offsets
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import INT64
from metasched.ir.expr import GE, GT, LT, FloorDiv, Max, Mul, Sub, Var
from metasched.ir.stmt import For, ForKind, Stmt

EmitChunk: TypeAlias = Callable[[Val], None]
"""Emits one vector of iterations, from the given first one on."""


class Chunk(Stmt):
    """One vector of a loop's iterations, as the body of the loop over vectors."""

    __slots__ = ("emit", "lanes", "number")

    def __init__(self, number: Var, lanes: int, emit: EmitChunk) -> None:
        self.number, self.lanes, self.emit = number, lanes, emit


def emit_chunk(e: Emitter, stmt: Chunk) -> None:
    """The rule of `Chunk`."""
    base = binary(e, Mul, e.env[stmt.number], literal(stmt.lanes))
    base.nonneg = True
    stmt.emit(base)


def loop_over_chunks(
    e: Emitter, node: For, vectors: tuple[Val, Val], lanes: int, emit: EmitChunk,
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit the `vectors` of a loop, from the first one to the end."""
    number = Var(node.var.name, INT64)
    chunks = For(number, node.min, node.extent, ForKind.SERIAL, Chunk(number, lanes, emit))
    serial_loop(e, chunks, *vectors)


def emit_in_chunks(
    e: Emitter, node: For, extent: Val, lanes: int, emit: EmitChunk, serial_loop: SerialLoop
) -> None:
    """Emit all full vectors of a loop, then the iterations that are left."""
    count = binary(e, Max, binary(e, FloorDiv, extent, literal(lanes)), literal(0))
    if count.const != 0:  # a loop is emitted with its test at the end
        loop_over_chunks(e, node, (literal(0), count), lanes, emit, serial_loop)
    done = binary(e, Mul, count, literal(lanes))
    if done.const is None or done.const != extent.const:
        serial_loop(e, node, done, extent)


def emit_if_long(
    e: Emitter, node: For, extent: Val, least: int, emit: Callable[[], None],
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit code for a loop of at least so many iterations, and the loop one by one for a shorter
    one."""
    few, many, done = (e.fresh_label(name) for name in ("few", "lanes", "reduced"))
    e.branch_if(compare(e, GE, extent, literal(least)), many, few)
    e.label(many)
    with e.scope():
        emit()
    e.branch(done)
    e.label(few)
    with e.scope():
        serial_loop(e, node, literal(0), extent)
    e.branch(done)
    e.label(done)


def emit_all_in_vectors(
    e: Emitter, node: For, extent: Val, lanes: int, vector: Callable[[Val, Val | None], None],
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit all full vectors of a loop, then the iterations that are left as one vector under a
    mask.

    Args:
        vector: emits a vector of iterations, from the given first one on, and where the mask holds.
    """
    whole = binary(e, FloorDiv, extent, literal(lanes))
    chunk: EmitChunk = lambda base: vector(base, None)  # noqa: E731
    loop_over_chunks(e, node, (literal(0), whole), lanes, chunk, serial_loop)
    begin = binary(e, Mul, whole, literal(lanes))
    left = binary(e, Sub, extent, begin)
    rest, done = e.fresh_label("rest"), e.fresh_label("all")
    e.branch_if(compare(e, GT, left, literal(0)), rest, done)
    e.label(rest)
    with e.scope():
        vector(begin, compare(e, LT, lane_offsets(e, lanes), e.widen(left, lanes)))
    e.branch(done)
    e.label(done)
