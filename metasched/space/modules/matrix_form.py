"""matrix_form: rewrite blocks with divided indices, or with few lanes, as matrix products.

It rewrites iterators in three ways, so that later tiling modules find plain iterators:

    h in 16, indices h // 2, h % 2   ->  phases h % 2, outside, and h // 2  (convolution transposed)
    n in 96, indices 2 * n // 3, 2 * n % 3  ->  phases n % 3 and n // 3     (rational resampling)
    c in 256, index c // 64          ->  groups c // 64 and channels c % 64 (convolution in groups)
    o in 32, y in 4, stores along y  ->  lanes o * 4 + y in 128             (capsules)

If the lanes stay few (three colours), a variant takes lanes along the rows (w in 32). It stores the
image with the elements of a row side by side. The lanes may be image columns that do not fill whole
vectors (NCHW). Then a variant takes lanes along the channels and transposes the results at the end.

First, the block is made to read the sources of producers that only move elements (transpositions),
and to store to a buffer with a dimension for each iterator, if it stores to C[i * 64 + j] or to
Y[2 * y + p]. A short iterator such as p moves outside.

The results go to a local buffer laid out by the new iterators. The block that writes them back, or
computes the epilogue, follows.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import gcd

from metasched.analysis.access import Access, accesses
from metasched.arith.affine import linear
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, FloorDiv, FloorMod, Var, as_int
from metasched.ir.stmt import Block, BufferStore, IterVar
from metasched.ir.visit import free_vars, walk_exprs
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.packing import lane_operands
from metasched.space.strides import vector_iter
from metasched.space.tiling import changed, epilogue, tileable


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """Rewrite the iterators of blocks that a later module tiles, as the file's docstring shows.

    Attributes:
        vector_bits: the bits of a vector register; lanes that do not fill a register are too few.
    """

    vector_bits: int = 256

    @property
    def name(self) -> str:
        return "matrix_form"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        sch = _stored_apart(_read_through(sch, block), block, self.vector_bits)
        node = sch.get(block)
        if any(as_int(v.dom.extent) is None for v in node.iter_vars):
            return [sch]
        plan = self._plan(node)
        plain = [v.is_spatial for v in node.iter_vars]
        if (plan.cuts or plan.lanes) and plain == sorted(plain, reverse=True):
            made = changed(sch, lambda variant: _apply(variant, block, plan))
            if not made:
                return [sch]
            (sch,) = made
        return [sch, *self._turned(sch, block)]

    def _turned(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        """Variants with lanes along an iterator whose results are not contiguous in memory.

        Offered for blocks whose contiguous results do not fill whole vectors. If the contiguous
        results are few, a temporary operand that varies with the new lanes is stored with these
        lanes contiguous. A later tiling packs other operands.
        """
        node = sch.get(block)
        inner = vector_iter(node)
        lanes = self.vector_bits // node.writes[0].buffer.dtype.bits
        extent = 0 if inner is None else as_int(inner.dom.extent) or 1
        if inner is None or extent % lanes == 0:
            return []
        few = 2 * extent <= lanes
        if not few and lane_operands(sch, node, inner.var):
            return []  # a packed operand is padded to whole vectors
        scope = sch.state.scope(sch.state.block(block)).block
        for v in reversed(node.iter_vars):
            if v is inner or not v.is_spatial or (as_int(v.dom.extent) or 1) < lanes:
                continue
            found = _row_operand(node, v.var) if few else None
            if found is None or found[1].buffer not in scope.alloc_buffers:
                found = None
                if len(lane_operands(sch, node, v.var)) != 1:
                    continue
            variant = sch.copy()
            try:
                if epilogue(variant, block) is None and node.writes[0].buffer.scope != "local":
                    variant.cache_write(block, 0, "local")
                result = variant.get(block).writes[0]
                at = next(n for n, r in enumerate(result.region) if r.min is v.var)
                variant.transform_layout(block, ("write", 0), _last(at, len(result.region)))
                if found is not None:
                    read, load, dim = found
                    variant.transform_layout(block, ("read", read), _last(dim, len(load.indices)))
            except (ScheduleError, StopIteration):
                continue
            return [variant]
        return []

    def _plan(self, node: Block) -> _Plan:
        """The iterators to cut, and two iterators to join if one alone does not fill a vector."""
        found = cuts(node)
        inner = vector_iter(node)
        lanes = self.vector_bits // node.writes[0].buffer.dtype.bits
        if inner is None or (as_int(inner.dom.extent) or 1) >= lanes or inner.var in found:
            return _Plan(found, ())
        loads = [a for a in accesses(node) if not a.is_write]
        users = _users(loads, inner.var)
        for outer in reversed(node.iter_vars):
            if outer is inner or not outer.is_spatial or as_int(outer.dom.extent) == 1:
                continue
            if outer.var not in found and _users(loads, outer.var) == users:
                return _Plan(found, (outer.var, inner.var), as_int(inner.dom.extent) or 1)
        return _Plan(found, ())


@dataclass(frozen=True, slots=True)
class _Cut:
    """An iterator to split in two: with phases `v % by` or with groups `v // by` outside."""

    by: int
    phases: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """Iterators to cut, two iterators to join, and the extent of the second of the two."""

    cuts: dict[Expr, _Cut]
    lanes: tuple[Expr, ...]
    inner: int = 1

    def at(self, here: Sequence[Expr], there: Sequence[Expr]) -> _Plan:
        """The plan for a block that has iterators at `there` where this plan's block has `here`."""
        partner = dict(zip(here, there, strict=True))
        if not {*self.cuts, *self.lanes} <= partner.keys():
            why = "a block that reads or sets the results lacks the iterators to cut or to join"
            raise ScheduleError("matrix_form", "no-partner", why)
        cuts = {partner[v]: cut for v, cut in self.cuts.items()}
        return _Plan(cuts, tuple(partner[v] for v in self.lanes), self.inner)


def _row_operand(node: Block, row: Var) -> tuple[int, Access, int] | None:
    """The only operand that varies with `row`: its position among the reads, its access, and the
    dimension whose index grows by one with `row`. None if that is the last dimension."""
    loads = [a for a in accesses(node) if not a.is_write and a.buffer is not node.writes[0].buffer]
    used = [a for a in loads if any(row in free_vars(i) for i in a.indices)]
    if len(used) != 1 or sum(a.buffer is used[0].buffer for a in loads) != 1:
        return None
    (load,) = used
    dims = [n for n, i in enumerate(load.indices) if row in free_vars(i)]
    if len(dims) != 1 or dims[0] == len(load.indices) - 1:
        return None
    form = linear(load.indices[dims[0]])
    if form.terms.get(row) != 1 or any(row in free_vars(a) for a in form.terms if a is not row):
        return None
    read = next(n for n, r in enumerate(node.reads) if r.buffer is load.buffer)
    return read, load, dims[0]


def _last(dim: int, count: int) -> IndexMap:
    """The map of `count` indices that moves index `dim` to the end."""
    inputs = tuple(Var(f"i{n}") for n in range(count))
    return IndexMap(inputs, (*inputs[:dim], *inputs[dim + 1 :], inputs[dim]))


def _read_through(sch: Schedule, block: BlockRV) -> Schedule:
    """Make a block read the sources of producers that only move elements (transpositions).

    If packing pays, elements then move once, from the source to the panel.
    """
    realize = sch.state.block(block)
    for producer in sch.state.scope(realize).producers(realize.block.token):

        def read_through(variant: Schedule, name: str = producer.block.name) -> None:
            variant.compute_inline(variant.get_block(name))

        made = changed(sch, read_through) if _moves(producer.block) else []
        sch = next((variant for variant in made if tileable(variant, block)), sch)
    return sch


def _stored_apart(sch: Schedule, block: BlockRV, vector_bits: int) -> Schedule:
    """Make a block store at its iterators, where an index of its results joins several of them.

    Of joined iterators, those that fill at most half a vector move outside.
    """
    node = sch.get(block)
    loads = [linear(i) for a in accesses(node) if not a.is_write for i in a.indices]
    joined: set[Expr] = set()
    for r in node.writes[0].region:
        form = linear(r.min)
        *inner, outer = sorted(form.terms, key=lambda v: abs(form.terms[v])) or [r.min]
        factor = form.terms.get(outer, 0)
        for v in inner:  # not the parts of a tile, 16 * i + k, which loads join, too
            if any(
                f.terms.get(outer, 0) * form.terms[v] != f.terms.get(v, 0) * factor for f in loads
            ):
                joined.add(v)
    if not joined or not all(isinstance(v, Var) for v in joined):
        return sch
    short = [
        v.var in joined
        and 2 * (as_int(v.dom.extent) or 0) * node.writes[0].buffer.dtype.bits <= vector_bits
        for v in node.iter_vars
    ]

    def apart(variant: Schedule) -> None:
        variant.reindex(block, ("write", 0))
        iters = variant.get(block).iter_vars
        outside = {v.var for v, moves in zip(iters, short, strict=True) if moves}
        if outside:
            result = [r.min for r in variant.get(block).writes[0].region]
            places = [v.var for v in iters]
            variant.transform_layout(block, ("write", 0), _first(outside, result))
            variant.transform_block_layout(block, _first(outside, places))

    made = changed(sch, apart)
    return next((variant for variant in made if tileable(variant, block)), sch)


def _first(chosen: Set[Expr], items: Sequence[Expr]) -> IndexMap:
    """The map that moves the chosen ones of `items` to the front."""
    inputs = tuple(Var(f"i{n}") for n in range(len(items)))
    order = sorted(range(len(items)), key=lambda n: items[n] not in chosen)
    return IndexMap(inputs, tuple(inputs[n] for n in order))


def _moves(block: Block) -> bool:
    """Whether a block stores loaded elements unchanged, each once."""
    body = block.body
    if not isinstance(body, BufferStore) or not isinstance(body.value, BufferLoad):
        return False
    spatial = {v.var for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1}
    return spatial <= set().union(*(free_vars(i) for i in body.value.indices))


def _users(loads: Sequence[Access], var: Var) -> set[int]:
    return {n for n, a in enumerate(loads) if any(var in free_vars(i) for i in a.indices)}


def cuts(node: Block) -> dict[Expr, _Cut]:
    """The spatial iterators that some index divides by a constant."""
    found: dict[Expr, _Cut] = {}
    extents = {v.var: as_int(v.dom.extent) or 1 for v in node.iter_vars if v.is_spatial}
    divisions = [
        e
        for access in accesses(node)
        for index in access.indices
        for e in walk_exprs(index)
        if isinstance(e, (FloorDiv, FloorMod))
    ]
    for e in divisions:
        divisor, form = as_int(e.b) or 1, linear(e.a)
        for var, extent in extents.items():
            factor = form.terms.get(var, 0)
            by = divisor // gcd(factor, divisor)
            if by < 2 or extent % by or extent == by:
                continue
            phases = isinstance(e, FloorMod) or factor != 1
            found[var] = _Cut(by, phases or (var in found and found[var].phases))
    return found


def _apply(sch: Schedule, block: BlockRV, plan: _Plan) -> None:
    """Rewrite the block, its consumer and the buffer between them by the new iterators."""
    finish = epilogue(sch, block)
    if finish is None:
        finish = sch.cache_write(block, 0, "local")
    else:
        sch.set_scope(block, 0, "local")
    node, last = sch.get(block), sch.get(finish)
    result = node.writes[0]
    held = next(r for r in last.reads if r.buffer is result.buffer)
    theirs = plan.at([r.min for r in result.region], [r.min for r in held.region])
    scope = sch.state.scope(sch.state.block(block))
    starters = [c.block for c in scope.writers(result.buffer) if c.token is not node.token]
    sch.transform_block_layout(block, _order(node.iter_vars, plan))
    sch.transform_block_layout(finish, _order(last.iter_vars, theirs))
    for starter in starters:  # sets what the block adds to
        own = plan.at([r.min for r in result.region], [r.min for r in starter.writes[0].region])
        sch.transform_block_layout(sch.get_block(starter.name), _order(starter.iter_vars, own))
    layout = _map([r.min for r in result.region], [], plan)
    sch.transform_layout(block, ("write", 0), layout)


def _order(iters: Sequence[IterVar], plan: _Plan) -> IndexMap:
    spatial = [v.var for v in iters if v.is_spatial]
    return _map(spatial, [v.var for v in iters if not v.is_spatial], plan)


def _map(spatial: Sequence[Expr], reduced: Sequence[Expr], plan: _Plan) -> IndexMap:
    """The map to the new iterators: phases and groups, other spatial iterators, lanes, reductions.

    `spatial` and `reduced` are in the order of the block's iterators, the spatial ones first.
    """
    inputs = [Var(f"i{n}") for n in range(len(spatial) + len(reduced))]
    of = dict(zip([*spatial, *reduced], inputs, strict=False))
    outer: list[Expr] = []
    inner: list[Expr] = []
    for key, i in zip(spatial, inputs, strict=False):
        cut = plan.cuts.get(key)
        if cut is not None:
            first, second = (i % cut.by, i // cut.by) if cut.phases else (i // cut.by, i % cut.by)
            outer.append(first)
            inner.append(second)
        elif key not in plan.lanes:
            inner.append(i)
    if plan.lanes:
        inner.append(of[plan.lanes[0]] * plan.inner + of[plan.lanes[1]])
    return IndexMap(tuple(inputs), (*outer, *inner, *inputs[len(spatial) :]))
