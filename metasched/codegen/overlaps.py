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
from metasched.codegen.values import Val
from metasched.codegen.windows import Key, Nest
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr
from metasched.ir.stmt import For

_LINE = 64
"""Bytes of a cache line."""
_PERMUTES = {8: "avx512vbmi", 16: "avx512bw", 32: "avx512f", 64: "avx512f"}
"""Bits of an element -> the feature whose instruction picks lanes of two registers."""


@contextmanager
def windows_of(
    e: Emitter, nest: For, unrolls: Callable[[For], bool], vectors: Callable[[For], tuple[int, int]]
) -> Iterator[None]:
    """Inside the `with` body, loads know the windows of a nest of unrolled and vectorized loops.

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
        yield
        return
    e.windows = found
    yield
    e.windows = None


def _fits(e: Emitter, dtype: DType, lanes: int) -> bool:
    whole = lanes * dtype.bytes % _LINE == 0 and dtype.kind in ("int", "uint", "float")
    return whole and _PERMUTES.get(dtype.bits) in e.module.features


def ends_around(e: Emitter, buffer: Buffer, index: Expr) -> tuple[int, int] | None:
    """How far before and behind a vector of a window the two ends lie; None for other vectors."""
    windows, lane = e.windows, e.lane
    if windows is None or lane is None:
        return None
    form = linear_address(index)
    at, around = form.const, []
    for atom, factor in form.terms.items():
        if atom not in windows.loops:
            around.append((atom, factor))
            continue
        value = lane.base if atom is lane.var else e.env.get(atom)
        if value is not None and value.const is not None:
            at += factor * int(value.const)
        elif atom is not lane.var:
            return None
    key: Key = (buffer.data, buffer.dtype, lane.lanes, frozenset(around))
    ends = windows.ends.get(key, {}).get(at)
    return None if ends is None else (at - ends[0], ends[1] - at)


def shuffled(e: Emitter, low: Val, high: Val, before: int, behind: int) -> Val:
    """The vector that begins `before` elements behind `low` and `behind` elements before `high`."""
    n = low.lanes
    order = [k + before if k + before < n else n + k - behind for k in range(n)]
    lanes = ", ".join(f"i32 {k}" for k in order)
    text = f"shufflevector {low.typed}, {high.typed}, <{n} x i32> <{lanes}>"
    return e.inline(text, low.dtype, n)
