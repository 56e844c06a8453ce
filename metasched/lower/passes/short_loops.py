"""Several iterations of a short serial loop between two tests of its end.

    for i in range(n): B[i] = T[A[i]]
    ->
    for i_4 in range(n // 4): B[i_4 * 4] = ..; B[i_4 * 4 + 1] = ..; (2, 3)      # at least 0
    for rest in range(n % 4): B[n // 4 * 4 + rest] = ..

A loop of few iterations is copied wholly, with the loops inside: the taps of an interpolation, the
bytes of a word. The copies know what depends on its variable alone: shifts, quotients, remainders
and tests of borders, such as the minors A[(i + 1) % 3] of a 3 x 3 matrix.

A processor takes a branch every two cycles at best, as long as a lookup in a table. Loops in
vectors stay as they are, as do loops along rows, which code generation runs in vectors. Sums, scans
and loops that read what they store are left to code generation (`codegen.copies`), which knows
other forms of some of them.
"""

from __future__ import annotations

from functools import lru_cache, partial

from metasched.ir import expr as ir
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, Select, Var, as_expr, as_int, maximum
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, SeqStmt, Stmt, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    loads_of,
    map_body,
    substitute,
    walk_stmts,
)
from metasched.lower.passes.row_loops import row_loop

COPIES = 4
"""The iterations between two tests."""
LEAST = 16
"""The fewest iterations of a loop that is copied in part."""
MOST = 16
"""The most operations, loads and stores of an iteration; the most stores of a loop that is copied
wholly."""
FEW = 8
"""The most iterations of a loop that is copied wholly."""
MOST_TOGETHER = 1 << 11
"""The most operations, loads and stores of all copies of such a loop."""
LIMIT = "pragma_auto_unroll_max_step"
_SHORT = (BufferStore, IfThenElse, LetStmt, SeqStmt)


def unroll_short_loops(func: PrimFunc) -> PrimFunc:
    """Copy iterations of serial loops: some of a short innermost loop, all where they are few."""
    return map_body(func, partial(_outside_of_vectors, repeated=False, limited=False))


def _outside_of_vectors(stmt: Stmt, repeated: bool, limited: bool) -> Stmt:
    """The statement with copies. All iterations of a loop are copied only where another loop
    repeats them, and not where code generation has a limit of its own, so `limited`."""
    if isinstance(stmt, For):
        if stmt.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
            return stmt
        if _is_short(stmt):
            return _copied(stmt)
        if repeated and not limited and 0 < (_copies(stmt) or 0) <= MOST:
            return _all_copies(stmt)
        repeated = repeated or as_int(stmt.extent) != 1
        limited = limited or LIMIT in stmt.annotations
    parts = [_outside_of_vectors(part, repeated, limited) for part in stmt.stmts]
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    return stmt if same else stmt.rebuild(parts, stmt.exprs)


def _copies(stmt: Stmt) -> int | None:
    """The stores of scalar statements after all loops are copied; None if a loop is long, or the
    copies compute much."""
    if not isinstance(stmt, For):
        if not _plain([stmt]):
            return None
        inner = [_copies(part) for part in stmt.stmts]
        own = isinstance(stmt, BufferStore)
        return None if None in inner else own + sum(n or 0 for n in inner)
    extent, inside = as_int(stmt.extent), _copies(stmt.body)
    if stmt.kind is not ForKind.SERIAL or stmt.annotations or extent is None or inside is None:
        return None
    return extent * inside if 0 < extent <= FEW and _work_of(stmt) <= MOST_TOGETHER else None


def _work_of(stmt: Stmt) -> int:
    """The operations, loads and stores of a statement whose loops have constant extents."""
    own = isinstance(stmt, BufferStore) + sum(map(_work, stmt.exprs))
    times = as_int(stmt.extent) or 0 if isinstance(stmt, For) else 1
    return times * (own + sum(map(_work_of, stmt.stmts)))


def _all_copies(stmt: Stmt) -> Stmt:
    if isinstance(stmt, For):
        values = range(as_int(stmt.extent) or 0)
        return seq([_all_copies(_at(stmt, as_expr(n, stmt.var.dtype))) for n in values])
    parts = [_all_copies(part) for part in stmt.stmts]
    return stmt.rebuild(parts, stmt.exprs) if parts else stmt


def _is_short(loop: For) -> bool:
    inner = list(walk_stmts(loop.body))
    stores = [s for s in inner if isinstance(s, BufferStore)]
    if not is_short(loop) or any(loop.var not in free_vars(s.indices[0]) for s in stores):
        return False
    return not reads_what_it_stores(loop) and row_loop(loop) is None


def is_short(loop: For) -> bool:
    """Whether a serial loop has no loop inside, at least LEAST iterations if their number is known,
    and at most MOST operations, loads and stores in each."""
    inner = list(walk_stmts(loop.body))
    if loop.kind is not ForKind.SERIAL or loop.annotations or not _plain(inner):
        return False
    stores = sum(isinstance(s, BufferStore) for s in inner)
    work = sum(_work(e) for s in inner for e in s.exprs) + stores
    return work <= MOST and (as_int(loop.extent) or LEAST) >= LEAST


def reads_what_it_stores(loop: For) -> bool:
    """Whether a loop loads memory to which it stores."""
    inner = list(walk_stmts(loop.body))
    written = {s.buffer.data for s in inner if isinstance(s, BufferStore)}
    return any(x.buffer.data in written for s in inner for e in s.exprs for x in loads_of(e))


def _plain(inner: list[Stmt]) -> bool:
    """Whether statements are scalar stores, conditions and variables alone."""
    if not all(isinstance(s, _SHORT) for s in inner):
        return False
    return all(e.dtype.lanes == 1 for s in inner for e in s.exprs)


@lru_cache(maxsize=1 << 12)
def _work(value: Expr) -> int:
    """The operations and loads of a value; the indices of a load count, too."""
    own = isinstance(value, (BufferLoad, ir.BinaryOp, Select, Call))
    return own + sum(map(_work, value.children))


def _copied(loop: For) -> Stmt:
    whole = maximum(loop.extent // COPIES, 0)  # an extent may be negative
    first = Var(f"{loop.var.name}_{COPIES}", loop.var.dtype)
    copies = [_at(loop, first * COPIES + n) for n in range(COPIES)]
    chunks = For(first, as_expr(0, first.dtype), whole, ForKind.SERIAL, seq(copies))
    extent = as_int(loop.extent)
    if extent is not None:
        done = extent // COPIES * COPIES
        rest = [_at(loop, as_expr(n, first.dtype)) for n in range(done, extent)]
        return seq((chunks, *rest))
    last = Var(f"{loop.var.name}_rest", loop.var.dtype)
    left = _at(loop, whole * COPIES + last)
    return seq((chunks, For(last, as_expr(0, last.dtype), loop.extent - whole * COPIES,
                            ForKind.SERIAL, left)))  # fmt: skip


def _at(loop: For, value: Expr) -> Stmt:
    """The body at one value of the loop's variable, with variables of its own."""
    return fresh_copy(substitute(loop.body, {loop.var: value}))
