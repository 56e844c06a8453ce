"""Region cover by witnesses: for each element read, the instance that wrote the element.

The indices of a write are solved for the loops of the producer. The element is written if the
solution is proved to lie within the loops, to satisfy the predicate and to give back the element.
The proof may use all that holds where the consumer reads the element: the ranges of its loops, its
predicate, the conditions around the load, and that the element lies in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from metasched.analysis.guarded import Read, cases, guarded_reads
from metasched.analysis.scope import Child, Region
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import covers, lower_region, running
from metasched.arith.inverse import left_inverse
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    EQ,
    FALSE,
    GE,
    LE,
    LT,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Var,
    as_int,
    compare,
    logical_not,
)
from metasched.ir.stmt import For
from metasched.ir.visit import reads_memory, substitute, walk_exprs

CASES = 64
"""The most remainders that are proved one by one."""


class Writer(NamedTuple):
    """The regions of a buffer that a producer writes.

    Attributes:
        free: the loops of the producer whose iterations all run before the read; the other loops
            above the producer are shared with the consumer.
        regions: the regions over all loops of the producer, as first element and extent of each
            dimension.
        earlier: whether the producer is the consumer itself, of which only instances count that ran
            in an earlier iteration of `free`.
    """

    child: Child
    free: Sequence[For]
    regions: Sequence[Region]
    earlier: bool = False


def witnessed(child: Child, buffer: Buffer, writers: Sequence[Writer], *, guarded: bool) -> bool:
    """Whether each element of `buffer` that an instance of `child` reads is surely written.

    The loads of the body count if `guarded`, otherwise all that the block declares to read.
    """
    if not writers:
        return False
    above = Analyzer()
    for loop in child.loops:
        above.bind(loop.var, Range(loop.min, loop.extent))
    above = above.assume(child.realize.predicate)
    return all(
        _is_written(known, element, writers)
        for read in _reads(child, buffer, guarded)
        for known, element in _places(above, child, read)
    )


def _reads(child: Child, buffer: Buffer, guarded: bool) -> Iterator[Read]:
    """The loads of `buffer` in the body, or points of the declared regions."""
    loads = guarded_reads(child.block) if guarded else None
    if loads is not None:
        yield from (read for read in loads if read.buffer is buffer)
        return
    for region in inputs(child.block):
        if region.buffer is buffer:
            inside = [
                (_offset("r", k, r.min.dtype), r) for k, r in enumerate(region.region)
                if as_int(r.extent) != 1
            ]  # fmt: skip
            added = {id(r): v for v, r in inside}
            point = [r.min + added[id(r)] if id(r) in added else r.min for r in region.region]
            loops = [(v, 0 * r.extent, r.extent) for v, r in inside]
            yield Read(buffer, tuple(point), (), tuple(loops))


def _places(
    above: Analyzer, child: Child, read: Read
) -> Iterator[tuple[Analyzer, tuple[Expr, ...]]]:
    """The element read over loop variables, with what is known where it is read."""
    at = child.realize.bindings
    known = above
    if read.loops:
        known = above.copy()
        for var, low, extent in read.loops:
            known.bind(var, Range(substitute(low, at), substitute(extent, at)))
    element = tuple([substitute(i, at) for i in read.indices])
    for index, size in zip(element, read.buffer.shape, strict=True):
        known = known.assume(compare(GE, index, 0)).assume(compare(LT, index, size))
    for case in cases(tuple([substitute(c, at) for c in read.conditions])):
        here: Analyzer | None = known
        for condition in case:
            here = None if here is None else _holding(here, condition)
        if here is not None:
            yield here, element


def _holding(known: Analyzer, condition: Expr) -> Analyzer | None:
    """The known facts and a condition together; None where the condition never holds."""
    return None if known.simplify(condition) is FALSE else known.assume(condition)


def _is_written(known: Analyzer, element: tuple[Expr, ...], writers: Sequence[Writer]) -> bool:
    """Whether one writer, or several writers in different cases, have written the element."""
    options: list[_Instance] = []
    for writer in writers:
        for region in writer.regions:
            found = _instance(writer, region, element)
            if found is None:
                continue
            left = found.open(known)
            if not left:
                return True
            options.append(found._replace(conditions=[_undivided(known.simplify(c)) for c in left]))
    return len(options) > 1 and _in_cases(known, options)


def _in_cases(known: Analyzer, options: Sequence[_Instance], most: int = CASES) -> bool:
    """Whether one of the instances exists, proved for each remainder of a variable if necessary.

    For example, one writer writes the even columns and another the odd columns: for each remainder
    modulo 2 one instance exists.
    """
    if any(not option.open(known) for option in options) or _together(known, options):
        return True
    conditions = (known.simplify(c) for option in options for c in option.conditions)
    terms = (e for c in conditions for e in walk_exprs(c) if isinstance(e, FloorMod | FloorDiv))
    for term in terms:
        count = as_int(term.b)
        moving = (v for v, c in linear(term.a).terms.items() if count and c % count)
        var = next((v for v in moving if isinstance(v, Var)), None)
        if var is not None and count is not None and 0 < count <= most:
            found = (_leaving(known, var, count, r) for r in range(count))
            return all(c is None or _in_cases(c, options, most // count) for c in found)
    return False


def _leaving(known: Analyzer, var: Var, count: int, rest: int) -> Analyzer | None:
    """The facts that hold where a variable leaves a remainder; None where it never leaves it."""
    low, high = known.bounds(var)
    first = None if low is None else -((rest - int(low)) // count)
    last = None if high is None else (int(high) - rest) // count
    if first is not None and last is not None and last < first:
        return None
    quotient = _quotient(var)
    case = known.copy()
    case.bind(quotient, (first, last))
    case.bind(var, quotient * count + rest)
    return case


@lru_cache(maxsize=1 << 8)
def _quotient(var: Var) -> Var:
    return Var(f"{var.name}_q", var.dtype)


def _undivided(condition: Expr) -> Expr:
    """The bound of a quotient, `x // 2 < 3`, as a bound of the dividend, `x < 6`."""
    if not isinstance(condition, (LT, LE)):
        return condition
    below, above = condition.a, condition.b
    one = 1 if isinstance(condition, LT) else 0  # a < b is a <= b - 1
    if isinstance(below, FloorDiv) and (by := as_int(below.b)) is not None and by > 0:
        return compare(LT, below.a, (above + (1 - one)) * by)
    if isinstance(above, FloorDiv) and (by := as_int(above.b)) is not None and by > 0:
        return compare(GE, above.a, (below + one) * by)
    return condition


def _together(known: Analyzer, options: Sequence[_Instance]) -> bool:
    """Whether one of the instances exists."""
    first, *rest = options
    left = first.open(known)
    if not left:
        return True
    if not rest:
        return False
    others = (_holding(known, logical_not(c)) for c in left)
    return all(other is None or _together(other, rest) for other in others)


class _Instance(NamedTuple):
    """The instance of a producer that writes a given element.

    Attributes:
        conditions: the conditions that hold if the instance exists and writes the element.
        ranges: the ranges of the producer's loops.
        undetermined: the loops that the element does not determine; their first iteration is used.
    """

    conditions: list[Expr]
    ranges: Mapping[Var, Range]
    undetermined: list[Var]

    def open(self, known: Analyzer) -> list[Expr]:
        """The conditions that are not proved."""
        left = [c for c in self.conditions if not known.prove(c)]
        if left and self.undetermined:
            known = running(known, self.ranges, self.undetermined)
            left = [c for c in left if not known.prove(c)]
        return left


def _instance(writer: Writer, region: Region, element: tuple[Expr, ...]) -> _Instance | None:
    """The instance of a producer that writes an element; None if unknown.

    None, too, if the instance depends on memory, which may change before the read.
    """
    parts = [e for pair in region for e in pair] + [e for n in writer.free for e in n.exprs]
    if any(map(reads_memory, (*parts, writer.child.realize.predicate))):
        return None
    twins = {n.var: _twin(n.var) for n in writer.free}
    ranges = {
        twins[n.var]: Range(substitute(n.min, twins), substitute(n.extent, twins))
        for n in writer.free
    }
    there = [(substitute(low, twins), substitute(extent, twins)) for low, extent in region]
    order = twins if writer.earlier else {}
    predicate = substitute(writer.child.realize.predicate, twins)
    return _solved(tuple(there), ranges, predicate, element, order)


def _solved(
    region: Region,
    ranges: Mapping[Var, Range],
    predicate: Expr,
    element: Sequence[Expr],
    order: Mapping[Var, Var] = {},
) -> _Instance | None:
    """Solve `element lies in region` for the variables of `ranges`.

    With an `order` of loops, outermost first, each with its variable of `ranges`: None unless the
    solution is proved to run in an earlier iteration of these loops.
    """
    inside: dict[Var, Range] = {}
    indices: list[Expr] = []
    for k, (low, extent) in enumerate(region):
        if as_int(extent) == 1:
            indices.append(low)
            continue
        var = _offset("w", k, low.dtype)
        inside[var] = Range.of(0, extent)
        indices.append(low + var)
    values = [x.astype(i.dtype) for x, i in zip(element, indices, strict=True)]
    solved = left_inverse(indices, {**ranges, **inside}, values)
    if isinstance(solved, str):
        return None
    undetermined = [var for var in ranges if var not in solved]
    for var in undetermined:  # any iteration writes the element
        solved[var] = substitute(ranges[var].min, solved)
    if order and not _earlier([(solved[twin], var) for var, twin in order.items()]):
        return None
    out = [compare(EQ, substitute(i, solved), x) for i, x in zip(indices, values, strict=True)]
    for var, r in (*ranges.items(), *inside.items()):
        first = substitute(r.min, solved)
        out.append(compare(GE, solved[var], first))
        out.append(compare(LT, solved[var], first + substitute(r.extent, solved)))
    out += [substitute(condition, solved) for condition in conjuncts(predicate)]
    return _Instance(out, ranges, undetermined)


def _earlier(pairs: Sequence[tuple[Expr, Var]]) -> bool:
    """Whether one iteration of loops runs before another, by known distances in the loops."""
    for there, here in pairs:
        step = linear(there.astype(here.dtype)).plus(linear(here), -1)
        if step.terms or step.const > 0:
            return False
        if step.const < 0:
            return True
    return False


def fills(
    values: Sequence[Expr], ranges: Mapping[Var, Range], predicate: Expr, box: Sequence[Range]
) -> bool:
    """Whether `values` take every point of a box while the variables of `ranges` run.

    Only values of the variables that satisfy the predicate count.
    """
    known = Analyzer()
    point = tuple([_offset("x", k, r.min.dtype) for k, r in enumerate(box)])
    for var, r in zip(point, box, strict=True):
        known.bind(var, r)
    found = _solved(tuple([(v, IntImm(v.dtype, 1)) for v in values]), ranges, predicate, point)
    return found is not None and not found.open(known)


@lru_cache(maxsize=1 << 12)
def covers_domain(
    domains: Region, values: tuple[Expr, ...], predicate: Expr, *loops: tuple[Var, Expr, Expr]
) -> bool:
    """Whether `values` take every point of the domains while loops (variable, first value, extent)
    run under a predicate.

    Cached by value, because replays ask again about equal blocks that are new objects.
    """
    ranges = {var: Range(low, extent) for var, low, extent in loops}
    points = [Range(value, IntImm(value.dtype, 1)) for value in values]
    analyzer = Analyzer()
    box, whole = lower_region(points, ranges, predicate, analyzer), [Range(*d) for d in domains]
    if box is not None and covers(box, whole, analyzer):
        return True
    return fills(values, ranges, predicate, whole)


@lru_cache(maxsize=1 << 12)
def _twin(var: Var) -> Var:
    """A second variable for a loop, which stands for another iteration."""
    return Var(f"{var.name}_", var.dtype)


@lru_cache(maxsize=64)
def _offset(name: str, axis: int, dtype: DType) -> Var:
    return Var(f"{name}{axis}", dtype)
