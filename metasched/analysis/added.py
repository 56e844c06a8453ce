"""Instances that a step adds to a block: whether they leave a buffer, divide by zero, or end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from metasched.analysis.failure import Failure
from metasched.analysis.guarded import guarded_reads
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    LE,
    LT,
    TRUE,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Let,
    Mod,
    Var,
    compare,
    logical_and,
)
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BufferStore, For, IfThenElse, LetStmt, While
from metasched.ir.visit import walk


def control_exprs(block: Block) -> Iterator[Expr]:
    """Yield the expressions that control a block: conditions, loop bounds and values of lets."""
    for node in walk(block):
        if isinstance(node, (IfThenElse, While)):
            yield node.condition
        elif isinstance(node, For):
            yield from (node.min, node.extent)
        elif isinstance(node, (Let, LetStmt)):
            yield node.value
        elif isinstance(node, Call) and node.op.name == "if_then_else":
            yield node.args[0]


def unsafe_divisors(block: Block, an: Analyzer) -> list[Expr]:
    """The divisors of integer divisions in a block that `an` does not prove to differ from zero."""
    return perhaps_zero(walk(block), an)


def perhaps_zero(nodes: Iterable[object], an: Analyzer) -> list[Expr]:
    """The divisors of the integer divisions among `nodes` that may be zero; see above."""
    return [
        node.b
        for node in nodes
        if isinstance(node, (Div, Mod, FloorDiv, FloorMod))
        and node.dtype.is_int
        and not (an.prove(node.b > 0) or an.prove(node.b < 0))
    ]


def in_bounds(indices: Sequence[Expr], region: Sequence[Range], analyzer: Analyzer) -> Expr:
    """The condition for `indices` to lie within `region`, without the parts that are proved."""
    out: Expr = TRUE
    for index, r in zip(indices, region, strict=True):
        for condition in (compare(LE, r.min, index), compare(LT, index, r.min + r.extent)):
            if not analyzer.prove(condition):
                out = logical_and(out, condition)
    return out


def unsafe_instances(block: Block, ranges: Mapping[Var, Range]) -> Failure | None:
    """Whether an instance may leave a buffer, divide by zero, or not end.

    Args:
        ranges: the values of the iterators of the block.
    """
    known = Analyzer(ranges)
    divisors = unsafe_divisors(block, known)
    if divisors:
        by = show_expr(divisors[0])
        return Failure("divides", f"{block.name} may divide by zero in added instances: by {by}")
    reads = guarded_reads(block)
    if reads is None:
        text = f"{block.name} holds more than bounded loops, loads and stores of single elements"
        return Failure("not-transparent", text)
    stores = [s for s in walk(block) if isinstance(s, BufferStore)]
    points = [(known, s.buffer, s.indices) for s in stores]
    for read in reads:
        inner = Analyzer({**ranges, **{var: Range(low, size) for var, low, size in read.loops}})
        for condition in read.conditions:
            inner = inner.assume(condition)
        points.append((inner, read.buffer, read.indices))
    for inner, buffer, indices in points:
        if in_bounds(indices, buffer.whole().region, inner) is not TRUE:
            at = ", ".join(map(show_expr, indices))
            text = f"{block.name} may leave {buffer.name} at [{at}] in added instances"
            return Failure("leaves-buffer", text)
    return None
