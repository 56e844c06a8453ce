"""AArch64: each intrinsic against NumPy, the code it becomes, and that code under emulation."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from emulation import EMULATED, Emulated, require_emulator

from metasched import Schedule, TensorIntrin
from metasched.codegen.compile import compile_func
from metasched.errors import BuildError
from metasched.intrinsics.arm import bfloat_dots, bfloat_matmul, odd_sum
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import tir as T
from metasched.target import Target

NAMES = [name for name in TensorIntrin.names() if name.startswith("arm.")]
MNEMONICS = {
    "dot_4x4_i8i8": "sdot", "dot_4x4_u8u8": "udot", "dot_4x4_u8i8": "usdot",
    "dot_4x4_i8u8": "usdot", "dot_4x2_bf16": "bfdot", "matmul_2x2x8_i8i8": "smmla",
    "matmul_2x2x8_u8u8": "ummla", "matmul_2x2x8_u8i8": "usmmla", "matmul_2x2x4_bf16": "bfmmla",
}  # fmt: skip
FEW, COUNT = 70, 1100


def many(name: str, count: int) -> Schedule:
    """`count` instances of what an intrinsic describes, computed by the intrinsic."""
    a, b, c = TensorIntrin.get(name).desc.buffers
    (*rows, depth), (columns, _) = a.constant_shape(), b.constant_shape()
    wide = c.dtype

    @T.prim_func
    def dots(
        A: T.Buffer((count, depth), a.dtype),
        B: T.Buffer((count, columns, depth), b.dtype),
        C: T.Buffer((count, columns), wide),
    ):
        for n, j, k in T.grid(count, columns, depth):
            with T.block("C"):
                vn, vj, vk = T.axis.remap("SSR", [n, j, k])
                C[vn, vj] = C[vn, vj] + T.cast(A[vn, vk], wide) * T.cast(B[vn, vj, vk], wide)

    @T.prim_func
    def matmuls(
        A: T.Buffer((2, count * depth), a.dtype),
        B: T.Buffer((count, 2, depth), b.dtype),
        C: T.Buffer((2, count * 2), wide),
    ):
        for n, i, j, k in T.grid(count, 2, 2, depth):
            with T.block("C"):
                vn, vi, vj, vk = T.axis.remap("SSSR", [n, i, j, k])
                C[vi, vn * 2 + vj] = C[vi, vn * 2 + vj] + T.cast(
                    A[vi, vn * depth + vk], wide
                ) * T.cast(B[vn, vj, vk], wide)

    sch = Schedule(matmuls if rows else dots)
    sch.tensorize(sch.get_loops("C")[1], name)
    return sch


def inputs(func: PrimFunc) -> list[np.ndarray]:
    """Random inputs over the whole range; the first ones are all combinations of the extremes."""
    draw, found = np.random.default_rng(1), []
    kinds = [buffer.dtype for buffer in func.buffers]
    for buffer, kind in zip(func.buffers, kinds, strict=True):
        if kind.is_float:
            found.append(draw.normal(size=buffer.constant_shape()).astype(kind.numpy))
        else:
            r = np.iinfo(kind.numpy)
            shape = buffer.constant_shape()
            found.append(draw.integers(r.min, r.max, shape, r.dtype, endpoint=True))
    if kinds[0].is_float:
        return found
    ranges = [np.iinfo(k.numpy) for k in kinds]
    ends = itertools.product(*[(r.min, -1 if r.min else 0, 1, r.max) for r in ranges])
    for n, values in enumerate(ends):
        for array, value in zip(map(instances, found), values, strict=True):
            array[n] = value
    return found


def instances(array: np.ndarray) -> np.ndarray:
    """A view whose first dimension counts the instances: rows lie apart where there are two."""
    if len(array) != 2:
        return array
    count = COUNT if array.shape[1] % COUNT == 0 else FEW
    return array.reshape(2, count, -1).swapaxes(0, 1)


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The exact sum, in the type of the result."""
    wide = np.float64 if c.dtype.kind == "f" else np.int64
    x, y, z = (instances(v).astype(wide) for v in (a, b, c))
    total = np.einsum("nk,njk->nj" if x.ndim == 2 else "nik,njk->nij", x, y) + z
    found = np.empty_like(c)
    instances(found)[...] = total.astype(c.dtype)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_computes_what_is_described(name):
    sch = many(name, FEW)
    a, b, c = inputs(sch.func)
    wanted = expected(a, b, c)
    run(sch.func, a, b, c)
    if c.dtype.kind == "f":
        np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(c, wanted)


def test_emulated_code_computes_what_the_interpreter_does(tmp_path):
    """On 1,100 inputs and the extremes: bit by bit, sums that are rounded to odd too."""
    require_emulator()
    emulated, all_ = Emulated(tmp_path), {}
    for name in NAMES:
        sch = many(name, COUNT)
        a, b, c = inputs(sch.func)
        wanted = expected(a, b, c)
        if c.dtype.kind == "f":
            wanted = meaning(a, b, c)
        emulated.add(sch.func, a, b, c)
        all_[name] = (c, wanted)
    emulated.run()
    for name, (c, wanted) in all_.items():
        np.testing.assert_array_equal(c, wanted, err_msg=name)


def meaning(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What the declared meanings of the instructions on bfloat16 give."""
    found = c.copy()
    for x, y, z in zip(instances(a), b, instances(found), strict=True):
        by_lane = z.ndim == 1
        operands = (np.repeat(x[None], 4, axis=0), y) if by_lane else (x, y)
        z[...] = (bfloat_dots if by_lane else bfloat_matmul)(z.ravel(), *operands).reshape(z.shape)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_assembly_holds_the_instruction(name):
    (word,) = {m for form, m in MNEMONICS.items() if form in name}
    assert re.search(rf"\t{word}\t", compile_func(many(name, 3).func, EMULATED).asm())


@pytest.mark.parametrize("name", NAMES)
def test_a_target_without_the_feature_is_told(name):
    (feature,) = TensorIntrin.get(name).needs
    target = Target.of("llvm -mcpu=cortex-a72")
    with pytest.raises(BuildError, match=f"needs the feature {feature}, which the target lacks"):
        compile_func(many(name, 3).func, target)


def test_sums_rounded_to_odd():
    """An inexact sum ends in 1; subnormal numbers count as zero."""
    one, tiny = np.float32(1), np.float32(2.0**-30)
    near = np.array([one, one, one, -one, 0, 1e-40], np.float32)
    more = np.array([tiny, -tiny, 2.0**-23, -tiny, 1e-40, 1.0], np.float32)
    up, down = np.nextafter(one, np.float32(2)), np.nextafter(one, np.float32(0))
    wanted = np.array([up, down, up, -up, 0, 1], np.float32)
    np.testing.assert_array_equal(odd_sum(near, more), wanted)


def test_odd_sums_of_random_numbers_lie_next_to_the_exact_ones():
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=4000).astype(np.float32) * 2.0 ** draw.integers(-30, 30, 4000)
            for _ in range(2))  # fmt: skip
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact = a.astype(np.longdouble) + b.astype(np.longdouble)
    got = odd_sum(a, b)
    inexact = got.astype(np.longdouble) != exact
    assert inexact.any() and (got.view(np.int32)[inexact] & 1).all()
    assert (np.abs(got.astype(np.longdouble) - exact) < np.spacing(np.abs(got))).all()
