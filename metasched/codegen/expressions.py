"""One rule for each kind of expression: (emitter, node) -> value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metasched.codegen.arithmetic import binary, compare, convert, logical, negate, select
from metasched.codegen.branch import choose
from metasched.codegen.clamped_cast import clamped_cast
from metasched.codegen.division import divide_by_one, divides_by_one
from metasched.codegen.emit import Emitter
from metasched.codegen.memory import load, load_halves
from metasched.codegen.ops import OP_RULES, touches_memory
from metasched.codegen.places import lane_offsets
from metasched.codegen.runs import known_in_all_lanes
from metasched.codegen.types import register_type
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir import expr as ir
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import BOOL
from metasched.ir.expr import Add, And, Arithmetic, Cast, Div, Expr, FloatImm, IntImm, Let, Mul, Not
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle


def _var(e: Emitter, node: ir.Var) -> Val:
    if e.lane is not None and node is e.lane.var:
        offsets = lane_offsets(e, e.lane.lanes, 1, node.dtype)
        return binary(e, Add, e.widen(e.lane.base, e.lane.lanes), offsets)
    found = e.env.get(node) or e.pointers.get(node)
    if found is None:
        raise BuildError(f"variable {node.name} is not defined where it is used")
    return found


def _imm(e: Emitter, node: IntImm | FloatImm) -> Val:
    return literal(node.value, node.dtype)


def _string(e: Emitter, node: ir.StringImm) -> Val:
    return e.module.text_constant(node.value)


def _arithmetic(e: Emitter, node: Arithmetic) -> Val:
    """Emit an arithmetic operator. A loop walks chains that lean left, since sums of thousands of
    terms would exceed the recursion limit."""
    spine: list[Arithmetic] = [node]
    left = node.a
    while isinstance(left, Arithmetic) and e.shared_value(left) is None:
        spine.append(left)
        left = left.a
    value = e.value(left)
    for step in reversed(spine):
        right = _first_product(e, step, value) or e.value(step.b)
        if type(step) is Div and divides_by_one(e, value, right):
            value = divide_by_one(e, value, right)
        else:
            value = binary(e, type(step), value, right)
        e.keep(step, value)
    return value


def _first_product(e: Emitter, node: Arithmetic, before: Val) -> Val | None:
    """The product in 0 + a * b, the first step of a sum; None for other operators.

    LLVM may leave out the zero, and then has two products for the next step, of which either can be
    fused. So the first product is rounded on its own.
    """
    product = node.b
    if type(node) is not Add or not isinstance(product, Mul) or not before.dtype.is_float:
        return None
    if before.text != literal(0, before.dtype, before.lanes).text:
        return None
    a, b, around = e.value(product.a), e.value(product.b), e.unfused
    e.unfused = True
    result = binary(e, Mul, a, b)
    e.unfused = around
    return result


def _compare(e: Emitter, node: ir.Compare) -> Val:
    known = known_in_all_lanes(e, node)
    if known is not None:
        return literal(int(known), BOOL)
    return compare(e, type(node), e.value(node.a), e.value(node.b))


def _logical(e: Emitter, node: And | ir.Or) -> Val:
    """Emit `and` or `or`. A right operand that reads memory is evaluated only if it decides the
    result."""
    is_and = isinstance(node, And)
    left = e.value(node.a)
    if left.const is not None:
        return e.value(node.b) if bool(left.const) is is_and else left
    if not touches_memory(node.b):
        return logical(e, "and" if is_and else "or", left, e.value(node.b))
    needed = left if is_and else negate(e, left)
    if left.lanes > 1:
        with e.masked(needed):
            right = e.value(node.b)
        return logical(e, "and" if is_and else "or", left, right)
    settled = literal(int(not is_and), BOOL)
    return choose(e, needed, lambda: e.value(node.b), lambda: settled)


def _not(e: Emitter, node: Not) -> Val:
    return negate(e, e.value(node.a))


def is_cut(node: Expr) -> bool:
    """Whether an expression cuts a float to an integer that may be an index."""
    if not isinstance(node, Cast) or not node.value.dtype.is_float:
        return False
    return node.dtype.is_int and node.dtype.bits >= 32


def _cast(e: Emitter, node: Cast) -> Val:
    """Emit a cast. What is cut to an index is rounded after each operation, as in NumPy: two places
    that compute the index, one with fused operations, would disagree near whole numbers."""
    dtype, around = node.dtype.scalar, e.unfused
    e.unfused |= is_cut(node)
    value = clamped_cast(e, node) or load_halves(e, node)
    result = convert(e, e.value(node.value), dtype) if value is None else value
    e.unfused = around
    return result


def _select(e: Emitter, node: ir.Select) -> Val:
    condition = e.value(node.condition)
    return select(e, condition, *e.same_lanes(e.value(node.a), e.value(node.b)))


def _let(e: Emitter, node: Let) -> Val:
    with e.bound(node.var, e.value(node.value)):
        return e.value(node.body)


def _load(e: Emitter, node: BufferLoad) -> Val:
    mask = e.mask
    if node.predicate is not None:
        predicate = e.value(node.predicate)
        mask = predicate if mask is None else e.both(*e.same_lanes(mask, predicate))
    return load(e, node.buffer, flat_index(node.buffer, node.indices), mask)


def flat_index(buffer: Any, indices: tuple[Expr, ...]) -> Expr:
    """The single index of an access in a lowered function."""
    if len(indices) != 1:
        raise BuildError(f"buffer {buffer.name} is accessed with {len(indices)} indices: not flat")
    return indices[0]


def _ramp(e: Emitter, node: Ramp) -> Val:
    base, stride = e.value(node.base), e.value(node.stride)
    if base.lanes > 1 or stride.lanes > 1:
        raise BuildError("a ramp inside a vectorized loop or over vectors")
    steps = lane_offsets(e, node.lanes, 1, node.dtype.scalar)
    scaled = binary(e, Mul, e.widen(stride, node.lanes), steps)
    return binary(e, Add, e.widen(base, node.lanes), scaled)


def _broadcast(e: Emitter, node: Broadcast) -> Val:
    value = e.value(node.value)
    if value.lanes == 1:
        return e.widen(value, node.lanes)
    return _pick(e, [value], list(range(value.lanes)) * node.lanes)


def _shuffle(e: Emitter, node: Shuffle) -> Val:
    return _pick(e, [e.value(v) for v in node.vectors], list(node.indices))


def _pick(e: Emitter, vectors: list[Val], indices: list[int]) -> Val:
    """The lanes at `indices` of the concatenation."""
    lanes = [(v, i) for v in vectors for i in range(v.lanes)]
    if len(indices) == 1:
        return e.extract(*lanes[indices[0]])
    dtype, n = vectors[0].dtype, len(indices)
    kind = register_type(dtype, n)
    if vectors[0].lanes > 1 and len({v.lanes for v in vectors}) == 1:
        if _interleaves([v.lanes for v in vectors], indices, dtype.bits):
            return _concatenated(e, _in_order(e, _zipped(e, vectors)))
        whole = _concatenated(e, vectors)
        return _shuffled(e, whole, whole, indices)
    result = Val("poison", dtype, n, 0)
    for position, index in enumerate(indices):
        one = e.extract(*lanes[index])
        text = f"insertelement {kind} {result.text}, {one.typed}, i64 {position}"
        result = e.pure(text, dtype, n, result, one)
    return result


_PIECE = 128
"""The bits of a register within which machines zip vectors in one instruction."""


def _interleaves(rows: Sequence[int], indices: Sequence[int], bits: int) -> bool:
    """Whether a shuffle puts the elements of each column of four long rows side by side.

    Args:
        rows: the lanes of each row.
        indices: the lanes of the result, as in `Shuffle`.
        bits: the bits of an element.
    """
    lanes, count = rows[0], len(rows)
    columns = [row * lanes + i for i in range(lanes) for row in range(count)]
    return count == 4 and lanes * bits in (2 * _PIECE, 4 * _PIECE) and list(indices) == columns


def _zipped(e: Emitter, rows: Sequence[Val]) -> list[Val]:
    """The elements of each column side by side, within each 128 bits: the first part has the first
    columns of each 128 bits."""
    if len(rows) == 1:
        return [*rows]
    run, lanes, piece = len(rows) // 2, rows[0].lanes, _PIECE // rows[0].dtype.bits
    found = []
    for a, b in zip(_zipped(e, rows[:run]), _zipped(e, rows[run:]), strict=True):
        for half in (0, piece // 2):
            starts = [at for n in range(half, lanes, piece) for at in range(n, n + piece // 2, run)]
            sides = [at + side for at in starts for side in (0, lanes)]
            found.append(_shuffled(e, a, b, [at + n for at in sides for n in range(run)]))
    return found


def _in_order(e: Emitter, parts: Sequence[Val]) -> list[Val]:
    """The first 128 bits of four parts, then the second of all four, and so on."""
    piece = _PIECE // parts[0].dtype.bits
    count = parts[0].lanes // piece

    def picked(a: Val, b: Val, order: Sequence[int]) -> Val:
        return _shuffled(e, a, b, [n * piece + i for n in order for i in range(piece)])

    pairs = [(parts[0], parts[1]), (parts[2], parts[3])]
    if count == 2:
        return [picked(*pair, order) for order in ((0, 2), (1, 3)) for pair in pairs]
    halves = [[picked(a, b, (n, n + 1, n + 4, n + 5)) for a, b in pairs] for n in (0, 2)]
    return [picked(a, b, order) for a, b in halves for order in ((0, 2, 4, 6), (1, 3, 5, 7))]


def _concatenated(e: Emitter, vectors: list[Val]) -> Val:
    """Concatenate vectors of equal length in pairs, which takes one instruction a pair on many
    machines. A vector without a partner is joined with itself."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], [*vectors[1::2], vectors[-1]], strict=False)
        vectors = [_shuffled(e, a, b, list(range(2 * a.lanes))) for a, b in pairs]
    return vectors[0]


def _shuffled(e: Emitter, a: Val, b: Val, indices: list[int]) -> Val:
    """The lanes of two vectors of one type at `indices`."""
    mask = ", ".join(f"i32 {index}" for index in indices)
    text = f"shufflevector {a.typed}, {b.typed}, <{len(indices)} x i32> <{mask}>"
    return e.pure(text, a.dtype, len(indices), a, b)


def _call(e: Emitter, node: Call) -> Val:
    return OP_RULES[node.op.name](e, node)


EXPRESSION_RULES: dict[type[Expr], Callable[[Emitter, Any], Val]] = {
    ir.Var: _var, IntImm: _imm, FloatImm: _imm, ir.StringImm: _string,
    **dict.fromkeys((Add, ir.Sub, Mul, Div, ir.Mod), _arithmetic),
    **dict.fromkeys((ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max), _arithmetic),
    **dict.fromkeys((ir.EQ, ir.NE, ir.LT, ir.LE, ir.GT, ir.GE), _compare),
    And: _logical, ir.Or: _logical, Not: _not, Cast: _cast, ir.Select: _select, Let: _let,
    BufferLoad: _load, Ramp: _ramp, Broadcast: _broadcast, Shuffle: _shuffle, Call: _call,
}  # fmt: skip
