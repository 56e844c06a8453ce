"""Lanes that run along rows of memory work on copies of the rows, whose lanes lie side by side.

    for s in T.vectorized(16):
        for i in range(1, 64): X[s, i] = X[s, i - 1] * A[s, i]

    ->  copies x, a of 64 x 16 elements
        for i in range(64): for s in T.vectorized(16): x[i, s] = X[s, i]        # the same for a
        for s in T.vectorized(16):
            for i in range(1, 64): x[i, s] = x[i - 1, s] * a[i, s]
        for i in range(64): for s in T.vectorized(16): X[s, i] = x[i, s]

Each step of such a loop would load and store every lane alone. Code generation turns the rows of
the copies in registers, 16 columns at a time (see `codegen.columns`). Loads that walk along rows
need no copy (see `lower.passes.walk`), nor do loops that `lower.passes.lane_rows` copies.

Short rows that serial loops around the lanes update get copies around these loops, which stay in
registers. Here lanes may also lie 2 to 4 elements apart:

    for j in range(n):
        for i in T.vectorized(16): F[3 * i] += f(i, j); F[3 * i + 1] += g(i, j)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.analysis.access import SHUFFLED
from metasched.arith.affine import form_interval, linear_address
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.enumerated import values
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, loads_of, map_body, reads_memory, transform, walk_stmts
from metasched.lower.passes.guards import difference
from metasched.lower.passes.walk import walking_loads

TURNED = "turned_rows"
"""Note on a block for the cost model: its lanes run along rows that this pass copies."""
MOST_BYTES = 96 << 10
"""The most bytes of the copies of one loop."""
MOST_KEPT = 8
"""The most elements of a row that stay in registers."""
GROUP, BITS = 16, 32
"""The columns that are turned together; the narrowest elements that registers exchange."""
_PLAIN = (BufferStore, For, IfThenElse, LetStmt, SeqStmt)


def turn_rows(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above."""
    inside = list(walk_stmts(func.body))
    if any(isinstance(s, LetStmt) and s.var.dtype.is_handle for s in inside):
        return func  # two buffers may share memory
    return map_body(func, lambda body: _inside(body, _Around((), {}, frozenset())))


@dataclass(frozen=True, slots=True)
class _Around:
    """What is known at a statement.

    Attributes:
        loops: the loops around.
        ranges: the values of their variables.
        own: the memory that is allocated inside the innermost parallel loop.
    """

    loops: tuple[For, ...]
    ranges: Mapping[Var, Interval]
    own: frozenset[Var]

    def inside(self, loop: For) -> _Around:
        own = frozenset[Var]() if loop.kind is ForKind.PARALLEL else self.own
        ranges = {**self.ranges, loop.var: _values(loop, self.ranges)}
        return _Around((*self.loops, loop), ranges, own)

    def where(self, condition: Expr) -> _Around:
        """The same under a condition, which may leave out values of a loop."""
        ranges = dict(self.ranges)
        for part in conjuncts(condition):
            for loop in self.loops:
                found = difference(part, loop)  # rest + factor * value < 0
                rest = None if found is None else as_int(found[0])
                if found is None or rest is None:
                    continue
                low, high = ranges[loop.var]
                if found[1] > 0:
                    ranges[loop.var] = low, min(high, -(rest + 1) // found[1])
                else:
                    ranges[loop.var] = max(low, rest // -found[1] + 1), high
        return replace(self, ranges=ranges)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The part of its row of a buffer that each lane of a loop uses.

    Attributes:
        stride: the elements between lanes.
        start: the address of the first element of the part, without the share of the lane.
        count: the elements from the first to the last one.
        stored: the columns from the first to the last one that the loop stores to.
        whole: whether the loop, if its conditions hold, stores to all of these.
        loaded: whether the loop loads elements.
    """

    stride: int
    start: Linear
    count: int
    stored: range
    whole: bool
    loaded: bool


def row_span(
    accesses: Sequence[tuple[Linear, bool]],
    lane: Var,
    inner: Mapping[Var, Interval],
    loops: Mapping[Var, For],
    beyond: int = SHUFFLED,
) -> RowSpan | None:
    """The part of a row that accesses stay in; None where lanes lie in no rows, or their parts
    overlap.

    Args:
        accesses: the addresses, and whether each is a store.
        inner: the values of the loops inside the loop over lanes.
        loops: these loops, each before the loops inside it.
        beyond: lanes lie more elements apart than that.
    """
    own = {lane, *inner}
    outer = {a: c for a, c in accesses[0][0].terms.items() if own.isdisjoint(free_vars(a))}
    stride = accesses[0][0].terms.get(lane, 0)
    rests: list[Linear] = []
    for form, _ in accesses:
        rest = dict(form.terms)
        if rest.pop(lane, 0) != stride or any(rest.pop(a, 0) != c for a, c in outer.items()):
            return None
        if any(not inner.keys() >= free_vars(a) or reads_memory(a) for a in rest):
            return None
        rests.append(Linear(rest, form.const))
    if stride <= beyond:
        return None
    found = [(form_interval(rest, inner), _dense(rest.terms, inner)) for rest in rests]
    low, high = min(s[0] for s, _ in found), max(s[1] for s, _ in found)
    if high - low + 1 > stride:
        counted = [values(rest, loops, inner) for rest in rests]
        found = [((min(v), max(v)), max(v) - min(v) < len(v)) for v in counted if v]
        if len(found) < len(accesses):
            return None
        low, high = min(s[0] for s, _ in found), max(s[1] for s, _ in found)
    if high - low + 1 > stride:
        return None
    writes = [s for s, (_, is_store) in zip(found, accesses, strict=True) if is_store]
    begin = min((s[0] for s, _ in writes), default=low)
    end = max((s[1] for s, _ in writes), default=low - 1)
    stored = range(int(begin - low), int(end - low) + 1)
    loaded = len(writes) < len(found)
    start = Linear(outer, int(low))
    return RowSpan(stride, start, int(high - low) + 1, stored, _whole(writes), loaded)


def _dense(terms: Mapping[Expr, int], ranges: Mapping[Var, Interval]) -> bool:
    """Whether a sum surely takes all values from its smallest to its largest."""
    reach: float = 1
    for atom, factor in sorted(terms.items(), key=lambda t: abs(t[1])):
        if abs(factor) > reach or not isinstance(atom, Var):
            return False
        low, high = ranges[atom]
        reach += abs(factor) * (high - low)
    return True


def _whole(spans: Sequence[tuple[Interval, bool]]) -> bool:
    """Whether the intervals that are filled together fill one interval, which holds all others."""
    filled = sorted(span for span, dense in spans if dense)
    if not filled:
        return False
    begin, end = filled[0]
    for low, high in filled:
        if low > end + 1:
            return False
        end = max(end, high)
    return all(begin <= low and high <= end for (low, high), _ in spans)


# -- the pass


def _inside(stmt: Stmt, around: _Around) -> Stmt:
    if isinstance(stmt, For):
        if stmt.kind is ForKind.VECTORIZED:
            return _turned(stmt, around)
        if (kept := _kept(stmt, around)) is not None:
            return kept
        around = around.inside(stmt)
    elif isinstance(stmt, Allocate):
        around = replace(around, own=around.own | {stmt.buffer.data})
    parts = [_inside(part, around) for part in stmt.stmts]
    if isinstance(stmt, IfThenElse):
        parts[0] = _inside(stmt.then, around.where(stmt.condition))
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    return stmt if same else stmt.rebuild(parts, stmt.exprs)


def _values(loop: For, ranges: Mapping[Var, Interval]) -> Interval:
    low, high = form_interval(linear_address(loop.min), ranges)
    return low, max(low, high + form_interval(linear_address(loop.extent), ranges)[1] - 1)


def _kept(stmt: For, around: _Around) -> Stmt | None:
    """Serial loops around a loop of lanes, with copies of the rows that they update; None where
    there are none.

    Lanes run in step, so these loops may as well stand inside the loop of lanes.
    """
    serial: list[For] = []
    inmost: Stmt = stmt
    while isinstance(inmost, For) and inmost.kind is ForKind.SERIAL:
        serial.append(inmost)
        inmost = inmost.body
    if not serial or not isinstance(inmost, For) or inmost.kind is not ForKind.VECTORIZED:
        return None
    body = inmost.body
    for each in reversed(serial):
        body = evolve(each, body=body)
    moved = evolve(inmost, body=body)
    made = _turned(moved, around, frozenset(each.var for each in serial))
    return None if made is moved else made


def _turned(loop: For, around: _Around, updates: frozenset[Var] = frozenset()) -> Stmt:
    """A loop of lanes with copies of its rows.

    Args:
        updates: if any, only rows that all iterations of the loops of these variables update get
            copies.
    """
    lanes, inside = as_int(loop.extent), list(walk_stmts(loop.body))
    if lanes is None or lanes % 4 or not all(isinstance(s, _PLAIN) for s in inside):
        return loop
    if not any(isinstance(s, For) and s.kind is ForKind.SERIAL for s in inside):
        return loop
    if any(e.dtype.lanes > 1 for s in inside for e in s.exprs):
        return loop
    inner: dict[Var, Interval] = {}
    loops = {s.var: s for s in inside if isinstance(s, For)}
    for s in loops.values():  # a loop stands before the loops inside it
        inner[s.var] = _values(s, {**around.ranges, **inner})
    accessed: dict[Buffer, list[BufferLoad | BufferStore]] = {}
    for access in _accesses(inside):
        accessed.setdefault(access.buffer, []).append(access)
    pointers = [b.data for b in accessed]
    rows = {
        b: span for b, each in accessed.items()
        if pointers.count(b.data) == 1
        if not updates or _updated(each, inner)
        if (span := _rows(b, each, loop, inner, loops, around, 1 if updates else SHUFFLED))
        is not None
    }  # fmt: skip
    size = sum(r.count * lanes * b.dtype.bytes for b, r in rows.items())
    if not rows or size > MOST_BYTES or not _pays(rows, loop, inside):
        return loop
    return _with_copies(loop, lanes, rows)


def _updated(accesses: Sequence[BufferLoad | BufferStore], inner: Mapping[Var, Interval]) -> bool:
    """Whether the same few elements are loaded and stored in all iterations of the inner loops."""
    kinds = {type(x) for x in accesses}
    places = {i for x in accesses for i in x.indices}
    still = all(inner.keys().isdisjoint(free_vars(i)) and not reads_memory(i) for i in places)
    return len(kinds) > 1 and still and len(places) <= MOST_KEPT


def _accesses(inside: Iterable[Stmt]) -> Iterator[BufferLoad | BufferStore]:
    for stmt in inside:
        for expr in stmt.exprs:
            yield from loads_of(expr)
        if isinstance(stmt, BufferStore):
            yield stmt


def _rows(
    buffer: Buffer, accesses: list[BufferLoad | BufferStore], loop: For,
    inner: Mapping[Var, Interval], loops: Mapping[Var, For], around: _Around, beyond: int,
) -> RowSpan | None:  # fmt: skip
    """The rows of a buffer that a loop's accesses stay in, if they may be copied."""
    size = as_int(buffer.shape[0]) if len(buffer.shape) == 1 else None
    if (
        buffer.dtype.bits < BITS
        or size is None
        or any(x.predicate is not None or len(x.indices) != 1 for x in accesses)
    ):
        return None
    forms = [(linear_address(x.indices[0]), isinstance(x, BufferStore)) for x in accesses]
    span = row_span(forms, loop.var, inner, loops, beyond)
    if span is None or any(a not in around.ranges for a in span.start.terms):
        return None
    lanes = as_int(loop.extent) or 1
    first, last = form_interval(span.start, around.ranges)
    if first < 0 or last + span.stride * (lanes - 1) + span.count > size:
        return None
    return span if not span.stored or _apart(buffer, span, loop, around) else None


def _apart(buffer: Buffer, rows: RowSpan, loop: For, around: _Around) -> bool:
    """Whether no other thread uses what is written back: elements that the loop stores to, in rows
    of this thread alone."""
    threads = [n for n in around.loops if n.kind is ForKind.PARALLEL]
    if not threads or buffer.data in around.own:
        return True
    lanes = as_int(loop.extent) or 1
    if not rows.whole or not all(_steps_over(rows, lanes, n.var, around) for n in threads):
        return False
    return _certain(loop) or _own_rows(buffer, rows, loop, threads[0], around)


def _certain(loop: For) -> bool:
    """Whether each statement of a loop runs for all values of the loops around it."""
    return all(
        (as_int(s.extent) or 0) > 0 if isinstance(s, For) else not isinstance(s, IfThenElse)
        for s in walk_stmts(loop.body)
    )


def _own_rows(buffer: Buffer, rows: RowSpan, loop: For, threads: For, around: _Around) -> bool:
    """Whether the iterations of a parallel loop use elements of a buffer apart from each other, in
    this loop and in all other statements: what the loop leaves out may be stored there."""
    inside = list(walk_stmts(threads.body))
    here = [x for x in _accesses(inside) if x.buffer.data is buffer.data]
    own = sum(x.buffer.data is buffer.data for x in _accesses(walk_stmts(loop.body)))
    moving = {s.var for s in inside if isinstance(s, For)}
    if own == len(here) and moving.isdisjoint(rows.start.terms):
        return True
    ranges = dict(around.ranges)
    for s in inside:
        if isinstance(s, For):
            ranges[s.var] = _values(s, ranges)
    by, found = rows.start.terms.get(threads.var, 0), list[Interval]()
    for access in here:
        rest = linear_address(access.indices[0]).plus(Linear({threads.var: by}, 0), -1)
        if not rest.terms.keys() <= ranges.keys():
            return False
        found.append(form_interval(rest, ranges))
    return max(high for _, high in found) - min(low for low, _ in found) < abs(by)


def _steps_over(rows: RowSpan, lanes: int, var: Var, around: _Around) -> bool:
    """Whether other values of a loop's variable have other rows, or other columns of the rows."""
    by, (low, high) = abs(rows.start.terms.get(var, 0)), around.ranges[var]
    beside = rows.count <= by and by * (high - low + 1) <= rows.stride
    return by >= rows.stride * lanes or beside


def _pays(rows: Mapping[Buffer, RowSpan], loop: For, inside: list[Stmt]) -> bool:
    """Whether lanes would be loaded or stored one by one in a loop that stays."""
    if any(r.stored for r in rows.values()):
        return True
    walked = {
        load.buffer
        for s in inside
        if isinstance(s, For) and s.kind is ForKind.SERIAL
        for load in walking_loads(s, loop.var, lambda atom: loop.var in free_vars(atom))
    }
    return any(buffer not in walked for buffer in rows)


def _with_copies(loop: For, lanes: int, rows: Mapping[Buffer, RowSpan]) -> Stmt:
    copies = {b: Buffer.of(f"{b.name}_rows", (r.count * lanes,), b.dtype) for b, r in rows.items()}

    def place(buffer: Buffer, index: Expr) -> tuple[Expr]:
        form = linear_address(index).plus(rows[buffer].start, -1)
        terms = {a: c for a, c in form.terms.items() if a is not loop.var}
        return (_expr(Linear(terms, form.const)) * lanes + loop.var.astype(INT64),)

    def stored(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, BufferStore) and stmt.buffer in copies:
            indices = place(stmt.buffer, stmt.indices[0])
            return evolve(stmt, buffer=copies[stmt.buffer], indices=indices)
        return None

    def loaded(expr: Expr) -> Expr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in copies:
            return BufferLoad(copies[expr.buffer], place(expr.buffer, expr.indices[0]))
        return None

    steps: list[Stmt] = []
    for buffer, span in rows.items():
        if _reads(span, loop):
            memory = _Memory(buffer, copies[buffer], span, loop)
            steps.append(memory.copied(range(span.count), out=False))
    steps.append(evolve(loop, body=transform(loop.body, stored, loaded)))
    for buffer, span in rows.items():
        if span.stored:
            memory = _Memory(buffer, copies[buffer], span, loop)
            steps.append(memory.copied(span.stored, out=True))
    made = seq(steps)
    for copy in copies.values():
        made = Allocate(copy, made)
    return made


def _expr(form: Linear) -> Expr:
    total = as_expr(form.const, INT64)
    for atom, factor in form.terms.items():
        total = total + atom.astype(INT64) * factor
    return total


def _reads(rows: RowSpan, loop: For) -> bool:
    """Whether a copy must begin with the elements of its rows."""
    return rows.loaded or not rows.whole or not _certain(loop)


@dataclass(frozen=True, slots=True)
class _Memory:
    """A buffer and the copy of its rows for a loop over lanes."""

    buffer: Buffer
    copy: Buffer
    rows: RowSpan
    loop: For

    def copied(self, which: range, *, out: bool) -> Stmt:
        """Loops that copy columns of rows to the lanes of the copy, or back."""
        whole, rest = divmod(len(which), GROUP)
        parts: list[Stmt] = []
        if whole:
            group = Var("column", INT64)
            body = self._columns(group * GROUP + which.start, GROUP, out)
            number = as_expr(whole, INT64)
            parts.append(For(group, as_expr(0, INT64), number, ForKind.SERIAL, body))
        if rest:
            first = as_expr(which.start + whole * GROUP, INT64)
            parts.append(self._columns(first, rest, out))
        return seq(parts)

    def _columns(self, first: Expr, count: int, out: bool) -> Stmt:
        lanes = self.loop.extent.astype(INT64)
        lane = Var(self.loop.var.name, INT64)
        stores: list[Stmt] = []
        for n in range(count):
            own = ((first + n) * lanes + lane,)
            memory = (_expr(self.rows.start) + lane * self.rows.stride + (first + n),)
            if out:
                stores.append(BufferStore(self.buffer, BufferLoad(self.copy, own), memory))
            else:
                stores.append(BufferStore(self.copy, BufferLoad(self.buffer, memory), own))
        return For(lane, as_expr(0, INT64), lanes, ForKind.VECTORIZED, seq(stores))
