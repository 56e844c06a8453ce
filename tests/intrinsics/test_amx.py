"""AMX: each intrinsic in the interpreter, its code, and its numbers where a machine has tiles."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest
from codegen.kernels import call

from metasched import Schedule, TensorIntrin, build, hardware
from metasched.codegen.compile import compile_func
from metasched.ir.interp import run
from metasched.script import tir as T
from metasched.target import Target

NAMES = [name for name in TensorIntrin.names() if name.startswith("amx.")]
HERE = Target.native()
AMX = Target.of("llvm -mcpu=sapphirerapids -mtriple=x86_64-unknown-linux-gnu")
MNEMONICS = {
    "u8i8": "tdpbusd", "i8i8": "tdpbssd", "i8u8": "tdpbsud", "u8u8": "tdpbuud",
    "bf16": "tdpbf16ps",
}  # fmt: skip


def product(name: str, steps: int = 3) -> Schedule:
    """A matrix product of `steps` tiles in depth, whose operands lie in wider rows."""
    a, b, c = TensorIntrin.get(name).desc.buffers
    (_, depth), group = a.constant_shape(), b.constant_shape()[2]
    wide = c.dtype

    @T.prim_func
    def product(
        A: T.Buffer((16, steps * depth), a.dtype),
        B: T.Buffer((steps * 16, 32, group), b.dtype),
        C: T.Buffer((2, 16, 16), wide),
    ):
        for n, s, i, j, k, g in T.grid(2, steps, 16, 16, 16, group):
            with T.block("C"):
                vn, vs, vi, vj, vk, vg = T.axis.remap("SRSSRR", [n, s, i, j, k, g])
                with T.init():
                    C[vn, vi, vj] = T.cast(0, wide)
                C[vn, vi, vj] = C[vn, vi, vj] + T.cast(
                    A[vi, vs * depth + vk * group + vg], wide
                ) * T.cast(B[vs * 16 + vk, vn * 16 + vj, vg], wide)

    sch = Schedule(product)
    loops = sch.get_loops("C")
    sch.decompose_reduction("C", loops[1])
    sch.tensorize(loops[2], name)
    return sch


def inputs(sch: Schedule) -> list[np.ndarray]:
    """Bytes over their whole range, the extremes among them; small whole numbers of bfloat16."""
    draw, found = np.random.default_rng(0), []
    for buffer in sch.func.buffers:
        kind = buffer.dtype.numpy
        if buffer.dtype.is_int and buffer.dtype.bits == 8:
            r = np.iinfo(kind)
            values = draw.integers(r.min, r.max, buffer.constant_shape(), kind, endpoint=True)
            values.reshape(-1)[:128] = np.tile([r.min, r.max], 64)
        else:
            values = draw.integers(-4, 5, buffer.constant_shape()).astype(kind)
        found.append(values)
    return found


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    group = b.shape[2]
    rows = a.astype(np.float64)
    columns = b.astype(np.float64).reshape(-1, 2, 16, group).transpose(1, 0, 3, 2)
    return (rows @ columns.reshape(2, -1, 16)).astype(c.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_computes_what_is_described(name):
    sch = product(name)
    a, b, c = inputs(sch)
    run(sch.func, a, b, c)
    np.testing.assert_array_equal(c, expected(a, b, c))


@pytest.mark.parametrize("name", NAMES)
def test_code_holds_the_instruction(name, tmp_path):
    """In the assembly and in the object; the sum stays in a tile through the whole reduction."""
    word = MNEMONICS[name.rpartition("_")[2][:4]]
    compiled = compile_func(product(name).func, AMX)
    asm = compiled.asm()
    assert re.search(rf"{word}\t%tmm\d, %tmm\d, %tmm\d", asm) and "ldtilecfg" in asm
    body = asm[: asm.index(word)]
    assert "tileloadd\t(%" in body and "vpinsr" not in asm
    if shutil.which("objdump"):
        (tmp_path / "k.o").write_bytes(compiled.object)
        command = ["objdump", "-d", str(tmp_path / "k.o")]
        assert word in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_machine_code_computes_what_is_described(name):
    """Executed where this machine has tiles; elsewhere skipped, and said so."""
    lacks = TensorIntrin.get(name).lacks(HERE.features)
    if lacks:
        pytest.skip(f"code with tiles is not run: this machine lacks {lacks}")
    sch = product(name)
    a, b, c = inputs(sch)
    build(sch.mod)(a, b, c)
    np.testing.assert_array_equal(c, expected(a, b, c))


def test_a_process_without_the_permission_is_told():
    """No instruction on tiles runs before the system allows it: the kernel returns a failure."""
    if HERE.arch != "x86_64" or HERE.has("amx-tile"):
        pytest.skip("the system of this machine gives the permission, or knows none")
    sch = product(NAMES[0])
    features = [*HERE.features, "amx-tile", "amx-int8", "amx-bf16"]
    target = Target.of({"mcpu": HERE.mcpu, "triple": HERE.triple, "features": features})
    compiled = compile_func(sch.func, target, "kernel")
    code = call(compiled, *inputs(sch))
    assert "lets this process use AMX's tiles (arch_prctl)" in compiled.signature.failure(code)


def test_tiles_are_features_of_a_system_that_allows_them(monkeypatch):
    fields = {"flags": "sse sse2 amx_tile amx_int8 avx512f"}
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: fields)
    for allowed in (True, False):
        monkeypatch.setattr(hardware, "_allows_tiles", lambda allowed=allowed: allowed)
        found = hardware.native_features("x86_64")
        assert ("amx-tile" in found) is ("amx-int8" in found) is allowed and "avx512f" in found
