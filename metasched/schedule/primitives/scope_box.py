"""The boxes in which the blocks of a scope may touch a buffer."""

from __future__ import annotations

from metasched.analysis.boxes import merged, upper_box
from metasched.analysis.scope import Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import covers, union_regions
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, as_int
from metasched.ir.stmt import BlockRealize
from metasched.schedule.primitives.access_pattern import known_ranges
from metasched.schedule.state import State


def scope_bounds(scope: Scope, buffer: Buffer, side: str) -> list[Range]:
    """The box in which a scope may touch `buffer`: the region that its block declares, or the whole
    buffer if the block allocates the buffer or declares no region."""
    block = scope.block
    mine, other = block.reads, block.writes
    if side == "writes":
        mine, other = other, mine
    declared = [r.region for r in mine if r.buffer is buffer] or [
        r.region for r in other if r.buffer is buffer
    ]
    box = list(buffer.whole().region)
    if not declared or buffer in block.alloc_buffers:
        return box
    hull = list(declared[0])
    for region in declared[1:]:
        hull = union_regions(hull, region)
    return [clipped(r, whole) for r, whole in zip(hull, box, strict=True)]


def box_to_read(state: State, realize: BlockRealize, buffer: Buffer) -> list[Range]:
    """The box of a buffer that the scope of a block may read.

    Refuses a box around several declared regions that holds more than these regions.
    """
    scope = state.scope(realize)
    box, around = scope_bounds(scope, buffer, "reads"), scope.block
    declared = [r.region for r in around.reads if r.buffer is buffer]
    known = Analyzer(known_ranges(state, realize))
    if len(declared) < 2 or any(covers(region, box, known) for region in declared):
        return box
    boxes = [upper_box(tuple((r.min, r.extent) for r in one), TRUE, {}) for one in declared]
    if len(merged(boxes)) > 1:
        raise state.error(
            "reads-beyond",
            f"the copy would read more of {buffer.name} than {around.name}, the block around it, "
            f"declares to read: the {len(declared)} regions leave gaps",
            realize,
            hint=f"annotate_buffer_access widens what {around.name} declares to read",
        )
    return box


def clipped(r: Range, bounds: Range) -> Range:
    """A constant range, cut to constant bounds; a range or bounds with variables change nothing."""
    low, size = as_int(r.min), as_int(r.extent)
    start, length = as_int(bounds.min), as_int(bounds.extent)
    if low is None or size is None or start is None or length is None:
        return r
    first = max(low, start)
    last = max(first, min(low + size, start + length))
    return Range.of(first, last - first) if (first, last) != (low, low + size) else r
