"""Operations of the random machine that first build the situation in which a primitive applies.

Also converts arguments for a function whose parameters changed their layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from schedule.machine_layout import choose_layout

from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import VerifyError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import Expr, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    Stmt,
    evolve,
    frozen,
)
from metasched.ir.verify import verify
from metasched.ir.visit import (
    blocks_of,
    fresh_copy,
    substitute,
    substitute_buffers,
    transform,
    walk_stmts,
)
from metasched.schedule.codec import _python
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule


def roll(p: Any) -> None:
    """compute_at of a producer of overlapping windows, then rolling_buffer."""
    pairs = [
        (r, users[0].realize)
        for r in p.realizes()
        if len(users := p.sch.state.scope(r).consumers(r.block.token)) == 1
    ]
    if not pairs:
        p.nothing()
    realize, user = p.pick(pairs)
    block, consumer = p.handle(realize), p.handle(user)
    loops = p.loops(consumer)
    spatial = sum(v.is_spatial for v in user.block.iter_vars)
    at = p.number(max(1, min(spatial, len(loops))))
    if p.number(3):
        loops[at], _ = p.sch.split(loops[at], [None, 1 + p.number(4)])
    p.sch.compute_at(block, loops[at], bool(p.number(2)))
    p.sch.rolling_buffer(block, 0)


def fuse_epilogue(p: Any) -> None:
    pairs = [
        (r, user.realize)
        for r in p.realizes()
        if r.block.init is not None
        for user in p.sch.state.scope(r).consumers(r.block.token)
    ]
    if not pairs:
        p.nothing()
    reduction, epilogue = p.pick(pairs)
    p.sch.fuse_reduction_epilogue(p.handle(reduction), p.handle(epilogue))


def hide(p: Any) -> None:
    """unsafe_hide_buffer_access, mostly of a region that is declared but not touched."""
    found = [
        (r, n)
        for r in p.realizes()
        for n, region in enumerate(r.block.reads)
        if not _touches(r.block, region.buffer)
    ]
    if not found or p.number(8) == 0:
        p.sch.unsafe_hide_buffer_access(p.block(), p.pick(["read", "write"]), [p.number(3)])
        return
    realize, position = p.pick(found)
    p.sch.unsafe_hide_buffer_access(p.handle(realize), "read", [position])


def _touches(block: Block, buffer: Buffer) -> bool:
    stmts = list(walk_stmts(block.body))
    return any(b is buffer for s in stmts for e in s.exprs for b in _loaded(e)) or any(
        isinstance(s, BufferStore) and s.buffer is buffer for s in stmts
    )


def _loaded(expr: Expr) -> list[Buffer]:
    own = [expr.buffer] if isinstance(expr, BufferLoad) else []
    return own + [b for c in expr.children for b in _loaded(c)]


# -- intrinsics made from the program itself -----------------------------------------------------


def tensorize(p: Any) -> None:
    """Register the code below a loop as an intrinsic, and tensorize the loop by it."""
    block = p.block()
    loops = p.loops(block)
    if p.number(2):
        at = p.number(len(loops))
        outer, inner = p.sch.split(loops[at], [None, p.pick([2, 4, 1, 3])])
        p.sch.reorder(outer, *loops[:at], *loops[at + 1 :], inner)
        loops = p.sch.get_loops(block)
    if p.number(3) == 0 and p.sch.get(block).init is not None:
        p.sch.decompose_reduction(block, p.pick(loops))
        loops = p.sch.get_loops(block)
    loop = p.pick(loops)
    made = p.sch.blockize(loop)
    desc = described(p.sch.state.block(made), p.number(2))
    if desc is None:
        p.nothing()
    name = f"machine.{len(p.sch.trace)}"
    TensorIntrin.register(name, desc, implemented(desc, p.number(3)), override=True)
    if p.number(2):
        p.sch.undo()
        made = loop
    p.sch.tensorize(made, name)


def described(realize: BlockRealize, drop: int) -> PrimFunc | None:
    """The body of a block as a function of the parts that it touches; None where these are not
    boxes of constant extents. With `drop`, leading dimensions of one element are left out."""
    block = realize.block
    an = Analyzer({v.var: v.dom for v in block.iter_vars}, keep_units=True)
    places: dict[Buffer, tuple[Buffer, list[Expr]]] = {}
    for region in (*block.writes, *block.reads):
        old = region.buffer
        sizes, starts = [as_int(r.extent) for r in region.region], [r.min for r in region.region]
        if None in sizes or (old in places and places[old][1] != starts):
            return None
        while drop and len(sizes) > 1 and sizes[0] == 1:
            sizes, starts = sizes[1:], starts[1:]
        if old not in places:
            shape = tuple(as_expr(n, s.dtype) for s, n in zip(starts, sizes, strict=True))
            new = Buffer(old.name, shape, old.dtype, old.scope, (), None, 1)
            places[old] = (new, starts)

    def shift(buffer: Buffer, indices: Any) -> tuple[Expr, ...]:
        _, starts = places[buffer]
        kept = indices[len(indices) - len(starts) :]
        return tuple(an.simplify(i - s) for i, s in zip(kept, starts, strict=True))

    def on_expr(e: Expr) -> Expr | None:
        if isinstance(e, BufferLoad) and e.buffer in places:
            return BufferLoad(places[e.buffer][0], shift(e.buffer, e.indices), e.predicate)
        return None

    def region(r: BufferRegion) -> BufferRegion:
        moved = shift(r.buffer, [x.min for x in r.region])
        sized = r.region[len(r.region) - len(moved) :]
        ranges = tuple(evolve(x, min=m) for x, m in zip(sized, moved, strict=True))
        return BufferRegion(places[r.buffer][0], ranges)

    def on_stmt(s: Stmt) -> Stmt | None:
        if isinstance(s, Block):
            return evolve(s, reads=tuple(map(region, s.reads)), writes=tuple(map(region, s.writes)))
        if isinstance(s, BufferStore) and s.buffer in places:
            return evolve(s, buffer=places[s.buffer][0], indices=shift(s.buffer, s.indices))
        return None

    inner = [r.block for r in blocks_of(block.body)]
    if block.init is not None or any(b.alloc_buffers or b.match_buffers for b in inner):
        return None
    body = fresh_copy(transform(block.body, on_stmt, on_expr))
    whole = [tuple(places[r.buffer][0].whole() for r in x) for x in (block.reads, block.writes)]
    root = Block("root", (), _once(whole[0]), _once(whole[1]), body)
    params = tuple(new for new, _ in places.values())
    made = PrimFunc(params, BlockRealize.plain(root), frozen({"global_symbol": "main"}))
    try:
        verify(made)
    except VerifyError:  # what is touched depends on where the block stands
        return None
    return made


def _once(regions: tuple[BufferRegion, ...]) -> tuple[BufferRegion, ...]:
    return tuple({r.buffer: r for r in regions}.values())


def implemented(desc: PrimFunc, how: int) -> PrimFunc:
    """The description as an implementation: as it is, unrolled, or without its blocks."""
    buffers = {b: Buffer(b.name, b.shape, b.dtype, b.scope, (), None, 1) for b in desc.buffers}

    def on_stmt(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and how and s.thread is None:
            return evolve(s, kind=ForKind.UNROLLED)
        if not isinstance(s, BlockRealize) or how < 2:
            return None
        if s.block.init is not None or as_int(s.predicate) != 1:
            return None
        iters = [v.var for v in s.block.iter_vars]
        return substitute(s.block.body, dict(zip(iters, s.iter_values, strict=True)))

    root = desc.root
    body = substitute_buffers(fresh_copy(transform(root.body, on_stmt)), buffers)
    new = evolve(
        root, body=body,
        reads=tuple(buffers[r.buffer].whole() for r in root.reads),
        writes=tuple(buffers[r.buffer].whole() for r in root.writes),
    )  # fmt: skip
    return PrimFunc(tuple(buffers.values()), BlockRealize.plain(new), desc.attrs)


# -- parameters in another layout ----------------------------------------------------------------


def parameter_layout(p: Any) -> None:
    choose_layout(p, parameters=True)


Arrays = list[np.ndarray[Any, Any]]


def relayout(sch: Schedule) -> Callable[[Arrays, bool], Arrays]:
    """The function that converts the arguments of the program to arguments after the steps so far.

    Of the converter: padding of written parameters is spoilt when `poison` is given.
    """
    moves: list[tuple[int, IndexMap, Any]] = []
    mods = [*(s.mod for s in sch._history), sch.mod]
    for n, entry in enumerate(sch.trace.entries):
        if entry.kind.name == "transform_layout":
            params = zip(mods[n]["main"].params, mods[n + 1]["main"].params, strict=True)
            fn, pad = entry.attrs["index_map"], entry.values[3]
            moves += [(i, fn, pad) for i, (old, new) in enumerate(params) if old is not new]
    written = {
        w.buffer for s in walk_stmts(mods[0]["main"].body) if isinstance(s, Block) for w in s.writes
    }
    outputs = [p in written for p in mods[0]["main"].params]

    def convert(arrays: Arrays, poison: bool) -> Arrays:
        out = list(arrays)
        for i, fn, pad in moves:
            out[i] = _moved(out[i], fn, pad, spoil=poison and outputs[i])
        return out

    return convert


def _moved(
    old: np.ndarray[Any, Any], fn: IndexMap, pad: Any, *, spoil: bool
) -> np.ndarray[Any, Any]:
    shape = [as_int(s) for s in fn.map_shape(old.shape)]
    new = np.zeros(shape, old.dtype)
    if pad is not None:
        values = _numeric(pad)(*np.indices(shape))[0] if isinstance(pad, IndexMap) else pad
        new[...] = np.asarray(values, "int64").astype(old.dtype)
        if spoil:
            new += np.ones((), old.dtype)
    where = _numeric(fn)(*np.indices(old.shape))
    new[tuple(np.broadcast_to(w, old.shape) for w in where)] = old
    return new


def _numeric(fn: IndexMap) -> Any:
    return eval(_python(fn, {}), {})  # a map as a user would write it, on arrays of indices


def misfit(p: Any) -> None:
    """Fuse neighbouring loops, split by a factor that fits neither, and run a half at once."""
    loops = p.loops(p.block())
    first = p.number(len(loops))
    halves = p.sch.split(
        p.sch.fuse(*loops[first : first + 2 + p.number(2)]), [None, 2 + p.number(7)]
    )
    loop = p.pick(halves)
    kind = p.pick(["parallel", "vectorize", "reorder", "threads"])
    if kind == "threads":
        p.sch.bind(loop, "threadIdx.x")
    elif kind == "reorder":
        p.sch.reorder(*reversed(halves))
    else:
        getattr(p.sch, kind)(loop)


def overlap(p: Any) -> None:
    """Compute a producer in tiles of its consumer, and reorder loops above either."""
    scope_of = p.sch.state.scope
    pairs = [(r, c.realize) for r in p.realizes() for c in scope_of(r).consumers(r.block.token)]
    if not pairs:
        p.nothing()
    producer, consumer = p.pick(pairs)
    block, other = p.handle(producer), p.handle(consumer)
    outer, _ = p.sch.split(p.pick(p.loops(other)), [None, 1 + p.number(4)])
    p.sch.compute_at(block, outer)
    loops = p.loops(p.pick([block, block, other]))
    first = p.number(len(loops))
    chosen = loops[first : first + 2 + p.number(2)]
    p.sch.reorder(*(chosen[::-1] if p.number(3) else [*chosen[1:], *chosen[:1]]))


def skewed(p: Any) -> None:
    """Skew a loop, exchange it with the loop around it, and run the inner loop at once."""
    pairs = [
        (outer, inner)
        for outer, inner in ((n, n.body) for n in p.sch.state.index.loops.values())
        if isinstance(inner, For)
    ]
    if not pairs:
        p.nothing()
    outer, inner = p.pick(pairs)
    loops = {p.sch.get(rv).var: rv for r in p.realizes() for rv in p.sch.get_loops(p.handle(r))}
    if outer.var not in loops or inner.var not in loops:
        p.nothing()
    new = p.sch.skew(loops[outer.var], loops[inner.var], p.pick([1, 2, 3, -1, 1]))
    p.sch.reorder(new, loops[outer.var])
    kind = p.pick(["serial", "parallel", "unroll"])
    if kind != "serial":
        getattr(p.sch, kind)(loops[outer.var])


def time_tiles(p: Any) -> None:
    """Delay the nests below a loop, merge them, skew the rows and exchange them with the steps."""
    pairs = [
        (outer, nests)
        for outer in p.sch.state.index.loops.values()
        if len(nests := [s for s in getattr(outer.body, "items", ()) if isinstance(s, For)]) > 1
        if all(as_int(n.min) is not None and as_int(n.extent) is not None for n in nests)
    ]
    if not pairs:
        p.nothing()
    outer, nests = p.pick(pairs)
    handles = {p.sch.get(rv).var: rv for r in p.realizes() for rv in p.sch.get_loops(p.handle(r))}
    if any(n.var not in handles for n in (outer, *nests)):
        p.nothing()
    starts = [k * p.pick([1, 1, 1, 0, 2]) + (as_int(n.min) or 0) for k, n in enumerate(nests)]
    ends = [start + (as_int(n.extent) or 0) for start, n in zip(starts, nests, strict=True)]
    loops = [
        p.sch.delay(handles[n.var], start, max(ends) - end)
        for n, start, end in zip(nests, starts, ends, strict=True)
    ]
    rows = p.sch.merge(*loops)
    time = handles[outer.var]
    rows = p.sch.skew(time, rows, p.pick([2, 2, 1, 3]))
    if p.number(2):
        p.sch.reorder(rows, time)
        return
    tiles, row = p.sch.split(rows, [None, p.pick([2, 3])])
    steps, step = p.sch.split(time, [None, 2])
    p.sch.reorder(steps, tiles, step, row)
    wave = p.sch.skew(steps, tiles, 1)
    p.sch.reorder(wave, steps)
    p.sch.parallel(steps)


def split_then(name: str) -> Callable[[Any], None]:
    """Split a loop, then apply a primitive to the outer part."""

    def operation(p: Any) -> None:
        loop = p.loop()
        outer, _ = p.sch.split(loop, [None, 1 + p.number(4)])
        getattr(p.sch, name)(outer)

    return operation


def outputs_apart(p: Any) -> None:
    """Cut a block at its stores, then give each part a loop of its own."""
    block = p.block()
    p.sch.decompose_outputs(block)
    for loop in p.sch.get_loops(block)[-1:]:  # none around an init inside a block
        p.sch.fission(loop)


SITUATIONS: dict[str, tuple[int, Callable[[Any], None]]] = {
    "rolling_buffer": (3, roll),
    "fuse_reduction_epilogue": (4, fuse_epilogue),
    "unsafe_hide_buffer_access": (1, hide),
    "tensorize": (5, tensorize),
    "transform_layout_of_parameter": (4, parameter_layout),
    "fuse split of misfits": (6, misfit),
    "compute_at reorder of overlaps": (6, overlap),
    "wavefront": (4, skewed),
    "time_tiles": (2, time_tiles),
    "update_in_chunks": (2, split_then("privatize_update")),
    "scan_in_chunks": (2, split_then("decompose_scan")),
    "outputs_apart": (3, outputs_apart),
}
