"""AMX: products of whole tiles, 16 rows of 64 bytes each, on Intel's matrix unit.

`matmul_16x16x64_u8i8i32` multiplies sixteen rows of A, of 64 uint8 each, by sixteen columns of B. B
stores groups of neighbouring steps side by side: `B[k, j, g]` belongs to step `4 * k + g` of column
`j`. The rows of A and B may lie in memory at any distance.
"""

from __future__ import annotations

import functools

import numpy as np

from metasched.intrinsics.lanes import Array, Meaning, declare, short, use
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, IntImm
from metasched.ir.func import PrimFunc
from metasched.ir.op import Ramp, Shuffle
from metasched.schedule.intrinsics import TensorIntrin
from metasched.script import tir as T

ROWS, COLUMNS, ROW_BYTES = 16, 16, 64
COST = 32.0  # a product of tiles every 16 cycles, two vector multiply-adds a cycle


def groups(a: Array, b: Array) -> tuple[Array, Array]:
    """A as [row, step, part] and B as [step, column, part]."""
    return np.asarray(a).reshape(ROWS, ROWS, -1), np.asarray(b).reshape(ROWS, COLUMNS, -1)


def byte_tiles(acc: Array, a: Array, b: Array) -> Array:
    """acc[i, j] + the sum of A[i, k, g] * B[k, j, g] over all k and g."""
    x, y = (v.astype(np.int64) for v in groups(a, b))
    total: Array = np.asarray(acc, np.int64) + np.einsum("ikg,kjg->ij", x, y).reshape(-1)
    return total


def bfloat_tiles(acc: Array, a: Array, b: Array) -> Array:
    """acc plus two sums, of the even steps and of the odd steps, each rounded at every step."""
    x, y = (v.astype(np.float32) for v in groups(a, b))
    parts = np.zeros((2, ROWS, COLUMNS), np.float32)
    for k in range(ROWS):
        for g in range(2):
            exact = np.outer(x[:, k, g], y[k, :, g]).astype(np.float64) + parts[g]
            parts[g] = exact.astype(np.float32)
    total: Array = np.asarray(acc, np.float32) + (parts[0] + parts[1]).reshape(-1)
    return total


@functools.cache
def tile_desc(group: int, kinds: tuple[str, ...]) -> PrimFunc:
    """C[i, j] += sum of A[i, k * group + g] * B[k, j, g] over 16 steps k of `group` parts g."""
    c, depth = kinds[2], ROWS * group

    @T.prim_func
    def tile_desc(
        A: T.Buffer((ROWS, depth), kinds[0], offset_factor=1),
        B: T.Buffer((ROWS, COLUMNS, group), kinds[1], offset_factor=1),
        C: T.Buffer((ROWS, COLUMNS), kinds[2], offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:ROWS, 0:COLUMNS], A[0:ROWS, 0:depth], B[0:ROWS, 0:COLUMNS, 0:group])
            T.writes(C[0:ROWS, 0:COLUMNS])
            for i, j, k, g in T.grid(ROWS, COLUMNS, ROWS, group):
                with T.block("update"):
                    vi, vj, vk, vg = T.axis.remap("SSRR", [i, j, k, g])
                    C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk * group + vg], c) * T.cast(
                        B[vk, vj, vg], c
                    )

    return tile_desc


def row(source: Buffer, number: int, lanes: int) -> Expr:
    """`lanes` neighbours from the start of a row."""
    inner = [IntImm("int32", 0)] * (len(source.shape) - 2)
    across = Ramp(IntImm("int32", 0), IntImm("int32", 1), lanes)
    return BufferLoad(source, (IntImm("int32", number), *inner, across))


def tile(source: Buffer) -> Expr:
    """The rows of a buffer as one vector."""
    lanes = ROW_BYTES * 8 // source.dtype.bits
    rows = [row(source, number, lanes) for number in range(ROWS)]
    return Shuffle(rows, range(ROWS * lanes))


def tile_impl(name: str, group: int, kinds: tuple[str, ...]) -> PrimFunc:
    """C = name(C, A, B), where the rows of A and B may lie apart, and C is contiguous."""
    depth, whole = ROWS * group, ROWS * COLUMNS

    @T.prim_func
    def tile_impl(
        A: T.Buffer((ROWS, depth), kinds[0], offset_factor=1, strides=[T.int32(), 1]),
        B: T.Buffer(
            (ROWS, COLUMNS, group), kinds[1], offset_factor=1, strides=[T.int32(), group, 1]
        ),
        C: T.Buffer((ROWS, COLUMNS), kinds[2], offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:ROWS, 0:COLUMNS], A[0:ROWS, 0:depth], B[0:ROWS, 0:COLUMNS, 0:group])
            T.writes(C[0:ROWS, 0:COLUMNS])
            C[0, T.ramp(T.int32(0), 1, whole)] = use(name, row(C, 0, whole), tile(A), tile(B))

    return tile_impl


def tiles(letters: str, kinds: tuple[str, ...], feature: str, meaning: Meaning) -> None:
    """Register an instruction on tiles and its intrinsic; `letters` are part of its LLVM name."""
    a, b, c = map(DType, kinds)
    group = 32 // a.bits
    lanes = ROWS * ROW_BYTES * 8 // a.bits
    name = declare(
        f"llvm.x86.tdp{letters}.internal", f"{c}x256", f"{c}x256 {a}x{lanes} {b}x{lanes}",
        f"amx-tile+{feature}", meaning, COST,
    )  # fmt: skip
    TensorIntrin.register(
        f"amx.matmul_16x16x{ROWS * group}_{short(kinds)}", tile_desc(group, kinds),
        tile_impl(name, group, kinds),
    )  # fmt: skip


for letters, a, b in (
    ("usd", "uint8", "int8"), ("ssd", "int8", "int8"), ("sud", "int8", "uint8"),
    ("uud", "uint8", "uint8"),
):  # fmt: skip
    tiles("b" + letters, (a, b, "int32"), "amx-int8", byte_tiles)
tiles("bf16ps", ("bfloat16", "bfloat16", "float32"), "amx-bf16", bfloat_tiles)
