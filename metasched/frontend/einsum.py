"""einsum: builds products summed over the letters that the result lacks, in NumPy's notation.

A product of several operands has many multiplications for each element of the result. By the
distributive law, the operands may instead be multiplied two at a time, and each letter summed as
soon as no other operand has it. Each such part is a block of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.errors import MetaschedError
from metasched.frontend import te
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, ExprLike, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.script.builder import cast_word


def einsum(
    subscripts: str,
    *shapes: Sequence[ExprLike],
    dtype: str = "float32",
    out_dtype: str | None = None,
    name: str = "einsum",
) -> PrimFunc:
    """The function that computes `numpy.einsum(subscripts, A, B, ...)` into its last argument.

        ms.einsum("bij,bjk->bik", (8, 64, 32), (8, 32, 64))

    Args:
        subscripts: a letter for each dimension of each operand; without "->" the result has the
            letters that occur once, sorted.
        shapes: the operands' shapes.
        dtype: the operands' type.
        out_dtype: the type of the products, their sum and the result; None for `dtype`.
        name: the function's `global_symbol`.

    Raises MetaschedError when subscripts and shapes do not fit.
    """
    spelled, result = _parse(subscripts)
    sizes = _sizes(subscripts, spelled, shapes)
    if unknown := [letter for letter in result if letter not in sizes]:
        raise _wrong(subscripts, f"no operand has the letter {unknown[0]!r} of the result")
    if len({*result}) != len(result):
        raise _wrong(subscripts, "a letter stands twice in the result")
    names = (chr(ord("A") + n) if n < 25 else f"A{n}" for n in range(len(spelled)))
    operands = [te.placeholder(s, dtype, n) for s, n in zip(shapes, names, strict=False)]
    final = out_dtype or dtype
    plan = _plan(spelled, result, sizes, final)
    numbers = (f"Z{n}" for n in itertools.count(1))

    def computed(part: _Part) -> te.Tensor:
        """The tensor of a part, after the tensors of the parts that it multiplies."""
        if part.operand is not None:
            return operands[part.operand]
        factors = [computed(p) for p in part.factors]
        name = "Z" if part is plan else next(numbers)
        return _product(factors, part, sizes, final, name)

    return te.create_prim_func([*operands, computed(plan)], name)


@dataclass(frozen=True)
class _Part:
    """An operand, or the product of parts, summed over the letters that `letters` lacks."""

    letters: str
    operand: int | None = None
    factors: tuple[_Part, ...] = ()


def _product(
    factors: Sequence[te.Tensor], part: _Part, sizes: dict[str, ExprLike], dtype: str, name: str
) -> te.Tensor:
    """The tensor of a part whose factors are tensors already."""
    inside = dict.fromkeys("".join(p.letters for p in part.factors))
    summed = {c: te.reduce_axis((0, sizes[c]), c) for c in inside if c not in part.letters}

    def element(*indices: Var) -> te.Reduction | Expr:
        at = {**dict(zip(part.letters, indices, strict=True)), **summed}
        values = [
            cast_word(factor[tuple(at[c] for c in p.letters)], dtype)
            for factor, p in zip(factors, part.factors, strict=True)
        ]
        product = functools.reduce(operator.mul, values)
        return te.sum(product, [*summed.values()]) if summed else product

    shape = [sizes[c] for c in part.letters]
    return te.compute(shape, element, name, varargs_names=[*part.letters])


# -- the order of the products -------------------------------------------------------------------

MOST = 8
"""The most operands whose orders are compared: there are 3 ** MOST pairs of groups."""
_STORED = 4
"""The products that take as long as an element of a part that is stored and loaded."""
_WORTH = 0.75
"""The share of the products of a single block at which several blocks are worth their memory."""
_UNKNOWN = 1024
"""Stands for an extent that is known at run time only."""


def _plan(spelled: Sequence[str], result: str, sizes: dict[str, ExprLike], dtype: str) -> _Part:
    """The parts with the fewest products. It is one part for all operands if others save little,
    and in floats of 16 bits or fewer, where a sum of only some of the factors might overflow."""
    leaves = [_Part(letters, n) for n, letters in enumerate(spelled)]
    whole = _Part(result, None, tuple(leaves))
    narrow = DType(dtype).is_float and DType(dtype).bits <= 16
    if narrow or len(spelled) > MOST:
        return whole
    counts = {c: as_int(as_expr(n)) or _UNKNOWN for c, n in sizes.items()}

    def size(letters: str) -> int:
        return math.prod(counts[c] for c in {*letters})

    def alone(n: int) -> tuple[float, _Part]:
        """An operand, summed over letters that no other operand has."""
        kept = _kept(spelled, 1 << n, result)
        if len(kept) == len({*spelled[n]}):
            return 0, leaves[n]
        return size(spelled[n]) + _STORED * size(kept), _Part(kept, None, (leaves[n],))

    every = (1 << len(spelled)) - 1
    best = {1 << n: alone(n) for n in range(len(spelled))}
    for group in range(1, every + 1):
        if group in best:
            continue
        kept = result if group == every else _kept(spelled, group, result)
        stored = _STORED * size(kept) * (group != every)
        options = []
        left = (group - 1) & group
        while left > group >> 1:  # each pair once
            (a, x), (b, y) = best[left], best[group ^ left]
            ordered = (x, y) if left & -left < (group ^ left) & -(group ^ left) else (y, x)
            cost = a + b + size(x.letters + y.letters) + stored
            options.append((cost, _Part(kept, None, ordered)))
            left = (left - 1) & group
        best[group] = min(options, key=lambda option: option[0])
    cost, plan = best[every]
    single = size("".join(spelled)) * max(1, len(spelled) - 1)
    return plan if plan.operand is None and cost <= _WORTH * single else whole


def _kept(spelled: Sequence[str], group: int, result: str) -> str:
    """The letters of some operands, a bit each, that the result or another operand has."""
    others = {*result}.union(*(s for n, s in enumerate(spelled) if not group >> n & 1))
    inside = dict.fromkeys("".join(s for n, s in enumerate(spelled) if group >> n & 1))
    return "".join(c for c in inside if c in others)


def _parse(subscripts: str) -> tuple[list[str], str]:
    """The letters of each operand, and the letters of the result."""
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    spelled = left.split(",")
    letters = "".join(spelled)
    if not arrow:
        result = "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    if odd := [c for c in letters + result if not (c.isascii() and c.isalpha())]:
        raise _wrong(subscripts, f"{odd[0]!r} is no letter (an ellipsis is written out)")
    return spelled, result


def _sizes(
    subscripts: str, spelled: Sequence[str], shapes: Sequence[Sequence[ExprLike]]
) -> dict[str, ExprLike]:
    """The extent of each letter, in the order in which letters first occur."""
    if len(spelled) != len(shapes):
        raise _wrong(subscripts, f"it names {len(spelled)} operands, {len(shapes)} are given")
    sizes: dict[str, ExprLike] = {}
    for letters, shape in zip(spelled, shapes, strict=True):
        if not isinstance(shape, Sequence):
            raise _wrong(subscripts, f"a shape is a tuple such as (8, 16), not {shape!r}")
        if len(letters) != len(shape):
            raise _wrong(subscripts, f"{letters!r} has {len(letters)} letters, its operand "
                         f"{len(shape)} dimensions")  # fmt: skip
        for letter, extent in zip(letters, shape, strict=True):
            known = sizes.setdefault(letter, extent)
            if known is not extent and known != extent:
                raise _wrong(subscripts, f"{letter!r} is {known} and {extent}")
    return sizes


def _wrong(subscripts: str, what: str) -> MetaschedError:
    return MetaschedError(f"einsum {subscripts!r}: {what}")
