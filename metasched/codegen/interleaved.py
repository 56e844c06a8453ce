"""Vectors whose lanes lie 2 to 4 elements apart: contiguous vectors, which are shuffled.

    for j in T.vectorized(8): B[j] = A[2 * j] + A[2 * j + 1]

The lanes of both loads are picked from A[0:8] and A[8:16]. Loads share vectors if their addresses
differ by a constant and all of them are executed. Outside of the elements between the first and the
last lane of these loads no memory is read. A load under a condition that reads between them needs
no mask. Pairs of integers that are widened are loaded as integers of twice the bits. Stores that
together fill memory without gaps (`C[2 * j] = x; C[2 * j + 1] = y`) are one contiguous store.

With AVX-512, other stores are registers under a mask, except where the next iterations load what
these registers hold, and loads under a condition are registers under masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from metasched.analysis.access import SHUFFLED
from metasched.analysis.guarded import certain_loads
from metasched.arith.affine import linear_address
from metasched.arith.linear import Linear
from metasched.codegen.emit import Emitter
from metasched.codegen.in_memory import load_masked, store_masked
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import BOOL, DType
from metasched.ir.expr import Expr, Var
from metasched.ir.stmt import BufferStore, Evaluate, For, Stmt, While
from metasched.ir.visit import free_vars, loads_of, reads_memory, walk_stmts

_SOON = 8
"""After this many vectors of iterations, what a store wrote is in the cache."""
Lanes = tuple[Val, dict[int, int]]
"""A vector in memory form, and where the vector holds each lane of a result."""


def step_of(e: Emitter, address: Linear) -> int:
    """The distance of lanes; 0 where no constant says it."""
    assert e.lane is not None
    lane = e.lane.var
    others = [v for a in address.terms if a is not lane for v in free_vars(a)]
    same = all(v is not lane and (v not in e.env or e.env[v].lanes == 1) for v in others)
    return address.terms.get(lane, 0) if same else 0


def room(e: Emitter, buffer: Buffer, address: Linear, stride: int) -> tuple[int, int]:
    """How many elements before the first and behind the last lane may be read, because other loads
    read them.

    None before where the loop stores the buffer lane by lane: a vector that holds elements just
    stored waits until they are in the cache.
    """
    low, high = _span(certain_places(e, buffer, address))
    if not low <= address.const <= high:
        return 0, 0
    if stores(e, buffer) and _registers_before(e, buffer, stride) is None:
        return 0, min(stride - 1, high - address.const)
    before = (address.const - low) % stride
    return before, min(stride - 1 - before, high - address.const)


def certain(e: Emitter, buffer: Buffer, index: Expr) -> bool:
    """Whether each lane of a load lies between elements that other loads read in any case, so that
    the lane needs no mask."""
    address = linear_address(index)
    low, high = _span(certain_places(e, buffer, address))
    return low <= address.const <= high


def _span(places: Sequence[int]) -> tuple[int, int]:
    return (places[0], places[-1]) if places else (1, 0)


def certain_places(e: Emitter, buffer: Buffer, address: Linear) -> Sequence[int]:
    """The constants, in order, in the addresses of loads of the vectorized loop that are always
    executed, and whose addresses differ from `address` by the constant only."""
    if e.lane is None or e.lane.body is None:
        return ()
    body = e.lane.body
    if (name := ("certain loads", e.lane.var)) not in body.facts:
        found: dict[object, set[int]] = {}
        for load in certain_loads(body):
            if len(load.indices) == 1 and load.predicate is None and load.dtype.lanes == 1:
                own = linear_address(load.indices[0])
                key = load.buffer.data, frozenset(own.terms.items())
                found.setdefault(key, set()).add(own.const)
        body.facts[name] = {key: tuple(sorted(places)) for key, places in found.items()}
    if any(a is not e.lane.var and _varies(a, e.lane.var) for a in address.terms):
        return ()
    key = buffer.data, frozenset(address.terms.items())
    return body.facts[name].get(key, ())  # type: ignore[no-any-return]


def stores(e: Emitter, buffer: Buffer) -> bool:
    """Whether the vectorized loop stores a buffer."""
    assert e.lane is not None and e.lane.body is not None  # it has loads
    found = (s for s in walk_stmts(e.lane.body) if isinstance(s, BufferStore))
    return any(s.buffer.data is buffer.data for s in found)


def _loaded(e: Emitter, buffer: Buffer) -> bool:
    """Whether the vectorized loop loads a buffer."""
    assert e.lane is not None
    body = e.lane.body
    return body is None or any(x.buffer.data is buffer.data for x in _loads(body))


def _loads(body: Stmt) -> Iterator[BufferLoad]:
    return (x for s in walk_stmts(body) for x in _own_loads(s))


def _own_loads(stmt: Stmt) -> Iterator[BufferLoad]:
    return (x for value in stmt.exprs for x in loads_of(value))


def _varies(atom: Expr, lane: Var) -> bool:
    """Whether an atom differs between lanes or reads memory, which stores may change."""
    return lane in free_vars(atom) or reads_memory(atom)


def picked_apart(
    e: Emitter, vector: Callable[[int], Val], lanes: int, stride: int, around: tuple[int, int]
) -> Val:
    """Load lanes `stride` elements apart, in memory form.

    Args:
        vector: loads as many contiguous elements, from a number of elements behind the first lane.
        around: how many elements before the first and behind the last lane may be read.
    """
    before, behind = around
    last = before + (lanes - 1) * stride + 1 + behind - lanes
    parts: list[Lanes] = []
    for k in range(stride):
        start = min(k * lanes, last)
        found = {n: n * stride + before for n in range(lanes)}
        ours = {n: at - start for n, at in found.items() if at // lanes == k}
        parts.append((vector(start - before), ours))
    return _joined(e, parts)


def _joined(e: Emitter, parts: list[Lanes]) -> Val:
    """Bring the lanes of all parts to their places."""
    while len(parts) > 1:
        pairs = [_merged(e, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0][0]


def _merged(e: Emitter, a: Lanes, b: Lanes) -> Lanes:
    """Bring lanes of two vectors to their places."""
    n = a[0].lanes
    places = {**a[1], **{lane: n + at for lane, at in b[1].items()}}
    order = [places.get(i) for i in range(n)]
    return _shuffled(e, a[0], b[0], order), {lane: lane for lane in places}


def _shuffled(e: Emitter, a: Val, b: Val, order: Sequence[int | None]) -> Val:
    kind, n = memory_type(a.dtype, a.lanes), len(order)
    which = ", ".join("i32 poison" if i is None else f"i32 {i}" for i in order)
    text = f"shufflevector {kind} {a.text}, {kind} {b.text}, <{n} x i32> <{which}>"
    return e.inline(text, a.dtype, n)


# -- stores


def together(e: Emitter, items: Sequence[Stmt], at: int) -> list[BufferStore]:
    """The items from `at` on that fill memory without gaps, ordered by address; empty if there are
    none.

    No value may read what an earlier item stores.
    """
    first = items[at]
    if e.lane is None or e.mask is not None or not isinstance(first, BufferStore):
        return []
    stride = step_of(e, linear_address(first.indices[0]))
    if stride > SHUFFLED:
        return []
    stores = [s for s in items[at : at + stride] if isinstance(s, BufferStore)]
    places = {}
    for one in stores:
        if one.buffer.data is not first.buffer.data or one.predicate is not None:
            return []
        if one is not first and any(x.buffer.data is one.buffer.data for x in loads_of(one.value)):
            return []
        address = linear_address(one.indices[0])
        if address.terms != linear_address(first.indices[0]).terms:
            return []
        places[address.const] = one
    low = min(places, default=0)
    full = stride > 1 and set(places) == set(range(low, low + stride))
    return [places[n] for n in sorted(places)] if full else []


def spreads(e: Emitter, buffer: Buffer, stride: int, lanes: int) -> int | None:
    """Where lanes apart are stored as registers under a mask: how many elements in front of the
    first lane the first register begins. None for lanes that are stored one by one."""
    if not _masks(e, buffer.dtype, stride, lanes) or e.lane is None:
        return None
    return 0 if not _loaded(e, buffer) else _registers_before(e, buffer, stride)


def _masks(e: Emitter, dtype: DType, stride: int, lanes: int) -> bool:
    """Whether there are registers under a mask for lanes apart."""
    fits = "avx512f" in e.module.features and dtype.bits >= 32
    return fits and 1 < stride <= SHUFFLED and lanes > stride


def _registers_before(e: Emitter, buffer: Buffer, stride: int) -> int | None:
    """How many elements in front of the lanes of a store the masked registers begin that no load of
    the next `_SOON` vectors of iterations overlaps, if the loop loads its buffer; None if there are
    no such registers, or some other statement loads the buffer.

    A load of elements between lanes just stored waits for the store.
    """
    assert e.lane is not None and e.lane.body is not None
    lanes, dtype = e.lane.lanes, buffer.dtype
    places = _places_in_place(e.lane.body, buffer) if _masks(e, dtype, stride, lanes) else None
    if places is None:
        return None
    stored, loaded = places
    width = min(lanes, e.module.vector_bits // dtype.bits)
    step = stride * lanes
    for before in range(stride):
        first = stored - before
        behind = first + -(-(before + step - stride + 1) // width) * width
        inside = not before or loaded[0] <= first  # no register lies outside of what is loaded
        if inside and all(n + step >= behind or n + _SOON * step <= first for n in loaded):
            return before
    return None


def _places_in_place(body: Stmt, buffer: Buffer) -> tuple[int, Sequence[int]] | None:
    """The constants in the addresses of the one store and of the loads of a buffer, in order; None
    if they differ by more than constants, or are not those of one statement."""
    key = "places in place", buffer.data
    if key not in body.facts:
        body.facts[key] = _find_places(body, buffer)
    return body.facts[key]  # type: ignore[no-any-return]


def _find_places(body: Stmt, buffer: Buffer) -> tuple[int, Sequence[int]] | None:
    statements = list(walk_stmts(body))
    found = [s for s in statements if isinstance(s, BufferStore) and s.buffer.data is buffer.data]
    if len(found) != 1 or any(isinstance(s, For | While) for s in statements):
        return None
    store = found[0]
    loads: list[BufferLoad] = []
    for one in statements:
        if isinstance(one, Evaluate):
            continue  # a prefetch
        own = [x for x in _own_loads(one) if x.buffer.data is buffer.data]
        if own and all(below is not store for below in walk_stmts(one)):
            return None
        loads += own
    indices = [store.indices, *(load.indices for load in loads)]
    places = [linear_address(each[0]) for each in indices if len(each) == 1]
    same = all(place.terms == places[0].terms for place in places)
    if len(places) <= len(loads) or not same:
        return None
    stored, *others = [place.const for place in places]
    return stored, sorted(others)


def store_apart(
    e: Emitter,
    dtype: DType,
    value: Val,
    mask: Val | None,
    stride: int,
    before: int,
    address: Callable[[int], Val],
) -> None:
    """Store lanes of a stride up to `SHUFFLED`, register by register, each under a mask.

    Args:
        before: how many elements in front of the first lane the first register begins.
        address: the address some elements behind the first lane.
    """
    width = min(value.lanes, e.module.vector_bits // dtype.bits)
    for at in range(-before, (value.lanes - 1) * stride + 1, width):
        lanes = _lanes_of(range(at, at + width), stride, value.lanes)
        holds = _holds(e, lanes, mask)
        store_masked(e, dtype, address(at), _spread(e, value, lanes), holds)


def load_apart(
    e: Emitter, dtype: DType, mask: Val, stride: int, address: Callable[[int], Val]
) -> Val | None:
    """Load lanes of a stride up to `SHUFFLED` under a mask, in memory form, register by register;
    None where registers have no masks.

    Args:
        address: the address some elements behind the first lane.
    """
    width = mask.lanes
    if not _masks(e, dtype, stride, width) or width * dtype.bits > e.module.vector_bits:
        return None
    parts: list[Lanes] = []
    for at in range(0, (width - 1) * stride + 1, width):
        lanes = _lanes_of(range(at, at + width), stride, width)
        vector = load_masked(e, dtype, address(at), _holds(e, lanes, mask))
        parts.append((vector, {lane: n for n, lane in enumerate(lanes) if lane is not None}))
    return _joined(e, parts)


def _lanes_of(places: Sequence[int], stride: int, lanes: int) -> list[int | None]:
    """The lanes that lie some elements behind the first lane; None between lanes."""
    ends = lanes * stride
    return [n // stride if n % stride == 0 and 0 <= n < ends else None for n in places]


def _holds(e: Emitter, lanes: Sequence[int | None], mask: Val | None) -> Val:
    """The mask of a register that holds these lanes."""
    inside = ", ".join(f"i1 {int(n is not None)}" for n in lanes)
    holds = Val(f"<{inside}>", BOOL, len(lanes))
    return holds if mask is None else e.both(holds, _spread(e, mask, [n or 0 for n in lanes]))


def _spread(e: Emitter, value: Val, lanes: Sequence[int | None]) -> Val:
    """A vector of the lanes of these numbers, in the form of a register; any value for None."""
    order = ", ".join("i32 poison" if n is None else f"i32 {n}" for n in lanes)
    text = f"shufflevector {value.typed}, {value.type} poison, <{len(lanes)} x i32> <{order}>"
    return e.inline(text, value.dtype, len(lanes))


def interleaved(e: Emitter, vectors: Sequence[Val]) -> Val:
    """The lanes of vectors in turns; vectors and result in memory form."""
    n, count = vectors[0].lanes, len(vectors)
    order = [i + n * k for i in range(n) for k in range(count)]
    if count == 2:
        return _shuffled(e, vectors[0], vectors[1], order)
    low = _shuffled(e, vectors[0], vectors[1], range(2 * n))
    high = _shuffled(e, vectors[2], vectors[-1], range(2 * n))
    return _shuffled(e, low, high, order)
