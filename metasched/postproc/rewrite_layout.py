"""rewrite_layout: packs constant weights ahead of time, in the order in which they are read.

`layout_free_buffers` marks parameters as constant weights. The only block that reads such a weight
is made to read a copy. The copy has an index for each loop over the block, outermost first: the
digit of an iterator that this loop runs over.

    for j0, k, j1 in T.grid(4, 16, 8):               for ...:  # layout_rewrite_preproc
        C[.., j0*8 + j1] += .. * B[k, j0*8 + j1]  ->     P[j // 8, k, j % 8] = B[k, j]
                                                     for j0, k, j1 in T.grid(4, 16, 8):
                                                         C[.., j0*8 + j1] += .. * P[j0, k, j1]

The kernel then reads the copy from its first to its last element. The copy is made once (see
`lower.packing`). TVM's RewriteLayout inverts the accesses (`suggest_index_map` finds its layouts).
A copy by the block's iterators needs no inverse. So any indices are accepted (phases of a
transposed convolution, groups), if no element is stored twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import accesses
from metasched.analysis.scope import Child, Scope
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var, as_int
from metasched.ir.visit import free_vars, substitute
from metasched.lower.packing import PREPROC
from metasched.schedule.analysis import Digit, digits_of, first_loop
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.strides import iter_stride
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class RewriteLayout:
    """Pack constant weights as the file's docstring shows.

    A weight keeps its layout if several blocks read it, or if a block reads it at several places or
    in overlapping windows. A stage that only prepares the weight runs ahead of time, too.
    """

    @property
    def name(self) -> str:
        return "rewrite_layout"

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name, func in sch.mod.functions.items():
            for weight in func.constants if func.is_schedulable else ():
                self._rewrite(sch, name, weight, name if several else None)

    def _rewrite(self, sch: Schedule, name: str, weight: Buffer, func: str | None) -> None:
        while True:
            scope = Scope.of(sch.mod[name].root)
            readers = scope.readers(weight)
            if len(readers) != 1:
                return
            (reader,) = readers
            made = _prepared(scope, reader, weight)
            if made is None:
                break
            sch.annotate(sch.get_block(reader.block.name, func), PREPROC, True)
            weight = made
        layout = _layout(reader, weight)
        if layout is None:
            return
        steps = len(sch.trace)
        try:
            _pack(sch, sch.get_block(reader.block.name, func), weight, layout)
        except ScheduleError:
            undo_to(sch, steps)


def _pack(sch: Schedule, block: BlockRV, weight: Buffer, layout: IndexMap) -> None:
    """Let the block read a copy in `layout`; the copying block reads the weight in order."""
    reads = [r.buffer for r in sch.get(block).reads]
    copy = sch.reindex_cache_read(block, reads.index(weight), "global", layout)
    (source,) = [a for a in accesses(sch.get(copy)) if not a.is_write]
    moves = [iter_stride(source, v.var) or 0 for v in sch.get(copy).iter_vars]
    order = sorted(range(len(moves)), key=lambda n: -moves[n])
    if order != sorted(order):
        loops = sch.get_loops(copy)
        sch.reorder(*(loops[n] for n in order))
    sch.annotate(copy, PREPROC, True)


def _prepared(scope: Scope, reader: Child, weight: Buffer) -> Buffer | None:
    """The buffer that a stage, alone in its nest, computes from the weight only, or None."""
    block = reader.block
    outputs = {r.buffer for r in block.writes}
    if len(outputs) != 1:
        return None
    (output,) = outputs
    alone = not reader.loops or len(scope.under(reader.loops[0])) == 1
    inside = output in scope.block.alloc_buffers and scope.writers(output) == [reader]
    if not alone or not inside or {r.buffer for r in block.reads} - {output} != {weight}:
        return None
    return output


def _layout(child: Child, weight: Buffer) -> IndexMap | None:
    """The layout in which the block reads the weight front to back; None to keep the old layout."""
    block = child.block
    places = {a.indices for a in accesses(block) if a.buffer is weight}
    if len(places) != 1:
        return None
    (indices,) = places
    used = set().union(*(free_vars(i) for i in indices))
    covered = [n for n, v in enumerate(block.iter_vars) if v.var in used]
    sizes = {n: as_int(block.iter_vars[n].dom.extent) or 0 for n in covered}
    whole = math.prod(as_int(n) or 0 for n in weight.shape)
    if not 0 < math.prod(sizes.values()) <= whole:
        return None
    point = [Var(f"i{n}", v.var.dtype) for n, v in enumerate(block.iter_vars)]
    digits = _merged(sorted(d for n in covered for d in _digits(child, n, sizes[n])))
    outputs = [d.of(point[d.axis], sizes[d.axis]) for d in digits]
    own = {p: v.var for p, v in zip(point, block.iter_vars, strict=True)}
    plain = [i for i, n in zip(indices, weight.shape, strict=True) if as_int(n) != 1]
    if [substitute(o, own) for o in outputs] == plain:
        return None
    return IndexMap(tuple(point), tuple(outputs))


def _digits(child: Child, position: int, size: int) -> list[Digit]:
    """The digits of an iterator, one for each loop; a single digit if the loops form no number."""
    value = child.realize.iter_values[position]
    found = digits_of(value, size, position, child.loops)
    if found is not None:
        return found
    return [Digit((first_loop(value, child.loops), 0), position, 1, size)]


def _merged(digits: Sequence[Digit]) -> list[Digit]:
    """Join neighbouring digits that together are one digit."""
    out: list[Digit] = []
    for digit in digits:
        last = out[-1] if out else None
        if last and last.axis == digit.axis and last.scale == digit.scale * digit.extent:
            digit = digit._replace(place=last.place, extent=digit.extent * last.extent)
            out.pop()
        out.append(digit)
    return out
