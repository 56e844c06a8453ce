"""Features: what the cost model sees of a candidate, 130 numbers a store, one vector a program.

The numbers are those of the per-store features of Ansor and MetaSchedule (operation counts, loop
annotations, buffer accesses, allocation, loops; arithmetic intensity and the positions of annotated
loops ranked no better and are left out), read from the scheduled program without lowering it, with
what is degenerate there put right:

- a multiply-add counts as one;
- every store has its row, also the second to one buffer and those of constants;
- a buffer that a schedule keeps local has the strides and the size of its compacted form.

A program's vector holds, for each feature, the sum and the maximum over its stores of
log2(|x| + 1), and log2 of one more than the sum of |x|; then the numbers of `machine`.
"""

from __future__ import annotations

from math import prod

import numpy as np

from metasched.cost.machine import MACHINE_FEATURES, Nest, machine_features, work_of
from metasched.cost.reach import Memory, Reach
from metasched.cost.summary import KINDS, Loop, Store, Summary, summarize
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.func import IRModule, PrimFunc
from metasched.target import Target

FEATURE_VERSION = 4

BUFFERS = 5
THREADS = (
    "blockIdx.x", "blockIdx.y", "blockIdx.z",
    "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread",
)  # fmt: skip
ANNOTATIONS = ("vectorized", "unroll", "parallel")
ACCESS = (
    "read", "write", "read_write", "bytes", "unique_bytes", "lines", "unique_lines",
    "loop_reuse", "serial_reuse", "no_reuse", "reuse_iterations", "reuse_bytes", "reuse_count",
    "bytes_each", "unique_bytes_each", "lines_each", "unique_lines_each", "stride",
)  # fmt: skip

STORE_FEATURES: tuple[str, ...] = (
    *(f"float_{k}" for k in KINDS),
    *(f"int_{k}" for k in KINDS),
    "logic", "select",
    *(f"{a}.{what}" for a in ANNOTATIONS for what in ("number", "product", "inner")),
    "is_gpu", *THREADS,
    *(f"buffer{i}.{what}" for i in range(BUFFERS) for what in ACCESS),
    "alloc.bytes", "alloc.traffic", "alloc.outer", "alloc.inner",
    "iterations", "loops", "unroll_step",
)  # fmt: skip

FEATURE_NAMES: tuple[str, ...] = (
    *(f"{how}.{name}" for how in ("sum", "max", "total") for name in STORE_FEATURES),
    *(f"machine.{name}" for name in MACHINE_FEATURES),
)


def features(mod: IRModule | PrimFunc, target: Target, work: float = 0.0) -> np.ndarray:
    """The vector of a scheduled program, float32, as long as FEATURE_NAMES.

    Args:
        mod: the program after postprocs, not lowered.
        target: gives the length of a cache line, and whether it is a GPU.
        work: what `work` says of the program before it was scheduled, the measure of all cycles;
            0 to take it for the program's own.
    """
    rows, nests, sizes = _rows(mod, target)
    if not len(rows):
        return np.zeros(len(FEATURE_NAMES), np.float32)
    logs = np.log2(rows + 1.0)
    total = np.log2(rows.sum(axis=0) + 1.0)
    machine = machine_features(nests, sizes, target, work)
    parts = (logs.sum(axis=0), logs.max(axis=0), total, machine)
    return np.concatenate(parts).astype(np.float32)


def work(func: IRModule | PrimFunc, target: Target) -> float:
    """Cycles of one core for nothing but the arithmetic of a program."""
    return work_of(_rows(func, target)[1], target)


def store_features(mod: IRModule | PrimFunc, target: Target) -> np.ndarray:
    """One row of raw numbers for each store, columns as STORE_FEATURES."""
    return _rows(mod, target)[0]


def _rows(
    mod: IRModule | PrimFunc, target: Target
) -> tuple[np.ndarray, list[Nest], tuple[int, int]]:
    """The numbers of each store, its loops and accesses, bytes of arguments and temporaries."""
    summary = summarize(IRModule.of(mod))
    memory = _memory(summary)
    line, gpu = target.cache_line or 64, float(target.kind != "cpu")
    uses: dict[Buffer, int] = {}
    for store in summary.stores:
        for access in store.accesses:
            uses[access.buffer] = uses.get(access.buffer, 0) + 1
    nests: list[Nest] = []
    rows = [_row(store, summary, memory, uses, line, gpu, nests) for store in summary.stores]
    sizes = [0, 0]
    for buffer, home in memory.items():
        sizes[buffer not in summary.parameters] += home.elements * buffer.dtype.bytes
    table = np.array(rows, np.float64).reshape(len(rows), len(STORE_FEATURES))
    return table, nests, (sizes[0], sizes[1])


def _memory(summary: Summary) -> dict[Buffer, Memory]:
    """Every buffer, those of the program compacted to what is alive under their shared loops."""
    extents: dict[Buffer, list[int]] = {}
    for store in summary.stores:
        for access in store.accesses:
            buffer = access.buffer
            if buffer in summary.parameters:
                if buffer not in extents:
                    extents[buffer] = [_size(s) for s in buffer.shape]
                continue
            outer = {loop.index for loop in summary.shared[buffer]}
            need = extents.setdefault(buffer, [1] * len(access.dims))
            for d, motion in enumerate(access.dims):
                reach = 1 + sum(w for i, (_, w) in motion.items() if i not in outer)
                need[d] = max(need[d], min(reach, _size(buffer.shape[d])))
    return {buffer: _layout(buffer, sizes) for buffer, sizes in extents.items()}


def _layout(buffer: Buffer, extents: list[int]) -> Memory:
    return Memory(extents, [_size(s) for s in buffer.strides] if buffer.strides else None)


def _size(extent: object) -> int:
    value = as_int(extent)
    return 64 if value is None else max(value, 1)


def _row(
    store: Store,
    summary: Summary,
    memory: dict[Buffer, Memory],
    uses: dict[Buffer, int],
    line: int,
    gpu: float,
    nests: list[Nest],
) -> list[float]:
    """The numbers of one store; its loops and accesses are entered in `nests`."""
    order = store.loops[::-1]
    products = [1]
    for loop in order:
        products.append(products[-1] * max(loop.extent, 1))
    total = products[-1]
    moves = [Reach(access, memory[access.buffer], order) for access in store.accesses]
    traffic = [sum(m.bytes * m.touched[k] for m in moves) for k in range(len(products))]
    nests.append(Nest(store, order, products, moves, traffic))
    row: list[float] = [float(total * count) for count in store.counts]
    for kind in ANNOTATIONS:
        row += _annotated(order, kind)
    row.append(gpu)
    row += _threads(order)
    entries = []
    for m in moves:
        shared = len(order) - len(summary.shared[m.access.buffer])
        serial = shared if uses[m.access.buffer] > 1 and shared < len(order) else None
        entries.append(_access(m, order, products, traffic, serial, uses, line))
    entries.sort(key=lambda e: (-e[5], -e[3]))
    for entry in entries[:BUFFERS]:
        row += entry
    row += [0.0] * (len(ACCESS) * max(BUFFERS - len(entries), 0))
    written = store.written.buffer
    home = memory[written]
    outer = 1
    for loop in () if written in summary.parameters else summary.shared[written]:
        outer *= max(loop.extent, 1)
    row += (moves[0].bytes * home.elements, home.elements * outer, outer, total / outer)
    row += (total, len(order), store.notes.unroll)
    return row


def _access(
    moves: Reach,
    order: list[Loop],
    products: list[int],
    traffic: list[int],
    serial: int | None,
    uses: dict[Buffer, int],
    line: int,
) -> list[float]:
    """The 18 numbers of one buffer of a store, in the order of ACCESS."""
    access, steps, size = moves.access, moves.steps, moves.bytes
    total, n = products[-1], len(order)
    mover = next((k for k in range(n) if steps[k] is not None), n)
    stride = steps[mover] or 0 if mover < n else 0
    count = access.reads + access.writes
    unique = size * moves.touched[n]
    lines = max(1.0, total / products[mover] * min(1.0, stride * size / line))
    unique_lines = max(1.0, unique / min(line, size * moves.run[n]))
    still = next((k for k in range(n) if steps[k] is None), None)
    if still is not None and (serial is None or still <= serial):
        reuse = (1.0, 0.0, 0.0, float(products[still]), float(traffic[still]))
        times = float(order[still].extent)
    elif serial is not None:
        reuse = (0.0, 1.0, 0.0, float(products[serial]), float(traffic[serial]))
        times = float(uses[access.buffer] - 1)
    else:
        reuse, times = (0.0, 0.0, 1.0, 0.0, 0.0), 0.0
    moved = float(size * total * count)
    share = 1.0 / times if times else 2.0
    return [
        float(access.reads > 0 and not access.writes),
        float(access.writes > 0 and not access.reads),
        float(access.reads > 0 and access.writes > 0),
        moved, unique, lines, unique_lines, *reuse, times,
        moved * share, unique * share, lines * share, unique_lines * share,
        float(stride if mover == 0 else 0),
    ]  # fmt: skip


def _annotated(order: list[Loop], kind: str) -> list[float]:
    """Number, product and innermost extent of the loops of one kind."""
    chosen = [loop.extent for loop in order if loop.kind == kind]
    return [float(len(chosen)), float(prod(chosen)), float(chosen[0])] if chosen else [0.0] * 3


def _threads(order: list[Loop]) -> list[float]:
    row = [1.0] * len(THREADS)
    for loop in order:
        if loop.thread is not None:
            name = "vthread" if loop.thread.startswith("vthread") else loop.thread
            if name in THREADS:
                row[THREADS.index(name)] = float(loop.extent)
    return row
