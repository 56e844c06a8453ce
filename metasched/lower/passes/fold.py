"""Reductions along contiguous memory in any order: partial results in the lanes of vectors.

    for k in range(n): S[i] = S[i] + f(k)         # under the note `pragma_fold_lanes` = w

becomes, with A of w elements in registers,

    vector l < w: A[l] = f(l)
    for c in range(1, n // w): vector l < w: A[l] = A[l] + f(c * w + l)
    vector l < n % w: A[l] = A[l] + f(n // w * w + l)
    for l in range(w): S[i] = S[i] + A[l]         # as a tree, by code generation

The width need not divide the extent, and no start value is needed. The note, which a schedule puts
on the block, says that the order may change. A note of 1 marks the last of these loops, which code
generation computes as a tree. `S[i] + a + b` is taken as `S[i] + (a + b)`. Around the statement
there may be unrolled loops, over several results that share their operands: each of their
iterations has its own partial results.

The extent n may be known only at run time, as in a triangle, or where a test cuts the last of
several partial sums short. Then A starts from the identity of the
operation, and the last vector is masked:

    if n > 0:
        vector l < w: A[l] = 0
        for c in range(n // w): vector l < w: A[l] = A[l] + f(c * w + l)
        vector l < w: A[l] = A[l] + (f(n // w * w + l) if l < n - n // w * w else 0)
        for l in range(w): S[i] = S[i] + A[l]

For a difference S[i] - f(k), the values f(k) are added up and their sum is subtracted from S[i].
f may read S if the ranges of the loops around prove that it reads other elements than S[i], as in a
Cholesky factorization.

Several reductions in one loop, such as a sum and a sum of squares, have partial results each; the
loops over vectors compute all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from metasched.analysis.block import FOLD
from metasched.analysis.reducer import grouped, identity_of, updates_of
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    EQ,
    GT,
    LT,
    Add,
    BinaryOp,
    Expr,
    IntImm,
    Max,
    Min,
    Mul,
    Sub,
    Var,
    as_expr,
    as_int,
    compare,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_body,
    substitute,
    walk_exprs,
)
from metasched.lower.passes.fold_choice import fold_choice
from metasched.lower.passes.guards import without_test
from metasched.lower.passes.simplify import simplify_lanes

_KINDS = (Add, Mul, Max, Min, Sub)
_WIDTH = 64  # lanes for a loop without a note


def fold_lanes(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above to each loop that is longer than its noted width.

    In a function that allows sums in any order (`reassoc`, see `ir.func.LIBERTIES`), serial loops
    along contiguous memory need no note. Places of lanes, as in A[(k * 16 + lane) // 2], are
    simplified.
    """
    folded = map_body(func, lambda body: _inside(body, {}, func.liberties))
    return folded if folded.body is func.body else simplify_lanes(folded)


def _inside(stmt: Stmt, known: Mapping[Var, Range], free: tuple[str, ...]) -> Stmt:
    """A statement with its loops folded, innermost first; `known` has the loops around."""
    within = known
    if isinstance(stmt, For):
        within = {**known, stmt.var: Range(stmt.min, stmt.extent)}
    new = stmt.rebuild([_inside(s, within, free) for s in stmt.stmts], stmt.exprs)
    return _loop(new, within, free) or new


def noted_fold(loop: For) -> tuple[list[BufferStore], dict[Var, int], int] | None:
    """The only stores inside a loop, the unrolled and unit loops around the stores, and the value
    of their note; None for other loops."""
    stmt, inner, width = loop.body, dict[Var, int](), 0
    while isinstance(stmt, (For, AttrStmt)):
        if isinstance(stmt, For):
            inner[stmt.var] = as_int(stmt.extent) or 0
            if inner[stmt.var] != 1 and (stmt.kind is not ForKind.UNROLLED or not inner[stmt.var]):
                return None
        elif stmt.key == FOLD:
            width = as_int(stmt.value) or 0
        stmt = stmt.body
    stores = updates_of(stmt) if width else None
    if not stores or any(len(s.indices) != 1 for s in stores):
        return None
    return [grouped(store) for store in stores], inner, width


def added_operand(
    target: BufferStore, var: Var, known: Mapping[Var, Range] | None = None
) -> Expr | None:
    """The value combined into the element that the statement updates; None unless the element stays
    the same throughout the loop.

    Args:
        known: the ranges of loops, for the proof that the value uses other elements of the buffer.
    """
    value, dtype = target.value, target.buffer.dtype
    if not isinstance(value, _KINDS) or not (dtype.is_int or dtype in ("float32", "float64")):
        return None
    if var in free_vars(target.indices[0]):
        return None
    own = BufferLoad(target.buffer, target.indices)
    pairs = ((value.a, value.b), (value.b, value.a))
    for before, added in pairs[:1] if isinstance(value, Sub) else pairs:
        if before is own and _apart(target, added, known or {}):
            return added
    return None


def added_operands(
    targets: list[BufferStore], var: Var, known: Mapping[Var, Range]
) -> tuple[Expr, ...] | None:
    """`added_operand` of each store; None where one has none, or uses the result of another."""
    added = [added_operand(target, var, known) for target in targets]
    for target in targets:
        others = {t.buffer.data for t in targets if t is not target}
        used = (x for e in (target.value, *target.indices) for x in loads_of(e))
        if any(load.buffer.data in others for load in used):
            return None
    return tuple(a for a in added if a is not None) if None not in added else None


def _apart(target: BufferStore, added: Expr, known: Mapping[Var, Range]) -> bool:
    """Whether a value surely reads no element that the statement updates."""
    loads = [x for x in walk_exprs(added) if isinstance(x, BufferLoad)]
    own = [x for x in loads if x.buffer.data is target.buffer.data]
    if any(x.buffer is not target.buffer for x in own):
        return False
    facts, at = Analyzer(known), target.indices[0]
    indices = [x.indices[0] for x in own]
    return all(facts.prove(compare(LT, i, at)) or facts.prove(compare(GT, i, at)) for i in indices)


def _choice(loop: For, free: tuple[str, ...]) -> Stmt | None:
    """A noted argmin or argmax in lanes, see `lower.passes.fold_choice`."""
    stmt, width, extent = loop.body, 0, as_int(loop.extent)
    while isinstance(stmt, AttrStmt) and stmt.key == FOLD:
        width = as_int(stmt.value) or 0
        stmt = stmt.body
    while extent is not None and width > extent:
        width //= 2
    if extent is None or width < 2 or width & (width - 1):
        return None
    return fold_choice(loop, stmt, width, free)


def _loop(stmt: Stmt, known: Mapping[Var, Range], free: tuple[str, ...]) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
        return None
    narrow = without_test(stmt, noted_fold)
    if narrow is not None:
        return _inside(narrow, known, free)
    chosen = _choice(stmt, free)
    if chosen is not None:
        return chosen
    first, loop = _init_apart(stmt) if "reassoc" in free else (None, stmt)
    found, extent = noted_fold(loop), as_int(loop.extent)
    if found is None and "reassoc" in free:
        found = _contiguous(loop)
    if found is None:
        return None
    targets, inner, width = found
    results = {var: Range(as_expr(0, var.dtype), as_expr(n, var.dtype)) for var, n in inner.items()}
    added = added_operands(targets, loop.var, {**known, **results})
    while extent is not None and width > extent:
        width //= 2
    alone = len(targets) == 1  # a loop of exactly one vector is left to code generation
    if added is None or width < 2 or (extent == width and alone) or width & (width - 1):
        return None
    lanes = _Lanes(loop, tuple(targets), added, inner, width)
    folded = lanes.folded(extent) if extent is not None else lanes.folded_at_run_time(known)
    return folded if first is None else seq((first, folded))


def _init_apart(loop: For) -> tuple[Stmt | None, For]:
    """Split `if k == 0: I` off a loop that begins with this test: gives I and the loop without it.

    Gives None and the unchanged loop if the loop does not begin with a test for the first
    iteration.
    """
    body = loop.body
    if not isinstance(body, SeqStmt) or len(body.items) != 2 or not as_int(loop.extent):
        return None, loop
    start, rest = body.items
    if not isinstance(start, IfThenElse) or start.orelse is not None:
        return None, loop
    if start.condition is not EQ(loop.var, IntImm(loop.var.dtype, 0)):
        return None, loop
    first = substitute(start.then, {loop.var: IntImm(loop.var.dtype, 0)})
    return first, evolve(loop, body=rest)


def _contiguous(loop: For) -> tuple[list[BufferStore], dict[Var, int], int] | None:
    """Match a serial loop that holds only a store and reads floats side by side.

    Gives what `noted_fold` gives for a loop with a note.
    """
    store = loop.body
    if not isinstance(store, BufferStore) or store.predicate is not None:
        return None
    if loop.kind is not ForKind.SERIAL or not store.buffer.dtype.is_float:
        return None
    known = Analyzer()
    steps = [
        as_int(known.simplify(substitute(i, {loop.var: loop.var + 1}) - i))
        for load in loads_of(store.value)
        for i in load.indices
        if loop.var in free_vars(i)
    ]
    width = _WIDTH
    while width >= (as_int(loop.extent) or 0) and width > 1:
        width //= 2  # fewer lanes than iterations: a loop of one vector would stay without a note
    return ([grouped(store)], {}, width) if steps and set(steps) == {1} else None


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Reductions with partial results in lanes.

    Attributes:
        loop: the reduction loop.
        targets: the only statements in the loop.
        added: the value that each statement combines into its element.
        inner: the loops around the statements, over several results.
        width: the lanes of each result.
    """

    loop: For
    targets: tuple[BufferStore, ...]
    added: tuple[Expr, ...]
    inner: dict[Var, int]
    width: int

    def folded(self, extent: int) -> Stmt:
        """The loops for a constant extent."""
        partial, width = self._partial(), self.width
        full, rest = divmod(extent, width)
        steps = [self._vector(partial, 0, width, first=True)]
        if full > 1:
            chunk = Var(self.loop.var.name, INT64)
            start = (chunk + 1) * width
            steps.append(_for(chunk, full - 1, self._vector(partial, start, width)))
        if rest:
            steps.append(self._vector(partial, full * width, rest))
        return _allocated(partial, seq([*steps, *self._updates(partial)]))

    def folded_at_run_time(self, known: Mapping[Var, Range]) -> Stmt:
        """The loops for an extent that is known when the program runs."""
        partial, width, extent = self._partial(), self.width, self.loop.extent
        chunk, lane = Var(self.loop.var.name, INT64), Var("lane", INT64)
        full, start = extent // width, extent // width * width
        at = (self._position() + lane,)
        fill: list[Stmt] = []
        for buffer, target in zip(partial, self.targets, strict=True):
            fill.append(BufferStore(buffer, _identity(target), at))
        rest = (lane, compare(LT, lane, extent - start))
        steps = [
            self._each(_for(lane, width, seq(fill), ForKind.VECTORIZED)),
            _for(chunk, full, self._vector(partial, chunk * width, width)),
            self._vector(partial, start, width, mask=rest),
            *self._updates(partial),
        ]
        some = compare(GT, extent, as_expr(0, INT64))
        body = _allocated(partial, seq(steps))
        around = {var: ends for var, ends in known.items() if var is not self.loop.var}
        return body if Analyzer(around).prove(some) else IfThenElse(some, body)

    def _partial(self) -> list[Buffer]:
        size = prod(self.inner.values()) * self.width
        buffers = [target.buffer for target in self.targets]
        return [Buffer.of(f"{b.name}_lanes", (size,), b.dtype, scope="local") for b in buffers]

    def _position(self) -> Expr:
        """Where the lanes of a result begin."""
        position = as_expr(IntImm(INT64, 0))
        for var, size in self.inner.items():
            position = position * size + var
        return position * self.width

    def _each(self, body: Stmt) -> Stmt:
        """Repeat a body for each result, in unrolled loops."""
        fresh = {var: Var(var.name, INT64) for var in self.inner}
        body = substitute(body, fresh)
        for var in reversed(self.inner):
            body = _for(fresh[var], self.inner[var], body, ForKind.UNROLLED)
        return body

    def _vector(
        self, partial: list[Buffer], start: Expr | int, count: int, *, first: bool = False,
        mask: tuple[Var, Expr] | None = None,
    ) -> Stmt:  # fmt: skip
        """Combine `count` values into the lanes, from the value at `start` on.

        Args:
            first: the lanes get the values; there are no partial results yet.
            mask: a lane variable, and the condition without which the lane keeps its value.
        """
        lane = Var("lane", INT64) if mask is None else mask[0]
        at = (self._position() + lane,)
        stores: list[Stmt] = []
        for buffer, target, added in zip(partial, self.targets, self.added, strict=True):
            value = substitute(added, {self.loop.var: lane + start})
            if mask is not None:  # (a masked store would keep the lanes out of registers)
                value = call("if_then_else", mask[1], value, _identity(target))
            if not first:
                value = _combining(target)(BufferLoad(buffer, at), value)
            stores.append(BufferStore(buffer, value, at))
        return self._each(_for(lane, count, seq(stores), ForKind.VECTORIZED))

    def _updates(self, partial: list[Buffer]) -> list[Stmt]:
        """Combine the lanes into the results."""
        found: list[Stmt] = []
        for buffer, target in zip(partial, self.targets, strict=True):
            last = Var("lane", INT64)
            own = BufferLoad(target.buffer, target.indices)
            sums = BufferLoad(buffer, (self._position() + last,))
            store = evolve(target, value=type(target.value)(own, sums))  # type: ignore[call-arg]
            update = AttrStmt(None, FOLD, IntImm("int32", 1), store)
            found.append(self._each(_for(last, self.width, update)))
        return found


def _identity(target: BufferStore) -> Expr:
    identity = identity_of(target.value)
    assert identity is not None
    return identity


def _combining(target: BufferStore) -> type[BinaryOp]:
    """What combines partial results: a difference adds them up."""
    kind = type(target.value)
    assert issubclass(kind, BinaryOp)
    return Add if kind is Sub else kind


def _allocated(buffers: list[Buffer], body: Stmt) -> Stmt:
    for buffer in buffers:
        body = Allocate(buffer, body)
    return body


def _for(var: Var, extent: Expr | int, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, IntImm(INT64, 0), as_expr(extent, INT64), kind, body)
