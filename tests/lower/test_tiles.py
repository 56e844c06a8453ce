"""Accumulators of tile instructions stay in tile registers through the whole reduction."""

from __future__ import annotations

import re

import numpy as np
import pytest

from metasched import Schedule, TensorIntrin
from metasched.codegen.compile import compile_func
from metasched.ir.interp import run
from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.passes.tiles import TILES, keep_tiles
from metasched.lower.pipeline import lower
from metasched.script import parse
from metasched.script import tir as T
from metasched.target import Target

AMX = Target.of("llvm -mcpu=sapphirerapids -mtriple=x86_64-unknown-linux-gnu")
NAMES = [name for name in TensorIntrin.names() if name.startswith("amx.")]


def product(name: str, rows: int = 2, columns: int = 2, rolled: bool = False) -> Schedule:
    """A block of `rows` times `columns` tiles; a loop over them is unrolled, or `rolled`."""
    a, b, c = TensorIntrin.get(name).desc.buffers
    (_, depth), group, wide = a.constant_shape(), b.constant_shape()[2], c.dtype

    @T.prim_func
    def product(
        A: T.Buffer((rows, 6, 16, depth), a.dtype),
        B: T.Buffer((columns, 6, 16, 16, group), b.dtype),
        D: T.Buffer((rows * 16, columns * 16), wide),
    ):
        C = T.alloc_buffer((rows, columns, 16, 16), wide, scope="local")
        for x, y, i, j in T.grid(rows, columns, 16, 16):
            with T.block("zero"):
                vx, vy, vi, vj = T.axis.remap("SSSS", [x, y, i, j])
                C[vx, vy, vi, vj] = T.cast(0, wide)
        for s, x, y, i, j, k, g in T.grid(6, rows, columns, 16, 16, 16, group):
            with T.block("C"):
                vs, vx, vy, vi, vj, vk, vg = T.axis.remap("RSSSSRR", [s, x, y, i, j, k, g])
                C[vx, vy, vi, vj] = C[vx, vy, vi, vj] + T.cast(
                    A[vx, vs, vi, vk * group + vg], wide
                ) * T.cast(B[vy, vs, vk, vj, vg], wide)
        for x, y in T.grid(rows * 16, columns * 16):
            with T.block("D"):
                vx, vy = T.axis.remap("SS", [x, y])
                D[vx, vy] = C[vx // 16, vy // 16, vx % 16, vy % 16]

    sch = Schedule(product)
    steps, x, y, *inner = sch.get_loops("C")
    for loop in [*sch.split(steps, [None, 2])[1:], *([] if rolled else [x]), y]:
        sch.unroll(loop)
    sch.tensorize(inner[0], name)
    return sch


def kept(sch: Schedule) -> list[int]:
    """The sizes of the buffers in tile registers, in elements."""
    found = walk_stmts(lower(sch.func, AMX).body)
    buffers = [s.buffer for s in found if isinstance(s, Allocate)]
    return [b.shape[0].value for b in buffers if b.scope == TILES]


FLAT = """
@T.prim_func
def main(
    A: T.Buffer((12288,), "uint8"), B: T.Buffer((12288,), "int8"), D: T.Buffer((1024,), "int32")
):
    C = T.allocate((1024,), "int32", scope="local")
    for i in range(1024):
        C[i] = i
    for s in range(6):
        for x in T.unroll(2):
            for y in T.unroll(2):
                C[T.Ramp({index}, 1, 256)] = T.call_llvm_pure_intrin(
                    "int32x256", "llvm.x86.tdpbusd.internal", C[T.Ramp({index}, 1, 256)],
                    A[T.Ramp((s * 2 + x) * 1024, 1, 1024)], B[T.Ramp((s * 2 + y) * 1024, 1, 1024)])
    for i in range(1024):
        D[i] = C[i]
"""


@pytest.mark.parametrize(
    ("index", "changed"),
    [
        ("x * 512 + y * 256", True), ("x * 256 + y * 512", True), ("y * 256 + 512", True),
        ("s % 2 * 512 + y * 256", False), ("x * 512 + y * 128", False),
    ],
)  # fmt: skip
def test_the_meaning_stays(index, changed):
    """Where each step adds to the same tiles, side by side; elsewhere nothing changes."""
    func = parse(FLAT.format(index=index))
    after = keep_tiles(func)
    assert (TILES in after.script()) is changed
    arrays = []
    for one in (func, after):
        draw = np.random.default_rng(0)
        a = draw.integers(0, 256, 12288).astype("uint8")
        b = draw.integers(-128, 128, 12288).astype("int8")
        d = np.zeros(1024, "int32")
        run(one, a, b, d)
        arrays.append(d)
    np.testing.assert_array_equal(*arrays)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (4, 1), (1, 3)])
def test_the_loop_loads_operands_alone(rows, columns):
    """Each operand tile once a step, no sums loaded or stored, and no copies through vectors."""
    asm = compile_func(product(NAMES[0], rows, columns).func, AMX).asm()
    (loop,) = [part for part in re.split(r"\n\.LBB", asm) if "\ttdp" in part]
    assert len(re.findall(r"\ttdp", loop)) == 2 * rows * columns
    assert len(re.findall(r"\ttileloadd", loop)) == 2 * (rows + columns)
    body = re.split(r"\tj[a-z]+\t", loop)[0]
    assert "tilestored" not in body and "vmov" not in body


def test_sums_at_an_index_that_moves_stay_in_memory():
    assert kept(product(NAMES[0], rolled=True)) == []
