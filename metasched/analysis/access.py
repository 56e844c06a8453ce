"""Accesses: the elements that a block loads and stores, their strides in loops, their bytes.

`accesses` reads the body of a leaf block. For a block that holds other blocks, pointers or foreign
code, only the declared regions are known, and `exact_accesses` gives None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from metasched.analysis.boxes import upper_span
from metasched.analysis.cover import loop_ranges
from metasched.analysis.failure import Failure
from metasched.analysis.guarded import transparent
from metasched.analysis.overlap import Side
from metasched.analysis.scope import Child, buffer_uses, collect, undetermined_iters
from metasched.arith.affine import interval, linear
from metasched.arith.intset import relax
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Let, Var, as_int
from metasched.ir.op import Effect, Ramp, effect_of
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, LetStmt, Stmt, fact
from metasched.ir.variables import is_named
from metasched.ir.visit import (
    free_vars,
    loads_of,
    stmt_vars,
    substitute,
    walk_exprs,
    walk_stmts,
)

SHUFFLED = 4
"""Vectors of lanes at most this many elements apart are shuffled from contiguous vectors."""
STEPS = 4
"""Lanes that each walk along memory load this many steps at once. 8 and 16 steps are slower by 6
and 14 % on a Zen 4, which splits wide exchanges."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One load or store in the body of a block.

    Attributes:
        buffer: the buffer that is accessed.
        indices: the indices, over the block's iterators and the variables bound inside the block.
        is_write: whether the access is a store.
        loops: the loops inside the block around the access, outermost first.
        in_init: whether the access stands in the block's init.
        inner: the variables bound inside the block (by loops and lets).
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_write: bool
    loops: tuple[For, ...]
    in_init: bool
    inner: frozenset[Var]

    @property
    def region(self) -> BufferRegion:
        """The box accessed while the loops inside the block run; a point without such loops."""
        point = BufferRegion.point(self.buffer, self.indices)
        if not self.loops:
            return point
        return relax(point, {p.var: Range(p.min, p.extent) for p in self.loops})


@lru_cache(maxsize=1 << 12)
def _bound_in(expr: Expr) -> frozenset[Var]:
    return frozenset(e.var for e in walk_exprs(expr) if isinstance(e, Let))


@fact
def accesses(block: Block) -> tuple[Access, ...]:
    """The loads and stores of a block's init and body, excluding blocks inside (cached).

    An access that occurs twice under the same inner loops is listed once.
    """
    seen: dict[object, Access] = {}
    for part in block.stmts:
        for access in _collect(part, in_init=part is block.init):
            key = (access.buffer, access.indices, access.is_write, access.loops, access.in_init)
            seen.setdefault(key, access)
    return tuple(seen.values())


def _collect(top: Stmt, *, in_init: bool) -> Iterator[Access]:
    stack: list[tuple[Stmt, tuple[For, ...], dict[Var, Expr], frozenset[Var]]] = []
    stack.append((top, (), {}, frozenset()))
    while stack:
        stmt, loops, lets, inner = stack.pop()
        for expr in stmt.exprs:
            for load in loads_of(expr):
                where = tuple([substitute(i, lets) for i in load.indices])
                yield Access(load.buffer, where, False, loops, in_init, inner | _bound_in(expr))
        if isinstance(stmt, BufferStore):
            where = tuple([substitute(i, lets) for i in stmt.indices])
            yield Access(stmt.buffer, where, True, loops, in_init, inner)
        elif isinstance(stmt, For):
            loops, inner = (*loops, stmt), inner | {stmt.var}
        elif isinstance(stmt, LetStmt):
            lets, inner = {**lets, stmt.var: substitute(stmt.value, lets)}, inner | {stmt.var}
        if not isinstance(stmt, BlockRealize):
            stack.extend((s, loops, lets, inner) for s in reversed(stmt.stmts))


@fact
def exact_accesses(block: Block) -> tuple[Access, ...] | None:
    """`accesses` where they are complete, None where only declared regions are known.

    Only the regions are known if the block holds a block, matches or views a buffer, or uses
    pointers or foreign code.
    """
    return accesses(block) if transparent(block) else None


def updates_in_place(block: Block, buffer: Buffer) -> bool:
    """Whether the only element of `buffer` that body and init read is the element that the body
    writes.

    True as well when they do not read `buffer`, or when only declared regions are known.
    """
    own = [a for a in exact_accesses(block) or () if a.buffer is buffer]
    read = {a.indices for a in own if not a.is_write}
    written = {a.indices for a in own if a.is_write and not a.in_init}
    return not read or (len(written) == 1 and read <= written)


def index_side(index: Expr) -> Side:
    """One index for `overlap_distances`; a ramp counts as the interval from its first lane on."""
    if index.dtype.lanes == 1:
        return linear(index), 1
    if isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value > 0:
        return linear(index.base), index.stride.value * (index.lanes - 1) + 1
    return Linear({}, 0), inf


def bound_access(access: Access, child: Child) -> tuple[Side, ...]:
    """An access of a child over loop variables: the iterators replaced by their bindings."""
    values = child.realize.bindings
    return tuple(index_side(substitute(i, values)) for i in access.indices)


@fact
def injective_block(block: Block) -> Failure | None:
    """Whether different instances of a block write different elements."""
    for region in block.writes:
        if any(as_int(r.extent) != 1 for r in region.region):
            text = f"block {block.name} writes more than one element at a time"
            return Failure("not-injective", text, block)
        for var in undetermined_iters(block, region):
            indices = [r.min for r in region.region]

            def sentence(var: Var = var, indices: list[Expr] = indices) -> str:
                shown = ", ".join(map(show_expr, indices))
                return f"different values of {var.name} may give the same index [{shown}]"

            return Failure("not-injective", sentence, indices[0] if indices else None)
    return None


@fact
def copies(block: Block) -> bool:
    """Whether a block is a copy such as T[i + k] = S[i + k] * 2, which reads memory."""
    stores = [s for s in walk_stmts(block) if isinstance(s, BufferStore)]
    return all(loads_of(store.value) for store in stores) and one_value(block)


@fact
def one_value(block: Block) -> bool:
    """Whether a block has one value for each element, as T[i + k] = S[i + k] * 2.

    Two instances that store to one element then store the same value, unless memory changed between
    them. Iterators occur in the stored value only within whole indices of the element.
    """
    stores = [s for s in walk_stmts(block) if isinstance(s, BufferStore)]
    loaded = {a.buffer for a in accesses(block) if not a.is_write}
    into = {s.buffer for s in stores} - loaded
    if block.init is not None or len(into) != len(stores) or not transparent(block):
        return False
    moving = {v.var for v in block.iter_vars}.union(*(a.inner for a in accesses(block)))
    moving.update(filter(is_named, stmt_vars(block)))
    for store in stores:
        if effect_of(store.value) > Effect.READ:
            return False
        if any(i.dtype.lanes > 1 for i in store.indices):
            return False
        places, below = set(store.indices), [store.value]
        while below:
            expr = below.pop()
            if expr in places:
                continue
            places.add(expr)
            if expr in moving or isinstance(expr, Let):
                return False
            below.extend(expr.children)
    return True


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a read region follows from the write region of a block.

    Attributes:
        axes: for each dimension of the read, the dimension of the write with the same index; -1 if
            the index is a constant.
        shifted: whether an index of the read is an index of the write plus a constant.
    """

    axes: tuple[int, ...]
    shifted: bool

    @property
    def injective(self) -> bool:
        """No index of the write occurs twice in the read."""
        used = [a for a in self.axes if a >= 0]
        return len(used) == len(set(used))

    @property
    def ordered(self) -> bool:
        """The indices of the write occur in their order."""
        used = [a for a in self.axes if a >= 0]
        return used == sorted(used)


def read_pattern(read: BufferRegion, write: BufferRegion, grouped: bool = False) -> Pattern | None:
    """Match each index of `read` with an index of `write`; None where an index does not match.

    The indices of the write must be plain variables or constants. An index of the read is a
    constant, or an index of the write plus a constant.

    Args:
        grouped: an index v // c or v % c of the read, c a constant, counts as v.
    """
    position: dict[Expr, int] = {}
    for k, r in enumerate(write.region):
        if as_int(r.extent) is None or not (isinstance(r.min, Var) or as_int(r.min) is not None):
            return None
        position[r.min] = k
    axes: list[int] = []
    shifted = False
    for r in read.region:
        form = linear(r.min)
        if as_int(r.extent) is None:
            return None
        if not form.terms:
            axes.append(-1)
            continue
        ((atom, coef), *more) = form.terms.items()
        if grouped and isinstance(atom, (FloorDiv, FloorMod)) and (as_int(atom.b) or 0) > 0:
            atom = atom.a
        if more or coef != 1 or atom not in position:
            return None
        axes.append(position[atom])
        shifted |= form.const != 0
    return Pattern(tuple(axes), shifted)


def is_constant_tensor(block: Block) -> bool:
    """Whether a block computes one buffer from nothing but its iterators."""
    return not block.reads and len(block.writes) == 1 and block.init is None


def stride_of(access: Access, child: Child, loop: For) -> int | None:
    """The distance in elements of an access in two consecutive iterations of `loop`.

    Args:
        access: an access of the child's body.
        child: the block.
        loop: a loop above the block, or inside it.

    Returns None if the distance is not constant: symbolic strides, indices with // or % of `loop`.
    """
    total = 0
    values = child.realize.bindings
    for index, by in zip(access.indices, access.buffer.constant_strides(), strict=True):
        bound = substitute(index, values)
        if loop.var not in free_vars(bound):
            continue
        form = linear(bound)
        tangled = any(loop.var in free_vars(a) for a in form.terms if a is not loop.var)
        if tangled or by is None:
            return None
        total += form.terms.get(loop.var, 0) * by  # no term: its multiples cancel
    return total


def strides(child: Child, loop: For) -> list[tuple[Access, int | None]]:
    """`stride_of` for each access of a child's body, but for buffers of its own."""
    own = child.block.alloc_buffers
    return [(a, stride_of(a, child, loop)) for a in accesses(child.block) if a.buffer not in own]


def touched_box(stmt: Stmt, buffer: Buffer) -> list[tuple[float, float]] | None:
    """The extents of the box of `buffer` that all blocks below `stmt` touch.

    For each dimension: the extent from the lowest to the highest element, and this extent clipped
    to the buffer. None when no block below touches the buffer.
    """
    children, _ = collect([stmt])
    lows: list[float] = []
    highs: list[float] = []
    for child in children:
        if buffer not in buffer_uses(child.block):
            continue
        varying, at = loop_ranges(child.loops), child.realize.bindings
        for region in (*child.block.reads, *child.block.writes):
            if region.buffer is buffer:
                ends = [(substitute(r.min, at), substitute(r.extent, at)) for r in region.region]
                spans = [upper_span(low, extent, varying) for low, extent in ends]
                if not lows:
                    lows, highs = [s.low for s in spans], [s.high for s in spans]
                lows = [min(a, s.low) for a, s in zip(lows, spans, strict=True)]
                highs = [max(b, s.high) for b, s in zip(highs, spans, strict=True)]
    if not lows and (buffer.shape or not _mentions(children, buffer)):
        return None
    sizes = [interval(s, {})[1] for s in buffer.shape]
    extents = [b - a + 1 for a, b in zip(lows, highs, strict=True)]
    return [(e, min(e, size)) for e, size in zip(extents, sizes, strict=True)]


def _mentions(children: Sequence[Child], buffer: Buffer) -> bool:
    regions = [r for c in children for r in (*c.block.reads, *c.block.writes)]
    return any(r.buffer is buffer for r in regions)


def touched_bytes(stmt: Stmt, buffer: Buffer) -> int | None:
    """How many bytes of `buffer` the blocks below `stmt` touch in one execution of it.

    The bytes of the box of the declared regions, at most of the whole buffer. 0 when no block
    touches the buffer, None when the box has no constant bound.
    """
    box = touched_box(stmt, buffer)
    if box is None:
        return 0
    total: float = buffer.dtype.bytes
    for _, extent in box:
        total *= extent
    return int(total) if total < inf else None
