"""Samples of an unscheduled program: it runs for a few values of one outer loop, at least four.

A block may be the only writer of an output, at an index that is one of its spatial iterators. Then
the block writes different elements for each value of this iterator, from inputs that it does not
write. If a loop drives only this iterator, the loop may run for a subset of its values: it computes
exactly the elements that the whole program computes for these values. Stages before the block run
as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.flops import flops
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Min, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, ForKind, Stmt, evolve
from metasched.ir.visit import free_vars, substitute, transform, walk, walk_stmts

_ENOUGH = 1e9  # about the operations of a sample
_LEAST = 4  # the fewest values for which the loop is run
_SEVERAL = 16  # the fewest values of a loop that is sampled


@dataclass(frozen=True, slots=True)
class Sample:
    """A program that computes some rows of an output.

    Attributes:
        func: the program.
        output: position of the output among the buffer parameters.
        axis: the dimension of the output whose rows are computed.
        rows: the indices of the rows.
        share: the sample's share of the whole program's operations.
    """

    func: PrimFunc
    output: int
    axis: int
    rows: tuple[int, ...]
    share: float


def sampled(func: PrimFunc) -> Sample | None:
    """The program restricted to about _ENOUGH operations.

    None if the restriction is not proved to be right, or saves little.
    """
    whole = flops(func)
    found = [one for realize in walk_stmts(func.body) for one in _candidates(func, realize)]
    best: Sample | None = None
    for output, axis, loop in found:
        size = as_int(loop.extent) or 0
        count = max(_LEAST, min(size, int(size * _ENOUGH / max(whole, 1.0))))
        if size < _SEVERAL or 2 * count > size:
            continue
        step = -(-(size - 1) // (count - 1))
        step += 1 - step % 2  # an odd step meets every position of a tile of a power of two
        rows = tuple(min(k * step, size - 1) for k in range(-(-(size - 1) // step) + 1))
        part = func.with_body(_restricted(func.body, loop, step, len(rows)))
        share = flops(part) / whole
        if share < 0.5 and (best is None or share < best.share):
            best = Sample(part, output, axis, rows, share)
    return best


def why_whole(func: PrimFunc) -> str:
    """Why `sampled` gives None for a long program; empty for a short program."""
    whole = flops(func)
    if whole <= 2 * _ENOUGH:
        return ""
    heaviest, times = max(_leaves(func.body, 1), key=lambda leaf: leaf[1] * flops(leaf[0]))
    share = 100 * times * flops(heaviest) / whole
    text = f"block {heaviest.name}, {share:.0f} % of its operations,"
    hidden = [r.buffer.name for r in heaviest.writes if r.buffer not in func.buffers]
    if hidden:
        return f"{text} writes the intermediate buffer {hidden[0]}"
    return f"no loop of {text} surely computes rows of an output by itself"


def _leaves(stmt: Stmt, times: int) -> list[tuple[Block, int]]:
    """The innermost blocks of a body, and how often each one runs."""
    if isinstance(stmt, For):
        times *= max(as_int(stmt.extent) or 1, 1)
    below = [leaf for part in stmt.stmts for leaf in _leaves(part, times)]
    return below or ([(stmt, times)] if isinstance(stmt, Block) else [])


def _restricted(body: Stmt, chosen: For, step: int, count: int) -> Stmt:
    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.var is not chosen.var:
            return None
        dtype = stmt.var.dtype
        last = as_expr((as_int(chosen.extent) or 1) - 1, dtype)
        value = Min(stmt.var * as_expr(step, dtype), last)
        return evolve(
            stmt, extent=as_expr(count, dtype), body=substitute(stmt.body, {stmt.var: value})
        )

    return transform(body, on_stmt)


def _candidates(func: PrimFunc, realize: Stmt) -> list[tuple[int, int, For]]:
    """(output, dimension, loop) for each loop of a block that may be restricted."""
    if not isinstance(realize, BlockRealize) or len(realize.block.writes) != 1:
        return []
    block = realize.block
    if any(isinstance(s, BlockRealize) for part in block.stmts for s in walk_stmts(part)):
        return []
    buffer = block.writes[0].buffer
    if buffer not in func.buffers or not _alone(func, block, buffer):
        return []
    out = []
    for loop in _loops_of(func, realize):
        bound = [v for v, value in zip(block.iter_vars, realize.iter_values, strict=True)
                 if loop.var in free_vars(value)]  # fmt: skip
        direct = len(bound) == 1 and bound[0].is_spatial
        if not direct or realize.bindings[bound[0].var] is not loop.var:
            continue
        if loop.var in free_vars(realize.predicate):
            continue
        axis = _axis_of(block, buffer, bound[0].var)
        if axis is not None:
            out.append((func.buffers.index(buffer), axis, loop))
    return out


def _alone(func: PrimFunc, block: Block, buffer: Buffer) -> bool:
    """Whether no other block touches a buffer, and the program uses no addresses."""
    for other in (s for s in walk_stmts(func.body) if isinstance(s, Block) and s is not block):
        touched = {r.buffer for r in (*other.reads, *other.writes)}
        if buffer in touched or other.match_buffers:
            return False
    if block.match_buffers:
        return False
    inside = _accesses(block, buffer)
    return len(inside) == len(_accesses(func.body, buffer)) and not any(
        isinstance(node, Var) and node.dtype.is_handle for node in walk(func.body)
    )


def _accesses(stmt: Stmt, buffer: Buffer) -> list[BufferLoad | BufferStore]:
    return [
        node for node in walk(stmt)
        if isinstance(node, (BufferLoad, BufferStore)) and node.buffer is buffer
    ]  # fmt: skip


def _axis_of(block: Block, buffer: Buffer, var: Var) -> int | None:
    """The dimension that an iterator indexes, the same in every access of the block."""
    for axis in range(buffer.ndim):
        if all(node.indices[axis] is var for node in _accesses(block, buffer)):
            return axis
    return None


def _loops_of(func: PrimFunc, realize: BlockRealize) -> list[For]:
    """The plain loops from zero over only this block, on which no other loop's extent depends."""
    path = _path(func.body, realize) or []
    loops = [s for s in path if isinstance(s, For)]
    plain = [
        loop for loop in loops
        if loop.kind in (ForKind.SERIAL, ForKind.PARALLEL) and loop.step is None
        and as_int(loop.min) == 0 and as_int(loop.extent) is not None
        and sum(isinstance(s, BlockRealize) for s in walk_stmts(loop.body)) == 1
        and all(isinstance(s, (For, Block, BlockRealize)) for s in path[path.index(loop) :])
    ]  # fmt: skip
    used = [v for loop in loops for e in loop.exprs for v in free_vars(e)]
    return [loop for loop in plain if loop.var not in used]


def _path(stmt: Stmt, target: Stmt) -> list[Stmt] | None:
    """The statements from `stmt` down to `target`, both included."""
    if stmt is target:
        return [stmt]
    for part in stmt.stmts:
        below = _path(part, target)
        if below is not None:
            return [stmt, *below]
    return None
