"""Features in units of the machine: cycles, registers, caches and cores that a program uses.

The numbers of `features` are counts: thresholds on counts fit one machine and one size of operator.
The numbers of this file are ratios, so that a model learns from other operators and machines, too:

- the cycles of the innermost register block, by a port model, over the ideal cycles of the program;
- the traffic between each two levels of the memory, over the same ideal. A store's working set is
  compared with the size of each cache, as in Halide's and Ansor's analyses;
- the shares of the registers and of the cores that are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

from metasched.cost.footprint import Footprint, splits, uneven, vector_stride
from metasched.cost.guard_fraction import busy_cores, guard_fraction
from metasched.cost.nest import (
    Nest,
    deciding,
    guards,
    held_for,
    lane_loads,
    masked_lanes,
    page_misses,
    registers_apart,
    scattered,
    squared,
    traffic,
    walks,
    whole_lines,
    within,
)
from metasched.cost.summary import Loop, Store
from metasched.cost.transfer import transfers
from metasched.target.machine import MachineModel

MACHINE_FEATURES: tuple[str, ...] = (
    "compute", "loads", "l1_l2", "l2_l3", "l3_memory", "bound", "all", "loop_steps",
    "launch", "temporaries", "footprint", "outside", "cores", "tasks", "grain", "launches",
    "block.accumulators", "block.pressure", "block.loads", "block.chain", "block.size",
    "block.lanes", "block.waste", "block.gathers", "block.split", "block.steps", "block.held",
    "block.fold", "block.ahead", "block.guards", "block.ran", "block.partial", "block.runs",
    "block.compute", "block.l1_l2", "block.l2_l3", "block.l3_memory", "block.pages",
    "block.near_runs", "block.near_pages", "block.crowd", "block.l2_runs", "block.l2_pages",
)  # fmt: skip

CONVERT = {"bfloat16": 2.0, "float16": 1.0, "float8_e4m3fn": 5.0, "float8_e5m2": 2.0}
"""Instructions that widen a vector of a type, 1 for other types."""
RAGGED = 4.0
"""Cycles for a run of a loop whose extent changes: its ends are computed, and the processor does
not foresee its last iteration. Of 3, 4, 6, 8 and 12, on PolyBench and 32 other programs, 4 is
best."""
WINDOW = 150
"""How many arithmetic instructions a core looks ahead for work that does not wait for results."""


@dataclass(slots=True)
class _Block:
    """The innermost block of a store: the `depth` innermost loops, which become straight code.

    Attributes:
        compute, loads: cycles of the block for arithmetic and for loads.
        waits: the cycles of `compute` without the arithmetic: results that wait for each other.
        chain: the number of additions to one accumulator, which run one after another.
        split: the share of the loads that cross a cache line.
        held: for how many iterations of the loops around the results stay in registers.
        fold: the lanes in which the next loop is reduced or scanned, 0 for other loops.
    """

    depth: int
    compute: float
    loads: float
    waits: float
    instructions: float
    accumulators: float
    chain: float
    held: float
    gathers: float
    split: float
    lanes: int
    waste: float
    fold: int


@dataclass(slots=True)
class _Cost:
    """The cost of a store: its cycles on one core, and the number of cores it runs on.

    Attributes:
        ran: the share of the innermost blocks that conditions let through.
        partial: the share of these blocks that do only a part of their work.
        levels: the cycles for traffic from beyond each of the two near caches, and from memory.
        fits: how many of the inner loops touch no more than each of the two near caches holds.
    """

    nest: Nest
    compute: float
    loads: float
    levels: tuple[float, float, float]
    fits: tuple[int, int]
    steps: float
    cores: float
    tasks: int
    launches: int
    block: _Block
    ran: float
    partial: float

    @property
    def bound(self) -> float:
        return max(self.compute, self.loads, *self.levels) + self.steps

    @property
    def all(self) -> float:
        """The sum of all cycles, as if nothing overlapped."""
        return self.compute + self.loads + sum(self.levels) + self.steps


def machine_features(
    nests: list[Nest], sizes: tuple[int, int], machine: MachineModel, work: float = 0.0
) -> list[float]:
    """The values of MACHINE_FEATURES.

    Args:
        nests: the stores.
        sizes: bytes of the arguments and of the temporaries.
        work: `work_of` the unscheduled program; 0 to compute it from `nests`.
    """
    if not nests:
        return [0.0] * len(MACHINE_FEATURES)
    costs = [_cost(nest, machine) for nest in nests]
    _share_steps(costs)
    _add_ends(costs)
    _overlap(costs, machine)
    for cost, moved in zip(costs, transfers(nests, machine), strict=True):
        near, far, memory = cost.levels
        cost.levels = near, far + moved / machine.line * machine.transfer, memory
    main = max(costs, key=lambda c: c.bound / c.cores)
    cores, second = machine.cores, machine.levels[1].bytes
    ideal = (work or work_of(nests, machine)) / cores + 1.0

    def share(cycles: float) -> float:
        return log2(cycles / ideal + 1e-3)

    launches = sum(c.launches for c in costs)
    bound = sum(c.bound / c.cores for c in costs)
    pages = sum(page_misses(c.nest, c.fits[1], machine) / c.cores for c in costs)
    row = [
        share(sum(c.compute / c.cores for c in costs)),
        share(sum(c.loads / c.cores for c in costs)),
        *(share(sum(c.levels[n] / c.cores for c in costs)) for n in range(3)),
        share(bound + launches * machine.launch),
        share(sum(c.all / c.cores for c in costs) + pages + launches * machine.launch),
        share(sum(c.steps / c.cores for c in costs)),
        share(launches * machine.launch),
        log2(sizes[1] / second + 1e-3),
        log2(sum(sizes) / second + 1e-3),
        1.0 - main.bound / main.cores / max(bound, 1.0),
        main.cores / cores,
        log2(main.tasks / cores),
        log2(main.bound / main.tasks + 1.0),
        log2(launches + 1.0),
        *_described(main, machine),
        share(main.compute / main.cores),
        *(share(level / main.cores) for level in main.levels),
        share(pages),
        *_places(main, machine),
    ]
    return row


def _share_steps(costs: list[_Cost]) -> None:
    """Count a step of a loop once for all stores of the loop's body."""
    bodies: dict[int, list[_Cost]] = {}
    for cost in costs:
        if cost.steps:
            bodies.setdefault(cost.nest.order[cost.block.depth].index, []).append(cost)
    for body in bodies.values():
        whole = max(c.steps / c.nest.store.notes.share for c in body)
        part = min(1.0, whole / sum(c.steps for c in body))
        for cost in body:
            cost.steps *= part


def _add_ends(costs: list[_Cost]) -> None:
    """Count the runs of each loop whose extent changes once for all stores of the loop."""
    known = set[int]()
    for cost in costs:
        order, products = cost.nest.order, cost.nest.products
        for k, loop in enumerate(order):
            if loop.ragged and loop.kind == "serial" and loop.index not in known:
                known.add(loop.index)
                cost.steps += RAGGED * cost.ran * products[-1] / products[k + 1]


def _overlap(costs: list[_Cost], machine: MachineModel) -> None:
    """Let results of one body wait at the same time: four sums along one loop take as long as the
    slowest of them, or as the arithmetic of all. The steps of the loop run meanwhile."""
    bodies: dict[int, list[_Cost]] = {}
    for cost in costs:
        inside = cost.block.depth < len(cost.nest.order) and not cost.block.fold
        if inside and cost.compute:
            bodies.setdefault(cost.nest.order[cost.block.depth].index, []).append(cost)
    for body in bodies.values():
        trips = [cost.compute / cost.block.compute for cost in body]
        busy = [
            n * max(c.block.instructions, 1.0) / machine.pipes
            for n, c in zip(trips, body, strict=True)
        ]
        longest = max(n * c.block.waits for n, c in zip(trips, body, strict=True))
        whole = max(sum(busy), longest)
        part = min(1.0, whole / sum(c.compute for c in body))
        steps, idle = sum(c.steps for c in body), max(whole - sum(busy), 0.0)
        left = max(1.0 - idle / steps, 0.0) if steps else 0.0
        for cost in body:
            cost.compute *= part
            cost.steps *= left


def _described(cost: _Cost, machine: MachineModel) -> list[float]:
    """The innermost block of a store."""
    block, nest, order = cost.block, cost.nest, cost.nest.order
    notes = nest.store.notes
    around = order[block.depth].extent if block.depth < len(order) else 1
    return [
        log2(block.accumulators), block.accumulators / machine.registers,
        block.loads / max(block.instructions, 1.0), log2(block.chain),
        log2(block.instructions + 1), log2(block.lanes), block.waste, block.gathers, block.split,
        log2(around), log2(block.held), log2(block.fold + 1), log2(notes.ahead + 1),
        guards(nest, block.depth), log2(cost.ran + 1e-3), cost.partial,
        log2(max(scattered(nest, block.depth)[0], 2.0**-10)),
    ]  # fmt: skip


def _places(cost: _Cost, machine: MachineModel) -> list[float]:
    """How many runs of memory and pages are touched by the loops that fit into each of the two near
    caches."""
    near, far = cost.fits
    runs, pages = scattered(cost.nest, near)
    wide_runs, wide_pages = scattered(cost.nest, far)
    numbers = (runs, pages, _crowd(cost.nest, near, machine), wide_runs, wide_pages)
    return [log2(max(number, 2.0**-10)) for number in numbers]


def _crowd(nest: Nest, depth: int, machine: MachineModel) -> float:
    """What the `depth` innermost loops need of the fullest sets of the nearest cache, over the size
    of these sets; one way of that cache is as large as a page. Lines that code generation loads at
    once need not stay."""
    moves = (m for m in nest.outside if not (m.asked or whole_lines(nest, m, depth, machine)))
    ways = machine.levels[0].bytes / machine.page
    return sum(m.set_conflicts(depth, machine.page) for m in moves) / ways


def _lane_loops(order: list[Loop]) -> int:
    """How many of the innermost loops are lanes."""
    return next((k for k, loop in enumerate(order) if loop.kind != "vectorized"), len(order))


def _operations(store: Store, machine: MachineModel) -> float:
    """The operations of one iteration: a multiply-add counts as 1, a mathematical function as 12, a
    declared instruction as its declared cost."""
    facts = store.facts
    if facts.instructions:
        own = sum(machine.costs.get(op.name, op.cost) for op, _ in facts.instructions)
        others = sum(facts.counts) / facts.lanes - len(facts.instructions) - facts.scalars
        return own + 0.5 * others
    c = store.counts
    floats = c[0] + c[1] + c[2] + 4 * c[3] + c[4] + 12 * (c[5] + c[6])
    return float(floats + c[15] or sum(c[7:14]) * 0.5)


def _lanes(nest: Nest, machine: MachineModel) -> int:
    return max(machine.vector_bytes // nest.moves[0].bytes, 1)


def work_of(nests: list[Nest], machine: MachineModel) -> float:
    """The cycles of one core for the arithmetic alone."""
    total = 0.0
    for n in nests:
        operations = n.products[-1] * n.store.notes.share * _operations(n.store, machine)
        total += operations / (machine.pipes * _lanes(n, machine))
    return total


def _cost(nest: Nest, machine: MachineModel) -> _Cost:
    order, products = nest.order, nest.products
    total = products[-1]
    block = _block(nest, machine)
    trips = total / products[block.depth]
    if block.fold:  # the lowering turns the loop around the block into vectors
        trips /= min(block.fold, order[block.depth].extent)
    tests = [t for t in nest.store.notes.tests if not t.skips]
    inner = {loop.index for loop in order[: block.depth]}
    ran, partial = guard_fraction(tests, inner), 0.0
    if tests:
        partial = 1.0 - guard_fraction(tests, inner, whole=True) / max(ran, 1e-9)
    ran *= nest.skipped() * nest.store.notes.share
    trips *= ran
    steps = machine.loop_step * trips if block.depth < len(order) else 0.0
    tasks = 1
    launches = 0
    for k, loop in enumerate(order):
        if loop.kind == "parallel":
            tasks *= max(loop.extent, 1)
            launches = total // products[k + 1]
    used = _used(nest, tasks, machine.cores)
    fits = [within(nest, level) for level in machine.levels]
    if not block.fold and _crowd(nest, block.depth, machine) > 1.0:  # lines push each other out
        fits[0] = min(fits[0], _lane_loops(order))
    near, far, memory = (
        traffic(nest, k, machine, block.depth, cores) * ran / level.per_cycle
        for k, level, cores in zip(
            fits, machine.levels, (1, machine.cores, machine.cores), strict=True
        )
    )
    return _Cost(
        nest, block.compute * trips, block.loads * trips, (near, far, memory), (fits[0], fits[1]),
        steps, used, tasks, launches, block, ran, partial,
    )  # fmt: skip


def _used(nest: Nest, tasks: int, cores: int) -> float:
    """The mean number of cores that run a store, the iterations of its parallel loops as tasks."""
    used = tasks / -(-tasks // cores)
    place = next((k for k, x in reversed([*enumerate(nest.order)]) if x.kind == "parallel"), None)
    if place is None:
        return used
    shared, around = nest.order[place], {loop.index for loop in nest.order[place + 1 :]}
    tests = [test for test in nest.store.notes.tests if not test.skips]
    busy = busy_cores(tests, (shared.index, shared.extent), around, cores)
    return used if busy is None else min(busy, used)


def _depth(nest: Nest) -> int:
    """How many of the inner loops become straight code: unrolled, vectorized or short."""
    order, unroll = nest.order, nest.store.notes.unroll
    depth, steps = 0, 1
    while depth < len(order):
        loop = order[depth]
        short = steps * loop.extent <= unroll or loop.index in nest.straight
        if (loop.kind == "serial" and short) or loop.kind == "unroll":
            steps *= loop.extent
        elif loop.kind != "vectorized":
            break
        depth += 1
    return depth


def _fold(nest: Nest, depth: int) -> int:
    """The number of lanes in which the loop around the unrolled loops is reduced or scanned, 0 if
    it is not."""
    fold, order = nest.store.notes.fold, nest.order
    if not fold or depth >= len(order):
        return 0
    if nest.moves[0].steps[depth] is not None:  # each step has a result: a scan
        return fold if depth == 0 and order[0].extent >= fold else 0
    if any(loop.kind != "unroll" for loop in order[:depth]):
        return 0
    return fold if fold > 1 else order[depth].extent


def _block(nest: Nest, machine: MachineModel) -> _Block:
    """The unrolled and vectorized loops of a store, with their cycles."""
    order, lanes = nest.order, _lanes(nest, machine)
    depth = _depth(nest)
    fold = _fold(nest, depth)
    width = (fold or 1) * prod(max(x.extent, 1) for x in order[:depth] if x.kind == "vectorized")
    vectors = _instructions(width, lanes)  # that one vector statement takes
    points = nest.products[depth] * (fold or 1) / width  # executions of that statement
    written = nest.moves[0]
    scans = fold > 0 and written.steps[depth] is not None
    shifts = log2(lanes) if scans else 0  # of a vector, each combined with the vector
    operations = _operations(nest.store, machine) * (shifts + 1) + (shifts + 2 if scans else 0)
    instructions = vectors * (points * operations - _shared(nest, depth, points, machine))
    accumulators = _registers(written, order, depth, lanes) * (vectors if fold else 1)
    chain, last = 1.0, 0
    for k, loop in enumerate(order[:depth]):
        if written.steps[k] is None:
            chain, last = chain * loop.extent, k + 1
    reducing = nest.store.accesses[0].reads > 0
    held = 1.0 if scans else held_for(nest, depth, fold)
    tested, inner = deciding(nest), zip(order[:depth], written.steps, strict=False)
    again = prod(x.extent for x, step in inner if step is None and x.index in tested)
    gathers, loads, split, converts, masked = 0.0, 0.0, 0.0, 0.0, masked_lanes(nest, depth)
    for access in nest.outside:
        count = _registers(access, order, depth, lanes)
        if fold:
            moved = access.steps[depth]
            stride = moved if moved is not None else 0
            count *= vectors if moved is not None else 1
        else:
            stride = vector_stride(access, order, depth) or 0
        clamped = uneven(access, order, depth, machine.cores)
        walking, square = walks(access, order, depth), squared(nest, machine)
        turned, used = bool(nest.store.notes.turned), min(width, lanes)
        each, gathered = lane_loads(clamped, stride, used, masked, walking, turned, square)
        count, gathers = count * each, gathers + gathered
        count *= registers_apart(stride, used, access is written, masked and reducing)
        taken = count * (1.0 + reducing) * again / held if access is written else count
        converts += count * _conversion(nest.store, access)
        if splits(access, order, used, machine.line):
            taken *= 2.0
            split += taken
        loads += taken
    instructions += converts
    loads += len(nest.outside) - 1 if nest.store.notes.ahead else 0
    latency = machine.latency * (vectors + 2) if scans else 0.0  # the last result is loaded
    if not scans and reducing and (chain > 1 or held > 1):
        runs = chain * _one_by_one(nest, last, depth, instructions)
        latency = machine.latency * nest.store.facts.update * runs
    elif not fold:
        latency = machine.latency * _waits(nest, depth)
    arithmetic = max(instructions / machine.pipes, latency, 1 / machine.pipes)
    spilt = max(0.0, accumulators - machine.registers + 2)
    split /= max(loads, 1.0)
    loads = loads / machine.pipes + (2 * spilt if reducing else 0.0)
    waste = vectors * lanes / width if width > 1 else 0.0
    return _Block(
        depth, arithmetic, loads, latency, instructions, accumulators, chain, held, gathers,
        split, max(min(width, lanes), nest.store.facts.lanes), waste, fold,
    )  # fmt: skip


def _shared(nest: Nest, depth: int, points: float, machine: MachineModel) -> float:
    """The instructions of a block that LLVM leaves out: a declared instruction runs once for all
    iterations with the same operands."""
    saved = 0.0
    for op, buffers in nest.store.instructions:
        moves = [move for move in nest.moves if move.access.buffer in buffers]
        runs = 1
        for k, loop in enumerate(nest.order[:depth]):
            if loop.kind != "vectorized" and any(move.steps[k] is not None for move in moves):
                runs *= loop.extent
        saved += machine.costs.get(op.name, op.cost) * max(points - runs, 0.0)
    return saved


def _one_by_one(nest: Nest, inner: int, depth: int, instructions: float) -> float:
    """How many runs of the `inner` loops of a block wait for each other.

    The runs do not depend on each other, but the processor looks WINDOW instructions ahead only.
    """
    runs = 1
    for loop in nest.order[inner:depth]:
        runs *= loop.extent if loop.kind != "vectorized" else 1
    at_once = max(1.0, WINDOW * runs / max(instructions, 1.0))
    return runs / min(float(runs), at_once)


def _conversion(store: Store, access: Footprint) -> float:
    """The instructions that widen a vector of a read; 0 where a declared instruction takes it."""
    kind, result = access.access.buffer.dtype, store.accesses[0].buffer.dtype
    if store.facts.instructions or kind.bits >= result.bits:
        return 0.0
    return CONVERT.get(str(kind), 1.0)


def _waits(nest: Nest, depth: int) -> float:
    """How many sums one iteration around the block needs from what the iteration before stored."""
    if depth >= len(nest.order):
        return 0.0
    index, store = nest.order[depth].index, nest.store
    moved = {d for d, stride in enumerate(store.accesses[0].dims) if index in stride}
    return max((path for dims, path in store.facts.neighbours if dims <= moved), default=0.0)


def _registers(access: Footprint, order: list[Loop], depth: int, lanes: int) -> float:
    """The number of vector registers that hold the elements of an access in the block.

    Overlapping windows, such as those of neighbouring results of a convolution, share registers,
    unless their places are clamped: LLVM does not see that they overlap.
    """
    count, width, shortest = 1.0, 1, 0
    clamped = frozenset[int]().union(*access.access.uneven)
    for k, loop in enumerate(order[:depth]):
        step = access.steps[k]
        if step is None:
            continue
        if loop.kind == "vectorized":
            width *= loop.extent
        else:
            count *= loop.extent
            shortest = min(shortest, step) if shortest else step
    distinct = access.touched[depth] / width
    apart = any(x.index in clamped for x in order[:depth] if x.kind != "vectorized")
    if shortest >= width and not apart:  # otherwise vectors overlap in part, which saves nothing
        count = min(count, distinct)
    return max(count, 1.0) * _instructions(width, lanes)


def _instructions(width: int, lanes: int) -> int:
    """The instructions for a vector of `width` elements: LLVM divides what is left beside whole
    registers into powers of two, as 15 elements into 8, 4, 2 and 1."""
    return width // lanes + (width % lanes).bit_count()
