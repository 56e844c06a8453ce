"""Keep accumulators of tile instructions in tile registers through a whole reduction.

    for k: for t in unrolled: C[ramp(256 * t, 1, 256)] = product(C[ramp(256 * t, 1, 256)], ..)

becomes

    for t in unrolled: acc[ramp(256 * t, 1, 256)] = C[ramp(256 * t, 1, 256)]
    for k: for t in unrolled: acc[..] = product(acc[..], ..)
    for t in unrolled: C[..] = acc[..]

The scope of `acc` is `amx.tmm`: code generation loads it by tile instructions, and LLVM keeps it in
registers, because every index of `acc` is constant. C may also be indexed by rolled loops, which
clear or finish rows. The idea is register promotion (Cooper and Lu 1997).
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.arith.affine import linear_address
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import Expr, IntImm, StringImm, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call, Ramp
from metasched.ir.stmt import Allocate, BufferStore, For, ForKind, Stmt, evolve, seq
from metasched.ir.visit import free_vars, map_body, substitute, transform, walk, walk_stmts

TILES = "amx.tmm"
"""The scope of tile registers."""
LANES = 256
"""The elements of a tile of results."""


def is_tile_product(name: str) -> bool:
    """Whether an LLVM intrinsic multiplies tiles."""
    return name.startswith("llvm.x86.tdp") and name.endswith(".internal")


def keep_tiles(func: PrimFunc) -> PrimFunc:
    """The transformation above, around the outermost loops that leave the accumulators alone."""
    return map_body(func, lambda body: transform(body, _in_allocation))


def _in_allocation(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Allocate) or stmt.buffer.scope != "local":
        return None
    products = [s for s in walk_stmts(stmt.body) if _is_update(s, stmt.buffer)]
    return evolve(stmt, body=_outermost(stmt.body, stmt.buffer)) if products else None


def _is_update(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement adds a product of tiles to a tile of a buffer."""
    if not isinstance(stmt, BufferStore) or stmt.buffer is not buffer:
        return False
    value = stmt.value
    if not isinstance(value, Call) or stmt.predicate is not None or len(value.args) < 2:
        return False
    name, before = value.args[0], value.args[1]
    named = isinstance(name, StringImm) and is_tile_product(name.value)
    same = isinstance(before, BufferLoad) and before.buffer is buffer
    return named and same and before.indices == stmt.indices  # type: ignore[attr-defined]


def _outermost(stmt: Stmt, buffer: Buffer) -> Stmt:
    """A statement with its outermost loops changed, where they are of the form above."""
    if isinstance(stmt, For) and stmt.kind is ForKind.SERIAL:
        found = _kept(stmt, buffer)
        if found is not None:
            return _around(stmt, buffer, found)
    return stmt.rebuild([_outermost(s, buffer) for s in stmt.stmts], stmt.exprs)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The accumulators of a loop.

    Attributes:
        index: where a tile of the buffer begins.
        own: where the tile begins in the accumulators.
        loops: the unrolled loops over the tiles.
        count: the number of tiles.
    """

    index: Expr
    own: Expr
    loops: tuple[For, ...]
    count: int


def _kept(loop: For, buffer: Buffer) -> _Tiles | None:
    """The accumulators of a loop that are the same tiles in each of its steps."""
    uses = [
        n for n in walk(loop) if isinstance(n, (BufferLoad, BufferStore)) and n.buffer is buffer
    ]
    updates = [s for s in walk_stmts(loop) if _is_update(s, buffer)]
    if len(updates) != 1 or len({use.indices for use in uses}) != 1 or len(uses) != 2:
        return None
    ramp = uses[0].indices[0]
    if not isinstance(ramp, Ramp) or ramp.lanes != LANES or as_int(ramp.stride) != 1:
        return None
    inside = {s.var: s for s in walk_stmts(loop) if isinstance(s, For)}
    own: Expr = as_expr(0, INT64)
    loops, steps = [], []
    for atom, factor in linear_address(ramp.base).terms.items():
        if free_vars(atom).isdisjoint(inside):
            continue
        over = inside.get(atom) if isinstance(atom, Var) else None
        extent = None if over is None else as_int(over.extent)
        if over is None or extent is None or over.kind is not ForKind.UNROLLED:
            return None
        loops.append(over)
        steps.append((factor, extent))
        own = own + atom * factor
    count = 1
    for factor, extent in sorted(steps):
        if factor != count * LANES:
            return None
        count *= extent
    return _Tiles(ramp.base, own, tuple(loops), count)


def _around(loop: For, buffer: Buffer, tiles: _Tiles) -> Stmt:
    acc = Buffer.of(f"{buffer.name}_tiles", (tiles.count * LANES,), buffer.dtype, scope=TILES)

    def place(base: Expr) -> tuple[Expr, ...]:
        return (Ramp(base, IntImm(base.dtype, 1), LANES),)

    def on_expr(expr: Expr) -> Expr | None:
        load = isinstance(expr, BufferLoad) and expr.buffer is buffer
        return BufferLoad(acc, place(tiles.own)) if load else None

    def on_stmt(stmt: Stmt) -> Stmt | None:
        store = isinstance(stmt, BufferStore) and stmt.buffer is buffer
        return evolve(stmt, buffer=acc, indices=place(tiles.own)) if store else None

    def copied(target: Buffer, to: Expr, source: Buffer, at: Expr) -> Stmt:
        fresh: dict[Var, Expr] = {f.var: Var(f.var.name, f.var.dtype) for f in tiles.loops}
        load = BufferLoad(source, place(substitute(at, fresh)))
        body: Stmt = BufferStore(target, load, place(substitute(to, fresh)))
        for over in tiles.loops:
            body = evolve(over, var=fresh[over.var], body=body)
        return body

    before = copied(acc, tiles.own, buffer, tiles.index)
    after = copied(buffer, tiles.index, acc, tiles.own)
    return Allocate(acc, seq([before, transform(loop, on_stmt, on_expr), after]))
