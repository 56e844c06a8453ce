"""Transpositions in registers: a square of loads along one loop and stores along the other.

    for i in T.unroll(16): for j in T.vectorized(16): B[.. + i * s + j] = A[.. + j * t + i]

Lane by lane, each element takes a load and an insertion. Loading whole rows of A and exchanging
parts of registers in log2(16) rounds takes a quarter of an instruction for each element.
"""

from __future__ import annotations

from metasched.arith.affine import linear_address
from metasched.codegen.emit import Emitter
from metasched.codegen.exchange import exchanged
from metasched.codegen.memory import load, store
from metasched.codegen.values import literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.op import Ramp
from metasched.ir.stmt import BufferStore, For, ForKind
from metasched.ir.visit import free_vars


def emit_transpose(e: Emitter, node: For) -> bool:
    """Emit an unrolled loop as a transposition if it has this form; returns whether it was
    emitted."""
    found = _match(e, node)
    if found is None:
        return False
    inner, target, source = found
    n = as_int(node.extent) or 1
    rows = []
    with e.bound(node.var, literal(0, node.var.dtype)):
        for j in range(n):
            with e.bound(inner.var, literal(j, inner.var.dtype)):
                rows.append(load(e, source.buffer, _row(source.indices[0], n), None))
    for i, column in enumerate(exchanged(e, rows)):
        with (
            e.bound(node.var, literal(i, node.var.dtype)),
            e.bound(inner.var, literal(0, inner.var.dtype)),
        ):
            store(e, target.buffer, _row(target.indices[0], n), column, None)
    return True


def _row(index: Expr, lanes: int) -> Expr:
    return Ramp(index, IntImm(index.dtype, 1), lanes)


def _match(e: Emitter, node: For) -> tuple[For, BufferStore, BufferLoad] | None:
    inner, n = node.body, as_int(node.extent)
    if e.lane is not None or n is None or not isinstance(inner, For):
        return None
    if inner.kind is not ForKind.VECTORIZED or as_int(inner.extent) != n:
        return None
    target = inner.body
    if not isinstance(target, BufferStore) or not isinstance(target.value, BufferLoad):
        return None
    source = target.value
    bits = target.buffer.dtype.bits
    full = bits >= 32 and n * bits <= e.module.vector_bits and n in (4, 8, 16)
    if not full or source.buffer.dtype is not target.buffer.dtype:
        return None
    if source.buffer.data is target.buffer.data:
        return None
    along = _factors(target.indices[0], node.var, inner.var)
    across = _factors(source.indices[0], node.var, inner.var)
    if along is None or across is None or along[1] != 1 or across[0] != 1:
        return None
    return inner, target, source


def _factors(index: Expr, outer: Var, inner: Var) -> tuple[int, int] | None:
    """The coefficients of the two loop variables in an index; None if the index is not linear in
    them."""
    terms = linear_address(index).terms
    if any({outer, inner} & free_vars(atom) for atom in terms if atom not in (outer, inner)):
        return None
    return terms.get(outer, 0), terms.get(inner, 0)
