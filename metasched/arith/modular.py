"""Congruences: an integer known to be `base` modulo `coeff` (coeff 0: exactly `base`)."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple


class Modular(NamedTuple):
    """All integers k * coeff + base, with 0 <= base < coeff unless coeff is 0 (a constant)."""

    coeff: int
    base: int


ANY = Modular(1, 0)


def make(coeff: int, base: int) -> Modular:
    """The congruence in canonical form."""
    coeff = abs(coeff)
    return Modular(coeff, base % coeff if coeff else base)


def scale_add(a: Modular, b: Modular, scale: int) -> Modular:
    """a + b * scale."""
    return make(gcd(a.coeff, b.coeff * scale), a.base + b.base * scale)


def times(a: Modular, b: Modular) -> Modular:
    """a * b: (pk + r)(qm + s) = pq km + ps k + rq m + rs."""
    coeff = gcd(gcd(a.coeff * b.coeff, a.coeff * b.base), a.base * b.coeff)
    return make(coeff, a.base * b.base)


def either(a: Modular, b: Modular) -> Modular:
    """The congruence of a value that is one of two values."""
    return make(gcd(gcd(a.coeff, b.coeff), a.base - b.base), a.base)


def floordiv(a: Modular, d: int) -> Modular:
    """a // d for d > 0; exact if d divides the step, because the remainder is then constant."""
    return make(a.coeff // d, a.base // d) if a.coeff % d == 0 else ANY


def floormod(a: Modular, d: int) -> Modular:
    """a % d for d > 0."""
    if a.coeff % d == 0:
        return Modular(0, a.base % d)
    return make(gcd(a.coeff, d), a.base)
