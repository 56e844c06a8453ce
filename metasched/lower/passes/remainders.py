"""Loops that test a remainder of their variable run over the iterations that pass.

    for j in range(n):                          start = (1 - i) % 2
        if (i + j) % 2 == 1: S(j)    ->         for j in range((n + 1) // 2):
                                                    if j * 2 + start < n: S(j * 2 + start)

A red-black sweep is such a loop; the color may be the variable of a loop over colors. A constant
extent stays constant: unless the step divides it, a test for the end remains in the body. Other
conditions remain, too.

Lanes under a mask load and store whole vectors, lanes apart shuffle them. So the lanes of a vector
stay under a mask unless one of these reasons holds:

- the remainder is none of bits, so that the mask takes long;
- the loop reads neighbours in the array that it stores: a vector that holds elements just stored
  waits for them;
- the operations that the masked lanes save are more than the shuffles.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from metasched.analysis.flops import expr_flops
from metasched.arith.affine import form_interval, interval, terms
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear, emit
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    EQ,
    LT,
    NE,
    Cast,
    Div,
    Expr,
    FloorMod,
    IntImm,
    Var,
    as_int,
    compare,
    floordiv,
    floormod,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, While, evolve
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_body,
    substitute,
    transform,
    walk_exprs,
    walk_stmts,
)
from metasched.lower.passes.data import data_vars, is_data
from metasched.lower.passes.guards import all_of


class _Class(NamedTuple):
    """The iterations that pass a test: `first` and each `step`-th after it."""

    step: int
    first: Expr


def step_over_remainders(func: PrimFunc) -> PrimFunc:
    """for j: if (j + i) % k == r: S(j)  ->  for j: S(j * k + (r - i) % k)."""
    data, ranges = data_vars(func), dict[Var, Interval]()
    for s in walk_stmts(func.body):
        if isinstance(s, For):  # a loop stands before the loops inside it
            low, high = interval(s.min, ranges)
            ranges[s.var] = low, high + max(interval(s.extent, ranges)[1] - 1, 0)
    return map_body(func, lambda body: transform(body, lambda stmt: _loop(stmt, data, ranges)))


def _loop(stmt: Stmt, data: frozenset[Var], ranges: Mapping[Var, Interval]) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind in (ForKind.THREAD_BINDING, ForKind.UNROLLED):
        return None
    body, parts = stmt.body, list[Expr]()
    while isinstance(body, IfThenElse) and body.orelse is None:
        parts += conjuncts(body.condition, hints=False)
        body = body.then
    for part in parts if not stmt.annotations else ():
        found = _class(part, stmt.var, data, ranges)
        if found is not None:
            others = [p for p in parts if p is not part]
            if stmt.kind is ForKind.VECTORIZED and not _pays(body, found.step, others, data):
                return None
            return _stepped(stmt, others, body, found)
    return None


def _pays(body: Stmt, step: int, others: list[Expr], data: frozenset[Var]) -> bool:
    """Whether lanes `step` iterations apart are faster than lanes under a mask."""
    inside = list(walk_stmts(body))
    masked = any(isinstance(s, (IfThenElse, While)) for s in inside)
    if masked or any(is_data(p, data) for p in others):
        return False  # lanes apart under a mask are gathered
    if step & (step - 1):
        return True
    stores = [s for s in inside if isinstance(s, BufferStore)]
    loads = [x for s in stores for x in loads_of(s.value)]
    own = {s.buffer.data: s.indices for s in stores}
    if any(x.buffer.data in own and own[x.buffer.data] != x.indices for x in loads):
        return True
    values = [e for s in stores for e in walk_exprs(s.value)]
    if any(isinstance(e, (Call, Div)) and e.dtype.is_float for e in values):
        return True
    saved = sum(expr_flops(s.value) for s in stores) - len(loads)
    return saved * (step - 1) > len(stores) * step


def _class(
    part: Expr, var: Var, data: frozenset[Var], ranges: Mapping[Var, Interval]
) -> _Class | None:
    """The iterations at which `part` holds, if it compares a remainder of a multiple of `var` with
    a number, or with a value that is a remainder, too, as the variable of a loop over colors."""
    if not isinstance(part, (EQ, NE)):
        return None
    (value, by), wanted = remainder_of(part.a), _form(part.b)
    if by is None or wanted is None or is_data(value, data) or is_data(part.b, data):
        return None
    low, high = form_interval(wanted, ranges)
    if low < 0 or high >= by or var in free_vars(part.b):
        return None
    if isinstance(part, NE):
        if by != 2:
            return None
        wanted = Linear({}, 1).plus(wanted, -1)
    form = _form(value)
    if form is None:
        return None
    factor = form.terms.get(var, 0) % by
    rest = Linear({t: n for t, n in form.terms.items() if t is not var}, form.const)
    if gcd(factor, by) != 1 or any(var in free_vars(t) for t in rest.terms):
        return None
    inverse = pow(factor, -1, by)
    first = emit(Linear({}, 0).plus(wanted, inverse).plus(rest, -inverse), INT64)
    return None if first is None else _Class(by, floormod(first, IntImm(INT64, by)))


def remainder_of(expr: Expr) -> tuple[Expr, int | None]:
    """The value and the divisor of a remainder; (expr, None) for others."""
    if isinstance(expr, FloorMod):
        return expr.a, as_int(expr.b)
    if isinstance(expr, Call) and expr.op.name == "bitwise_and":
        value, bits = expr.args
        ones = as_int(bits)
        if ones is not None and ones > 0 and not ones & (ones + 1):
            return value, ones + 1
    return expr, None


def _form(value: Expr) -> Linear | None:
    """A sum of 64-bit terms; a loop variable that is cast stands for itself. None for others."""

    def wide(node: Expr) -> Linear | None:
        whole = isinstance(node, Cast) and node.dtype.kind == "int" and node.dtype.bits >= 32
        return Linear({node.value: 1}, 0) if whole else None  # type: ignore[attr-defined]

    form = terms(value, casts=True, atoms=wide)
    return form if all(t.dtype is INT64 for t in form.terms) else None


def _stepped(loop: For, others: list[Expr], body: Stmt, found: _Class) -> Stmt:
    """The loop over the iterations `found`, with the conditions `others` in its body."""
    step, var, start = found.step, Var(loop.var.name, INT64), Var(f"{loop.var.name}_start", INT64)
    here = var * step + start
    extent = as_int(loop.extent)
    if extent is None or extent % step:
        others = [compare(LT, here, loop.extent), *others]
    condition = all_of([substitute(p, {loop.var: here}) for p in others])
    body = substitute(body, {loop.var: here})
    guarded = IfThenElse(condition, body) if others else body
    trips = floordiv(loop.extent + (step - 1), IntImm(INT64, step))
    return LetStmt(start, found.first, evolve(loop, var=var, extent=trips, body=guarded))
