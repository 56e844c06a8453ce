"""Numbers in mixed radix: the fast path of `itermap`.

Splitting and fusing leave bindings that are sums of digits, such as `i_0 * 64 + i_1 * 4 + i_2`. A
digit is a loop variable or a part of a fused one (`f // 8`, `f % 8`, `f % 64 // 8`). This file
recognises such sums by their coefficients alone.

The reader of digits here is separate from `iterform.Reader`, which handles symbolic sizes and
predicates with an Analyzer and is too slow for every step of a replay. Both readers give the same
answers and the same expressions; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from operator import add
from typing import TypeAlias

from metasched.arith.affine import linear
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_expr, as_int
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars

Runs: TypeAlias = "Mapping[Var, Range | For]"
"""The values of each variable, as a range or as the variable's loop."""

_Digit: TypeAlias = tuple[Var, int, int]
"""Part of a loop variable, (var, low, high): value // low % (high // low)."""


def tiles(values: Sequence[Expr], ranges: Runs, *, every: bool = False) -> bool:
    """Whether the values fill a box, each independent of the others, in steps of one.

    False also if a value is no sum of digits; `itermap.why_no_box` then decides.

    Args:
        values: integer expressions of the variables.
        ranges: the values of each variable.
        every: whether each point of the box must come from one iteration of all loops.
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


def in_mixed_radix(bindings: Sequence[Expr], ranges: Runs) -> list[Expr] | None:
    """The bindings as sums of digits, largest coefficient first; None for other bindings.

    No digit may be used twice, and the digits of a sum must fill its range without gap or overlap.
    Loop variables of extent one stay in the sums.
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
    """Whether digits are independent of the digits in `used`; adds the digits to `used`."""
    for digit in digits:
        var, low, high = digit
        others = used.setdefault(var, [])
        if others and any(b == t or (low % t and b % high) for _, b, t in others):
            return False
        others.append(digit)
    return True


def _extents(expr: Expr, ranges: Runs) -> list[int | None]:
    """For each variable of an expression its extent, or None unless it is constant and the variable
    counts from zero."""
    out: list[int | None] = []
    for var in free_vars(expr):
        r = ranges.get(var)
        plain = r is not None and type(r.min) is type(r.extent) is IntImm and r.min.value == 0
        out.append(r.extent.value if plain else None)  # type: ignore[union-attr]
    return out


@lru_cache(maxsize=1 << 14)
def _read(value: Expr, *extents: int | None) -> tuple[list[_Digit] | None, Expr | None]:
    """The digits of a sum that fills its range, and the sum with its largest coefficient first.

    The digits come smallest coefficient first; None if the value is no such sum. The new sum is
    None if a part of it would not be read again as the same digit. Results are cached by value,
    because similar candidates share many bindings and extents.
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
        return digits, None  # of extent one only: `itermap` decides which variables stay visible
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


@lru_cache(maxsize=1 << 12)
def mixed_radix(variables: tuple[Var, ...], extents: tuple[Expr, ...]) -> Expr:
    """The position in a nest of these extents: i_0 * (e_1 * e_2) + i_1 * e_2 + i_2."""
    flat: Expr | None = None
    stride = as_expr(1, variables[0].dtype)
    for var, extent in zip(reversed(variables), reversed(extents), strict=True):
        term = var * stride
        flat = term if flat is None else term + flat
        stride = stride * extent
    assert flat is not None
    return flat
