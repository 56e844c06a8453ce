"""Samples of an unscheduled program: it runs for a few values of one outer loop, at least four.

A block may be the only writer of an output, at an index that is one of its spatial iterators. Then
the block writes different elements for each value of this iterator, from inputs that it does not
write. If a loop drives only this iterator, the loop may run for a subset of its values: it computes
exactly the elements that the whole program computes for these values. Stages before the block run
for the same values if nothing else reads the rest of their results, otherwise as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metasched.analysis.flops import flops
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Min, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    Stmt,
    evolve,
)
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
    for output, axis, row in found:
        size = as_int(row.loop.extent) or 0
        count = max(_LEAST, min(size, int(size * _ENOUGH / max(whole, 1.0))))
        if size < _SEVERAL or 2 * count > size:
            continue
        step = -(-(size - 1) // (count - 1))
        step += 1 - step % 2  # an odd step meets every position of a tile of a power of two
        rows = tuple(min(k * step, size - 1) for k in range(-(-(size - 1) // step) + 1))
        loops = [one.loop for one in _with_producers(func, row)]
        part = func.with_body(_restricted(func.body, loops, step, len(rows)))
        share = flops(part) / whole
        # about equal shares: the outermost dimension, whose rows lie together in memory
        if share < 0.5 and (best is None or share < 0.9 * best.share):
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


def _restricted(body: Stmt, loops: Sequence[For], step: int, count: int) -> Stmt:
    chosen = {loop.var: loop for loop in loops}

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.var not in chosen:
            return None
        dtype = stmt.var.dtype
        last = as_expr((as_int(chosen[stmt.var].extent) or 1) - 1, dtype)
        value = Min(stmt.var * as_expr(step, dtype), last)
        return evolve(
            stmt, extent=as_expr(count, dtype), body=substitute(stmt.body, {stmt.var: value})
        )

    return transform(body, on_stmt)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A loop that drives one spatial iterator of a leaf block, and nothing else."""

    realize: BlockRealize
    loop: For
    var: Var


def _rows(func: PrimFunc, realize: BlockRealize) -> list[_Rows]:
    """The loops over the block alone that may be restricted."""
    block = realize.block
    if any(isinstance(s, BlockRealize) for part in block.stmts for s in walk_stmts(part)):
        return []
    out = []
    for loop in _loops_of(func, realize):
        bound = [v for v, value in zip(block.iter_vars, realize.iter_values, strict=True)
                 if loop.var in free_vars(value)]  # fmt: skip
        direct = len(bound) == 1 and bound[0].is_spatial
        if not direct or realize.bindings[bound[0].var] is not loop.var:
            continue
        if loop.var not in free_vars(realize.predicate):
            out.append(_Rows(realize, loop, bound[0].var))
    return out


def _candidates(func: PrimFunc, realize: Stmt) -> list[tuple[int, int, _Rows]]:
    """(output, dimension, rows) for each loop of a block that may be restricted."""
    if not isinstance(realize, BlockRealize) or len(realize.block.writes) != 1:
        return []
    buffer = realize.block.writes[0].buffer
    if buffer not in func.buffers or not _alone(func, realize.block, buffer):
        return []
    found = ((_axis_of(row.realize.block, buffer, row.var), row) for row in _rows(func, realize))
    return [(func.buffers.index(buffer), axis, row) for axis, row in found if axis is not None]


def _with_producers(func: PrimFunc, output: _Rows) -> list[_Rows]:
    """The rows of an output, and the rows of the stages before it that these rows alone need.

    A stage is restricted to the same values if every access to its results, in the whole program,
    is by a restricted block, at its row.
    """
    leaves = [s for s in walk_stmts(func.body) if isinstance(s, BlockRealize)]
    chosen = {output.realize: output}
    work = [output]
    while work:
        row = work.pop()
        for buffer in {r.buffer: None for r in row.realize.block.reads}:
            axis = _axis_of(row.realize.block, buffer, row.var)
            writers = (w for w in leaves if any(r.buffer is buffer for r in w.block.writes))
            for writer in writers if axis is not None else ():
                same = (
                    one for one in _rows(func, writer)
                    if _axis_of(writer.block, buffer, one.var) == axis
                    and as_int(one.loop.extent) == as_int(output.loop.extent)
                )  # fmt: skip
                found = next(same, None)
                if found is not None and writer not in chosen:
                    chosen[writer] = found
                    work.append(found)
    while True:
        others = [row for row in chosen.values() if row is not output]
        bad = [row for row in others if not _needed_by_rows(func, row, chosen)]
        if not bad:
            return list(chosen.values())
        for row in bad:
            del chosen[row.realize]


def _needed_by_rows(func: PrimFunc, row: _Rows, chosen: Mapping[BlockRealize, _Rows]) -> bool:
    """Whether restricted blocks alone use the results of a block, each at its row."""
    for buffer in {r.buffer: None for r in row.realize.block.writes}:
        axis = _axis_of(row.realize.block, buffer, row.var)
        inside = [
            access for one in chosen.values()
            if _axis_of(one.realize.block, buffer, one.var) == axis
            for access in _accesses(one.realize.block, buffer)
        ]  # fmt: skip
        if axis is None or buffer in func.buffers:
            return False
        if len(inside) != len(_accesses(func.body, buffer)) or _has_other_names(func, buffer):
            return False
    return True


def _has_other_names(func: PrimFunc, buffer: Buffer) -> bool:
    """Whether a block views a buffer under another name, or the program uses addresses."""
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Block) and any(m.source.buffer is buffer for m in stmt.match_buffers):
            return True
        if isinstance(stmt, DeclBuffer) and buffer in (stmt.buffer, stmt.source):
            return True
    return any(isinstance(node, Var) and node.dtype.is_handle for node in walk(func.body))


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
