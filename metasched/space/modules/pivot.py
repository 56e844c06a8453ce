"""pivot: cuts the loops of an elimination at the row and the column that all other rows read.

    for k:
        for i in parallel rows before k:     # row k is not written here
            for j before k, j = k, j after k: vectors before and after
        row k
        for i in parallel rows after k: the same

Shortest paths between all nodes, transitive closures and Gauss-Jordan eliminations update a matrix
in place by its own row k and column k. Iteration k writes what the other iterations read, so no
loop is independent. `partition_at` takes iteration k out of each loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from metasched.analysis.access import exact_accesses
from metasched.analysis.block import TILED, is_leaf
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.loops import is_chain
from metasched.analysis.scope import Child
from metasched.arith.affine import linear
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import ForKind
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL_INSIDE, steps, undo_to
from metasched.space.modules.parallel_vectorize_unroll import VECTORIZE
from metasched.space.tiling import changed, uniform

STRUCTURE = "pivot"
"""The value of the note TILED on the blocks of the parts."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a loop is cut.

    Attributes:
        inner: the position of the loop.
        outer: the position of the loop around it whose variable names the iteration.
        offset: what is added to this variable.
    """

    inner: int
    outer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Pivot:
    """Cut the loops of an update in place (see the file's docstring), where the cuts make the
    parts independent; other blocks stay unchanged.

    For a leaf block without reduce iterators, alone under its loops, that reads a buffer it writes
    at an index which a loop outside counts. Only loops that carry a dependence are cut.

    Attributes:
        cores: of the machine; one core gets no parallel loops.
        vector_bits: of a vector register.
        vectors: choices of how many registers one vector operation spans.
    """

    cores: int = 1
    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4)

    @property
    def name(self) -> str:
        return "pivot"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or is_leaf(realize.block) is not None:
            return [sch]
        child = sch.state.scope(realize).child(realize.block.token)
        cuts = _cuts(sch, child) if _is_plain(child) else []
        return (changed(sch, partial(self._apply, block, cuts)) if cuts else []) or [sch]

    def _apply(self, block: BlockRV, cuts: Sequence[Cut], sch: Schedule) -> None:
        """Cut the loops, vectorize the innermost parts, and spread the outermost parts."""
        node = sch.get(block)
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        length = as_int(sch.get(sch.get_loops(block)[-1]).extent)
        widths = [lanes * v for v in self.vectors]
        fit = [w for w in widths if length is None or 2 * w <= length] or widths[:1]
        width = uniform(sch, fit)
        small = steps(sch.get(sch.get_loops(block)[cuts[0].inner])) // lanes < SMALL_INSIDE
        spread: list[LoopRV] = []
        blocks = [block]
        for cut in cuts:
            parts = []
            for one in blocks:
                loops = sch.get_loops(one)
                before, at, after = sch.partition_at(loops[cut.outer], loops[cut.inner], cut.offset)
                parts += [before, at, after]
                spread += [before, after] if cut is cuts[0] else []
            blocks = [sch.get_child_blocks(part)[0] for part in parts]
        inside = cuts[-1].inner + 1 == len(sch.get_loops(block))
        for number, one in enumerate(blocks):
            sch.annotate(one, TILED, STRUCTURE)
            if (inside and number % 3 == 1) or not _in_lanes(sch, one, width, needed=number == 0):
                sch.annotate(one, VECTORIZE, 0)
        for part in spread if self.cores > 1 and not small else ():
            sch.parallel(part)


def _in_lanes(sch: Schedule, block: BlockRV, width: ExprRV, needed: bool) -> bool:
    """Vectorize the innermost loop of a part; returns whether this is legal.

    Raises ScheduleError where a vector is needed and illegal.
    """
    before = len(sch.trace)
    try:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, width])
        sch.vectorize(lane)
    except ScheduleError:
        if needed:
            raise
        undo_to(sch, before)
        return False
    return True


def _is_plain(child: Child) -> bool:
    """Whether a block without reduce iterators stands alone below two plain loops or more."""
    loops = child.loops
    plain = all(n.kind is ForKind.SERIAL and not n.annotations for n in loops)
    if len(loops) < 2 or not plain or not is_chain(loops) or loops[-1].body is not child.realize:
        return False
    reduces = any(v.is_reduce for v in child.block.iter_vars)
    return not reduces and TILED not in child.block.annotations


def _cuts(sch: Schedule, child: Child) -> list[Cut]:
    """The loops to cut, outermost first: one for each dimension of a written buffer in which a read
    has an index that a loop outside counts."""
    found = exact_accesses(child.block)
    if found is None:
        return []
    at = {loop.var: n for n, loop in enumerate(child.loops)}
    values = child.realize.bindings
    position: dict[Expr, int] = {
        v: at[e] for v, e in values.items() if isinstance(e, Var) and e in at
    }
    cuts: dict[int, Cut] = {}
    for write in found:
        if not write.is_write:
            continue
        for read in found:
            if read.is_write or read.buffer is not write.buffer:
                continue
            for mine, other in zip(write.indices, read.indices, strict=True):
                cut = _cut(position, mine, other)
                if cut is not None:
                    cuts.setdefault(cut.inner, cut)
    scope = sch.state.scope(child.realize)
    carried = [n for n in sorted(cuts) if carried_dependence(child.loops[n], scope) is not None]
    return [cuts[n] for n in carried]


def _cut(position: dict[Expr, int], mine: Expr, other: Expr) -> Cut | None:
    """Where to cut the loop of a written index, for a read whose index another loop counts."""
    form = linear(other)
    if mine not in position or len(form.terms) != 1:
        return None
    [(atom, by)] = form.terms.items()
    if by != 1 or atom not in position or position[atom] >= position[mine]:
        return None
    return Cut(position[mine], position[atom], form.const)
