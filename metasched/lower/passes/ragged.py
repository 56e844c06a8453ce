"""Loops in tiles over a length that memory says: whole tiles without a test, then the rest.

    for p_0 in range((b[i + 1] - b[i] + 15) // 16):
        for p_1 in T.vectorized(16):
            if p_0 * 16 + p_1 + b[i] < b[i + 1]: S
            for k in range(8):
                if p_0 * 16 + p_1 + b[i] < b[i + 1]: U

becomes

    n = max(b[i + 1] - b[i], 0)
    left = n - n // 16 * 16
    for p_0 in range(n // 16):
        for p_1 in T.vectorized(16): S; for k in range(8): U
    if left > 0:
        for p_1 in T.vectorized(16):
            if p_1 < left: S; for k in range(8): U

The rows of a sparse matrix are such loops.
"""

from __future__ import annotations

from metasched.arith.affine import terms
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    GT,
    LT,
    Cast,
    Expr,
    FloorDiv,
    IntImm,
    Var,
    as_int,
    compare,
    maximum,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import (
    Allocate,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    fresh_copy,
    jumps,
    loads_of,
    map_body,
    substitute,
    transform,
    walk_stmts,
)
from metasched.lower.passes.guards import MAX_COPIED, all_of


def split_ragged(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to each serial loop over tiles that hold vectors."""
    return map_body(func, lambda body: transform(body, _loop))


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL or stmt.annotations:
        return None
    extent = stmt.extent
    size = as_int(extent.b) if isinstance(extent, FloorDiv) else None
    if size is None or size < 2 or not loads_of(extent) or jumps(stmt.body):
        return None
    inside = list(walk_stmts(stmt.body))
    if len(inside) > MAX_COPIED or any(isinstance(s, Allocate) for s in inside):
        return None
    if any(effect_of(e) > Effect.READ for s in inside for e in s.exprs):
        return None
    written = {s.buffer.data for s in inside if isinstance(s, BufferStore)}
    if any(load.buffer.data in written for load in loads_of(extent)):
        return None
    length = extent.a - (size - 1)  # type: ignore[attr-defined]
    tests = _Tests(stmt.var, size, _form(length))
    whole = transform(stmt.body, lambda s: tests.replaced(s, None))
    if whole is stmt.body:
        return None
    n, left = Var("n", INT64), Var("left", INT64)
    rest = transform(stmt.body, lambda s: tests.replaced(s, left))
    last = fresh_copy(substitute(rest, {stmt.var: n // size}))
    zero = IntImm(INT64, 0)
    body = seq(
        [
            evolve(stmt, extent=n // size, body=whole),
            IfThenElse(compare(GT, left, zero), last),
        ]
    )
    return LetStmt(n, maximum(length, zero), LetStmt(left, n - n // size * size, body))


class _Tests:
    """The tests of one loop over tiles: `outer` * `size` + inner < `length`."""

    def __init__(self, outer: Var, size: int, length: Linear) -> None:
        self.outer, self.size, self.length = outer, size, length

    def replaced(self, stmt: Stmt, left: Var | None) -> Stmt | None:
        """A loop inside a tile with tests `inner < left`, or without a test; one test stands
        before all that the loop does, where nothing in it runs untested. None for other
        statements."""
        if not isinstance(stmt, For) or as_int(stmt.extent) != self.size:
            return None
        if stmt.kind is not ForKind.VECTORIZED:
            return None
        inner = stmt.var
        test = None if left is None else compare(LT, inner, left)
        outside = test is not None and self._tested(stmt.body, inner)

        def without(node: Stmt) -> Stmt | None:
            if not isinstance(node, IfThenElse) or not self._tests(node, inner):
                return None
            parts = [p for p in conjuncts(node.condition) if not self._is_test(p, inner)]
            if test is not None and not outside:
                parts.insert(0, test)
            return evolve(node, condition=all_of(parts)) if parts else node.then

        body = transform(stmt.body, without)
        if body is stmt.body:
            return None
        if test is not None and outside:
            body = IfThenElse(test, body)
        return evolve(stmt, body=body)

    def _tested(self, stmt: Stmt, inner: Var) -> bool:
        """Whether all that a statement does is tested."""
        if isinstance(stmt, (BufferStore, Evaluate)):
            return False
        return self._tests(stmt, inner) or all(self._tested(s, inner) for s in stmt.stmts)

    def _tests(self, stmt: Stmt, inner: Var) -> bool:
        return (
            isinstance(stmt, IfThenElse)
            and stmt.orelse is None
            and any(self._is_test(p, inner) for p in conjuncts(stmt.condition))
        )

    def _is_test(self, part: Expr, inner: Var) -> bool:
        if not isinstance(part, LT):
            return False
        found = _form(part.b).plus(_form(part.a), -1)
        place = Linear({self.outer: self.size, inner: 1}, 0)
        wanted = self.length.plus(place, -1)
        return found.terms == wanted.terms and found.const == wanted.const


def _form(expr: Expr) -> Linear:
    """A sum in which a variable that is cast stands for itself: loops count below the largest
    number of the type that the program gave them."""

    def narrow(node: Expr) -> Linear | None:
        is_var = isinstance(node, Cast) and isinstance(node.value, Var) and node.dtype.is_int
        return Linear({node.value: 1}, 0) if is_var else None  # type: ignore[attr-defined]

    return terms(expr, casts=True, atoms=narrow)
