"""Conditions move out of loops, and loops split where a condition holds for all iterations.

A test without the loop's variable moves in front of the loop; tests of memory beside it stay. A
test that is linear in the variable splits the loop into two versions. If the test holds for every
iteration, the plain loop runs, else the loop with the test (masked, if vectorized). Long serial
loops and parallel loops run over fewer iterations instead, so that threads share only the
iterations that pass the test. A serial loop
around two such versions is cut where the test fails first:

    for i in 16: if i < 15: S(i) else: T(i)  ->  for i in 15: S(i); T(15)

so that what S accumulates stays in registers. A long loop is also cut at places that depend on the
loops around. Where the tests in T tell that T does nothing, as far from a group of time steps,
these iterations are left out. If the test compares with an extent that is known at run time only, a
loop around two versions gets two versions itself, up to the loops over tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from metasched.arith.affine import linear_address
from metasched.arith.conditions import conjuncts
from metasched.ir import expr as ir
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    TRUE,
    Compare,
    Expr,
    IntImm,
    Var,
    as_expr,
    as_int,
    compare,
    logical_and,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, IfThenElse, LetStmt, SeqStmt, Stmt, evolve, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    jumps,
    map_body,
    substitute,
    transform,
    walk_exprs,
    walk_stmts,
)
from metasched.lower.passes.data import data_vars, is_data

# A loop body of more statements than this is not written twice.
MAX_COPIED = 48
# The lanes of a vector may be longer if they run a loop: masks would cost in each of its steps.
MAX_REPEATED = 96
_SHORT, _FEW = 64, 16


class Symbols(NamedTuple):
    """Variables of a function.

    Attributes:
        unbound: those that no statement binds: extents that are known at run time.
        data: those that name elements of memory.
    """

    unbound: frozenset[Var]
    data: frozenset[Var]


def hoist_guards(func: PrimFunc) -> PrimFunc:
    """for i: if c: S  ->  if c: for i: S, and the splits described above."""
    inside = {s.var for s in walk_stmts(func.body) if isinstance(s, For | LetStmt)}
    tests = [s.condition for s in walk_stmts(func.body) if isinstance(s, IfThenElse)]
    symbols = Symbols(frozenset().union(*map(free_vars, tests)) - inside, data_vars(func))
    return map_body(func, lambda body: transform(body, lambda stmt: _statement(stmt, symbols)))


def _statement(stmt: Stmt, symbols: Symbols) -> Stmt | None:
    if isinstance(stmt, SeqStmt):
        return _merged(stmt, symbols)
    if isinstance(stmt, IfThenElse) and stmt.orelse is None:
        inner = stmt.then
        if isinstance(inner, IfThenElse) and inner.orelse is None:
            return IfThenElse(logical_and(stmt.condition, inner.condition), inner.then)
        return None
    if isinstance(stmt, For) and isinstance(stmt.body, IfThenElse):
        return _loop(stmt, stmt.body, symbols)
    return None


def _merged(stmt: SeqStmt, symbols: Symbols) -> Stmt | None:
    """if c: A; if c: B  ->  if c: A; B, when A cannot change c; choices by a symbol, too."""
    out: list[Stmt] = []
    for item in stmt.items:
        last = out[-1] if out else None
        if (
            isinstance(item, IfThenElse) and isinstance(last, IfThenElse)
            and item.condition is last.condition and _is_plain(item.condition)
            and (item.orelse is last.orelse is None or _has_symbols(item.condition, symbols))
        ):  # fmt: skip
            branches = [(last.then, item.then), (last.orelse, item.orelse)]
            then, orelse = ([s for s in branch if s is not None] for branch in branches)
            rest = _again(seq(orelse), symbols) if orelse else None
            out[-1] = IfThenElse(item.condition, _again(seq(then), symbols), rest)
        else:
            out.append(item)
    return seq(out) if len(out) < len(stmt.items) else None


def _is_plain(condition: Expr) -> bool:
    """Whether an expression depends on variables only, and may be evaluated wherever they are
    known."""
    return not any(isinstance(n, (BufferLoad, Call)) for n in walk_exprs(condition))


def all_of(parts: list[Expr]) -> Expr:
    """The conjunction of conditions."""
    total: Expr = TRUE
    for part in parts:
        total = logical_and(total, part)
    return total


def _guard(condition: Expr, body: Stmt) -> Stmt:
    """A statement under a condition, which joins the condition of the statement."""
    if condition is TRUE:
        return body
    if isinstance(body, IfThenElse) and body.orelse is None:
        return IfThenElse(logical_and(condition, body.condition), body.then)
    return IfThenElse(condition, body)


def _loop(loop: For, test: IfThenElse, symbols: Symbols) -> Stmt | None:
    if loop.kind is ForKind.THREAD_BINDING:
        return None
    every = conjuncts(test.condition, hints=False)
    parts = [p for p in every if _is_plain(p)]
    stays = all_of([p for p in every if p not in parts])
    if not parts or (test.orelse is not None and stays is not TRUE):
        return None
    inside = [p for p in parts if loop.var in free_vars(p)]
    wraps = any(is_data(p, symbols.data) for p in inside)
    if test.orelse is not None:
        if inside:
            if wraps:
                return None
            cut = _cut(loop, parts, test, symbols)
            return _versions(loop, parts, test, symbols) if cut is None else cut
        branches = [evolve(loop, body=test.then), _fresh(evolve(loop, body=test.orelse))]
        then, orelse = (_again(branch, symbols) for branch in branches)
        return IfThenElse(test.condition, then, orelse)
    outside = [p for p in parts if loop.var not in free_vars(p)]
    body = _guard(stays, test.then)
    if inside:
        split = None if wraps else _split(loop, inside, body, symbols)
        if split is None and not outside:
            return None
        result = split if split is not None else evolve(loop, body=_guard(all_of(inside), body))
    else:
        result = evolve(loop, body=body)
        result = _statement(result, symbols) or result
    return _guard(all_of(outside), result)


def _split(loop: For, inside: list[Expr], body: Stmt, symbols: Symbols) -> Stmt | None:
    """Split a loop by the tests `inside`: a version without them runs where all hold for the whole
    loop. None if the loop cannot be split."""
    extent = as_int(loop.extent)
    long = loop.kind is ForKind.SERIAL and (extent is None or extent > _SHORT)
    if long or loop.kind is ForKind.PARALLEL:
        return _narrowed(loop, inside, body)
    stmts = list(walk_stmts(body))
    repeats = loop.kind is ForKind.VECTORIZED and any(isinstance(s, For) for s in stmts)
    if extent is None or len(stmts) > (MAX_REPEATED if repeats else MAX_COPIED):
        return None
    whole = [_for_all(p, loop, extent) for p in inside]
    if any(w is None for w in whole):
        return None
    condition = all_of([w for w in whole if w is not None])
    plain = _again(evolve(loop, body=body), symbols)
    if condition is TRUE:
        return plain
    tested = _fresh(evolve(loop, body=_guard(all_of(inside), body)))
    return IfThenElse(condition, plain, tested)


def _has_symbols(condition: Expr, symbols: Symbols) -> bool:
    """Whether a condition compares with an extent that is known at run time only."""
    return not symbols.unbound.isdisjoint(free_vars(condition))


def _again(stmt: Stmt, symbols: Symbols) -> Stmt:
    """The statement, after a test of a run-time extent at its top has moved, too."""
    test = stmt.body if isinstance(stmt, For) else stmt
    tests = test.items if isinstance(test, SeqStmt) else (test,)
    if any(isinstance(t, IfThenElse) and _has_symbols(t.condition, symbols) for t in tests):
        return _statement(stmt, symbols) or stmt
    return stmt


def _versions(loop: For, parts: list[Expr], test: IfThenElse, symbols: Symbols) -> Stmt | None:
    """A short loop around a choice by a run-time extent: a version with the first branch alone runs
    where all of `parts` hold for the whole loop. None if the loop cannot be split."""
    extent = as_int(loop.extent)
    if extent is None or extent > _SHORT or loop.kind is ForKind.PARALLEL:
        return None
    small = sum(1 for _ in walk_stmts(test)) <= MAX_COPIED
    if not small or not _has_symbols(test.condition, symbols):
        return None
    whole = [_for_all(p, loop, extent) for p in parts]
    if any(w is None for w in whole):
        return None
    condition = all_of([w for w in whole if w is not None])
    plain = _again(evolve(loop, body=test.then), symbols)
    return IfThenElse(condition, plain, _fresh(loop))


def _cut(loop: For, parts: list[Expr], test: IfThenElse, symbols: Symbols) -> Stmt | None:
    """Split a loop where all of `parts` begin to hold, and where the first part ceases to hold.

    Places that depend on the loops around cut long loops only: each of the three pieces may be
    empty. None for a loop with jumps: a `break` would leave its own piece only.
    """
    then, orelse = test.then, test.orelse
    if orelse is None or loop.kind is not ForKind.SERIAL or jumps(loop.body):
        return None
    low, high, left = _limits(loop, parts)
    low = ir.minimum(low, loop.extent)
    high = ir.maximum(low, high)
    if not left and None not in map(as_int, (low, high, loop.extent)):
        pieces = _pieces(loop, low, high, then, orelse)
        found = seq([_statement(piece, symbols) or piece for piece in pieces])
        return _statement(found, symbols) or found
    if as_int(loop.extent) in range(_FEW) or any(loop.var in free_vars(part) for part in left):
        return None
    if sum(1 for _ in walk_stmts(loop.body)) > MAX_COPIED:
        return None
    if left:
        high = ir.Select(all_of(left), high, low)
    begin, end = (Var(f"{loop.var.name}_{place}", INT64) for place in ("begin", "end"))
    busy = _busy(loop, orelse, symbols)
    if busy is None:
        pieces = _pieces(loop, begin, end, then, orelse)
        return LetStmt(begin, low, LetStmt(end, high, seq(pieces)))
    first, last = (Var(f"{loop.var.name}_{place}", INT64) for place in ("first", "last"))
    body = seq(_pieces(loop, begin, end, then, orelse, (first, last)))
    body = LetStmt(last, ir.maximum(end, busy[1]), body)
    body = LetStmt(first, ir.minimum(busy[0], begin), body)
    return LetStmt(begin, low, LetStmt(end, high, body))


def _busy(loop: For, body: Stmt, symbols: Symbols) -> tuple[Expr, Expr] | None:
    """From where to where in a loop the body does anything, as far as its tests tell; None if they
    do not tell."""
    parts = [p for p in _needed(body) if loop.var in free_vars(p) and not is_data(p, symbols.data)]
    low, high, left = _limits(loop, parts)
    return (low, high) if len(left) < len(parts) else None


def _needed(stmt: Stmt) -> list[Expr]:
    """Conditions that hold wherever a statement does anything.

    A linear test inside a loop of constant length holds nowhere in the loop unless it holds where
    it is weakest.
    """
    if isinstance(stmt, IfThenElse) and stmt.orelse is None:
        return [part for part in conjuncts(stmt.condition, hints=False) if _is_plain(part)]
    extent = as_int(stmt.extent) if isinstance(stmt, For) else None
    if not isinstance(stmt, For) or not extent:
        return []
    weakest = [
        part if stmt.var not in free_vars(part) else _for_one(part, stmt, extent)
        for part in _needed(stmt.body)
    ]
    return [part for part in weakest if part is not None]


def _pieces(
    loop: For, low: Expr, high: Expr, then: Stmt, orelse: Stmt,
    whole: tuple[Expr, Expr] | None = None,
) -> list[Stmt]:  # fmt: skip
    """A loop with one body from `low` to `high`, and another before and after.

    Args:
        whole: where the other body begins and ends; by default, where the loop does.
    """
    out: list[Stmt] = []
    zero = as_expr(0, INT64)
    first, last = (zero, loop.extent) if whole is None else whole
    for begin, end, body in ((first, low, orelse), (low, high, then), (high, last, orelse)):
        extent = end - begin
        if as_int(extent) != 0:
            var = Var(loop.var.name, INT64)
            later = substitute(body, {loop.var: var + begin})
            out.append(_fresh(evolve(loop, var=var, extent=extent, body=later)))
    return out


def _fresh(stmt: Stmt) -> Stmt:
    """Copy a statement with new variables, since each loop needs a variable of its own."""
    return fresh_copy(stmt)


def difference(part: Expr, loop: For) -> tuple[Expr, int] | None:
    """Write `part` as (rest + factor * loop variable < 0): gives the rest and the factor."""
    if not isinstance(part, Compare) or part.a.dtype is not INT64:
        return None
    low, high, slack = part.a, part.b, 0
    if isinstance(part, (ir.GT, ir.GE)):
        low, high = high, low
    if isinstance(part, (ir.LE, ir.GE)):
        slack = -1
    elif not isinstance(part, (ir.LT, ir.GT)):
        return None
    form = linear_address(low - high)
    factor = form.terms.get(loop.var, 0)
    if factor == 0 or any(loop.var in free_vars(t) for t in form.terms if t is not loop.var):
        return None
    atoms = [atom for atom in form.terms if atom is not loop.var]
    return sum_of({atom: form.terms[atom] for atom in atoms}, form.const + slack), factor


def sum_of(terms: Mapping[Expr, int], const: int) -> Expr:
    """A linear form as an expression, equal forms as the same expression."""
    total: Expr = IntImm(INT64, const)
    for atom in sorted(terms, key=lambda e: (e.name, e.serial) if isinstance(e, Var) else ("", 0)):
        total = atom * terms[atom] + total
    return total


def _for_all(part: Expr, loop: For, extent: int) -> Expr | None:
    """The condition under which `part` holds in every iteration."""
    found = difference(part, loop)
    if found is None:
        return None
    form, slack = linear_address(found[0]), max(found[1], 0) * (extent - 1)
    return compare(ir.LT, sum_of(form.terms, form.const + slack), as_expr(0, INT64))


def _for_one(part: Expr, loop: For, extent: int) -> Expr | None:
    """A condition that holds if `part` holds in any iteration."""
    found = difference(part, loop)
    if found is None:
        return None
    form, slack = linear_address(found[0]), min(found[1], 0) * (extent - 1)
    return compare(ir.LT, sum_of(form.terms, form.const + slack), as_expr(0, INT64))


def _narrowed(loop: For, inside: list[Expr], body: Stmt) -> Stmt | None:
    """The loop over the iterations for which the tests that are linear in its variable hold, with
    the other tests in its body. None if no test is linear."""
    low, high, left = _limits(loop, inside)
    if len(left) == len(inside):
        return None
    body = _guard(all_of(left), body)
    if as_int(low) == 0:
        return evolve(loop, extent=high, body=body)
    var = Var(loop.var.name, INT64)
    return evolve(loop, var=var, extent=high - low, body=substitute(body, {loop.var: var + low}))


def without_test(loop: For, wanted: Callable[[For], object]) -> Stmt | None:
    """The loop over the iterations for which the test in its body holds.

    None if the loop has no such test, if the test is not linear in the variable of the loop, or if
    the loop without its test is not `wanted`.
    """
    test = loop.body
    if not isinstance(test, IfThenElse) or test.orelse is not None:
        return None
    parts = conjuncts(test.condition, hints=False)
    if not all(map(_is_plain, parts)) or not wanted(evolve(loop, body=test.then)):
        return None
    inside = [p for p in parts if loop.var in free_vars(p)]
    low, high, left = _limits(loop, inside)
    if left or as_int(low) != 0:
        return None
    outside = all_of([p for p in parts if p not in inside])
    return _guard(outside, evolve(loop, extent=high, body=test.then))


def _limits(loop: For, parts: list[Expr]) -> tuple[Expr, Expr, list[Expr]]:
    """From where to where in a loop all `parts` that are linear in its variable hold, and the other
    parts."""
    zero = as_expr(0, INT64)
    low, high = zero, loop.extent
    left: list[Expr] = []
    for part in parts:
        found = difference(part, loop)
        if found is None:
            left.append(part)
        elif found[1] > 0:
            high = ir.minimum(high, _quotient(zero - found[0] - 1, found[1]) + 1)
        else:
            low = ir.maximum(low, _quotient(found[0], -found[1]) + 1)
    return low, high, left


def _quotient(value: Expr, by: int) -> Expr:
    return value if by == 1 else value // by
