"""Summary: the stores of a scheduled program, found by one walk without lowering.

A program is a list of stores. Each store stands under loops and touches buffers; the bindings of
the blocks around tell how its indices move with the loops. Facts about the store itself (its
operations, its accesses) are cached on the statement, since replays share statements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, NamedTuple

from metasched.analysis.block import FOLD, SCAN
from metasched.arith.affine import as_written, interval
from metasched.arith.bounds import EVERYTHING, Interval
from metasched.cost.guard_fraction import Condition, conditions
from metasched.cost.index_stride import (
    IndexStride,
    broken,
    clamped,
    index_stride,
    scattering,
    value_stride,
)
from metasched.cost.operations import count, time_between
from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import FINITE, IRModule
from metasched.ir.op import Call, HardwareOp
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IfThenElse, LetStmt, Stmt, fact
from metasched.ir.visit import free_vars, loads_of, walk_exprs
from metasched.lower.packing import PREPROC
from metasched.lower.passes.prefetch import AHEAD
from metasched.lower.passes.turned_rows import TURNED

# An extent without bounds counts as this number.
UNKNOWN_EXTENT = 64
PLACES = 9
"""At how many places of a loop an extent that depends on it is evaluated."""


class Notes(NamedTuple):
    """The annotations of the blocks and loops around a store.

    Attributes:
        unroll: the code generator unrolls serial loops of at most this many steps.
        fold: vector lanes of partial results of a reduction along memory, 0 for none.
        ahead: how many elements ahead a prefetch requests the loads, 0 for no prefetch.
        tests: conditions around the store.
        turned: 1 if vector lanes are copies of rows of memory, 0 if not.
        share: of the iterations; a store in one of two branches runs in half of them.
    """

    unroll: int = 0
    fold: int = 0
    ahead: int = 0
    turned: int = 0
    tests: tuple[Condition, ...] = ()
    share: float = 1.0


@dataclass(slots=True)
class Loop:
    """A loop of more than one iteration; `index` numbers the loops of the program.

    Attributes:
        ragged: whether the number of iterations differs from one run to the next.
    """

    extent: int
    kind: str
    index: int
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The facts about a store that do not depend on the loops around it.

    Attributes:
        counts: the numbers of operations, see KINDS.
        accesses: (buffer, indices, whether the access is a write).
        inside: the condition without which the store writes zero, None if there is none.
        instructions: the declared instructions that the store calls, with the buffers that each of
            them reads.
        scalars: the operations on scalars in a store of a vector.
        lanes: the lanes of the stored vector.
        neighbours: the reads of the stored buffer at a constant distance from the store. For each:
            the dimensions in which the two differ, and how many sums of floats take as long as
            the operations from the read to the store.
        update: how many sums of floats take as long as the operations from the read of the stored
            element to the store; 1 where the store does not read the element itself.
        copies: whether the value is one element of a buffer.
    """

    counts: tuple[int, ...]
    accesses: tuple[tuple[Buffer, tuple[Expr, ...], bool], ...]
    inside: Expr | None = None
    instructions: tuple[tuple[HardwareOp, frozenset[Buffer]], ...] = ()
    scalars: int = 0
    lanes: int = 1
    neighbours: tuple[tuple[frozenset[int], float], ...] = ()
    update: float = 1.0
    copies: bool = False


@dataclass(slots=True)
class TouchedBuffer:
    """The accesses of a store to one buffer that move with the same loops: how each dimension moves
    with the loops (by position).

    Attributes:
        uneven: for each clamped index, the loops along which it is clamped.
        broken: the loops whose lanes are loaded one by one (see `index_stride.broken`).
    """

    buffer: Buffer
    dims: list[IndexStride]
    uneven: set[frozenset[int]]
    broken: frozenset[int] = frozenset()
    reads: int = 0


@dataclass(slots=True)
class Store:
    """A store with its facts, and the loops, notes and accesses that describe it.

    Attributes:
        instructions: the declared instructions that it calls, with the buffers that each reads.
    """

    facts: StoreFacts
    loops: list[Loop]
    accesses: list[TouchedBuffer]
    notes: Notes
    instructions: list[tuple[HardwareOp, set[Buffer]]] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of operations, see KINDS."""
        return self.facts.counts


@dataclass(slots=True)
class Summary:
    """All stores in order, and for each allocated buffer how many loops its uses share."""

    stores: list[Store] = field(default_factory=list)
    shared: dict[Buffer, list[Loop]] = field(default_factory=dict)
    parameters: set[Buffer] = field(default_factory=set)


def summarize(mod: IRModule) -> Summary:
    """The stores of every function of the module."""
    walker = _Walker()
    for func in mod.functions.values():
        walker.out.parameters.update(func.buffers)
        walker.finite = bool(func.attrs.get(FINITE, False))
        walker.visit(func.body, [], Notes())
    return walker.out


class _Walker:
    """The walk; loops and notes are passed down."""

    def __init__(self) -> None:
        self.out = Summary()
        self.loops_seen = 0
        self.headers: dict[Var, For] = {}
        self.finite = False
        self.strides: dict[Var, IndexStride] = {}
        self.anywhere: dict[Var, frozenset[int]] = {}  # see `index_stride.broken`
        self.views: dict[Buffer, BufferRegion] = {}
        self.bound: dict[Var, Expr | tuple[int, int]] = {}
        self.padded: dict[Buffer, tuple[tuple[Expr, ...], Expr]] = {}
        self.pending: list[Expr] = []  # values that are computed before the next store

    def visit(self, stmt: Stmt, loops: list[Loop], notes: Notes) -> None:
        kind = type(stmt)
        if kind is For:
            self._loop(stmt, loops, notes)  # type: ignore[arg-type]
        elif kind is BlockRealize:
            self._block(stmt, loops, notes)  # type: ignore[arg-type]
        elif kind is BufferStore:
            self._store(_facts_of(stmt), loops, notes)  # type: ignore[arg-type]
        elif kind is LetStmt:
            self._let(stmt, loops, notes)  # type: ignore[arg-type]
        elif kind is IfThenElse and stmt.orelse is None:  # type: ignore[attr-defined]
            self._test(stmt.condition)  # type: ignore[attr-defined]
            tests = conditions(stmt.condition, self.bound)  # type: ignore[attr-defined]
            notes = notes._replace(tests=(*notes.tests, *tests))
            self.visit(stmt.then, loops, notes)  # type: ignore[attr-defined]
        elif kind is IfThenElse:
            for branch in stmt.stmts:
                self._test(stmt.condition)  # type: ignore[attr-defined]
                self.visit(branch, loops, notes._replace(share=notes.share / 2))
        else:
            for below in stmt.stmts:
                self.visit(below, loops, notes)

    def _let(self, let: LetStmt, loops: list[Loop], notes: Notes) -> None:
        """A binding costs what its value costs, and moves with the loops of its value."""
        moved = self.strides[let.var] = value_stride(let.value, self.strides)
        if let.var.dtype.is_float:
            self.anywhere[let.var] = frozenset(moved)
        else:
            self.bound[let.var] = let.value
            self.anywhere[let.var] = broken(let.value, self.strides, self.anywhere)
        self.pending.append(let.value)
        self.visit(let.body, loops, notes)

    def _test(self, condition: Expr) -> None:
        """A test of data costs its operations and loads; tests of loops cost steps of loops."""
        if any(type(part) is BufferLoad or part.dtype.is_float for part in walk_exprs(condition)):
            self.pending.append(condition)

    def _loop(self, loop: For, loops: list[Loop], notes: Notes) -> None:
        if loop.annotations:
            notes = _noted(loop.annotations, notes)
        self.headers[loop.var] = loop
        extent = as_int(loop.extent)
        ragged = extent is None
        if extent is None:
            extent = self._mean(loop.extent)
        extent = max(extent, 1)  # the logarithms of the features need a positive number
        if extent != 1:
            index = self.loops_seen
            self.loops_seen += 1
            step = 1 if loop.step is None else as_int(loop.step) or 1
            loops = [*loops, Loop(extent, loop.kind.value, index, ragged)]
            self.strides[loop.var] = {index: (step, step * (extent - 1))}
            self.bound[loop.var] = (index, extent)
        else:
            self.bound[loop.var] = loop.min
        self.visit(loop.body, loops, notes)

    def _mean(self, extent: Expr) -> int:
        """The mean of an extent that depends on other loops, rounded up: of its smallest and
        largest value, or of its values at some places of the one loop that it depends on."""
        low, high = self._interval(extent)
        if high == inf:
            return UNKNOWN_EXTENT
        variables = free_vars(extent)
        span = self._span(next(iter(variables))) if len(variables) == 1 else EVERYTHING
        values = [max(low, 0), high]
        if -span[0] < inf and span[1] < inf:
            (var,), step = variables, (span[1] - span[0]) / (PLACES - 1)
            places = {round(span[0] + n * step) for n in range(PLACES)}
            values = [max(interval(extent, {var: (at, at)})[0], 0) for at in places]
        return max(1, ceil(sum(values) / len(values)))

    def _interval(self, expr: Expr) -> Interval:
        return interval(expr, {var: self._span(var) for var in free_vars(expr)})

    def _span(self, var: Var) -> Interval:
        """The values of a loop variable or an iterator."""
        loop, value = self.headers.get(var), self.bound.get(var)
        if loop is not None:
            low, high = self._interval(loop.min)
            return low, high + max(self._interval(loop.extent)[1] - 1, 0)
        return EVERYTHING if value is None or isinstance(value, tuple) else self._interval(value)

    def _block(self, realize: BlockRealize, loops: list[Loop], notes: Notes) -> None:
        block = realize.block
        if block.annotations:
            if block.annotations.get(PREPROC):
                return  # the block runs ahead of time and is not timed
            notes = _noted(block.annotations, notes)
        if type(realize.predicate) is not ir.IntImm:
            tests = conditions(realize.predicate, self.bound)
            notes = notes._replace(tests=(*notes.tests, *tests))
        for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.strides[iter_var.var] = index_stride(value, self.strides)
            self.bound[iter_var.var] = value
        self.views.update({m.buffer: m.source for m in block.match_buffers})
        before = len(self.out.stores)
        self.visit(block.body, loops, notes)
        if len(self.out.stores) == before and block.writes:
            self._store(_opaque_facts(block), loops, notes)

    def _store(self, facts: StoreFacts, loops: list[Loop], notes: Notes) -> None:
        if self.pending:
            facts = _with_values(facts, self.pending)
            self.pending = []
        merged: dict[tuple[Buffer, frozenset[int], tuple[Expr, ...]], TouchedBuffer] = {}
        for buffer, indices, writes in facts.accesses:
            dims = [index_stride(i, self.strides) for i in indices]
            while buffer in self.views:
                buffer, dims = _through_view(self.views[buffer], dims, self.strides)
            uneven = {clamped(i, self.strides) for i in indices} - {frozenset()}
            places = tuple(indices) if any(map(self._scattered, indices)) else ()
            key = buffer, frozenset[int]().union(*dims), places
            access = merged.get(key)
            if access is None:
                access = merged[key] = TouchedBuffer(buffer, dims, uneven)
                self._share(buffer, loops)
            elif access.dims != dims:
                access.dims = [_union(a, b) for a, b in zip(access.dims, dims, strict=True)]
            access.uneven |= uneven
            apart = (broken(i, self.strides, self.anywhere) for i in indices)
            access.broken = access.broken.union(*apart)
            access.reads += not writes
        accesses = list(merged.values())
        written = accesses[0].buffer
        if facts.inside is not None and written not in self.out.parameters:
            self.padded[written] = facts.accesses[0][1], facts.inside
        elif self.padded and facts.counts[0] and (self.finite or not written.dtype.is_float):
            notes = notes._replace(tests=notes.tests + self._zeros(facts))
        called = [(op, {self._source(b) for b in buffers}) for op, buffers in facts.instructions]
        self.out.stores.append(Store(facts, loops, accesses, notes, called))

    def _scattered(self, index: Expr) -> bool:
        """Whether an index names places anywhere: no two such accesses are neighbours."""
        named = self.anywhere and any(self.anywhere.get(var) for var in free_vars(index))
        return bool(named or scattering(index))

    def _source(self, buffer: Buffer) -> Buffer:
        """The buffer that a buffer is a view of."""
        while buffer in self.views:
            buffer = self.views[buffer].buffer
        return buffer

    def _zeros(self, facts: StoreFacts) -> tuple[Condition, ...]:
        """The conditions under which no factor of the product that a store adds is a padding
        zero."""
        found: list[Condition] = []
        for buffer, indices, _ in facts.accesses:
            if buffer in self.padded:
                at, inside = self.padded[buffer]
                for own, index in zip(at, indices, strict=True):
                    if isinstance(own, Var):  # the padding block ended: its iterators are free
                        self.bound[own] = index
                found += conditions(inside, self.bound, skips=True)
        return tuple(found)

    def _share(self, buffer: Buffer, loops: list[Loop]) -> None:
        """Keep only the loops common to all uses of a buffer: the innermost common loop holds the
        allocation."""
        old = self.out.shared.get(buffer)
        if old is None:
            self.out.shared[buffer] = loops
        elif old is not loops:
            same = 0
            for a, b in zip(old, loops, strict=False):
                if a is not b:
                    break
                same += 1
            if same < len(old):
                self.out.shared[buffer] = old[:same]


def _union(a: IndexStride, b: IndexStride) -> IndexStride:
    out = dict(a)
    for loop, pair in b.items():
        if loop not in out or out[loop][1] < pair[1]:
            out[loop] = pair
    return out


def _through_view(
    source: BufferRegion, dims: list[IndexStride], env: dict[Var, IndexStride]
) -> tuple[Buffer, list[IndexStride]]:
    """Translate an access to a view into an access to its source; trailing dimensions match."""
    base = [index_stride(r.min, env) for r in source.region]
    lead = len(base) - len(dims)
    for d in range(max(lead, 0), len(base)):
        base[d] = _union(base[d], dims[d - lead])
    return source.buffer, base


_NOTED = {
    "pragma_auto_unroll_max_step": "unroll", "auto_unroll_max_step": "unroll",
    FOLD: "fold", SCAN: "fold", AHEAD: "ahead", TURNED: "turned",
}  # fmt: skip


def _noted(annotations: Mapping[str, Any], notes: Notes) -> Notes:
    known = [(_NOTED[key], as_int(v) or 0) for key, v in annotations.items() if key in _NOTED]
    return notes._replace(**dict[str, Any](known)) if known else notes


@fact
def _facts_of(store: BufferStore) -> StoreFacts:
    counts = [0] * 16
    accesses: list[tuple[Buffer, tuple[Expr, ...], bool]] = [(store.buffer, store.indices, True)]
    lanes = store.value.dtype.lanes
    called, scalars = count(store.value, counts, accesses)
    value, inside = store.value, None
    if isinstance(value, Call) and value.op.name == "if_then_else":
        other = value.args[2]
        if isinstance(other, (ir.IntImm, ir.FloatImm)) and other.value == 0:
            inside = value.args[0]
    near, update = [], 1.0
    for read in loads_of(store.value):
        apart = _apart(store.indices, read.indices) if read.buffer is store.buffer else None
        if apart is None:
            continue
        path = time_between(store.value, read) or 0.0
        if apart:
            near.append((apart, path))
        else:
            update = path
    return StoreFacts(
        tuple(c * lanes for c in counts), tuple(accesses), inside, called, scalars, lanes,
        tuple(near), update, type(store.value) is BufferLoad,
    )  # fmt: skip


def _with_values(facts: StoreFacts, values: Sequence[Expr]) -> StoreFacts:
    """The facts of a store that also computes other values: bindings and tests of data."""
    counts, accesses = [0] * 16, list(facts.accesses)
    for value in values:
        count(value, counts, accesses)
    total = tuple(a + b for a, b in zip(facts.counts, counts, strict=True))
    return replace(facts, counts=total, accesses=tuple(accesses))


def _apart(here: Sequence[Expr], there: Sequence[Expr]) -> frozenset[int] | None:
    """The dimensions in which two places of a buffer differ; None unless their distance is
    constant."""
    gaps = [as_written(a).plus(as_written(b), -1) for a, b in zip(here, there, strict=True)]
    if any(gap.terms for gap in gaps):
        return None
    return frozenset(d for d, gap in enumerate(gaps) if gap.const)


def _opaque_facts(block: Block) -> StoreFacts:
    """The facts of a block without stores, which calls an instruction: one operation on its
    regions."""
    accesses = [
        (r.buffer, tuple(one.min for one in r.region), writes)
        for regions, writes in ((block.writes, True), (block.reads, False))
        for r in regions
    ]
    counts = [0] * 16
    counts[6 if accesses[0][0].dtype.is_float else 13] = 1
    return StoreFacts(tuple(counts), tuple(accesses))
