"""auto_inline: inline elementwise producers into their consumers (after MetaSchedule)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metasched.analysis.access import is_constant_tensor, read_pattern
from metasched.analysis.block import (
    TILED,
    is_output,
    is_spatial_only,
    needs_multi_level_tiling,
)
from metasched.analysis.overwritten import overwriters
from metasched.analysis.scope import Child, Scope
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import TRUE, Cast, Div, Expr, FloatImm, IntImm, Select, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BlockRealize, BufferStore, IfThenElse
from metasched.ir.visit import blocks_of, free_vars, reads_memory, walk, walk_stmts
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule

INLINE_RULE = "inline_rule"
"""Annotation of a block: "disable" keeps it from being inlined."""
MAX_COPIED = 512
"""The most nodes by which copies of an inlined expression may make one consumer grow."""


@dataclass(frozen=True, slots=True)
class AutoInline:
    """Inline a block that writes one buffer into its consumers, or into its only producer.

    Attributes:
        into_producer, into_consumer: whether a block may be inlined into its producer, and into
            its consumers.
        inline_const_tensor: inline tables computed from iterators alone.
        disallow_if_then_else: keep blocks with a condition (a padding stage).
        require_injective: keep blocks that read with one index twice (a diagonal).
        require_ordered: keep blocks that read in another order than they write (a transposition).
        disallow_op: keep blocks that call one of these operations.
        disallow_repeated: keep blocks of floating-point numbers that divide or call a function
            where a consumer reuses data, as a product does, and blocks that combine several
            elements where a consumer reads each result many times.

    All but the first three are waived in a function that only has spatial blocks. Where consumers
    read each element once, as a matrix times a vector does, S[i // 4] counts as S[i]. Never inlined
    is a block whose expression one consumer would hold in copies of more than MAX_COPIED nodes:
    over several stages of a stencil, the nodes multiply. Nor is a table that a consumer looks up by
    indices from memory, more often than the table has elements.
    """

    into_producer: bool = False
    into_consumer: bool = True
    inline_const_tensor: bool = True
    disallow_if_then_else: bool = True
    require_injective: bool = True
    require_ordered: bool = True
    disallow_op: tuple[str, ...] = ("exp",)
    disallow_repeated: bool = True

    @property
    def name(self) -> str:
        return "auto_inline"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        around = sch.state.scope_block(realize)
        if around is None or not self._may(sch, realize):
            return [sch]
        refused: ScheduleError | None = None
        try:
            scope = sch.state.scope(realize)
            inner = not is_output(around, realize.block)
            later = overwriters(scope, scope.child(realize.block.token))
            if self.into_consumer and (inner or later):
                if error := self._grows(scope, realize.block):
                    sch.refused.append(error)
                    return [sch]
                name, _ = sch.state.func_of(realize)
                sch.compute_inline(block)
                if not later:
                    return [sch]
                # the last of these blocks is now the only writer of its results
                func = name if len(sch.mod.functions) > 1 else None
                return self(sch, sch.get_block(later[-1].block.name, func))
        except ScheduleError as error:
            refused = error.with_traceback(None)  # which would hold this frame
        if self.into_producer and self._single_producer(sch, realize):
            try:
                sch.reverse_compute_inline(block)
                return [sch]
            except ScheduleError as error:
                refused = refused or error.with_traceback(None)
        if refused is not None:
            sch.refused.append(refused)
        return [sch]

    def _may(self, sch: Schedule, realize: BlockRealize) -> bool:
        block = realize.block
        if len(block.writes) != 1 or block.annotations.get(INLINE_RULE) == "disable":
            return False
        if TILED in block.annotations:
            return False
        if block.init is not None or is_spatial_only(block) is not None:
            return False
        scope = sch.state.scope(realize)
        if any(_looks_up(sch, c.block, block) for c in scope.consumers(block.token)):
            return False
        if self.inline_const_tensor and is_constant_tensor(block) and scope.consumers(block.token):
            return True
        if _all_spatial(sch, realize):
            return True
        nodes, written = list(_nodes(block)), block.writes[0].buffer
        if any(isinstance(n, Call) and n.op.name in self.disallow_op for n in nodes):
            return False
        slow = any(map(_slow, nodes))
        if self.disallow_repeated and (slow or _combines(nodes)):
            consumers = [c for c in scope.consumers(block.token) if slow or _repeats(c, written)]
            if any(needs_multi_level_tiling(scope, c.token) is None for c in consumers):
                return False
        if self.disallow_if_then_else and (
            realize.predicate is not TRUE or _branches(block, nodes)
        ):
            return False
        once = all(_reads_once(c.block, written) for c in scope.consumers(block.token))
        return all(self._pattern(block, read, once) for read in block.reads)

    def _grows(self, scope: Scope, block: Block) -> ScheduleError | None:
        """Why a block is too large to be copied to each place where a consumer reads it."""
        buffer = block.writes[0].buffer
        size = _occurrences(block, lambda _: True)
        for consumer in scope.consumers(block.token):
            reads = _occurrences(consumer.block, lambda e: _loads(e, buffer))
            if (reads - 1) * size > MAX_COPIED:
                return ScheduleError(
                    self.name,
                    "grows",
                    f"{consumer.block.name} reads {buffer.name} {reads} times: inlined, "
                    f"the {size} nodes of {block.name} would become {reads * size}, and at most "
                    f"{MAX_COPIED} may be added",
                    block_or_loop=block,
                    hint="compute the block at a loop of its consumer instead (compute_at)",
                )
        return None

    def _pattern(self, block: Block, read: BufferRegion, grouped: bool) -> bool:
        if not (self.require_injective or self.require_ordered):
            return True
        pattern = read_pattern(read, block.writes[0], grouped)
        if pattern is None:
            return False
        return (pattern.injective or not self.require_injective) and (
            pattern.ordered or not self.require_ordered
        )

    def _single_producer(self, sch: Schedule, realize: BlockRealize) -> bool:
        producers = sch.state.scope(realize).producers(realize.block.token)
        return len(producers) == 1 and TILED not in producers[0].block.annotations


@dataclass(frozen=True, slots=True)
class InlineConstantScalars:
    """Inline blocks that compute a constant number."""

    @property
    def name(self) -> str:
        return "inline_constant_scalars"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        around = sch.state.scope_block(realize)
        node = realize.block
        scalar = not node.reads and len(node.writes) == 1 and not node.writes[0].region
        if around is not None and scalar and not is_output(around, node):
            try:
                sch.compute_inline(block)
            except ScheduleError:
                return [sch]
        return [sch]


def _nodes(block: Block) -> Iterator[object]:
    return (node for stmt in block.stmts for node in walk(stmt))


def _loads(expr: Expr, buffer: Buffer) -> bool:
    return isinstance(expr, BufferLoad) and expr.buffer is buffer


def _occurrences(block: Block, counted: Callable[[Expr], bool]) -> int:
    """How many expressions of a block are `counted`; a shared one counts wherever it occurs, as
    in the script."""
    known: dict[Expr, int] = {}
    roots = [expr for stmt in walk_stmts(block.body) for expr in stmt.exprs]
    stack = list(roots)
    while stack:
        missing = [child for child in stack[-1].children if child not in known]
        if missing:
            stack += missing
        else:
            expr = stack.pop()
            known[expr] = counted(expr) + sum(known[child] for child in expr.children)
    return sum(known[root] for root in roots)


def _slow(node: object) -> bool:
    """Whether an expression takes many times as long as a multiplication."""
    if not isinstance(node, (Div, Call)) or not node.dtype.is_float:
        return False
    if isinstance(node, Div):
        return not isinstance(node.b, FloatImm)
    return node.op.name not in ("if_then_else", "abs", "fabs")


def _combines(nodes: list[object]) -> bool:
    """Whether a value combines several floating-point elements of memory."""
    return len({n for n in nodes if isinstance(n, BufferLoad) and n.dtype.is_float}) > 1


def _repeats(consumer: Child, buffer: Buffer) -> bool:
    """Whether the consumer reads each element of a buffer for many of its results."""
    block = consumer.block
    spatial = {v.var for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1}
    regions = [r.region for r in block.reads if r.buffer is buffer]
    return any(spatial - set[Var]().union(*(free_vars(r.min) for r in box)) for box in regions)


def _looks_up(sch: Schedule, consumer: Block, table: Block) -> bool:
    """Whether a block looks elements of a table up by indices from memory, more often than the
    table has elements. A table that copies elements or numbers saves no work."""
    if all(_is_copied(s.value) for s in walk_stmts(table.body) if isinstance(s, BufferStore)):
        return False
    buffer = table.writes[0].buffer
    loads = [n for n in _nodes(consumer) if isinstance(n, BufferLoad) and n.buffer is buffer]
    if not any(reads_memory(i) for load in loads for i in load.indices):
        return False
    times, elements = _iterations(sch, consumer), _iterations(sch, table)
    return times is not None and elements is not None and times > elements


def _is_copied(value: Expr) -> bool:
    while isinstance(value, Cast):
        value = value.value
    return isinstance(value, (BufferLoad, Var, IntImm, FloatImm))


def _iterations(sch: Schedule, block: Block) -> int | None:
    """How often a block runs, at the representative sizes; None if an extent has no size."""
    sizes = [sch.state.size(v.dom.extent) for v in block.iter_vars]
    return None if None in sizes else math.prod(s for s in sizes if s is not None)


def _reads_once(consumer: Block, buffer: Buffer) -> bool:
    """Whether a block reads each element of a buffer in one iteration at most."""
    moving = {v.var for v in consumer.iter_vars if as_int(v.dom.extent) != 1}
    boxes = [r.region for r in consumer.reads if r.buffer is buffer]
    return (
        len(boxes) == 1
        and all(as_int(r.extent) == 1 for r in boxes[0])
        and moving <= {r.min for r in boxes[0]}
    )


def _branches(block: Block, nodes: list[object]) -> bool:
    return any(
        isinstance(n, (IfThenElse, Select))
        or (isinstance(n, Expr) and isinstance(n, Call) and n.op.name == "if_then_else")
        for n in nodes
    )


def _all_spatial(sch: Schedule, realize: BlockRealize) -> bool:
    """Whether all iterators of all blocks of the function are spatial."""
    _, func = sch.state.func_of(realize)
    return all(is_spatial_only(r.block) is None for r in blocks_of(func.body))
