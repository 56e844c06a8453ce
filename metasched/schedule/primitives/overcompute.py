"""overcompute: pads spatial iterators to multiples of a tile; the extra results are not used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import add

from metasched.analysis.access import exact_accesses
from metasched.analysis.added import control_exprs, unsafe_divisors
from metasched.analysis.scope import EdgeKind
from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, relax_ranges
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    LE,
    LT,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Mod,
    Var,
    as_expr,
    as_int,
    compare,
    logical_and,
    minimum,
)
from metasched.ir.op import FLOATING, Call, call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    IfThenElse,
    IterVar,
    Stmt,
    While,
    evolve,
)
from metasched.ir.visit import (
    free_vars,
    loads_of,
    reads_memory,
    substitute,
    substitute_buffers,
    transform,
    walk,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_complete_or_reduction, require_stage_pipeline
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import (
    refuse_partial,
)
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.new_stage import own_loops, with_extent
from metasched.schedule.primitives.storage import allocating_block
from metasched.schedule.state import State

TOTAL = frozenset((*FLOATING.split(), "abs", "fma", "pow", "if_then_else"))
"""Functions that give a value, and do nothing else, for any arguments."""


@primitive(of_block=ways.with_spatial_twos)
def overcompute(state: State, block: BlockLike, multiples: Sequence[int | Expr]) -> None:
    """Round the extent of each iterator of `block` up to a multiple of its number in `multiples`.

    Tiles then divide evenly and need no conditions. The written buffer grows by the extra results,
    which no other block reads. Where an extra read would leave its buffer, the iterator is clamped
    to its last value, unless a condition around the body keeps the read inside. Loops and block
    keep their handles. An iterator whose extent is already a multiple is not changed. An extent
    that is known at run time only is rounded up at run time.

    requires  a block in a stage pipeline, whose inputs later blocks may overwrite, alone below
              loops that are its iterators; complete, a reduction, or without init and with no index
              or loop that depends on its result; one written buffer, allocated by the block around
              and indexed by each padded iterator itself; one positive integer for each iterator, 1
              for others than spatial iterators; no integer division by a loaded value; a block
              around that declares all that is read after the step
    rewrite   B[i] = A[i]; C[i] = B[i] for 7 i
              -> B[i] = A[T.min(i, 6)] for 8 i; C[i] = B[i] for 7 i
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    scope = require_stage_pipeline(state, realize, realize.block, in_place=True)
    apart = _keeps_apart(realize.block)
    if not apart:
        require_complete_or_reduction(state, scope, realize)
    loops = own_loops(state, realize)
    grown = _grown(state, realize, multiples)
    if not grown:
        return
    old = realize.block
    buffer = old.writes[0].buffer
    if len(old.writes) != 1:
        raise state.error("several-results", f"{old.name} writes several buffers", realize)
    site = allocating_block(state, realize, buffer)
    if site is not state.scope_block(realize):
        raise state.error(
            "not-allocated", f"{buffer.name} is allocated outside of the block around "
            f"{old.name}, which declares the region it writes", realize,
        )  # fmt: skip
    if not apart:
        refuse_partial(state, realize, buffer)
    place = _place(state, realize, buffer, grown)
    larger = _larger(state, realize, place, grown)
    _require_safe(state, realize)
    later = {
        e.buffer for e in scope.outgoing(old.token) if e.kind is EdgeKind.WAR
    }  # an extra read may meet the element of another tile
    changed = _rewritten(old, place, grown, later)
    _require_declared(state, realize, changed)
    edits = [edit.wrap(old, lambda node: changed)]
    for loop, v in zip(loops, old.iter_vars, strict=True):
        if v.var in grown:
            edits.append(edit.wrap(loop, with_extent(as_expr(grown[v.var], loop.var.dtype))))
    edits.append(edit.wrap(site, lambda node: substitute_buffers(node, {buffer: larger})))
    state.commit(*edits)


def _keeps_apart(block: Block) -> bool:
    """Whether the instances of a block for an element read and write that element alone.

    Such a block may keep the order of its instances, and other blocks may write the element before
    or after. No index or loop depends on the element: its value in an added iteration is unknown.
    """
    if block.init is not None or exact_accesses(block) is None or len(block.writes) != 1:
        return False
    buffer = block.writes[0].buffer
    accesses = [s for s in walk(block) if isinstance(s, (BufferLoad, BufferStore))]
    steering = (*control_exprs(block), *(index for s in accesses for index in s.indices))
    return all(buffer is not load.buffer for e in steering for load in loads_of(e))


def _require_declared(state: State, realize: BlockRealize, changed: Block) -> None:
    """Refuse reads outside of the regions that the block around declares."""
    around, old = state.scope_block(realize), realize.block
    assert around is not None
    for before, after in zip(old.reads, changed.reads, strict=False):
        boxes = [
            relax_ranges(read.region, {v.var: v.dom for v in block.iter_vars})
            for block, read in ((old, before), (changed, after))
        ]
        declared = [r.region for r in around.reads if r.buffer is after.buffer]
        reached = boxes[1]
        if not declared or boxes[0] == reached:
            continue
        if reached is None or not any(covers(region, reached) for region in declared):
            raise state.error(
                "reads-beyond",
                f"{old.name} would read more of {after.buffer.name} than {around.name}, the block "
                "around it, declares to read",
                realize,
                hint=f"annotate_buffer_access widens what {around.name} declares to read",
            )


def _grown(
    state: State, realize: BlockRealize, multiples: Sequence[int | Expr]
) -> dict[Expr, Expr]:
    """The iterators that are padded, with their new extents."""
    iters = realize.block.iter_vars
    factors = [plain_int(state, n, "a multiple") for n in multiples]
    if len(factors) != len(iters) or any(n < 1 for n in factors):
        raise state.error(
            "bad-multiples",
            f"{realize.block.name} has {len(iters)} iterators; {factors} is not one positive "
            "integer for each",
            realize,
        )
    out: dict[Expr, Expr] = {}
    for v, factor in zip(iters, factors, strict=True):
        extent = as_int(v.dom.extent)
        if factor == 1 or (extent is not None and extent % factor == 0):
            continue
        if not v.is_spatial:
            raise state.error(
                "cannot-run-on",
                f"{v.var.name} is no spatial iterator",
                realize,
                hint="pad_einsum pads reductions with zeros",
            )
        more = _simplified((v.dom.extent + (factor - 1)) // factor * factor)
        if more is not _simplified(v.dom.extent):
            out[v.var] = more
    return out


def _simplified(extent: Expr) -> Expr:
    """An extent in canonical form."""
    return Analyzer().simplify(extent)


def _place(
    state: State, realize: BlockRealize, buffer: Buffer, grown: Mapping[Expr, Expr]
) -> BufferStore:
    """A store of the block; raises unless all stores have the same indices, among them each padded
    iterator itself."""
    stores = [s for s in walk(realize.block) if isinstance(s, BufferStore)]
    loads = [e for e in walk(realize.block) if isinstance(e, BufferLoad) and e.buffer is buffer]
    indices = stores[0].indices
    lone = [i for i in indices if i in grown]
    mixed = [i for i in indices if i not in grown and not grown.keys().isdisjoint(free_vars(i))]
    same = all(s.indices == indices for s in stores) and all(e.indices == indices for e in loads)
    if not same or mixed or len(lone) != len(grown) or set(lone) != set(grown) or buffer.strides:
        raise state.error(
            "not-plain-index",
            f"{buffer.name} is not written at one place whose indices are the padded iterators",
            realize,
            hint="cache_write gives a block a buffer that is indexed by its iterators",
        )
    return stores[0]


def _larger(
    state: State, realize: BlockRealize, place: BufferStore, grown: Mapping[Expr, Expr]
) -> Buffer:
    """The written buffer, enlarged by the extra results."""
    old = place.buffer
    extents: dict[Expr, Expr] = {v.var: v.dom.extent for v in realize.block.iter_vars}
    shape: list[Expr] = []
    for index, size in zip(place.indices, old.shape, strict=True):
        fits = index not in grown or _simplified(size) is _simplified(extents[index])
        if not fits and _simplified(size) is _simplified(grown[index]):
            fits = _unread(state, realize, old, len(shape), extents[index])
        if not fits:
            raise state.error(
                "shared-result",
                f"{realize.block.name} writes only a part of {old.name} along {show_expr(index)}",
                realize,
            )
        shape.append(as_expr(grown[index], size.dtype) if index in grown else size)
    return state.fresh_buffer(
        old.name, tuple(shape), old.dtype, old.scope, (), None, old.align, old.offset_factor
    )


def _unread(state: State, realize: BlockRealize, buffer: Buffer, axis: int, end: Expr) -> bool:
    """Whether no other block reads elements of a buffer from `end` on along an axis."""
    around = state.scope_block(realize)
    assert around is not None
    inside = Range(as_expr(0, end.dtype), end)
    for node in walk(around.body):
        if not isinstance(node, Block) or node is realize.block:
            continue
        for read in node.reads:
            if read.buffer is buffer:
                box = relax_ranges(read.region, {v.var: v.dom for v in node.iter_vars})
                if box is None or not covers((inside,), (box[axis],)):
                    return False
    return True


def _require_safe(state: State, realize: BlockRealize) -> None:
    """Refuse a block whose extra instances may divide by zero or leave a buffer through a view."""
    if any(isinstance(b, Block) and b.match_buffers for b in walk(realize.block)):
        raise state.error(
            "opaque-use", f"{realize.block.name} matches a region that would leave its buffer",
            realize,
        )  # fmt: skip
    for node in walk(realize.block):
        if not isinstance(node, (Div, Mod, FloorDiv, FloorMod)) or not node.dtype.is_int:
            continue
        if reads_memory(node.b):
            raise state.error(
                "divides",
                f"{realize.block.name} divides by a value that is unknown in the added iterations",
                realize,
            )


def _rewritten(
    old: Block, place: BufferStore, grown: Mapping[Expr, Expr], later: Collection[Buffer]
) -> Block:
    """The block over its new domain.

    Args:
        old: the block.
        place: a store of the block; all its stores have these indices.
        grown: the padded iterators with their new extents.
        later: the buffers that other blocks overwrite; the value of an extra instance is zero then.
    """
    iters = tuple(
        IterVar(v.var, Range(v.dom.min, as_expr(grown[v.var], v.var.dtype)), v.kind)
        if v.var in grown else v
        for v in old.iter_vars
    )  # fmt: skip
    held: dict[Var, Expr] = {
        v.var: minimum(v.var, _simplified(v.dom.extent - 1))
        for v in old.iter_vars if v.var in grown
    }  # fmt: skip
    an = Analyzer({v.var: v.dom for v in iters})
    if old.init is None:
        an = _where_conditions_hold(old.body, an)

    def index(value: Expr, size: Expr) -> Expr:
        return value if _fits(value, size, an) else substitute(value, held)

    def bounded(node: Expr) -> Expr | None:
        if not isinstance(node, BufferLoad) or node.buffer is place.buffer:
            return None
        point = tuple(index(i, n) for i, n in zip(node.indices, node.buffer.shape, strict=True))
        if point != node.indices:
            whole = tuple(substitute(i, held) for i in node.indices)
            if _digits(point, node.buffer) and not _digits(whole, node.buffer):
                point = whole
        return BufferLoad(node.buffer, point, node.predicate)

    def here(node: Expr) -> Expr | None:
        own = isinstance(node, BufferLoad) and node.buffer is place.buffer
        return BufferLoad(place.buffer, place.indices) if own else None

    def stored(node: Stmt) -> Stmt | None:
        return evolve(node, indices=place.indices) if isinstance(node, BufferStore) else None

    clamped = _all_clamped(old, place, grown, an)

    def change(stmt: Stmt) -> Stmt:
        if clamped:
            return transform(substitute(stmt, held), stored, here)
        return transform(stmt, None, bounded)

    body = _inside(old, place, grown, later) or change(old.body)
    init = None if old.init is None else change(old.init)
    new = evolve(old, iter_vars=iters, body=body, init=init)
    reads, writes = block_access_regions(new)
    return evolve(new, reads=reads, writes=writes)


def _where_conditions_hold(body: Stmt, an: Analyzer) -> Analyzer:
    """What is known where a block reads other memory: the conditions around all of its body hold.

    Where such a condition keeps loads inside of their buffers, they need no clamp.
    """
    while isinstance(body, IfThenElse) and body.orelse is None and not loads_of(body.condition):
        an, body = an.assume(body.condition), body.then
    return an


def _all_clamped(old: Block, place: BufferStore, grown: Mapping[Expr, Expr], an: Analyzer) -> bool:
    """Whether the padded iterators must be clamped wherever a block uses them.

    Conditions and loop bounds may keep a load inside of its buffer, as long as they use the same
    values as the index. A divisor, a loop that ends by a condition, and a function that is not
    `TOTAL` must see no new values at all.
    """
    nodes = list(walk(old))
    calls = [n for n in nodes if isinstance(n, Call)]
    if any(n.op.name not in TOTAL for n in calls) or any(isinstance(n, While) for n in nodes):
        return True

    def uses_grown(exprs: Iterable[Expr]) -> bool:
        return any(not grown.keys().isdisjoint(free_vars(e)) for e in exprs)

    guarded = calls or any(isinstance(n, IfThenElse) for n in nodes)
    loads = [n for n in nodes if isinstance(n, BufferLoad) and n.buffer is not place.buffer]
    places = ((i, n) for x in loads for i, n in zip(x.indices, x.buffer.shape, strict=True))
    if (guarded or uses_grown(control_exprs(old))) and not all(_fits(*p, an) for p in places):
        return True
    return uses_grown(unsafe_divisors(old, an))


def _digits(point: Sequence[Expr], buffer: Buffer) -> bool:
    """Whether an address holds remainders that do not join the quotients beside them, as v // 14
    and v % 14 join: the digits of a clamped iterator are both clamped, or neither joins."""
    strides = buffer.constant_strides()
    parts = [i * n for i, n in zip(point, strides, strict=True) if n is not None]
    terms = linear_address(reduce(add, parts)).terms if parts else {}
    return any(isinstance(atom, FloorMod) for atom in terms)


def _fits(index: Expr, size: Expr, an: Analyzer) -> bool:
    """Whether an index is proved to lie in a dimension."""
    low = compare(LE, as_expr(0, index.dtype), index)
    return an.prove(low) and an.prove(compare(LT, index, size))


def _inside(
    old: Block, place: BufferStore, grown: Mapping[Expr, Expr], later: Collection[Buffer]
) -> BufferStore | None:
    """The store of a block without reduction that reads one of the buffers `later`, with the value
    zero in extra instances; None for other blocks."""
    reads = any(load.buffer in later for load in loads_of(place.value))
    if old.body is not place or not reads or not all(v.is_spatial for v in old.iter_vars):
        return None
    ends = (compare(LT, v.var, v.dom.extent) for v in old.iter_vars if v.var in grown)
    zero = as_expr(0, place.value.dtype)
    return evolve(place, value=call("if_then_else", reduce(logical_and, ends), place.value, zero))
