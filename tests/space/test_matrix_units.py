"""Matrix units of targets that this machine is not: AArch64's mmla, emulated, and AMX's tiles."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest
from emulation import Emulated, require_emulator

from metasched import Schedule, workloads
from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.kinds import default_modules, default_postprocs
from metasched.postproc import run_postprocs
from metasched.schedule.trace import Trace
from metasched.space.generate import SpaceGenerator
from metasched.target import Target

MMLA = Target.of("llvm -mtriple=aarch64-linux-gnu -mattr=+v8.6a -num-cores=2")
AMX = Target.of("llvm -mcpu=sapphirerapids -mtriple=x86_64-unknown-linux-gnu -num-cores=2")
# Each program with the instructions in its code: whole tiles, padded tiles, an epilogue.
ON_ARM = [
    ("gmm_u8s8s32", (1, 8, 16, 16), {"usmmla"}), ("gmm_s8s8s32", (2, 7, 9, 13), {"smmla"}),
    ("gmm_bf16", (1, 8, 8, 12), {"bfmmla"}), ("qgmm", (1, 9, 16, 17), {"usmmla"}),
]  # fmt: skip
ON_TILES = [
    ("gmm_s8s8s32", (1, 48, 33, 60), {"tdpbssd"}), ("gmm_bf16", (1, 32, 16, 64), {"tdpbf16ps"}),
    ("qgmm", (1, 16, 32, 64), {"tdpbusd", "tdpbsud"}),
]  # fmt: skip


def by_instruction(func: PrimFunc, target: Target) -> dict[str, Trace]:
    """For each instruction on tiles of both operands, the last design space that offers it."""
    found: dict[str, Trace] = {}
    for trace in SpaceGenerator(default_modules(target)).generate(func, target):
        found |= dict.fromkeys(re.findall(r'"(\w+\.[\w.]*matmul_\w+)"', str(trace)), trace)
    return found


def drawn(func: PrimFunc, trace: Trace, target: Target) -> PrimFunc:
    sch = Schedule(func, seed=1)
    trace.apply(sch, decisions="fresh")
    run_postprocs(sch, target, default_postprocs(target))
    return sch.func


def instructions(asm: str) -> set[str]:
    """The products of bytes and of bfloat16 in a program's assembly."""
    return set(re.findall(r"^\s+((?:u|s|us|bf)mmla|tdp\w+)\s", asm, re.MULTILINE))


def test_mmla_computes_the_products_of_bytes_and_of_bfloat16(tmp_path):
    """The space of the target offers them, the code holds them, and the code runs emulated."""
    require_emulator()
    emulated, checks = Emulated(tmp_path), []
    for name, shape, words in ON_ARM:
        workload = workloads.get(name)
        func, inputs = workload.func(shape), workload.inputs(shape, seed=1, integers=True)
        used = set()
        for trace in by_instruction(func, MMLA).values():
            output, way = workload.output(shape), drawn(func, trace, MMLA)
            used |= instructions(compile_func(way, MMLA).asm())
            emulated.add(way, *[a.copy() for a in inputs], output, target=MMLA)
            checks.append((name, output, workload.reference(shape, *inputs)))
        assert used == words, name
    emulated.run()
    for name, output, expected in checks:
        np.testing.assert_array_equal(output, expected, err_msg=name)


@pytest.mark.parametrize(("name", "shape", "words"), ON_TILES, ids=[o[0] for o in ON_TILES])
def test_tiles_compute_the_products_of_bytes_and_of_bfloat16(name, shape, words, tmp_path):
    """Each instruction is offered, assembled, and computes the reference in the interpreter."""
    workload = workloads.get(name)
    func, inputs = workload.func(shape), workload.inputs(shape, seed=1, integers=True)
    used = set()
    for number, trace in enumerate(by_instruction(func, AMX).values()):
        output, way = workload.output(shape), drawn(func, trace, AMX)
        run(way, *inputs, output)
        np.testing.assert_array_equal(output, workload.reference(shape, *inputs), err_msg=name)
        compiled = compile_func(way, AMX)
        words_here = instructions(compiled.asm())
        used |= words_here
        if shutil.which("objdump"):
            path = tmp_path / f"{number}.o"
            path.write_bytes(compiled.object)
            command = ["objdump", "-d", str(path)]
            code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert all(word in code for word in words_here)
    assert used == words
