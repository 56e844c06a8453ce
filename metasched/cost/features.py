"""Features: the numbers that describe a candidate to the cost model, 28 for each store, one vector
for each program.

The numbers are per-store features of Ansor and MetaSchedule: operation counts, loop annotations and
loops. They are read from the scheduled program without lowering it, with two corrections. A
multiply-add counts as one operation. Every store has a row, even a second store to a buffer and a
store of a constant. Four groups of the published features are left out: the 18 numbers of each
buffer, arithmetic intensity, allocation, and the positions of annotated loops. With them the share
of correctly ordered pairs of held-out tasks is 0.004 higher.

A program's vector holds three numbers for each feature x: over all stores, the sum and the maximum
of log2(|x| + 1), and log2(sum of |x| + 1). The numbers of `machine` follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from metasched.analysis.sizes import module_at_sizes
from metasched.cost.footprint import Footprint, Memory
from metasched.cost.machine import MACHINE_FEATURES, machine_features, work_of
from metasched.cost.nest import Nest
from metasched.cost.operations import KINDS
from metasched.cost.summary import Loop, Store, Summary, TouchedBuffer, summarize
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.func import IRModule, PrimFunc
from metasched.target import Target
from metasched.target.machine import MachineModel

FEATURE_VERSION = 5

# Steps up to which LLVM makes straight code of loops around a line or two.
STRAIGHT = 32

ANNOTATIONS = ("vectorized", "unroll", "parallel")
STORE_FEATURES: tuple[str, ...] = (
    *(f"float_{k}" for k in KINDS),
    *(f"int_{k}" for k in KINDS),
    "logic", "select",
    *(f"{a}.{what}" for a in ANNOTATIONS for what in ("number", "product", "inner")),
    "iterations", "loops", "unroll_step",
)  # fmt: skip

FEATURE_NAMES: tuple[str, ...] = (
    *(f"{how}.{name}" for how in ("sum", "max", "total") for name in STORE_FEATURES),
    *(f"machine.{name}" for name in MACHINE_FEATURES),
)


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """What a cost model sees of the candidates for one kind of target.

    Attributes:
        name: the name of the set; models trained on another set are refused.
        version: raised when a number changes its meaning.
        names: the names of the numbers, in their order.
        vector: `(program after postprocs, target, work) -> float32 vector`, as long as `names`.
        work: `(unscheduled program, target) -> ` the unit of all times, which `vector` takes.
    """

    name: str
    version: int
    names: tuple[str, ...]
    vector: Callable[[IRModule | PrimFunc, Target, float], np.ndarray]
    work: Callable[[IRModule | PrimFunc, Target], float]


def features(mod: IRModule | PrimFunc, target: Target, work: float = 0.0) -> np.ndarray:
    """The vector of a scheduled program, float32, as long as FEATURE_NAMES.

    Args:
        mod: the program after postprocs, not lowered.
        target: gives caches, vectors and cores.
        work: the result of `work` for the unscheduled program, the unit of all cycles; 0 to compute
            it from `mod`.
    """
    machine = target.machine_model()
    rows, nests, sizes = _rows(mod, machine)
    if not len(rows):
        return np.zeros(len(FEATURE_NAMES), np.float32)
    logs = np.log2(rows + 1.0)
    total = np.log2(np.add.reduce(rows) + 1.0)
    estimates = machine_features(nests, sizes, machine, work)
    parts = (np.add.reduce(logs), np.maximum.reduce(logs), total, estimates)
    return np.concatenate(parts).astype(np.float32)


def work(func: IRModule | PrimFunc, target: Target) -> float:
    """The cycles of one core for the arithmetic of a program alone."""
    machine = target.machine_model()
    return work_of(_rows(func, machine)[1], machine)


CPU_FEATURE_SET = FeatureSet("cpu", FEATURE_VERSION, FEATURE_NAMES, features, work)


def store_features(mod: IRModule | PrimFunc, target: Target) -> np.ndarray:
    """One row of raw numbers for each store, with the columns STORE_FEATURES."""
    return _rows(mod, target.machine_model())[0]


def _rows(
    mod: IRModule | PrimFunc, machine: MachineModel
) -> tuple[np.ndarray, list[Nest], tuple[int, int]]:
    """The numbers of each store, its loops and accesses, bytes of arguments and temporaries."""
    summary = summarize(module_at_sizes(IRModule.of(mod)))
    memory = _memory(summary)
    kept = _kept(summary, memory, machine)
    nests = [_nest(store, memory, kept, summary, machine) for store in summary.stores]
    sizes = [0, 0]
    for buffer in memory.keys() - kept:
        size = memory[buffer].elements * buffer.dtype.bytes
        sizes[buffer not in summary.parameters] += size
    rows = [_row(nest) for nest in nests]
    table = np.array(rows, np.float64).reshape(len(rows), len(STORE_FEATURES))
    return table, nests, (sizes[0], sizes[1])


def _memory(summary: Summary) -> dict[Buffer, Memory]:
    """The memory of every buffer; a temporary shrinks to the part that is alive under its shared
    loops."""
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
            for d, stride in enumerate(access.dims):
                width = 1 + sum(w for i, (_, w) in stride.items() if i not in outer)
                need[d] = max(need[d], min(width, _size(buffer.shape[d])))
    return {
        buffer: Memory(sizes, [_size(s) for s in buffer.strides] if buffer.strides else None)
        for buffer, sizes in extents.items()
    }


def _size(extent: object) -> int:
    value = as_int(extent)
    return 64 if value is None else max(value, 1)


def _kept(summary: Summary, memory: dict[Buffer, Memory], machine: MachineModel) -> set[Buffer]:
    """The temporaries that live in registers: small enough for the registers, and moved only by
    loops that become straight code."""
    size = machine.registers * machine.vector_bytes
    kept = {b for b, home in memory.items() if home.elements * b.dtype.bytes <= size}
    for store in summary.stores:
        for access in store.accesses:
            if prod(loop.extent for loop in _moving(store, access, summary)) > STRAIGHT:
                kept.discard(access.buffer)
    return kept - summary.parameters


def _moving(store: Store, access: TouchedBuffer, summary: Summary) -> list[Loop]:
    """The loops that move an access, without unrolled and vectorized loops, and without the loops
    that all uses of the buffer share."""
    loops = store.loops[len(summary.shared[access.buffer]) :]
    kinds = ("unroll", "vectorized")
    return [x for x in loops if x.kind not in kinds and any(x.index in d for d in access.dims)]


def _nest(
    store: Store,
    memory: dict[Buffer, Memory],
    kept: set[Buffer],
    summary: Summary,
    machine: MachineModel,
) -> Nest:
    """A store's loops, the inner first, and what its accesses touch under them."""
    order = _executed(store)
    products = [1]
    for loop in order:
        products.append(products[-1] * max(loop.extent, 1))
    ahead = store.notes.ahead > 0
    moves = [Footprint(a, memory[a.buffer], order, ahead and n > 0, machine)
             for n, a in enumerate(store.accesses)]  # fmt: skip
    outside = [m for m in moves if m.access.buffer not in kept]
    volumes = [int(sum(m.lines(k) * machine.line for m in outside)) for k in range(len(products))]
    held = [access for access in store.accesses if access.buffer in kept]
    straight = {loop.index for access in held for loop in _moving(store, access, summary)}
    return Nest(store, order, products, moves, outside, volumes, straight)


def _executed(store: Store) -> list[Loop]:
    """The loops around a store, the inner first: lanes run inside all serial loops, since the
    lowering turns each statement under a vectorized loop into vectors."""
    inner_first = store.loops[::-1]
    return sorted(inner_first, key=lambda loop: loop.kind != "vectorized")


def _row(nest: Nest) -> list[float]:
    """The numbers of one store."""
    total, store = nest.products[-1], nest.store
    row = [float(total * count) for count in store.counts]
    for kind in ANNOTATIONS:
        row += _annotated(nest.order, kind)
    return [*row, total, len(nest.order), store.notes.unroll]


def _annotated(order: list[Loop], kind: str) -> list[float]:
    """Number, product and innermost extent of the loops of one kind."""
    chosen = [loop.extent for loop in order if loop.kind == kind]
    return [float(len(chosen)), float(prod(chosen)), float(chosen[0])] if chosen else [0.0] * 3
