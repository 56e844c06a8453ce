"""Unroll loops over register tiles, whatever unrolling the schedule asks for.

A small temporary can live in registers only when every index into it is a constant: the loops that
index it must be unrolled or vectorized. This pass unrolls them if the code stays short, and if the
scalars or vectors that the code then uses are not many more than registers. If the scope of the
temporary is not local, a loop around loops is copied at most 4 times: the inner loops keep the
elements that they use in registers without copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Allocate, BufferStore, For, ForKind, Stmt, evolve
from metasched.ir.visit import free_vars, map_body, transform, walk, walk_stmts

_TILE_BYTES = 2048  # 32 registers of 64 bytes
_MAX_PLACES = 64  # scalars or vectors, for 32 registers
_MAX_STEPS = 512
_MAX_LOOPS = 4  # copies of a loop inside, which stays a loop


def unroll_register_tiles(func: PrimFunc) -> PrimFunc:
    """for i in 4: T[i] = ...  ->  unrolled, for a temporary T of a few registers' size."""
    chosen: set[Var] = set()
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Allocate) and _is_small(stmt.buffer):
            loops = _tile_loops(stmt.body, stmt.buffer)
            if loops is not None:
                chosen |= loops
    if not chosen:
        return func

    def unrolled(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and stmt.var in chosen:
            return evolve(stmt, kind=ForKind.UNROLLED)
        return None

    return map_body(func, lambda body: transform(body, unrolled))


def _is_small(buffer: Buffer) -> bool:
    size = as_int(buffer.shape[0])
    return size is not None and size * buffer.dtype.bytes <= _TILE_BYTES


def _tile_loops(body: Stmt, buffer: Buffer) -> set[Var] | None:
    """The serial loops that index the tile; None if unrolling them does not make it constant."""
    loops: dict[Expr, For] = {s.var: s for s in walk_stmts(body) if isinstance(s, For)}
    indices = [
        node.indices[0]
        for node in walk(body)
        if isinstance(node, (BufferLoad, BufferStore)) and node.buffer is buffer
    ]
    used = frozenset[Expr]().union(*map(free_vars, indices))
    chosen: set[Var] = set()
    for var in used:
        loop = loops.get(var)
        if loop is None or as_int(loop.extent) is None:
            return None
        if loop.kind is ForKind.SERIAL:
            chosen.add(loop.var)
        elif loop.kind is ForKind.PARALLEL:
            return None
    size = as_int(buffer.shape[0]) or 0
    if any(_places(index, loops, size) > _MAX_PLACES for index in indices):
        return None
    if any(_steps(loops[v], chosen) > _MAX_STEPS for v in chosen):
        return None
    if buffer.scope != "local" and any(_loops(loops[v], chosen) > _MAX_LOOPS for v in chosen):
        return None
    return chosen


def _places(index: Expr, loops: Mapping[Expr, For], size: int) -> int:
    """The scalars or vectors that an access to `size` elements touches after unrolling the loops in
    its index: neighbouring windows touch the same ones."""
    around = [loops[v] for v in free_vars(index) if v in loops]
    lanes = prod(as_int(n.extent) or 1 for n in around if n.kind is ForKind.VECTORIZED)
    steps = prod(as_int(n.extent) or 1 for n in around if n.kind is not ForKind.VECTORIZED)
    return min(steps, -(-size // lanes))


def _steps(stmt: Stmt, chosen: set[Var]) -> int:
    """Stores after unrolling the chosen loops; other loops count once."""
    total = int(isinstance(stmt, BufferStore)) + sum(_steps(s, chosen) for s in stmt.stmts)
    if isinstance(stmt, For) and (stmt.var in chosen or stmt.kind is ForKind.UNROLLED):
        total *= as_int(stmt.extent) or 1
    return total


def _loops(stmt: Stmt, chosen: set[Var]) -> int:
    """Serial loops after unrolling the chosen loops."""
    total = sum(_loops(s, chosen) for s in stmt.stmts)
    if not isinstance(stmt, For):
        return total
    if stmt.var in chosen or stmt.kind is ForKind.UNROLLED:
        return total * (as_int(stmt.extent) or 1)
    return total + (stmt.kind is ForKind.SERIAL)
