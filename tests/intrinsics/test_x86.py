"""x86: each intrinsic against NumPy on 1,000 inputs and the extremes, and the code it becomes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from metasched import Schedule, TensorIntrin, build
from metasched.codegen.compile import compile_func
from metasched.errors import BuildError
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.lower.pipeline import lower
from metasched.script import tir as T
from metasched.target import Target

HERE = Target.native()
NAMES = [name for name in TensorIntrin.names() if name.startswith("x86.")]
# What the assembly of an intrinsic's family holds.
MNEMONICS = {
    "vnni.4_i": "vpdpbusd", "vnni.4_u": "vpdpbusd", "vnni.2_i": "vpdpwssd",
    "vnniint8.4_i": "vpdpbssd", "avx512bf16.2_b": "vdpbf16ps",
    "avx2.4_u": "vpmaddubsw", "avx2.4_i": "vpmaddubsw", "avx2.2_i": "vpmaddwd",
    "avx512bw.4_u": "vpmaddubsw", "avx512bw.4_i": "vpmaddubsw", "avx512bw.2_i": "vpmaddwd",
}  # fmt: skip


def many(name: str, count: int) -> tuple[PrimFunc, Schedule]:
    """`count` instances of what an intrinsic describes: the program, and with the intrinsic."""
    lanes, group = shape(name)
    a, b, c = (buffer.dtype for buffer in TensorIntrin.get(name).desc.buffers)

    @T.prim_func
    def many(
        A: T.Buffer((count, group), a),
        B: T.Buffer((count, lanes, group), b),
        C: T.Buffer((count, lanes), c),
    ):
        for n, i, k in T.grid(count, lanes, group):
            with T.block("C"):
                vn, vi, vk = T.axis.remap("SSR", [n, i, k])
                C[vn, vi] = C[vn, vi] + T.cast(A[vn, vk], c) * T.cast(B[vn, vi, vk], c)

    sch = Schedule(many)
    sch.tensorize(sch.get_loops("C")[1], name)
    return many, sch


def shape(name: str) -> tuple[int, int]:
    return TensorIntrin.get(name).desc.buffers[1].constant_shape()


def inputs(name: str, count: int) -> list[np.ndarray]:
    """Random inputs over the whole range; the first ones are all combinations of the extremes."""
    draw = np.random.default_rng(len(name))
    lanes, group = shape(name)
    shapes = ((count, group), (count, lanes, group), (count, lanes))
    kinds = [buffer.dtype for buffer in TensorIntrin.get(name).desc.buffers]
    if kinds[0].is_float:  # small integers: every order of the sum gives the same
        return [draw.integers(-4, 5, s).astype(k.numpy) for s, k in zip(shapes, kinds, strict=True)]
    ranges = [np.iinfo(k.numpy) for k in kinds]
    found = [
        draw.integers(r.min, r.max, s, r.dtype, endpoint=True)
        for s, r in zip(shapes, ranges, strict=True)
    ]
    ends = itertools.product(*[(r.min, -1 if r.min else 0, 1, r.max) for r in ranges])
    for n, values in zip(range(count), ends, strict=False):
        for array, value in zip(found, values, strict=True):
            array[n] = value
    return found


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = np.float64 if c.dtype.kind == "f" else np.int64
    total = (a[:, None].astype(wide) * b.astype(wide)).sum(axis=2) + c.astype(wide)
    return total.astype(c.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_computes_what_is_described(name):
    plain, sch = many(name, 70)
    a, b, c = inputs(name, 70)
    wanted, written = expected(a, b, c), c.copy()
    run(sch.func, a, b, c)
    np.testing.assert_array_equal(c, wanted)
    run(plain, a[:70], b, written)
    np.testing.assert_array_equal(written, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_machine_code_computes_what_is_described(name):
    a, b, c = inputs(name, 1100)
    lacks = TensorIntrin.get(name).lacks(HERE.features)
    if lacks:
        with pytest.raises(BuildError, match=f"needs the features? {lacks}, which the target"):
            build(many(name, 3)[1].mod)
        return
    wanted = expected(a, b, c)
    build(many(name, 1100)[1].mod)(a, b, c)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_assembly_holds_the_instruction(name):
    """Also where this machine cannot run it."""
    _, family, form = name.split(".")
    feature = TensorIntrin.get(name).needs[0].split("|")[-1]
    target = Target.of(f"llvm -mcpu=x86-64-v4 -mattr=+{feature.replace('+', ',+')}")
    asm = compile_func(lower(many(name, 3)[1].func, target), target).asm()
    assert MNEMONICS[f"{family}.{form.partition('x')[2][:3]}"] in asm
    lanes, _ = shape(name)
    bits = lanes * TensorIntrin.get(name).desc.buffers[2].dtype.bits
    assert {512: "%zmm", 256: "%ymm", 128: "%xmm"}[bits] in asm


BF16 = "x86.avx512bf16.dot_16x2_bf16bf16f32"
needs_bfloat = pytest.mark.skipif(
    bool(TensorIntrin.get(BF16).lacks(HERE.features)), reason="needs AVX512-BF16"
)


def products_of_floats(count: int, least: int) -> list[np.ndarray]:
    """bfloat16 operands, 60 powers of two apart, and float32 sums to add to."""
    draw = np.random.default_rng(7)
    shapes = ((count, 2), (count, 16, 2), (count, 16))
    scales = [
        2.0 ** draw.integers(n, n + 61, s) for n, s in zip((0, least, least), shapes, strict=True)
    ]
    kinds = [buffer.dtype.numpy for buffer in TensorIntrin.get(BF16).desc.buffers]
    drawn = [draw.standard_normal(s) * scale for s, scale in zip(shapes, scales, strict=True)]
    return [x.astype(kind) for x, kind in zip(drawn, kinds, strict=True)]


def in_machine_and_interpreter(a, b, c):
    """The sums of both, which must be equal bit for bit (all NaN count as equal)."""
    here, there = c.copy(), c.copy()
    sch = many(BF16, len(c))[1]
    build(sch.mod)(a, b, here)
    with np.errstate(all="ignore"):
        run(sch.func, a, b, there)
    np.testing.assert_array_equal(here, there)
    known = ~np.isnan(here)
    np.testing.assert_array_equal(np.signbit(here[known]), np.signbit(there[known]))
    return here


@needs_bfloat
def test_sums_of_bfloat16_are_rounded_as_declared():
    a, b, c = products_of_floats(1000, -30)
    products = a[:, None].astype(float) * b.astype(float)
    found = in_machine_and_interpreter(a, b, c)
    large = np.abs(products).sum(axis=2) + np.abs(c)
    assert (np.abs(found - (products.sum(axis=2) + c)) <= 2.0**-22 * large).all()


@needs_bfloat
def test_denormal_numbers_count_as_zero_in_sums_of_bfloat16():
    a, b, c = products_of_floats(200, -180)
    found = in_machine_and_interpreter(a, b, c)
    assert (found == 0).any() and not ((found != 0) & (np.abs(found) < 2.0**-126)).any()


@needs_bfloat
def test_sums_of_bfloat16_with_infinities_and_overflow():
    ends = [np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 1.0]
    every = np.array(list(itertools.product(ends, repeat=4))).reshape(-1, 16, 4)
    kinds = [buffer.dtype.numpy for buffer in TensorIntrin.get(BF16).desc.buffers]
    a = np.resize(np.array(list(itertools.product(ends, repeat=2))), (len(every), 2))
    in_machine_and_interpreter(
        a.astype(kinds[0]), every[:, :, :2].astype(kinds[1]), every[:, :, 2].astype(kinds[2])
    )
