"""cut_digits: the digits of an index become iterators, where the index has no vectors as it is.

for j in 96: C[j] = A[j // 12] * B[j % 12]
->
for j in 8: for k in 12: C[j * 12 + k] = A[j] * B[k]    lanes along k

A vector of lanes along j would cross from one quotient to the next anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from metasched.analysis.block import is_leaf
from metasched.arith.affine import linear
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, FloorDiv, FloorMod, Var, as_int
from metasched.ir.stmt import Block, IterVar
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.strides import gathers, has_vectors, vector_iter

FEWEST = 8
"""The fewest lanes of a digit: fewer leave most of a vector register empty."""


@dataclass(frozen=True, slots=True)
class CutDigits:
    """Rewrite blocks with quotients and remainders of the index along which they store."""

    @property
    def name(self) -> str:
        return "cut_digits"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        cut_digits(sch, block)
        return [sch]


def cut_digits(sch: Schedule, block: BlockRV) -> bool:
    """Rewrite a block as the file's docstring shows, if it has vectors only then."""
    node = sch.get(block)
    if is_leaf(node) is not None or (has_vectors(node) and not gathers(node)):
        return False
    lanes = vector_iter(node)
    by = 0 if lanes is None else _digit(node, lanes)
    if by < FEWEST:
        return False
    inputs = tuple(Var(f"i{n}") for n in range(len(node.iter_vars)))
    outputs: list[Expr] = []
    for v, i in zip(node.iter_vars, inputs, strict=True):
        outputs += [i // by, i % by] if v is lanes else [i]
    steps = len(sch.trace)
    try:
        sch.transform_block_layout(block, IndexMap(inputs, tuple(outputs)))
    except ScheduleError as error:
        sch.refused.append(error)
        return False
    if not has_vectors(sch.get(block)) or gathers(sch.get(block)):
        undo_to(sch, steps)
        return False
    return True


def _digit(node: Block, lanes: IterVar) -> int:
    """The largest part of an iterator in which no quotient by a constant changes; 0 without one."""
    extent, common = as_int(lanes.dom.extent) or 1, 0
    for expr in {e for s in walk_stmts(node.body) for x in s.exprs for e in walk_exprs(x)}:
        if isinstance(expr, FloorDiv | FloorMod):
            factor = linear(expr.a).terms.get(lanes.var)
            if factor and (divisor := as_int(expr.b)):
                common = gcd(common, divisor // gcd(factor, divisor))
    return common if common < extent and extent % max(common, 1) == 0 else 0
