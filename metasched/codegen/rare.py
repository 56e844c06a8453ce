"""Loops whose work is behind a condition: vectors test, and only where a lane holds the loop runs.

    for j in range(n):                      n // 16 times:
        if x[j] > v[0]:                         if any of x[j : j + 16] > v[0]:
            insert x[j], change v       ->          the 16 iterations, one by one, with their tests

Where no lane holds, no iteration changes what the tests read, so the tests of all lanes are those
of the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL, INT64
from metasched.ir.expr import Add, Expr, FloorDiv, Max, Mul, Var
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, Stmt, While
from metasched.ir.visit import free_vars, loads_of, walk_stmts

SerialLoop = Callable[[Emitter, For, Val, Val], None]


def emit_rare(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop whose body is a condition around loops; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    branch = node.body
    if node.kind is not ForKind.SERIAL or e.lane is not None or e.mask is not None:
        return False
    if not isinstance(branch, IfThenElse) or not is_rare(branch):
        return False
    if not plain(branch.condition) or e.known_memory.disabled:  # buffers may share memory
        return False
    along = [x for x in loads_of(branch.condition) if node.var in free_vars(x)]
    lanes = e.module.vector_bits // max((load.buffer.dtype.bits for load in along), default=64)
    if not along or lanes < 4 or (extent.const is not None and extent.const < 2 * lanes):
        return False
    count = binary(e, Max, binary(e, FloorDiv, extent, literal(lanes)), literal(0))
    chunk = Var(node.var.name, INT64)
    body = Tested(node, chunk, lanes, serial_loop)
    serial_loop(e, For(chunk, node.min, node.extent, ForKind.SERIAL, body), literal(0), count)
    done = binary(e, Mul, count, literal(lanes))
    if done.const is None or done.const != extent.const:
        serial_loop(e, node, done, extent)
    return True


def is_rare(branch: IfThenElse) -> bool:
    """Whether a condition without `else` has loops behind it, and may be tested ahead: no statement
    behind it decides where its loads lie."""
    inside = list(walk_stmts(branch.then))
    if branch.orelse is not None or effect_of(branch.condition) > Effect.READ:
        return False
    if not any(isinstance(s, (For, While)) for s in inside):
        return False
    written = {s.buffer.data for s in inside if isinstance(s, BufferStore)}
    places = [i for load in loads_of(branch.condition) for i in load.indices]
    return not any(load.buffer.data in written for i in places for load in loads_of(i))


class Tested(Stmt):
    """The iterations of one vector of such a loop, as the body of the loop over vectors."""

    __slots__ = ("chunk", "lanes", "node", "serial_loop")

    def __init__(self, node: For, chunk: Var, lanes: int, serial_loop: SerialLoop) -> None:
        self.node, self.chunk, self.lanes, self.serial_loop = node, chunk, lanes, serial_loop


def emit_tested(e: Emitter, stmt: Tested) -> None:
    """The rule of `Tested`."""
    node, n = stmt.node, stmt.lanes
    assert isinstance(node.body, IfThenElse)
    base = binary(e, Mul, e.env[stmt.chunk], literal(n))
    base.nonneg = True
    e.lane = Lane(node.var, base, n)
    holds = e.widen(e.value(node.body.condition), n)
    e.lane = None
    some = e.intrinsic(f"llvm.vector.reduce.or.v{n}i1", BOOL, 1, holds)
    run, skip = e.fresh_label("some"), e.fresh_label("none")
    e.branch_if(some, run, skip)
    e.label(run)
    stmt.serial_loop(e, node, base, binary(e, Add, base, literal(n)))
    e.branch(skip)
    e.label(skip)
