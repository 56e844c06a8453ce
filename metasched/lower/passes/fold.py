"""Reductions along contiguous memory in any order: partial results in the lanes of vectors.

    for k in range(n): S[i] = S[i] + f(k)         # under the note `pragma_fold_lanes` = w

becomes, with A of w elements in registers,

    vector l < w: A[l] = f(l)
    for c in range(1, n // w): vector l < w: A[l] = A[l] + f(c * w + l)
    vector l < n % w: A[l] = A[l] + f(n // w * w + l)
    for l in range(w): S[i] = S[i] + A[l]         # as a tree, by code generation

No extent has to divide anything, and no start value is needed. The note, which a schedule puts on
the block, says that the order may change; 1 asks for the last of these loops alone. Around the
statement there may be unrolled loops, over several results that share what they read: each of their
iterations has partial results of its own.
"""

from __future__ import annotations

from metasched.analysis.block import FOLD
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    EQ,
    Add,
    BinaryOp,
    Expr,
    IntImm,
    Max,
    Min,
    Mul,
    Var,
    as_expr,
    as_int,
)
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_body,
    substitute,
    transform,
    walk_exprs,
)

_KINDS = (Add, Mul, Max, Min)
_WIDTH = 64  # of a loop without a note


def fold_lanes(func: PrimFunc) -> PrimFunc:
    """The transformation above, wherever a loop longer than the noted width stands.

    In a function that allows sums in any order (`reassoc`, see `ir.func.LIBERTIES`), serial loops
    along contiguous memory need no note.
    """
    free = "reassoc" in func.liberties
    return map_body(func, lambda body: transform(body, lambda s: _loop(s, free)))


def noted(loop: For) -> tuple[BufferStore, dict[Var, int], int] | None:
    """The only statement inside a loop, the unrolled and unit loops around the statement, and the
    value of its note."""
    stmt, inner, width = loop.body, dict[Var, int](), 0
    while isinstance(stmt, (For, AttrStmt)):
        if isinstance(stmt, For):
            inner[stmt.var] = as_int(stmt.extent) or 0
            if inner[stmt.var] != 1 and (stmt.kind is not ForKind.UNROLLED or not inner[stmt.var]):
                return None
        elif stmt.key == FOLD:
            width = as_int(stmt.value) or 0
        stmt = stmt.body
    plain = isinstance(stmt, BufferStore) and stmt.predicate is None and len(stmt.indices) == 1
    return (stmt, inner, width) if width and plain and isinstance(stmt, BufferStore) else None


def operand(target: BufferStore, var: Var) -> Expr | None:
    """The value added to the element that the statement updates; None unless the element stays the
    same throughout the loop."""
    value, dtype = target.value, target.buffer.dtype
    if not isinstance(value, _KINDS) or not (dtype.is_int or dtype in ("float32", "float64")):
        return None
    if var in free_vars(target.indices[0]):
        return None
    own = BufferLoad(target.buffer, target.indices)
    for before, added in ((value.a, value.b), (value.b, value.a)):
        read = {x.buffer.data for x in walk_exprs(added) if isinstance(x, BufferLoad)}
        if before is own and target.buffer.data not in read:
            return added
    return None


def _loop(stmt: Stmt, free: bool) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
        return None
    first, loop = _init_apart(stmt) if free else (None, stmt)
    found, extent = noted(loop), as_int(loop.extent)
    if found is None and free:
        found = _contiguous(loop)
    if found is None or extent is None:
        return None
    target, inner, width = found
    added = operand(target, loop.var)
    while width > extent:
        width //= 2
    if added is None or width < 2 or extent == width or width & (width - 1):
        return None
    folded = _folded(loop, target, added, inner, width)
    return folded if first is None else seq((first, folded))


def _init_apart(loop: For) -> tuple[Stmt | None, For]:
    """The statement that runs in the first iteration alone, in front of all else, and the loop
    without it; None and the loop as it is where there is no such statement."""
    body = loop.body
    if not isinstance(body, SeqStmt) or len(body.items) != 2 or not as_int(loop.extent):
        return None, loop
    start, rest = body.items
    if not isinstance(start, IfThenElse) or start.orelse is not None:
        return None, loop
    if start.condition is not EQ(loop.var, IntImm(loop.var.dtype, 0)):
        return None, loop
    first = substitute(start.then, {loop.var: IntImm(loop.var.dtype, 0)})
    return first, evolve(loop, body=rest)


def _contiguous(loop: For) -> tuple[BufferStore, dict[Var, int], int] | None:
    """A store alone in a serial loop, along which it reads floats side by side."""
    store = loop.body
    if not isinstance(store, BufferStore) or store.predicate is not None:
        return None
    if loop.kind is not ForKind.SERIAL or not store.buffer.dtype.is_float:
        return None
    known = Analyzer()
    steps = [
        as_int(known.simplify(substitute(i, {loop.var: loop.var + 1}) - i))
        for load in loads_of(store.value)
        for i in load.indices
        if loop.var in free_vars(i)
    ]
    width = _WIDTH
    while width >= (as_int(loop.extent) or 0) and width > 1:
        width //= 2  # what has no note is no single vector: code generation would leave it
    return (store, {}, width) if steps and set(steps) == {1} else None


def _folded(loop: For, target: BufferStore, added: Expr, inner: dict[Var, int], width: int) -> Stmt:
    count, position = 1, as_expr(IntImm(INT64, 0))
    for var, size in inner.items():
        count, position = count * size, position * size + var
    dtype = target.buffer.dtype
    partial = Buffer.of(f"{target.buffer.name}_lanes", (count * width,), dtype, scope="local")
    full, rest = divmod(as_int(loop.extent) or 0, width)
    kind = type(target.value)
    assert issubclass(kind, BinaryOp)

    def each(body: Stmt) -> Stmt:
        fresh = {var: Var(var.name, INT64) for var in inner}
        body = substitute(body, fresh)
        for var in reversed(inner):
            body = _for(fresh[var], inner[var], body, ForKind.UNROLLED)
        return body

    def lanes(start: Expr | int, count: int, first: bool) -> Stmt:
        lane = Var("lane", INT64)
        value, at = substitute(added, {loop.var: lane + start}), (position * width + lane,)
        if not first:
            value = kind(BufferLoad(partial, at), value)
        return each(_for(lane, count, BufferStore(partial, value, at), ForKind.VECTORIZED))

    steps = [lanes(0, width, first=True)]
    if full > 1:
        chunk = Var(loop.var.name, INT64)
        steps.append(_for(chunk, full - 1, lanes((chunk + 1) * width, width, first=False)))
    if rest:
        steps.append(lanes(full * width, rest, first=False))
    last = Var("lane", INT64)
    own = BufferLoad(target.buffer, target.indices)
    sums = BufferLoad(partial, (position * width + last,))
    update = AttrStmt(None, FOLD, IntImm("int32", 1), evolve(target, value=kind(own, sums)))
    steps.append(each(_for(last, width, update)))
    return Allocate(partial, seq(steps))


def _for(var: Var, extent: int, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, IntImm(INT64, 0), IntImm(INT64, extent), kind, body)
