"""Bindings in mixed radix, recognised without the iterator-map analysis.

Splitting and fusing leave bindings that are sums of digits: `i_0 * 64 + i_1 * 4 + i_2`, where a
digit is a loop variable or a part of a fused one (`f // 8`, `f % 8`, `f % 64 // 8`). Such sums are
recognised by their coefficients alone, which is many times cheaper than the analysis and gives the
same answers and the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from operator import add
from typing import TypeAlias

from metasched.arith.affine import linear
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_int
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars

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
        digits = _read(value, *_extents(value, ranges))[0]
        if digits is None or not _apart(digits, used):
            return False
    return not every or all(
        prod(high // low for _, low, high in used.get(var, ())) == as_int(r.extent)
        for var, r in ranges.items()
    )


def in_mixed_radix(bindings: Sequence[Expr], ranges: Ranges) -> list[Expr] | None:
    """The bindings as sums of digits, largest step first; None when they are anything else.

    Every digit is used once, the steps of a sum fill its range without gap or overlap, and loop
    variables of one iteration stay visible.
    """
    used: dict[Var, list[_Digit]] = {}
    out: list[Expr] = []
    for binding in bindings:
        if type(binding) is IntImm:
            out.append(binding)
            continue
        digits, total = _read(binding, *_extents(binding, ranges))
        if total is None or digits is None or not _apart(digits, used):
            return None
        out.append(total)
    return out


def _apart(digits: Iterable[_Digit], used: dict[Var, list[_Digit]]) -> bool:
    """Whether digits are independent of those `used` before, which they join."""
    for digit in digits:
        var, low, high = digit
        others = used.setdefault(var, [])
        if others and any(b == t or (low % t and b % high) for _, b, t in others):
            return False
        others.append(digit)
    return True


def _extents(expr: Expr, ranges: Ranges) -> list[int | None]:
    """Of the variables of an expression the constant extents of those that count from zero."""
    out: list[int | None] = []
    for var in free_vars(expr):
        r = ranges.get(var)
        plain = r is not None and type(r.min) is type(r.extent) is IntImm and r.min.value == 0
        out.append(r.extent.value if plain else None)  # type: ignore[union-attr]
    return out


@lru_cache(maxsize=1 << 14)
def _read(value: Expr, *extents: int | None) -> tuple[list[_Digit] | None, Expr | None]:
    """The digits of a sum, by rising step, that takes its values without gap or overlap (None
    where it is anything else), and the sum anew, the largest step first, where every digit counts.

    Remembered by value: the loops of siblings have many extents in common.
    """
    form, sizes = linear(value), dict(zip(free_vars(value), extents, strict=True))
    terms = list(form.terms.items())
    terms.sort(key=lambda term: -term[1])
    step, digits = 1, list[_Digit]()
    for atom, coef in reversed(terms):
        digit = _digit(atom, sizes)
        if digit is None or (digit[1] != digit[2] and coef != step):
            return None, None
        digits.append(digit)
        step *= digit[2] // digit[1]
    if not _apart(digits, {}):
        return None, None
    if form.const or not terms or len({var for var, _, _ in digits}) < len(digits):
        return digits, None
    if any(atom.dtype is not value.dtype for atom, _ in terms):
        return digits, None
    if len(terms) > 1 and all(low == high for _, low, high in digits):
        return digits, None  # of one value only: what stays visible is the analysis' choice
    parts = [atom if coef == 1 else atom * IntImm(atom.dtype, coef) for atom, coef in terms]
    return digits, reduce(add, parts)


def _digit(atom: Expr, sizes: Mapping[Var, int | None]) -> _Digit | None:
    if type(atom) is Var:
        extent = sizes[atom]
        return (atom, 1, extent) if extent is not None and extent > 0 else None
    low, high = 1, None
    if type(atom) is FloorDiv:
        if type(atom.b) is not IntImm:
            return None
        low, atom = atom.b.value, atom.a
    if type(atom) is FloorMod:
        if type(atom.b) is not IntImm:
            return None
        high, atom = atom.b.value, atom.a
    whole = _digit(atom, sizes) if type(atom) is Var else None
    if whole is None:
        return None
    var, _, extent = whole
    top = extent if high is None else high
    exact = low > 0 and top > 0 and top % low == 0 and extent % top == 0
    return (var, low, top) if exact and 1 < top // low < extent else None
