"""Scans along a loop in vector lanes.

    for j in range(n): B[j] = B[j - 1] + x(j)     # under the note `pragma_scan_lanes` = w

becomes

    for c in range(n // w): for l in range(w): B[c * w + l] = B[c * w + l - 1] + x(c * w + l)
    for l in range(n % w): ...

Code generation computes each inner loop at once, see `codegen.scan`. If the store tests for its
first step, the first chunk becomes a loop of its own, so that the other chunks need no test. If
other loops stand inside the scan loop, its first step is split off in the same way. The note, which
a schedule puts on the block, permits another order of the sums.

If n is known only when the program runs, the last n % w steps are narrower loops under tests, and
fewer than w steps stay one loop.
"""

from __future__ import annotations

from metasched.analysis.block import SCAN
from metasched.analysis.scan import match_scan, one_store
from metasched.ir.dtype import INT64
from metasched.ir.expr import GE, Expr, IntImm, Var, as_expr, as_int, compare
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import fresh_copy, map_body, substitute, transform
from metasched.lower.passes.guards import without_test

_FEWEST = 4  # lanes of the last steps of a scan whose length is known at run time only


def scan_lanes(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to each loop that holds only a noted scan."""
    return map_body(func, lambda body: transform(body, _loop))


def noted_scan(loop: For) -> tuple[BufferStore, tuple[For, ...], int] | None:
    """The only statement inside a loop, the loops between the two, and the value of its note; None
    for other loops."""
    stmt, inner, width = loop.body, [], 0
    while isinstance(stmt, (AttrStmt, For)):
        if isinstance(stmt, For):
            inner.append(stmt)
        elif stmt.key == SCAN:
            width = as_int(stmt.value) or 0
        stmt = stmt.body
    store = one_store(stmt) if width else None
    return (store, tuple(inner), width) if store and len(store.indices) == 1 else None


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL:
        return None
    narrow = without_test(stmt, noted_scan)
    if narrow is not None:
        return transform(narrow, _loop)
    found, extent = noted_scan(stmt), as_int(stmt.extent)
    if found is None:
        return None
    store, inner, width = found
    scan = match_scan(store, stmt.var, extent)
    if scan is None or (inner and extent is None):
        return None
    rest = evolve(store, value=scan.step)
    if inner:
        return None if scan.restarts is None else _first_apart(stmt, store, rest)
    if width < 2 or width & (width - 1):
        return None
    if extent is None:
        return _at_run_time(stmt, store, rest, width)
    return _in_chunks(stmt, store, rest, width, extent)


def _first_apart(loop: For, store: BufferStore, rest: BufferStore) -> Stmt:
    """Split off the first step of a loop, so that the other steps need no test."""

    def step(store: BufferStore, at: Expr) -> Stmt:
        body = transform(loop.body, lambda s: None if one_store(s) is None else store)
        return fresh_copy(substitute(body, {loop.var: at}))

    var = Var(loop.var.name, INT64)
    count = (as_int(loop.extent) or 1) - 1
    first = step(store, IntImm(INT64, 0))
    return seq((first, _for(var, count, step(rest, var + 1)))) if count else first


def _lanes(loop: For, store: BufferStore, start: Expr | int, count: int) -> Stmt:
    """Steps of a scan from `start` on, as one loop that code generation computes at once."""
    lane = Var("lane", INT64)
    body = substitute(store, {loop.var: lane + start})
    return _for(lane, count, AttrStmt(None, SCAN, IntImm("int32", 1), body))


def _in_chunks(loop: For, store: BufferStore, rest: BufferStore, width: int, extent: int) -> Stmt:
    """Split a scan into loops of `width` steps, and the remaining steps into narrower loops."""
    first = int(rest.value is not store.value and extent >= width)
    steps = [_lanes(loop, store, 0, width)] if first else []
    full, left = divmod(extent, width)
    if full > first:
        chunk = Var(loop.var.name, INT64)
        steps.append(_for(chunk, full - first, _lanes(loop, rest, (chunk + first) * width, width)))
    start = full * width
    while left:
        width //= 2
        if left >= width:
            steps.append(_lanes(loop, store if start == 0 else rest, start, width))
            start, left = start + width, left - width
    return seq(steps)


def _at_run_time(loop: For, store: BufferStore, rest: BufferStore, width: int) -> Stmt:
    """Split a scan whose length is known at run time only; a scan of less than `width` steps stays
    as it is."""
    full, chunk, step = loop.extent // width, Var(loop.var.name, INT64), Var("step", INT64)
    steps = [
        _lanes(loop, store, 0, width),
        _for(chunk, full - 1, _lanes(loop, rest, (chunk + 1) * width, width)),
    ]
    while width > _FEWEST:
        width //= 2
        start = loop.extent // (2 * width) * (2 * width)
        some = compare(GE, loop.extent - start, as_expr(width, INT64))
        steps.append(IfThenElse(some, _lanes(loop, rest, start, width)))
    start = loop.extent // width * width
    last = substitute(rest, {loop.var: step + start})
    steps.append(_for(step, loop.extent - start, last))
    return IfThenElse(compare(GE, full, as_expr(1, INT64)), seq(steps), loop)


def _for(var: Var, extent: Expr | int, body: Stmt) -> For:
    return For(var, IntImm(INT64, 0), as_expr(extent, INT64), ForKind.SERIAL, body)
