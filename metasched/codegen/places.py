"""Addresses: sums whose parts are computed once, outside of the loops that do not change them; the
lanes of a vectorized loop lie side by side, a stride apart, or at places of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metasched.analysis.access import SHUFFLED
from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary
from metasched.codegen.emit import Emitter
from metasched.codegen.interleaved import room
from metasched.codegen.known_memory import Spot
from metasched.codegen.runs import lane_numbers, runs_of, spread, within_lanes
from metasched.codegen.types import memory_type, register_type
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import INT32, INT64, DType, wrap
from metasched.ir.expr import Add, Expr, Mul, as_int
from metasched.ir.op import Ramp

_NARROW = 1 << 31
"""The most elements of a buffer whose places fit 32 bits."""


@dataclass(frozen=True, slots=True)
class Place:
    """The address of an access: `pointer` to the first lane, and lanes `stride` elements apart.

    If `indices` is given, the lanes lie at these offsets from `pointer` instead. If `runs` is
    given, the offsets are runs of neighbours, of equal lengths, which begin at these numbers. If
    `near` is given, it holds all offsets, which lie close together in each register of lanes.
    `spot` names the memory of a scalar or contiguous access, and `apart` that of lanes more than
    `SHUFFLED` elements apart. `narrow` holds a pointer and offsets from it of 32 bits, with which
    gathers take half as long. Lanes in a row or a stride apart begin `offset` elements behind
    `origin`; `around` is how many elements before and behind strided lanes may be read.
    """

    pointer: Val
    lanes: int = 1
    stride: int = 0
    indices: Val | None = None
    spot: Spot | None = None
    runs: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    origin: Val | None = None
    offset: int = 0
    around: tuple[int, int] = (0, 0)
    apart: Spot | None = None
    narrow: tuple[Val, Val] | None = None


def place_of(e: Emitter, buffer: Buffer, index: Expr) -> Place:
    """The address of buffer[index] for a flat buffer and a 64-bit index."""
    base = e.pointers.get(buffer.data)
    if base is None:
        raise BuildError(f"buffer {buffer.name} is used where it is not allocated")
    explicit = 1
    stride = 0
    if isinstance(index, Ramp):
        step = e.value(index.stride)
        if step.const is not None:
            explicit, stride = index.lanes, int(step.const)
            index = index.base
    form = linear_address(index)
    known_lanes = lane_numbers(e, form)
    if known_lanes is not None:
        terms = [(e.value(a), f) for a, f in form.terms.items() if not within_lanes(e, a)]
        if all(value.lanes == 1 for value, _ in terms):
            return _at_numbers(e, buffer, base, terms, form.const, known_lanes)
    uniform: list[tuple[Val, int]] = []
    varying: list[tuple[Val, int]] = []
    lane_step = 0
    for atom, factor in form.terms.items():
        if e.lane is not None and atom is e.lane.var:
            lane_step += factor
            uniform.append((e.lane.base, factor))
            continue
        value = e.value(atom)
        (uniform if value.lanes == 1 else varying).append((value, factor))
    known = sum(int(v.const) * f for v, f in uniform if v.const is not None)
    constant = form.const + known
    uniform = [(v, f) for v, f in uniform if v.const is None]
    start = address(e, base, buffer.dtype, _sum(e, uniform), 0)
    pointer = address(e, start, buffer.dtype, None, constant)
    if varying:
        fixed = [(v, 1) for v in (_sum(e, uniform), literal(constant)) if v is not None]
        return _gathered(e, pointer, (base, fixed), buffer, varying, lane_step)
    if explicit > 1:
        if lane_step:
            raise BuildError("a vector access inside a vectorized loop")
        return Place(pointer, explicit, stride)
    lanes = e.lane.lanes if lane_step and e.lane is not None else 1
    spot = Spot(buffer.data, buffer.dtype, start.text, constant, lanes)
    if lane_step in (0, 1):
        return Place(pointer, lanes, lane_step, None, spot, origin=start, offset=constant)
    if lane_step > SHUFFLED:
        apart = replace(spot, stride=lane_step)
        return Place(pointer, lanes, lane_step, origin=start, offset=constant, apart=apart)
    around = room(e, buffer, form, lane_step)
    return Place(pointer, lanes, lane_step, origin=start, offset=constant, around=around)


def _at_numbers(
    e: Emitter,
    buffer: Buffer,
    base: Val,
    terms: list[tuple[Val, int]],
    constant: int,
    numbers: Sequence[int],
) -> Place:
    """The address of an access whose lanes lie at known numbers of elements from a sum."""
    known = sum(int(v.const) * f for v, f in terms if v.const is not None)
    start = _sum(e, [(v, f) for v, f in terms if v.const is None])
    constant += known + numbers[0]
    origin = address(e, base, buffer.dtype, start, 0)
    pointer = address(e, origin, buffer.dtype, None, constant)
    offsets = [n - numbers[0] for n in numbers]
    lanes, step = len(offsets), offsets[1] - offsets[0]
    if offsets == [n * step for n in range(lanes)]:
        whole = Spot(buffer.data, buffer.dtype, origin.text, constant, lanes)
        spot = whole if step == 1 else None
        return Place(pointer, lanes, step, None, spot, origin=origin, offset=constant)
    inside = ", ".join(f"i64 {n}" for n in offsets)
    parts = registers(e, buffer.dtype, offsets)
    near = tuple(offsets) if all(spread(p) <= 2 * len(p) for p in parts) else ()
    indices = Val(f"<{inside}>", INT64, lanes, 0)
    return Place(pointer, lanes, 0, indices, None, runs_of(offsets), near)


def registers(e: Emitter, dtype: DType, offsets: Sequence[int]) -> list[Sequence[int]]:
    """The offsets of the lanes, register by register; together if the registers are not full."""
    width = e.module.vector_bits // (8 * dtype.bytes)
    if len(offsets) % width or (count := len(offsets) // width) & (count - 1):
        return [offsets]
    return [offsets[n : n + width] for n in range(0, len(offsets), width)]


def _sum(e: Emitter, terms: list[tuple[Val, int]]) -> Val | None:
    """Add the terms, starting with the terms known in the outermost scope, so that partial sums are
    hoisted."""
    total: Val | None = None
    for value, factor in sorted(terms, key=lambda t: t[0].depth):
        term = binary(e, Mul, value, literal(factor))
        total = term if total is None else binary(e, Add, total, term)
    return total


def address(e: Emitter, base: Val, dtype: DType, index: Val | None, constant: int) -> Val:
    """The address `index` and `constant` elements behind `base`."""
    element = memory_type(dtype)
    pointer = base
    if index is not None:
        text = f"getelementptr {element}, ptr {base.text}, {index.typed}"
        pointer = e.pure(text, base.dtype, 1, base, index)
    if constant:
        text = f"getelementptr {element}, ptr {pointer.text}, i64 {constant}"
        pointer = e.pure(text, base.dtype, 1, pointer)
    return pointer


def _gathered(
    e: Emitter, pointer: Val, start: tuple[Val, list[tuple[Val, int]]], buffer: Buffer,
    varying: list[tuple[Val, int]], lane_step: int,
) -> Place:  # fmt: skip
    """The address of lanes at places of their own.

    Args:
        pointer: the address of the sum of all terms that do not vary.
        start: the pointer of the buffer, and these terms.
    """
    total = _lane_sum(e, varying, lane_step)
    narrow, size = None, as_int(buffer.shape[0])
    if size is not None and size <= _NARROW and buffer.dtype.bits >= 32:
        base, uniform = start
        low = [(_low_bits(e, value), factor) for value, factor in (*uniform, *varying)]
        narrow = base, _lane_sum(e, low, lane_step)
    return Place(pointer, total.lanes, 0, total, narrow=narrow)


def _lane_sum(e: Emitter, terms: Sequence[tuple[Val, int]], lane_step: int) -> Val:
    """Add terms of which some differ between lanes, and `lane_step` for each lane."""
    lanes, dtype = max(value.lanes for value, _ in terms), terms[0][0].dtype
    total = e.widen(literal(0, dtype), lanes)
    if lane_step:
        total = lane_offsets(e, lanes, lane_step, dtype)
    for value, factor in terms:
        by = literal(wrap(dtype, factor), dtype)
        scaled = binary(e, Mul, value, e.widen(by, value.lanes))
        total = binary(e, Add, total, e.widen(scaled, lanes))
    return total


def _low_bits(e: Emitter, value: Val) -> Val:
    """The low 32 bits of a value."""
    if value.const is not None:
        return literal(wrap(INT32, int(value.const)), INT32)
    kind = register_type(INT32, value.lanes)
    return e.pure(f"trunc {value.typed} to {kind}", INT32, value.lanes, value)


def lane_offsets(e: Emitter, lanes: int, stride: int = 1, dtype: DType = INT64) -> Val:
    """The vector 0, stride, 2 * stride, ..."""
    element = register_type(dtype)
    inside = ", ".join(f"{element} {wrap(dtype, i * stride)}" for i in range(lanes))
    return Val(f"<{inside}>", dtype, lanes, 0)
