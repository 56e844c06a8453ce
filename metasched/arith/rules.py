"""Rules for quotients, remainders and minima of linear forms; a comment states each identity.

A rule applies if the analyzer's ranges prove its side conditions. Linear forms are over unbounded
integers here; the analyzer handles narrow types before.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from metasched.arith.bounds import INF, is_index
from metasched.arith.linear import Linear, add_term, emit, factors, product, without
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Max, Min, Var

if TYPE_CHECKING:
    from metasched.arith.analyzer import Analyzer


class Unchanged(Exception):
    """The expression stays as it is: a number left the range of its type, or a call has effects."""


def write(value: Linear, dtype: DType) -> Expr:
    """The expression of a linear form; raises Unchanged when it has none in this type."""
    result = emit(value, dtype)
    if result is None:
        raise Unchanged
    return result


def number(dtype: DType, value: int) -> Expr:
    """A constant; raises Unchanged when it does not fit."""
    low, high = dtype.range
    if not low <= value <= high:
        raise Unchanged
    return IntImm(dtype, value)


def _reduced(an: Analyzer, x: Linear, d: int) -> tuple[Linear, Linear, bool]:
    """Write x = d*q + r with the coefficients of r between -d and d: (q, r, whether 0 <= r < d).

    Quotient and remainder both use this q and r, so that they can be joined again.
    """
    q: dict[Expr, int] = {}
    r: dict[Expr, int] = {}
    negative = False
    for atom, c in x.terms.items():
        k, rest = divmod(c, d)
        if rest and c < 0:
            k, rest, negative = k + 1, rest - d, True  # rounded to zero: the rest keeps its sign
        if k:
            q[atom] = k
        if rest:
            r[atom] = rest
    qc, rc = divmod(x.const, d)
    if not r:
        return Linear(q, qc), Linear(r, rc), True
    lo, hi = an.linear_bounds(Linear(r, rc))
    if lo != -INF and hi != INF and lo // d == hi // d:
        k = int(lo // d)
        return Linear(q, qc + k), Linear(r, rc - k * d), True
    if negative:
        up = Linear({a: c + d if c < 0 else c for a, c in r.items()}, rc)
        lo, hi = an.linear_bounds(up)
        if lo != -INF and hi != INF and lo // d == hi // d:
            k = int(lo // d)
            below = Linear({a: 1 for a, c in r.items() if c < 0}, -k)
            return Linear(q, qc).plus(below, -1), up.shifted(-k * d), True
    return Linear(q, qc), Linear(r, rc), False


def floordiv(an: Analyzer, x: Linear, d: int, dtype: DType) -> Linear:
    """x // d for a constant d > 0."""
    if d == 1:
        return x
    # (d*q + r) // d -> q where 0 <= r < d
    q, r, done = _reduced(an, x, d)
    if done:
        return q
    # (s*h + l) // d -> h // (d//s) where 0 <= l < s and s divides d
    split = _by_scale(an, r, d)
    if split is not None:
        s, high, _ = split
        inner = floordiv(an, high, d // s, dtype)
    else:
        inner = _nested_div(an, r, d, dtype)
    # (d*q + r) // d -> q + r // d
    return q.plus(inner)


def _nested_div(an: Analyzer, x: Linear, d: int, dtype: DType) -> Linear:
    # (y//a + c) // d -> (y + c*a) // (a*d)
    if len(x.terms) == 1:
        ((atom, c),) = x.terms.items()
        if c == 1 and type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
            a = atom.b.value
            return floordiv(an, an.linear(atom.a).shifted(x.const * a), a * d, dtype)
    return Linear({FloorDiv(write(x, dtype), number(dtype, d)): 1}, 0)


def _by_scale(an: Analyzer, x: Linear, d: int) -> tuple[int, Linear, Linear] | None:
    """Write x = s*h + l with 0 <= l < s, where s > 1 is the largest divisor of d that allows it."""
    scales = sorted({gcd(c, d) for c in x.terms.values()} - {1}, reverse=True)
    for s in scales:
        high = {a: c // s for a, c in x.terms.items() if c % s == 0}
        low = Linear({a: c for a, c in x.terms.items() if c % s}, x.const % s)
        lo, hi = an.linear_bounds(low) if low.terms else (low.const, low.const)
        if lo >= 0 and hi < s:
            return s, Linear(high, x.const // s), low
    return None


def floormod(an: Analyzer, x: Linear, d: int, dtype: DType) -> Linear:
    """x % d for a constant d > 0."""
    if d == 1:
        return Linear({}, 0)
    # (d*q + r) % d -> r where 0 <= r < d
    _, r, done = _reduced(an, x, d)
    if done:
        return r
    # (s*h + l) % d -> s*(h % (d//s)) + l where 0 <= l < s and s divides d
    split = _by_scale(an, r, d)
    if split is not None:
        s, high, low = split
        return floormod(an, high, d // s, dtype).scaled(s).plus(low)
    # r % d -> b where r is known to be b modulo d
    if an.has_facts or any(type(atom) is not Var for atom in r.terms):
        fact = an.linear_modular(r)
        if fact.coeff % d == 0:
            return Linear({}, fact.base % d)
    # (y % m) % d -> y % d where d divides m
    inner = r.single()
    if type(inner) is FloorMod and type(inner.b) is IntImm and inner.b.value % d == 0:
        return floormod(an, an.linear(inner.a), d, dtype)
    return _nested_mod(an, r, d, dtype)


def _nested_mod(an: Analyzer, x: Linear, d: int, dtype: DType) -> Linear:
    # (y//a + c) % d -> (y + c*a) % (a*d) // a
    if len(x.terms) == 1:
        ((atom, c),) = x.terms.items()
        if c == 1 and type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
            a = atom.b.value
            inner = floormod(an, an.linear(atom.a).shifted(x.const * a), a * d, dtype)
            return floordiv(an, inner, a, dtype)
    return Linear({FloorMod(write(x, dtype), number(dtype, d)): 1}, 0)


def symbolic_divmod(
    an: Analyzer, x: Linear, d: Linear, dtype: DType
) -> tuple[Linear, Linear, bool]:
    """Write x = d*q + r for a symbolic divisor like 4*n: (q, r, whether 0 <= r < d is proved)."""
    if d.const or len(d.terms) != 1:
        same = d.terms == x.terms and d.const == x.const and bool(d.terms)
        if same:
            return Linear({}, 1), Linear({}, 0), True
        return Linear({}, 0), x, bool(d.terms) and an.proves_between(x, d)
    ((atom, scale),) = d.terms.items()
    parts = factors(atom)
    q: dict[Expr, int] = {}
    qc = 0
    r: dict[Expr, int] = {}
    for term, c in x.terms.items():
        left = without(term, parts) if c % scale == 0 else None
        if left is None:
            r[term] = c
        elif left:
            whole = product(left)
            assert whole is not None
            add_term(q, whole, c // scale)
        else:
            qc += c // scale
    rest = Linear(r, x.const)
    done = (not r and x.const == 0) or an.proves_between(rest, d)
    if not done and x.const < 0 and an.proves_between(rest.plus(d), d):
        return Linear(q, qc - 1), rest.plus(d), True
    return Linear(q, qc), rest, done


def merge_parts(an: Analyzer, x: Linear) -> Linear:
    """Join quotients and remainders of one value, until nothing changes.

    The identities, with part(y, w, u) = y % u // w and u possibly infinite:
    part(y,w,m)*c + part(y,m,u)*(c*m/w) -> part(y,w,u)*c, and
    part(y,w,u)*c - part(y,m,u)*(c*m/w) -> part(y,w,m)*c, and
    part(y,w,u)*c - part(y,w,m)*c -> part(y,m,u)*(c*m/w), where m divides u.
    """
    while True:
        better = _merge_once(an, x)
        if better is None:
            return x
        x = better


Part = tuple[Expr, int, float, int]  # y, w, u, coefficient


def _part(atom: Expr, c: int) -> Part | None:
    if type(atom) is FloorMod and type(atom.b) is IntImm and atom.b.value > 0:
        return atom.a, 1, atom.b.value, c
    if type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
        y, w = atom.a, atom.b.value
        if type(y) is FloorMod and type(y.b) is IntImm and y.b.value > 0 and y.b.value % w == 0:
            return y.a, w, y.b.value, c
        return y, w, INF, c
    return None


def _merge_once(an: Analyzer, x: Linear) -> Linear | None:
    parts = [(atom, p) for atom, c in x.terms.items() if (p := _part(atom, c)) is not None]
    for i, (atom, first) in enumerate(parts):
        for other, second in parts[i + 1 :]:
            if first[0] is second[0]:
                joined = _join(first, second) or _join(second, first)
                if joined is not None:
                    return _replace(an, x, [atom, other], joined)
    for atom, (y, w, u, c) in parts:
        whole = _whole_in(an, x, (y, w, u, c))
        if whole is not None:
            factor, joined = whole
            rest = x.plus(an.linear(y), -factor)
            return _replace(an, rest, [atom], joined)
    return None


def _join(a: Part, b: Part) -> Part | None:
    y, w, u, c = a
    _, m, v, k = b
    if u == m and k * w == c * u:
        return y, w, v, c
    if u == v and w < m and m % w == 0 and k * w == -c * m:
        return y, w, m, c
    if w == m and k == -c and v < u and v % w == 0 and (u == INF or u % v == 0):
        return y, int(v), u, int(c * v // w)
    return None


def _whole_in(an: Analyzer, x: Linear, part: Part) -> tuple[int, Part] | None:
    """The coefficient and the part that result if x also holds the dividend y of `part`; else
    None."""
    y, w, u, k = part
    if u == INF:
        if k % w:
            return None
        c = -(k // w)  # c*y - c*w*(y//w) -> c*(y%w)
        joined: Part = (y, 1, w, c)
    elif w == 1:
        c = -k  # c*y - c*(y%u) -> c*u*(y//u)
        joined = (y, int(u), INF, c * int(u))
    else:
        return None
    for atom, coefficient in an.linear(y).terms.items():
        if x.terms.get(atom) != coefficient * c:
            return None
    return c, joined


def _replace(an: Analyzer, x: Linear, gone: list[Expr], part: Part) -> Linear:
    y, w, u, c = part
    inner = an.linear(y)
    if u != INF:
        inner = floormod(an, inner, int(u), y.dtype)
    if w != 1:
        inner = floordiv(an, inner, w, y.dtype)
    terms: dict[Expr, int] = {}
    for atom, k in x.terms.items():
        if atom is gone[0]:
            for a, m in inner.terms.items():
                add_term(terms, a, m * c)
        elif atom not in gone:
            add_term(terms, atom, k)
    if gone[0] not in x.terms:
        for a, m in inner.terms.items():
            add_term(terms, a, m * c)
    return Linear(terms, x.const + inner.const * c)


def extremum(
    an: Analyzer, kind: type[Min] | type[Max], a: Linear, b: Linear, dtype: DType
) -> Linear:
    """min or max of two linear forms."""
    if kind is Max:
        small, large = b, a
    else:
        small, large = a, b
    gap = large.plus(small, -1)
    # min(a, b) -> a where b - a >= 0;  max(a, b) -> a where a - b >= 0
    if an.proves_nonnegative(gap):
        return a
    if an.proves_nonnegative(gap.scaled(-1)):
        return b
    if not a.terms:  # constants stand on the right
        a, b = b, a
    inner = a.single() if is_index(dtype) else None
    # min(min(x, y), z): drop whichever of x, y is not needed beside z
    if inner is not None and type(inner) is kind:
        for keep, other in ((inner.a, inner.b), (inner.b, inner.a)):
            joined = extremum(an, kind, an.linear(other), b, dtype)
            atom = joined.single()
            if atom is None or type(atom) is not kind:
                return extremum(an, kind, an.linear(keep), joined, dtype)
    return Linear({kind(write(a, dtype), write(b, dtype)): 1}, 0)


def push_extremum(an: Analyzer, x: Linear, dtype: DType) -> Linear:
    """Rewrite min(a, b) + t to min(a + t, b + t) if one side becomes constant; for
    -min(a, b) + t the result is a max."""
    for atom, c in x.terms.items():
        if (type(atom) is Min or type(atom) is Max) and c in (1, -1) and len(x.terms) > 1:
            rest = Linear({k: v for k, v in x.terms.items() if k is not atom}, x.const)
            a, b = rest.plus(an.linear(atom.a), c), rest.plus(an.linear(atom.b), c)
            if not a.terms or not b.terms:
                kind = type(atom) if c == 1 else Max if type(atom) is Min else Min
                return extremum(an, kind, a, b, dtype)
    return x
