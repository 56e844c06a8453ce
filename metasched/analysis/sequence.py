"""Loop fusion and inits: may statements run in another order?

Two nests of equal shape may run iteration by iteration when no iteration of the later nest depends
on a later iteration of the earlier nest, or overwrites what such an iteration reads. An init may
run before a loop when nothing below the loop uses the elements before the init has set them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import combinations

from metasched.analysis.access import exact_accesses
from metasched.analysis.dependence import (
    Touch,
    distances_within,
    header_touches,
    meet,
    place,
    touches,
)
from metasched.analysis.failure import Failure
from metasched.analysis.instances import stays_behind
from metasched.analysis.polyhedra import never_ahead
from metasched.analysis.scope import Child, Scope
from metasched.analysis.written import written
from metasched.arith.conditions import conjuncts
from metasched.ir.buffer import Buffer
from metasched.ir.describe import describe
from metasched.ir.expr import TRUE, Var
from metasched.ir.stmt import BlockToken, For
from metasched.ir.visit import blocks_of, loads_of


def interleaving_violation(
    scope: Scope,
    loops: Sequence[For],
    earlier: Sequence[Child],
    later: Sequence[Child],
    swapped: bool = False,
    only: Set[Buffer] | None = None,
) -> Failure | None:
    """Whether running two nests iteration by iteration may change what they compute.

    Args:
        scope: the scope with the fused nest: all blocks stand below `loops`.
        loops: the common loops, outermost first.
        earlier: the blocks of the earlier nest.
        later: the blocks of the later nest.
        swapped: in each iteration the blocks of the later nest run first.
        only: the buffers whose accesses count (default: all).

    Returns the Failure if it may, None if fusion (and likewise fission) keeps the results.
    """
    order = tuple([loop.var for loop in loops])
    for child in (*earlier, *later):
        if any(stmt for stmt, above in scope.loose if loops[0] in above):
            text = f"statements outside of blocks stand beside block {child.block.name}"
            return Failure("not-structured", text, child.block)
    changed = frozenset().union(*(written(c.block) for c in (*earlier, *later)))
    changed = changed if only is None else changed & only
    for loop in loops:
        for load in (x for e in loop.exprs for x in loads_of(e) if x.buffer in changed):
            text = f"the nest writes {load.buffer.name}, and an end of {loop.var.name} reads it"
            return Failure("changing-end", text, loop)
    for first in earlier:
        for second in later:
            among = changed & (written(first.block) | written(second.block))
            headers = [header_touches(c, loops[-1], among) for c in (first, second)]
            for a in (*touches(first, among), *headers[0]):
                for b in (*touches(second, among), *headers[1]):
                    if (a.writes or b.writes) and a.buffer is b.buffer:
                        failure = _backward(order, a, b, swapped)
                        if failure is not None:
                            return failure
    return None


def statement_blocks(scope: Scope, loop: For) -> list[list[Child]]:
    """The blocks of each statement directly below a loop."""
    return [
        [scope.child(r.block.token) for r in blocks_of(item) if scope.get(r.block.token)]
        for item in loop.body.stmts
    ]


def distribution_order(scope: Scope, loop: For) -> list[int] | None:
    """An order of the statements below a loop in which each may have a loop of its own.

    Statements keep their order where dependences allow it. None where no order is legal, because
    two statements need each other in different iterations.
    """
    groups = statement_blocks(scope, loop)

    def may_follow(first: int, second: int) -> bool:
        later = first > second
        return interleaving_violation(scope, [loop], groups[first], groups[second], later) is None

    count = len(groups)
    before = [[False] * count for _ in range(count)]
    for n in range(count):
        for m in range(n):
            before[n][m], before[m][n] = not may_follow(n, m), not may_follow(m, n)
            if before[n][m] and before[m][n]:  # mostly the first statements of a long loop
                return None
    order: list[int] = []
    while len(order) < count:  # before[n][m]: statement m has to come before statement n
        left = [n for n in range(count) if n not in order]
        free = [n for n in left if not any(before[n][m] for m in left)]
        if not free:
            return None
        order.append(free[0])
    return order


def held_together(scope: Scope, loop: For, buffers: Set[Buffer]) -> bool:
    """Whether two statements below a loop need each other in different iterations because of
    accesses of these buffers: no order is legal then (see `distribution_order`)."""
    groups = statement_blocks(scope, loop)

    def needs(n: int, m: int) -> bool:
        found = interleaving_violation(scope, [loop], groups[n], groups[m], n > m, buffers)
        return found is not None

    return any(needs(n, m) and needs(m, n) for n, m in combinations(range(len(groups)), 2))


def _backward(order: tuple[Var, ...], a: Touch, b: Touch, ties: bool = False) -> Failure | None:
    """Whether `a` in one iteration may touch an element that `b` touches in an earlier one.

    With `ties`, an earlier iteration or the same.
    """
    where = next(k for k, loop in enumerate(a.loops) if loop.var is order[0])
    below = [loop.var for t in (a, b) for loop in t.loops[where:]]
    moving = frozenset({*below, *a.inner, *b.inner})
    distance = distances_within(place(a), place(b), moving)
    if distance is None:
        return None
    for var in order:
        _, high = distance.get(var, (-1, 1))
        if high < 0:
            return None
        if high > 0:
            break
    else:
        if not ties:
            return None
    if never_ahead(place(a), place(b), moving, order, ties):
        return None
    if stays_behind(place(a), place(b), order, ties):
        return None

    def sentence() -> str:
        when = "the same or a later" if ties else "a later"
        return (
            f"in one nest {b.show()} before {a.show()} in {when} iteration of "
            f"{var.name}; in two nests their order is reversed"
        )

    return Failure("backward-dependence", sentence, b.child.block if b.child else None)


def used_before_init(scope: Scope, token: BlockToken, loop: For) -> Failure | None:
    """Whether something below `loop` may use a result of a reduction before its init sets it.

    A block may follow in the same iteration of its loops, where it uses the result of that
    iteration: the init has run there. A block that follows may also use results of earlier
    iterations of the common loops, and so may the reduction itself, but not its init. Other blocks
    must use other elements.
    """
    mine, below = scope.child(token), scope.under(loop)
    results = frozenset(r.buffer for r in mine.block.writes)
    stores = [t for t in touches(mine, results) if t.writes]
    for buffer in results:
        stmt = scope.outside(buffer, below=loop)
        if stmt is not None:
            text = f"{describe(stmt)}, outside of any block, uses {buffer.name}"
            return Failure("outside-blocks", text, stmt)
    for child in below:
        follows = below.index(child) > below.index(mine)
        along = follows and _runs_along(child, mine)
        for use in touches(child, results):
            if child is mine and use.writes:
                continue
            same = [t for t in stores if t.buffer is use.buffer]
            ready = along and [t.box for t in same] == [use.box]
            later = _in_body(use) if child is mine else follows
            if not ready and any(_may_precede(use, t, later, scope, loop) for t in same):
                name = mine.block.name
                text = f"{use.show()} below {loop.var.name}, perhaps before the init of {name}"
                return Failure("used-early", text, child.realize)
    return None


def _in_body(use: Touch) -> bool:
    """Whether a block is known to read an element in its body alone, not in its init."""
    assert use.child is not None
    exact, point = exact_accesses(use.child.block), [r.min for r in use.where.region]
    return exact is not None and not any(
        a.in_init and a.buffer is use.buffer and [*a.indices] == point for a in exact
    )


def _may_precede(use: Touch, store: Touch, follows: bool, scope: Scope, loop: For) -> bool:
    """Whether `use` may touch an element before `store` does, both below `loop`.

    Args:
        follows: in one iteration of the common loops, `use` runs after all of `store`.
    """
    if follows:
        common = [a.var for a, b in zip(use.loops, store.loops, strict=False) if a is b]
        order = tuple(common[common.index(loop.var) :])
        return _backward(order, store, use) is not None
    return meet(store, use, scope, loop) is not None


def _runs_along(later: Child, earlier: Child) -> bool:
    """Whether a block runs only where an earlier block of the iteration has run."""
    needed = conjuncts(earlier.realize.predicate)
    return set(needed) <= {TRUE, *conjuncts(later.realize.predicate)}
