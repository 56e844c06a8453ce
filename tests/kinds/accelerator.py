"""A plug-in that brings a new kind of machine: a simulated matrix engine with a scratchpad.

The engine computes an 8x8x8 product in 8 cycles, from a scratchpad that a program fills. Everything
that metasched must know of it stands in this file: the target, the memory, the instruction, the
design space, what is rejected, what the cost model sees, and a clock that counts cycles, by which
the local runner times its programs. Tune for it with
`metasched tune FILE.py:FUNCTION --plugin accelerator.py --target "engine -scratch=4096"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import metasched as ms
from metasched.codegen.signature import BufferArg, Signature
from metasched.cost.features import FeatureSet
from metasched.errors import ScheduleError
from metasched.ir import interp
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import as_int
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.scopes import register_scope
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, Stmt
from metasched.ir.visit import walk, walk_stmts
from metasched.kinds import SPACES, SpaceOf
from metasched.measure.candidate import single_function
from metasched.measure.local import LocalRunner
from metasched.measure.settings import MeasureOptions
from metasched.mutate.tile_size import MutateTileSize
from metasched.runtime.devices import DEVICES, ArrayLayout, DeviceOf, ProgramsOf
from metasched.schedule.tensorize_mapping import tile_with_tensor_intrin
from metasched.script import tir as T
from metasched.target import Target, target_kind

SCRATCH = "engine.scratch"
INSTRUCTION = "engine.cycles"
"""Annotation of a block that one instruction executes: its cycles."""
PRODUCT = "engine.product_8x8x8"

register_scope(SCRATCH)


@target_kind("engine", override=True)
@dataclass(frozen=True, slots=True)
class Engine(Target):
    """The matrix engine.

    Attributes:
        scratch: bytes of the scratchpad.
        memory: cycles of one access to main memory.
        hertz: cycles of a second.
    """

    kind: str = "engine"
    mcpu: str = "engine"
    num_cores: int = 0
    scratch: int = 4096
    memory: int = 20
    hertz: int = 1_000_000_000

    def here(self) -> str | None:
        """The simulator runs anywhere."""
        return None


@T.prim_func
def product_desc(
    A: T.Buffer((8, 8), "float32", offset_factor=1, scope=SCRATCH),
    B: T.Buffer((8, 8), "float32", offset_factor=1, scope=SCRATCH),
    C: T.Buffer((8, 8), "float32", offset_factor=1),
) -> None:
    with T.block("root"):
        T.reads(C[0:8, 0:8], A[0:8, 0:8], B[0:8, 0:8])
        T.writes(C[0:8, 0:8])
        for i, j, k in T.grid(8, 8, 8):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def product_impl(
    A: T.Buffer((8, 8), "float32", offset_factor=1, strides=[T.int32(), 1], scope=SCRATCH),
    B: T.Buffer((8, 8), "float32", offset_factor=1, strides=[T.int32(), 1], scope=SCRATCH),
    C: T.Buffer((8, 8), "float32", offset_factor=1, strides=[T.int32(), 1]),
) -> None:
    with T.block("root"):
        T.reads(C[0:8, 0:8], A[0:8, 0:8], B[0:8, 0:8])
        T.writes(C[0:8, 0:8])
        T.block_attr({INSTRUCTION: 8})
        for i, j, k in T.grid(8, 8, 8):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


ms.TensorIntrin.register(PRODUCT, product_desc, product_impl, override=True)


@ms.schedule_module("engine.product", targets=["engine"], override=True)
def product(sch: ms.Schedule, block: ms.BlockRV) -> list[ms.Schedule]:
    """Offer a block as it is, and with the instruction, its operands in the scratchpad."""
    plain, name = sch.copy(), sch.get(block).name
    tile = tile_with_tensor_intrin(sch, name, PRODUCT)
    if tile is None:
        return [plain]
    target = sch.get_block(name)
    io, jo, ko, *_ = sch.get_loops(target)
    jt, ji = sch.split(jo, sch.sample_perfect_tile(jo, n=2, max_innermost_factor=8))
    kt, ki = sch.split(ko, sch.sample_perfect_tile(ko, n=2, max_innermost_factor=8))
    sch.reorder(jt, kt, io, ji, ki)
    for operand, place in enumerate((io, kt)):  # rows are brought for each io, columns for each kt
        sch.compute_at(sch.cache_read(target, operand, SCRATCH), place)
    sch.decompose_reduction(target, kt)
    sch.tensorize(tile, PRODUCT)
    return [plain, sch]


@dataclass(frozen=True, slots=True)
class LimitScratch:
    """Rejects what does not fit into the scratchpad. Reason: `scratch-too-small`."""

    name: str = "engine.limit_scratch"

    def __call__(self, sch: ms.Schedule, target: Target) -> None:
        assert isinstance(target, Engine)
        used = scratch_bytes(sch.mod)
        if used > target.scratch:
            raise ScheduleError(
                self.name, "scratch-too-small",
                f"the program keeps {used} bytes in a scratchpad of {target.scratch}",
            )  # fmt: skip


def scratch_bytes(mod: IRModule) -> int:
    """What a program keeps in the scratchpad: what each fill of one of its buffers writes."""
    fills: dict[Buffer, int] = {}

    def visit(stmt: Stmt, size: int) -> None:
        if isinstance(stmt, For):
            alone = isinstance(stmt.body, For | BlockRealize)
            size = size * (as_int(stmt.extent) or 1) if alone else 1
        for write in stmt.block.writes if isinstance(stmt, BlockRealize) else ():
            if write.buffer.scope == SCRATCH:
                fills[write.buffer] = size * write.buffer.dtype.bytes
        for below in stmt.stmts:
            visit(below, size)

    visit(single_function(mod).body, 1)
    return sum(fills.values())


def cycles(mod: IRModule, target: Target) -> float:
    """The cycles of a program on the engine, statement by statement."""
    assert isinstance(target, Engine)

    def access(buffer: Buffer) -> int:
        return 1 if buffer.scope == SCRATCH else target.memory

    def count(stmt: Stmt) -> float:
        if isinstance(stmt, BlockRealize):
            block = stmt.block
            if INSTRUCTION in block.annotations:
                return float(block.annotations[INSTRUCTION])
            return sum(count(s) for s in block.stmts)
        if isinstance(stmt, For):
            return (as_int(stmt.extent) or 1) * (1.0 + count(stmt.body))
        if isinstance(stmt, BufferStore):
            loads = [n for n in walk(stmt) if isinstance(n, BufferLoad)]
            return access(stmt.buffer) + float(sum(access(n.buffer) for n in loads))
        return sum(count(s) for s in stmt.stmts)

    return count(single_function(mod).body)


def _vector(mod: IRModule | PrimFunc, target: Target, work: float) -> np.ndarray:
    module = IRModule.of(mod)
    instructions = sum(
        isinstance(s, Block) and INSTRUCTION in s.annotations
        for s in walk_stmts(single_function(module).body)
    )
    estimate = math.log2(cycles(module, target) / max(work, 1.0))
    used = math.log2(1 + scratch_bytes(module))
    return np.array([estimate, used, instructions], np.float32)


FEATURES = FeatureSet(
    "engine", 1, ("cycles", "scratch", "instructions"), _vector,
    lambda mod, target: cycles(IRModule.of(mod), target),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Simulated:
    """A program as worker processes get it: its function, parameters and seconds of a call."""

    func: PrimFunc
    seconds: float
    signature: Signature
    kind: str = "engine"


def compiled(func: PrimFunc, target: Target, parallel: bool = True) -> Simulated:
    """The interpreter runs a program, and its cycles are counted."""
    assert isinstance(target, Engine)
    stores = {s.buffer for s in walk_stmts(func.body) if isinstance(s, BufferStore)}
    params = [
        BufferArg(p.name, str(p.dtype), shape, strides(shape), written=p in stores)
        for p in func.params
        if isinstance(p, Buffer) and (shape := p.constant_shape())
    ]
    seconds = cycles(IRModule.of(func), target) / target.hertz
    return Simulated(func, seconds, Signature("simulated", tuple(params)))


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of an array in rows."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


class Loaded:
    """A simulated program that is called: the engine's clock, not this machine's, times it."""

    def __init__(self, program: Simulated, serial: bool) -> None:
        self.program = program

    def call(self, values: Sequence[np.ndarray]) -> tuple[int, float]:
        interp.run(self.program.func, *values)
        return 0, self.program.seconds

    def repeat(self, values: Sequence[np.ndarray]) -> Callable[[int], float]:
        return lambda calls: calls * self.program.seconds


class EngineMemory:
    """Arrays of NumPy: the interpreter refuses what is outside of them by itself."""

    where = usual = "main memory"

    def __init__(self, arrays: Sequence[ArrayLayout]) -> None:
        self.handles = [np.zeros(a.shape, a.dtype) for a in arrays]

    def write(self, number: int, values: np.ndarray) -> None:
        self.handles[number][...] = values

    def read(self, number: int) -> np.ndarray:
        return self.handles[number]

    def poison(self, number: int) -> None:
        self.handles[number].fill(np.nan)

    def reset_zones(self) -> None:
        """There are none."""

    def breach(self) -> str:
        return ""


def _interpreted(func: PrimFunc, target: Target, name: str, *_: Any, **__: Any) -> Callable:
    """A kernel for the engine: the interpreter."""
    return lambda *arrays: interp.run(func, *arrays)


SPACES.register(
    "engine",
    SpaceOf(
        modules=lambda target: (),
        postprocs=lambda target: (LimitScratch(),),
        mutators=lambda target: ((MutateTileSize(), 1.0),),
        default=lambda func, target: ms.Schedule(func, seed=0).trace,
        features=FEATURES,
        runner=lambda func, target, settings, by_default: LocalRunner(
            func, target, MeasureOptions.of(settings, cores=1), by_default
        ),
    ),
    override=True,
)
DEVICES.register(
    "engine",
    DeviceOf(build=_interpreted, programs=ProgramsOf(compiled, Loaded, EngineMemory)),
    override=True,
)
