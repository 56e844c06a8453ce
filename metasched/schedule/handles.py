"""Handles: names for a block, a loop or a sampled value, valid in the schedules that bind them.

A handle is an identity, not a position. The table of each schedule maps it to a block's token, a
loop's variable or an integer. So a copied schedule resolves the same handles, and a replay binds
the handles of the trace itself.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from metasched.ir.expr import Expr, Var


class BlockRV:
    """A block of a schedule."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return "<BlockRV>"


class LoopRV:
    """A loop of a schedule (or the mark "root" or "inline" of a sampled location)."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return "<LoopRV>"


class ExprRV(Var):
    """A sampled integer; it takes part in expressions: `sch.split(i, [None, v * 2])`."""

    __slots__ = ()

    def __new__(cls, name: str = "v") -> ExprRV:
        self = Var.__new__(cls, name, "int32")
        assert isinstance(self, ExprRV)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ExprRV, (self.name,)


RV: TypeAlias = "BlockRV | LoopRV | ExprRV"
BlockLike: TypeAlias = "BlockRV | str"
IntLike: TypeAlias = "int | Expr"
BufferArg: TypeAlias = "int | str | tuple[str, int]"


class Mark:
    """A sampled location that is no loop: "root" or "inline", see sample_compute_location."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __reduce__(self) -> str:
        return f"{self.name.upper()}_MARK"  # the constant below, which is compared by identity


ROOT_MARK = Mark("root")
INLINE_MARK = Mark("inline")
