"""Bindings in mixed radix, written in normal form without the iterator-map analysis.

Splitting and fusing leave bindings that are sums of digits: `i_0 * 64 + i_1 * 4 + i_2`, where a
digit is a loop variable or a part of a fused one (`f // 8`, `f % 8`, `f % 64 // 8`). Such sums are
recognised by their coefficients alone, which is many times cheaper than the analysis and gives the
same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.analysis.affine import linear
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_int


class _Digit:
    """Part of a loop variable: value // low % (high // low), a number below `size`."""

    __slots__ = ("high", "low", "size", "var")

    def __init__(self, var: Var, low: int, high: int) -> None:
        self.var, self.low, self.high = var, low, high
        self.size = high // low


def in_mixed_radix(bindings: Sequence[Expr], ranges: Mapping[Var, Range]) -> list[Expr] | None:
    """The bindings as sums of digits, largest step first; None when they are anything else.

    Every digit is used once, the steps of a sum fill its range without gap or overlap, and loop
    variables of one iteration stay visible.
    """
    used: dict[Var, list[_Digit]] = {}
    out: list[Expr] = []
    for binding in bindings:
        if type(binding) is Var and binding not in used:
            digit = _digit(binding, ranges)
            if digit is None:
                return None
            used[binding] = [digit]
            out.append(binding)
            continue
        total = _sum(binding, ranges, used)
        if total is None:
            return None
        out.append(total)
    return out


def _sum(binding: Expr, ranges: Mapping[Var, Range], used: dict[Var, list[_Digit]]) -> Expr | None:
    form = linear(binding)
    if form.const or not form.terms:
        return None
    terms = list(form.terms.items())
    terms.reverse()  # as written
    terms.sort(key=lambda term: -term[1])
    own: set[Var] = set()
    step = 1
    for atom, coef in reversed(terms):
        digit = _digit(atom, ranges)
        if digit is None or digit.var in own or atom.dtype is not binding.dtype:
            return None
        others = used.setdefault(digit.var, [])
        if any((d.low < digit.high and digit.low < d.high) or d.size == 1 for d in others):
            return None
        others.append(digit)
        own.add(digit.var)
        if digit.size != 1:
            if coef != step:
                return None
            step *= digit.size
    if step == 1 and len(terms) > 1:
        return None  # iterations of one value only: what stays visible is the analysis' choice
    total: Expr | None = None
    for atom, coef in terms:
        part = atom if coef == 1 else atom * IntImm(atom.dtype, coef)
        total = part if total is None else total + part
    return total


def _digit(atom: Expr, ranges: Mapping[Var, Range]) -> _Digit | None:
    if type(atom) is Var:
        found = ranges.get(atom)
        if found is None or as_int(found.min) != 0:
            return None
        extent = as_int(found.extent)
        return None if extent is None or extent < 1 else _Digit(atom, 1, extent)
    low, high = 1, None
    if type(atom) is FloorDiv:
        if type(atom.b) is not IntImm:
            return None
        low, atom = atom.b.value, atom.a
    if type(atom) is FloorMod:
        if type(atom.b) is not IntImm:
            return None
        high, atom = atom.b.value, atom.a
    if type(atom) is not Var:
        return None
    whole = _digit(atom, ranges)
    if whole is None:
        return None
    top = whole.high if high is None else high
    exact = low > 0 and top > 0 and top % low == 0 and whole.high % top == 0
    shrinks = 1 < top // low < whole.high if exact else False
    return _Digit(whole.var, low, top) if exact and shrinks else None
