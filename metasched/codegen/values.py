"""Values in registers: their names in LLVM text, and the scope in which they are known."""

from __future__ import annotations

from metasched.codegen.types import constant, register_type, splat
from metasched.ir.dtype import INT64, DType

INLINE = 1 << 30


class Val:
    """A value in a register or a literal.

    Attributes:
        text: the register or literal in LLVM text.
        dtype: scalar type; a value with `lanes` above 1 is a vector.
        const: the number of a scalar literal; else None.
        depth: the scope at whose entry the value is known; INLINE if it cannot be hoisted.
        nonneg: whether the value is an integer known to be 0 or more.
        width: a non-negative value that may come from memory is below 2**width; 0 for an index,
            whose arithmetic does not overflow.
    """

    __slots__ = ("const", "depth", "dtype", "lanes", "nonneg", "text", "width")

    def __init__(
        self, text: str, dtype: DType, lanes: int = 1, depth: int = INLINE,
        const: int | float | None = None,
    ) -> None:  # fmt: skip
        self.text, self.dtype, self.lanes = text, dtype, lanes
        self.depth, self.const = depth, const
        self.nonneg = const is not None and const >= 0
        self.width = 0

    @property
    def type(self) -> str:
        return register_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        """Type and name, as an operand."""
        return f"{self.type} {self.text}"


def literal(value: int | float, dtype: DType = INT64, lanes: int = 1) -> Val:
    """A constant, repeated over `lanes`."""
    text = splat(constant(value, dtype), register_type(dtype), lanes)
    return Val(text, dtype, lanes, 0, value if lanes == 1 else None)
