"""The operations of a value: how many there are of each kind, and how long they take in a row."""

from __future__ import annotations

from functools import lru_cache

from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Var
from metasched.ir.op import Call, Effect, HardwareOp, called_instruction
from metasched.ir.visit import loads_of

# Operation counts of one store: KINDS for floats, KINDS for the rest, then logic and select.
KINDS = ("mad", "add_sub", "mul", "div_mod", "cmp", "math", "call")

LOGIC, SELECT = 14, 15


def count(
    value: Expr, counts: list[int], accesses: list[tuple[Buffer, tuple[Expr, ...], bool]]
) -> tuple[tuple[tuple[HardwareOp, frozenset[Buffer]], ...], int]:
    """Count the operations of a value, in place, each once even where several operations use its
    result; a sum with a product is one multiply-add.

    Returns the declared instructions that it calls, which count as operations, too, and the number
    of operations on scalars in a vector.
    """
    stack, called, scalars = [value], [], 0
    counted: set[Expr] = set()
    while stack:
        expr = stack.pop()
        kind = type(expr)
        if kind is Var or kind is ir.IntImm or kind is ir.FloatImm or kind is ir.StringImm:
            continue
        if kind is BufferLoad:
            accesses.append((expr.buffer, expr.indices, False))  # type: ignore[attr-defined]
            stack.extend(expr.indices)  # type: ignore[attr-defined]
            continue
        if expr in counted:
            continue
        counted.add(expr)
        slot = _slot(expr)
        if slot is not None:
            counts[slot] += 1
            scalars += expr.dtype.lanes == 1 < value.dtype.lanes
        instruction = called_instruction(expr)
        if instruction is not None:
            called.append((instruction, frozenset(load.buffer for load in loads_of(expr))))
        if (kind is ir.Add or kind is ir.Sub) and slot is not None:
            product = _product_of(expr)
            if product is not None:
                counts[slot] -= 1
                counts[slot - 1] += 1
                other = expr.a if product is expr.b else expr.b  # type: ignore[attr-defined]
                stack += (other, *product.children)
                continue
        stack.extend(expr.children)
    return tuple(called), scalars


def _product_of(expr: Expr) -> Expr | None:
    for side in (expr.b, expr.a):  # type: ignore[attr-defined]
        if type(side) is ir.Mul:
            return side
    return None


_LATENCY = (1.0, 1.0, 1.0, 3.0, 0.5, 6.0, 1.0, 1.0, 0.25, 0.75, 5.0, 0.25, 6.0, 1.0, 0.25, 0.25)
"""How many sums of floats take as long as one operation of each counter: integers need one cycle
for most operations."""
_BINARY: dict[type[Expr], int] = {
    ir.Add: 1, ir.Sub: 1, ir.Mul: 2, ir.Div: 3, ir.Mod: 3, ir.FloorDiv: 3, ir.FloorMod: 3,
    ir.Min: 4, ir.Max: 4,
}  # fmt: skip


_SIMPLE = {"fma": 0} | dict.fromkeys(
    ("abs", "floor", "ceil", "trunc", "round", "nearbyint", "isnan", "isinf", "isfinite",
     "popcount", "clz", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left",
     "shift_right"), 1,
)  # fmt: skip
"""The counters of calls that are one instruction of most machines."""


def _slot(expr: Expr) -> int | None:
    """The index of an operation's counter, None if the operation costs nothing (casts, vectors,
    bindings)."""
    kind = type(expr)
    if isinstance(expr, (ir.And, ir.Or, ir.Not)):
        return LOGIC
    if kind is ir.Select:
        return SELECT
    if isinstance(expr, ir.BinaryOp):
        operand = expr.a.dtype
        slot = 4 if isinstance(expr, ir.Compare) else _BINARY[kind]
        return slot if operand.is_float else slot + 7
    if isinstance(expr, Call):
        if expr.op.name == "if_then_else":
            return SELECT
        if expr.op.name in ("likely", "reinterpret", "address_of", "access_ptr"):
            return None
        pure = expr.op.effect is Effect.PURE and expr.op.arity is not None
        slot = _SIMPLE.get(expr.op.name, 5 if pure else 6)
        return slot if expr.dtype.is_float else slot + 7
    return None


@lru_cache(maxsize=1 << 12)
def time_between(value: Expr, read: Expr) -> float | None:
    """The time of the operations from a read to a value, in sums of floats; None where the value
    does not depend on the read."""
    if value is read:
        return 0.0
    slot = _slot(value)
    own = _LATENCY[slot] if slot is not None else 0.0
    steps = [(part, own) for part in value.children]
    product = _product_of(value) if type(value) is ir.Add or type(value) is ir.Sub else None
    if product is not None and slot is not None:  # one multiply-add
        steps = [(part, own) for part in value.children if part is not product]
        steps += [(part, _LATENCY[slot - 1]) for part in product.children]
    found = [(time_between(part, read), time) for part, time in steps]
    return max((path + time for path, time in found if path is not None), default=None)
