"""Proofs that a linear form is not negative, from constant bounds, symbolic extents and facts."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

from metasched.arith.bounds import EVERYTHING, INF, is_index
from metasched.arith.linear import Linear, add_term, factors, multiply, product, without
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Max, Min, Mul, Var

if TYPE_CHECKING:
    from metasched.arith.analyzer import Analyzer

Seen: TypeAlias = "set[frozenset[tuple[Expr, int]]]"
_DEPTH = 8


def learn(an: Analyzer, fact: Linear) -> None:
    """Record that `fact` >= 0; bounds of single variables and atoms become ranges."""
    if len(fact.terms) == 1:
        ((atom, c),) = fact.terms.items()
        lo, hi = an.ranges.get(atom, EVERYTHING)
        if c > 0:
            lo = max(lo, -(fact.const // c))
        else:
            hi = min(hi, fact.const // -c)
        if lo <= hi:
            an.ranges[atom] = (lo, hi)
        if type(atom) is not Var:
            an.has_facts = True
    else:
        step = gcd(*fact.terms.values())
        if step > 1:  # of integers: 2*x + 2*y - 3 >= 0 is x + y - 2 >= 0
            fact = Linear({a: c // step for a, c in fact.terms.items()}, fact.const // step)
        an.facts.append(fact)
        an.has_facts = True


def nonnegative(an: Analyzer, value: Linear) -> bool:
    """Whether `value` >= 0 certainly holds."""
    lo, hi = an.linear_bounds(value) if value.terms else (value.const, value.const)
    if lo >= 0:
        return True
    if hi < 0:
        return False
    if not an.has_facts and not an.symbolic and all(type(a) is Var for a in value.terms):
        return False
    if not an.facts:
        return _search(an, value, _DEPTH, set())
    if an.proving:
        return False  # inside a proof from facts only bounds are used, so that the proof ends
    with an.aside():
        return _search(an, value, _DEPTH, set())


def _search(an: Analyzer, value: Linear, depth: int, seen: Seen) -> bool:
    if an.linear_bounds(value)[0] >= 0:
        return True
    if depth == 0:
        return False
    key = frozenset(value.terms.items())
    if key in seen:
        return False
    seen.add(key)
    for fact in an.facts:
        rest = value.plus(fact, -1)
        if len(rest.terms) <= len(value.terms) and an.linear_bounds(rest)[0] >= 0:
            return True
    for smaller in _relaxed(an, value, depth):
        if _search(an, smaller, depth - 1, seen):
            return True
    return _by_cases(an, value, depth, seen)


def _relaxed(an: Analyzer, value: Linear, depth: int) -> Iterator[Linear]:
    """Forms that are at most `value`: a variable at its extreme, a quotient as a fraction."""
    for var in _bounded_vars(an, value):
        slope, rest = _split_on(value, var)
        if slope is None:
            continue
        first, last = _extremes(an, var)
        if _search(an, slope, depth - 2 if depth > 2 else 0, set()):
            yield rest.plus(multiply(slope, first))
        elif _search(an, slope.scaled(-1), depth - 2 if depth > 2 else 0, set()):
            yield rest.plus(multiply(slope, last))
    for atom, c in value.terms.items():
        yield from _relax_atom(an, value, atom, c)


def _finite(an: Analyzer, atom: Expr) -> bool:
    lo, hi = an.ranges.get(atom, EVERYTHING)
    return lo != -INF and hi != INF


def _extremes(an: Analyzer, var: Expr) -> tuple[Linear, Linear]:
    found = an.symbolic.get(var)
    if found is not None:
        return found
    lo, hi = an.ranges[var]
    return Linear({}, int(lo)), Linear({}, int(hi))


def _bounded_vars(an: Analyzer, value: Linear) -> list[Expr]:
    found: dict[Expr, None] = {}
    for atom in value.terms:
        if not is_index(atom.dtype):
            continue  # the operands of the atom may wrap
        for factor in factors(atom):
            if factor in an.symbolic or (factor is not atom and _finite(an, factor)):
                found[factor] = None
    return list(found)


def _split_on(value: Linear, var: Expr) -> tuple[Linear | None, Linear]:
    """value = slope * var + rest; slope None where var also stands inside another atom."""
    slope: dict[Expr, int] = {}
    constant = 0
    rest: dict[Expr, int] = {}
    for atom, c in value.terms.items():
        left = without(atom, [var]) if atom is var or type(atom) is Mul else None
        if left is None:
            rest[atom] = c
        elif not left:
            constant += c
        else:
            whole = product(left)
            assert whole is not None
            add_term(slope, whole, c)
    return Linear(slope, constant), Linear(rest, value.const)


def _relax_atom(an: Analyzer, value: Linear, atom: Expr, c: int) -> Iterator[Linear]:
    if not is_index(atom.dtype):
        return
    rest = Linear({a: k for a, k in value.terms.items() if a is not atom}, value.const)
    if type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
        # (x - d + 1) / d <= x // d <= x / d, the whole inequality multiplied by d
        d = atom.b.value
        inner = an.linear(atom.a)
        if c > 0:
            inner = inner.shifted(1 - d)
        yield an.merged(rest.scaled(d).plus(inner, c))
    elif type(atom) is FloorMod and type(atom.b) is not IntImm and c < 0:
        # x % n <= n - 1 for n > 0
        divisor = an.linear(atom.b)
        if an.linear_bounds(divisor)[0] > 0:
            yield rest.plus(divisor.shifted(-1), c)
    elif (type(atom) is Min and c < 0) or (type(atom) is Max and c > 0):
        # min(a, b) <= a, b <= max(a, b)
        yield an.merged(rest.plus(an.linear(atom.a), c))
        yield an.merged(rest.plus(an.linear(atom.b), c))


def _by_cases(an: Analyzer, value: Linear, depth: int, seen: Seen) -> bool:
    """Prove the claim for both sides of a minimum, because the minimum equals one of them."""
    for atom, c in value.terms.items():
        if not is_index(atom.dtype):
            continue
        if (type(atom) is Min and c > 0) or (type(atom) is Max and c < 0):
            rest = Linear({a: k for a, k in value.terms.items() if a is not atom}, value.const)
            return all(
                _search(an, an.merged(rest.plus(an.linear(side), c)), depth - 1, seen)
                for side in (atom.a, atom.b)
            )
    return False
