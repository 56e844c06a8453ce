"""einsum: builds products summed over the letters that the result lacks, in NumPy's notation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from metasched.errors import MetaschedError
from metasched.frontend import te
from metasched.ir.expr import Expr, ExprLike, Var
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
    summed = {c: te.reduce_axis((0, n), c) for c, n in sizes.items() if c not in result}

    def element(*indices: Var) -> te.Reduction | Expr:
        at = {**dict(zip(result, indices, strict=True)), **summed}
        factors = [
            cast_word(operand[tuple(at[c] for c in letters)], out_dtype or dtype)
            for operand, letters in zip(operands, spelled, strict=True)
        ]
        product = functools.reduce(operator.mul, factors)
        return te.sum(product, [*summed.values()]) if summed else product

    out = te.compute([sizes[c] for c in result], element, "Z", varargs_names=[*result])
    return te.create_prim_func([*operands, out], name)


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
