"""Solve symbolic extents for their symbols, and print extents in messages."""

from __future__ import annotations

import functools
from collections.abc import Callable

from metasched.codegen.signature import Extent, extent_value


def solve(extent: Extent, number: int, values: dict[str, int]) -> tuple[str, int] | None:
    """Find the one unknown symbol of `extent` and the value for which `extent` is `number`; None if
    there is no exact value."""
    if isinstance(extent, int):
        return None
    if isinstance(extent, str):
        return None if extent in values else (extent, number)
    operator, left, right = extent
    sides: list[tuple[Extent, Extent]] = [(left, right), (right, left)]
    for unknown, known in sides:
        try:
            k = extent_value(known, values)
        except KeyError:
            continue
        undo = _UNDO.get((operator, unknown is left))
        back = undo(number, k) if undo is not None else None
        if back is not None:
            return solve(unknown, back, values)
    return None


# (operator, unknown on the left) -> the unknown from the result and the other operand
_UNDO: dict[tuple[str, bool], Callable[[int, int], int | None]] = {
    ("+", True): lambda n, k: n - k,
    ("+", False): lambda n, k: n - k,
    ("-", True): lambda n, k: n + k,
    ("-", False): lambda n, k: k - n,
    ("*", True): lambda n, k: n // k if k and n % k == 0 else None,
    ("*", False): lambda n, k: n // k if k and n % k == 0 else None,
}


def because(extent: Extent, values: dict[str, int], origin: dict[str, str]) -> str:
    names = [n for n in _names(extent) if n in origin]
    return "".join(f", as {n} is {values[n]} by {origin[n]}" for n in names)


def _names(extent: Extent) -> list[str]:
    if isinstance(extent, tuple):
        return [*_names(extent[1]), *_names(extent[2])]
    return [extent] if isinstance(extent, str) else []


@functools.cache
def extent_text(extent: Extent) -> str:
    """An extent as text for messages."""
    if not isinstance(extent, tuple):
        return str(extent)
    operator, left, right = extent
    if operator in ("min", "max"):
        return f"{operator}({extent_text(left)}, {extent_text(right)})"
    parts = [
        f"({extent_text(e)})" if isinstance(e, tuple) else extent_text(e) for e in (left, right)
    ]
    return f"{parts[0]} {operator} {parts[1]}"
