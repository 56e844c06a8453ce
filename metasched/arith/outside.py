"""Finds accesses that certainly leave their buffer, each with an iteration that certainly runs.

An access is reported only if the loops around it are certain to run this iteration, and all
conditions around it hold there. A value that cannot be evaluated (an element of another buffer, a
call) proves nothing. Programs with constant extents are evaluated at many iterations at once.
Programs with symbolic extents are evaluated at the corners of their loops; the proof then holds for
all values of the symbols for which the loops run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metasched.arith.corner import Path, Point, at_corner, at_samples, is_plain, known_of
from metasched.arith.regions import block_access_regions
from metasched.errors import MetaschedError, VerifyError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.canonical import expr_code
from metasched.ir.describe import context, show_expr, show_region
from metasched.ir.expr import EQ, TRUE, And, Expr, IntImm, Let, Or, Select, as_int, logical_not
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import Broadcast, Call, Ramp
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
    fact,
)
from metasched.ir.verify import verify
from metasched.ir.visit import walk, walk_stmts, walk_under

_LEAVING = (Break, Continue, Return)


@dataclass(frozen=True, slots=True)
class Outside:
    """An access that certainly leaves its buffer, or an extent that is certainly negative.

    Attributes:
        message: the fault in one sentence, with the iteration.
        hint: what to write instead.
        access: the load or the region; for a store, the load of the same element; None for an
            extent.
        stack: the statements around the access, outermost first.
    """

    message: str
    hint: str
    access: BufferLoad | BufferRegion | None
    stack: tuple[Stmt, ...]


def require_well_formed(func: PrimFunc) -> None:
    """Verify a function, unless this object was verified before.

    Raises VerifyError for a broken rule of `ir.verify`, or for an access that is certainly outside.
    """
    known = func.body.facts.get("well_formed", ())
    parts = (func.params, func.attrs, func.ret_type)
    if not known or any(a is not b for a, b in zip(known, parts, strict=True)):
        verify(func)
        require_inside(func)
        func.body.facts["well_formed"] = parts


def require_inside(source: PrimFunc | IRModule) -> None:
    """Check that no access of a function, or of any function of a module, is certainly outside.

    Raises VerifyError (`.rule` is "index-in-bounds") with the statements around and the iteration.
    """
    for func in source.values() if isinstance(source, IRModule) else (source,):
        found = first_outside(func.body)
        if found is not None:
            above, node = [func, *found.stack[:-1]], found.stack[-1]
            text = f"{found.message}\n{context(above, node)}\nhint: {found.hint}"
            raise VerifyError(text, rule="index-in-bounds", node=node)


@fact
def first_outside(body: Stmt) -> Outside | None:
    """The first access in program order that is certainly outside its buffer."""
    return next(_visit(body, (), ()), None)


# ---- the walk -----------------------------------------------------------------------------


def _visit(stmt: Stmt, path: Path, above: tuple[Stmt, ...]) -> Iterator[Outside]:
    stack = (*above, stmt)
    if isinstance(stmt, BlockRealize):
        yield from _realize(stmt, path, stack)
        return
    if isinstance(stmt, BufferStore):
        yield from _store(stmt, path, stack)
    for expr in stmt.exprs:
        yield from _loads(expr, path, stack)
    if isinstance(stmt, SeqStmt):
        yield from _sequence(stmt, path, above)
    elif isinstance(stmt, For):
        yield from _extent(stmt.extent, f"the loop {stmt.var.name}", stack)
        if not any(isinstance(s, _LEAVING) for s in walk_stmts(stmt.body)):
            yield from _visit(stmt.body, (*path, stmt), stack)
    elif isinstance(stmt, IfThenElse):
        yield from _visit(stmt.then, (*path, stmt.condition), stack)
        if stmt.orelse is not None:
            yield from _visit(stmt.orelse, (*path, logical_not(stmt.condition)), stack)
    elif not isinstance(stmt, While):  # whether the body of a While runs depends on memory
        inside = path
        if isinstance(stmt, LetStmt) and not stmt.var.dtype.is_float:  # no index has a float
            inside = (*path, (stmt.var, stmt.value))
        for part in stmt.stmts:
            yield from _visit(part, inside, stack)


def _sequence(stmt: SeqStmt, path: Path, above: tuple[Stmt, ...]) -> Iterator[Outside]:
    """Visit statements in order.

    An assertion guards the statements after it. After a break, continue or return, no statement is
    certain to run.
    """
    for part in stmt.items:
        yield from _visit(part, path, above)
        if isinstance(part, AssertStmt):
            path = (*path, part.condition)
        elif isinstance(part, Evaluate) and _is_assumption(part.value):
            path = (*path, part.value.children[0])
        elif any(isinstance(s, _LEAVING) for s in walk_stmts(part)):
            return


def _is_assumption(value: Expr) -> bool:
    return isinstance(value, Call) and value.op.name == "assume"


def _realize(stmt: BlockRealize, path: Path, stack: tuple[Stmt, ...]) -> Iterator[Outside]:
    block = stmt.block
    if stmt.predicate is not TRUE:
        yield from _loads(stmt.predicate, path, stack)
        path = (*path, stmt.predicate)
    for value in stmt.iter_values:  # evaluated only where the predicate holds
        yield from _loads(value, path, stack)
    for v, value in zip(block.iter_vars, stmt.iter_values, strict=False):
        yield from _extent(v.dom.extent, f"iterator {v.var.name} of block {block.name}", stack)
        path = (*path, (v.var, value))
    regions = (*block.reads, *block.writes, *(m.source for m in block.match_buffers))
    for region in regions:
        for r in region.region:
            yield from _extent(r.extent, show_region(region), stack, region)
    if not _conditional(block):
        for region in regions:
            yield from _region(block, region, path, stack)
    if block.init is not None:
        first = [EQ(v.var, v.dom.min) for v in block.iter_vars if v.is_reduce]
        yield from _visit(block.init, (*path, *first), stack)
    yield from _visit(block.body, path, stack)


def _extent(
    extent: Expr, what: str, stack: tuple[Stmt, ...], access: BufferRegion | None = None
) -> Iterator[Outside]:
    size = as_int(extent)
    if size is not None and size < 0:
        yield Outside(f"{what} has the extent {size}", "extents start at 0", access, stack)


def _store(stmt: BufferStore, path: Path, stack: tuple[Stmt, ...]) -> Iterator[Outside]:
    if stmt.predicate is None and len(stmt.indices) == stmt.buffer.ndim:
        place = BufferLoad(stmt.buffer, stmt.indices)
        yield from _access(place, path, stack)


def _loads(expr: Expr, path: Path, stack: tuple[Stmt, ...]) -> Iterator[Outside]:
    """Visit the loads of an expression; a load in a side of a choice runs under its condition."""
    if not any(isinstance(leaf, Buffer) for leaf in expr_code(expr)[1]):
        return
    for node, known in walk_under(expr, (), _evaluated, widened=False):
        if isinstance(node, BufferLoad) and node.predicate is None:
            yield from _access(node, (*path, *known), stack)


def _evaluated(node: Expr) -> list[tuple[Expr, Path]]:
    """The parts of a node that may be evaluated, each with what is known there."""
    if isinstance(node, Select) or (isinstance(node, Call) and node.op.name == "if_then_else"):
        condition, a, b = node.children
        if condition.dtype != "bool":  # it chooses by lane, or is a number
            return [(condition, ())]
        return [(condition, ()), (a, (condition,)), (b, (logical_not(condition),))]
    if isinstance(node, (And, Or)):  # the second operand may not be evaluated
        return [(node.a, ()), (node.b, (node.a if isinstance(node, And) else logical_not(node.a),))]
    if isinstance(node, Let):
        return [(node.value, ()), (node.body, ((node.var, node.value),))]
    if isinstance(node, Call) and node.op.name == "address_of":
        return []
    return [(child, ()) for child in node.children]


# ---- one access ---------------------------------------------------------------------------


def _access(load: BufferLoad, path: Path, stack: tuple[Stmt, ...]) -> Iterator[Outside]:
    """Check one access; of a vector that may continue in the next row, only the first lane."""
    buffer = load.buffer
    for axis, (index, extent) in enumerate(zip(load.indices, buffer.shape, strict=True)):
        for end in _ends(index) if buffer.ndim == 1 else _ends(index)[:1]:
            point = _certain(path, end, extent)
            if point is None:
                continue
            place = f"{buffer.name}[{', '.join(map(show_expr, load.indices))}]"
            text = f"{place} is outside {buffer.name}: index {axis} is {point.of(end)}"
            yield Outside(text + _room(extent) + str(point), _HINT, load, stack)
            return


_HINT = (
    "make the buffer larger or the loop shorter, or keep the access behind a condition "
    "(T.where, T.if_then_else)"
)


def _room(extent: Expr) -> str:
    size = as_int(extent)
    if size is None:
        return f", the extent is {show_expr(extent)}"
    return f", the indices are 0 to {size - 1}" if size else ", the extent is 0"


def _ends(index: Expr | Range) -> tuple[Expr, ...]:
    """The first and the last index of a range or a vector; empty for a vector that is no ramp."""
    if isinstance(index, Range):
        return (index.min,) if index.is_point else (index.min, index.min + index.extent - 1)
    if isinstance(index, Ramp):
        return index.base, index.base + (index.lanes - 1) * index.stride
    if isinstance(index, Broadcast):
        return (index.value,)
    return (index,) if index.dtype.lanes == 1 else ()


@fact
def _conditional(block: Block) -> bool:
    """Whether the regions of a block may legally leave their buffers.

    They may if the accesses depend on conditions or on blocks inside, or if a schedule step has
    declared the regions.
    """
    if any(key.startswith("explicit_") for key in block.annotations):
        return True
    return any(
        isinstance(node, (BlockRealize, IfThenElse, While, Select))
        or (isinstance(node, Call) and node.op.name == "if_then_else")
        for part in block.stmts
        for node in walk(part)
    )


def _region(
    block: Block, region: BufferRegion, path: Path, stack: tuple[Stmt, ...]
) -> Iterator[Outside]:
    """A declared region that leaves its buffer although the inferred region does not.

    An inferred region is an upper bound of the accesses, so it may leave the buffer, too.
    """
    found = _leaves(region.region, region.buffer, path)
    if found is None:
        return
    try:
        touched = [r for each in block_access_regions(block) for r in each]
    except MetaschedError:
        touched = []
    mine = [r for r in touched if r.buffer is region.buffer]
    if not any(_leaves(r.region, r.buffer, path) for r in mine):
        axis, end, point = found
        text = f"the region {show_region(region)} of block {block.name} leaves {region.buffer.name}"
        text += f": index {axis} reaches {point.of(end)}{_room(region.buffer.shape[axis])}{point}"
        yield Outside(text, "declare what the block touches, or leave it out", region, stack)


def _leaves(ranges: Sequence[Range], buffer: Buffer, path: Path) -> tuple[int, Expr, Point] | None:
    for axis, (r, extent) in enumerate(zip(ranges, buffer.shape, strict=False)):
        for end in _ends(r):
            point = _certain(path, end, extent)
            if point is not None:
                return axis, end, point
    return None


def _certain(path: Path, value: Expr, extent: Expr) -> Point | None:
    """An iteration that surely runs in which `value` is not in 0 : extent."""
    if not is_plain(value) or not is_plain(extent) or _always_inside(path, value, extent):
        return None
    return at_samples(path, value, extent) or at_corner(path, value, extent)


def _always_inside(path: Path, value: Expr, extent: Expr) -> bool:
    """Whether the bounds of the loops prove that `value` is in 0 : extent; a fast test."""
    least, most = known_of(path, value).interval(value)
    return type(extent) is IntImm and least >= 0 and most < extent.value
