"""How many samples of the design spaces with tensor instructions survive the postprocs.

    python -m tests.space.survival --draws 20 [--family sdot] [--program odd] [--seconds 600]

Each line is a family of instructions on a program: its design spaces with an instruction, the share
of samples that survive in all spaces and in the worst one, and why most samples are rejected. The
135 lines are some 400 spaces; a sample takes about 40 ms, so 20 draws take 6 minutes.
"""

from __future__ import annotations

import argparse
import collections
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from metasched.analysis.block import AUTO_TENSORIZE
from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.kinds import default_modules, default_postprocs
from metasched.postproc import run_postprocs
from metasched.schedule.rng import derive_seed
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.target import Target
from metasched.workloads import get

ARM = "llvm -mtriple=aarch64-linux-gnu -num-cores=2 -mattr="
AMX = "llvm -mcpu=sapphirerapids -mtriple=x86_64-unknown-linux-gnu -num-cores=2"
U8, I8, I32, BF16, F32 = "uint8", "int8", "int32", "bfloat16", "float32"


@dataclass(frozen=True)
class Family:
    """Instructions of a target on operands of some types.

    Attributes:
        target: a string that `Target.of` takes.
        kinds: the types of A, of B and of the sums.
        prefix: what the names of the instructions begin with.
    """

    target: str
    kinds: tuple[str, str, str]
    prefix: str


FAMILIES = {
    "vnni-512": Family("llvm -mcpu=znver4 -num-cores=2", (U8, I8, I32), "x86.vnni"),
    "vnni-512-s8": Family("llvm -mcpu=znver4 -num-cores=2", (I8, I8, I32), "x86.vnni"),
    "vnni-256": Family("llvm -mcpu=alderlake -num-cores=2", (U8, I8, I32), "x86."),
    "maddubs": Family("llvm -mcpu=haswell -num-cores=2", (U8, I8, I32), "x86.avx2"),
    "maddwd": Family("llvm -mcpu=haswell -num-cores=2", (I8, I8, I32), "x86.avx2"),
    "bf16-512": Family("llvm -mcpu=znver4 -num-cores=2", (BF16, BF16, F32), "x86.avx512bf16"),
    "amx-u8s8": Family(AMX, (U8, I8, I32), "amx."),
    "amx-s8s8": Family(AMX, (I8, I8, I32), "amx."),
    "amx-bf16": Family(AMX, (BF16, BF16, F32), "amx."),
    "sdot": Family(ARM + "+v8.4a,+dotprod", (I8, I8, I32), "arm.dotprod"),
    "udot": Family(ARM + "+v8.4a,+dotprod", (U8, U8, I32), "arm.dotprod"),
    "smmla": Family(ARM + "+v8.6a", (I8, I8, I32), "arm.i8mm.matmul"),
    "ummla": Family(ARM + "+v8.6a", (U8, U8, I32), "arm.i8mm.matmul"),
    "usmmla": Family(ARM + "+v8.6a", (U8, I8, I32), "arm.i8mm.matmul"),
    "bfmmla": Family(ARM + "+v8.6a", (BF16, BF16, F32), "arm.bf16.matmul"),
}


def product(kinds: tuple[str, str, str], size: tuple[int, int, int, int]) -> PrimFunc:
    """C[b, i, j] = sum of A[b, i, k] * B[b, k, j]; `size` is b, i, j, k."""
    a, b, c = kinds
    batch, rows, columns, depth = size

    @T.prim_func
    def product(
        A: T.Buffer((batch, rows, depth), a),
        B: T.Buffer((batch, depth, columns), b),
        C: T.Buffer((batch, rows, columns), c),
    ):
        for n, i, j, k in T.grid(batch, rows, columns, depth):
            with T.block("C"):
                vn, vi, vj, vk = T.axis.remap("SSSR", [n, i, j, k])
                with T.init():
                    C[vn, vi, vj] = T.cast(0, c)
                C[vn, vi, vj] += T.cast(A[vn, vi, vk], c) * T.cast(B[vn, vk, vj], c)

    return product


def finished(kinds: tuple[str, str, str], size: tuple[int, int, int, int]) -> PrimFunc:
    """The product, scaled for each column, with a bias, and rounded to A's type."""
    a, b, c = kinds
    batch, rows, columns, depth = size
    low, high = (0, 255) if a == U8 else (-128, 127)

    @T.prim_func
    def finished(
        A: T.Buffer((batch, rows, depth), a),
        B: T.Buffer((depth, columns), b),
        bias: T.Buffer((columns,), c),
        scale: T.Buffer((columns,), F32),
        D: T.Buffer((batch, rows, columns), a),
    ):
        C = T.alloc_buffer((batch, rows, columns), c)
        for n, i, j, k in T.grid(batch, rows, columns, depth):
            with T.block("C"):
                vn, vi, vj, vk = T.axis.remap("SSSR", [n, i, j, k])
                with T.init():
                    C[vn, vi, vj] = T.cast(0, c)
                C[vn, vi, vj] += T.cast(A[vn, vi, vk], c) * T.cast(B[vk, vj], c)
        for n, i, j in T.grid(batch, rows, columns):
            with T.block("D"):
                vn, vi, vj = T.axis.remap("SSS", [n, i, j])
                D[vn, vi, vj] = T.cast(
                    T.min(
                        T.max(
                            T.nearbyint(T.cast(C[vn, vi, vj] + bias[vj], F32) * scale[vj]),
                            T.float32(low),
                        ),
                        T.float32(high),
                    ),
                    a,
                )

    return finished


def convolution(kinds: tuple[str, str, str], size: tuple[int, int, int, int]) -> PrimFunc:
    """A convolution of 3 x 3 over images; `size` is images, height and width, outputs, inputs."""
    a, b, c = kinds
    images, side, outputs, inputs = size

    @T.prim_func
    def convolution(
        A: T.Buffer((images, side + 2, side + 2, inputs), a),
        B: T.Buffer((3, 3, inputs, outputs), b),
        C: T.Buffer((images, side, side, outputs), c),
    ):
        for n, y, x, o, p, q, i in T.grid(images, side, side, outputs, 3, 3, inputs):
            with T.block("C"):
                vn, vy, vx, vo, vp, vq, vi = T.axis.remap("SSSSRRR", [n, y, x, o, p, q, i])
                with T.init():
                    C[vn, vy, vx, vo] = T.cast(0, c)
                C[vn, vy, vx, vo] += T.cast(A[vn, vy + vp, vx + vq, vi], c) * T.cast(
                    B[vp, vq, vi, vo], c
                )

    return convolution


def quantized(kinds: tuple[str, str, str], size: tuple[int, ...]) -> PrimFunc | None:
    """A convolution of quantized bytes with zero points, or none for other types."""
    return get("qc2d").func(size) if kinds == (U8, I8, I32) else None


PROGRAMS = {
    "plain": (product, (1, 256, 256, 256)),
    "deep": (product, (1, 512, 512, 1024)),
    "row": (product, (1, 1, 1024, 1024)),
    "few": (product, (1, 17, 333, 511)),
    "epilogue": (finished, (1, 128, 256, 512)),
    "conv": (convolution, (1, 28, 64, 32)),
    "odd": (product, (1, 127, 131, 257)),
    "batch": (product, (12, 128, 64, 128)),
    "quantized": (quantized, (1, 14, 14, 64, 64, 3, 1, 1)),
}


def tensor_spaces(func: PrimFunc, target: Target, prefix: str) -> list[Trace]:
    """The design spaces that use an instruction whose name begins with `prefix`."""
    generator = SpaceGenerator(default_modules(target))
    found = generator.generate(func, target)
    assert not generator.failures
    mark = f'"{AUTO_TENSORIZE}"'
    lines = ((trace, str(trace).splitlines()) for trace in found)
    return [t for t, text in lines if any(mark in line and prefix in line for line in text)]


def survivors(
    func: PrimFunc, trace: Trace, target: Target, draws: int
) -> tuple[int, collections.Counter[str]]:
    """How many samples survive, and how often each step rejects one."""
    kept, why = 0, collections.Counter[str]()
    base = Schedule(func, seed=0, check=False)
    for seed in range(draws):
        sch = base.copy()
        sch.state.rng.state = derive_seed(seed)
        try:
            trace.apply(sch, decisions="fresh")
            run_postprocs(sch, target, default_postprocs(target))
        except ScheduleError as error:
            why[f"{error.primitive}: {error.reason}"] += 1
        else:
            kept += 1
    return kept, why


def rows(
    families: list[str], programs: list[str], draws: int
) -> Iterator[tuple[str, str, list[tuple[int, collections.Counter[str]]]]]:
    """For each family on each program what `survivors` gives for each design space."""
    for family in families:
        f = FAMILIES[family]
        target = Target.of(f.target)
        for name in programs:
            make, size = PROGRAMS[name]
            func = make(f.kinds, size)
            if func is None:
                continue
            spaces = tensor_spaces(func, target, f.prefix)
            yield family, name, [survivors(func, space, target, draws) for space in spaces]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="time after which to stop")
    parser.add_argument("--family", action="append", choices=[*FAMILIES])
    parser.add_argument("--program", action="append", choices=[*PROGRAMS])
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    for family, name, found in rows(
        args.family or [*FAMILIES], args.program or [*PROGRAMS], args.draws
    ):
        shares = [kept / args.draws for kept, _ in found]
        why = sum((w for _, w in found), collections.Counter[str]())
        share = f"{sum(shares) / len(shares):5.0%} worst {min(shares):4.0%}" if shares else "  none"
        print(f"{family:12} {name:9} {len(found):2} spaces {share}  {dict(why.most_common(3))}",
              flush=True)  # fmt: skip
        if time.monotonic() > end:
            print("stopped: the time is over")
            break


if __name__ == "__main__":
    main()
