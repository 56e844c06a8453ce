"""Vector accesses whose lanes lie at numbers that are known while code is written.

    for j in T.vectorized(8): D[j] = C[j // 2 * 4 + j % 2]

The lanes load C[0:2], C[4:6], C[8:10] and C[12:14], which are runs of neighbours. Such accesses
come from results that lie in tiles, which are stored row by row. Lanes close together, such as
C[j // 2], are picked from the memory between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.arith.analyzer import Analyzer
from metasched.arith.linear import Linear
from metasched.codegen.emit import Emitter
from metasched.ir.expr import Expr, IntImm, as_int
from metasched.ir.visit import free_vars, substitute


def lane_numbers(e: Emitter, address: Linear) -> list[int] | None:
    """The part of an address that the lanes decide, for each lane.

    None where the address is a plain sum with the vectorized loop's variable, or where a part of
    the address that moves with the lanes is not known.
    """
    lane = e.lane
    if lane is None or lane.base.const is None or lane.lanes < 2:
        return None
    moving = [atom for atom in address.terms if lane.var in free_vars(atom)]
    if all(atom is lane.var for atom in moving):
        return None
    if not all(within_lanes(e, atom) for atom in moving):
        return None
    known, first = Analyzer(), int(lane.base.const)
    numbers = []
    for n in range(first, first + lane.lanes):
        at = {lane.var: IntImm(lane.var.dtype, n)}
        values = [as_int(known.simplify(substitute(atom, at))) for atom in moving]
        factors = [address.terms[atom] for atom in moving]
        if any(value is None for value in values):
            return None
        numbers.append(sum((v or 0) * f for v, f in zip(values, factors, strict=True)))
    return numbers


def within_lanes(e: Emitter, atom: Expr) -> bool:
    """Whether an atom depends on the vectorized loop alone."""
    return e.lane is not None and free_vars(atom) == {e.lane.var}


def runs_of(offsets: Sequence[int]) -> tuple[int, ...]:
    """Where runs of neighbours begin, if all have one length that is a power of two, at least two,
    and their number is a power of two; otherwise none."""
    starts = [n for n, at in enumerate(offsets) if n == 0 or at != offsets[n - 1] + 1]
    length, left = divmod(len(offsets), len(starts))
    even = starts == list(range(0, len(offsets), length)) and not left
    powers = all(n & (n - 1) == 0 for n in (length, len(starts)))
    return tuple(offsets[n] for n in starts) if even and powers and length > 1 else ()


def spread(offsets: Sequence[int]) -> int:
    """The number of elements from the first to the last offset."""
    return max(offsets) - min(offsets) + 1
