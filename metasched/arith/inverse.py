"""Solves indices for their iterators, to find the instance of a block that touches an element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from metasched.arith.analyzer import Analyzer
from metasched.arith.itermap import detect_iter_map, inverse_iter_map
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Var, as_int
from metasched.ir.visit import free_vars


def left_inverse(
    indices: Sequence[Expr], iters: Mapping[Var, Range], outputs: Sequence[Expr]
) -> dict[Var, Expr] | str:
    """Solve indices for the iterators that they mention.

    Args:
        indices: the indices, over the iterators.
        iters: the range of each iterator.
        outputs: the values of the indices.

    Returns each iterator as an expression of `outputs`, or a text that says why there is no
    solution. For values that no iteration takes, the expressions have no meaning.
    """
    used = {v: r for v, r in iters.items() if any(v in free_vars(i) for i in indices)}
    found = detect_iter_map(indices, used, level="bijective")
    if found.error is None:
        return _from_minimum(used, inverse_iter_map(found.sums, outputs))
    pairs = _joined([_upward(i, x, used) for i, x in zip(indices, outputs, strict=True)])
    joined, values = [index for index, _ in pairs], [value for _, value in pairs]
    again = detect_iter_map(joined, used, level="bijective")
    if again.error is not None:
        again = detect_iter_map(joined, _without_gaps(joined, used), level="bijective")
    if again.error is not None:
        return found.error
    return _from_minimum(used, inverse_iter_map(again.sums, values))


def _from_minimum(iters: Mapping[Var, Range], from_zero: Mapping[Var, Expr]) -> dict[Var, Expr]:
    an = Analyzer()
    return {
        v: an.simplify(r.min + from_zero[v]) if v in from_zero else r.min for v, r in iters.items()
    }


def _upward(index: Expr, value: Expr, iters: Mapping[Var, Range]) -> tuple[Expr, Expr]:
    """An index and its value, both negated if all coefficients of the index are negative."""
    terms = Analyzer().linear(index).terms
    moving = [c for atom, c in terms.items() if not free_vars(atom).isdisjoint(iters)]
    if not moving or max(moving) > 0:
        return index, value
    zero = IntImm(index.dtype, 0)
    return Analyzer().simplify(zero - index), IntImm(value.dtype, 0) - value


def _joined(pairs: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
    """Replace pairs of indices `e // c` and `e % c` by `e`, and likewise their values."""
    an = Analyzer()
    for high, quotient in pairs:
        if not isinstance(high, FloorDiv):
            continue
        for low, rest in pairs:
            if isinstance(low, FloorMod) and low.b is high.b and _digit(an, high, low):
                whole = (high.a, quotient * low.b.astype(quotient.dtype) + rest)
                left = [p for p in pairs if p[0] is not high and p[0] is not low]
                return _joined([*left, whole])
    return pairs


def _digit(an: Analyzer, high: FloorDiv, low: FloorMod) -> bool:
    return high.a is low.a or an.equal(FloorMod(high.a, high.b), low)


def _without_gaps(indices: Sequence[Expr], iters: Mapping[Var, Range]) -> dict[Var, Range]:
    """The ranges of iterators, enlarged so that each fills the stride of the next in a sum."""
    out, an = dict(iters), Analyzer()
    for index in indices:
        terms = [(abs(c), a) for a, c in an.linear(index).terms.items() if a in out]
        terms.sort(key=lambda t: t[0])
        for (step, var), (above, _) in pairwise(terms):
            assert isinstance(var, Var)
            extent = as_int(out[var].extent)
            if extent is not None and above % step == 0 and extent * step < above:
                out[var] = Range(out[var].min, IntImm(out[var].min.dtype, above // step))
    return out
