"""A store's nest: its loops, the memory that they touch, and the traffic between memories."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from metasched.analysis.access import SHUFFLED, STEPS
from metasched.cost.footprint import Footprint
from metasched.cost.guard_fraction import guard_fraction
from metasched.cost.summary import Loop, Store
from metasched.lower.passes.zeros import TAPS, WORTH
from metasched.target.machine import Level, MachineModel

CLAMPED = 2.0
"""Loads of a vector of neighbours that end at a limit: the lanes before, and the last one."""
SQUARE = 0.5
"""Loads and exchanges for each lane of a vector of elements that walk along memory, in loads: a
vector of 16 takes 9 cycles on a Zen 4, where loading lanes one by one takes 26."""
_SQUARES = (4, 8, 16)
"""The rows that code generation exchanges in registers."""
COPIED = 1.5
"""Loads of a vector of elements of rows, and its share of the copies of these rows."""


@dataclass(slots=True)
class Nest:
    """A store with its loops, the inner first; the first access is the write.

    Attributes:
        products: iterations of the k innermost loops, for each k.
        outside: the accesses to memory, without temporaries that live in registers.
        volumes: bytes of the lines that these accesses touch under the k innermost loops, for each
            k.
        straight: loops that become straight code because they move temporaries in registers.
    """

    store: Store
    order: list[Loop]
    products: list[int]
    moves: list[Footprint]
    outside: list[Footprint]
    volumes: list[int]
    straight: set[int]

    def skipped(self) -> float:
        """The share of iterations that remain after the lowering skips products with zeros.

        The lowering puts tests around loops with enough work, and leaves out rows of unrolled
        loops.
        """
        tests = [t for t in self.store.notes.tests if t.skips]
        if not tests:
            return 1.0
        k = next((k for k, n in enumerate(self.products) if n >= WORTH), len(self.order))
        if any(loop.kind not in ("serial", "parallel") for loop in self.order[k:]):
            k = len(self.order)
        cut = [x.kind == "unroll" or (x.kind == "serial" and x.extent <= TAPS) for x in self.order]
        return guard_fraction(tests, {x.index for n, x in enumerate(self.order[:k]) if not cut[n]})


def guards(nest: Nest, depth: int) -> float:
    """How many conditions are tested for each run of the block; the lowering moves a condition out
    of the loops that do not change it."""
    place = {loop.index: k for k, loop in enumerate(nest.order)}
    tests = (t for t in nest.store.notes.tests if not t.skips)
    inner = (min(place[loop] for loop, _, _ in test.digits) for test in tests)
    return sum(nest.products[depth] / nest.products[max(k, depth)] for k in inner)


def deciding(nest: Nest) -> set[int]:
    """The loops that decide whether the store of results in memory runs: LLVM moves no such store
    out of them, but for local memory."""
    if nest.store.accesses[0].buffer.scope == "local":
        return set()
    return {n for test in nest.store.notes.tests if not test.skips for n, _, _ in test.digits}


def held_for(nest: Nest, depth: int, fold: int) -> float:
    """For how many iterations of the loops around the block its results stay in registers."""
    order, written = nest.order, nest.moves[0]
    held, around, tested = 1.0, depth + bool(fold), deciding(nest)
    while around < len(order) and written.steps[around] is None:
        if order[around].index in tested:
            break
        held *= order[around].extent
        around += 1
    return held * max(order[depth].extent / fold, 1.0) if fold else held


def scattered(nest: Nest, depth: int) -> tuple[float, float]:
    """Runs of memory and pages under the inner loops."""
    found = [move.places(depth) for move in nest.outside]
    return sum(f[0] for f in found), sum(f[1] for f in found)


def lane_loads(
    uneven: float,
    stride: int,
    lanes: int,
    masked: bool,
    walking: bool,
    turned: bool = False,
    square: bool = False,
) -> tuple[float, bool]:
    """How many loads a vector of an access takes, and whether most are one for each lane.

    Args:
        uneven: the share of the vectors whose index is clamped.
        masked: whether a condition depends on the lanes; clamped lanes are then loaded one by one.
        walking: whether code generation loads several steps of a lane at once.
        turned: whether the lanes are copies of rows.
        square: whether rows are exchanged in registers.
    """
    if stride > SHUFFLED and square:
        return 1.0 + log2(lanes), False
    if stride > SHUFFLED and turned:
        return COPIED, False
    if stride > SHUFFLED:
        return max(1.0, lanes * SQUARE) if walking else lanes, not walking
    each = CLAMPED if stride == 1 and not masked else lanes
    return 1.0 + uneven * (each - 1.0), uneven > 0.5 and each == lanes


def registers_apart(stride: int, lanes: int, stores: bool, scatters: bool) -> int:
    """The registers, or single lanes, that are loaded or stored for a vector of lanes apart.

    Args:
        scatters: whether a store takes each lane alone.
    """
    if not 1 < stride <= SHUFFLED:
        return 1
    return stride if not stores else lanes if scatters else 1


def masked_lanes(nest: Nest, depth: int) -> bool:
    """Whether a condition around the store depends on the lanes."""
    lanes = {x.index for x in nest.order[:depth] if x.kind == "vectorized"}
    return any(d in lanes for test in nest.store.notes.tests for d, _, _ in test.digits)


def squared(nest: Nest, machine: MachineModel) -> bool:
    """Whether a copy loads rows and exchanges them in registers: as many unrolled rows as lanes
    (see `codegen.transpose`)."""
    if len(nest.order) < 2 or len(nest.moves) != 2 or not nest.store.facts.copies:
        return False
    (written, read), (lanes, rows) = nest.moves, nest.order[:2]
    kinds = {move.access.buffer.dtype for move in nest.moves}
    whole = written.bytes >= 4 and lanes.extent * written.bytes <= machine.vector_bytes
    square = lanes.extent == rows.extent in _SQUARES and whole and len(kinds) == 1
    copies = lanes.kind == "vectorized" and rows.kind == "unroll" and not nest.store.notes.tests
    return square and copies and written.steps[0] == 1 == read.steps[1]


def whole_lines(nest: Nest, move: Footprint, depth: int, machine: MachineModel) -> int:
    """How many of the inner loops load each line of an access once, though its lanes lie apart; 0
    for other accesses."""
    if squared(nest, machine):
        return 2
    return depth + 1 if walks(move, nest.order, depth) else 0


def walks(access: Footprint, order: list[Loop], depth: int) -> bool:
    """Whether the lanes of a load walk along memory in the serial loop around the block, so that
    code generation loads several steps of a lane at once (see `codegen.squares`)."""
    if depth >= len(order) or any(loop.kind != "vectorized" for loop in order[:depth]):
        return False
    around = order[depth]
    return around.kind == "serial" and around.extent >= STEPS and access.steps[depth] == 1


def within(nest: Nest, level: Level) -> int:
    """How many of the inner loops touch no more memory than a cache holds.

    A cache holds less than its size where the addresses fall into few of its sets.
    """
    fits, size = 0, level.bytes
    for k, volume in enumerate(nest.volumes):
        if volume > size:
            break
        fits = k
    if level.ways:
        way = size // level.ways
        while fits and sum(m.set_conflicts(fits, way) for m in nest.outside) * way > size:
            fits -= 1
    return fits


def traffic(nest: Nest, fits: int, machine: MachineModel, depth: int, cores: int = 1) -> float:
    """The bytes that a store moves from beyond a cache, which each of the cores has for itself.

    The `fits` innermost loops fit into the cache: the lines they touch come once for each run of
    these loops. Where lanes walk along memory in the loop around the `depth` innermost loops, code
    generation loads whole lines, so each line comes once for that loop.
    """
    products, line = nest.products, machine.line
    total = 0.0
    for move in nest.outside:
        walked = whole_lines(nest, move, depth, machine)
        k = _still(nest, move, max(fits, walked))
        moved = move.lines(k) * line * (products[-1] / products[k])
        total += moved * _with_neighbours(nest, move, line, cores)
    return total


def _with_neighbours(nest: Nest, move: Footprint, line: int, cores: int) -> float:
    """How many lines come for each line that a core needs.

    Processors fetch the other line of a pair, too. Where the cores divide the rows of a buffer, the
    line beside the end of a part of a row belongs to another core, and moves back and forth if the
    cores write it.
    """
    shared = next((x for x in reversed(nest.order) if x.kind == "parallel"), None)
    if shared is None or min(cores, shared.extent) == 1:
        return 1.0
    part = float("inf")
    each = -(-shared.extent // min(cores, shared.extent))
    for dim, stride in zip(move.access.dims, move.memory.strides, strict=True):
        step, width = dim.get(shared.index, (0, 0))
        if width and abs(step) * (shared.extent - 1) <= width:  # otherwise it starts again
            part = min(part, max(abs(step), 1) * each * stride * move.bytes)
    return 1.0 + line / max(part, line)


def _still(nest: Nest, move: Footprint, k: int) -> int:
    """Extend `k` over the loops around that do not move the access, so that its cached memory is
    used again."""
    while k < len(nest.order) and move.steps[k] is None:
        k += 1
    return k


def page_misses(nest: Nest, fits: int, machine: MachineModel) -> float:
    """Cycles for the pages that a core looks up.

    The `fits` innermost loops fit into the second cache: they look up their pages once. Loops
    around them use the same pages again as long as the core has all of them at hand.
    """
    products, depth = nest.products, fits
    while depth < len(nest.order) and _pages(nest, depth) <= machine.pages:
        depth += 1
    total = 0.0
    for move in nest.outside:
        k = _still(nest, move, depth)
        total += move.places(k)[1] * (products[-1] / products[k])
    return total * machine.page_miss


def _pages(nest: Nest, depth: int) -> float:
    """How many pages the `depth` innermost loops touch."""
    return sum(move.places(depth)[1] for move in nest.outside)
