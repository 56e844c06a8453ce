"""Vectors whose lanes lie more than four elements apart: transpositions of rows.

    for n in T.vectorized(16): B[n, 2] = A[n, 0] * A[n, 3]        # rows of 9 elements

Each lane reads a row of its own. Loads of one row share one vector for each lane; exchanges in
registers turn these vectors into the columns of all lanes. Stores to neighbours go the other way.
Outside of the elements between the first and the last lane of these loads no memory is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.access import SHUFFLED
from metasched.arith.affine import linear_address
from metasched.codegen.emit import Emitter
from metasched.codegen.exchange import exchanged
from metasched.codegen.in_memory import load_masked
from metasched.codegen.interleaved import step_of
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import BOOL, DType
from metasched.ir.stmt import BufferStore, Stmt
from metasched.ir.visit import loads_of

_BITS = 32
"""Exchanges of narrower elements take more instructions than loads of lanes."""
_LANES = (4, 8, 16)
Address = Callable[[int], Val]
"""The address some elements behind the first element of a buffer's first lane."""


def load_columns(
    e: Emitter, dtype: DType, lanes: int, stride: int, column: int, columns: Sequence[int],
    address: Address,
) -> dict[int, Val]:  # fmt: skip
    """The vectors of a column and of columns near it, in memory form; none if the column alone is
    loaded.

    Args:
        columns: the columns that are loaded in any case, in order.
    """
    if lanes not in _LANES or dtype.bits < _BITS or column not in columns:
        return {}
    near = _near(column, columns, lanes)
    if len(near) < 2:
        return {}
    width = 1 << (near[-1] - near[0]).bit_length()
    last, rows = columns[-1] + (lanes - 1) * stride, []
    for n in range(lanes):
        first = near[0] + n * stride
        rows.append(_row(e, dtype, address(first), width, last + 1 - first))
    found = exchanged(e, [e.joined(rows[n::width]) for n in range(width)])
    return {c: found[c - near[0]] for c in near}


def _near(column: int, columns: Sequence[int], lanes: int) -> list[int]:
    """The columns that are loaded together with one: as many as a vector has lanes."""
    found: list[int] = []
    for c in columns:
        if found and c >= found[0] + lanes:
            if column in found:
                break
            found = []
        found.append(c)
    return found


def _row(e: Emitter, dtype: DType, pointer: Val, width: int, inside: int) -> Val:
    """`width` elements from a pointer on, of which the first `inside` may be read."""
    kind = memory_type(dtype, width)
    if inside >= width:
        return e.inline(f"load {kind}, ptr {pointer.text}, align {dtype.bytes}", dtype, width)
    holds = ", ".join(f"i1 {int(n < inside)}" for n in range(width))
    return load_masked(e, dtype, pointer, Val(f"<{holds}>", BOOL, width))


def stores_of_columns(e: Emitter, items: Sequence[Stmt], at: int) -> list[BufferStore]:
    """The items from `at` on that store columns of a buffer, ordered by address; empty if they hold
    no four neighbours.

    No value may read what an earlier item stores.
    """
    first = items[at]
    if e.lane is None or e.mask is not None or not isinstance(first, BufferStore):
        return []
    buffer = first.buffer
    fits = e.lane.lanes in _LANES and buffer.dtype.bits >= _BITS and first.predicate is None
    if not fits or step_of(e, linear_address(first.indices[0])) <= SHUFFLED:
        return []
    terms = linear_address(first.indices[0]).terms
    places: dict[int, BufferStore] = {}
    for one in items[at:]:
        if not isinstance(one, BufferStore) or one.buffer.data is not buffer.data:
            break
        loads = loads_of(one.value) if places else ()
        if one.predicate is not None or any(x.buffer.data is buffer.data for x in loads):
            break
        address = linear_address(one.indices[0])
        if address.terms != terms or address.const in places:
            break
        places[address.const] = one
    widest = max(width for _, width in _pieces(sorted(places), e.lane.lanes))
    return [places[n] for n in sorted(places)] if widest >= 4 else []


def _pieces(columns: Sequence[int], lanes: int) -> list[tuple[int, int]]:
    """Runs of neighbours among columns, cut into powers of two: the first column and the number."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(columns):
        size = lanes
        while list(columns[at : at + size]) != list(range(columns[at], columns[at] + size)):
            size //= 2
        found.append((at, size))
        at += size
    return found


def store_columns(
    e: Emitter, buffer: Buffer, columns: Sequence[int], values: Sequence[Val], stride: int,
    address: Address,
) -> None:  # fmt: skip
    """Store vectors to columns; the vectors have the form of memory."""
    lanes, dtype = values[0].lanes, buffer.dtype
    for at, width in _pieces(columns, lanes):
        part = list(values[at : at + width])
        kind = memory_type(dtype, width)
        rows = exchanged(e, part) if width > 1 else part
        for n in range(lanes):
            start = n // width * width
            row = e.part(rows[n % width], start, width) if width > 1 else e.extract(part[0], n)
            pointer = address(columns[at] + n * stride)
            e.line(f"store {kind} {row.text}, ptr {pointer.text}, align {dtype.bytes}")
