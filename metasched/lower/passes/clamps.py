"""Loop bodies with a version in which the clamped indices of vector lanes are plain.

    for i: for l in vectorized(16): B[16 * i + l] = A[min(16 * i + l, 90)]

becomes

    for i:
        if 16 * i + 15 <= 90: for l in vectorized(16): B[16 * i + l] = A[16 * i + l]
        else: for l in vectorized(16): B[16 * i + l] = A[min(16 * i + l, 90)]

Lanes of a clamped index are gathered one by one, but most vectors of an image or a padded tile
touch no border. So it is with absolute values, and with remainders: A[(16 * i + l + 1) % 96] is
A[16 * i + l + 1] where that is at most 95. `hoist_guards` then cuts the loop where the test fails.
So it does for choices:

    for j in 8: B[j] = if_then_else(j == 0, A[0], B[j - 1] + A[j])
    ->  B[0] = A[0]; for j in 7: B[j + 1] = B[j] + A[j + 1]

The rest of the loop has no branch, and keeps the last result in a register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Compare,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Select,
    Var,
    as_int,
    compare,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import AttrStmt, BufferStore, For, ForKind, IfThenElse, Stmt, While, evolve
from metasched.ir.visit import (
    bound_vars,
    free_vars,
    fresh_copy,
    map_body,
    transform_expr,
    walk_exprs,
    walk_stmts,
)
from metasched.lower.passes.data import data_vars, is_data
from metasched.lower.passes.guards import MAX_COPIED, all_of, sum_of

_STRAIGHT = (ForKind.UNROLLED, ForKind.VECTORIZED)
Inside = Mapping[Var, int | None]
"""The variables that are bound within a loop; the extent of each loop, None for other variables."""


def version_clamps(func: PrimFunc) -> PrimFunc:
    """for i: S(min(a * i + l, c))  ->  for i: if a * i + l <= c for all l: S(a * i + l) else ..."""
    return map_body(func, _Versions(data_vars(func)).statement)


@dataclass(slots=True)
class _Versions:
    """Adds the versions, innermost loops first.

    Attributes:
        data: the variables that name elements of memory.
        clamped: the bodies with clamps beside their plain versions.
    """

    data: frozenset[Var]
    clamped: list[Stmt] = field(default_factory=list)

    def statement(self, stmt: Stmt) -> Stmt:
        """`stmt` with versions of the bodies of its loops."""
        stmts = [self.statement(s) for s in stmt.stmts]
        if any(a is not b for a, b in zip(stmts, stmt.stmts, strict=True)):
            stmt = stmt.rebuild(stmts, stmt.exprs)
        if not isinstance(stmt, For) or stmt.kind not in (ForKind.SERIAL, ForKind.PARALLEL):
            return stmt
        inner = [s for s in walk_stmts(stmt.body) if isinstance(s, For | AttrStmt | While)]
        extent = as_int(stmt.extent) if stmt.kind is ForKind.SERIAL else None
        innermost = all(getattr(s, "kind", ForKind.SERIAL) in _STRAIGHT for s in inner)
        turns = as_int(stmt.extent) or 0
        moves = any(
            isinstance(s, BufferStore) and any(stmt.var in free_vars(i) for i in s.indices)
            for s in walk_stmts(stmt.body)
        )
        plain = _Plain(stmt.var, extent, innermost, turns, self.data, self.clamped, moves)
        body = plain.statement(stmt.body, {}, None)
        if not plain.tests or sum(1 for _ in walk_stmts(stmt.body)) > MAX_COPIED:
            return stmt
        self.clamped.append(stmt.body)
        tests = [compare(LT, sum_of(t.terms, t.const - 1), 0) for t in plain.tests]
        body = fresh_copy(plain.unguarded(body, {}))
        return evolve(stmt, body=IfThenElse(all_of(tests), body, stmt.body))


@dataclass(slots=True)
class _Plain:
    """Writes the plain version of a loop's body.

    Attributes:
        loop: the variable of the loop.
        extent: the number of iterations, if choices are decided.
        innermost: whether all choices are decided; otherwise those that depend on lanes.
        turns: the number of iterations; 0 if it is not constant.
        data: the variables that name elements of memory.
        clamped: statements that stay as they are.
        moves_results: whether the iterations store to different places; a sum's loop does not, and
            a loop around it gets the tests of lanes.
        tests: sums; the plain version is the same as the body where no sum is positive.
    """

    loop: Var
    extent: int | None
    innermost: bool
    turns: int
    data: frozenset[Var]
    clamped: list[Stmt]
    moves_results: bool
    tests: list[Linear] = field(default_factory=list)

    def statement(self, stmt: Stmt, inside: Inside, lane: Var | None) -> Stmt:
        """`stmt` without clamps of vector lanes.

        Args:
            inside: the variables that are bound around `stmt`, within the loop.
            lane: the variable of the vectorized loop around.
        """
        if any(stmt is s for s in self.clamped):
            return stmt
        within = _within(stmt, inside)
        if isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZED and as_int(stmt.extent):
            lane = stmt.var
        stmts = [self.statement(s, within, lane) for s in stmt.stmts]
        exprs = list(stmt.exprs)
        if lane is not None or (self.innermost and self.extent is not None):
            # a quotient and a remainder are digits of one index, whose lanes may lie side by side
            digits = any(isinstance(n, FloorDiv) for e in exprs for n in walk_exprs(e))
            kept = FloorMod if digits else ()
            exprs = [
                transform_expr(
                    e, lambda n: None if isinstance(n, kept) else self._plain(n, inside, lane), {}
                )
                for e in exprs
            ]
        pairs = zip((*stmts, *exprs), (*stmt.stmts, *stmt.exprs), strict=True)
        return stmt if all(a is b for a, b in pairs) else stmt.rebuild(stmts, exprs)

    def _plain(self, node: Expr, inside: Inside, lane: Var | None) -> Expr | None:
        if isinstance(node, (Min, Max)) and lane is not None:
            return self._unclamped(node, inside, lane)
        if isinstance(node, FloorMod) and lane is not None:
            return self._unwrapped(node, inside, lane)
        chooses = isinstance(node, Select) or (
            isinstance(node, Call) and node.op.name == "if_then_else"
        )
        if not chooses:
            return None
        condition, yes, no = node.children
        parts = [(part, self._decided(part, inside, lane)) for part in conjuncts(condition)]
        if any(known is False for _, known in parts):
            return no
        left = [part for part, known in parts if known is None]
        return yes if not left else node.rebuild((all_of(left), yes, no))

    def _decided(self, part: Expr, inside: Inside, lane: Var | None) -> bool | None:
        """The value of a comparison in most iterations, which becomes a test; None if unknown."""
        if not isinstance(part, Compare) or part.a.dtype is not INT64 or is_data(part, self.data):
            return None
        moves = lane is not None and lane in free_vars(part)
        if not moves and (self.extent is None or not self.innermost):
            return None
        form = linear_address(part.a).plus(linear_address(part.b), -1)
        form = form.scaled(-1) if isinstance(part, (GT, GE)) else form
        below, above = form.shifted(1), form.scaled(-1).shifted(1)  # a < b, a > b
        ways = [(below, isinstance(part, NE)), (above, isinstance(part, NE))]
        if isinstance(part, (LT, GT)):
            ways = [(below, True), (form.scaled(-1), False)]
        elif isinstance(part, (LE, GE)):
            ways = [(form, True), (above, False)]
        found = [(_most(test, inside), value) for test, value in ways]
        counted = [(self._count(t), n, v) for n, (t, v) in enumerate(found) if t is not None]
        count, at, value = max(counted, default=(0, 0, False))
        test = found[at][0]
        if count <= (self.extent or 0) // 2 or test is None:
            if not moves or isinstance(part, (EQ, NE)):
                return None
            test, value = max(found, key=lambda way: (self._share(way[0]), way[1]))
            if test is None or not self.moves_results:
                return None
            if not any(self.loop in free_vars(atom) for atom in test.terms):
                return None
        self._require(test)
        return value

    def _count(self, test: Linear) -> int:
        """The iterations in which a sum of the loop's variable alone is not positive; 0 for other
        sums."""
        if test.terms.keys() != {self.loop}:
            return 0
        factor, extent = test.terms[self.loop], self.extent or 0
        first = -(-test.const // -factor) if factor < 0 else 0
        last = -test.const // factor if factor > 0 else extent - 1
        return max(0, min(last, extent - 1) - max(first, 0) + 1)

    def _share(self, test: Linear | None) -> float:
        """How much of the range of a sum is not positive: 0 for no sum, 0.5 if it is unknown."""
        if test is None:
            return 0
        known = Analyzer({self.loop: (0, self.turns - 1)} if self.turns else {})
        low = high = float(test.const)
        for atom, factor in test.terms.items():
            ends = known.interval(atom)
            low, high = low + min(factor * e for e in ends), high + max(factor * e for e in ends)
        if low == -inf or high == inf:
            return 0.5
        return min(1, max(0, (1 - low) / (1 + high - low)))

    def _require(self, test: Linear) -> None:
        if not any(t.terms == test.terms and t.const >= test.const for t in self.tests):
            self.tests.append(test)

    def _unclamped(self, node: Min | Max, inside: Inside, lane: Var) -> Expr | None:
        """The side of a minimum or maximum that moves with the lanes, if a test of the loop's
        variable says that it is the result."""
        if node.dtype is not INT64 or is_data(node, self.data):
            return None
        sign = 1 if isinstance(node, Min) else -1
        ways = []
        for side, bound in ((node.a, node.b), (node.b, node.a)):
            form = linear_address(side).plus(linear_address(bound), -1).scaled(sign)
            most = _most(form, inside) if lane in free_vars(side) else None
            if most is not None and any(self.loop in free_vars(atom) for atom in most.terms):
                ways.append((side, most))
        if lane in free_vars(node.a) & free_vars(node.b):  # max(x, -x), which is abs(x)
            ways = [way for way in ways if self._count(way[1]) > (self.extent or 0) // 2]
        if not ways:
            return None
        side, most = ways[0]
        self._require(most)
        return side

    def _unwrapped(self, node: FloorMod, inside: Inside, lane: Var) -> Expr | None:
        """A remainder of lanes as the sum below it, less a multiple of the divisor: the multiple of
        an iteration inside the loop, if tests say that it is the same for all lanes."""
        by = as_int(node.b)
        if node.dtype is not INT64 or by is None or by <= 0 or not self.turns:
            return None
        form = linear_address(node.a)
        used = frozenset[Var]().union(*map(free_vars, form.terms))
        if not {lane, self.loop} <= used <= {self.loop, *inside} or is_data(node.a, self.data):
            return None
        least, most = (_most(f, inside) for f in (form.scaled(-1), form))
        if least is None or most is None or {*least.terms, *most.terms} != {self.loop}:
            return None
        for at in (self.turns // 2, self.turns // 4, self.turns * 3 // 4):
            low = -(least.terms[self.loop] * at + least.const)
            below = form.shifted(-(low // by) * by)
            ends = [_most(f, inside) for f in (below.scaled(-1), below.shifted(1 - by))]
            tests = [t for t in ends if t is not None and t.terms[self.loop] * at + t.const <= 0]
            if len(tests) == 2:
                for test in tests:
                    self._require(test)
                return sum_of(below.terms, below.const)
        return None

    def unguarded(self, stmt: Stmt, inside: Inside) -> Stmt:
        """The plain version without conditions that the tests imply."""
        within = _within(stmt, inside)
        stmts = [self.unguarded(s, within) for s in stmt.stmts]
        if isinstance(stmt, IfThenElse) and stmt.orelse is None:
            left = [p for p in conjuncts(stmt.condition) if not self._implied(p, inside)]
            return IfThenElse(all_of(left), stmts[0]) if left else stmts[0]
        same = all(a is b for a, b in zip(stmts, stmt.stmts, strict=True))
        return stmt if same else stmt.rebuild(stmts, stmt.exprs)

    def _implied(self, part: Expr, inside: Inside) -> bool:
        if (
            not isinstance(part, (LT, LE, GT, GE))
            or part.a.dtype is not INT64
            or is_data(part, self.data)
        ):
            return False
        low, high = (part.a, part.b) if isinstance(part, (LT, LE)) else (part.b, part.a)
        form = linear_address(low).plus(linear_address(high), -1)
        most = _most(form.shifted(1) if isinstance(part, (LT, GT)) else form, inside)
        return most is not None and any(
            t.terms == most.terms and t.const >= most.const for t in self.tests
        )


def _within(stmt: Stmt, inside: Inside) -> Inside:
    bound = bound_vars(stmt)
    if not bound:
        return inside
    extent = as_int(stmt.extent) if isinstance(stmt, For) else None
    return {**inside, **dict.fromkeys(bound, extent)}


def _most(form: Linear, inside: Inside) -> Linear | None:
    """The largest value of a sum for all values of the variables inside; None if unknown."""
    rest, const = dict[Expr, int](), form.const
    ranges = {v: (0, max(n - 1, 0)) for v, n in inside.items() if n is not None}
    known = Analyzer(ranges)
    for atom, factor in form.terms.items():
        own = free_vars(atom)
        if own.isdisjoint(inside):
            rest[atom] = factor
            continue
        low, high = known.bounds(atom) if own <= ranges.keys() else (None, None)
        end = high if factor > 0 else low
        if end is None:
            return None
        const += factor * int(end)
    return Linear(rest, const)
