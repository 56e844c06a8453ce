"""Finds an iteration that certainly runs and in which a value leaves its range.

A path lists the loops, let bindings and conditions around an access, outermost first. A point is an
iteration that reaches the access. `at_samples` tries many points with NumPy, for constant extents.
`at_corner` proves for symbolic extents that one corner of the loops is such a point.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metasched.arith.analyzer import Analyzer, Known
from metasched.arith.bounds import is_index
from metasched.ir import expr as ir
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars, substitute, walk_exprs

Path: TypeAlias = "tuple[For | tuple[Var, Expr] | Expr, ...]"
_Values: TypeAlias = dict[Var, NDArray[np.int64]]
_ALL = 1 << 13  # the most points for which a loop is tried at all its values
_MOST = 1 << 16  # the most points that are tried at once


@dataclass(frozen=True, slots=True)
class Point:
    """One iteration: the values of the loops and variables that matter."""

    values: Mapping[Var, Expr]
    loops: tuple[Var, ...]

    def of(self, value: Expr) -> str:
        """The value of an expression at this point, as text."""
        return show_expr(Analyzer().simplify(substitute(value, self.values)))

    def __str__(self) -> str:
        values = [f"{v.name} = {show_expr(self.values[v])}" for v in self.loops if v in self.values]
        return f", at {', '.join(values)}" if values else ""


def known_of(path: Path, value: Expr) -> Analyzer:
    """The ranges of the loops and the values of the variables on a path on which a value depends.

    Choices on other variables may take long to analyse, and each access has its own index.
    """
    found = free_vars(value)
    kept: list[For | tuple[Var, Expr]] = []
    for entry in reversed(path):
        if isinstance(entry, Expr):
            continue
        var, used = (entry.var, entry.exprs) if isinstance(entry, For) else (entry[0], entry[1:])
        if var in found:
            found = found.union(*map(free_vars, used))
            kept.append(entry)
    return _known(tuple(reversed(kept)))


@functools.lru_cache(maxsize=64)
def _known(path: tuple[For | tuple[Var, Expr], ...]) -> Analyzer:
    ranges: dict[Var, Known] = {}
    for entry in path:
        if isinstance(entry, For):
            if entry.step is None and is_plain(entry.min) and is_plain(entry.extent):
                ranges[entry.var] = Range(entry.min, entry.extent)
        elif isinstance(entry, tuple) and is_plain(entry[1]):
            ranges[entry[0]] = entry[1]
    return Analyzer(ranges)


@functools.lru_cache(maxsize=1 << 12)
def is_plain(expr: Expr) -> bool:
    """Whether an index or a condition is arithmetic on variables and constants, rightly typed."""
    for node in walk_exprs(expr):
        scalar = node.dtype == "bool" or is_index(node.dtype)
        if isinstance(node, Call):
            choice = node.op.name == "if_then_else" and node.args[0].dtype == "bool"
            known = choice and node.args[1].dtype is node.args[2].dtype is node.dtype
            if not (known or (node.op.name == "likely" and node.args[0].dtype is node.dtype)):
                return False
        elif not isinstance(node, (Var, IntImm, ir.Cast)) and type(node) not in _RULES:
            return False
        if not scalar:
            return False
    return True


def _concerned(path: Path, values: list[Expr]) -> frozenset[Var]:
    """The variables on which `values`, and whether the iteration runs, depend."""
    found: set[Var] = set()
    for value in values:
        found |= free_vars(value)
    for entry in reversed(path):
        if isinstance(entry, For):
            found |= free_vars(entry.min) | free_vars(entry.extent)
        elif not isinstance(entry, tuple):
            found |= free_vars(entry)
        elif entry[0] in found:
            found |= free_vars(entry[1])
    return frozenset(found)


# ---- constant extents ---------------------------------------------------------------------


class _Unknown(Exception):
    """A value that only a run of the program can give."""


def at_samples(path: Path, value: Expr, extent: Expr) -> Point | None:
    """A point at which `value` is not in 0 : extent, among many that are tried."""
    concerned = _concerned(path, [value, extent])
    points: _Values = {}
    count = 1
    try:
        for entry in path:
            if isinstance(entry, For):
                points, count = _entered(entry, points, count, entry.var in concerned)
            elif isinstance(entry, tuple):
                if entry[0] in concerned:
                    points[entry[0]] = _number(entry[1], points, count)
            else:
                points, count = _kept(points, _number(entry, points, count) != 0)
            if not count:
                return None
        x, size = _number(value, points, count), _number(extent, points, count)
    except _Unknown:
        return None
    missed = np.flatnonzero((x < 0) | (x >= size))
    if not missed.size:
        return None
    found = {v: IntImm(v.dtype, int(a[missed[0]])) for v, a in points.items()}
    return Point(found, _mentioned(path, value, extent))


def at_all(path: Path, values: Sequence[Expr]) -> list[NDArray[np.int64]] | None:
    """The values of expressions at every iteration of a path, in the same order for all.

    None if there are too many iterations, or if the values are known only when the program runs.
    """
    points: _Values = {}
    count = 1
    try:
        for entry in path:
            if isinstance(entry, For):
                if count * int(_number(entry.extent, points, count).max(initial=0)) > _ALL:
                    return None
                points, count = _entered(entry, points, count, True)
            elif isinstance(entry, tuple):
                points[entry[0]] = _number(entry[1], points, count)
            else:
                points, count = _kept(points, _number(entry, points, count) != 0)
        return [_number(value, points, count) for value in values]
    except _Unknown:
        return None


def _mentioned(path: Path, *values: Expr) -> tuple[Var, ...]:
    """The variables of a path that the values mention, for a message."""
    mentioned = frozenset[Var]().union(*map(free_vars, values))
    bound = [e.var if isinstance(e, For) else e[0] for e in path if not isinstance(e, Expr)]
    return tuple(v for v in bound if v in mentioned)


def _kept(points: _Values, mask: NDArray[np.bool_]) -> tuple[_Values, int]:
    return {v: a[mask] for v, a in points.items()}, int(mask.sum())


def _entered(loop: For, points: _Values, count: int, matters: bool) -> tuple[_Values, int]:
    """The points inside a loop: all iterations, or for over `_ALL` points the first and last."""
    low, size = _number(loop.min, points, count), _number(loop.extent, points, count)
    step = 1 if loop.step is None else int(_number(loop.step, points, 1)[0])
    most = int(size.max(initial=0))
    if most <= 0:
        return points, 0
    steps = sorted(k for k in {0, 1, most // 2, most - 2, most - 1} if 0 <= k < most)
    if not matters:
        steps = [0]
    elif count * most <= _ALL:
        steps = list(range(most))
    elif count * len(steps) > _MOST:
        steps = [most - 1] if count * 2 > _MOST else [0, most - 1]
    offsets = np.tile(np.asarray(steps, np.int64), count)
    wide = {v: np.repeat(a, len(steps)) for v, a in points.items()}
    reached = np.repeat(low, len(steps)) + offsets * step
    wide[loop.var] = _within(reached, *loop.var.dtype.range)
    return _kept(wide, offsets < np.repeat(size, len(steps)))


_Rule: TypeAlias = Callable[..., Any]
_RULES: dict[type[Expr], _Rule] = {
    ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.Min: np.minimum,
    ir.Max: np.maximum, ir.FloorDiv: np.floor_divide, ir.FloorMod: np.mod,
    ir.Div: lambda a, b: np.sign(a) * np.sign(b) * (abs(a) // abs(b)), ir.Mod: np.fmod,
    ir.EQ: np.equal, ir.NE: np.not_equal, ir.LT: np.less, ir.LE: np.less_equal,
    ir.GT: np.greater, ir.GE: np.greater_equal,
    ir.And: np.logical_and, ir.Or: np.logical_or, ir.Not: np.logical_not, ir.Select: np.where,
}  # fmt: skip
_DIVISIONS = (ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod)
_LARGE = 1 << 62


def _number(expr: Expr, points: _Values, count: int) -> NDArray[np.int64]:
    """The value of an index or a condition at each point.

    Raises _Unknown if the value depends on memory or on the width of a type.
    """
    found = np.asarray(_evaluate(expr, points, {}), np.int64)
    return np.broadcast_to(found, (count,)) if found.ndim == 0 else found


def _evaluate(expr: Expr, points: _Values, known: dict[Expr, Any]) -> Any:
    """The value of an expression at each point; `known` keeps the values of its parts."""
    if expr not in known:
        known[expr] = _operation(expr, points, known)
    return known[expr]


def _operation(expr: Expr, points: _Values, known: dict[Expr, Any]) -> Any:
    if isinstance(expr, IntImm):
        return np.int64(_within(expr.value, -_LARGE, _LARGE))
    if isinstance(expr, Var):
        if expr not in points:
            raise _Unknown
        return points[expr]
    if not (expr.dtype.is_bool or is_index(expr.dtype)) or expr.dtype.lanes > 1:
        raise _Unknown  # narrow integers wrap
    args = [_evaluate(child, points, known) for child in expr.children]
    if isinstance(expr, ir.Cast) and (expr.value.dtype.is_bool or is_index(expr.value.dtype)):
        return np.not_equal(args[0], 0) if expr.dtype.is_bool else args[0]
    if isinstance(expr, Call):
        if expr.op.name == "if_then_else":
            return np.where(*args)
        if expr.op.name == "likely":
            return args[0]
    rule = _RULES.get(type(expr))
    if rule is None or (isinstance(expr, _DIVISIONS) and np.any(np.equal(args[1], 0))):
        raise _Unknown
    if isinstance(expr, ir.Mul):
        args = [_within(a, -(1 << 31), 1 << 31) for a in args]
    least, most = expr.dtype.range
    return _within(rule(*args), max(least, -_LARGE), min(most, _LARGE))


def _within(values: Any, least: int, most: int) -> Any:
    """Check that the next operation on the numbers cannot wrap in 64 bits; else raise _Unknown."""
    if np.any(np.less(values, least)) or np.any(np.greater(values, most)):
        raise _Unknown
    return values


# ---- symbolic extents ---------------------------------------------------------------------


def at_corner(path: Path, value: Expr, extent: Expr) -> Point | None:
    """A corner of the loops at which `value` is certainly not in 0 : extent.

    This holds for all values of the symbols for which the loops run.
    """
    if not all(map(is_plain, _needed(path))):
        return None
    for beyond, least in (
        (value >= extent.astype(value.dtype), 0 - value),
        (value < 0, value),
    ):
        found = _corner(path, least)
        if found is not None and found[1].prove(substitute(beyond, found[0])):
            return Point(found[0], _mentioned(path, value, extent))
    return None


def _needed(path: Path) -> Iterator[Expr]:
    """The expressions that decide whether an iteration runs."""
    for entry in path:
        if isinstance(entry, For):
            yield from entry.exprs
        elif not isinstance(entry, tuple):
            yield entry


def _corner(path: Path, value: Expr) -> tuple[dict[Var, Expr], Analyzer] | None:
    """The corner of the loops at which `value` is least, and an analyzer with the facts there.

    Loops are fixed at an end one by one, from the innermost. None unless the corner certainly runs.
    """
    an, chosen = _running(path), {}
    for entry in reversed(path):
        if isinstance(entry, tuple):
            if is_plain(entry[1]):
                value = substitute(value, {entry[0]: entry[1]})
        elif isinstance(entry, For):
            first, last = ({entry.var: end} for end in _ends(entry))
            ends = substitute(value, first), substitute(value, last)
            down = ends[0] is not ends[1] and an.prove(ends[0] >= ends[1])
            chosen[entry.var] = (last if down else first)[entry.var]
            value = an.simplify(ends[1] if down else ends[0])
    values: dict[Var, Expr] = {}
    for entry in path:
        if isinstance(entry, tuple):
            if is_plain(entry[1]):
                values[entry[0]] = an.simplify(substitute(entry[1], values))
            continue
        if not isinstance(entry, For):
            if not an.prove(substitute(entry, values)):
                return None
            continue
        if not an.prove(substitute(entry.extent, values) >= 1):
            return None
        values[entry.var] = an.simplify(substitute(chosen[entry.var], values))
    return values, an


def _running(path: Path) -> Analyzer:
    """The facts about symbols that hold if each loop over symbols has an iteration."""
    an, bound = Analyzer(), set[Var]()
    for entry in path:
        if isinstance(entry, For):
            symbols, extent, least = free_vars(entry.extent), entry.extent, 1
            while isinstance(extent, ir.FloorDiv) and (by := as_int(extent.b) or 0) > 0:
                extent, least = extent.a, least * by
            if symbols and symbols.isdisjoint(bound):
                an = an.assume(extent >= least)
            bound.add(entry.var)
        elif isinstance(entry, tuple):
            bound.add(entry[0])
    return an


def _ends(loop: For) -> tuple[Expr, Expr]:
    """The first and the last value of a loop's variable."""
    reach = loop.extent - 1
    return loop.min, loop.min + (reach if loop.step is None else reach * loop.step)
