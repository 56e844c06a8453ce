"""Windows: the vectors that straight code loads from overlapping places of a buffer.

Of the vectors of a window, the two ends are loaded; `codegen.overlaps` shuffles the vectors
between. Code that computes longer than it loads keeps its loads: shuffles take its time.

The ends stay in registers from the first to the last vector between them. Around a sum, loops over
results that lie far apart go in front of the loops over terms, if the ends of one row fit then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from metasched.analysis.guarded import certain_loads
from metasched.arith.affine import linear_address
from metasched.arith.linear import Linear
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import BinaryOp, Expr, Let, Mul, Select, Var, as_int
from metasched.ir.stmt import BufferStore, For, ForKind, SeqStmt, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, reads_memory, walk_exprs, walk_stmts, walk_value

_MOST = 1024
"""A load that runs more often than this has no windows."""
_LINES = 2
"""The lines that a vector of a window takes part of; a core loads a line a cycle."""
_WORTH = 0.9
"""The most of the time of the loads that is left for the work with shuffles."""
_FREE = 4
"""Registers for other values than accumulators and ends of windows."""
Key = tuple[Var, DType, int, frozenset[tuple[Expr, int]], tuple[int, ...]]
"""Buffer, type and lanes of a load, the part of its index that is no sum of the nest's variables,
such as a clamped row, and the values of the nest's variables in that part, in the order of the
loops."""
Loop = tuple[Var, int, int]
"""The variable of a loop, the number of its steps, and the distance of two steps."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load: the loops around it in the nest, and how far a step of each moves the vector."""

    key: Key
    first: int
    moves: Sequence[tuple[int, int]]
    marks: Sequence[int]

    def places(self) -> Iterator[tuple[Key, int]]:
        """Where the vectors begin, in the order of the loads. `marks` are the loops whose variables
        complete the key."""
        for each in product(*(range(count) for _, count in self.moves)):
            at = sum(by * n for n, (by, _) in zip(each, self.moves, strict=True))
            yield (*self.key[:4], tuple(each[n] for n in self.marks)), self.first + at


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a nest of unrolled and vectorized loops.

    Attributes:
        nest: the loops, in an order in which the ends fit into registers.
        loops: the variables of the nest, numbered.
        ends: for each place of a window, the places of the two ends; an end lies at both.
    """

    nest: For
    loops: Mapping[Expr, int]
    ends: Mapping[Key, Mapping[int, tuple[int, int]]]


@dataclass(slots=True)
class Nest:
    """Reads a nest of unrolled and vectorized loops.

    Attributes:
        unrolls: whether a loop is unrolled.
        vectors: how many vectors of a vectorized loop begin at constant places, and their lanes.
        fits: whether vectors of some lanes of a type can be shuffled.
        registers: the vector registers of the target.
        loops: the variables of the nest, numbered.
        stores: the loads of each store, and its accumulators.
        work: the products of vectors that the nest computes, and all other operations.
        around: the loops around the last store.
    """

    unrolls: Callable[[For], bool]
    vectors: Callable[[For], tuple[int, int]]
    fits: Callable[[DType, int], bool]
    registers: int
    loops: dict[Expr, int] = field(default_factory=dict)
    stores: list[tuple[list[_Load], int]] = field(default_factory=list)
    work: list[int] = field(default_factory=lambda: [0, 0])
    around: list[Var] = field(default_factory=list)

    def windows(self, nest: For) -> Windows | None:
        """The windows of a nest; None if it has none that are worth shuffling."""
        if not self._collect(nest, ()):
            return None
        written = {s.buffer.data for s in walk_stmts(nest) if isinstance(s, BufferStore)}
        places: defaultdict[Key, set[int]] = defaultdict(set)
        for loads, _ in self.stores:
            for load in loads:
                if load.key[0] not in written:
                    for key, at in load.places():
                        places[key].add(at)
        found = {key: ends_of(sorted(at), key[2]) for key, at in places.items()}
        windows = Windows(nest, self.loops, {k: e for k, e in found.items() if e})
        between = sum(low < high for ends in windows.ends.values() for low, high in ends.values())
        lines = _LINES * sum(len(places[key]) for key in windows.ends)
        if max(self.work) + between >= _WORTH * lines:
            return None
        return windows if self._fit(windows) else self._reordered(windows)

    def _fit(self, windows: Windows) -> bool:
        """Whether the ends fit into registers beside the accumulators."""
        room = self.registers - _FREE
        return all(_live(windows, loads) + kept <= room for loads, kept in self.stores)

    def _reordered(self, windows: Windows) -> Windows | None:
        """The windows of the nest in another order of its loops; None if their ends do not fit."""
        far: set[Var] = set()
        for loads, _ in self.stores:
            for load in loads:
                pairs = list(zip(self.around, load.moves, strict=True))
                far |= {var for var, (by, _) in pairs if abs(by) > load.key[2]}
                far |= {self.around[n] for n in load.marks}
        nest = rows_first(windows.nest, far) if len(self.stores) == 1 else None
        if nest is None:
            return None
        other = Nest(self.unrolls, self.vectors, self.fits, self.registers, self.loops)
        other._collect(nest, ())
        return replace(windows, nest=nest) if other._fit(windows) else None

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
        self.loops.setdefault(stmt.var, len(self.loops))
        if extent > 1 and stmt.kind is ForKind.VECTORIZED:
            count, lanes = self.vectors(stmt)
            inner = (*around, (stmt.var, count, lanes))
            return count > 0 and lane is None and self._collect(stmt.body, inner, stmt.var)
        straight = extent == 1 or self.unrolls(stmt)
        return straight and self._collect(stmt.body, (*around, (stmt.var, extent, 1)), lane)

    def _note(self, store: BufferStore, around: tuple[Loop, ...], lane: Var) -> None:
        """Note what a store computes and loads."""
        parts = walk_value(store.value)
        operations = [n for n in parts if isinstance(n, BinaryOp | Select)]
        products = sum(isinstance(n, Mul) for n in operations)
        times = prod(count for _, count, _ in around)
        self.work[0] += times * products
        self.work[1] += times * (len(operations) - products)
        self.around = [var for var, _, _ in around]
        kept = 0
        if any(load.buffer is store.buffer for load in loads_of(store.value)):
            moved = frozenset[Var]().union(*map(free_vars, store.indices))
            kept = prod(count for var, count, _ in around if var in moved)
        named = any(isinstance(n, Let) for n in walk_exprs(store.value))  # indices may use the name
        certain = () if named else certain_loads(store)
        found = (self._load(load, around, lane) for load in certain)
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
        inside = frozenset[Var]().union(*map(free_vars, fixed))
        if form.terms.get(lane) != 1 or lane in inside or any(map(reads_memory, fixed)):
            return None
        steps = [(form.terms.get(var, 0) * by, count) for var, count, by in around]
        loops = enumerate(var for var, _, _ in around)
        marks = sorted((self.loops[var], n) for n, var in loops if var in inside)
        key = buffer.data, buffer.dtype, lanes, frozenset(fixed.items()), ()
        return _Load(key, form.const, steps, [n for _, n in marks])


def rows_first(nest: For, far: Set[Var]) -> For | None:
    """A nest around one sum, with the loops `far` over results in front of the other loops.

    Each result still adds up its terms in the same order. None for a nest that has this order, and
    for other nests.
    """
    loops, body = [nest], nest.body
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    if not isinstance(body, BufferStore) or len(body.indices) != 1:
        return None
    own = [load for load in loads_of(body.value) if load.buffer.data is body.buffer.data]
    form = linear_address(body.indices[0])
    if any(load.indices != body.indices for load in own) or not _apart(form, loops):
        return None
    rows = [x for x in loops if x.var in far and x.var in form.terms]
    order = [*rows, *(x for x in loops if x not in rows)]
    if order == loops:
        return None
    result: Stmt = body
    for loop in reversed(order):
        result = evolve(loop, body=result)
    return result if isinstance(result, For) else None


def _apart(form: Linear, loops: Sequence[For]) -> bool:
    """Whether each choice of the loops that move a store has an element of its own."""
    inside: dict[Expr, int] = {loop.var: as_int(loop.extent) or 0 for loop in loops}
    if any(not free_vars(a).isdisjoint(inside) for a in form.terms if a not in inside):
        return False
    steps = sorted((abs(form.terms[var]), n) for var, n in inside.items() if var in form.terms)
    reach = 0
    for by, extent in steps:
        if by <= reach:
            return False
        reach += by * (extent - 1)
    return True


def _live(windows: Windows, loads: list[_Load]) -> int:
    """How many registers a store keeps at once for ends of windows, and for the numbers of lanes
    that vectors between take from ends of which one does not begin where the other ends."""
    spans: dict[tuple[Key, int], list[int]] = {}
    numbers: set[tuple[int, int]] = set()
    for load in loads:
        for time, (key, at) in enumerate(load.places()):
            ends = windows.ends.get(key, {})
            low, high = ends.get(at, (at, at))
            if low < high < low + key[2]:
                numbers.add((at - low, high - at))
            for end in {low, high} if at in ends else ():
                span = spans.setdefault((key, end), [time, time])
                span[:] = min(span[0], time), max(span[1], time)
    turns = sorted({first for first, _ in spans.values()})
    most = max((sum(a <= t <= b for a, b in spans.values()) for t in turns), default=0)
    return most + len(numbers)


def ends_of(places: Sequence[int], lanes: int) -> dict[int, tuple[int, int]]:
    """For each place of a window the two ends: neighbours among the fewest vectors, at most `lanes`
    elements apart, that hold all elements of all vectors. An end lies at both of its ends."""
    found: dict[int, tuple[int, int]] = {}
    first = 0
    while first < len(places) - 1:
        last = first
        while last + 1 < len(places) and places[last + 1] <= places[first] + lanes:
            last += 1
        if last > first + 1:
            found |= {at: (at, at) for at in (places[first], places[last])}
        for at in places[first + 1 : last]:
            found[at] = places[first], places[last]
        first = max(last, first + 1)
    return found
