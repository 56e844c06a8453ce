"""Integer expressions as sums: constant + sum of coefficient * atom, for addresses."""

from __future__ import annotations

from functools import lru_cache

from metasched.analysis.affine import Form, linear
from metasched.ir.expr import Expr, FloorMod, IntImm, floordiv


@lru_cache(maxsize=1 << 15)
def affine(expr: Expr) -> Form:
    """`linear`, the first atoms first, each with its own type, and the two halves of a fused loop
    joined: x // c * c + x % c  ->  x."""
    found = linear(expr, casts=False)
    terms, constant = dict(reversed(found.terms.items())), found.const
    for rest in [t for t in terms if isinstance(t, FloorMod)]:
        whole, by, factor = floordiv(rest.a, rest.b), rest.b, terms.get(rest, 0)
        if isinstance(by, IntImm) and terms.get(whole) == factor * by.value:
            del terms[rest], terms[whole]
            constant += affine(rest.a).scaled_into(terms, factor)
    return Form(terms, constant)
