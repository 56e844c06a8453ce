"""Several registers of lanes side by side in the loops inside a vectorized loop.

    for i in T.vectorized(64):
        b[i] = 0
        for k in range(31): b[i] = b[i] * x[i] + c[k]

The loop over k runs once, with four registers of lanes in each iteration, not once for each
register. An iteration waits for the results of the iteration before; the registers do not wait for
each other. As many registers run together as the processor has for the elements that the iterations
keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import BufferStore, For, ForKind, SeqStmt, Stmt, While, evolve, seq
from metasched.ir.visit import free_vars, loads_of, walk_stmts
from metasched.lower.passes.walk import walking_loads

_TEMPORARY = 6
"""Registers for the values of an iteration."""
Unrolls = Callable[[For], bool]


class Registers(Stmt):
    """A statement for several registers of lanes, as the body of a loop that all of them run."""

    __slots__ = ("emit",)

    def __init__(self, emit: Callable[[], None]) -> None:
        self.emit = emit


def emit_registers(e: Emitter, stmt: Registers) -> None:
    """The rule of `Registers`."""
    stmt.emit()


def registers_together(e: Emitter, node: For, width: int, unrolls: Unrolls) -> int:
    """How many registers of lanes of a vectorized loop run side by side; 1 where each register runs
    the whole body before the next one."""
    inside = [s for s in walk_stmts(node.body) if _is_loop(s, unrolls)]
    loops = [s for s in inside if isinstance(s, For)]
    if not loops or len(list(_shared(node.body, unrolls))) < len(inside):
        return 1
    if any(walking_loads(s, node.var, lambda atom: node.var in free_vars(atom)) for s in loops):
        return 1  # such lanes load several steps at once, each in registers of its own
    kept = max(_kept(loop, node, width, unrolls) for loop in loops)
    return max(1, (e.module.vector_registers - _TEMPORARY) * e.module.vector_bits // kept)


def _is_loop(stmt: Stmt, unrolls: Unrolls) -> bool:
    """Whether a statement is a loop in the generated code."""
    return isinstance(stmt, While) or (
        isinstance(stmt, For) and as_int(stmt.extent) != 1 and not unrolls(stmt)
    )


def _shared(stmt: Stmt, unrolls: Unrolls) -> Iterator[For]:
    """The loops that all lanes run together: no condition and no variable stands around them."""
    for item in stmt.items if isinstance(stmt, SeqStmt) else (stmt,):
        if isinstance(item, For) and _is_loop(item, unrolls) and item.kind is ForKind.SERIAL:
            yield item
            yield from _shared(item.body, unrolls)


def _kept(loop: For, node: For, width: int, unrolls: Unrolls) -> int:
    """The bits of the elements of one register of lanes that keep their places in a loop."""
    places: dict[tuple[Var, Expr], int] = {}
    copies: dict[Var, int] = {}
    moving = {loop.var}
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, For):
            copies[stmt.var] = as_int(stmt.extent) or 1
            if _is_loop(stmt, unrolls):
                moving.add(stmt.var)
        found: list[BufferLoad | BufferStore] = [x for e in stmt.exprs for x in loads_of(e)]
        if isinstance(stmt, BufferStore):
            found.append(stmt)
        for access in found:
            used = free_vars(access.indices[0])
            if node.var in used and moving.isdisjoint(used):
                times = prod(n for var, n in copies.items() if var in used)
                places[access.buffer.data, access.indices[0]] = times * access.buffer.dtype.bits
    return max(1, sum(places.values()) * width)


def emit_side_by_side(
    e: Emitter, node: For, bases: Sequence[Val], width: int, unrolls: Unrolls,
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit the body of a vectorized loop for the registers of lanes that begin at `bases`."""

    def emit(stmt: Stmt) -> None:
        straight: list[Stmt] = []
        for item in stmt.items if isinstance(stmt, SeqStmt) else (stmt,):
            if not isinstance(item, For) or not _is_loop(item, unrolls):
                straight.append(item)
                continue
            lanes(straight)
            straight.clear()
            together = evolve(item, body=Registers(partial(emit, item.body)))
            serial_loop(e, together, literal(0), e.value(item.extent))
        lanes(straight)

    def lanes(items: Sequence[Stmt]) -> None:
        for base in bases if items else ():
            e.lane = Lane(node.var, base, width, node.body)
            e.statement(seq(list(items)))
            e.lane = None

    emit(node.body)
