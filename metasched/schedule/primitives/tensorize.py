"""tensorize: replaces the body of a block by an intrinsic that computes the same."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from metasched.arith.analyzer import Analyzer
from metasched.errors import RegistryError, ScheduleError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr, show_region
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Ramp
from metasched.ir.stmt import Block, BufferStore, FrozenMap, MatchBufferRegion, Stmt, evolve
from metasched.ir.visit import (
    blocks_of,
    free_vars,
    fresh_copy,
    substitute,
    substitute_buffers,
    walk,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_root_free
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.primitives.blockize import blockized
from metasched.schedule.primitives.tensor_match import match, no_alias
from metasched.schedule.primitives.tensor_mismatch import TYPE, Mismatch, nearest, side_by_side
from metasched.schedule.state import State
from metasched.script.printer import script_with_marks


@primitive(of_loop=ways.with_intrinsics, of_block=ways.with_intrinsics)
def tensorize(
    state: State,
    block_or_loop: LoopRV | BlockRV | str,
    tensor_intrin: str,
    preserve_unit_iters: bool = True,
) -> None:
    """Replace the body of a block by an intrinsic's implementation; a loop is blockized first.

    The implementation works on views of the regions that the block touches. The block keeps its
    handle, name, regions and init.

    requires  a registered intrinsic; a body that equals the description statement for statement:
              loops and iterators (but those of extent one) in order, kind and extent, and accesses
              relative to the start of the block's regions; buffers of the described type and scope
              (`local` serves as `global`; dimensions may come before), with the whole region inside
              the buffer; no written buffer that takes the place of two; the memory layout that the
              implementation needs; for a loop, what blockize requires
    rewrite   C_o(for i: C(C[io * 4 + i] = ...)) -> C_o(Cv = match(C[io * 4:io * 4 + 4]); call(Cv))
    """
    assert not isinstance(block_or_loop, str)
    try:
        intrin = TensorIntrin.get(tensor_intrin)
    except RegistryError as error:
        raise state.error(
            "unknown-intrinsic", str(error), hint="TensorIntrin.register makes one known"
        ) from None
    node: Stmt
    if isinstance(block_or_loop, LoopRV):
        node = state.loop(block_or_loop)
        realize = blockized(state, node, preserve_unit_iters)
    else:
        node = realize = require_root_free(state, block_or_loop)
    block = realize.block
    try:
        found = match(block, intrin.desc.root, intrin.desc.buffers)
        no_alias(found.parts, intrin.desc.root)
    except Mismatch as error:
        raise _mismatch(state, block, intrin, error, node) from None
    parts = [found.parts[b] for b in intrin.desc.buffers]
    for part in parts:
        _require_inside(state, block, part, node)
    for mine, theirs in zip(parts, intrin.impl.buffers, strict=True):
        _require_layout(state, mine, theirs, intrin.impl, node)
    made = _with_impl(state, block, intrin.impl, parts)
    state.commit(edit.replace(node, evolve(realize, block=made)))


def _mismatch(
    state: State, block: Block, intrin: TensorIntrin, found: Mismatch, node: Stmt
) -> ScheduleError:
    """The refusal of a block that does not match an intrinsic's description."""
    mod, desc = state.mod, intrin.desc.root
    return ScheduleError(
        state.primitive, "mismatch", f"{block.name} does not match {intrin.name}: {found}",
        block_or_loop=node, hint=nearest(block, intrin) if found.step == TYPE else found.step,
        excerpt=lambda: (
            f"{script_with_marks(mod, [node]).rstrip()}\n\n{side_by_side(block, desc, found)}"
        ),
    )  # fmt: skip


def _require_inside(state: State, block: Block, part: BufferRegion, node: Stmt) -> None:
    """Refuse a part that may leave its buffer: the implementation may touch all of it."""
    around = (above for above in state.ancestors(node) if isinstance(above, Block))
    known = Analyzer({v.var: v.dom for each in (block, *around) for v in each.iter_vars})
    for r, extent in zip(part.region, part.buffer.shape, strict=True):
        if not (known.prove(r.min >= 0) and known.prove(r.min + r.extent <= extent)):
            raise state.error(
                "beyond-buffer", f"{show_region(part)} is not proved to lie within "
                f"{part.buffer.name}", node,
                hint="pad the buffer first (pad_einsum), or split by factors that divide",
            )  # fmt: skip


def _require_layout(
    state: State, part: BufferRegion, view: Buffer, impl: PrimFunc, node: Stmt
) -> None:
    """Refuse a part whose memory layout is not the one that the implementation requires."""
    source, known = part.buffer, Analyzer()
    strides = source.row_major_strides()
    lead = source.ndim - view.ndim
    expected = view.strides
    if not expected and _flat(view, impl):
        expected = view.row_major_strides()
    for axis, want in enumerate(expected):
        have = strides[lead + axis]
        moves = as_int(view.shape[axis]) != 1
        if moves and not isinstance(want, Var) and not known.equal(have, want.astype(have.dtype)):
            raise state.error(
                "layout", f"{source.name} has stride {show_expr(have)} where the "
                f"implementation takes {show_expr(want)}", node,
                hint=_layout_hint(view),
            )  # fmt: skip
    if view.offset_factor > 1:
        terms = [r.min * s for r, s in zip(part.region, strides, strict=True)]
        offset = functools.reduce(operator.add, terms)
        if not known.equal(offset % view.offset_factor, offset * 0):
            raise state.error(
                "misaligned", f"the part of {source.name} does not begin at a multiple of "
                f"{view.offset_factor} elements", node,
            )  # fmt: skip
    if source.align < view.align and view.align % source.align == 0:
        raise state.error(
            "misaligned", f"{source.name} is aligned to {source.align} bytes, not {view.align}",
            node,
        )  # fmt: skip


def _layout_hint(view: Buffer) -> str:
    cache = "cache the buffer in the layout of the intrinsic first (cache_read, transform_layout)"
    if view.strides:
        return cache
    strides = ", ".join(f"s{n}" for n in range(view.ndim - 1))
    return (
        f"the implementation uses {view.name} as dense memory: declare strides there "
        f"(strides=[{strides}, 1], each a T.int32()) and use them, or {cache}"
    )


def _flat(view: Buffer, impl: PrimFunc) -> bool:
    """Whether the implementation uses a view as flat memory: across rows, or by its address."""
    last = as_int(view.shape[-1]) if view.shape else 1
    for node in walk(impl.body):
        if node is view.data:
            return True
        if isinstance(node, (BufferLoad, BufferStore)) and node.buffer is view:
            index = node.indices[-1] if node.indices else None
            if isinstance(index, Ramp) and (
                last is None or (as_int(index.base) or 0) + _reach(index) > last
            ):
                return True
    return False


def _reach(index: Ramp) -> int:
    step = as_int(index.stride)
    return (index.lanes - 1) * (step if step is not None else index.lanes) + 1


def _with_impl(state: State, block: Block, impl: PrimFunc, parts: Sequence[BufferRegion]) -> Block:
    """The block with a fresh copy of the implementation as its body."""
    root = impl.root
    symbols: dict[Var, Expr] = {}
    scopes = {b: part.buffer.scope for b, part in zip(impl.buffers, parts, strict=True)}
    views = {
        b: _renewed(state, b, symbols, scopes.get(b, b.scope))
        for b in (*impl.buffers, *_allocated(root))
    }
    body = fresh_copy(root.body, lambda v: state.fresh_var(v.name, v.dtype))
    body = substitute(substitute_buffers(body, views), symbols)
    matches = tuple(
        MatchBufferRegion(views[b], _view(p, b)) for b, p in zip(impl.buffers, parts, strict=True)
    )
    return evolve(
        block,
        body=body,
        alloc_buffers=tuple(views[b] for b in root.alloc_buffers),
        match_buffers=matches,
        annotations=FrozenMap({**block.annotations, **root.annotations}),
    )


def _allocated(root: Block) -> list[Buffer]:
    inner = [b for r in blocks_of(root.body) for b in r.block.alloc_buffers]
    return [*root.alloc_buffers, *inner]


def _renewed(state: State, buffer: Buffer, symbols: dict[Var, Expr], scope: str) -> Buffer:
    """A copy of a buffer in `scope`, with fresh symbolic strides and offset."""
    offset = buffer.elem_offset
    for expr in buffer.strides if offset is None else (*buffer.strides, offset):
        for var in sorted(free_vars(expr), key=lambda v: v.name):
            if var not in symbols:
                symbols[var] = state.fresh_var(var.name, var.dtype)
    return state.fresh_buffer(
        buffer.name, buffer.shape, buffer.dtype, scope,
        tuple(substitute(s, symbols) for s in buffer.strides),
        None if offset is None else substitute(offset, symbols),
        buffer.align, buffer.offset_factor,
    )  # fmt: skip


def _view(part: BufferRegion, view: Buffer) -> BufferRegion:
    """The part with extents in the type of its positions."""
    return BufferRegion(
        part.buffer, tuple(Range(r.min, r.extent.astype(r.min.dtype)) for r in part.region)
    )
