"""Where temporary buffers live and how large they are.

An allocation moves inwards to the smallest statement that holds all its uses. It does not enter a
loop that carries its contents to the next iteration. There the buffer shrinks to the box that is
touched. So buffers inside a parallel loop are private to the threads, and cached tiles are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from metasched.analysis.boxes import by_rows
from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Max, Min, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Ramp
from metasched.ir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    evolve,
)
from metasched.ir.visit import (
    bound_vars,
    free_vars,
    loads_of,
    map_body,
    transform,
    walk,
    walk_stmts,
)
from metasched.lower.passes.align import Alignment, aligned_strides, without_explicit_regions


def place_allocations(func: PrimFunc) -> PrimFunc:
    """allocate(A); for i: S(A)  ->  for i: allocate(A'); S(A')."""
    return map_body(func, lambda body: without_explicit_regions(transform(body, _allocate)))


def _allocate(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Allocate) or "carried" not in stmt.annotations:
        return None
    buffer, carried = stmt.buffer, stmt.annotations["carried"]
    if buffer not in _used(stmt.body):
        return stmt.body
    if buffer.data in _used(stmt.body) or buffer.strides or buffer.elem_offset is not None:
        return Allocate(buffer, stmt.body)  # its address is taken: leave it alone
    where = _Where(buffer, carried, stmt.annotations["aligned"], _ranges(stmt.body))
    found = _sunk(stmt.body, where, crossing=False)
    return stmt.body if found is None else found


_Ranges: TypeAlias = "dict[Expr, tuple[int, int] | None]"
"""The least and the greatest value of each variable; None for unknown values."""


@dataclass(frozen=True, slots=True)
class _Where:
    """A buffer that looks for a place, and what its allocation must respect.

    Attributes:
        carried: the loops that carry its contents to the next iteration.
        ranges: of all variables that the statement of the allocation binds.
    """

    buffer: Buffer
    carried: frozenset[Var]
    aligned: Alignment
    ranges: _Ranges


def _ranges(stmt: Stmt) -> _Ranges:
    """The ranges of the variables that are bound inside a statement."""
    found: _Ranges = {}
    for node in walk_stmts(stmt):
        for var in bound_vars(node):
            extent = as_int(node.extent) if isinstance(node, For) else None
            found[var] = None if extent is None else (0, max(extent - 1, 0))
    return found


def _used(stmt: Stmt) -> frozenset[Buffer | Expr]:
    """The buffers accessed and the pointer variables mentioned in a statement; cached."""
    found = stmt.facts.get("used_buffers")
    if found is None:
        own: set[Buffer | Expr] = set()
        if isinstance(stmt, BufferStore):
            own.add(stmt.buffer)
        for expr in stmt.exprs:
            own |= _used_by(expr)
        found = frozenset(own).union(*[_used(s) for s in stmt.stmts])
        stmt.facts["used_buffers"] = found
    return found


def _used_by(expr: Expr) -> set[Buffer | Expr]:
    found: set[Buffer | Expr] = {v for v in free_vars(expr) if v.dtype.is_handle}
    return found.union(load.buffer for load in loads_of(expr))


def _sunk(stmt: Stmt, where: _Where, crossing: bool) -> Stmt | None:
    """Move the allocation into `stmt`; None if the allocation must not enter the loops around
    `stmt`."""
    buffer = where.buffer
    inside = [s for s in stmt.stmts if buffer in _used(s)]
    own = any(buffer in _used_by(e) for e in stmt.exprs) or isinstance(stmt, (While, BufferStore))
    if not own and len(inside) == 1 and _may_enter(stmt, where.carried):
        loop = isinstance(stmt, For) and as_int(stmt.extent) != 1
        # Iterations of a parallel loop read only what they wrote, so each gets its own memory.
        alone = isinstance(stmt, For) and stmt.kind is ForKind.PARALLEL
        deeper = _sunk(inside[0], where, not alone and (crossing or loop))
        if deeper is not None:
            parts = [deeper if s is inside[0] else s for s in stmt.stmts]
            return stmt.rebuild(parts, stmt.exprs)
    return _compacted(stmt, where, crossing)


def _may_enter(stmt: Stmt, carried: frozenset[Var]) -> bool:
    if isinstance(stmt, For):
        return stmt.kind is not ForKind.VECTORIZED and stmt.var not in carried
    return isinstance(stmt, (SeqStmt, IfThenElse, LetStmt, Allocate)) or bool(
        stmt.stmts and not isinstance(stmt, While)
    )


# -- the touched box


@dataclass(slots=True)
class _Touched:
    """The touched indices of a dimension: outer + [low, high]; `outer` is constant inside the
    statement."""

    outer: dict[Expr, int]
    low: int
    high: int


def _compacted(stmt: Stmt, where: _Where, crossing: bool) -> Stmt | None:
    """Allocate the touched box around `stmt`; None if `stmt` may read an element before it writes
    the element."""
    buffer, aligned = where.buffer, where.aligned
    reads, writes = (_indices(stmt, buffer, kind) for kind in (BufferLoad, BufferStore))
    if reads is None or writes is None:
        return None if crossing else Allocate(buffer, stmt)
    spans = _TouchedBoxes(stmt, where.ranges)
    read = [spans.union([a[d] for a in reads], d, buffer) for d in range(buffer.ndim)]
    written = [spans.union([a[d] for a in writes], d, buffer) for d in range(buffer.ndim)]
    if crossing and not (writes and all(map(_covers, written, read))):
        return None
    boxes = [spans.union([a[d] for a in (*reads, *writes)], d, buffer) for d in range(buffer.ndim)]
    starts: list[Expr] = []
    shape: list[Expr] = []
    for span, extent in zip(boxes, buffer.shape, strict=True):
        size = None if span is None else span.high - span.low + 1
        full = as_int(extent)
        if span is None or size is None or (full is not None and size >= full):
            starts.append(as_expr(0, extent.dtype))
            shape.append(extent)
            continue
        shape.append(as_expr(size, extent.dtype))
        starts.append(_expression(span, extent))
    if not aligned and all(a is b for a, b in zip(shape, buffer.shape, strict=True)):
        return Allocate(buffer, stmt)
    strides = aligned_strides(shape, aligned) if aligned else ()
    small = Buffer(
        buffer.name, tuple(shape), buffer.dtype, buffer.scope, strides, align=buffer.align
    )
    return Allocate(small, _moved(stmt, buffer, small, starts))


_Indices: TypeAlias = "tuple[Expr, ...]"


def _indices(
    stmt: Stmt, buffer: Buffer, kind: type[BufferLoad] | type[BufferStore]
) -> list[_Indices] | None:
    """The indices of the loads or stores of a buffer, made by `by_rows`; None if `by_rows` fails
    for an access."""
    found = []
    for node in walk(stmt):
        if isinstance(node, kind) and node.buffer is buffer:
            rows = by_rows(node.indices, buffer)
            if rows is None:
                return None
            found.append(rows)
    return found


def _covers(written: _Touched | None, read: _Touched | None) -> bool:
    if written is None or read is None:
        return written is None and read is None
    inside = written.low <= read.low and read.high <= written.high
    return read.high < read.low or (written.outer == read.outer and inside)


class _TouchedBoxes:
    """Computes the ranges of indices over the loops inside a statement."""

    def __init__(self, stmt: Stmt, around: _Ranges) -> None:
        self.inner = _ranges(stmt)
        self.analyzer = Analyzer(_known(self.inner))
        self.around = Analyzer(_known(around))

    def union(self, indices: list[Expr], dim: int, buffer: Buffer) -> _Touched | None:
        """The range that holds all indices of one dimension; None if unknown (then the whole
        dimension is touched)."""
        total: _Touched | None = _Touched({}, 0, -1)
        for index in set(indices):
            span = self.of(index)
            if span is None or total is None:
                return None
            if total.high < total.low:
                total = span
            elif span.outer != total.outer:
                return None
            else:
                total = _Touched(span.outer, min(span.low, total.low), max(span.high, total.high))
        return total

    def of(self, index: Expr) -> _Touched | None:
        """Split one index into its outer part and the range of the rest."""
        if isinstance(index, Ramp):
            base, step = self.of(index.base), as_int(index.stride)
            if base is None or step is None:
                return None
            reach = step * (index.lanes - 1)
            return _Touched(base.outer, base.low + min(reach, 0), base.high + max(reach, 0))
        form = linear_address(self.analyzer.simplify(index))
        result = _Touched({}, form.const, form.const)
        for atom, factor in form.terms.items():
            span = self._atom(atom)
            if span is None:
                return None
            ends = sorted((span.low * factor, span.high * factor))
            result.low += ends[0]
            result.high += ends[1]
            for outer, times in span.outer.items():
                result.outer[outer] = result.outer.get(outer, 0) + times * factor
        return result

    def _atom(self, atom: Expr) -> _Touched | None:
        variables = free_vars(atom)
        mentioned = [v for v in variables if v in self.inner]
        if not mentioned and not _reads(atom):
            return _Touched({atom: 1}, 0, 0)
        if any(self.inner[v] is None for v in mentioned) or _reads(atom):
            return None
        if len(mentioned) == len(variables):
            low, high = self.analyzer.bounds(atom)
            return None if low is None or high is None else _Touched({}, low, high)
        if isinstance(atom, (FloorDiv, FloorMod)) and isinstance(atom.b, IntImm):
            return self._divided(atom, atom.b.value)
        if isinstance(atom, (Min, Max)):
            return self._limited(atom)
        return None

    def _limited(self, atom: Min | Max) -> _Touched | None:
        """min(outer + rest, limit) lies in outer + [low, high] as without the limit, if outer + low
        never exceeds the limit. (`overcompute` limits the indices of its last tile so.)"""
        limit, index = (atom.a, atom.b) if isinstance(atom.a, IntImm) else (atom.b, atom.a)
        span = self.of(index)
        if span is None or not isinstance(limit, IntImm):
            return None
        low, high = self.around.bounds(_expression(_Touched(span.outer, 0, 0), index))
        if isinstance(atom, Min):
            kept = high is not None and high + span.low <= limit.value
        else:
            kept = low is not None and low + span.high >= limit.value
        return span if kept else None

    def _divided(self, atom: FloorDiv | FloorMod, divisor: int) -> _Touched | None:
        """(outer * divisor + rest) divided: the outer part comes out of the division."""
        span = self.of(atom.a)
        if span is None or divisor <= 0 or any(f % divisor for f in span.outer.values()):
            return None
        if isinstance(atom, FloorDiv):
            outer = {v: f // divisor for v, f in span.outer.items()}
            return _Touched(outer, span.low // divisor, span.high // divisor)
        if span.low >= 0 and span.high < divisor:
            return _Touched({}, span.low, span.high)
        return _Touched({}, 0, divisor - 1)


def _known(ranges: _Ranges) -> dict[Var, tuple[int, int]]:
    return {v: known for v, known in ranges.items() if known and isinstance(v, Var)}


def _reads(expr: Expr) -> bool:
    return any(isinstance(b, Buffer) for b in _used_by(expr))


def _expression(span: _Touched, like: Expr) -> Expr:
    total: Expr = as_expr(span.low, like.dtype)
    for atom, factor in span.outer.items():
        total = total + atom * factor
    return total


def _moved(stmt: Stmt, old: Buffer, new: Buffer, starts: list[Expr]) -> Stmt:
    """Replace accesses to `old` by accesses to `new`, whose first element is `old[starts]`."""

    def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(map(_minus, indices, starts))

    def on_expr(expr: Expr) -> Expr | None:
        if isinstance(expr, BufferLoad) and expr.buffer is old:
            return BufferLoad(new, place(expr.indices), expr.predicate)
        return None

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer is old:
            return evolve(node, buffer=new, indices=place(node.indices))
        return None

    return transform(stmt, on_stmt, on_expr)


def _minus(index: Expr, start: Expr) -> Expr:
    if as_int(start) == 0:
        return index
    if isinstance(index, Ramp):
        return Ramp(_minus(index.base, start), index.stride, index.lanes)
    moved = index - start
    form = linear_address(moved)
    total: Expr = as_expr(form.const, moved.dtype)
    for atom, factor in form.terms.items():
        total = atom * factor + total
    return total
