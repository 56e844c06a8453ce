"""Whether two accesses touch one element in iterations of a given order, by linear inequalities.

`overlap_distances` knows one interval for each loop, which is too little for a triangle: the ends
of one loop depend on another loop. Here the iterations of both accesses are the points of a
polyhedron (Feautrier 1991). Its inequalities are the ends of all loops, the guards, and the equal
indices.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from functools import lru_cache
from math import inf

from metasched.analysis.instances import Place
from metasched.arith.affine import linear
from metasched.arith.linear import Linear
from metasched.arith.polyhedron import Inequality, is_empty
from metasched.ir.expr import Expr, FloorDiv, FloorMod, Max, Min, Var, as_int
from metasched.ir.visit import free_vars, reads_memory


@lru_cache(maxsize=1 << 12)
def never_ahead(
    a: Place, b: Place, moving: frozenset[Var], order: tuple[Var, ...], ties: bool = False
) -> bool:
    """Whether `a` is proved to touch no element in an iteration after one where `b` touches it.

    With `ties`, neither in the same iteration.

    Args:
        a, b: accesses of one buffer.
        moving: the variables that may have different values for the two accesses.
        order: loops around both accesses, outermost first, which order the iterations.
    """
    system = _System.of_meeting(a, b, moving)
    for var in order:
        one = Linear({var: 1}, 0)
        last = len(system.rows)
        system.at_most(one, 1, one, 0, -1)
        if not is_empty(system.rows):
            return False
        del system.rows[last:]
        system.at_most(one, 1, one, 0, 0)
        system.at_most(one, 0, one, 1, 0)
    return not ties or is_empty(system.rows)


@lru_cache(maxsize=1 << 12)
def order_kept(
    a: Place, b: Place, moving: frozenset[Var], old: tuple[Var, ...], new: tuple[Var, ...]
) -> bool:
    """Whether two accesses of one element are proved to keep their order if loops are reordered.

    Args:
        a, b, moving: see `never_ahead`.
        old, new: the loops around both accesses in both orders, outermost first.
    """
    ways = ((0, 1),) if a == b else ((0, 1), (1, 0))  # the other way is the mirror image
    for first in range(len(old)):
        for last in range(len(new)):
            equal = [*old[:first], *new[:last]]
            if old[first] in equal or new[last] in equal or old[first] is new[last]:
                continue
            for one, other in ways:
                before = (old[first], one), (old[first], other)
                after = (new[last], other), (new[last], one)
                less = [before, after]
                if not meet_nowhere(a, b, moving, less, equal):
                    return False
    return True


def meet_nowhere(
    a: Place,
    b: Place,
    moving: Collection[Var],
    less: Sequence[tuple[tuple[Var, int], tuple[Var, int]]],
    equal: Sequence[Var] = (),
) -> bool:
    """Whether `a` and `b` are proved to touch no common element under an order of their iterations.

    Args:
        a, b, moving: see `never_ahead`.
        less: pairs of variables, each of execution 0 (of `a`) or 1 (of `b`), of which the first
            is less than the second.
        equal: variables that have the same value in both executions.
    """
    system = _System.of_meeting(a, b, frozenset(moving).difference(equal))
    for (low, one), (high, other) in less:
        system.at_most(Linear({low: 1}, 0), one, Linear({high: 1}, 0), other, -1)
    return is_empty(system.rows)


class _System:
    """The inequalities of two executions; the unknowns are atoms, each with its execution."""

    def __init__(self, moving: frozenset[Var]) -> None:
        self.moving = moving
        self.rows: list[Inequality] = []
        self._known: set[Hashable] = set()

    @classmethod
    def of_meeting(cls, a: Place, b: Place, moving: Collection[Var]) -> _System:
        """The executions of two accesses in which both touch one element."""
        system = cls(frozenset(moving))
        for side, place in enumerate((a, b)):
            system.bound(place, side)
        for (mine, width), (theirs, other) in zip(a.box, b.box, strict=True):
            if width < inf and other < inf:
                system.at_most(mine, 0, theirs, 1, int(other) - 1)
                system.at_most(theirs, 1, mine, 0, int(width) - 1)
        return system

    def bound(self, place: Place, side: int) -> None:
        """Add the ends of the loops around an access, and its guards."""
        zero = Linear({}, 0)
        for loop in place.loops:
            if loop.step is None:
                var, low = Linear({loop.var: 1}, 0), linear(loop.min)
                self.at_most(low, side, var, side, 0)
                self.at_most(var, side, low.plus(linear(loop.extent)), side, -1)
        for form in place.guards:
            self.at_most(form, side, zero, side, 0)

    def at_most(self, low: Linear, one: int, high: Linear, other: int, most: int) -> None:
        """Add that `low` in execution `one` is at most `high` in execution `other`, plus `most`."""
        total: dict[Hashable, int] = {}
        for form, side, sign in ((low, one, 1), (high, other, -1)):
            for atom, c in form.terms.items():
                key = self._unknown(atom, side)
                total[key] = total.get(key, 0) + sign * c
        self.rows.append((total, most + high.const - low.const))

    def _unknown(self, atom: Expr, side: int) -> Hashable:
        """The value of an atom in one execution; what its operation says of it is added once."""
        fixed = self.moving.isdisjoint(free_vars(atom)) and not reads_memory(atom)
        key = (atom, None if fixed else side)
        if key not in self._known:
            self._known.add(key)
            self._define(atom, side)
        return key

    def _define(self, atom: Expr, side: int) -> None:
        own = Linear({atom: 1}, 0)
        if isinstance(atom, (Min, Max)):
            for part in map(linear, (atom.a, atom.b)):
                pair = (own, part) if isinstance(atom, Min) else (part, own)
                self.at_most(pair[0], side, pair[1], side, 0)
        elif isinstance(atom, (FloorDiv, FloorMod)):
            by, whole = as_int(atom.b), linear(atom.a)
            if by is not None and by > 0:
                rest = own
                if isinstance(atom, FloorDiv):
                    rest = whole.plus(own, -by)
                else:
                    quotient = Linear({FloorDiv(atom.a, atom.b): 1}, 0)
                    self.at_most(own.plus(quotient, by), side, whole, side, 0)
                    self.at_most(whole, side, own.plus(quotient, by), side, 0)
                zero = Linear({}, 0)
                self.at_most(zero, side, rest, side, 0)
                self.at_most(rest, side, zero, side, by - 1)
