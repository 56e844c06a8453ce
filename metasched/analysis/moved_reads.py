"""Whether a block reads the same values at another place of its scope.

Edges of a scope follow the program order. They do not tell that a later iteration of a loop
overwrites what an earlier iteration reads, as of a scalar that each iteration sets anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations_with_replacement

from metasched.analysis.dependence import meet, single_valued, touches
from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child, Scope
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars


def other_values(
    scope: Scope, child: Child, loops: Sequence[For], without: Collection[Buffer] = ()
) -> Failure | None:
    """Whether an input of a child may have other values below `loops` than at the child's place.

    A loop that holds a writer of the input, and only one of the two places, must set each element
    of the input to one value in all its iterations. A block after the loop may also run in each
    iteration if all iterations write the same elements: the last run reads the last values.

    Args:
        scope: the scope of the child.
        child: the block that is to be moved.
        loops: the loops around the new place.
        without: buffers that the block does not read at the new place.
    """
    here, there = {n.var for n in child.loops}, {n.var for n in loops}
    for buffer in dict.fromkeys(r.buffer for r in inputs(child.block)):
        if buffer in without:
            continue
        around = {n.var: n for w in scope.writers(buffer) for n in w.loops if w is not child}
        for var, loop in around.items():
            if (var in here) == (var in there):
                continue
            again = var in there and _writes_again(buffer, scope, child, loop)
            if not again and _changes(buffer, scope, loop):

                def sentence(buffer: Buffer = buffer, loop: For = loop) -> str:
                    return (
                        f"{child.block.name} reads {buffer.name}, of which iterations of "
                        f"{loop.var.name} may set one element to different values"
                    )

                return Failure("changed-input", sentence, loop)
    return None


def _writes_again(buffer: Buffer, scope: Scope, child: Child, loop: For) -> bool:
    """Whether all writers of a buffer precede a child, below a loop that they do not mention."""
    order = [c.token for c in scope.realizes]
    for writer in scope.writers(buffer):
        if writer is child or order.index(writer.token) > order.index(child.token):
            return False
        if loop not in writer.loops:
            return False
        inner = writer.loops[writer.loops.index(loop) + 1 :]
        named = [*writer.realize.exprs, *(e for n in inner for e in n.exprs)]
        if any(loop.var in free_vars(e) for e in named):
            return False
    return True


def _changes(buffer: Buffer, scope: Scope, loop: For) -> bool:
    """Whether two iterations of a loop may write different values to one element of a buffer."""
    if as_int(loop.extent) == 1:
        return False
    among = frozenset((buffer,))
    writes = [t for c in scope.under(loop) for t in touches(c, among) if t.writes]
    for a, b in combinations_with_replacement(writes, 2):
        distance = meet(a, b, scope, loop)
        if distance is not None and distance.get(loop.var) != (0, 0):
            return not single_valued(buffer, scope, loop)
    return False
