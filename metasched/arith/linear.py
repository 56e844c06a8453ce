"""Linear: the canonical sum of terms, atom -> integer coefficient, in order of first appearance.

An atom is a simplified expression that is no sum: a variable, a product of atoms, a quotient, a
minimum, a load, ... The order of the terms depends on the expression alone, never on addresses,
so that printed programs are stable. A Linear is never changed once it has been handed out.
"""

from __future__ import annotations

from collections.abc import Iterable

from metasched.arith.bounds import is_index
from metasched.ir.dtype import DType
from metasched.ir.expr import Add, Expr, IntImm, Mul, Sub, wrap


class Linear:
    """sum(coefficient * atom) + const. No coefficient is zero."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: dict[Expr, int], const: int) -> None:
        self.terms = terms
        self.const = const

    def plus(self, other: Linear, scale: int = 1) -> Linear:
        """self + other * scale."""
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            add_term(terms, atom, c * scale)
        return Linear(terms, self.const + other.const * scale)

    def shifted(self, amount: int) -> Linear:
        """self + amount."""
        return Linear(self.terms, self.const + amount) if amount else self

    def scaled(self, factor: int) -> Linear:
        """self * factor."""
        if factor == 1:
            return self
        if factor == 0:
            return Linear({}, 0)
        return Linear({a: c * factor for a, c in self.terms.items()}, self.const * factor)

    def single(self) -> Expr | None:
        """The atom if the sum is one atom with coefficient 1, else None."""
        if self.const == 0 and len(self.terms) == 1:
            ((atom, c),) = self.terms.items()
            return atom if c == 1 else None
        return None

    def __repr__(self) -> str:
        inside = " + ".join(f"{c}*{a!r}" for a, c in self.terms.items())
        return f"Linear({inside or '0'} + {self.const})"


def add_term(terms: dict[Expr, int], atom: Expr, c: int) -> None:
    """terms += c * atom. Products with equal factors in another order count as one atom."""
    old = terms.get(atom)
    if old is None:
        if type(atom) is Mul:
            atom = _same_product(terms, atom)
            old = terms.get(atom, 0)
        else:
            terms[atom] = c
            return
    if old + c:
        terms[atom] = old + c
    elif atom in terms:
        del terms[atom]


def _same_product(terms: dict[Expr, int], atom: Expr) -> Expr:
    mine = factors(atom)
    for other in terms:
        if type(other) is Mul:
            theirs = factors(other)
            if len(mine) == len(theirs) and sorted(map(id, mine)) == sorted(map(id, theirs)):
                return other
    return atom


def factors(atom: Expr) -> list[Expr]:
    """The factors of a product of atoms, left to right."""
    out: list[Expr] = []
    while type(atom) is Mul:
        out.append(atom.b)
        atom = atom.a
    out.append(atom)
    out.reverse()
    return out


def product(parts: Iterable[Expr]) -> Expr | None:
    """The product of atoms; None for no atoms."""
    result: Expr | None = None
    for part in parts:
        result = part if result is None else Mul(result, part)
    return result


def without(atom: Expr, parts: list[Expr]) -> list[Expr] | None:
    """The factors of `atom` without `parts`; None if a part is no factor of `atom`."""
    left = factors(atom)
    for part in parts:
        for i, factor in enumerate(left):
            if factor is part:
                del left[i]
                break
        else:
            return None
    return left


def multiply(a: Linear, b: Linear) -> Linear:
    """The product, expanded."""
    if not b.terms:
        return a.scaled(b.const)
    if not a.terms:
        return b.scaled(a.const)
    terms: dict[Expr, int] = {}
    for x, cx in a.terms.items():
        for y, cy in b.terms.items():
            merged: Expr = x
            for factor in factors(y):
                merged = Mul(merged, factor)
            add_term(terms, merged, cx * cy)
        if b.const:
            add_term(terms, x, cx * b.const)
    if a.const:
        for y, cy in b.terms.items():
            add_term(terms, y, cy * a.const)
    return Linear(terms, a.const * b.const)


def emit(value: Linear, dtype: DType) -> Expr | None:
    """Write a sum as an expression: positive terms, a positive constant, then negative terms.

    None if a number does not fit an index type. In narrower types numbers wrap, which is exact.
    """
    const, terms = value.const, value.terms
    low, high = dtype.range
    if dtype.kind == "uint":
        low = -high
    if not (low <= const <= high and all(low <= c <= high for c in terms.values())):
        if is_index(dtype):
            return None
        const = wrap(dtype, const)
        terms = {a: w for a, c in terms.items() if (w := wrap(dtype, c))}
    result: Expr | None = None
    negative: list[tuple[Expr, int]] = []
    for atom, c in terms.items():
        if c > 0:
            part = atom if c == 1 else Mul(atom, IntImm(dtype, c))
            result = part if result is None else Add(result, part)
        else:
            negative.append((atom, c))
    if const > 0:
        number = IntImm(dtype, const)
        result = number if result is None else Add(result, number)
    return _subtract(result, negative, const, dtype)


def _subtract(
    result: Expr | None, negative: list[tuple[Expr, int]], const: int, dtype: DType
) -> Expr:
    lowest = dtype.range[0]
    if result is None and lowest == 0 and (negative or const):
        if not negative:
            return IntImm(dtype, wrap(dtype, const))
        result = IntImm(dtype, 0)
    for atom, c in negative:
        if result is None:
            result = Mul(atom, IntImm(dtype, c))
        elif c == lowest:  # its negation does not exist
            result = Add(result, Mul(atom, IntImm(dtype, c)))
        else:
            result = Sub(result, atom if c == -1 else Mul(atom, IntImm(dtype, -c)))
    if const >= 0:
        return IntImm(dtype, 0) if result is None else result
    if result is None:
        return IntImm(dtype, const)
    if const == lowest:
        return Add(result, IntImm(dtype, const))  # type: ignore[no-any-return]
    return Sub(result, IntImm(dtype, -const))  # type: ignore[no-any-return]
