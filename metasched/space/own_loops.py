"""Blocks whose instances run loops of their own, which their data end: their lanes."""

from __future__ import annotations

from metasched.ir.expr import Div, FloorDiv, FloorMod, Mod, as_int
from metasched.ir.stmt import Block, For, While, fact
from metasched.ir.visit import jumps, walk, walk_stmts
from metasched.lower.passes.lane_loops import MOST_LANES


@fact
def has_own_loops(block: Block) -> bool:
    """Whether each instance of a block runs a loop that its data end (see `lower.lane_loops`)."""
    return any(
        isinstance(s, While) or (isinstance(s, For) and jumps(s.body))
        for s in walk_stmts(block.body)
    )


@fact
def suits_lanes(block: Block) -> bool:
    """Whether lanes that run loops of their own are likely faster than one instance at a time.

    Such a vector runs as long as its longest lane. Processors have no vector division of integers,
    and half as many lanes of 64 bits. Of 16 lanes on a Zen 4, a binary search gained a factor of
    10 and an escape time 9; gcd, a test of primes and 64-bit Collatz steps lost up to 7.
    """
    if any(b.dtype.is_int and b.dtype.bits > 32 for b in block.alloc_buffers):
        return False
    divided = (
        x.b
        for x in walk(block.body)
        if isinstance(x, (Div, FloorDiv, Mod, FloorMod)) and x.dtype.is_int
    )
    return all(as_int(by) is not None for by in divided)


def lanes_of(block: Block, vector_bits: int) -> int:
    """The lanes of a vectorized loop over a block: its results fill a register.

    Two registers of the widest type are filled if the lanes run loops of their own: each step of
    such a loop waits for the step before.
    """
    bits = max((r.buffer.dtype.bits for r in block.writes), default=32)
    if not has_own_loops(block):
        return vector_bits // max(8, bits)
    bits = max(bits, *(b.dtype.bits for b in block.alloc_buffers), 8)
    return min(2 * vector_bits // bits, MOST_LANES)
