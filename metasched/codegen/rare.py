"""Loops whose work is behind a condition: vectors test, and only where a lane holds the loop runs.

    for j in range(n):                      n // 16 times:
        if x[j] > v[0]:                         if any of x[j : j + 16] > v[0]:
            insert x[j], change v       ->          the 16 iterations, one by one, with their tests

Where no lane holds, no iteration changes what the tests read, so the tests of all lanes are those
of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from metasched.codegen.arithmetic import binary
from metasched.codegen.chunks import emit_in_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL
from metasched.ir.expr import Add, Expr
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import BufferStore, For, IfThenElse, While
from metasched.ir.visit import free_vars, loads_of, walk_stmts


def emit_rare(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop whose body is a condition around loops; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    branch = node.body
    if not isinstance(branch, IfThenElse) or not (is_rare(branch) and plain(branch.condition)):
        return False
    along = [x for x in loads_of(branch.condition) if node.var in free_vars(x)]
    lanes = e.module.vector_bits // max((load.buffer.dtype.bits for load in along), default=64)
    if not along or lanes < 4 or (extent.const is not None and extent.const < 2 * lanes):
        return False
    emit = partial(_emit_vector, e, node, branch.condition, lanes, serial_loop)
    emit_in_chunks(e, node, extent, lanes, emit, serial_loop)
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


def _emit_vector(
    e: Emitter, node: For, condition: Expr, n: int, serial_loop: SerialLoop, base: Val
) -> None:
    """Emit `n` iterations, behind a test whether the condition holds in one of them."""
    e.lane = Lane(node.var, base, n)
    holds = e.widen(e.value(condition), n)
    e.lane = None
    some = e.intrinsic(f"llvm.vector.reduce.or.v{n}i1", BOOL, 1, holds)
    run, skip = e.fresh_label("some"), e.fresh_label("none")
    e.branch_if(some, run, skip)
    e.label(run)
    serial_loop(e, node, base, binary(e, Add, base, literal(n)))
    e.branch(skip)
    e.label(skip)
