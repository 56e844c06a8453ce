"""The random machine's operations for layout primitives: one function for each primitive.

Each takes the machine's Player, which gives integers (`number`), choices (`pick`) and handles.
Arguments are drawn so that both acceptance and every refusal occur.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from metasched.arith.products import span
from metasched.ir.dtype import DType
from metasched.ir.expr import as_int
from metasched.ir.stmt import Block, BlockRealize, BufferStore, evolve
from metasched.ir.visit import free_vars, substitute


def shuffled(p: Any, count: int) -> list[int]:
    order = list(range(count))
    random.Random(p.number(1 << 16)).shuffle(order)
    return order


def index_map(p: Any, ndim: int) -> Callable[..., list[Any]]:
    """A random map of `ndim` indices: permuted, split, fused, scaled, shifted, joined."""
    order, kind, axis, by = shuffled(p, ndim), p.number(9), p.number(ndim or 1), 2 + p.number(4)

    def apply(*indices: Any) -> list[Any]:
        if len(indices) != ndim:  # asked for another buffer, as by test_wrong_arguments
            return list(indices)
        out = [indices[n] for n in order]
        if not out or kind == 0:
            return out
        x = out[axis]
        if kind in (1, 2):
            return [*out[:axis], x // by, *out[axis + 1 :], x % by]
        if kind == 3:
            return [x % by, *out[:axis], *out[axis + 1 :], x // by]
        if kind == 4:
            return [*out[:axis], (x + 1) // by, *out[axis + 1 :], (x + 1) % by]
        if kind == 5:
            return [*out[:axis], x * by, *out[axis + 1 :]]
        if kind == 6:
            return [*out[:axis], x + by, *out[axis + 1 :]]
        if kind == 7:
            return [*out[:axis], x // by, *out[axis + 1 :]]
        return [*out[1:], out[0], 0]

    return apply


def fusing_map(p: Any, extents: list[int | None]) -> Callable[..., list[Any]]:
    """A map that joins two neighbouring indices of these extents into one."""
    at = p.number(max(1, len(extents) - 1))

    def apply(*indices: Any) -> list[Any]:
        if len(indices) < 2:
            return list(indices)
        joined = indices[at] * (extents[at + 1] or 1) + indices[at + 1]
        return [*indices[:at], joined, *indices[at + 2 :]]

    return apply


def regions(p: Any, realize: BlockRealize) -> tuple[str, int]:
    """A side and a position on it, mostly one that exists."""
    sides = {"read": realize.block.reads, "write": realize.block.writes}
    side = p.pick([s for s, r in sides.items() if r] or ["read"])
    return side, p.number(len(sides[side]) + (p.number(12) == 0))


def reorder_block_iter_var(p: Any) -> None:
    realize = p.pick(p.realizes())
    p.sch.reorder_block_iter_var(p.handle(realize), shuffled(p, len(realize.block.iter_vars)))


def reindex(p: Any) -> None:
    realize = p.pick(p.realizes())
    p.sch.reindex(p.handle(realize), regions(p, realize))


def reindex_cache(p: Any) -> None:
    realize = p.pick(p.realizes())
    side, position = regions(p, realize)
    given = (realize.block.reads if side == "read" else realize.block.writes)[position:]
    used: list[int] = []
    if given:
        text = {v for r in given[0].region for v in free_vars(r.min)}
        used = [n for n, v in enumerate(realize.block.iter_vars) if v.var in text]
    inner = index_map(p, len(used))
    step = getattr(p.sch, f"reindex_cache_{side}")
    step(p.handle(realize), position, p.scope(), lambda *i: inner(*[i[n] for n in used]))


def cache_inplace(p: Any) -> None:
    candidates = [r for r in p.realizes() if _updates(r.block)]
    if not candidates and p.number(3):
        p.nothing()
    realize = p.pick(candidates if candidates and p.number(6) else p.realizes())
    written = {w.buffer for w in realize.block.writes}
    both = [n for n, r in enumerate(realize.block.reads) if r.buffer in written] or [0]
    p.sch.cache_inplace(p.handle(realize), p.pick(both), p.scope())


def _updates(block: Block) -> bool:
    written = {w.buffer for w in block.writes}
    return any(r.buffer in written for r in block.reads)


def cache_index(p: Any) -> None:
    p.sch.cache_index(p.block(), p.scope(), p.number(3))


def transform_layout(p: Any) -> None:
    choose_layout(p, parameters=False)


def choose_layout(p: Any, *, parameters: bool) -> None:
    """transform_layout of a temporary buffer or a parameter."""
    realize = p.pick(p.realizes())
    params = p.sch.func.params
    block = realize.block
    sides = {"read": block.reads, "write": block.writes}
    choices = [
        (side, n)
        for side, given in sides.items()
        for n, r in enumerate(given)
        if (r.buffer in params) is parameters
    ]
    if not choices:
        p.nothing()
    side, position = p.pick(choices)
    buffer = sides[side][position].buffer
    shape = [as_int(s) for s in buffer.shape]
    fn = fusing_map(p, shape) if p.number(4) == 0 else index_map(p, len(shape))
    pad = p.pick([None, 0, 3, 1, lambda *i: i[0] if i else 2])
    p.sch.transform_layout(p.handle(realize), (side, position), fn, pad)


def transform_block_layout(p: Any) -> None:
    realize = p.pick(p.realizes())
    extents = [as_int(v.dom.extent) for v in realize.block.iter_vars]
    fn = fusing_map(p, extents) if p.number(3) == 0 else index_map(p, len(extents))
    p.sch.transform_block_layout(p.handle(realize), fn)


def pad_einsum(p: Any) -> None:
    realize = p.pick(p.realizes())
    factors = [p.pick([1, 2, 3, 4, 5]) for _ in realize.block.iter_vars]
    p.sch.pad_einsum(p.handle(realize), factors)


def overcompute(p: Any) -> None:
    realize = p.pick(p.realizes())
    factors = [p.pick([1, 2, 3, 4]) if v.is_spatial else 1 for v in realize.block.iter_vars]
    p.sch.overcompute(p.handle(realize), factors)


def decompose_padding(p: Any) -> None:
    wanted = [r for r in p.realizes() if "if_then_else" in p.text(r)] or p.realizes()
    block = p.handle(p.pick(wanted))
    loop = p.pick(p.loops(block))
    allowed = p.sch.can_decompose_padding(block, loop)
    p.sch.decompose_padding(block, loop)
    assert allowed


def storage_align(p: Any) -> None:
    factor = p.pick([1, 4, 16, 32])
    p.sch.storage_align(p.block(), 0, p.number(5) - 2, factor, p.number(factor))


def set_dtype(p: Any) -> None:
    """unsafe_set_dtype to a type that holds all values that occur with the machine's arguments."""
    realize = p.pick(p.realizes())
    dtype = realize.block.writes[0].buffer.dtype if realize.block.writes else None
    wide = "float64" if dtype is not None and dtype.is_float else "int64"
    step = p.pick([p.sch.unsafe_set_dtype, p.sch.widen_dtype])
    step(p.handle(realize), 0, wide)


def narrow_dtype(p: Any) -> None:
    """narrow_dtype of a stage to a type that holds its values, if a stage has such a type."""
    given = {b for func in p.sch.mod.functions.values() for b in func.buffers}
    fitting = []
    for realize in p.realizes():
        body = realize.block.body
        if isinstance(body, BufferStore) and body.value.dtype.is_int and body.buffer not in given:
            low, high = span(body.value)
            for kind, offset in NARROW:
                least, most = DType(kind).range
                if least <= low - offset and high - offset <= most:
                    fitting.append((realize, kind, offset))
    realize, kind, offset = p.pick(fitting or [(r, "int16", 0) for r in p.realizes()])
    p.sch.narrow_dtype(p.handle(realize), 0, kind, offset)


def annotate_buffer_access(p: Any) -> None:
    realize = p.pick(p.realizes())
    block = realize.block
    side, position = regions(p, realize)
    given = (block.reads if side == "read" else block.writes)[position:]
    if not given:
        p.sch.annotate_buffer_access(p.handle(realize), position, side, lambda *i: i)
        return
    more = [(p.number(3), p.number(3)) for _ in given[0].region]

    def ranges(*point: Any) -> list[Any]:
        values = evolve(realize, iter_values=point).bindings  # (a user's function hashes no Expr)
        pairs = [
            (substitute(r.min, values) - low, substitute(r.min + r.extent, values) + high)
            for r, (low, high) in zip(given[0].region, more, strict=True)
        ]
        return [list(x) for x in pairs]

    p.sch.annotate_buffer_access(p.handle(realize), position, side, ranges)


NARROW = [(kind, at) for kind in ("int8", "uint8", "int16") for at in (0, -121, -3, 7)]

LAYOUT_OPS: dict[str, tuple[int, Callable[[Any], None]]] = {
    "reorder_block_iter_var": (3, reorder_block_iter_var),
    "reindex": (5, reindex),
    "reindex_cache_read reindex_cache_write": (6, reindex_cache),
    "cache_inplace": (3, cache_inplace),
    "cache_index": (3, cache_index),
    "transform_layout": (8, transform_layout),
    "transform_block_layout": (4, transform_block_layout),
    "pad_einsum": (5, pad_einsum),
    "overcompute": (5, overcompute),
    "decompose_padding": (4, decompose_padding),
    "storage_align": (2, storage_align),
    "unsafe_set_dtype widen_dtype": (3, set_dtype),
    "narrow_dtype": (5, narrow_dtype),
    "annotate_buffer_access": (3, annotate_buffer_access),
}
