"""AArch64: products of bytes and of bfloat16 in the vector registers of NEON.

Names give lanes, steps and types of A, B and C. `dot_4x4_i8i8i32` has four int32 results; each adds
four products of an int8 that all lanes share and an int8 of its own lane. `matmul_2x2x8_i8i8i32`
multiplies two rows of A by two rows of B, each of eight int8.
"""

from __future__ import annotations

import functools

import numpy as np

from metasched.intrinsics.lanes import (
    Array,
    Product,
    declare,
    dot,
    repeated,
    short,
    sums,
    use,
)
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import EQ, Expr, IntImm
from metasched.ir.func import PrimFunc
from metasched.ir.op import HARDWARE, Ramp, Shuffle, call
from metasched.schedule.intrinsics import TensorIntrin
from metasched.script import tir as T

U8, I8, I32, U32, BF16, F32 = "uint8", "int8", "int32", "uint32", "bfloat16", "float32"
FLOAT32_TINY = np.float32(2.0**-126)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b of float32, rounded to odd; subnormal operands and results count as zero.

    Rounding to odd sets the last bit of an inexact result to 1. The sum in float64 is exact or is
    rounded to odd as well, so that truncating it to float32 rounds the exact sum.
    """
    x, y = (flushed(np.asarray(v, np.float32)).astype(np.float64) for v in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        total = x + y
        back = total - x
        lost = (x - (total - back)) + (y - back)
        bits = total.view(np.int64)
        step = np.where((lost > 0) == (total > 0), 1, -1)
        inexact = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
        bits = np.where(inexact, bits + step, bits)
        rest = bits & ((1 << 29) - 1)
        short = (bits - rest).view(np.float64).astype(np.float32)
        odd = short.view(np.int32) | (rest != 0)
    found = np.where(np.isfinite(total), odd.view(np.float32), total.astype(np.float32))
    return flushed(found.astype(np.float32))


def flushed(values: Array) -> Array:
    """Subnormal float32 numbers as zeros of their sign."""
    return np.where(np.abs(values) < FLOAT32_TINY, np.copysign(np.float32(0), values), values)


def bfloat_dots(acc: Array, a: Array, b: Array) -> Array:
    """acc + (first + second product of two neighbours), both sums rounded to odd."""
    with np.errstate(over="ignore", invalid="ignore"):
        pairs = (np.asarray(a, np.float32) * np.asarray(b, np.float32)).reshape(-1, 2)
    return odd_sum(acc, odd_sum(pairs[:, 0], pairs[:, 1]))


def row_products(a: Array, b: Array) -> tuple[Array, Array]:
    """Two rows of A and two of B, each repeated so that their products belong to C[i, j]."""
    x, y = (np.asarray(v).reshape(2, -1) for v in (a, b))
    return x[[0, 0, 1, 1]].reshape(-1), y[[0, 1, 0, 1]].reshape(-1)


def byte_matmul(acc: Array, a: Array, b: Array) -> Array:
    """acc[i, j] + the sum of eight products a[i, k] * b[j, k]."""
    return sums(8)(acc, *row_products(a, b))


def bfloat_matmul(acc: Array, a: Array, b: Array) -> Array:
    """acc[i, j] + the products a[i, k] * b[j, k], added in pairs as `bfloat_dots` does."""
    x, y = (v.reshape(4, 2, 2) for v in row_products(a, b))
    for pair in range(2):
        acc = bfloat_dots(acc, x[:, pair].reshape(-1), y[:, pair].reshape(-1))
    return acc


@functools.cache
def matmul_desc(depth: int, kinds: tuple[str, ...]) -> PrimFunc:
    """C[i, j] += sum of A[i, k] * B[j, k] over `depth` steps k, for two rows i and two rows j."""
    a, b, c = kinds

    @T.prim_func
    def matmul_desc(
        A: T.Buffer((2, depth), a, offset_factor=1),
        B: T.Buffer((2, depth), b, offset_factor=1),
        C: T.Buffer((2, 2), c, offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:2, 0:2], A[0:2, 0:depth], B[0:2, 0:depth])
            T.writes(C[0:2, 0:2])
            for i, j, k in T.grid(2, 2, depth):
                with T.block("update"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], c) * T.cast(B[vj, vk], c)

    return matmul_desc


def two_rows(source: Buffer) -> Expr:
    """Two rows as one vector, by a single load if the rows are contiguous."""
    width = int(source.constant_shape()[1])  # type: ignore[index]
    zero, one = IntImm("int32", 0), IntImm("int32", 1)

    def row(number: int, lanes: int) -> Expr:
        return BufferLoad(source, (IntImm("int32", number), Ramp(zero, one, lanes)))

    rows, together = [row(0, width), row(1, width)], row(0, 2 * width)
    close = EQ(source.strides[0], IntImm("int32", width))
    return call("if_then_else", close, together, Shuffle(rows, range(2 * width)))


def matmul_impl(depth: int, kinds: tuple[str, ...], product: Product) -> PrimFunc:
    """C = product(C, A, B), each two rows as one vector, which may lie apart."""
    a, b, c = kinds

    @T.prim_func
    def matmul_impl(
        A: T.Buffer((2, depth), a, offset_factor=1, strides=[T.int32(), 1]),
        B: T.Buffer((2, depth), b, offset_factor=1, strides=[T.int32(), 1]),
        C: T.Buffer((2, 2), c, offset_factor=1, strides=[T.int32(), 1]),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:2, 0:2], A[0:2, 0:depth], B[0:2, 0:depth])
            T.writes(C[0:2, 0:2])
            result = product(two_rows(C), two_rows(A), two_rows(B))
            C[0, T.ramp(T.int32(0), 1, 2)] = Shuffle([result], [0, 1])
            C[1, T.ramp(T.int32(0), 1, 2)] = Shuffle([result], [2, 3])

    return matmul_impl


def matmul(name: str, depth: int, kinds: tuple[str, ...], product: Product) -> None:
    """Register the intrinsic that multiplies two rows by two rows."""
    TensorIntrin.register(name, matmul_desc(depth, kinds), matmul_impl(depth, kinds, product))


def instruction(name: str, shared: str | None = None, swapped: bool = False) -> Product:
    """C = name(C, A, B), where C may have another type of the same size.

    Args:
        name: the name of the machine instruction.
        shared: the type of A, if A is the bits of a group that all lanes share.
        swapped: the instruction takes B before A.
    """

    def product(acc: Expr, a: Expr, b: Expr) -> Expr:
        if shared is not None:
            a = repeated(a, shared, 4)
        held = HARDWARE.get(name).result
        result = use(name, viewed(acc, held), *((b, a) if swapped else (a, b)))
        return viewed(result, acc.dtype)

    return product


def viewed(value: Expr, kind: DType) -> Expr:
    """The bits of a value as another type."""
    return value if value.dtype is kind else call("reinterpret", value, dtype=kind)


def bytes_(letters: str, a: str, b: str, feature: str) -> None:
    """Register sdot, udot, usdot (four products in each lane) and smmla, ummla, usmmla (two rows by
    two rows of eight).

    `letters` are the part of LLVM's names that differs between signed and unsigned instructions.
    """
    i32, operands = f"{I32}x4", f"{I32}x4 {a}x16 {b}x16"
    dots = declare(f"llvm.aarch64.neon.{letters}dot.v4i32.v16i8", i32, operands, feature, sums(4))
    rows = declare(
        f"llvm.aarch64.neon.{letters}mmla.v4i32.v16i8", i32, operands, "i8mm", byte_matmul
    )
    for result in (I32, U32) if a == b == U8 else (I32,):
        kinds = (a, b, result)
        dot(f"arm.{feature}.dot_4x4_{short(kinds)}", 4, 4, kinds, instruction(dots, a))
        matmul(f"arm.i8mm.matmul_2x2x8_{short(kinds)}", 8, kinds, instruction(rows))
    if a != b:
        swapped = (b, a, I32)
        by_lanes = instruction(dots, b, swapped=True)
        dot(f"arm.{feature}.dot_4x4_{short(swapped)}", 4, 4, swapped, by_lanes)


def bfloat() -> None:
    """Register bfdot and bfmmla: pairs of products of bfloat16, summed in float32."""
    operands, kinds = f"{F32}x4 {BF16}x8 {BF16}x8", (BF16, BF16, F32)
    dots = declare(
        "llvm.aarch64.neon.bfdot.v4f32.v8bf16", f"{F32}x4", operands, "bf16", bfloat_dots
    )
    rows = declare("llvm.aarch64.neon.bfmmla", f"{F32}x4", operands, "bf16", bfloat_matmul)
    dot("arm.bf16.dot_4x2_bf16bf16f32", 4, 2, kinds, instruction(dots, BF16))
    matmul("arm.bf16.matmul_2x2x4_bf16bf16f32", 4, kinds, instruction(rows))


bytes_("s", I8, I8, "dotprod")
bytes_("u", U8, U8, "dotprod")
bytes_("us", U8, I8, "i8mm")
bfloat()
