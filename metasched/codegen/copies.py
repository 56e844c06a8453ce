"""Several iterations of a short loop that reads what it stores between two tests of its end.

    for i in range(n): s = s + A[i]; B[i] = s

A processor takes a branch every two cycles at best, and adds an integer in each. The steps keep
their order. `lower.passes.short_loops` does the same for loops whose iterations are independent.
"""

from __future__ import annotations

from metasched.codegen.arithmetic import binary
from metasched.codegen.chunks import emit_in_chunks
from metasched.codegen.emit import Emitter, SerialLoop
from metasched.codegen.values import Val, literal
from metasched.ir.expr import Add
from metasched.ir.stmt import For
from metasched.lower.passes.short_loops import COPIES, is_short, reads_what_it_stores


def emit_copies(e: Emitter, node: For, extent: Val, serial_loop: SerialLoop) -> bool:
    """Emit a scalar loop with several iterations in each round if it has this form; returns whether
    it was emitted."""
    if e.lane is not None or e.mask is not None or extent.lanes > 1:
        return False
    if not is_short(node) or not reads_what_it_stores(node):
        return False

    def round_of(base: Val) -> None:
        for n in range(COPIES):
            with e.bound(node.var, binary(e, Add, base, literal(n))):
                e.statement(node.body)

    emit_in_chunks(e, node, extent, COPIES, round_of, serial_loop)
    return True
