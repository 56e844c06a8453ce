"""Lane reductions: a short loop over contiguous elements becomes a vector reduced as a tree.

    for k in range(16):          # around a block annotated with `pragma_fold_lanes`
        S[i] = S[i] + R[i, k]

In sequence, each of the sixteen additions waits for the previous addition; halving the vector takes
four steps. A schedule annotates the block to allow another order of the additions.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.memory import store
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Add, BinaryOp, Expr, Sub, as_int
from metasched.ir.stmt import For, ForKind
from metasched.lower.passes.fold import added_operand, noted_fold

_MAX_LANES = 128


def emit_fold(e: Emitter, node: For, plain: Callable[[Expr], bool]) -> bool:
    """Emit a loop as a lane reduction if it has this form; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
    """
    lanes = as_int(node.extent) or 0
    if node.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or e.lane is not None:
        return False
    if lanes < 2 or lanes > _MAX_LANES or lanes & (lanes - 1) or e.mask is not None:
        return False
    found = noted_fold(node)
    if found is None:
        return False
    (target, *more), units, _ = found
    added = added_operand(target, node.var)
    if more or added is None or not plain(added) or any(size != 1 for size in units.values()):
        return False
    kind = type(target.value)
    assert issubclass(kind, BinaryOp)
    inside = Add if kind is Sub else kind
    outer = dict(e.env)
    e.env.update({unit: literal(0, unit.dtype) for unit in units})
    e.lane = Lane(node.var, literal(0, node.var.dtype), lanes)
    vector = e.widen(e.value(added), lanes)
    e.lane = None
    before = e.value(BufferLoad(target.buffer, target.indices))
    value = binary(e, kind, before, tree(e, inside, vector))
    store(e, target.buffer, target.indices[0], value, None)
    e.env = outer
    return True


def tree(e: Emitter, kind: type[BinaryOp], vector: Val) -> Val:
    """Reduce all lanes of a vector to a scalar, by halves."""
    while vector.lanes > 2:
        n = vector.lanes // 2
        vector = binary(e, kind, *(e.part(vector, start, n) for start in (0, n)))
    return binary(e, kind, e.extract(vector, 0), e.extract(vector, 1))
