"""Exchanges in registers that transpose squares of elements."""

from __future__ import annotations

from metasched.codegen.emit import Emitter
from metasched.codegen.values import Val


def exchanged(e: Emitter, rows: list[Val]) -> list[Val]:
    """Transpose the squares that lie side by side in rows. Each round exchanges the blocks off the
    diagonal, which are half as large in the next round."""
    n, half = rows[0].lanes, len(rows) // 2
    while half:
        after = list(rows)
        for i in range(len(rows)):
            if i & half:
                continue
            a, b = rows[i], rows[i + half]
            low = [lane if not lane & half else n + lane - half for lane in range(n)]
            high = [lane + half if not lane & half else n + lane for lane in range(n)]
            after[i], after[i + half] = _shuffle(e, a, b, low), _shuffle(e, a, b, high)
        rows, half = after, half // 2
    return rows


def _shuffle(e: Emitter, a: Val, b: Val, lanes: list[int]) -> Val:
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    text = f"shufflevector {a.typed}, {b.typed}, <{len(lanes)} x i32> <{mask}>"
    return e.pure(text, a.dtype, a.lanes, a, b)
