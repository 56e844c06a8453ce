"""Can two accesses touch one element? A system of differences, solved by interval propagation.

Two executions, a and b, touch the same element when the boxes they access overlap in every
dimension: `-(wa - 1) <= min_a - min_b <= wb - 1`, where wa and wb are the extents of the boxes.
Both minima are linear over atoms. An atom that both sides use with one coefficient contributes its
difference d(x) = x_a - x_b. The difference of a fixed variable, which stands outside both
executions, is 0. Every `q = e // c` and `r = e % c` adds the equation `d(e) = c d(q) + d(r)` with
|d(r)| < c. Remainders `e % c` whose e differ by a multiple of c are one unknown.

The solver tightens the interval of every unknown against every equation, with a divisibility test.
This suffices for splits, fuses, tiles, strides and shifted stencils. If it proves nothing,
quotients and remainders are eliminated from the equations, and tightening starts again. Accesses
that are still not proved disjoint count as touching.

A bound that holds only because of a predicate (the binding of a guarded iterator) is passed as an
extra constraint: a linear form of one side or both, and its interval.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf
from typing import TypeAlias

from metasched.arith.affine import Ranges, interval, linear
from metasched.arith.bounds import Interval
from metasched.arith.linear import Linear
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_int
from metasched.ir.op import Call
from metasched.ir.visit import free_vars, loads_of, reads_memory

Side: TypeAlias = tuple[Linear, float]
"""One dimension of a box: its first element and how many elements it has (infinity: unknown)."""

Kept: TypeAlias = tuple[Linear, Interval]
"""A linear form, and the interval that contains it whenever an access happens."""

_ROUNDS = 16
_KEPT = 3


class Outside:
    """All variables except `moving`: the variables with one value in both executions.

    Attributes:
        written: the pointers to memory that may change between the executions; None for all.
    """

    __slots__ = ("moving", "written")

    def __init__(self, moving: Iterable[Var], written: frozenset[Var] | None = None) -> None:
        self.moving, self.written = frozenset(moving), written

    def __contains__(self, var: object) -> bool:
        return var not in self.moving

    def keeps(self, atom: Expr) -> bool:
        """Whether both executions read the same memory for an expression."""
        written = self.written
        return written is not None and all(x.buffer.data not in written for x in loads_of(atom))


@dataclass(slots=True)
class _Equation:
    terms: Sequence[tuple[Hashable, int]]
    low: float
    high: float


class _System:
    """Unknowns with intervals, and the equations between them."""

    def __init__(self, fixed: Container[Var], ranges: Ranges) -> None:
        self.fixed, self.ranges = fixed, ranges
        self.bounds: dict[Hashable, Interval] = {}
        self.equations: list[_Equation] = []
        self.implied: list[tuple[Sequence[Hashable], Sequence[tuple[Hashable, int]]]] = []
        self._divided: set[tuple[Expr, Expr, int | None]] = set()
        self._fixed: dict[Expr, bool] = {}

    def is_fixed(self, atom: Expr) -> bool:
        """Whether both executions see one value of `atom`."""
        found = self._fixed.get(atom)
        if found is None:
            if isinstance(atom, Var):
                found = atom in self.fixed
            else:
                found = all(v in self.fixed for v in free_vars(atom)) and (
                    not reads_memory(atom)
                    or (isinstance(self.fixed, Outside) and self.fixed.keeps(atom))
                )
            self._fixed[atom] = found
        return found

    def single(self, atom: Expr, side: int) -> Hashable:
        """The unknown for the value of `atom` in one execution."""
        atom = _low_bits(atom)
        key = (_residue(atom) if isinstance(atom, FloorMod) else atom, side)
        if key not in self.bounds:
            self.bounds[key] = interval(atom, self.ranges)
        if isinstance(atom, (FloorDiv, FloorMod)):
            self._define_single(atom, side)
        return key

    def _define_single(self, atom: FloorDiv | FloorMod, side: int) -> None:
        """Add e = (e // c) c + e % c, in one execution."""
        by, whole = as_int(atom.b), linear(atom.a)
        if by is not None and by > 0 and (atom.a, atom.b, side) not in self._divided:
            self._divided.add((atom.a, atom.b, side))
            inner = [
                (self.single(x, 0 if self.is_fixed(x) else side), c) for x, c in whole.terms.items()
            ]
            q, r = (self.single(part(atom.a, atom.b), side) for part in (FloorDiv, FloorMod))
            self._equate([*inner, (q, -by), (r, -1)], -whole.const, -whole.const)

    def difference(self, atom: Expr) -> Hashable:
        """The unknown for the value of `atom` in a minus its value in b."""
        atom = _low_bits(atom)
        key: Hashable = _residue(atom) if isinstance(atom, FloorMod) else atom
        known = key in self.bounds
        if not known:
            lo, hi = interval(atom, self.ranges)
            width = hi - lo if lo > -inf and hi < inf else inf
            self.bounds[key] = (-width, width)
        if isinstance(atom, FloorMod) or (isinstance(atom, FloorDiv) and not known):
            self._define_division(atom)
        elif known:
            return key
        elif not isinstance(atom, Var) and not reads_memory(atom):
            parts = [v for v in free_vars(atom) if v not in self.fixed]
            for part in parts:
                self.difference(part)
            self.implied.append((parts, [(atom, 1)]))
        return key

    def _define_division(self, atom: FloorDiv | FloorMod) -> None:
        """Add d(e) = c d(e // c) + d(e % c), for the differences of both executions."""
        quotient, rest = FloorDiv(atom.a, atom.b), FloorMod(atom.a, atom.b)
        if (atom.a, atom.b, None) in self._divided:
            return
        self._divided.add((atom.a, atom.b, None))
        q, r = self.difference(quotient), self.difference(rest)
        changing = self._changing(linear(atom.a).terms)
        inner = [(self.difference(part), coef) for part, coef in changing]
        if isinstance(atom.b, IntImm) and atom.b.value > 0:
            self._equate([*inner, (q, -atom.b.value), (r, -1)], 0, 0)
        elif all(v in self.fixed for v in free_vars(atom.b)) and not reads_memory(atom.b):
            self.implied.append(([q, r], inner))
            parts = [v for v in free_vars(atom.a) if v not in self.fixed]
            if not reads_memory(atom.a):
                self.implied.append((parts, [(q, 1)]))
                self.implied.append((parts, [(r, 1)]))

    @property
    def divides(self) -> bool:
        """Whether there are quotients and remainders."""
        return bool(self._divided)

    def _changing(self, terms: dict[Expr, int]) -> list[tuple[Expr, int]]:
        return [(a, c) for a, c in terms.items() if not self.is_fixed(a)]

    def _equate(self, terms: Iterable[tuple[Hashable, int]], low: float, high: float) -> None:
        """Add the equation low <= the sum of unknowns times coefficients <= high."""
        total: dict[Hashable, int] = {}
        for key, coef in terms:
            total[key] = total.get(key, 0) + coef
        self.equations.append(_Equation([(k, c) for k, c in total.items() if c], low, high))

    def require(self, a: Side, b: Side) -> None:
        """Require that the two boxes overlap in one dimension."""
        terms: list[tuple[Hashable, int]] = []
        form_a, form_b = a[0].terms, b[0].terms
        for atom, coef in form_a.items():
            other = form_b.get(atom, 0)
            if self.is_fixed(atom):
                if coef != other:
                    terms.append((self.single(atom, 0), coef - other))
            elif other:
                terms.append((self.difference(atom), coef))
                if coef != other:
                    terms.append((self.single(atom, 1), coef - other))
            else:
                terms.append((self.single(atom, 0), coef))
        for atom, coef in form_b.items():
            if atom not in form_a:
                terms.append((self.single(atom, 0 if self.is_fixed(atom) else 1), -coef))
        shift = b[0].const - a[0].const
        self._equate(terms, shift - (a[1] - 1), shift + b[1] - 1)

    def keep(self, a: Kept | None, b: Kept | None) -> None:
        """Require that a form stays in its interval in one execution, or two forms in both.

        Two forms differ at most in their constants. The value of a single form, or the difference
        of two, becomes an unknown, also in equations that hold a multiple of the form: its interval
        is tighter than the sum of the intervals of its parts.
        """
        if a is not None and b is not None:
            terms = [(self.difference(x), c) for x, c in self._changing(a[0].terms)]
            shift = b[0].const - a[0].const
            span = a[1][0] - b[1][1] + shift, a[1][1] - b[1][0] + shift
            self._keep_quotients(*a, b[1], shift)
        else:
            known = a or b
            assert known is not None
            form, (low, high) = known
            moving = {x for x, _ in self._changing(form.terms)} if a is None else ()
            terms = [(self.single(x, int(x in moving)), c) for x, c in form.terms.items()]
            span = low - form.const, high - form.const
        if not terms:
            return
        whole = ("kept", *terms)
        self.bounds[whole] = span
        for equation in list(self.equations):
            found = dict(equation.terms)
            times = found.get(terms[0][0], 0) // terms[0][1]
            if times and all(found.get(key) == times * coef for key, coef in terms):
                inside = {key for key, _ in terms}
                both = [*(t for t in equation.terms if t[0] not in inside), (whole, times)]
                self._equate(both, equation.low, equation.high)
        self._equate([*terms, (whole, -1)], 0, 0)

    def _keep_quotients(self, form: Linear, mine: Interval, theirs: Interval, shift: int) -> None:
        """Bound the quotients of a form that stays in an interval."""
        low, high = min(mine[0], theirs[0] - shift), max(mine[1], theirs[1] - shift)
        for whole, by, side in self._divided:
            divided, c = linear(whole), as_int(by)
            if (
                side is None
                and c is not None
                and c > 0
                and divided.terms == form.terms
                and high - low < inf
            ):
                rest = divided.const - form.const
                width = (high + rest) // c - (low + rest) // c
                key = FloorDiv(whole, by)
                least, most = self.bounds[key]
                self.bounds[key] = max(least, -width), min(most, width)

    def _join_sides(self) -> None:
        """Equate the difference of each variable with its value in a minus its value in b."""
        for key in list(self.bounds):
            if isinstance(key, tuple) and isinstance(key[0], Var) and key[1] == 0:
                var, other = key[0], (key[0], 1)
                if other in self.bounds:
                    self._equate([(key, 1), (other, -1), (self.difference(var), -1)], 0, 0)

    def eliminate(self) -> None:
        """Eliminate unknowns in the rounds of `_rank`, and add the equations that this gives."""
        self._join_sides()
        rows = [(dict(e.terms), e.low, e.high) for e in self.equations]
        for rank in range(3):
            changed: set[int] = set()
            for n, (given, value, top) in enumerate(rows):
                ranks = {key: _rank(key) for key in given} if value == top else {}
                units = [key for key, r in ranks.items() if r == rank and given[key] in (1, -1)]
                usable = units and rank == min(ranks.values()) and max(ranks.values()) < _KEPT
                part = units[0] if usable else None
                for m, (terms, low, high) in enumerate(rows):
                    times = 0 if part is None or m == n else terms.get(part, 0) * given[part]
                    if times:
                        left = dict(terms)
                        for key, coef in given.items():
                            left[key] = left.get(key, 0) - times * coef
                        left = {key: coef for key, coef in left.items() if coef}
                        rows[m] = left, low - times * value, high - times * value
                        changed.add(m)
            for m in sorted(changed):
                terms, low, high = rows[m]
                self._equate(terms.items(), low, high)

    def tighten(self) -> bool:
        """Shrink the intervals until nothing changes; False when there is no solution."""
        for _ in range(_ROUNDS):
            changed = False
            for equation in self.equations:
                verdict = self._tighten_one(equation)
                if verdict is None:
                    return False
                changed |= verdict
            changed |= self._follow_implications()
            if not changed:
                break
        return True

    def _tighten_one(self, equation: _Equation) -> bool | None:
        """True if an interval shrank, None if the equation cannot hold."""
        bounds, terms = self.bounds, equation.terms
        spans: list[Interval] = []
        low_sum: float = 0
        high_sum: float = 0
        const, step = 0, 0
        for key, coef in terms:
            lo, hi = bounds[key]
            if lo > hi:
                return None
            span = (coef * lo, coef * hi) if coef > 0 else (coef * hi, coef * lo)
            spans.append(span)
            if lo == hi:
                const += coef * int(lo)
            else:
                step = gcd(step, coef)
            low_sum += span[0]
            high_sum += span[1]
        need_low, need_high = equation.low, equation.high
        if low_sum > need_high or high_sum < need_low:
            return None
        if step > 1 and need_low + (const - need_low) % step > need_high:
            return None  # no multiple of the common divisor lies between the two ends
        changed = False
        for (key, coef), (span_low, span_high) in zip(terms, spans, strict=True):
            rest_low = low_sum - span_low if span_low > -inf else _rest(spans, 0)
            rest_high = high_sum - span_high if span_high < inf else _rest(spans, 1)
            if rest_low == -inf and rest_high == inf:
                continue
            least, most = need_low - rest_high, need_high - rest_low
            lo, hi = (least, most) if coef > 0 else (most, least)
            old = bounds[key]
            new_lo = max(old[0], _ceil(lo, coef))
            new_hi = min(old[1], _floor(hi, coef))
            if new_lo > new_hi:
                return None
            if (new_lo, new_hi) != old:
                bounds[key] = (new_lo, new_hi)
                changed = True
        return changed

    def _follow_implications(self) -> bool:
        """Where all conditions are zero, set the sum that they imply to zero."""
        left, fired = [], False
        for conditions, terms in self.implied:
            if all(self.bounds.get(c) == (0, 0) for c in conditions):
                self._equate(list(terms), 0, 0)
                fired = True
            else:
                left.append((conditions, terms))
        self.implied = left
        return fired


@lru_cache(maxsize=1 << 12)
def _low_bits(atom: Expr) -> Expr:
    """x & 7 as x % 8, which it is for negative numbers, too; other expressions as they are."""
    if isinstance(atom, Call) and atom.op.name == "bitwise_and":
        value, ones = atom.args[0], as_int(atom.args[1])
        if ones is not None and 0 < ones < value.dtype.range[1] and not ones & (ones + 1):
            return FloorMod(value, IntImm(value.dtype, ones + 1))  # type: ignore[no-any-return]
    return atom


@lru_cache(maxsize=1 << 12)
def _residue(atom: FloorMod) -> Hashable:
    """A key that is equal for equal remainders: by one constant c, of sums that differ by c * n."""
    by = as_int(atom.b)
    if by is None or by <= 0:
        return atom
    form = linear(atom.a)
    for part, coef in form.terms.items():
        inner = as_int(part.b) if isinstance(part, FloorMod) else None
        if isinstance(part, FloorMod) and inner and inner > 0 and coef * inner % by == 0:
            # e % 12 is e, modulo 4
            form = form.plus(Linear({part: 1}, 0), -coef).plus(linear(part.a), coef)
    left = frozenset((part, coef % by) for part, coef in form.terms.items() if coef % by)
    return ("residue", left, form.const % by, by)


def _rank(key: Hashable) -> int:
    """The round in which an unknown is eliminated, counted from 0.

    Quotients and remainders go first, then values of variables, then differences of variables. A
    known value of a sum is never eliminated.
    """
    if isinstance(key, Var):
        return 2
    atom = key[0] if isinstance(key, tuple) else None
    return _KEPT if atom == "kept" else int(isinstance(atom, Var))


def _rest(spans: list[Interval], end: int) -> float:
    """The sum of one end (0: low, 1: high) of all spans, without one infinite end."""
    ends = [s[end] for s in spans]
    ends.remove(-inf if end == 0 else inf)
    return sum(ends)


def _ceil(value: float, by: int) -> float:
    return value / by if abs(value) == inf else -(-value // by)


def _floor(value: float, by: int) -> float:
    return value / by if abs(value) == inf else value // by


def overlap_distances(
    a: Sequence[Side],
    b: Sequence[Side],
    fixed: Container[Var],
    ranges: Ranges,
    kept: Iterable[tuple[Kept | None, Kept | None]] = (),
    within: Mapping[Var, Interval] | None = None,
) -> dict[Var, Interval] | None:
    """Whether two executions that access the boxes `a` and `b` can touch one element.

    Args:
        a, b: for each dimension the first element and the number of elements.
        fixed: variables with one value in both executions.
        ranges: the interval of each other variable; a missing variable is unbounded.
        kept: facts about a and about b. Two facts whose forms have the same terms come as a pair;
            a single fact comes with None.
        within: for some variables, the interval to which their differences are limited.

    Returns:
        None if the executions are proved not to touch one element. Otherwise for each variable the
        interval of its value in the first execution minus its value in the second; a missing
        variable is unrestricted.
    """
    system = _System(fixed, ranges)
    for side_a, side_b in zip(a, b, strict=True):
        if side_a[1] < inf and side_b[1] < inf:
            system.require(side_a, side_b)
    for fact_a, fact_b in kept:
        system.keep(fact_a, fact_b)
    for var, (low, high) in (within or {}).items():
        least, most = system.bounds[system.difference(var)]
        system.bounds[var] = max(least, low), min(most, high)
        if max(least, low) > min(most, high):
            return None
    if not system.tighten():
        return None
    if system.divides and any(span != (0, 0) for span in system.bounds.values()):
        system.eliminate()
        if not system.tighten():
            return None
    return {key: span for key, span in system.bounds.items() if isinstance(key, Var)}
