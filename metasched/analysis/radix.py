"""Bindings in mixed radix, recognised without the iterator-map analysis.

Splitting and fusing leave bindings that are sums of digits: `i_0 * 64 + i_1 * 4 + i_2`, where a
digit is a loop variable or a part of a fused one (`f // 8`, `f % 8`, `f % 64 // 8`). Such sums are
recognised by their coefficients alone, which is many times cheaper than the analysis and gives the
same answers and the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from metasched.analysis.affine import linear
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_int
from metasched.ir.stmt import For

Ranges: TypeAlias = "Mapping[Var, Range | For]"


_Digit: TypeAlias = tuple[Var, int, int]
"""Part of a loop variable, (var, low, high): value // low % (high // low)."""


def tiles(values: Sequence[Expr], ranges: Ranges, *, every: bool = False) -> bool:
    """Whether the values fill a box, each on its own, from step 1; False also where it takes more
    than a look to tell.

    Args:
        every: demand as well that each point comes from one iteration of all the loops.
    """
    used: dict[Var, list[_Digit]] = {}
    for value in values:
        terms = linear(value).terms
        if _digits(sorted(terms.items(), key=lambda term: term[1]), ranges, used) is None:
            return False
    return not every or all(
        prod(high // low for _, low, high in used.get(var, ())) == as_int(r.extent)
        for var, r in ranges.items()
    )


def _digits(
    terms: Iterable[tuple[Expr, int]], ranges: Ranges, used: dict[Var, list[_Digit]]
) -> list[_Digit] | None:
    """The digits of a sum, `terms` by rising step, that takes its values without gap or overlap;
    None where it is anything else, or a digit is not independent of those `used` before."""
    step, found = 1, []
    for atom, coef in terms:
        digit = _digit(atom, ranges)
        if digit is None:
            return None
        var, low, high = digit
        others = used.setdefault(var, [])
        if others and any(b == t or (low % t and b % high) for _, b, t in others):
            return None
        others.append(digit)
        found.append(digit)
        if low != high:
            if coef != step:
                return None
            step *= high // low
    return found


def in_mixed_radix(bindings: Sequence[Expr], ranges: Ranges) -> list[Expr] | None:
    """The bindings as sums of digits, largest step first; None when they are anything else.

    Every digit is used once, the steps of a sum fill its range without gap or overlap, and loop
    variables of one iteration stay visible.
    """
    used: dict[Var, list[_Digit]] = {}
    out: list[Expr] = []
    for binding in bindings:
        total = binding if type(binding) is IntImm else _sum(binding, ranges, used)
        if total is None:
            return None
        out.append(total)
    return out


def _sum(binding: Expr, ranges: Ranges, used: dict[Var, list[_Digit]]) -> Expr | None:
    form = linear(binding)
    if form.const or not form.terms:
        return None
    terms = list(form.terms.items())
    terms.reverse()  # as written
    terms.sort(key=lambda term: -term[1])
    digits = _digits(reversed(terms), ranges, used)
    if digits is None or len({var for var, _, _ in digits}) < len(digits):
        return None
    if any(atom.dtype is not binding.dtype for atom, _ in terms):
        return None
    if len(terms) > 1 and all(low == high for _, low, high in digits):
        return None  # iterations of one value only: what stays visible is the analysis' choice
    total: Expr | None = None
    for atom, coef in terms:
        part = atom if coef == 1 else atom * IntImm(atom.dtype, coef)
        total = part if total is None else total + part
    return total


def _digit(atom: Expr, ranges: Ranges) -> _Digit | None:
    if type(atom) is Var:
        found = ranges.get(atom)
        if found is None or type(found.extent) is not IntImm or as_int(found.min) != 0:
            return None
        extent = found.extent.value
        return (atom, 1, extent) if extent > 0 else None
    low, high = 1, None
    if type(atom) is FloorDiv:
        if type(atom.b) is not IntImm:
            return None
        low, atom = atom.b.value, atom.a
    if type(atom) is FloorMod:
        if type(atom.b) is not IntImm:
            return None
        high, atom = atom.b.value, atom.a
    whole = _digit(atom, ranges) if type(atom) is Var else None
    if whole is None:
        return None
    var, _, extent = whole
    top = extent if high is None else high
    exact = low > 0 and top > 0 and top % low == 0 and extent % top == 0
    return (var, low, top) if exact and 1 < top // low < extent else None
