"""Loops along rows of unknown length: vectors, the last one under a mask (see
`lower.passes.row_loops`).

    for p in range(a, b): Y[p] = exp(X[p] - m); z = z + Y[p]

LLVM keeps the order of the sum, so it would compute one exponential after another. Its vectors hold
four registers of results: rows of a sparse matrix, or of a ragged batch, are shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from metasched.analysis.guarded import loads_in_any_case
from metasched.codegen.arithmetic import binary, select
from metasched.codegen.chunks import emit_all_in_vectors, emit_if_long
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.memory import store
from metasched.codegen.ordered_sums import add_lanes, finish, start
from metasched.codegen.reductions import Reduction, any_order, combine, results
from metasched.codegen.types import register_type
from metasched.codegen.values import Val
from metasched.ir.expr import Add, Expr
from metasched.ir.stmt import BufferStore, For
from metasched.ir.visit import free_vars
from metasched.lower.passes.row_loops import RowLoop, row_loop


def emit_row(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop along a row by vectors; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    row = row_loop(node)
    if row is None or not all(plain(s.value) and plain(s.indices[0]) for s in row.steps):
        return False
    found = {
        n: Reduction(row.steps[n], type(row.steps[n].value), element, value)  # type: ignore[arg-type]
        for n, (element, value) in row.sums.items()
    }
    ordered = {n for n, one in found.items() if one.kind is Add and not any_order(e, one)}
    lanes = e.module.vector_bits // row.steps[0].buffer.dtype.bits
    if lanes < 4:
        return False
    emit = partial(_emit_all, e, node, row, found, ordered, lanes, extent, serial_loop)
    emit_if_long(e, node, extent, lanes // 4, emit, serial_loop)
    return True


def _emit_all(
    e: Emitter, node: For, row: RowLoop, found: dict[int, Reduction], ordered: set[int],
    lanes: int, extent: Val, serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit all iterations as vectors, statement by statement."""
    slots = {n: start(e, r) if n in ordered else results(e, r, lanes) for n, r in found.items()}

    def vector(base: Val, mask: Val | None) -> None:
        for n, step in enumerate(row.steps):
            if n not in found:
                _in_lanes(e, node, step, step.value, lanes, base, mask, stores=True)
                continue
            value = _in_lanes(e, node, step, found[n].value, lanes, base, mask, stores=False)
            if n in ordered:
                add_lanes(e, slots[n], value, mask)
                continue
            dtype, slot = step.buffer.dtype, slots[n]
            before = e.inline(f"load {register_type(dtype, lanes)}, ptr {slot}", dtype, lanes)
            after = binary(e, found[n].kind, before, value)
            after = after if mask is None else select(e, mask, after, before)
            e.line(f"store {after.typed}, ptr {slot}")

    emit_all_in_vectors(e, node, extent, lanes, vector, serial_loop)
    for n, one in found.items():
        if n in ordered:
            finish(e, one, slots[n])
        else:
            combine(e, one, lanes, slots[n])


def _in_lanes(
    e: Emitter, node: For, step: BufferStore, value: Expr, lanes: int, base: Val,
    mask: Val | None, *, stores: bool,
) -> Val:  # fmt: skip
    """The value of a statement in a vector of iterations, from `base` on; its store, if asked."""
    e.lane = Lane(node.var, base, lanes)
    with e.sharing():
        for load in (*loads_in_any_case(value), *loads_in_any_case(step.indices[0])):
            if node.var not in free_vars(load):
                e.share(load, mask)  # an element for all lanes, and there is a lane
        with e.masked(mask) if mask is not None else nullcontext():
            result = e.widen(e.value(value), lanes)
            if stores:
                store(e, step.buffer, step.indices[0], result, mask)
    e.lane = None
    return result
