"""The stencils in stages in PyTorch, by slices; `torch.compile` fuses the stages."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from metasched.report.peer_op import PeerOp, Shape


def _blur(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    def call() -> Any:
        x = t[0]
        rows = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) * (1 / 3)
        return (rows[:-2] + rows[1:-1] + rows[2:]) * (1 / 3)

    return PeerOp(call)


def _jac3(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    def call() -> Any:
        x = t[0]
        for _ in range(3):
            sides = x[:-2, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1]
            x = (sides + x[1:-1, 1:-1]) * 0.2
        return x

    return PeerOp(call)


def _harris(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    h, w = shape

    def window(a: Any) -> Any:
        return reduce(add, [a[i : i + h, j : j + w] for i in range(3) for j in range(3)])

    def call() -> Any:
        x = t[0]
        down, across = x[2:] - x[:-2], x[:, 2:] - x[:, :-2]
        dx = (down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]) * (1 / 12)
        dy = (across[:-2] + 2 * across[1:-1] + across[2:]) * (1 / 12)
        xx, xy, yy = window(dx * dx), window(dx * dy), window(dy * dy)
        return xx * yy - xy * xy - 0.04 * (xx + yy) * (xx + yy)

    return PeerOp(call)


STENCILS = {"blur": _blur, "jac3": _jac3, "harris": _harris}
"""PyTorch does not add 16-bit integers without sign, which BLUR_U16 needs."""
