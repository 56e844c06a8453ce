"""Region cover of a child of a scope: its producers together write all that the child reads.

Memory whose readers are covered in each iteration of a loop may be private to the iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from metasched.analysis.cover import covered, covered_in_parts, shared_loops
from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child, EdgeKind, Scope, buffer_uses
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, as_int
from metasched.ir.stmt import Block, BlockToken, BufferStore, For, IfThenElse, Stmt, fact
from metasched.ir.visit import blocks_of, free_vars, loads_of


def region_cover(scope: Scope, token: BlockToken) -> Failure | None:
    """Whether every element a child reads from its producers was written by them before.

    Producers are grouped by the loops that they share with the child. Each group must write, within
    one iteration of these loops, all that the child reads there of the buffer. If the groups write
    different elements, they must together write all these elements.
    """
    child = scope.child(token)
    for buffer in dict.fromkeys(r.buffer for r in inputs(child.block)):
        failure = written_before(scope, child, buffer)
        if failure is not None:
            return failure
    return None


def written_before(
    scope: Scope, child: Child, buffer: Buffer, *, guarded: bool = True
) -> Failure | None:
    """`region_cover` of one buffer; see `covered` for `guarded`."""
    groups = producer_groups(scope, child, buffer)
    if apart(scope, buffer, groups):
        return covered_in_parts(child, groups, buffer, guarded=guarded)
    for shared, producers in groups.items():
        failure = covered(child, producers, buffer, shared, guarded=guarded)
        if failure is not None:
            return failure
    return None


def producer_groups(scope: Scope, child: Child, buffer: Buffer) -> dict[int, list[Child]]:
    """The blocks that write what `child` reads of `buffer`, by the number of shared loops."""
    groups: dict[int, list[Child]] = {}
    for edge in scope.incoming(child.token):
        if edge.kind is EdgeKind.RAW and edge.buffer is buffer:
            producer = scope.child(edge.src)
            groups.setdefault(shared_loops(producer, child), []).append(producer)
    return groups


def from_same_side(
    scope: Scope, child: Child, buffer: Buffer, loops: Sequence[For], below: Sequence[Child]
) -> bool:
    """Whether all that a block reads of a buffer was written on its side of a part of the scope.

    Inside the part: in the same iteration of the loops. Elsewhere: in an iteration of loops that do
    not hold the part, or by blocks that stand between the part and the block.

    Args:
        loops: the loops around the part, outermost first.
        below: the blocks of the part, in program order.
    """
    order = list(scope.realizes)
    shared = sum(a is b for a, b in zip(loops, child.loops, strict=False))
    first, last = order.index(below[0]), order.index(below[-1])
    early = order.index(child) < first
    for n, group in producer_groups(scope, child, buffer).items():
        writers = group
        if child not in below:
            writers = [p for p in group if p not in below and (early or order.index(p) > last)]
            writers = group if n > shared else writers
        if n >= shared and writers and covered(child, writers, buffer, n) is None:
            return True
    return False


def apart(scope: Scope, buffer: Buffer, groups: Mapping[int, Sequence[Child]]) -> bool:
    """Whether there are several groups, and no element of `buffer` is written by two of them."""
    group = {p.token: shared for shared, producers in groups.items() for p in producers}
    return len(groups) > 1 and not any(
        edge.kind is EdgeKind.WAW
        and edge.buffer is buffer
        and group.get(edge.src, shared) != shared
        for token, shared in group.items()
        for edge in scope.incoming(token)
    )


def self_contained(buffer: Buffer, scope: Scope, loop: For) -> bool:
    """Whether each iteration of `loop` reads only elements of `buffer` that it wrote before.

    False as well when the buffer is touched outside of the loop or outside of blocks. Also False
    when a reduction continues in the buffer from one iteration to the next.
    """
    under = scope.under(loop)
    users = [c for c in scope.realizes if buffer in buffer_uses(c.block)]
    if any(
        c not in under or continues_reduction(c, c.loops[c.loops.index(loop) + 1 :]) for c in users
    ):
        return False
    return _reads_own(scope, buffer)


def _reads_own(scope: Scope, buffer: Buffer) -> bool:
    """Whether the blocks of a scope read only elements of `buffer` that they wrote before, in the
    same iteration of the loops around both."""
    for stmt, loops in scope.loose:
        read = buffer in [load.buffer for e in stmt.exprs for load in loads_of(e)]
        if (read and not _set_before(scope, buffer, stmt, loops)) or (
            isinstance(stmt, BufferStore) and stmt.buffer is buffer
        ):
            return False
    for child in scope.readers(buffer):
        if _writes_first(child.block, buffer):
            continue
        groups = producer_groups(scope, child, buffer)
        if not any(
            covered(child, group, buffer, n, itself=True) is None for n, group in groups.items()
        ) and (
            not apart(scope, buffer, groups) or covered_in_parts(child, groups, buffer) is not None
        ):
            return False
    return True


def _set_before(scope: Scope, buffer: Buffer, stmt: Stmt, loops: Sequence[For]) -> bool:
    """Whether a condition around blocks reads the one element of a buffer that a block before it
    always sets, in the same iteration of the loops around both."""
    inside = {r.block.token for r in blocks_of(stmt)}
    order = list(scope.realizes)
    first = next((n for n, c in enumerate(order) if c.token in inside), None)
    if not isinstance(stmt, IfThenElse) or first is None or buffer.constant_shape() != (1,):
        return False
    branches = order[first].branches
    return any(
        buffer in {r.buffer for r in c.block.writes}
        and c.realize.predicate is TRUE
        and isinstance(c.block.body, BufferStore)
        and c.block.init is None
        and c.block.body.predicate is None
        and all(a is b for a, b in zip_longest(c.loops, loops[: len(c.loops)]))
        and all(a is b for a, b in zip_longest(c.branches, branches[: len(c.branches)]))
        for c in order[:first]
    )


@fact
def _writes_first(block: Block, buffer: Buffer) -> bool:
    """Whether the blocks inside a block read only elements of `buffer` that they wrote before."""
    scope = Scope.of(block)
    if not scope.realizes or block.init is not None or block.match_buffers:
        return False
    users = [c for c in scope.realizes if buffer in buffer_uses(c.block)]
    return not any(continues_reduction(c, c.loops) for c in users) and _reads_own(scope, buffer)


def continues_reduction(child: Child, loops: Sequence[For]) -> bool:
    """Whether a reduction goes on when `loops`, the innermost around it, start again."""
    if child.block.init is None:
        return False
    pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    reduced = frozenset().union(*(free_vars(e) for v, e in pairs if v.is_reduce))
    single = {n.var for n in child.loops if as_int(n.extent) == 1}
    return not reduced <= {n.var for n in loops} | single
