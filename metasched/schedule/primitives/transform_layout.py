"""transform_layout: stores a buffer in another layout, padded where the new shape is larger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import FALSE, Expr, FloatImm, IntImm, Var, as_expr, as_int, maximum
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, map_exprs, replace_loads, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_opaque
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import (
    BufferChoice,
    as_index_map,
    buffer_by_index,
    choose_buffer,
)
from metasched.schedule.primitives.layout_padding import Padding, padding_edits, padding_of
from metasched.schedule.primitives.storage_align import KEY as ALIGNED
from metasched.schedule.state import State

MapArg = IndexMap | Callable[..., Any]

PadValue: TypeAlias = "Callable[[Sequence[Expr]], Expr]"


@primitive(respell=buffer_by_index, of_block=ways.with_accesses(ways.reversed_indices))
def transform_layout(
    state: State,
    block: BlockLike,
    buffer: BufferChoice,
    index_map: MapArg,
    pad_value: int | float | bool | Expr | MapArg | None = None,
    assume_injective_transform: bool = False,
) -> None:
    """Store a buffer that `block` accesses at `index_map` of its indices, in the whole program.

    A parameter changes its shape: the function then takes the new layout. Elements of the new shape
    that correspond to no old element are padding. In an input, padding is assumed to hold
    `pad_value` (`T.assume`). A plain element-wise writer also writes the padding (if_then_else).
    After any other writer, a new block fills the padding.

    Args:
        block: a block that accesses the buffer.
        buffer: ("read", i), ("write", i), a name or a Buffer.
        index_map: from the old indices to the new indices.
        pad_value: a number, an expression, or a function of the new indices.
        assume_injective_transform: True to skip the proof that the map is injective, and to leave
            padding undefined.

    requires  a parameter or allocated buffer, accessed by loads and stores with scalar indices; an
              injective map that gives no negative index; a `pad_value` of the buffer's type if
              there is padding
    rewrite   B[i, j] = A[i, j] -> B[i // 4, j, i % 4] = A[i, j]
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    side, position, old = choose_buffer(state, realize, buffer)
    mapping = as_index_map(state, index_map, old.ndim, realize)
    state.canonical = {"buffer": (side, position), "index_map": IndexMap.of(index_map, old.ndim)}
    name, func = state.func_of(realize)
    site = _site(state, realize, func, old)
    _require_plain(state, realize, site, old)
    new = _new_buffer(state, realize, old, mapping)
    value = _pad_map(state, realize, new, pad_value)
    padding = None
    if not assume_injective_transform:
        padding = _padding(state, realize, old, new, mapping, value)
    known = _known(site)
    edits = [] if padding is None else padding_edits(state, site, old, new, padding, func)
    edits.append(edit.wrap(site, lambda s: _rewritten(s, old, new, mapping, known)))
    merged = edit.merge(*edits)
    body = edit.apply(func.body, merged, state.index.parent)
    params = tuple(new if p is old else p for p in func.params)
    _require_symbols(state, realize, func, params)
    state.set_func(name, PrimFunc(params, body, func.attrs, func.ret_type))


def _site(state: State, realize: BlockRealize, func: PrimFunc, buffer: Buffer) -> Block:
    """The block that allocates the buffer; the root for a parameter."""
    if any(p is buffer for p in func.params):
        return func.root
    for above in (realize.block, *state.ancestors(realize)):
        if isinstance(above, Block) and any(b is buffer for b in above.alloc_buffers):
            return above
    raise state.error(
        "matched-buffer",
        f"{buffer.name} is a view made by match_buffer, its layout is that of its source",
        realize,
        hint="transform the buffer it is a view of, before the view is made",
    )


def _require_plain(state: State, realize: BlockRealize, site: Block, buffer: Buffer) -> None:
    refuse_opaque(state, site, buffer)
    if buffer.strides or buffer.elem_offset is not None:
        raise state.error("strided", f"{buffer.name} has strides or an offset of its own", realize)
    for node in walk_stmts(site):
        if isinstance(node, Block):
            for entry in node.annotations.get(ALIGNED, []):
                if node.writes[entry[0]].buffer is buffer:
                    raise state.error(
                        "aligned-buffer",
                        f"{node.name} aligns axis {entry[1]} of {buffer.name}",
                        node,
                        hint="transform the layout before storage_align",
                    )
        places = [e.indices for x in node.exprs for e in loads_of(x) if e.buffer is buffer]
        if isinstance(node, BufferStore) and node.buffer is buffer:
            places.append(node.indices)
        if any(i.dtype.lanes > 1 for indices in places for i in indices):
            raise state.error("vector-index", f"{buffer.name} is accessed by vectors", realize)


def _new_buffer(state: State, realize: BlockRealize, old: Buffer, mapping: IndexMap) -> Buffer:
    try:
        ranges = mapping.map_ranges([Range.of(as_expr(0, s.dtype), s) for s in old.shape])
    except MetaschedError as error:
        raise state.error("bad-index-map", str(error), realize) from None
    an = Analyzer()
    for output, r in zip(mapping.outputs, ranges, strict=True):
        if not an.prove(r.min >= 0):
            raise state.error(
                "negative-index", f"the new index {show_expr(output)} may be negative", realize
            )
    shape = tuple(an.simplify(r.min + r.extent) for r in ranges)
    return state.fresh_buffer(
        old.name, shape, old.dtype, old.scope, (), None, old.align, old.offset_factor
    )  # fmt: skip


def _padding(
    state: State,
    realize: BlockRealize,
    old: Buffer,
    new: Buffer,
    mapping: IndexMap,
    value: PadValue | None,
) -> Padding | None:
    """The padding of the new layout; None if every new element corresponds to an old element."""
    found = padding_of(mapping, old.shape, new.shape)
    if isinstance(found, str):
        raise state.error(
            "not-injective",
            f"the index map is not proved to be injective on the elements of {old.name}: {found}",
            realize,
            hint="assume_injective_transform=True skips this proof",
        )
    if found.outside is FALSE:
        return None
    if value is None:
        raise state.error(
            "needs-pad-value",
            f"the new layout of {old.name} has padding elements without an old element, where "
            f"{show_expr(found.outside)}",
            realize,
            hint="give their value with pad_value",
        )
    return Padding(found.inputs, found.outside, found.back, value)


def _pad_map(state: State, realize: BlockRealize, new: Buffer, given: Any) -> PadValue | None:
    """The pad value as a function of the new indices, recorded as a number or index map."""
    if given is None:
        return None
    assert state.canonical is not None
    try:
        if isinstance(given, IndexMap) or callable(given):
            mapping = IndexMap.of(given, new.ndim)
            if len(mapping.outputs) != 1:
                raise MetaschedError(f"pad_value gives {len(mapping.outputs)} values, not one")
            (value,) = mapping.outputs
            inputs = mapping.inputs
        else:
            value = state.expr(given) if isinstance(given, Expr) else as_expr(given, new.dtype)
            inputs = ()
        if isinstance(value, (IntImm, FloatImm)) and value.dtype is not new.dtype:
            value = as_expr(value.value, new.dtype)
    except MetaschedError as error:
        whole = new.dtype.is_int
        low, high = new.dtype.range if whole else (0, 0)
        raise state.error(
            "bad-pad-value", f"pad_value for {new.name}: {error}", realize,
            hint=f"write an integer from {low} to {high}, which is what {new.dtype} holds" if whole
            else "write a number, or a function of the new indices that gives one value",
        ) from None  # fmt: skip
    if value.dtype is not new.dtype:
        raise state.error(
            "bad-pad-value", f"pad_value is {value.dtype}, {new.name} holds {new.dtype}", realize,
            hint=f"give the value as the buffer stores it: T.{new.dtype}(...)",
        )  # fmt: skip
    if loads_of(value):
        raise state.error("bad-pad-value", "pad_value loads from memory", realize)
    for var in sorted(free_vars(value) - {*inputs}, key=lambda v: v.name):
        raise state.error("bad-pad-value", f"pad_value mentions {var.name}", realize)
    if isinstance(given, IndexMap) or callable(given):
        plain = isinstance(value, (IntImm, FloatImm))
        recorded = value.value if plain else IndexMap(inputs, (value,))  # type: ignore[attr-defined]
        state.canonical["pad_value"] = recorded
    at = IndexMap(inputs, (value,))
    return lambda point: at.apply(point)[0] if inputs else value


def _known(site: Block) -> Analyzer:
    """An analyzer that knows the ranges of all iterators and loops below `site`."""
    ranges: dict[Var, Range] = {}
    for node in walk_stmts(site):
        if isinstance(node, Block):
            ranges.update((v.var, v.dom) for v in node.iter_vars)
        elif isinstance(node, For):
            size = as_int(node.extent)
            runs = Analyzer(ranges).prove(node.extent > 0) if size is None else size > 0
            ranges[node.var] = Range(node.min, node.extent if runs else maximum(node.extent, 1))
    return Analyzer(ranges)


def _rewritten(site: Stmt, old: Buffer, new: Buffer, mapping: IndexMap, an: Analyzer) -> Stmt:
    """`site` with every access of `old` replaced by an access of `new`."""

    def regions(given: tuple[BufferRegion, ...]) -> tuple[BufferRegion, ...]:
        return tuple(_region(r, new, mapping, an) if r.buffer is old else r for r in given)

    def moved(load: BufferLoad) -> Expr:
        return BufferLoad(new, mapping.apply(load.indices, an), load.predicate)

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer is old:
            return evolve(node, buffer=new, indices=tuple(mapping.apply(node.indices, an)))
        if isinstance(node, Block):
            touched = any(r.buffer is old for r in (*node.reads, *node.writes))
            if not touched and old not in node.alloc_buffers:
                return None
            allocs = tuple(new if b is old else b for b in node.alloc_buffers)
            return evolve(
                node, reads=regions(node.reads), writes=regions(node.writes), alloc_buffers=allocs
            )
        return None

    return map_exprs(site, lambda e: replace_loads(e, old, moved), on_stmt)


def _region(region: BufferRegion, new: Buffer, mapping: IndexMap, an: Analyzer) -> BufferRegion:
    if all(r.is_point for r in region.region):
        point = mapping.apply([r.min for r in region.region], an)
        return BufferRegion(new, tuple(Range.of(i, as_expr(1, i.dtype)) for i in point))
    try:
        ranges = mapping.map_ranges(region.region, an)
    except MetaschedError:
        return new.whole()
    return BufferRegion(
        new, tuple(Range.of(an.simplify(r.min), an.simplify(r.extent)) for r in ranges)
    )


def _require_symbols(
    state: State, realize: BlockRealize, func: PrimFunc, params: Sequence[Buffer | Var]
) -> None:
    """Refuse a new shape if no parameter, and no extent of a parameter, is a symbolic extent any
    longer."""

    def defined(given: Sequence[Buffer | Var]) -> set[Expr]:
        out: set[Expr] = {p for p in given if isinstance(p, Var)}
        return out.union(*(p.shape for p in given if isinstance(p, Buffer)))

    needed = {v for p in func.buffers for s in p.shape for v in free_vars(s)}
    lost = sorted(v.name for v in needed - defined(params) if v in defined(func.params))
    if lost:
        raise state.error(
            "symbol-lost",
            f"the extent {lost[0]} would no longer follow from the shape of a parameter",
            realize,
            hint="cache the parameter and transform the cache",
        )
