"""Views of regions: accesses to a matched buffer become accesses to its source."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.errors import LowerError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call, Ramp
from metasched.ir.stmt import Block, BufferStore, MatchBufferRegion, Stmt, evolve
from metasched.ir.visit import map_body, stmt_vars, substitute, transform


def lower_match_buffers(func: PrimFunc) -> PrimFunc:
    """match(V, A[a:a+n, b:b+m]); V[i, j]  ->  A[a + i, b + j]."""
    return map_body(func, lambda body: transform(body, _block))


def _block(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Block) or not stmt.match_buffers:
        return None
    block = evolve(stmt, match_buffers=())
    for match in reversed(stmt.match_buffers):
        block = _apply(block, match)
    return block


def _apply(block: Block, match: MatchBufferRegion) -> Block:
    view, source = match.buffer, match.source.buffer
    region = match.source.region
    skipped = len(region) - view.ndim
    if skipped < 0 or any(as_int(r.extent) != 1 for r in region[:skipped]):
        raise LowerError(f"match_buffer {view.name}: its shape does not fit the region of {source}")

    def place(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        lead = [r.min for r in region[:skipped]]
        rest = [_shift(i, r.min) for i, r in zip(indices, region[skipped:], strict=True)]
        return (*lead, *rest)

    def on_expr(expr: Expr) -> Expr | None:
        if isinstance(expr, BufferLoad) and expr.buffer is view:
            return BufferLoad(source, place(expr.indices), expr.predicate)
        return source.data if expr is view.data else None

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, BufferStore) and stmt.buffer is view:
            return evolve(stmt, buffer=source, indices=place(stmt.indices))
        if isinstance(stmt, MatchBufferRegion):
            return None
        return _regions(stmt, view, source, place) if isinstance(stmt, Block) else None

    body = _pointers(block.body, view, _start(source, region))
    body = transform(body, on_stmt, on_expr)
    return evolve(block, body=substitute(body, _solved(view, source, region, skipped)))


def _start(source: Buffer, region: Sequence[Range]) -> Expr:
    """The position of the region's first element in the memory of its buffer."""
    given = source.elem_offset
    start: Expr = as_expr(0) if given is None else given
    for r, stride in zip(region, source.row_major_strides(), strict=True):
        start = start + r.min * stride
    return start


def _pointers(body: Stmt, view: Buffer, start: Expr) -> Stmt:
    """Let offsets of pointers into a view without `elem_offset` count from the view's start.

    The offset of a pointer into another view contains the variable `elem_offset`.
    """
    if view.elem_offset is not None or as_int(start) == 0 or view.data not in stmt_vars(body):
        return body

    def on_expr(expr: Expr) -> Expr | None:
        if not isinstance(expr, Call) or view.data not in expr.args:
            return None
        if expr.op.name != "access_ptr":
            raise LowerError(
                f"match_buffer {view.name}: `{expr.op.name}` takes the pointer of its memory, "
                f"which begins before {view.name}: take {view.name}.access_ptr(...), or declare an "
                "offset (offset_factor=1)"
            )
        data, offset, *rest = expr.args
        return Call(expr.dtype, expr.op, [data, start.astype(offset.dtype) + offset, *rest])

    return transform(body, on_expr=on_expr)


def _shift(index: Expr, start: Expr) -> Expr:
    if isinstance(index, Ramp):
        base = index.base + start
        return Ramp(base, index.stride.astype(base.dtype), index.lanes)
    return index + start


def _regions(block: Block, view: Buffer, source: Buffer, place: object) -> Stmt | None:
    """Replace the view by its source in the regions and views of an inner block."""

    def moved(r: BufferRegion) -> BufferRegion:
        if r.buffer is not view:
            return r
        starts = place([x.min for x in r.region])  # type: ignore[operator]
        extents = [as_expr(1, s.dtype) for s in starts[: len(starts) - len(r.region)]]
        extents += [x.extent for x in r.region]
        return BufferRegion(source, tuple(map(Range.of, starts, extents)))

    touched = [*block.reads, *block.writes, *(m.source for m in block.match_buffers)]
    if all(r.buffer is not view for r in touched):
        return None
    matches = tuple(MatchBufferRegion(m.buffer, moved(m.source)) for m in block.match_buffers)
    return evolve(
        block, reads=tuple(map(moved, block.reads)), writes=tuple(map(moved, block.writes)),
        match_buffers=matches,
    )  # fmt: skip


def _solved(view: Buffer, source: Buffer, region: Sequence[Range], skipped: int) -> dict[Var, Expr]:
    """The values of the view's symbolic strides, offset and extents, computed from its source."""
    values: dict[Var, Expr] = {}
    strides = source.row_major_strides()
    for mine, theirs in zip(view.strides, strides[skipped:], strict=False):
        if isinstance(mine, Var):
            values[mine] = theirs.astype(mine.dtype)
    if isinstance(view.elem_offset, Var):
        values[view.elem_offset] = _start(source, region).astype(view.elem_offset.dtype)
    for mine, r in zip(view.shape, region[skipped:], strict=True):
        if isinstance(mine, Var):
            values[mine] = r.extent.astype(mine.dtype)
    return values
