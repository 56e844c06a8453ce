"""Reductions of lanes: a short loop over contiguous elements becomes a vector added up as a tree.

    for k in range(16):          # around a block with the note `pragma_fold_lanes`
        S[i] = S[i] + R[i, k]

One after the other the sixteen additions wait for each other; in halves they take four steps. The
note, which a schedule puts on the block, says that the order may change.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.memory import store
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import BinaryOp, Expr, as_int
from metasched.ir.stmt import For, ForKind
from metasched.lower.passes.fold import noted, operand

_MAX_LANES = 128


def emit_fold(e: Emitter, node: For, plain: Callable[[Expr], bool]) -> bool:
    """Emit a loop as a reduction of lanes if it is one; returns whether it was.

    Args:
        plain: whether an expression can be computed for all lanes at once.
    """
    lanes = as_int(node.extent) or 0
    if node.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or e.lane is not None:
        return False
    if lanes < 2 or lanes > _MAX_LANES or lanes & (lanes - 1) or e.mask is not None:
        return False
    found = noted(node)
    if found is None:
        return False
    target, units, _ = found
    added = operand(target, node.var)
    if added is None or not plain(added) or any(size != 1 for size in units.values()):
        return False
    kind = type(target.value)
    assert issubclass(kind, BinaryOp)
    outer = dict(e.env)
    e.env.update({unit: literal(0, unit.dtype) for unit in units})
    e.lane = Lane(node.var, literal(0, node.var.dtype), lanes)
    vector = e.widen(e.value(added), lanes)
    e.lane = None
    before = e.value(BufferLoad(target.buffer, target.indices))
    value = binary(e, kind, before, _tree(e, kind, vector))
    store(e, target.buffer, target.indices[0], value, None)
    e.env = outer
    return True


def _tree(e: Emitter, kind: type[BinaryOp], vector: Val) -> Val:
    """Add up all lanes of a vector by halves, as a scalar."""
    while vector.lanes > 2:
        n = vector.lanes // 2
        vector = binary(e, kind, *(e.part(vector, start, n) for start in (0, n)))
    return binary(e, kind, e.extract(vector, 0), e.extract(vector, 1))
