"""Maps a whole operator to the loops of an intrinsic.

    C[n, h, w, co] += A[n, h + kh, w + kw, ci] * B[kh, kw, ci, co]     a block
    C[i, j]        += A[i, k] * B[k, j]                                a description

An iterator moves an operand if it occurs in the operand's indices. The moved operands are the
signature of the iterator. Here n, h and w move C and A, as i does; co moves C and B, as j does; kh,
kw and ci move A and B, as k does. Iterators of equal signature and kind are fused in their order
into a loop of the description. Other iterators stay outside as loops around the instruction: batch
and group iterators, for example, move all operands. In a convolution of groups, one operand uses
only the digit `co // 64` of an iterator; `co` is then cut into digits first. The idea is TVM's
GetAutoTensorizeMappingInfo. `tensorize_layout` takes the schedule steps that follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.analysis.access import accesses
from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import Add, Expr, FloorDiv, FloorMod, IntImm, Max, Min, Mul, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BufferStore, IterKind, IterVar
from metasched.ir.visit import free_vars, substitute
from metasched.schedule.advice import advice
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.schedule.tensorize_mapping import nest_of

_COMMUTE = (Add, Mul, Min, Max)
Operands = dict[Buffer, BufferLoad]
"""For each buffer of a description, the load of the block that takes its place."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorizeMapping:
    """One way to compute a block by loops around an intrinsic.

    Attributes:
        cuts: the position of each block iterator that is first cut in two, and the extent of the
            inner part.
        index_map: from the block's iterators (after the cuts) to the outputs: first the iterators
            that stay outside, then one output for each group of description iterators.
        kinds, extents: the kind and the extent of each output of `index_map`.
        groups: for each output that does not stay outside, the description iterators into which
            the output is cut, with their extents. A group has one signature and one kind.
        operands: for each buffer of the description, the load of the block that takes its place;
            the last entry is the result.
        places: the indices of each buffer of the description, over the description's iterators.
        iterators: the iterators of the description, in their order.
        in_order: the number of operands whose last index is moved by the same iterator in the
            block and in the description. Such operands lie in memory as the description expects.
    """

    cuts: Mapping[int, int]
    index_map: IndexMap
    kinds: tuple[IterKind, ...]
    extents: tuple[int | None, ...]
    groups: tuple[Mapping[Var, int], ...]
    operands: Operands
    places: Mapping[Buffer, tuple[Expr, ...]]
    iterators: tuple[Var, ...]
    in_order: int = 0

    @property
    def whole_map(self) -> IndexMap:
        """The map from the block's iterators, before they are cut."""
        if not self.cuts:
            return self.index_map
        count = len(self.index_map.inputs) - len(self.cuts)
        first = in_digits(count, self.cuts)
        return IndexMap(first.inputs, tuple(self.index_map.apply(first.outputs)))

    @property
    def outside(self) -> int:
        """How many outputs of `index_map` stay outside of the instruction."""
        return len(self.kinds) - len(self.groups)

    @property
    def tiles(self) -> tuple[int, ...]:
        """For each output that does not stay outside, its extent within one instruction."""
        return tuple(math.prod(group.values()) for group in self.groups)

    @property
    def paddings(self) -> tuple[int, ...]:
        """For each output of `index_map`, the number to a multiple of which it is padded."""
        mapped = zip(self.extents[self.outside :], self.tiles, strict=True)
        inner = (tile if (extent or 0) % tile else 1 for extent, tile in mapped)
        return (*[1] * self.outside, *inner)

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The padded extent of each output of `index_map`."""
        pairs = zip(self.extents, self.paddings, strict=True)
        return tuple(None if n is None else -(-n // pad) * pad for n, pad in pairs)

    @property
    def work(self) -> float:
        """The number of padded iterations divided by the number of unpadded iterations."""
        pairs = zip(self.extents, self.sizes, strict=True)
        return math.prod(size / n for n, size in pairs if n and size)

    @property
    def results(self) -> int:
        """How many elements one instruction computes."""
        moved = frozenset().union(*map(free_vars, self.places[self.result]))
        return math.prod(n for group in self.groups for v, n in group.items() if v in moved)

    @property
    def result(self) -> Buffer:
        """The buffer of the description that is written."""
        return list(self.operands)[-1]


@dataclass(frozen=True, slots=True, eq=False)
class AutoTensorizeMappingInfo:
    """All mappings of a block's iterators to the loops of an intrinsic.

    Attributes:
        ways: the mappings, best first: most operands in memory order (`in_order`), then least
            padding.
    """

    ways: tuple[TensorizeMapping, ...]

    @property
    def mappings(self) -> tuple[IndexMap, ...]:
        """The maps of the block's iterators, for `transform_block_layout`."""
        return tuple(way.whole_map for way in self.ways)


def get_auto_tensorize_mapping_info(
    sch: Schedule, block: BlockRV, desc_func: PrimFunc
) -> AutoTensorizeMappingInfo | None:
    """Map the iterators of a block to the iterators of a description; None where it is impossible.

    Args:
        sch: the schedule of the block.
        block: the block to be computed by the intrinsic.
        desc_func: the description of the intrinsic.

    Call `tensorize_mappings` to get the reason in place of None.
    """
    try:
        return AutoTensorizeMappingInfo(tuple(tensorize_mappings(sch.get(block), desc_func)))
    except ScheduleError:
        return None


def tensorize_mappings(block: Block, desc: PrimFunc) -> list[TensorizeMapping]:
    """List all ways to compute a block by loops around a description.

    Args:
        block: the block to be computed by the intrinsic.
        desc: the description of the intrinsic.

    Returns the mappings in the order of `AutoTensorizeMappingInfo.ways`.

    Raises:
        ScheduleError: `description` if the description is not a nest of loops around one store;
            `computation` if the block computes something else; `no-iterator` if no iterators of
            the block can become a loop of the description.
    """
    theirs = _described(block, desc)
    store, mine = _store(theirs), _store(block)
    if store is None:
        raise _refused("description", "the description is not one block around one store", block)
    if mine is None:
        raise _refused("computation", f"{block.name} does not store one value at one place", block)
    start = {store.buffer: BufferLoad(mine.buffer, mine.indices)}
    if mine.buffer.dtype is not store.buffer.dtype:
        start = {}
    found: dict[tuple[BufferLoad, ...], Operands] = {}
    for operands in _pairs(mine.value, store.value, start) if start else ():
        order = {b: operands[b] for b in desc.buffers if b is not store.buffer and b in operands}
        order[store.buffer] = operands[store.buffer]
        found.setdefault(tuple(order.values()), order)
    if not found:
        why = f"{block.name} and the description compute different values, or different types"
        raise _refused("computation", why, block)
    ways: list[TensorizeMapping] = []
    refusals: list[ScheduleError] = []
    for operands in found.values():
        try:
            ways += _ways(block, theirs, operands)
        except ScheduleError as error:
            refusals.append(error)
    if not ways:
        raise refusals[0]
    return sorted(ways, key=lambda way: (-way.in_order, way.work))


def _refused(reason: str, message: str, block: Block) -> ScheduleError:
    name = "get_auto_tensorize_mapping_info"
    hint = advice(name, reason)
    return ScheduleError(name, reason, message, block_or_loop=block, hint=hint)


def _described(block: Block, desc: PrimFunc) -> Block:
    """The block of a description. Raises `description` unless each iterator is one loop."""
    nest, inner = nest_of(desc)
    loops = tuple(loop.var for loop in nest)
    if inner is None or inner.iter_values != loops or inner.block.init is not None:
        why = "the description is not a chain of loops around one block without init"
        raise _refused("description", why, block)
    return inner.block


def _store(block: Block) -> BufferStore | None:
    """The body of a block if it is one store without predicate, else None."""
    body = block.body
    return body if isinstance(body, BufferStore) and body.predicate is None else None


def _pairs(mine: Expr, theirs: Expr, found: Operands) -> Iterator[Operands]:
    """All choices of loads for the description's buffers that make `theirs` equal to `mine`.

    Args:
        mine: a value of the block.
        theirs: the value at the same place of the description.
        found: the choices already made for some buffers; each result extends them.
    """
    if mine.dtype is not theirs.dtype:
        return
    if isinstance(theirs, BufferLoad):
        if isinstance(mine, BufferLoad) and found.get(theirs.buffer, mine) is mine:
            yield {**found, theirs.buffer: mine}
        return
    if type(mine) is not type(theirs) or len(mine.children) != len(theirs.children):
        return
    kinds = [a.dtype is b.dtype for a, b in zip(mine.children, theirs.children, strict=True)]
    if not all(kinds) or mine.rebuild(theirs.children) is not theirs:
        return
    orders = [theirs.children]
    if isinstance(mine, _COMMUTE):
        orders.append(tuple(reversed(theirs.children)))
    for order in orders:
        ways: list[Operands] = [found]
        for a, b in zip(mine.children, order, strict=True):
            ways = [after for before in ways for after in _pairs(a, b, before)]
        yield from ways


def _ways(block: Block, theirs: Block, operands: Operands) -> list[TensorizeMapping]:
    """The mappings for one choice of operands.

    The first mapping fuses the fewest iterators whose extents divide by the tiles. The second
    fuses all iterators of a signature; it is left out if both are equal.
    """
    places = {a.buffer: a.indices for a in accesses(theirs)}
    if len({(a.buffer, a.indices) for a in accesses(theirs)}) != len(places):
        why = "the description accesses a buffer at several places"
        raise _refused("description", why, block)
    wanted: dict[object, list[int]] = {}
    for n, v in enumerate(theirs.iter_vars):
        wanted.setdefault((v.kind, _moved(v.var, places)), []).append(n)
    cuts = _cuts(block, operands)
    iters, indices = _cut(block, operands, cuts)
    mine: dict[object, list[int]] = {}
    for n, v in enumerate(iters):
        mine.setdefault((v.kind, _moved(v.var, indices)), []).append(n)
    short: dict[object, list[int]] = {}
    whole: dict[object, list[int]] = {}
    for key, described in wanted.items():
        sizes = {n: as_int(iters[n].dom.extent) for n in mine.get(key, ())}
        known = {n: size for n, size in sizes.items() if size is not None}
        first = theirs.iter_vars[described[0]]
        tile = math.prod(as_int(theirs.iter_vars[n].dom.extent) or 1 for n in described)
        if not known and (tile > 1 or first.is_reduce):
            raise _no_iterator(block, first, operands, places, bool(sizes))
        options = _fusions(known, tile)
        short[key], whole[key] = options[0], options[-1]
    chosen = [short] if short == whole else [short, whole]
    made = (_mapping(iters, theirs, operands, places, wanted, fused) for fused in chosen)
    return [replace(way, cuts=cuts, in_order=_in_order(iters, indices, way)) for way in made]


def _cuts(block: Block, operands: Operands) -> dict[int, int]:
    """The positions of iterators to cut, because an operand uses one digit alone, with the extents
    of the inner digits."""
    found: dict[int, int] = {}
    for n, v in enumerate(block.iter_vars):
        sizes: set[int] = set()
        alone = False
        for load in operands.values():
            uses, plain = _digits_used(v.var, load.indices)
            sizes |= {size for _, size in uses}
            alone |= len({kind for kind, _ in uses}) == 1 and not plain
        extent = as_int(v.dom.extent)
        if alone and len(sizes) == 1 and extent is not None and as_int(v.dom.min) == 0:
            (size,) = sizes
            if 1 < size < extent and extent % size == 0:
                found[n] = size
    return found


def _digits_used(var: Var, indices: Sequence[Expr]) -> tuple[set[tuple[type[Expr], int]], bool]:
    """The quotients and remainders of a variable by constants, as (class, divisor); and whether the
    variable also occurs outside of them."""
    uses: set[tuple[type[Expr], int]] = set()
    plain = False
    stack = list(indices)
    while stack:
        node = stack.pop()
        if isinstance(node, (FloorDiv, FloorMod)) and node.a is var:
            size = as_int(node.b)
            if size is not None:
                uses.add((type(node), size))
                continue
        plain |= node is var
        stack += node.children
    return uses, plain


def _cut(
    block: Block, operands: Operands, cuts: Mapping[int, int]
) -> tuple[list[IterVar], dict[Buffer, tuple[Expr, ...]]]:
    """The iterators of a block after `cuts`, and the operands' indices over these iterators."""
    iters: list[IterVar] = []
    values: dict[Var, Expr] = {}
    for n, v in enumerate(block.iter_vars):
        if n not in cuts:
            iters.append(v)
            continue
        size = IntImm(v.var.dtype, cuts[n])
        extents = (Analyzer().simplify(v.dom.extent // size), size)
        parts = [Var(f"{v.var.name}{end}", v.var.dtype) for end in ("_o", "_i")]
        for var, extent in zip(parts, extents, strict=True):
            iters.append(IterVar(var, Range(IntImm(var.dtype, 0), extent), v.kind))
        values[v.var] = parts[0] * size + parts[1]
    known = Analyzer({v.var: v.dom for v in iters}, keep_units=True)
    indices = {
        b: tuple(known.simplify(substitute(i, values)) for i in load.indices) if cuts
        else load.indices
        for b, load in operands.items()
    }  # fmt: skip
    return iters, indices


def in_digits(count: int, cuts: Mapping[int, int]) -> IndexMap:
    """The map of `count` indices that splits index n in `cuts`: i -> i // cuts[n], i % cuts[n]."""
    inputs = tuple(Var(f"i{n}") for n in range(count))
    outputs: list[Expr] = []
    for n, var in enumerate(inputs):
        outputs += [var // cuts[n], var % cuts[n]] if n in cuts else [var]
    return IndexMap(inputs, tuple(outputs))


def _moved(var: Var, indices: Mapping[Buffer, tuple[Expr, ...]]) -> frozenset[Buffer]:
    """The signature of an iterator: the operands that it moves."""
    return frozenset(b for b, at in indices.items() if any(var in free_vars(i) for i in at))


def _no_iterator(
    block: Block,
    wanted: IterVar,
    operands: Operands,
    places: Mapping[Buffer, tuple[Expr, ...]],
    symbolic: bool,
) -> ScheduleError:
    """The error for a loop of the description that no iterator of the block can become."""
    moved = _moved(wanted.var, places)
    names = " and ".join(load.buffer.name for b, load in operands.items() if b in moved)
    kind = "reduction" if wanted.is_reduce else "spatial"
    what = f"no {kind} iterator of {block.name} moves {names} and no other operand"
    if symbolic:
        what = f"the {kind} iterators of {block.name} that move {names} have no constant extent"
    return _refused("no-iterator", f"{what}, as {wanted.var.name} of the description does", block)


def _fusions(sizes: Mapping[int, int], tile: int) -> list[list[int]]:
    """The choices of iterators to fuse into one loop of the description, fewest first.

    A choice is one iterator whose extent is a multiple of `tile`, or the last iterators if the
    product of their extents is a multiple. The last choice is all iterators. Iterators of extent
    one are left out unless there are no others.
    """
    long = [n for n, size in sizes.items() if size != 1] or list(sizes)[-1:]
    found = [[n] for n in reversed(long) if sizes[n] % tile == 0]
    for count in range(2, len(long)):
        last = long[-count:]
        if math.prod(sizes[n] for n in last) % tile == 0:
            found.append(last)
    return [*found, long]


def _mapping(
    iters: Sequence[IterVar],
    theirs: Block,
    operands: Operands,
    places: Mapping[Buffer, tuple[Expr, ...]],
    wanted: Mapping[object, list[int]],
    fused: Mapping[object, list[int]],
) -> TensorizeMapping:
    """The mapping that fuses the iterators at the positions `fused`, by signature and kind."""
    inputs = tuple(Var(v.var.name) for v in iters)
    outputs: list[Expr] = []
    kinds: list[IterKind] = []
    extents: list[int | None] = []
    inside = {n for group in fused.values() for n in group}
    outside = [n for n in range(len(iters)) if n not in inside]
    for n in sorted(outside, key=lambda n: not iters[n].is_spatial):
        outputs.append(inputs[n])
        kinds.append(iters[n].kind)
        extents.append(as_int(iters[n].dom.extent))
    for group in fused.values():
        total: Expr = IntImm("int32", 0)
        size = 1
        for n in group:
            extent = as_int(iters[n].dom.extent) or 1
            total = inputs[n] if size == 1 else total * extent + inputs[n]
            size *= extent
        outputs.append(total)
        kinds.append(iters[group[0]].kind if group else IterKind.SPATIAL)
        extents.append(size)
    described = theirs.iter_vars
    groups = (
        {described[n].var: as_int(described[n].dom.extent) or 1 for n in wanted[key]}
        for key in fused
    )
    return TensorizeMapping(
        {}, IndexMap(inputs, tuple(outputs)), tuple(kinds), tuple(extents), tuple(groups), operands,
        places, tuple(v.var for v in described),
    )  # fmt: skip


def _in_order(
    iters: Sequence[IterVar], indices: Mapping[Buffer, Sequence[Expr]], way: TensorizeMapping
) -> int:
    """See `TensorizeMapping.in_order`."""
    own = dict(zip((v.var for v in iters), way.index_map.inputs, strict=True))
    count = 0
    for theirs, mine in indices.items():
        here = {own[v] for i in mine[-1:] for v in free_vars(i) if v in own}
        last = {v for i in way.places[theirs][-1:] for v in free_vars(i)}
        outputs = zip(way.groups, way.index_map.outputs[way.outside :], strict=True)
        moves = [free_vars(o) for group, o in outputs if not last.isdisjoint(group)]
        count += any(not here.isdisjoint(names) for names in moves)
    return count
