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
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import Add, BinaryOp, Expr, IntImm, Max, Min, Mul, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Allocate, AttrStmt, BufferStore, For, ForKind, Stmt, evolve, seq
from metasched.ir.visit import free_vars, map_body, substitute, transform, walk_exprs

_KINDS = (Add, Mul, Max, Min)


def fold_lanes(func: PrimFunc) -> PrimFunc:
    """The transformation above, wherever a loop longer than the noted width stands."""
    return map_body(func, lambda body: transform(body, _loop))


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


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
        return None
    found, extent = noted(stmt), as_int(stmt.extent)
    if found is None or extent is None:
        return None
    target, inner, width = found
    added = operand(target, stmt.var)
    while width > extent:
        width //= 2
    if added is None or width < 2 or extent == width or width & (width - 1):
        return None
    return _folded(stmt, target, added, inner, width)


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
