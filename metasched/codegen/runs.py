"""Vector accesses whose lanes lie at numbers that are known while code is written.

    for j in T.vectorized(8): D[j] = C[j // 2 * 4 + j % 2]

The lanes load C[0:2], C[4:6], C[8:10] and C[12:14], which are runs of neighbours. Such accesses
come from results that lie in tiles, which are stored row by row. Lanes close together, such as
C[j // 2], are picked from the memory between them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.linear import Linear, emit
from metasched.codegen.emit import Emitter, Lane
from metasched.ir.dtype import INT64
from metasched.ir.expr import GE, GT, LE, LT, Cast, Compare, Expr, IntImm, Max, Min, as_int
from metasched.ir.op import Ramp
from metasched.ir.visit import free_vars, substitute

_ORDERED = {LT: operator.lt, LE: operator.le, GT: operator.gt, GE: operator.ge}


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


def known_in_all_lanes(e: Emitter, node: Compare) -> bool | None:
    """The value of a comparison that is the same for all lanes; None where it may differ, or where
    it depends on more than the vectorized loop and numbers."""
    lane, op = e.lane, _ORDERED.get(type(node))
    if lane is None or op is None or lane.base.const is None or lane.var not in free_vars(node):
        return None
    left, right = _ends(e, lane, node.a), _ends(e, lane, node.b)
    if left is None or right is None:
        return None
    # the difference of the sums is largest and smallest in the ends
    one, other = (op(a, b) for a, b in zip(left, right, strict=True))
    return one if one == other else None


def _ends(e: Emitter, lane: Lane, side: Expr) -> tuple[int, int] | None:
    """The values of a sum of the vectorized loop's variable and known numbers in the first and the
    last lane, which a cast to fewer bits leaves as they are; None for other expressions."""
    index = side.value if isinstance(side, Cast) else side
    if index.dtype is not INT64 or side.dtype.kind != "int":
        return None
    form = linear_address(index)
    step, first = form.terms.get(lane.var, 0), form.const
    for atom, factor in form.terms.items():
        known = lane.base if atom is lane.var else e.env.get(atom)
        if known is None or known.const is None:
            return None
        first += factor * int(known.const)
    last = first + step * (lane.lanes - 1)
    least, most = side.dtype.range
    return (first, last) if all(least <= n <= most for n in (first, last)) else None


def within_lanes(e: Emitter, atom: Expr) -> bool:
    """Whether an atom depends on the vectorized loop alone."""
    return e.lane is not None and free_vars(atom) == {e.lane.var}


def limit_of(e: Emitter, lane: Lane, index: Expr) -> tuple[Expr, type[Min | Max], Expr] | None:
    """For an index that moves by 1 from lane to lane up to a limit, or from a limit on, the index
    without the limit, whether the limit is a minimum or maximum, and the value of the loop's
    variable that reaches it. None for other indices.
    """
    if isinstance(index, Ramp):
        return None
    address = linear_address(index)
    moving = [atom for atom in address.terms if lane.var in free_vars(atom)]
    node = moving[0] if len(moving) == 1 else None
    if not isinstance(node, (Min, Max)) or node.dtype is not INT64:
        return None
    sides = [side for side in (node.a, node.b) if lane.var in free_vars(side)]
    if len(sides) != 1 or address.terms[node] != 1 or lane_numbers(e, address) is not None:
        return None
    bound = linear_address(node.b if sides[0] is node.a else node.a)
    form = linear_address(sides[0])
    still = form.plus(linear_address(lane.var), -1)
    if any(lane.var in free_vars(atom) for atom in still.terms):
        return None
    if any(e.value(atom).lanes != 1 for part in (bound, still) for atom in part.terms):
        return None
    rest = address.plus(linear_address(node), -1)
    if any(e.value(atom).lanes != 1 for atom in rest.terms):
        return None
    free, limit = emit(rest.plus(form), INT64), emit(bound.plus(still, -1), INT64)
    return None if free is None or limit is None else (free, type(node), limit)


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
