"""x86: products of bytes, of 16-bit integers, of bfloat16 and of float16 in vector registers.

Names give lanes, steps and types of A, B and C. `dot_16x4_u8i8i32` has sixteen int32 results; each
adds four products of a uint8 that all lanes share and an int8 of its own lane.
"""

from __future__ import annotations

import functools

import numpy as np

from metasched.intrinsics.lanes import (
    INT16,
    INT32,
    Array,
    Product,
    declare,
    dot,
    repeated,
    sums,
    use,
)
from metasched.ir.expr import Broadcast, Expr, IntImm
from metasched.ir.op import call

U8, I8, I16, I32 = "uint8", "int8", "int16", "int32"


def bfloat_sums(acc: Array, a: Array, b: Array) -> Array:
    """acc + the products of two neighbours, the upper first; each sum is rounded once to float32.

    Denormal numbers count as zero, in operands, sums and results.
    """
    wide = [normal(np.asarray(x, np.float64)) for x in (a, b)]
    pairs = (wide[0] * wide[1]).reshape(-1, 2)
    total = normal(np.asarray(acc, np.float32))
    for side in (
        1,
        0,
    ):  # a product is exact in float64; a sum has enough digits to round to float32
        total = normal((total + pairs[:, side]).astype(np.float32))
    return total


def normal(x: Array) -> Array:
    """Replace numbers that are denormal in float32 and bfloat16 by zero."""
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.zeros_like(x), x), x)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once to float16."""
    wide: list[Array] = [np.asarray(x, np.float64) for x in (a, b, c)]
    return (wide[0] * wide[1] + wide[2]).astype(np.float16)


def filled(value: int, kind: str, lanes: int) -> Expr:
    return Broadcast(IntImm(kind, value), lanes)


def each_byte(value: int) -> Expr:
    """A word of 32 bits with the same value in its four bytes."""
    return IntImm("int32", int.from_bytes(bytes([value] * 4), "little", signed=True))


def one_instruction(name: str, lanes: int, kind: str, first: bool = True) -> Product:
    """C = name(C, A, B), or C = name(C, B, A) unless A is the `first` factor; A has type `kind`."""

    def product(acc: Expr, word: Expr, b: Expr) -> Expr:
        a = repeated(word, kind, lanes)
        return use(name, acc, a, b) if first else use(name, acc, b, a)

    return product


def signed_product(name: str, lanes: int) -> Product:
    """int8 times int8 by the instruction for uint8 times int8.

    A + 128 is not negative; its bits are the bits of A with the first bit flipped. This adds 128
    times the sum of B to the result, which is computed and subtracted. Sums wrap around, so the
    result is exact.
    """

    def product(acc: Expr, word: Expr, b: Expr) -> Expr:
        flipped = call("bitwise_xor", word, each_byte(128))
        excess = use(name, filled(0, I32, lanes), filled(128, U8, 4 * lanes), b)
        return use(name, acc, repeated(flipped, U8, lanes), b) - excess

    return product


def halved_product(names: tuple[str, str], lanes: int, unsigned_first: bool = True) -> Product:
    """uint8 times int8 on machines without VNNI, exact for all inputs.

    The sum of two products in 16 bits saturates when the unsigned factors are large. So the lowest
    seven bits of a factor and its highest bit are multiplied separately. Their sums, 2 * 127 * 128
    and 2 * 128 * 128, fit 16 bits.
    """
    by_bytes, by_words = names

    def product(acc: Expr, word: Expr, b: Expr) -> Expr:
        ones = filled(1, I16, 2 * lanes)
        for mask in (127, 128):
            if unsigned_first:
                part = call("bitwise_and", word, each_byte(mask))
                pairs = use(by_bytes, repeated(part, U8, lanes), b)
            else:
                part = call("bitwise_and", b, filled(mask, U8, 4 * lanes))
                pairs = use(by_bytes, part, repeated(word, I8, lanes))
            acc = acc + use(by_words, pairs, ones)
        return acc

    return product


def wide_registers(bits: int) -> str:
    """The feature that instructions of AVX-512 need for registers of this width."""
    return "" if bits == 512 else "+avx512vl"


def vnni(bits: int) -> None:
    """Register vpdpbusd and vpdpwssd, in the encoding of AVX-512 or of AVX-VNNI."""
    wide, lanes = bits // 8, bits // 32
    feature = f"avx512vnni{wide_registers(bits)}" + ("" if bits == 512 else "|avxvnni")
    i32, words = f"{I32}x{lanes}", f"{I16}x{2 * lanes}"
    for saturating, limits in (("", ()), ("s", INT32)):
        declare(
            f"llvm.x86.avx512.vpdpbusd{saturating}.{bits}",
            i32, f"{i32} {U8}x{wide} {I8}x{wide}", feature, sums(4, *limits), adds=True,
        )  # fmt: skip
        declare(
            f"llvm.x86.avx512.vpdpwssd{saturating}.{bits}",
            i32, f"{i32} {words} {words}", feature, sums(2, *limits), adds=True,
        )  # fmt: skip
    by_bytes, by_words = (f"llvm.x86.avx512.vpdp{which}.{bits}" for which in ("busd", "wssd"))
    family = f"x86.vnni.dot_{lanes}x"
    dot(f"{family}4_u8i8i32", lanes, 4, (U8, I8, I32), one_instruction(by_bytes, lanes, U8))
    swapped = one_instruction(by_bytes, lanes, I8, first=False)
    dot(f"{family}4_i8u8i32", lanes, 4, (I8, U8, I32), swapped)
    dot(f"{family}4_i8i8i32", lanes, 4, (I8, I8, I32), signed_product(by_bytes, lanes))
    whole = one_instruction(by_words, lanes, I16)
    dot(f"{family}2_i16i16i32", lanes, 2, (I16, I16, I32), whole)


def signed_bytes() -> None:
    """Register vpdpbssd: int8 times int8 in one instruction."""
    name = declare(
        "llvm.x86.avx2.vpdpbssd.256", f"{I32}x8", f"{I32}x8 {I8}x32 {I8}x32", "avxvnniint8", sums(4)
    )
    dot("x86.vnniint8.dot_8x4_i8i8i32", 8, 4, (I8, I8, I32), one_instruction(name, 8, I8))


def multiply_add(bits: int, names: tuple[str, str], feature: str) -> None:
    """Register vpmaddubsw and vpmaddwd, which add neighbouring products; the sums of vpmaddubsw
    have 16 bits and saturate."""
    lanes = bits // 32
    i16, i32 = f"{I16}x{2 * lanes}", f"{I32}x{lanes}"
    bytes_ = f"{U8}x{4 * lanes} {I8}x{4 * lanes}"
    declare(names[0], i16, bytes_, feature, functools.partial(sums(2, *INT16), 0))
    declare(names[1], i32, f"{i16} {i16}", feature, functools.partial(sums(2), 0))
    family = f"x86.{feature}.dot_{lanes}x"
    dot(f"{family}4_u8i8i32", lanes, 4, (U8, I8, I32), halved_product(names, lanes))
    dot(f"{family}4_i8u8i32", lanes, 4, (I8, U8, I32), halved_product(names, lanes, False))
    dot(
        f"{family}2_i16i16i32", lanes, 2, (I16, I16, I32),
        lambda c, a, b: c + use(names[1], repeated(a, I16, lanes), b),
    )  # fmt: skip


def bfloat(bits: int) -> None:
    """Register vdpbf16ps: two products of bfloat16, summed in float32; denormals count as zero."""
    lanes = bits // 32
    f32, pairs = f"float32x{lanes}", f"bfloat16x{2 * lanes}"
    name = declare(
        f"llvm.x86.avx512bf16.dpbf16ps.{bits}", f32, f"{f32} {pairs} {pairs}",
        f"avx512bf16{wide_registers(bits)}", bfloat_sums, 2.0, adds=True,
    )  # fmt: skip
    kinds = ("bfloat16", "bfloat16", "float32")
    product = one_instruction(name, lanes, kinds[0])
    dot(f"x86.avx512bf16.dot_{lanes}x2_bf16bf16f32", lanes, 2, kinds, product)


def half() -> None:
    """Register vfmadd on float16; code generation also uses it for vectors without an intrinsic."""
    for bits in (512, 256, 128):
        kind = f"float16x{bits // 16}"
        feature = f"avx512fp16{wide_registers(bits)}"
        declare(f"llvm.fma.v{bits // 16}f16", kind, f"{kind} {kind} {kind}", feature, fused)


for width in (512, 256, 128):
    vnni(width)
    bfloat(width)
signed_bytes()
multiply_add(512, ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"), "avx512bw")
multiply_add(256, ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"), "avx2")
half()
