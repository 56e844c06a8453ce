"""Whether loops have an iteration: an extent may depend on other variables, on data or on a call.

An extent that depends on loops, on iterators of blocks around, on variables of the body or on data
must be proved positive. An extent over symbols alone (`is_symbol`) needs a proof where the loop
repeats a block (`idle_loop`). Elsewhere it is assumed positive: no iteration of a loop over
elements writes no element, and kernels assert the lengths of reductions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf

from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval
from metasched.ir.buffer import Range
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.stmt import For, IfThenElse, IterVar, LetStmt, Stmt, While
from metasched.ir.variables import is_symbol
from metasched.ir.visit import free_vars, reads_memory


def is_dependent(loop: For, variables: Collection[Var]) -> bool:
    """Whether the ends of a loop depend on the given variables, or on data."""
    ends = (loop.min, loop.extent)
    return any(reads_memory(e) or any(v in variables for v in free_vars(e)) for e in ends)


def may_vary(loop: For, variables: Collection[Var]) -> bool:
    """Whether the ends of a loop depend on the given variables, on data, or on variables that are
    no symbols."""
    if type(loop.extent) is IntImm and type(loop.min) is IntImm:
        return False
    ends = (loop.min, loop.extent)
    return is_dependent(loop, variables) or not all(
        is_symbol(v) for e in ends for v in free_vars(e)
    )


BRANCHES = (IfThenElse, While)


def is_uncertain(stmt: Stmt, variables: Collection[Var]) -> bool:
    """Whether a statement is a condition, or a loop whose ends may vary (see `may_vary`)."""
    if isinstance(stmt, For):
        return may_vary(stmt, variables)
    return isinstance(stmt, BRANCHES)


def empty_loop(
    loops: Sequence[For],
    start: int,
    exempt: Collection[Var] = (),
    around: Iterable[IterVar | LetStmt] = (),
) -> For | None:
    """The first loop from position `start` on that may be empty although the loops before run.

    Args:
        loops: a chain, outermost first.
        start: the position of the first loop that must have an iteration.
        exempt: variables of loops that may be empty.
        around: the iterators of the block around the loops, and variables defined there.
    """
    if all(type(loop.extent) is IntImm and loop.extent.value > 0 for loop in loops[start:]):
        return None
    variables = {loop.var for loop in loops}
    known = Analyzer()
    for each in around:
        if isinstance(each, IterVar):
            known.bind(each.var, each.dom)
        elif each.var.dtype.is_int:
            known.bind(each.var, known.bounds(each.value))
    for k, loop in enumerate(loops):
        if k >= start and loop.var not in exempt:
            extent = as_int(loop.extent)
            if extent is not None and extent < 1:
                return loop
            if may_vary(loop, variables) and not known.prove(loop.extent >= 1):
                return loop
        known.bind(loop.var, Range(loop.min, loop.extent))
    return None


def idle_loop(
    loops: Sequence[For], start: int, exempt: Collection[Var], sizes: Iterable[Expr]
) -> For | None:
    """The first loop from position `start` on, with an extent over symbols, that may be empty.

    Args:
        loops: a chain, outermost first; extents that depend on them are left to `empty_loop`.
        start: the position of the first loop that must have an iteration.
        exempt: variables of loops that may be empty.
        sizes: numbers that are positive.
    """
    variables = {loop.var for loop in loops}
    open_ended = [
        n for n in loops[start:]
        if type(n.extent) is not IntImm and n.var not in exempt and not may_vary(n, variables)
    ]  # fmt: skip
    known = Analyzer()
    for size in sizes if open_ended else ():
        known = known.assume(size >= 1)
    return next((n for n in open_ended if not known.prove(n.extent >= 1)), None)


def constant_ranges(loops: Iterable[For]) -> dict[Var, Interval]:
    """The values of loops with constant ends, at least one iteration; other loops are unbounded."""
    ranges: dict[Var, Interval] = {}
    for loop in loops:
        low, extent = as_int(loop.min), as_int(loop.extent)
        if low is None or extent is None or extent < 1:
            ranges[loop.var] = -inf, inf
        else:
            ranges[loop.var] = low, low + extent - 1
    return ranges
