"""The footprint of an access: the memory that it touches under its innermost loops."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import gcd, prod

from metasched.analysis.access import SHUFFLED
from metasched.cost.index_stride import LANES
from metasched.cost.summary import Loop, TouchedBuffer
from metasched.target.machine import MachineModel

_RUNS = 256


class Memory:
    """A buffer as it will be allocated: extents, element strides, elements."""

    __slots__ = ("elements", "extents", "strides")

    def __init__(self, extents: list[int], strides: list[int] | None = None) -> None:
        dense, step = [], 1
        for extent in reversed(extents):
            dense.append(step)
            step *= extent
        dense.reverse()
        self.extents, self.strides, self.elements = extents, strides or dense, step


class Footprint:
    """What one access touches, for each number k of innermost loops.

    Attributes:
        bytes: the bytes of an element.
        memory: the buffer as it will be allocated.
        steps: how many elements each loop moves the access, the inner loop first; None for a loop
            that does not move the access.
        touched: elements that the k innermost loops touch.
        run: how many of these elements follow each other in memory.
        asked: whether a prefetch requests the lines ahead of time; prefetched lines cost as much
            as consecutive lines.
    """

    __slots__ = (
        "_line", "_page", "_widths",
        "access", "asked", "bytes", "memory", "run", "steps", "touched",
    )  # fmt: skip

    def __init__(
        self,
        access: TouchedBuffer,
        memory: Memory,
        order: list[Loop],
        ahead: bool,
        machine: MachineModel,
    ) -> None:
        self._line, self._page = machine.line, machine.page
        by_loop: dict[int, list[tuple[int, int, int]]] = {}
        for d, stride in enumerate(access.dims):
            for index, (step, width) in stride.items():
                by_loop.setdefault(index, []).append((d, step, width))
        limits, strides = memory.extents, memory.strides
        widths = [1] * len(limits)
        for d, _, width in by_loop.get(LANES, ()):
            widths[d] += width
        elements, run = _box(widths, limits)
        self.access, self.bytes, self.memory = access, access.buffer.dtype.bytes, memory
        self.steps: list[int | None] = []
        self.touched, self.run, self._widths = [elements], [run], [widths]
        for loop in order:
            moved = by_loop.get(loop.index)
            if moved is None:
                self.steps.append(None)
            else:
                step = 0
                widths = widths.copy()
                for d, by, width in moved:
                    step += by * strides[d]
                    widths[d] += width
                self.steps.append(abs(step))
                elements, run = _box(widths, limits)
            self.touched.append(elements)
            self.run.append(run)
            self._widths.append(widths)
        pairs = zip(order, self.steps, strict=True)
        self.asked = ahead and any(x.kind == "vectorized" and step == 1 for x, step in pairs)

    def places(self, depth: int) -> tuple[float, float]:
        """How many separate runs of memory, and how many pages, the `depth` innermost loops
        touch."""
        runs, pages = 1.0, 1.0
        apart = self.run[depth]
        memory, size = self.memory, self.bytes
        if self.asked:
            return 1.0, max(1.0, self.touched[depth] * size / self._page)
        span = float(apart * size)
        for have, limit, stride in zip(
            reversed(self._widths[depth]), reversed(memory.extents), reversed(memory.strides),
            strict=True,
        ):  # fmt: skip
            count, distance = min(have, limit), stride * size
            if count == 1 or stride < apart:
                continue
            runs *= count
            if distance >= self._page:
                pages *= count
            else:
                span += (count - 1) * distance
        return runs, pages * max(1.0, span / self._page)

    def lines(self, depth: int) -> float:
        """How many cache lines the `depth` innermost loops touch.

        Elements that lie less than a line apart share lines.
        """
        memory, size = self.memory, self.bytes
        apart, span = 1.0, float(size)
        for have, limit, stride in zip(
            reversed(self._widths[depth]), reversed(memory.extents), reversed(memory.strides),
            strict=True,
        ):  # fmt: skip
            count, distance = min(have, limit), stride * size
            if distance <= max(span, self._line):
                span += (count - 1) * distance
            else:
                apart *= count
        return apart * max(1.0, span / self._line)

    def set_conflicts(self, depth: int, way: int) -> float:
        """Under the `depth` innermost loops: bytes touched for each byte of one cache way.

        Addresses that lie `way` bytes apart fall into the same set.
        """
        memory, size, apart = self.memory, self.bytes, self.run[depth]
        met = max(1.0, apart * size / way)
        for have, limit, stride in zip(
            self._widths[depth], memory.extents, memory.strides, strict=True
        ):
            count = min(have, limit)
            if count > 1 and stride >= apart:
                met *= _in_one_set(count, stride * size, apart * size, way, self._line)
        return max(met, self.lines(depth) * self._line / way)


@lru_cache(maxsize=1 << 16)
def _in_one_set(count: int, stride: int, run: int, way: int, line: int) -> float:
    """How many of `count` runs of memory have a line in the fullest set of a cache. The first _RUNS
    runs stand for all.

    Args:
        stride, run, way, line: the bytes between two runs, of a run, of a cache way, of a line.
    """
    sets = way // line
    if run >= way:
        return max(1.0, count * gcd(stride, way) / way)
    load = [0] * (sets + 1)
    for n in range(min(count, _RUNS)):
        start = n * stride % way
        first, last = start // line, (start + run - 1) // line
        load[first] += 1
        load[min(last + 1, sets)] -= 1
        if last >= sets:  # the run goes on at the first set
            load[0] += 1
            load[last + 1 - sets] -= 1
    return max(accumulate(load[:sets])) * max(1.0, count / _RUNS)


def _box(widths: list[int], limits: list[int]) -> tuple[int, int]:
    """Elements of a box in a buffer, and the length of its contiguous runs."""
    elements, run, together = 1, 1, True
    for d in range(len(limits) - 1, -1, -1):
        have, limit = widths[d], limits[d]
        if have >= limit:
            elements *= limit
            if together:
                run *= limit
        else:
            elements *= have
            if together:
                run *= have
                together = False
    return elements, run


def splits(access: Footprint, order: list[Loop], width: int, line: int) -> bool:
    """Whether most vectors of `width` elements of an access cross a cache line."""
    size = access.bytes
    if width * size < line:
        return False
    steps = (step for k, step in enumerate(access.steps) if step and order[k].kind != "vectorized")
    return any(step * size % line for step in steps)


def vector_stride(access: Footprint, order: list[Loop], depth: int) -> int | None:
    """The elements between two lanes of an access, None outside of vectors. More than SHUFFLED if
    lanes are loaded one by one."""
    for k, loop in enumerate(order[:depth]):
        if loop.kind == "vectorized":
            return SHUFFLED + 1 if loop.index in access.access.broken else access.steps[k]
    return None


def uneven(access: Footprint, order: list[Loop], depth: int, cores: int) -> float:
    """The share of the vectors of an access whose index is clamped along the lanes.

    If a loop that is not unrolled moves the clamped part too, lowering leaves the clamp to that
    loop's last iteration. The last iteration of a parallel loop is one core's, and the others wait.
    """
    around = {x.index for x in order if x.kind in ("serial", "parallel") and x.extent > 1}
    shared = {x.index: x.extent for x in order if x.kind == "parallel"}

    def runs(loop: int, count: int) -> float:
        return max(count / cores, 1.0) if shared.get(loop) == count else float(count)

    lanes = {x.index for x in order[:depth] if x.kind == "vectorized"}
    share = 0.0
    for loops in access.access.uneven:
        moving = [d for d in access.access.dims if loops & lanes & d.keys()]
        steps = [
            (i, w // max(abs(s), 1) + 1) for d in moving for i, (s, w) in d.items() if i in around
        ]
        counts = [runs(loop, count) for loop, count in steps]
        share = max(share, 1.0 / prod(counts) if moving else 0.0)
    return share
