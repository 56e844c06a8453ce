"""Expressions as short infix text, for messages (the script printer stands on a higher floor)."""

from __future__ import annotations

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    BinaryOp,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Mod,
    Mul,
    Or,
    Sub,
    Var,
)

_SIGNS: dict[type[Expr], tuple[str, int]] = {
    Or: ("or", 1), And: ("and", 2),
    EQ: ("==", 3), NE: ("!=", 3), LT: ("<", 3), LE: ("<=", 3), GT: (">", 3), GE: (">=", 3),
    Add: ("+", 4), Sub: ("-", 4),
    Mul: ("*", 5), FloorDiv: ("//", 5), FloorMod: ("%", 5), Div: ("/", 5), Mod: ("rem", 5),
}  # fmt: skip


def text(value: object, level: int = 0) -> str:
    """An expression (or a number) as a person would write it."""
    if isinstance(value, Var):
        return value.name
    if isinstance(value, IntImm):
        return str(value.value)
    sign = _SIGNS.get(type(value))  # type: ignore[arg-type]
    if sign is not None and isinstance(value, BinaryOp):
        word, mine = sign
        inside = f"{text(value.a, mine)} {word} {text(value.b, mine + 1)}"
        return f"({inside})" if mine < level else inside
    if isinstance(value, BufferLoad):
        return f"{value.buffer.name}[{', '.join(text(i) for i in value.indices)}]"
    if isinstance(value, Expr) and value.children:
        name = getattr(getattr(value, "op", None), "name", type(value).__name__.lower())
        return f"{name}({', '.join(text(c) for c in value.children)})"
    return str(value)
