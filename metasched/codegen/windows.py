"""Windows: the vectors that straight code loads from overlapping places of a buffer.

Of the vectors of a window, the two ends are loaded; `codegen.overlaps` shuffles the vectors
between. Code that computes longer than it loads keeps its loads: shuffles take its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from metasched.arith.affine import linear_address
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import And, BinaryOp, Expr, Let, Mul, Or, Select, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, For, ForKind, SeqStmt, Stmt
from metasched.ir.visit import free_vars, loads_of, reads_memory, walk_stmts

_MOST = 1024
"""A load that runs more often than this has no windows."""
_LINES = 2
"""The lines that a vector of a window takes part of; a core loads a line a cycle."""
_FREE = 4
"""Registers for other values than accumulators and ends of windows."""
Key = tuple[Var, DType, int, frozenset[tuple[Expr, int]]]
"""Buffer, type and lanes of a load, and the part of its index that the nest does not change."""
Loop = tuple[Var, int, int]
"""The variable of a loop, the number of its steps, and the distance of two steps."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load: the loops around it in the nest, and how far a step of each moves the vector."""

    key: Key
    first: int
    moves: Sequence[tuple[int, int]]

    def places(self) -> Iterator[int]:
        """Where the vectors begin, in the order of the loads."""
        steps = ([by * n for n in range(count)] for by, count in self.moves)
        return (self.first + sum(each) for each in product(*steps))


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a nest of unrolled and vectorized loops.

    Attributes:
        loops: the variables of the nest.
        ends: for each place within a window, the places of the two ends.
    """

    loops: frozenset[Expr]
    ends: Mapping[Key, Mapping[int, tuple[int, int]]]


@dataclass(slots=True)
class Nest:
    """Reads a nest of unrolled and vectorized loops.

    Attributes:
        unrolls: whether a loop is unrolled.
        vectors: how many vectors of a vectorized loop begin at constant places, and their lanes.
        fits: whether vectors of some lanes of a type can be shuffled.
        registers: the vector registers of the target.
        loops: the variables of the nest.
        stores: the loads of each store, and its accumulators.
        work: the products of vectors that the nest computes, and all other operations.
    """

    unrolls: Callable[[For], bool]
    vectors: Callable[[For], tuple[int, int]]
    fits: Callable[[DType, int], bool]
    registers: int
    loops: set[Expr] = field(default_factory=set)
    stores: list[tuple[list[_Load], int]] = field(default_factory=list)
    work: list[int] = field(default_factory=lambda: [0, 0])

    def windows(self, nest: For) -> Windows | None:
        """The windows of a nest; None if it has none that are worth shuffling."""
        if not self._collect(nest, ()):
            return None
        written = {s.buffer.data for s in walk_stmts(nest) if isinstance(s, BufferStore)}
        places: defaultdict[Key, set[int]] = defaultdict(set)
        for loads, _ in self.stores:
            for load in loads:
                if load.key[0] not in written:
                    places[load.key].update(load.places())
        found = {key: ends_of(sorted(at), key[2]) for key, at in places.items()}
        windows = Windows(frozenset(self.loops), {k: ends for k, ends in found.items() if ends})
        if max(self.work) >= _LINES * sum(len(places[key]) for key in windows.ends):
            return None
        room = self.registers - _FREE
        fits = all(_live(windows, loads) + kept <= room for loads, kept in self.stores)
        return windows if fits else None

    def _collect(self, stmt: Stmt, around: tuple[Loop, ...], lane: Var | None = None) -> bool:
        """Note the loads and the work of a statement; returns whether it is straight code, all of
        which runs."""
        if isinstance(stmt, SeqStmt):
            return all(self._collect(item, around, lane) for item in stmt.items)
        if isinstance(stmt, BufferStore):
            if lane is not None:
                self._note(stmt, around, lane)
            return stmt.predicate is None
        extent = as_int(stmt.extent) if isinstance(stmt, For) else None
        if not isinstance(stmt, For) or extent is None or extent < 1:
            return False
        self.loops.add(stmt.var)
        if extent > 1 and stmt.kind is ForKind.VECTORIZED:
            count, lanes = self.vectors(stmt)
            inner = (*around, (stmt.var, count, lanes))
            return count > 0 and lane is None and self._collect(stmt.body, inner, stmt.var)
        straight = extent == 1 or self.unrolls(stmt)
        return straight and self._collect(stmt.body, (*around, (stmt.var, extent, 1)), lane)

    def _note(self, store: BufferStore, around: tuple[Loop, ...], lane: Var) -> None:
        """Note what a store computes and loads."""
        operations = list(_operations(store.value))
        products = sum(isinstance(n, Mul) for n in operations)
        times = prod(count for _, count, _ in around)
        self.work[0] += times * products
        self.work[1] += times * (len(operations) - products)
        kept = 0
        if any(load.buffer is store.buffer for load in loads_of(store.value)):
            moved = frozenset[Var]().union(*map(free_vars, store.indices))
            kept = prod(count for var, count, _ in around if var in moved)
        found = (self._load(load, around, lane) for load in certain_loads(store.value))
        loads = [load for load in found if load is not None]
        self.stores.append((loads if times <= _MOST else [], kept))

    def _load(self, load: BufferLoad, around: tuple[Loop, ...], lane: Var) -> _Load | None:
        """What a load of vectors reads; None for a load that cannot belong to a window."""
        buffer, lanes = load.buffer, next(by for var, _, by in around if var is lane)
        whole = load.predicate is None and len(load.indices) == 1 and load.dtype.lanes == 1
        if not whole or not self.fits(buffer.dtype, lanes):
            return None
        form = linear_address(load.indices[0])
        fixed = {atom: factor for atom, factor in form.terms.items() if atom not in self.loops}
        moves = any(reads_memory(a) or not free_vars(a).isdisjoint(self.loops) for a in fixed)
        if form.terms.get(lane) != 1 or moves:
            return None
        steps = [(form.terms.get(var, 0) * by, count) for var, count, by in around]
        key = buffer.data, buffer.dtype, lanes, frozenset(fixed.items())
        return _Load(key, form.const, steps)


def _live(windows: Windows, loads: list[_Load]) -> int:
    """How many ends of windows a store keeps in registers at once."""
    spans: dict[tuple[Key, int], list[int]] = {}
    for load in loads:
        ends = windows.ends.get(load.key, {})
        for time, at in enumerate(load.places()):
            for end in ends.get(at, ()):
                span = spans.setdefault((load.key, end), [time, time])
                span[:] = min(span[0], time), max(span[1], time)
    turns = sorted({first for first, _ in spans.values()})
    return max((sum(a <= t <= b for a, b in spans.values()) for t in turns), default=0)


def _operations(value: Expr) -> Iterator[Expr]:
    """The operations of an expression, without those of indices."""
    if isinstance(value, BinaryOp | Select):
        yield value
    if not isinstance(value, BufferLoad):
        for part in value.children:
            yield from _operations(part)


def certain_loads(value: Expr) -> Iterator[BufferLoad]:
    """The loads of an expression that no condition leaves out, without loads of indices."""
    if isinstance(value, BufferLoad):
        yield value
        return
    chooses = isinstance(value, And | Or | Let)  # the right side may not run, or has its own names
    chooses |= isinstance(value, Call) and value.op.name == "if_then_else"
    for part in value.children[:1] if chooses else value.children:
        yield from certain_loads(part)


def ends_of(places: Sequence[int], lanes: int) -> dict[int, tuple[int, int]]:
    """For each place within a window the two ends: neighbours among the fewest vectors, at most
    `lanes` elements apart, that hold all elements of all vectors."""
    found: dict[int, tuple[int, int]] = {}
    first = 0
    while first < len(places) - 1:
        last = first
        while last + 1 < len(places) and places[last + 1] <= places[first] + lanes:
            last += 1
        for at in places[first + 1 : last]:
            found[at] = places[first], places[last]
        first = max(last, first + 1)
    return found
