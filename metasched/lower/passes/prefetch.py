"""Software prefetch: a block with the note requests the cache lines of later elements ahead of
time.

The processor detects a running stream by itself. It does not detect the start of the next row while
the present row is in use. The note says how many elements ahead of each load from an argument the
line is requested, along the last dimension. A distance of the row's length requests the next row.
If some loads move along the last dimension together with the stores, only these loads are
prefetched: of a product, the columns and not the rows. A prefetch is a hint: addresses beyond the
end of the array are never read.
"""

from __future__ import annotations

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import IntImm, add, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import OPS, Call
from metasched.ir.stmt import Block, BufferStore, Evaluate, Stmt, evolve, seq
from metasched.ir.visit import free_vars, map_body, transform, walk

AHEAD = "prefetch_ahead"
"""Annotation of a block: how many elements ahead of each load the line is requested; 0: none."""


def insert_prefetches(func: PrimFunc) -> PrimFunc:
    """S(X[i, j]) with the note n  ->  prefetch(X[i, j + n]); S(X[i, j])."""
    arguments = frozenset(p for p in func.params if isinstance(p, Buffer))
    return map_body(func, lambda body: transform(body, lambda s: _block(s, arguments)))


def _block(stmt: Stmt, arguments: frozenset[Buffer]) -> Stmt | None:
    if not isinstance(stmt, Block) or AHEAD not in stmt.annotations:
        return None
    ahead = as_int(stmt.annotations[AHEAD]) or 0
    parts = [x for x in walk(stmt.body) if isinstance(x, (BufferLoad, BufferStore)) and x.indices]
    loads = dict.fromkeys(x for x in parts if isinstance(x, BufferLoad) and x.buffer in arguments)
    lanes = {v for x in parts if isinstance(x, BufferStore) for v in free_vars(x.indices[-1])}
    along = [load for load in loads if not lanes.isdisjoint(free_vars(load.indices[-1]))]
    if not ahead or not loads:
        return None
    hints = [_hint(load, ahead) for load in along or loads if load.predicate is None]
    return evolve(stmt, body=seq([*hints, stmt.body]))


def _hint(load: BufferLoad, ahead: int) -> Stmt:
    last = load.indices[-1]
    further = BufferLoad(load.buffer, (*load.indices[:-1], add(last, IntImm(last.dtype, ahead))))
    address = Call("handle", OPS.get("address_of"), (further,))
    hints = [IntImm("int32", n) for n in (0, 3, 1)]  # to read, into the nearest cache, as data
    return Evaluate(Call("int32", OPS.get("prefetch"), (address, *hints)))
