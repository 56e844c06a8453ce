"""Lane scans: a short loop whose steps each need the previous result becomes vector additions.

    for l in range(16):          # around a store annotated with `pragma_scan_lanes`
        B[l] = B[l - 1] + x[l]

The vector x is added to itself, shifted by 1, 2, 4 and 8 lanes; then the value before the loop is
added to each lane. The annotation allows another order of the sums. Each register is scanned
on its own; only one addition in each register waits for the register before. In a decaying sum what
is added was multiplied by the factor to the power of the distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.scan import Scan, match_scan
from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.memory import store
from metasched.codegen.types import constant, register_type
from metasched.codegen.values import Val, literal
from metasched.ir.expr import Expr, Mul, as_int
from metasched.ir.op import call
from metasched.ir.stmt import For, ForKind
from metasched.lower.passes.scan import noted_scan

_MAX_LANES = 256


def emit_scan(e: Emitter, node: For, plain: Callable[[Expr], bool]) -> bool:
    """Emit a loop as a lane scan if it has this form; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
    """
    lanes = as_int(node.extent) or 0
    if node.kind is not ForKind.SERIAL or e.lane is not None or e.mask is not None:
        return False
    if lanes < 2 or lanes > _MAX_LANES or lanes & (lanes - 1):
        return False
    found = noted_scan(node)
    scan = match_scan(found[0], node.var, lanes) if found and not found[1] else None
    if found is None or scan is None:
        return False
    target, before, added = found[0], _before(scan), scan.added
    if scan.restarts is not None and scan.start is not None:
        added = call("if_then_else", scan.restarts, scan.start, added)
    if not plain(added):
        return False
    with e.bound(node.var, literal(0, node.var.dtype)):
        carried = e.value(before)
    e.lane = Lane(node.var, literal(0, node.var.dtype), lanes)
    vector = e.widen(e.value(added), lanes)
    width = min(lanes, max(2, e.module.vector_bits // vector.dtype.bits))
    neutral = e.widen(e.value(scan.identity), width)
    parts = [_prefix(e, scan, e.part(vector, n, width), neutral) for n in range(0, lanes, width)]
    total, results = e.widen(carried, width), []
    for part in parts:
        results.append(_moved(e, scan, total, range(1, width + 1), part))
        last = e.widen(e.extract(part, width - 1), width)
        total = _moved(e, scan, total, [width] * width, last)
    store(e, target.buffer, target.indices[0], e.joined(results), None)
    e.lane = None
    return True


def _before(scan: Scan) -> Expr:
    """The result of the step before the first lane; the identity if the scan restarts there."""
    if scan.restarts is None:
        return scan.before
    return call("if_then_else", scan.restarts, scan.identity, scan.before)


def _prefix(e: Emitter, scan: Scan, vector: Val, neutral: Val) -> Val:
    """Combine each lane with all lanes before it."""
    n, distance = vector.lanes, 1
    while distance < n:
        order = ", ".join(f"i32 {i}" for i in range(n - distance, 2 * n - distance))
        text = f"shufflevector {neutral.typed}, {vector.typed}, <{n} x i32> <{order}>"
        moved = e.pure(text, vector.dtype, n, neutral, vector)
        vector = _moved(e, scan, moved, [distance] * n, vector)
        distance *= 2
    return vector


def _moved(e: Emitter, scan: Scan, before: Val, steps: Sequence[int], vector: Val) -> Val:
    """Combine each lane with a result that is `steps` steps before it."""
    if scan.decay != 1:
        kind = register_type(before.dtype)
        powers = [constant(scan.decay**n, before.dtype) for n in steps]
        text = f"<{', '.join(f'{kind} {power}' for power in powers)}>"
        before = binary(e, Mul, before, Val(text, before.dtype, len(powers), 0))
    return binary(e, scan.kind, before, vector)
