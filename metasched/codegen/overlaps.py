"""Vectors that overlap in memory: the ends of a window are loaded, vectors between are shuffled.

    for j in vectorized(16): B[j] = A[j] + A[j + 1] + A[j + 2]

Where a vector is as long as a cache line, each load that does not begin at a line reads two lines.
So A[0:16] and A[2:18] are loaded, and A[1:17] takes its lanes from these two. The steps of unrolled
loops, such as the taps of a filter, share the ends of their windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from metasched.arith.affine import linear_address
from metasched.codegen.emit import Emitter
from metasched.codegen.types import register_type
from metasched.codegen.values import Val
from metasched.codegen.windows import Key, Nest
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars

_LINE = 64
"""Bytes of a cache line."""
_PERMUTES = {8: "avx512vbmi", 16: "avx512bw", 32: "avx512f", 64: "avx512f"}
"""Bits of an element -> the feature whose instruction picks lanes of two registers."""


@contextmanager
def windows_of(
    e: Emitter, nest: For, unrolls: Callable[[For], bool], vectors: Callable[[For], tuple[int, int]]
) -> Iterator[For]:
    """Inside the `with` body, loads know the windows of a nest of unrolled and vectorized loops.
    Gives the nest to emit.

    Args:
        unrolls: whether a loop is unrolled.
        vectors: how many vectors of a vectorized loop begin at constant places, and their lanes.
    """
    found = None
    wide = e.module.vector_bits == 8 * _LINE and e.lane is None and e.mask is None
    if wide and e.windows is None and not e.known_memory.disabled:
        key = "windows", e.unroll_steps, e.module.features
        if key not in nest.facts:
            reader = Nest(unrolls, vectors, partial(_fits, e), e.module.vector_registers)
            nest.facts[key] = reader.windows(nest)
        found = nest.facts[key]
    if found is None:
        yield nest
        return
    e.windows = found
    yield found.nest
    e.windows = None
    e.bits.clear()


def _fits(e: Emitter, dtype: DType, lanes: int) -> bool:
    plain = dtype.is_int or (dtype.is_float and dtype.bits >= 32)
    return plain and lanes * dtype.bytes % _LINE == 0 and _PERMUTES[dtype.bits] in e.module.features


def ends_around(e: Emitter, buffer: Buffer, index: Expr) -> tuple[int, int] | None:
    """How far before and behind a vector of a window the two ends lie, 0 and 0 for an end; None for
    other vectors."""
    windows, lane = e.windows, e.lane
    if windows is None or lane is None:
        return None
    form = linear_address(index)
    at, fixed = form.const, dict[Expr, int]()
    for atom, factor in form.terms.items():
        if atom not in windows.loops:
            fixed[atom] = factor
        elif atom is not lane.var or lane.base.const is not None:
            value = lane.base if atom is lane.var else e.env[atom]
            if value.const is None:
                return None
            at += factor * int(value.const)
    inside = {var for atom in fixed for var in free_vars(atom) if var in windows.loops}
    steps = [e.env[var].const for var in sorted(inside, key=windows.loops.__getitem__)]
    marks = tuple(int(step) for step in steps if step is not None)
    key: Key = (buffer.data, buffer.dtype, lane.lanes, frozenset(fixed.items()), marks)
    ends = windows.ends.get(key, {}).get(at) if len(marks) == len(steps) else None
    return None if ends is None else (at - ends[0], ends[1] - at)


def load_end(e: Emitter, dtype: DType, pointer: Val, lanes: int) -> Val:
    """Load an end of a window. Floats are loaded as integers and cast: LLVM moves the lanes of
    integers by one instruction without numbers of lanes (valignd)."""
    kind = f"<{lanes} x i{dtype.bits}>"
    value = e.inline(f"load {kind}, ptr {pointer.text}, align {dtype.bytes}", dtype, lanes)
    if not dtype.is_float:
        return value
    cast = f"bitcast {kind} {value.text} to {register_type(dtype, lanes)}"
    result = e.inline(cast, dtype, lanes)
    e.bits[result.text] = value.text
    return result


def shuffled(e: Emitter, low: Val, high: Val, before: int, behind: int) -> Val:
    """The vector that begins `before` elements behind `low` and `behind` elements before `high`."""
    n, dtype = low.lanes, low.dtype
    order = [k + before if k + before < n else n + k - behind for k in range(n)]
    lanes = f"<{n} x i32> <{', '.join(f'i32 {k}' for k in order)}>"
    if before + behind == n and low.text in e.bits and high.text in e.bits:
        kind = f"<{n} x i{dtype.bits}>"
        a, b = e.bits[low.text], e.bits[high.text]
        moved = e.inline(f"shufflevector {kind} {a}, {kind} {b}, {lanes}", dtype, n)
        return e.inline(f"bitcast {kind} {moved.text} to {low.type}", dtype, n)
    return e.inline(f"shufflevector {low.typed}, {high.typed}, {lanes}", dtype, n)
