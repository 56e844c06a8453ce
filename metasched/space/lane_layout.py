"""The dimension along which lanes run comes last in temporary memory.

    for c in range(32): for n, k: S[c, k] = f(S[c, k], X[n, c])
    ->
    for c in range(32): for n, k: S[k, c] = f(S[k, c], X[n, c])

Loops that need their order leave one iterator for vectors. Copies of a buffer for each iteration
have that iterator first; lanes would lie apart, and each step would wait for scattered stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.access import SHUFFLED, Access, accesses
from metasched.analysis.block import is_leaf
from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block, BlockToken, IterKind
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import iter_stride

FEWEST = 8
"""The fewest iterations that run in lanes."""


def lanes_last(sch: Schedule, name: str, func: str | None) -> None:
    """Turn the temporary buffers of a function that ordered loops update, so that lanes lie side by
    side; a buffer keeps its layout where blocks want different dimensions last.

    Args:
        name: of the function.
        func: the same for `get_block`; None in a module of one function.
    """
    scope = Scope.of(sch.mod[name].root)
    wanted: dict[Buffer, set[int]] = {}
    writers: dict[Buffer, tuple[BlockToken, int]] = {}
    for child in scope.realizes:
        block = child.block
        for place, region in enumerate(block.writes):
            writers.setdefault(region.buffer, (child.token, place))
        own = set(scope.block.alloc_buffers)
        for buffer, place in _moving(block, own):
            wanted.setdefault(buffer, set()).add(place)
    for buffer, places in wanted.items():
        last = len(buffer.shape) - 1
        if len(places) == 1 and last not in places and buffer.constant_shape() is not None:
            token, place = writers[buffer]
            block = sch.state.index.blocks[token].block
            try:
                move_last(sch, sch.get_block(block.name, func), place, places.pop())
            except ScheduleError as error:
                sch.refused.append(error)


def move_last(sch: Schedule, block: BlockRV, write: int, dim: int) -> None:
    """Move a dimension of a buffer that a block writes behind the others."""
    buffer = sch.get(block).writes[write].buffer
    order = [*(d for d in range(len(buffer.shape)) if d != dim), dim]
    sch.transform_layout(block, ("write", write), lambda *index: tuple(index[d] for d in order))


def _moving(block: Block, own: set[Buffer]) -> list[tuple[Buffer, int]]:
    """The buffers of `own` that a block updates in order, and their dimension that lanes move."""
    if all(v.kind is not IterKind.OPAQUE for v in block.iter_vars) or is_leaf(block) is not None:
        return []
    found = accesses(block)
    updated = {a.buffer for a in found if a.is_write} & {a.buffer for a in found if not a.is_write}
    lane = _lane(block, own & updated)
    if lane is None:
        return []
    return [
        (buffer, place)
        for buffer in dict.fromkeys(a.buffer for a in found)
        if buffer in updated & own
        and any(a.buffer is buffer and iter_stride(a, lane) != 1 for a in found)
        and (place := dimension([a for a in found if a.buffer is buffer], lane)) is not None
    ]


def _lane(block: Block, own: set[Buffer]) -> Var | None:
    """The iterator along which lanes may run after turning buffers, where no lanes are vectors as
    they are. Each iteration has elements of its own in all buffers of `own`, which are updated."""
    found = accesses(block)
    fits = []
    for v in block.iter_vars:
        if v.is_reduce or (as_int(v.dom.extent) or 0) < FEWEST:
            continue
        if any(a.buffer in own and dimension([a], v.var) is None for a in found):
            continue
        moves = [(a, iter_stride(a, v.var)) for a in found]
        if all(m == 1 or (not a.is_write and m in range(-1, SHUFFLED + 1)) for a, m in moves):
            return None
        if all(
            a.buffer in own or m == 1 or (not a.is_write and (m == 0 or turnable([a], v.var)))
            for a, m in moves
        ):
            fits.append(v.var)
    return max(fits, key=lambda v: sum(iter_stride(a, v) in (0, 1) for a in found), default=None)


def turnable(found: Sequence[Access], var: Var) -> bool:
    """Whether lanes of loads would lie side by side in a copy of the buffer."""
    return dimension(found, var) is not None and not any(a.is_write for a in found)


def dimension(found: Sequence[Access], var: Var) -> int | None:
    """The one dimension that an iterator indexes alone in all accesses of a buffer."""
    every = set[int]()
    for access in found:
        places = {d for d, index in enumerate(access.indices) if var in free_vars(index)}
        if len(places) != 1 or access.indices[min(places)] is not var:
            return None
        every |= places
    return every.pop() if len(every) == 1 else None
