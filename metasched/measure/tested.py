"""Values of scalars for the test data: those at which conditions make the most work.

if i < n: S     n = 64, where i < 64: S runs in each iteration
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import ceil, floor, inf

from metasched.arith.affine import Ranges, form_interval, linear
from metasched.arith.linear import Linear
from metasched.ir.expr import (
    GE,
    GT,
    LE,
    LT,
    And,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Mod,
    Not,
    Or,
    Select,
    Var,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BlockRealize, Break, Continue, IfThenElse, Return, Stmt
from metasched.ir.visit import free_vars, walk_exprs, walk_stmts

_Limit = tuple[Var, int, bool]
"""A scalar, and a number that it must reach, or (False) must not exceed."""


def tested_values(func: PrimFunc, scalars: Collection[Var], ranges: Ranges) -> dict[str, int]:
    """The values of scalars, by name, at which comparisons with constants and with loop variables
    hold in all iterations.

    Of a scalar that comparisons limit from both sides, the larger limit counts. Scalars without
    such comparisons are left out, and so is a divisor that would be zero.
    """
    least: dict[Var, int] = {}
    most: dict[Var, int] = {}
    divisors: set[Var] = set()
    for stmt in walk_stmts(func.body):
        for expr in stmt.exprs:
            for node in walk_exprs(expr):
                if isinstance(node, (Div, Mod, FloorDiv, FloorMod)):
                    divisors |= free_vars(node.b)
        for condition, holds in _conditions(stmt):
            for var, limit, at_least in _limits(condition, holds, scalars, ranges):
                if at_least:
                    least[var] = max(limit, least.get(var, limit))
                else:
                    most[var] = min(limit, most.get(var, limit))
    found = {}
    for var, value in (most | least).items():
        low, high = var.dtype.range
        value = min(max(value, low), high)
        if value or var not in divisors:
            found[var.name] = value
    return found


def _conditions(stmt: Stmt) -> Iterator[tuple[Expr, bool]]:
    """The conditions of a statement, and whether the work is done where they hold."""
    if isinstance(stmt, IfThenElse):
        yield stmt.condition, not isinstance(stmt.then, (Break, Continue, Return))
    elif isinstance(stmt, BlockRealize):
        yield stmt.predicate, True
    for expr in stmt.exprs:
        for node in walk_exprs(expr):
            if isinstance(node, Select):
                yield node.condition, True
            elif isinstance(node, Call) and node.op.name == "if_then_else":
                yield node.args[0], True


def _limits(test: Expr, holds: bool, scalars: Collection[Var], ranges: Ranges) -> Iterator[_Limit]:
    """The limits of scalars so that a condition holds in all iterations, or in none."""
    if isinstance(test, Not):
        yield from _limits(test.a, not holds, scalars, ranges)
    elif isinstance(test, (And, Or)):
        for part in (test.a, test.b):
            yield from _limits(part, holds, scalars, ranges)
    elif isinstance(test, (LT, LE, GT, GE)) and test.a.dtype.is_int:
        less = isinstance(test, (LT, LE)) is holds
        low, high = (test.a, test.b) if less else (test.b, test.a)
        strict = isinstance(test, (LT, GT)) is holds
        form = linear(low).plus(linear(high), -1)
        for var in scalars:
            terms = dict(form.terms)
            times = terms.pop(var, 0)
            top = form_interval(Linear(terms, form.const + strict), ranges)[1]
            if times and abs(top) < inf:
                at = -top / times  # times * var + top <= 0
                yield var, ceil(at) if times < 0 else floor(at), times < 0
