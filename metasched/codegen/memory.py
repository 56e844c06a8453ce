"""Loads and stores: addresses as hoisted sums, vectors along the vectorized loop, masks and
gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from metasched.analysis.access import SHUFFLED
from metasched.arith.affine import linear_address
from metasched.arith.linear import Linear
from metasched.codegen.arithmetic import binary, compare, convert, select
from metasched.codegen.columns import load_columns, store_columns
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.in_memory import (
    from_memory,
    load_masked,
    mangle,
    store_masked,
    to_memory,
)
from metasched.codegen.interleaved import (
    certain,
    certain_places,
    interleaved,
    load_apart,
    picked_apart,
    spreads,
    store_apart,
    stores,
)
from metasched.codegen.known_memory import Spot
from metasched.codegen.overlaps import ends_around, load_end, shuffled
from metasched.codegen.places import Place, address, lane_offsets, place_of, registers
from metasched.codegen.runs import limit_of, spread
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import BOOL, DType
from metasched.ir.expr import GE, LE, Cast, Expr, Max, Min, Sub
from metasched.ir.stmt import BufferStore

# -- loads


def load(e: Emitter, buffer: Buffer, index: Expr, mask: Val | None) -> Val:
    """buffer[index]; lanes where `mask` does not hold give zero, and are not read unless other
    loads read the memory around them in any case."""
    if mask is not None and mask.lanes > 1 and certain(e, buffer, index):
        value = load(e, buffer, index, None)
        mask, value = e.same_lanes(mask, value)
        return select(e, mask, value, literal(0, value.dtype, value.lanes))
    lane = e.lane if mask is None else None
    if lane is not None and (limited := limit_of(e, lane, index)) is not None:
        return _load_clamped(e, buffer, lane, *limited)
    where = place_of(e, buffer, index)
    if where.spot is not None and (mask is None or _on_stack(e, where.spot)):
        ends = ends_around(e, buffer, index) if mask is None else None
        value = _load_spot(e, where, where.spot, ends)
        if mask is None:
            return value
        mask, value = e.same_lanes(mask, value)
        return select(e, mask, value, literal(0, value.dtype, value.lanes))
    if mask is None and where.apart is not None:
        return _load_spot_apart(e, buffer, linear_address(index), where, where.apart)
    e.known_memory.touched(buffer.data, written=False)
    if where.lanes == 1:
        if mask is not None and mask.lanes > 1:
            return _load_any(e, buffer.dtype, where.pointer, mask)
        assert mask is not None
        return _load_where(e, buffer.dtype, where.pointer, mask)
    if mask is not None:
        mask = e.widen(mask, where.lanes)
    if where.indices is None and where.stride == 1:
        if mask is None:
            return _load_vector(e, buffer.dtype, where.pointer, where.lanes)
        return from_memory(e, load_masked(e, buffer.dtype, where.pointer, mask))
    if where.indices is None and where.stride == 0:
        if mask is not None:
            return e.widen(_load_any(e, buffer.dtype, where.pointer, mask), where.lanes)
        return e.widen(_load_vector(e, buffer.dtype, where.pointer, 1), where.lanes)
    if where.indices is None and (mask is None or where.stride == -1):
        return _load_lanes(e, buffer.dtype, where, mask)
    if where.indices is None and mask is not None:
        at = partial(address, e, where.pointer, buffer.dtype, None)
        if (found := load_apart(e, buffer.dtype, mask, where.stride, at)) is not None:
            return from_memory(e, found)
    if mask is None and where.runs:
        return _load_runs(e, buffer.dtype, where)
    if mask is None and where.near:
        return _load_near(e, buffer.dtype, where)
    return _gather(e, buffer.dtype, where, mask)


def _load_spot(e: Emitter, where: Place, spot: Spot, ends: tuple[int, int] | None = None) -> Val:
    """Load a scalar or contiguous vector, unless the value at the address is known.

    Args:
        ends: how far before and behind lie two vectors from which the vector is shuffled; 0 and 0
            for such a vector.
    """
    value = e.known_memory.find(spot)
    if value is not None:
        return value
    if ends == (0, 0):
        value = load_end(e, spot.dtype, where.pointer, spot.lanes)
    elif ends is not None:
        low, high = (
            _load_spot(e, *_moved(e, where, spot, by), (0, 0)) for by in (-ends[0], ends[1])
        )
        value = shuffled(e, low, high, *ends)
    else:
        value = _load_vector(e, spot.dtype, where.pointer, spot.lanes)
    e.known_memory.loaded(spot, value)
    return value


def _moved(e: Emitter, where: Place, spot: Spot, by: int) -> tuple[Place, Spot]:
    """The place `by` elements behind."""
    offset = spot.offset + by
    pointer = address(e, where.origin or where.pointer, spot.dtype, None, offset)
    return replace(where, pointer=pointer), replace(spot, offset=offset)


def _load_spot_apart(e: Emitter, buffer: Buffer, form: Linear, where: Place, spot: Spot) -> Val:
    """Load lanes more than `SHUFFLED` elements apart, unless their values are known."""
    value = e.known_memory.find(spot)
    if value is not None:
        return value
    e.known_memory.touched(buffer.data, written=False)
    before, here = spot.offset - form.const, form.const

    def pointer(column: int) -> Val:
        return address(e, where.origin or where.pointer, spot.dtype, None, before + column)

    columns = certain_places(e, buffer, form)
    if columns and stores(e, buffer):
        columns = ()
    found = load_columns(e, spot.dtype, spot.lanes, spot.stride, here, columns, pointer)
    if not found:
        found = {here: _load_lanes(e, spot.dtype, where, None)}
    for column, value in found.items():
        e.known_memory.loaded(replace(spot, offset=before + column), value)
    return found[here]


def _load_vector(e: Emitter, dtype: DType, pointer: Val, lanes: int) -> Val:
    kind = memory_type(dtype, lanes)
    text = f"load {kind}, ptr {pointer.text}, align {dtype.bytes}"
    return from_memory(e, e.inline(text, dtype, lanes))


def _load_where(e: Emitter, dtype: DType, pointer: Val, mask: Val) -> Val:
    """Load a scalar if a scalar condition holds at run time."""
    yes, done, before = e.fresh_label("load"), e.fresh_label("loaded"), e.block
    e.branch_if(mask, yes, done)
    e.label(yes)
    value = _load_vector(e, dtype, pointer, 1)
    after = e.block
    e.branch(done)
    e.label(done)
    none = literal(0, dtype)
    text = f"phi {value.type} [ {value.text}, %{after} ], [ {none.text}, %{before} ]"
    return e.inline(text, dtype)


def _load_any(e: Emitter, dtype: DType, pointer: Val, mask: Val) -> Val:
    """Load one element for all lanes if any lane is active."""
    name = f"llvm.vector.reduce.or.v{mask.lanes}i1"
    return _load_where(e, dtype, pointer, e.intrinsic(name, BOOL, 1, mask))


def _load_clamped(
    e: Emitter, buffer: Buffer, lane: Lane, index: Expr, kind: type[Min | Max], limit: Expr
) -> Val:
    """Load neighbours up to (or from) the lane of a limit, and repeat its element in the others;
    `index` is the index without the limit (see `limit_of`)."""
    where, lanes = place_of(e, buffer, index), lane.lanes
    left = binary(e, Sub, e.value(limit), lane.base)
    last = literal(lanes - 1 if kind is Min else 0)
    if left.const is not None and (left.const >= lanes - 1 if kind is Min else left.const <= 0):
        return load(e, buffer, index, None)
    e.known_memory.touched(buffer.data, written=False)
    mask = compare(e, LE if kind is Min else GE, lane_offsets(e, lanes), left)
    edge = address(e, where.pointer, buffer.dtype, binary(e, kind, left, last), 0)
    value = from_memory(e, load_masked(e, buffer.dtype, where.pointer, mask))
    return select(e, mask, value, _load_vector(e, buffer.dtype, edge, 1))


def _load_lanes(e: Emitter, dtype: DType, where: Place, mask: Val | None) -> Val:
    """Load lanes a constant stride apart: a reversed contiguous vector for stride -1, shuffled
    vectors for strides up to `SHUFFLED`, else one load a lane; with a mask for stride -1 only."""
    kind = memory_type(dtype, where.lanes)
    if where.stride == -1:
        first = address(e, where.pointer, dtype, None, 1 - where.lanes)
        if mask is None:
            value = _load_vector(e, dtype, first, where.lanes)
        else:
            value = from_memory(e, load_masked(e, dtype, first, _reversed(e, mask)))
        return _reversed(e, value)
    if 1 < where.stride <= SHUFFLED and where.lanes > where.stride:
        return _load_apart(e, dtype, where)
    element, text = memory_type(dtype), "poison"
    for i in range(where.lanes):
        pointer = address(e, where.pointer, dtype, None, i * where.stride)
        one = e.inline(f"load {element}, ptr {pointer.text}, align {dtype.bytes}", dtype)
        text = e.inline(
            f"insertelement {kind} {text}, {element} {one.text}, i64 {i}", dtype, where.lanes
        ).text
    return from_memory(e, Val(text, dtype, where.lanes))


def _load_apart(e: Emitter, dtype: DType, where: Place) -> Val:
    """Load lanes of a stride up to `SHUFFLED`, register by register."""
    lanes, stride = where.lanes, where.stride
    width = max(stride + 1, e.module.vector_bits // (8 * dtype.bytes))
    pieces = max(1, lanes // width)
    if lanes % width or pieces & (pieces - 1):
        width, pieces = lanes, 1
    before, behind = where.around
    origin, kind = where.origin or where.pointer, memory_type(dtype, width)
    found = []
    for first in range(0, pieces * width, width):

        def vector(at: int, first: int = first) -> Val:
            start = address(e, origin, dtype, None, where.offset + first * stride + at)
            return e.inline(f"load {kind}, ptr {start.text}, align {dtype.bytes}", dtype, width)

        more = behind if first + width == lanes else stride - 1 - before  # later lanes are there
        part = picked_apart(e, vector, width, stride, (before, more))
        found.append(from_memory(e, part))
    return e.joined(found)


def load_halves(e: Emitter, node: Cast) -> Val | None:
    """A cast to wider integers of lanes two elements apart: pairs of elements as integers of twice
    the bits, of which one half is kept. None for other casts."""
    inner = node.value
    if not isinstance(inner, BufferLoad) or e.mask is not None or inner.predicate is not None:
        return None
    narrow, dtype, bits = inner.dtype, node.dtype.scalar, inner.dtype.bits
    integers = narrow.is_int and dtype.is_int and dtype.bits >= 2 * bits
    if e.lane is None or len(inner.indices) != 1 or not integers:
        return None
    where = place_of(e, inner.buffer, inner.indices[0])
    if where.indices is not None or where.stride != 2 or where.lanes == 1 or not any(where.around):
        return None
    high = where.around[1] == 0  # the other half comes before ours
    e.known_memory.touched(inner.buffer.data, written=False)
    pair = DType(f"{narrow.kind}{2 * bits}")
    start = address(e, where.origin or where.pointer, narrow, None, where.offset - high)
    kind, n = memory_type(pair, where.lanes), where.lanes
    value = e.inline(f"load {kind}, ptr {start.text}, align {narrow.bytes}", pair, n)
    by = literal(bits, pair, n)
    if narrow.kind == "int" and not high:
        value = e.inline(f"shl {kind} {value.text}, {by.text}", pair, n)
    if narrow.kind == "int" or high:
        shift = "ashr" if narrow.kind == "int" else "lshr"
        value = e.inline(f"{shift} {kind} {value.text}, {by.text}", pair, n)
    else:
        ones = literal((1 << bits) - 1, pair, n)
        value = e.inline(f"and {kind} {value.text}, {ones.text}", pair, n)
    return convert(e, value, dtype)


def _reversed(e: Emitter, value: Val) -> Val:
    """The lanes of a vector in reverse order."""
    order = ", ".join(f"i32 {i}" for i in reversed(range(value.lanes)))
    text = f"shufflevector {value.typed}, {value.type} poison, <{value.lanes} x i32> <{order}>"
    return e.inline(text, value.dtype, value.lanes)


def _load_runs(e: Emitter, dtype: DType, where: Place) -> Val:
    """Load each run of neighbours as a vector."""
    lanes = where.lanes // len(where.runs)
    starts = [address(e, where.pointer, dtype, None, n) for n in where.runs]
    return e.joined([_load_vector(e, dtype, pointer, lanes) for pointer in starts])


def _load_near(e: Emitter, dtype: DType, where: Place) -> Val:
    """Load the memory from the first to the last lane of each register, and pick the lanes."""
    found = []
    for part in registers(e, dtype, where.near):
        low, lanes, n = min(part), len(part), spread(part)
        pointer = address(e, where.pointer, dtype, None, low)
        if n == 1:
            found.append(e.widen(_load_vector(e, dtype, pointer, 1), lanes))
            continue
        whole = memory_type(dtype, n)
        text = f"load {whole}, ptr {pointer.text}, align {dtype.bytes}"
        vector = e.inline(text, dtype, n)
        order = ", ".join(f"i32 {at - low}" for at in part)
        text = f"{whole} {vector.text}, {whole} poison, <{lanes} x i32> <{order}>"
        found.append(from_memory(e, e.inline(f"shufflevector {text}", dtype, lanes)))
    return e.joined(found)


def pointers(e: Emitter, dtype: DType, where: Place) -> Val:
    """The addresses of all lanes."""
    indices = where.indices or lane_offsets(e, where.lanes, where.stride)
    start, indices = where.narrow or (where.pointer, indices)
    text = f"getelementptr {memory_type(dtype)}, ptr {start.text}, {indices.typed}"
    return e.pure(text, start.dtype, where.lanes, start, indices)


def _gather(e: Emitter, dtype: DType, where: Place, mask: Val | None) -> Val:
    kind = memory_type(dtype, where.lanes)
    mask = literal(1, BOOL, where.lanes) if mask is None else mask
    places = pointers(e, dtype, where)
    name = f"llvm.masked.gather.{mangle(dtype, where.lanes)}.v{where.lanes}p0"
    e.module.declare(name, f"{kind} @{name}({places.type}, {mask.type}, {kind})")
    text = (
        f"call {kind} @{name}({places.type} align {dtype.bytes} {places.text}, "
        f"{mask.typed}, {kind} zeroinitializer)"
    )
    return from_memory(e, e.inline(text, dtype, where.lanes))


# -- stores


def _on_stack(e: Emitter, spot: Spot) -> bool:
    """Whether a spot lies at a constant place of memory on the stack of this thread."""
    return spot.offset >= 0 and spot.offset + spot.lanes <= e.stack.get(spot.base, 0)


def store(e: Emitter, buffer: Buffer, index: Expr, value: Val, mask: Val | None) -> None:
    """buffer[index] = value, in the lanes where `mask` holds."""
    dtype = buffer.dtype
    where = place_of(e, buffer, index)
    if where.lanes == 1 and value.lanes > 1:
        raise BuildError(f"{value.lanes} lanes are stored to one element of {buffer.name}")
    value = e.widen(value, where.lanes)
    if mask is not None and where.lanes > 1:
        mask = e.widen(mask, where.lanes)
        if where.spot is not None and _on_stack(e, where.spot):
            # LLVM keeps memory in registers only where it is loaded and stored without masks.
            value = select(e, mask, value, _load_spot(e, where, where.spot))
            mask = None
    if mask is None and where.apart is not None:
        line = "\n".join(_stores_apart(e, value, where))
        e.known_memory.stored(where.apart, value, e.scopes[-1].lines, line)
        return
    if mask is None and where.spot is not None:
        line = f"store {to_memory(e, value)}, ptr {where.pointer.text}, align {dtype.bytes}"
        e.known_memory.stored(where.spot, value, e.scopes[-1].lines, line)
        return
    e.known_memory.touched(buffer.data, written=True)
    if where.lanes == 1 and mask is not None:
        if mask.lanes > 1:
            raise BuildError(f"lanes store to one element of {buffer.name} under a mask")
        _store_where(e, dtype, where.pointer, value, mask)
    elif mask is None and (where.lanes == 1 or (where.indices is None and where.stride == 1)):
        e.line(f"store {to_memory(e, value)}, ptr {where.pointer.text}, align {dtype.bytes}")
    elif where.indices is None and where.stride == 1 and mask is not None:
        store_masked(e, dtype, where.pointer, value, mask)
    elif (
        where.indices is None
        and (before := spreads(e, buffer, where.stride, where.lanes)) is not None
    ):
        at = partial(address, e, where.pointer, dtype, None)
        store_apart(e, dtype, value, mask, where.stride, before, at)
    elif mask is None and where.indices is None:
        for line in _stores_apart(e, value, where):
            e.line(line)
    else:
        _scatter(e, dtype, where, value, mask)


def _stores_apart(e: Emitter, value: Val, where: Place) -> list[str]:
    """A store for each lane."""
    lines = []
    for i in range(where.lanes):
        pointer = address(e, where.pointer, value.dtype, None, i * where.stride)
        one = to_memory(e, e.extract(value, i))
        lines.append(f"store {one}, ptr {pointer.text}, align {value.dtype.bytes}")
    return lines


def store_together(e: Emitter, items: Sequence[BufferStore]) -> None:
    """Store lanes that fill memory without gaps (see `interleaved.together`), or neighbours in rows
    (see `columns.stores_of_columns`)."""
    buffer = items[0].buffer
    values = [e.value(one.value) for one in items]
    where = place_of(e, buffer, items[0].indices[0])
    e.known_memory.touched(buffer.data, written=True)
    kind = memory_type(buffer.dtype, where.lanes)
    names = [to_memory(e, e.widen(v, where.lanes)).removeprefix(f"{kind} ") for v in values]
    vectors = [Val(name, buffer.dtype, where.lanes) for name in names]
    if where.stride > SHUFFLED:
        first, *_ = columns = [linear_address(one.indices[0]).const for one in items]

        def pointer(column: int) -> Val:
            return address(e, where.pointer, buffer.dtype, None, column - first)

        store_columns(e, buffer, columns, vectors, where.stride, pointer)
        return
    joined = interleaved(e, vectors)
    whole = memory_type(buffer.dtype, joined.lanes)
    e.line(f"store {whole} {joined.text}, ptr {where.pointer.text}, align {buffer.dtype.bytes}")


def _store_where(e: Emitter, dtype: DType, pointer: Val, value: Val, mask: Val) -> None:
    yes, done = e.fresh_label("store"), e.fresh_label("stored")
    e.branch_if(mask, yes, done)
    e.label(yes)
    e.line(f"store {to_memory(e, value)}, ptr {pointer.text}, align {dtype.bytes}")
    e.branch(done)
    e.label(done)


def _scatter(e: Emitter, dtype: DType, where: Place, value: Val, mask: Val | None) -> None:
    mask = literal(1, BOOL, where.lanes) if mask is None else mask
    places = pointers(e, dtype, where)
    typed = to_memory(e, value)
    name = f"llvm.masked.scatter.{mangle(dtype, where.lanes)}.v{where.lanes}p0"
    kind = memory_type(dtype, where.lanes)
    e.module.declare(name, f"void @{name}({kind}, {places.type}, {mask.type})")
    address = f"{places.type} align {dtype.bytes} {places.text}"
    e.line(f"call void @{name}({typed}, {address}, {mask.typed})")
