"""Enumeration of the iterations of small nests: which pairs of instances touch one element?

`overlap_distances` can prove from bounds and remainders that no two instances touch one element. If
that proof fails and the nest is small, all iterations are enumerated, and the answer is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metasched.analysis.overlap import Side
from metasched.arith.corner import at_all
from metasched.arith.linear import Linear
from metasched.ir.expr import TRUE, Expr, IntImm, Var
from metasched.ir.stmt import Evaluate, For, ForKind, fact

_MOST = 1 << 18  # pairs that are enumerated at most
_Columns: TypeAlias = list[NDArray[np.int64]]


class Place(NamedTuple):
    """An access: the box that it touches, over the variables of `loops`, where `condition` holds.

    Places of equal accesses are equal, also in two programs, so that proofs about them are kept.

    Attributes:
        loops: the loops around the access, each without its body (see `bare`).
        guards: forms that are at most 0 where the access happens.
    """

    box: tuple[Side, ...]
    loops: tuple[For, ...]
    condition: Expr = TRUE
    guards: tuple[Linear, ...] = ()


@fact
def bare(loop: For) -> For:
    """A loop without its body, kind and notes: one object for all loops with these ends."""
    return _bare(loop.var, loop.min, loop.extent, loop.step)


@lru_cache(maxsize=1 << 12)
def _bare(var: Var, low: Expr, extent: Expr, step: Expr | None) -> For:
    return For(var, low, extent, ForKind.SERIAL, Evaluate(IntImm("int32", 0)), step=step)


@lru_cache(maxsize=1 << 12)
def stays_behind(a: Place, b: Place, order: tuple[Var, ...], ties: bool) -> bool:
    """Whether `b`, where it touches an element of `a`, is known to run in no earlier iteration of
    `order` than `a`; with `ties`, in a later iteration."""
    apart = distances(a, b, order[0])
    return apart is not None and not (ahead(apart, order) < (1 if ties else 0)).any()


@lru_cache(maxsize=1 << 12)
def stays_equal(a: Place, b: Place, var: Var) -> bool:
    """Whether `a` and `b` are known to touch a common element only in one iteration of a loop."""
    apart = distances(a, b, var)
    return apart is not None and not apart[var].any()


def distances(a: Place, b: Place, top: Var) -> dict[Var, NDArray[np.int64]] | None:
    """The distances from `a` to `b` in each shared loop from `top` inwards, one for each pair.

    A pair is an instance of `a` and an instance of `b` that touch one element in one iteration of
    the loops above `top`. Returns None for more than `_MOST` pairs, or if the pairs depend on
    values that are known only when the program runs.
    """
    shared = 0
    while shared < min(len(a.loops), len(b.loops)) and a.loops[shared] is b.loops[shared]:
        shared += 1
    names = [loop.var for loop in a.loops[:shared]]
    if top not in names or any(width != 1 for _, width in (*a.box, *b.box)):
        return None
    above = names.index(top)
    found = [_columns(place, names) for place in (a, b)]
    if found[0] is None or found[1] is None:
        return None
    mine, theirs = (np.stack(columns, axis=1) for columns in found if columns is not None)
    met = _equal_rows(*(np.delete(x, range(above, shared), axis=1) for x in (mine, theirs)))
    if met is None:
        return None
    left, right = met
    return {v: theirs[right, k] - mine[left, k] for k, v in enumerate(names) if k >= above}


def ahead(
    apart: Mapping[Var, NDArray[np.int64]], order: Sequence[Var]
) -> NDArray[np.signedinteger[Any]]:
    """For each pair 1 if `b` runs after `a` in loops of this order, -1 if before, 0 if equal."""
    sign = np.zeros_like(apart[order[0]])
    for var in order:
        sign = np.where(sign == 0, np.sign(apart[var]), sign)
    return sign


def _columns(place: Place, names: list[Var]) -> _Columns | None:
    """The values of the loops and the indices of the element at each instance."""
    atoms = [atom for form, _ in place.box for atom in form.terms]
    values = at_all((*place.loops, place.condition), [*names, *atoms])
    if values is None:
        return None
    rest = iter(values[len(names) :])
    zero = np.zeros_like(values[0])
    element = [
        sum((c * next(rest) for c in form.terms.values()), zero + form.const)
        for form, _ in place.box
    ]
    return [*values[: len(names)], *element]


def _equal_rows(
    a: NDArray[np.int64], b: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The positions of all pairs of equal rows; None where there are more than `_MOST`."""
    if not a.shape[1]:
        groups = np.zeros(len(a) + len(b), np.int64)
    else:
        _, groups = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
        groups = groups.reshape(-1)
    mine, theirs = groups[: len(a)], groups[len(a) :]
    order = np.argsort(theirs, kind="stable")
    first = np.searchsorted(theirs[order], mine, "left")
    count = np.searchsorted(theirs[order], mine, "right") - first
    if int(count.sum()) > _MOST:
        return None
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(np.arange(len(a)), count), order[np.repeat(first, count) + within]
