"""All values of a sum over few iterations of nested loops, found by running the loops.

    for p in range(16): for i in range(7 + (p + 1) % 2): 2 * i + p % 2

Intervals say 0 to 16, since they do not know that i and p % 2 depend on each other: the values are
0 to 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.arith.affine import Ranges
from metasched.arith.linear import Linear
from metasched.ir.expr import Expr, Var
from metasched.ir.interp_expr import ExprCompiler
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars, reads_memory

MOST = 1024
"""The most iterations that are run."""


def values(form: Linear, loops: Mapping[Var, For], ranges: Ranges) -> set[int] | None:
    """The values of a sum in all iterations of the loops whose variables it depends on.

    None where these iterations are more than `MOST`, or a value depends on anything else.

    Args:
        loops: nested loops, each before the loops inside it.
        ranges: bounds of their variables.
    """
    around = _around(form, loops)
    if around is None:
        return None
    count: float = 1
    for loop in around:
        low, high = ranges[loop.var]
        count *= max(high - low + 1, 0)
    return _run(form, around) if count <= MOST else None


def _around(form: Linear, loops: Mapping[Var, For]) -> Sequence[For] | None:
    """The loops on which a sum depends; None if it depends on anything else."""
    needed: set[Var] = set()
    waiting: list[Expr] = list(form.terms)
    while waiting:
        expr = waiting.pop()
        new = free_vars(expr) - needed
        if reads_memory(expr) or not new <= loops.keys():
            return None
        needed |= new
        waiting += [end for var in new for end in (loops[var].min, loops[var].extent)]
    return [loop for var, loop in loops.items() if var in needed]


def _run(form: Linear, around: Sequence[For]) -> set[int]:
    compiler = ExprCompiler()
    slots = [compiler.slot(loop.var) for loop in around]
    ends = [(compiler.expr(loop.min), compiler.expr(loop.extent)) for loop in around]
    parts = [(compiler.expr(atom), factor) for atom, factor in form.terms.items()]
    env: list[object] = [None] * compiler.size
    found: set[int] = set()

    def run(depth: int) -> None:
        if depth == len(around):
            found.add(form.const + sum(int(part(env)) * factor for part, factor in parts))
            return
        low, extent = ends[depth]
        first = int(low(env))
        for value in range(first, first + int(extent(env))):
            env[slots[depth]] = value
            run(depth + 1)

    run(0)
    return found
