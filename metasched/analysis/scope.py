"""The scope of a block: its child blocks in program order and the dependences between them.

An edge joins two sibling blocks, in program order, that may touch one element of a buffer, where at
least one block writes. Two blocks whose regions, over all values of their iterators, are proved
disjoint have no edge. `dependence` says which iterations touch one element.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from metasched.analysis.overlap import Outside, overlap_distances
from metasched.arith.affine import Ranges, interval, linear, range_interval
from metasched.arith.bounds import Interval
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.expr import Expr, IntImm, Var
from metasched.ir.intern import quick
from metasched.ir.op import Call
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    fact,
)
from metasched.ir.variables import is_named
from metasched.ir.visit import free_vars, jumps, loads_of, reads_memory, walk_exprs


class EdgeKind(enum.Enum):
    """What a dependence is: read after write, write after write, write after read."""

    RAW = "read after write"
    WAW = "write after write"
    WAR = "write after read"


@quick
class Child:
    """A block directly in a scope.

    Attributes:
        realize: the block with its bindings.
        loops: the loops around the block, from the scope block down.
        branches: the statements around the block because of which the block may not run: branches
            of conditions, bodies of `while`, and bodies of loops with a `break` or `continue`.
        around: what the block may use beside the loops: the iterators of the scope block, and the
            variables that statements around the block define.
    """

    realize: BlockRealize
    loops: tuple[For, ...]
    branches: tuple[Stmt, ...] = ()
    around: tuple[IterVar | LetStmt, ...] = ()

    @property
    def block(self) -> Block:
        return self.realize.block

    @property
    def token(self) -> BlockToken:
        return self.realize.block.token


@dataclass(frozen=True, slots=True)
class Edge:
    """`dst`, later in the program, depends on `src` through `buffer`."""

    src: BlockToken
    dst: BlockToken
    kind: EdgeKind
    buffer: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class BufferUse:
    """What a block touches of one buffer, as regions over its iterators.

    Attributes:
        reads, writes: the declared regions (see `inputs`).
        ranges: the values of the iterators.
    """

    buffer: Buffer
    reads: tuple[BufferRegion, ...]
    writes: tuple[BufferRegion, ...]
    ranges: Ranges


@fact
def iter_ranges(block: Block) -> dict[Var, Interval]:
    """The values each iterator of a block can take (cached)."""
    return {v.var: range_interval(v.dom.min, v.dom.extent) for v in block.iter_vars}


@fact
def buffer_uses(block: Block) -> dict[Buffer, BufferUse]:
    """What a block touches, by buffer, from its declared regions (cached)."""
    parts: dict[Buffer, tuple[list[BufferRegion], list[BufferRegion]]] = {}
    for side, regions in enumerate((inputs(block), block.writes)):
        for region in regions:
            parts.setdefault(region.buffer, ([], []))[side].append(region)
    ranges = iter_ranges(block)
    return {
        buffer: BufferUse(buffer, tuple(reads), tuple(writes), ranges)
        for buffer, (reads, writes) in parts.items()
    }


Region: TypeAlias = tuple[tuple[Expr, Expr], ...]
"""For each dimension the first element and the extent."""


def _box(region: BufferRegion) -> Region:
    return tuple([(r.min, r.extent) for r in region.region])


def _touch(a: BufferUse, b: BufferUse, reads_a: bool, reads_b: bool) -> bool:
    """Whether one instance of each block may touch one element."""
    spans = *a.ranges.items(), *b.ranges.items()
    theirs = [_box(y) for y in (b.reads if reads_b else b.writes)]
    return any(
        _distances(_box(x), y, *spans) is not None
        for x in (a.reads if reads_a else a.writes)
        for y in theirs
    )


@lru_cache(maxsize=1 << 13)
def _distances(a: Region, b: Region, *spans: tuple[Var, Interval]) -> dict[Var, Interval] | None:
    """`overlap_distances` over the iterators of blocks, cached by value, because most edits and
    replays keep the regions.

    A variable that a statement around the blocks defines may differ between instances, too.
    """
    ranges = dict(spans)
    x, y = ([(linear(low), interval(extent, {})[1]) for low, extent in box] for box in (a, b))
    named = (v for low, _ in (*a, *b) for v in free_vars(low) if is_named(v))
    return overlap_distances(x, y, Outside((*ranges, *named)), ranges)


def undetermined_iters(block: Block, region: BufferRegion) -> list[Var]:
    """The iterators of a block whose values an element of one of its regions does not determine."""
    ranges, box = iter_ranges(block), _box(region)
    met = _distances(box, box, *ranges.items())
    if met is None:
        return []
    moving = [var for var, span in ranges.items() if span[0] != span[1]]
    return [var for var in moving if met.get(var) != (0, 0)]


def collect(
    stmts: Sequence[Stmt], iters: tuple[IterVar, ...] = ()
) -> tuple[list[Child], list[tuple[Stmt, tuple[For, ...]]]]:
    """The blocks directly below statements, and the loose statements outside of blocks.

    Returns the blocks in program order, and every statement that is neither a loop, a sequence nor
    a block; each with the loops above it. `around` is as of `Child`.
    """
    children: list[Child] = []
    loose: list[tuple[Stmt, tuple[For, ...]]] = []
    stack: list[tuple[Stmt, tuple[For, ...], tuple[Stmt, ...], tuple[IterVar | LetStmt, ...]]]
    stack = [(s, (), (), iters) for s in reversed(stmts)]
    while stack:
        stmt, loops, branches, around = stack.pop()
        nest: list[For] = []
        while type(stmt) is For:  # the most frequent node
            nest.append(stmt)
            stmt = stmt.body
            if jumps(stmt):
                branches = (*branches, stmt)
        loops = (*loops, *nest)
        if isinstance(stmt, BlockRealize):
            children.append(Child(stmt, loops, branches, around))
        elif isinstance(stmt, SeqStmt):
            stack.extend((item, loops, branches, around) for item in reversed(stmt.items))
        else:
            if not _has_no_place(stmt, loops):
                loose.append((stmt, loops))
            skipped = isinstance(stmt, (IfThenElse, While))
            inside = (*around, stmt) if isinstance(stmt, LetStmt) else around
            stack.extend(
                (s, loops, (*branches, s) if skipped else branches, inside)
                for s in reversed(stmt.stmts)
            )
    return children, loose


def _has_no_place(stmt: Stmt, loops: Sequence[For]) -> bool:
    """Whether a statement may stand anywhere: a number, or an assertion about the call.

    An assertion outside of loops that reads no memory compares run-time extents and scalars. A
    failed assertion ends the call with an error, and what it wrote before has no meaning.
    """
    if isinstance(stmt, AssertStmt):
        return not loops and not any(map(reads_memory, stmt.exprs))
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)


_ByToken: TypeAlias = "dict[BlockToken, list[Edge]]"


class _Parts:
    """The facts of a Scope, cached on its block.

    They do not mention the block: a cycle of references would keep every version of a program in
    memory until the garbage collector runs.
    """

    __slots__ = ("children", "edges", "incoming", "loose", "outgoing", "realizes", "under")

    def __init__(self, block: Block) -> None:
        self.realizes, self.loose = collect(block.stmts, block.iter_vars)
        self.children = {child.realize.block.token: child for child in self.realizes}
        self.edges: list[Edge] | None = None
        self.incoming: _ByToken = {}
        self.outgoing: _ByToken = {}
        self.under: dict[Var, list[Child]] = {}


class Scope:
    """The child blocks of a scope block and the edges between them; see `Scope.of`.

    Attributes:
        block: the scope block.
        realizes: the children in program order.
        loose: statements of the scope that are neither loops, sequences nor blocks, with the
            loops above them (conditions, stores outside of any block, lets, ...).
    """

    __slots__ = ("_parts", "block", "loose", "realizes")

    def __init__(self, block: Block, parts: _Parts) -> None:
        self.block, self._parts = block, parts
        self.realizes, self.loose = parts.realizes, parts.loose

    @staticmethod
    def of(block: Block) -> Scope:
        """The scope of `block`, analysed once for each Block object."""
        parts: _Parts | None = block.facts.get("scope")
        if parts is None:
            parts = block.facts["scope"] = _Parts(block)
        return Scope(block, parts)

    def child(self, token: BlockToken) -> Child:
        """The child with this token; KeyError when it is not directly in the scope."""
        return self._parts.children[token]

    def get(self, token: BlockToken) -> Child | None:
        """The child with this token, None when it is not directly in the scope."""
        return self._parts.children.get(token)

    @property
    def edges(self) -> list[Edge]:
        """All dependences between different children, by the position of `dst`."""
        parts = self._parts
        if parts.edges is None:
            blocks = tuple(child.realize.block for child in self.realizes)
            parts.edges, parts.incoming, parts.outgoing = _dependences(blocks)
        return parts.edges

    def incoming(self, token: BlockToken) -> Sequence[Edge]:
        """The edges into a child."""
        _ = self.edges
        return self._parts.incoming.get(token, ())

    def outgoing(self, token: BlockToken) -> Sequence[Edge]:
        """The edges out of a child."""
        _ = self.edges
        return self._parts.outgoing.get(token, ())

    def producers(self, token: BlockToken) -> list[Child]:
        """The children that a child reads or overwrites results of, in program order."""
        flow = {e.src for e in self.incoming(token) if e.kind is not EdgeKind.WAR}
        return [c for c in self.realizes if c.token in flow]

    def consumers(self, token: BlockToken) -> list[Child]:
        """The children that read or overwrite results of a child, in program order."""
        flow = {e.dst for e in self.outgoing(token) if e.kind is not EdgeKind.WAR}
        return [c for c in self.realizes if c.token in flow]

    def writers(self, buffer: Buffer) -> list[Child]:
        """The children that write `buffer`, in program order."""
        return [c for c in self.realizes if writes(c.block, buffer)]

    def readers(self, buffer: Buffer) -> list[Child]:
        """The children that read `buffer`, in program order."""
        return [c for c in self.realizes if (f := buffer_uses(c.block).get(buffer)) and f.reads]

    def outside(
        self, buffer: Buffer, *, written: bool = False, below: For | None = None
    ) -> Stmt | None:
        """A statement outside of blocks that stores to `buffer` or, unless `written`, reads it.

        None if there is none. A statement that mentions a pointer to the buffer counts as a store.

        Args:
            below: look at the statements below this loop alone.
        """
        children = self.realizes if below is None else self.under(below)
        loops: dict[For, None] = {}
        for stmt, above in self.loose:
            if below is not None and all(n.var is not below.var for n in above):
                continue
            loops |= dict.fromkeys(above)
            if isinstance(stmt, BufferStore) and stmt.buffer is buffer:
                return stmt
            touched = _points_to if written else _mentions
            if any(touched(e, buffer) for e in stmt.exprs):
                return stmt
        if written:
            return None
        headers = [*loops, *(n for c in children for n in (*c.loops, c.realize))]
        return next((n for n in headers if any(_mentions(e, buffer) for e in n.exprs)), None)

    def under(self, loop: For) -> list[Child]:
        """The children below `loop`."""
        var, known = loop.var, self._parts.under
        if var not in known:
            known[var] = [c for c in self.realizes if any(n.var is var for n in c.loops)]
        return [*known[var]]


def header_reads(child: Child) -> frozenset[Buffer]:
    """The buffers that the ends of the loops around a block, its bindings or its predicate read."""
    return frozenset(
        load.buffer
        for node in (*child.loops, child.realize)
        for expr in node.exprs
        if reads_memory(expr)
        for load in loads_of(expr)
    )


def _mentions(expr: Expr, buffer: Buffer) -> bool:
    return any(e.buffer is buffer for e in loads_of(expr)) or buffer.data in free_vars(expr)


def _points_to(expr: Expr, buffer: Buffer) -> bool:
    taken = any(isinstance(e, Call) and e.op.name == "address_of" for e in walk_exprs(expr))
    return buffer.data in free_vars(expr) or (taken and _mentions(expr, buffer))


def writes(block: Block, buffer: Buffer) -> bool:
    """Whether a block writes a buffer, by its declared regions."""
    use = buffer_uses(block).get(buffer)
    return use is not None and bool(use.writes)


def may_overlap(a: Block, b: Block, buffer: Buffer, *, reads_a: bool, reads_b: bool) -> bool:
    """Whether an instance of each of two blocks may touch one element of `buffer`.

    With `reads_a` the regions that `a` reads count, else those it writes; likewise `reads_b`.
    Cached by blocks.
    """
    x, y = buffer_uses(a).get(buffer), buffer_uses(b).get(buffer)
    return x is not None and y is not None and _touch(x, y, reads_a, reads_b)


@lru_cache(maxsize=1 << 11)
def _dependences(blocks: tuple[Block, ...]) -> tuple[list[Edge], _ByToken, _ByToken]:
    """The edges between blocks, and the edges into and out of each block.

    Cached, because edges do not depend on loops, so most edits keep them.
    """
    edges = list(_edges(blocks))
    incoming: _ByToken = {}
    outgoing: _ByToken = {}
    for edge in edges:
        incoming.setdefault(edge.dst, []).append(edge)
        outgoing.setdefault(edge.src, []).append(edge)
    return edges, incoming, outgoing


def _edges(blocks: Sequence[Block]) -> Iterable[Edge]:
    touched: dict[Buffer, list[tuple[BlockToken, BufferUse]]] = {}
    for block in blocks:
        for buffer, use in buffer_uses(block).items():
            earlier = touched.setdefault(buffer, [])
            for token, before in earlier:
                if before.writes and use.reads and _touch(before, use, False, True):
                    yield Edge(token, block.token, EdgeKind.RAW, buffer)
                if before.writes and use.writes and _touch(before, use, False, False):
                    yield Edge(token, block.token, EdgeKind.WAW, buffer)
                if before.reads and use.writes and _touch(before, use, True, False):
                    yield Edge(token, block.token, EdgeKind.WAR, buffer)
            earlier.append((block.token, use))
