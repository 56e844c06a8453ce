"""Transfer: the memory that a core reads after another core wrote it.

Each core runs one contiguous share of the iterations of a parallel loop. A statement that divides a
buffer in another way than the statement that wrote it reads lines from the caches of other cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metasched.cost.footprint import Footprint
from metasched.cost.nest import Nest
from metasched.cost.summary import Loop
from metasched.ir.buffer import Buffer
from metasched.target.machine import MachineModel


class _Shares(NamedTuple):
    """How the cores divide what a statement touches of a buffer.

    Attributes:
        cores: how many cores run the statement.
        along: the dimensions along which each core has one contiguous part, with the direction.
    """

    cores: int
    along: frozenset[tuple[int, bool]]


def transfers(nests: Sequence[Nest], machine: MachineModel) -> list[float]:
    """Bytes of the lines that each statement reads from other cores, all cores together."""
    writes: dict[Buffer, list[int]] = {}
    for n, nest in enumerate(nests):
        writes.setdefault(nest.moves[0].access.buffer, []).append(n)
    return [
        sum(_moved(nests, n, move, writes.get(move.access.buffer, []), machine)
            for move in nest.outside)
        for n, nest in enumerate(nests)
    ]  # fmt: skip


def _moved(
    nests: Sequence[Nest], reader: int, move: Footprint, writers: list[int], machine: MachineModel
) -> float:
    """The bytes of one access of a statement.

    The writer is the last one before it, or, in a serial loop around both, the last one after it:
    the iteration before ran that one.

    Args:
        writers: the statements that write the buffer.
    """
    nest = nests[reader]
    before = [n for n in writers if n < reader]
    after = [n for n in writers if n > reader]
    if not before and not after:
        return 0.0
    writer = nests[(before or after)[-1]]
    around = _common(nest.order, writer.order)
    if any(loop.kind == "parallel" for loop in around) or not (before or around):
        return 0.0
    here = _shares(nest, move, machine.cores)
    there = _shares(writer, writer.moves[0], machine.cores)
    cores = max(here.cores, there.cores)
    if cores == 1 or here.along & there.along:
        return 0.0
    size, depth = _lines(nest, move, around, machine), len(nest.order) - len(around)
    size = min(size, _lines(writer, writer.moves[0], around, machine))
    if size > machine.levels[1].bytes * there.cores:
        return 0.0  # the lines have left the caches of the core that wrote them
    times = nest.products[-1] / nest.products[depth]
    copies = 1 if here.along else here.cores
    return size * copies * times * (cores - 1) / cores


def _lines(nest: Nest, move: Footprint, around: list[Loop], machine: MachineModel) -> float:
    """Bytes of the lines that an access touches under the loops inside of `around`."""
    return move.lines(len(nest.order) - len(around)) * machine.line


def _common(order: list[Loop], other: list[Loop]) -> list[Loop]:
    """The loops around both statements."""
    found = []
    for a, b in zip(reversed(order), reversed(other), strict=False):
        if a is not b:
            break
        found.append(a)
    return found


def _shares(nest: Nest, move: Footprint, cores: int) -> _Shares:
    """How the outermost parallel loop of a statement divides one access among the cores."""
    shared = next((loop for loop in reversed(nest.order) if loop.kind == "parallel"), None)
    if shared is None:
        return _Shares(1, frozenset())
    along = set()
    for d, stride in enumerate(move.access.dims):
        step, width = stride.get(shared.index, (0, 0))
        if width and abs(step) * (shared.extent - 1) <= width:  # otherwise it starts again
            along.add((d, step >= 0))
    return _Shares(min(cores, shared.extent), frozenset(along))
