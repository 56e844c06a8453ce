"""What a program asks of a machine, in units of that machine: cycles, registers, caches, cores.

The numbers of `features` are counts; a tree that learns thresholds on them learns one machine and
one size of operator. These are ratios: the cycles that the innermost register block needs by a
port model over the ideal of the whole program, the traffic between each two levels of the memory
over the same ideal (a store's working set against the size of each cache, as in Halide's and
Ansor's analyses), the share of the registers and cores that is used. So records of other operators
and machines say something about this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from metasched.cost.summary import Loop, Store
from metasched.target import Target

PER_CYCLE = (64.0, 32.0, 16.0, 6.0)
"""Bytes a core moves in a cycle to its registers, from L2, from L3, from memory: orders of size."""

FMA_LATENCY, LOOP_COST, LAUNCH = 4.0, 2.0, 5000.0
"""Cycles from one sum to the next that needs it, of a loop's step, of a parallel region."""

MACHINE_FEATURES: tuple[str, ...] = (
    "compute", "loads", "l1_l2", "l2_l3", "l3_memory", "bound", "loop_steps", "launch", "outside",
    "cores", "tasks", "grain", "launches",
    "block.accumulators", "block.pressure", "block.loads", "block.chain", "block.size",
    "block.lanes", "block.waste", "block.gathers", "block.steps", "block.compute", "block.l1_l2",
    "block.l2_l3", "block.l3_memory",
)  # fmt: skip


@dataclass(slots=True)
class Reach:
    """One access of a store under its k innermost loops, for each k.

    Attributes:
        bytes: of an element.
        touched: elements touched.
        row: contiguous elements of the last dimension touched.
        steps: element step of each loop, inner first; None where it does not move the access.
    """

    bytes: int
    touched: list[int]
    row: list[int]
    steps: list[int | None]


@dataclass(slots=True)
class Nest:
    """A store with its loops, the inner first; the first access is the write."""

    store: Store
    order: list[Loop]
    products: list[int]
    moves: list[Reach]


@dataclass(slots=True)
class _Cost:
    """Cycles of a store on one core, and on how many it runs."""

    compute: float
    loads: float
    levels: tuple[float, float, float]
    steps: float
    cores: float
    tasks: int
    launches: int
    block: tuple[float, ...]

    @property
    def bound(self) -> float:
        return max(self.compute, self.loads, *self.levels) + self.steps


def machine_features(nests: list[Nest], target: Target) -> list[float]:
    """The values of MACHINE_FEATURES."""
    if not nests:
        return [0.0] * len(MACHINE_FEATURES)
    costs = [_cost(nest, target) for nest in nests]
    main = max(costs, key=lambda c: c.bound / c.cores)
    cores = max(target.num_cores, 1)
    ideal = sum(_ideal(nest, target) for nest in nests) / cores + 1.0

    def share(cycles: float) -> float:
        return log2(cycles / ideal + 1e-3)

    launches = sum(c.launches for c in costs)
    bound = sum(c.bound / c.cores for c in costs)
    row = [
        share(sum(c.compute / c.cores for c in costs)),
        share(sum(c.loads / c.cores for c in costs)),
        *(share(sum(c.levels[n] / c.cores for c in costs)) for n in range(3)),
        share(bound + launches * LAUNCH),
        share(sum(c.steps / c.cores for c in costs)),
        share(launches * LAUNCH),
        1.0 - main.bound / main.cores / max(bound, 1.0),
        main.cores / cores,
        log2(main.tasks / cores),
        log2(main.bound / main.tasks + 1.0),
        log2(launches + 1.0),
        *main.block,
        share(main.compute / main.cores),
        *(share(level / main.cores) for level in main.levels),
    ]
    assert len(row) == len(MACHINE_FEATURES)
    return row


def _operations(store: Store) -> float:
    """Operations of one iteration; a multiply-add is one, a function a dozen."""
    c = store.counts
    floats = c[0] + c[1] + c[2] + 4 * c[3] + c[4] + 12 * (c[5] + c[6])
    return float(floats + c[15] or sum(c[7:14]) * 0.5)


def _lanes(nest: Nest, target: Target) -> int:
    return max(target.vector_bits // 8 // nest.moves[0].bytes, 1)


def _ideal(nest: Nest, target: Target) -> float:
    """Cycles of one core that does nothing but the arithmetic, two vectors a cycle."""
    return nest.products[-1] * _operations(nest.store) / (2 * _lanes(nest, target))


def _cost(nest: Nest, target: Target) -> _Cost:
    order, products = nest.order, nest.products
    total = products[-1]
    depth = 0
    while depth < len(order) and order[depth].kind in ("unroll", "vectorized"):
        depth += 1
    block = _block(nest, depth, target)
    trips = total / products[depth]
    steps = LOOP_COST * trips if depth < len(order) else 0.0
    tasks = 1
    launches = 0
    for k, loop in enumerate(order):
        if loop.kind == "parallel":
            tasks *= max(loop.extent, 1)
            launches = total // products[k + 1]
    cores = max(target.num_cores, 1)
    used = tasks / -(-tasks // cores)
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes or 16 * target.l2_bytes)
    moved = [_traffic(nest, size) for size in sizes]
    rates = PER_CYCLE[1:]
    levels = (moved[0] / rates[0], moved[1] / rates[1], moved[2] / rates[2])
    compute, loads, described = block
    return _Cost(compute * trips, loads * trips, levels, steps, used, tasks, launches, described)


def _block(nest: Nest, depth: int, target: Target) -> tuple[float, float, tuple[float, ...]]:
    """Cycles of arithmetic and of loads of the unrolled and vectorized loops, and what they are."""
    order, lanes = nest.order, _lanes(nest, target)
    width = 1
    for loop in order[:depth]:
        if loop.kind == "vectorized":
            width *= max(loop.extent, 1)
    vectors = -(-width // lanes)  # instructions that one vector statement takes
    points = nest.products[depth] / width  # executions of that statement
    instructions = points * vectors * _operations(nest.store)
    written = nest.moves[0]
    accumulators = _registers(written, order, depth, lanes)
    chain = 1.0
    for k, loop in enumerate(order[:depth]):
        if written.steps[k] is None:
            chain *= loop.extent
    gathers = 0.0
    loads = 0.0
    for access in nest.moves:
        count = _registers(access, order, depth, lanes)
        stride = _vector_stride(access, order, depth)
        if stride is not None and stride > 1:
            gathers += 1
            count *= min(width, lanes)
        loads += count
    reducing = nest.store.accesses[0].reads > 0
    latency = FMA_LATENCY * chain if reducing else 0.0
    arithmetic = max(instructions / 2, latency, 0.5)
    spilt = max(0.0, accumulators - target.vector_registers + 2)
    loads = loads / 2 + (2 * spilt if reducing else 0.0)
    described = (
        log2(accumulators), accumulators / max(target.vector_registers, 1),
        loads / max(instructions, 1.0), log2(chain), log2(instructions + 1),
        log2(min(width, lanes)), vectors * lanes / width if width > 1 else 0.0, gathers,
        log2(nest.order[depth].extent) if depth < len(order) else 0.0,
    )  # fmt: skip
    return arithmetic, loads, described


def _registers(access: Reach, order: list[Loop], depth: int, lanes: int) -> float:
    """Vector registers that hold what an access touches in the block."""
    count = 1.0
    for k, loop in enumerate(order[:depth]):
        if access.steps[k] is not None:
            count *= -(-loop.extent // lanes) if loop.kind == "vectorized" else loop.extent
    return count


def _vector_stride(access: Reach, order: list[Loop], depth: int) -> int | None:
    for k, loop in enumerate(order[:depth]):
        if loop.kind == "vectorized":
            return access.steps[k]
    return None


def _traffic(nest: Nest, size: int) -> float:
    """Bytes that come from beyond a cache: what the largest fitting set of inner loops touches,
    whole lines, each time these loops run."""
    products = nest.products
    fits = 0
    for k in range(len(products)):
        if sum(m.bytes * m.touched[k] for m in nest.moves) > size:
            break
        fits = k
    total = 0.0
    for move in nest.moves:
        k = fits
        while k < len(nest.order) and move.steps[k] is None:
            k += 1  # it stays while loops that do not move it run
        line = max(1.0, 64 / max(move.bytes * move.row[k], 1))
        total += move.bytes * move.touched[k] * line * (products[-1] / products[k])
    return total
