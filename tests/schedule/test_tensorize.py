"""tensorize: the call, every refusal, and that each intrinsic computes its description."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from oracle import check_refused, check_transform
from schedule.intrinsic_families import described, registered

from metasched import TensorIntrin, einsum
from metasched.errors import RegistryError, VerifyError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of
from metasched.runtime.build import build
from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
from metasched.schedule.tensorize_mapping import (
    get_tensorize_loop_mapping,
    tile_with_tensor_intrin,
)
from metasched.script import tir as T
from metasched.target import Target


@T.prim_func
def mma_desc(
    A: T.Buffer((4, 4), "int32", offset_factor=1),
    B: T.Buffer((4, 4), "int32", offset_factor=1),
    C: T.Buffer((4, 4), "int32", offset_factor=1),
):
    with T.block("root"):
        T.reads(C[0:4, 0:4], A[0:4, 0:4], B[0:4, 0:4])
        T.writes(C[0:4, 0:4])
        for i, j, k in T.grid(4, 4, 4):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def mma_impl(a: T.handle, b: T.handle, c: T.handle):
    sa = T.int32()
    sb = T.int32()
    sc = T.int32()
    A = T.match_buffer(a, (4, 4), "int32", strides=[sa, 1], offset_factor=1)
    B = T.match_buffer(b, (4, 4), "int32", strides=[sb, 1], offset_factor=1)
    C = T.match_buffer(c, (4, 4), "int32", strides=[sc, 1], offset_factor=1)
    with T.block("root"):
        T.reads(C[0:4, 0:4], A[0:4, 0:4], B[0:4, 0:4])
        T.writes(C[0:4, 0:4])
        T.block_attr({"made_by": "test"})
        for i, k in T.grid(4, 4):
            C[i, T.ramp(0, 1, 4)] = (
                C[i, T.ramp(0, 1, 4)] + T.broadcast(A[i, k], 4) * B[k, T.ramp(0, 1, 4)]
            )


@T.prim_func
def compact_impl(
    A: T.Buffer((4, 4), "int32", offset_factor=1),
    B: T.Buffer((4, 4), "int32", offset_factor=1),
    C: T.Buffer((4, 4), "int32", offset_factor=1),
):
    with T.block("root"):
        T.reads(C[0:4, 0:4], A[0:4, 0:4], B[0:4, 0:4])
        T.writes(C[0:4, 0:4])
        b = B.vload([0, 0], dtype="int32x16")
        for i, j, k in T.grid(4, 4, 4):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@pytest.fixture(autouse=True)
def intrinsics(registries: None) -> None:
    """For each test alone: the default space offers every registered intrinsic."""
    TensorIntrin.register("test.mma", mma_desc, mma_impl)
    TensorIntrin.register("test.compact", mma_desc, compact_impl)


@T.prim_func
def matmul(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + B[vk, vj] * A[vi, vk]


@T.prim_func
def matmul_mma(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    T.func_attr({"global_symbol": "matmul"})
    for i_0, j_0 in T.grid(2, 2):
        for i_1, j_1 in T.grid(4, 4):
            with T.block("C_init"):
                vi = T.axis.spatial(8, i_0 * 4 + i_1)
                vj = T.axis.spatial(8, j_0 * 4 + j_1)
                T.reads()
                T.writes(C[vi, vj])
                C[vi, vj] = 0
        for k_0 in range(2):
            with T.block("C_update_o"):
                vio, vjo, vko = T.axis.remap("SSR", [i_0, j_0, k_0])
                T.reads(
                    C[vio * 4 : vio * 4 + 4, vjo * 4 : vjo * 4 + 4],
                    B[vko * 4 : vko * 4 + 4, vjo * 4 : vjo * 4 + 4],
                    A[vio * 4 : vio * 4 + 4, vko * 4 : vko * 4 + 4],
                )
                T.writes(C[vio * 4 : vio * 4 + 4, vjo * 4 : vjo * 4 + 4])
                T.block_attr({"made_by": "test"})
                sa = T.int32()
                A_1 = T.match_buffer(
                    A[vio * 4 : vio * 4 + 4, vko * 4 : vko * 4 + 4],
                    (4, 4), "int32", strides=[sa, 1], offset_factor=1,
                )  # fmt: skip
                sb = T.int32()
                B_1 = T.match_buffer(
                    B[vko * 4 : vko * 4 + 4, vjo * 4 : vjo * 4 + 4],
                    (4, 4), "int32", strides=[sb, 1], offset_factor=1,
                )  # fmt: skip
                sc = T.int32()
                C_1 = T.match_buffer(
                    C[vio * 4 : vio * 4 + 4, vjo * 4 : vjo * 4 + 4],
                    (4, 4), "int32", strides=[sc, 1], offset_factor=1,
                )  # fmt: skip
                for i, k in T.grid(4, 4):
                    C_1[i, T.ramp(0, 1, 4)] = (
                        C_1[i, T.ramp(0, 1, 4)]
                        + T.broadcast(A_1[i, k], 4) * B_1[k, T.ramp(0, 1, 4)]
                    )


def tiled(func=matmul, factors=(4, 4, 4)):
    sch = Schedule(func, seed=0)
    pairs = [sch.split(rv, [None, f]) for rv, f in zip(sch.get_loops("C"), factors, strict=True)]
    sch.reorder(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return sch, [p[0] for p in pairs], [p[1] for p in pairs]


def test_a_tile_becomes_a_call():
    sch, outer, inner = tiled()
    sch.decompose_reduction("C", outer[2])
    sch.tensorize(inner[0], "test.mma")
    assert_structural_equal(sch.mod["main"], matmul_mma)
    check_transform(matmul, sch)


def test_the_init_stays_with_the_block():
    sch, _, inner = tiled()
    sch.tensorize(inner[0], "test.mma")
    (block,) = [r.block for r in blocks_of(sch.func.body) if r.block.name == "C_o"]
    assert block.init is not None and len(block.match_buffers) == 3
    check_transform(matmul, sch)


def test_a_block_keeps_its_handle():
    sch, _, inner = tiled()
    outer = sch.blockize(inner[0])
    sch.tensorize(outer, "test.mma")
    assert sch.get(outer).name == "C_o"
    again, _, inner = tiled()
    again.blockize(inner[0])
    again.tensorize("C_o", "test.mma")
    assert_structural_equal(again.mod, sch.mod)
    check_transform(matmul, sch)


def test_leading_dimensions_are_points():
    @T.prim_func
    def batched(
        A: T.Buffer((2, 4, 4), "int32"),
        B: T.Buffer((4, 8), "int32"),
        C: T.Buffer((2, 4, 8), "int32"),
    ):
        for b, i, j, k in T.grid(2, 4, 8, 4):
            with T.block("C"):
                vb, vi, vj, vk = T.axis.remap("SSSR", [b, i, j, k])
                with T.init():
                    C[vb, vi, vj] = 0
                C[vb, vi, vj] = C[vb, vi, vj] + A[vb, vi, vk] * B[vk, vj]

    sch = Schedule(batched, seed=0)
    _, i, j, k = sch.get_loops("C")
    j0, j1 = sch.split(j, [None, 4])
    sch.reorder(j0, i, j1, k)
    sch.tensorize(i, "test.mma")
    check_transform(batched, sch)


@T.prim_func
def dense(
    A: T.Buffer((3, 16), "uint8"),
    W: T.Buffer((2, 4, 16, 4), "int8"),
    C: T.Buffer((3, 32), "int32"),
):
    for i, j, k in T.grid(3, 32, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(
                W[vj // 16, vk // 4, vj % 16, vk % 4], "int32"
            )


def test_the_byte_product_of_vnni():
    sch = Schedule(dense, seed=0)
    i, j, k = sch.get_loops("C")
    j0, j1 = sch.split(j, [None, 16])
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i, j0, k0, j1, k1)
    sch.decompose_reduction("C", k0)
    sch.tensorize(j1, "x86.vnni.dot_16x4_u8i8i32")
    able = "avx512vnni" in " ".join(Target.native().features)
    check_transform(dense, sch, compiled=able)
    if able:
        assert "vpdpbusd" in build(sch.mod).asm


@T.prim_func
def dense_bf16(
    A: T.Buffer((3, 16), "bfloat16"),
    W: T.Buffer((2, 8, 16, 2), "bfloat16"),
    C: T.Buffer((3, 32), "float32"),
):
    for i, j, k in T.grid(3, 32, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "float32") * T.cast(
                W[vj // 16, vk // 2, vj % 16, vk % 2], "float32"
            )


def test_the_product_of_bfloat16():
    """Through the interpreter everywhere; as machine code, against NumPy, where the CPU has it."""
    sch = Schedule(dense_bf16, seed=0)
    i, j, k = sch.get_loops("C")
    j0, j1 = sch.split(j, [None, 16])
    k0, k1 = sch.split(k, [None, 2])
    sch.reorder(i, j0, k0, j1, k1)
    sch.decompose_reduction("C", k0)
    sch.tensorize(j1, "x86.avx512bf16.dot_16x2_bf16bf16f32")
    able = "avx512bf16" in " ".join(Target.native().features)
    check_transform(dense_bf16, sch, compiled=able)
    if not able:
        pytest.skip("this CPU has no avx512bf16")
    kernel = build(sch.mod)
    assert "vdpbf16ps" in kernel.asm
    draw = np.random.default_rng(0)
    bf16 = sch.func.buffers[0].dtype.numpy
    a, w = (draw.standard_normal(shape).astype(bf16) for shape in ((3, 16), (2, 8, 16, 2)))
    c = np.zeros((3, 32), np.float32)
    kernel(a, w, c)
    plain = w.astype(np.float64).transpose(1, 3, 0, 2).reshape(16, 32)
    np.testing.assert_allclose(c, a.astype(np.float64) @ plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", TensorIntrin.names())
def test_an_implementation_computes_what_is_described(name):
    intrin, draw = TensorIntrin.get(name), np.random.default_rng(0)
    args = []
    for buffer in intrin.desc.buffers:
        exact = buffer.dtype.is_float  # small integers: the order of a sum does not show
        info = np.iinfo("int8" if exact else buffer.dtype.numpy)
        low, high = (-4, 4) if exact else (info.min, info.max)
        drawn = draw.integers(low, high, buffer.constant_shape(), info.dtype, endpoint=True)
        args.append(drawn.astype(buffer.dtype.numpy))
    one, other = [a.copy() for a in args], [a.copy() for a in args]
    run(intrin.desc, *one)
    run(intrin.impl, *other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_tiling_by_an_intrinsic():
    sch = Schedule(matmul, seed=0)
    loop = tile_with_tensor_intrin(sch, "C", "test.mma")
    assert loop is not None
    assert [sch.get(rv).extent.value for rv in sch.get_loops("C")] == [2, 2, 2, 4, 4, 4]
    sch.tensorize(loop, "test.mma")
    check_transform(matmul, sch)


def test_tiling_by_an_intrinsic_that_must_be_padded_or_does_not_fit():
    @T.prim_func
    def odd(
        A: T.Buffer((7, 8), "int32"), B: T.Buffer((8, 6), "int32"), C: T.Buffer((7, 6), "int32")
    ):
        for i, j, k in T.grid(7, 6, 8):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    sch = Schedule(odd, seed=0)
    desc = TensorIntrin.get("test.mma").desc
    block = sch.get_block("C")
    assert get_tensorize_loop_mapping(sch, block, desc) is None
    assert tile_with_tensor_intrin(sch, "C", "test.mma") is None
    info = get_tensorize_loop_mapping(sch, block, desc, allow_padding=True)
    assert info.block_iter_paddings == (4, 4, 1)
    loop = tile_with_tensor_intrin(sch, "C", "test.mma", allow_padding=True)
    sch.tensorize(loop, "test.mma")
    check_transform(odd, sch)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_an_intrinsic_is_found_in_any_order_of_the_loops(order):
    desc = TensorIntrin.get("test.mma").desc
    sch = Schedule(variant("C[vi, vj] + A[vi, vk] * B[vk, vj]"), check=True)
    before = sch.mod["main"]
    loops = sch.get_loops("C")
    sch.reorder(*[loops[n] for n in order])
    found = get_tensorize_loop_mapping(sch, sch.get_block("C"), desc)
    assert [sch.get(sch.get_loops("C")[n]).var for n, _ in found.loop_map] == [
        sch.get(loop).var for loop in loops
    ]
    sch.tensorize(tile_with_tensor_intrin(sch, "C", "test.mma"), "test.mma")
    check_transform(before, sch)


def test_an_intrinsic_is_found_in_tiles():
    desc = TensorIntrin.get("test.mma").desc
    sch = Schedule(variant("C[vi, vj] + A[vi, vk] * B[vk, vj]"))
    pairs = [sch.split(loop, [None, 4]) for loop in sch.get_loops("C")]
    sch.reorder(*[outer for outer, _ in pairs], *[inner for _, inner in pairs])
    found = get_tensorize_loop_mapping(sch, sch.get_block("C"), desc)
    assert [n for n, _ in found.loop_map] == [3, 4, 5]


def test_loops_of_64_bits_match_a_description_of_32():
    @T.prim_func
    def wide(
        A: T.Buffer((T.int64(8), T.int64(8)), "int32"),
        B: T.Buffer((T.int64(8), T.int64(8)), "int32"),
        C: T.Buffer((T.int64(8), T.int64(8)), "int32"),
    ):
        for i, j, k in T.grid(T.int64(8), T.int64(8), T.int64(8)):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    sch = Schedule(wide, check=True)
    sch.tensorize(tile_with_tensor_intrin(sch, "C", "test.mma"), "test.mma")
    check_transform(wide, sch)


def test_loops_of_one_step_need_no_partner():
    """Unit loops only in the block, and only in the description."""
    rows = described({"i": 4, "j": 1, "k": 4}, "i, k", "k, j", "i, j")
    plain = described({"i": 4, "k": 4}, "i, k", "k, 0", "i, 0")
    for desc, preserve in ((rows, False), (plain, True)):
        with registered("test.rows", desc):
            sch = Schedule(einsum("ik,kj->ij", (8, 4), (4, 1), dtype="int32"))
            block = sch.get_block("Z")
            sch.decompose_reduction(block, sch.get_loops(block)[0])
            update = sch.get_block("Z_update")
            outer, inner = sch.split(sch.get_loops(update)[0], [None, 4])
            sch.tensorize(inner, "test.rows", preserve_unit_iters=preserve)
            check_transform(einsum("ik,kj->ij", (8, 4), (4, 1), dtype="int32"), sch)


def test_a_name_must_be_known():
    sch, _, inner = tiled()
    check_refused(
        sch,
        lambda: sch.tensorize(inner[0], "test.mna"),
        "unknown-intrinsic",
        "did you mean test.mma",
    )


def variant(text: str):
    """The matrix product with another update."""
    from metasched.script import parse

    return parse(
        f"""
@T.prim_func
def main(A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = {text}
"""
    )


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("C[vi, vj] + A[vi, vk] - B[vk, vj]", "Sub|stands where"),
        ("C[vi, vj] + A[vi, vk] * B[vj, vk]", "of B is not"),
        ("C[vi, vj] + A[vi, vk] * A[vk, vj]", "touches two parts|is not 4|the part"),
        ("C[vi, vj] + A[vi, vk] * 2", "stands where"),
        ("C[vi, vj] + A[vi, vk]", "stands where"),
    ],
)
def test_another_computation_does_not_match(update, message):
    sch, _, inner = tiled(variant(update))
    error = check_refused(sch, lambda: sch.tensorize(inner[0], "test.mma"), "mismatch", message)
    assert "does not match test.mma" in error.message


def test_another_structure_does_not_match():
    sch, _, inner = tiled(factors=(4, 2, 4))
    step = lambda: sch.tensorize(inner[0], "test.mma")  # noqa: E731
    check_refused(sch, step, "mismatch", "loop j_1 has extent 2, described 4")
    sch, _, inner = tiled()
    sch.reorder(inner[1], inner[0])
    step = lambda: sch.tensorize(inner[1], "test.mma")  # noqa: E731
    check_refused(sch, step, "mismatch", "among its bindings")
    sch, _, inner = tiled()
    sch.unroll(inner[1])
    step = lambda: sch.tensorize(inner[0], "test.mma")  # noqa: E731
    check_refused(sch, step, "mismatch", "loop j_1 is unroll, described serial")
    sch, _, inner = tiled()
    sch.annotate(inner[1], "note", 1)
    check_refused(sch, step, "mismatch", "other annotations")
    sch, _, inner = tiled()
    sch.annotate(sch.get_block("C"), "note", 1)
    check_refused(sch, step, "mismatch", "block C has other annotations")
    sch, _, inner = tiled()
    check_refused(sch, lambda: sch.tensorize(inner[1], "test.mma"), "mismatch", "stands where")
    sch, _, inner = tiled()
    sch.tensorize(inner[0], "test.mma")
    step = lambda: sch.tensorize("C_o", "test.mma")  # noqa: E731
    check_refused(sch, step, "mismatch", "allocates or matches buffers")


def test_iterators_and_buffers_are_as_described():
    @T.prim_func
    def spatial(
        A: T.Buffer((4, 4), "int32"), B: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32")
    ):
        for i, j, k in T.grid(4, 4, 4):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSS", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    sch = Schedule(spatial, seed=0)
    step = lambda: sch.tensorize(sch.get_loops("C")[0], "test.mma")  # noqa: E731
    with pytest.raises(Exception, match="iterator vk_i of block C is spatial, described reduce"):
        step()

    @T.prim_func
    def wide(
        A: T.Buffer((4, 4), "int64"), B: T.Buffer((4, 4), "int64"), C: T.Buffer((4, 4), "int64")
    ):
        for i, j, k in T.grid(4, 4, 4):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    sch = Schedule(wide, seed=0)
    (i, _, _) = sch.get_loops("C")
    check_refused(sch, lambda: sch.tensorize(i, "test.mma"), "mismatch", "C is int64 in global")


def test_one_buffer_in_two_roles_is_refused():
    @T.prim_func
    def square(A: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32")):
        for i, j, k in T.grid(4, 4, 4):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                T.reads(C[0:4, 0:4], A[vk, vj])
                T.writes(C[vi, vj])
                C[vi, vj] = C[vi, vj] + C[vi, vk] * A[vk, vj]

    sch = Schedule(square, seed=0)
    (i, _, _) = sch.get_loops("C")
    check_refused(sch, lambda: sch.tensorize(i, "test.mma"), "mismatch", "C stands for both")


@T.prim_func
def guarded(A: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32")):
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = T.if_then_else(vi < 3, A[vi], 0)


def test_a_part_beyond_its_buffer_is_refused():
    """The block reads A[3] under a condition that never holds; the implementation reads always.

    Found by the random machine."""
    TensorIntrin.register("test.guarded", guarded, guarded, override=True)

    @T.prim_func
    def short(A: T.Buffer((3,), "int32"), B: T.Buffer((4,), "int32")):
        for i in range(4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = T.if_then_else(vi < 3, A[vi], 0)

    sch = Schedule(short, seed=0)
    (loop,) = sch.get_loops("B")
    step = lambda: sch.tensorize(loop, "test.guarded")  # noqa: E731
    check_refused(sch, step, "beyond-buffer", r"A\[0:4\] is not proved to lie within A")


def test_memory_is_laid_out_as_the_implementation_takes_it():
    sch, _, inner = tiled()
    error = check_refused(
        sch,
        lambda: sch.tensorize(inner[0], "test.compact"),
        "layout",
        "B has stride 8 where .* takes 4",
    )
    assert "declare strides there (strides=[s0, 1]" in error.hint

    @T.prim_func
    def aligned(
        A: T.Buffer((4, 4), "int32", offset_factor=16),
        B: T.Buffer((4, 4), "int32", offset_factor=1),
        C: T.Buffer((4, 4), "int32", offset_factor=1),
    ):
        with T.block("root"):
            T.reads(C[0:4, 0:4], A[0:4, 0:4], B[0:4, 0:4])
            T.writes(C[0:4, 0:4])
            for i, j, k in T.grid(4, 4, 4):
                C[i, j] = C[i, j] + A[i, k] * B[k, j]

    TensorIntrin.register("test.aligned", mma_desc, aligned, override=True)
    check_refused(
        sch,
        lambda: sch.tensorize(inner[0], "test.aligned"),
        "misaligned",
        "multiple of 16 elements",
    )


def test_registration():
    with pytest.raises(RegistryError, match="registered already"):
        TensorIntrin.register("test.mma", mma_desc, mma_impl)
    assert TensorIntrin.get("test.nothing", allow_missing=True) is None
    with pytest.raises(RegistryError, match="no tensor_intrin is called"):
        TensorIntrin.get("test.nothing")
    assert TensorIntrin.get("test.mma").impl is mma_impl

    @T.prim_func
    def part(A: T.Buffer((4, 4), "int32")):
        with T.block("root"):
            T.reads()
            T.writes(A[0:2, 0:4])
            for i, j in T.grid(2, 4):
                A[i, j] = 1

    @T.prim_func
    def fill(A: T.Buffer((4, 4), "int32")):
        with T.block("root"):
            T.reads()
            T.writes(A[0:4, 0:4])
            for i, j in T.grid(4, 4):
                A[i, j] = 1

    @T.prim_func
    def update(A: T.Buffer((4, 4), "int32")):
        with T.block("root"):
            T.reads(A[0:4, 0:4])
            T.writes(A[0:4, 0:4])
            for i, j in T.grid(4, 4):
                A[i, j] = A[i, j] + 1

    @T.prim_func
    def scalar(A: T.Buffer((4, 4), "int32"), n: T.int32):
        with T.block("root"):
            T.reads()
            T.writes(A[0:4, 0:4])
            for i, j in T.grid(4, 4):
                A[i, j] = n

    for desc, impl, message in [
        (mma_desc, fill, "3 parameters, the implementation 1"),
        (part, fill, "which is not all of the buffer"),
        (fill, update, "the implementation reads A, the description does not"),
        (scalar, scalar, "one block over buffers"),
        (None, fill, "desc and impl are PrimFuncs, not NoneType"),
        (
            mma_desc,
            TensorIntrin.get("x86.vnni.dot_16x4_u8i8i32").impl,
            "both must be the same",
        ),
    ]:
        with pytest.raises(VerifyError, match=message):
            TensorIntrin.register("test.bad", desc, impl)


def test_intrinsics_survive_a_plug_in_file_that_asks_for_them_and_fails():
    code = (
        "from metasched.registry import taken_back; "
        "from metasched.schedule.intrinsics import TensorIntrin as I\n"
        "with taken_back(always=True): before = I.names()\n"
        "assert before and I.names() == before and I.get(before[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_of_one_thread_serves_as_memory_of_all():
    sch = Schedule(matmul, seed=0)
    sch.cache_write("C", 0, "local")
    loop = tile_with_tensor_intrin(sch, "C", "test.mma")
    sch.tensorize(loop, "test.mma")
    check_transform(matmul, sch)
    assert 'scope="local"' in sch.mod.script().partition("test")[0]
    shared = Schedule(matmul, seed=0)
    shared.cache_write("C", 0, "shared")
    loop = tile_with_tensor_intrin(shared, "C", "test.mma")
    step = lambda: shared.tensorize(loop, "test.mma")  # noqa: E731
    check_refused(shared, step, "mismatch", "C_shared is int32 in shared, C is described as int32")


def different(case: str) -> tuple[Schedule, object]:
    """A schedule, and the block or loop of it that differs from `test.mma` in one way."""
    sch, _, inner = tiled(
        variant("C[vi, vj] + A[vi, vk] * B[vj, vk]") if case == "layout" else matmul,
        (4, 2, 4) if case == "extent" else (4, 4, 4),
    )
    if case == "order":
        sch.reorder(inner[1], inner[0])
        return sch, inner[1]
    if case == "kind":
        sch.unroll(inner[1])
    if case == "loop note":
        sch.annotate(inner[1], "note", 1)
    if case == "block note":
        sch.annotate("C", "note", 1)
    if case == "depth":
        return sch, inner[1]
    if case == "scope":
        sch = Schedule(matmul, seed=0)
        sch.cache_write("C", 0, "shared")
        return sch, tile_with_tensor_intrin(sch, "C", "test.mma")
    return sch, inner[0]


@pytest.mark.parametrize(
    ("case", "step", "here"),
    [
        ("extent", "split the whole loop, of which j_1 is a part, by 4", "for j_1 in range(2):"),
        ("order", "reorder the loops as the description has them", "for j_1, i_1, k_1 in"),
        ("layout", "transform_layout B to the order of dimensions of B", "B[vj_o * 4 + vj_i"),
        ("scope", "set_scope C_shared to global, or .* (cache_read, cache_write)", "C_shared["),
        ("kind", "tensorize before loop j_1 changes its kind", "in T.unroll(4):"),
        ("loop note", "unannotate loop j_1 first", '"note": 1'),
        ("block note", "unannotate block C first", 'T.block_attr({"note": 1})'),
        ("depth", "tensorize at the loop with as many loops inside", "for j_1, k_1 in"),
    ],
)
def test_a_mismatch_shows_both_sides_and_the_step_that_aligns_them(case, step, here):
    sch, place = different(case)
    error = check_refused(sch, lambda: sch.tensorize(place, "test.mma"), "mismatch", "not match")
    assert re.search(step.replace("(", r"\(").replace(")", r"\)"), error.hint)
    rows = [
        re.split(r" \|(?: |$)", line)
        for line in str(error).partition("described: ")[2].splitlines()
    ]
    left, right = ([row[n] for row in rows if len(row) == 2] for n in (0, 1))
    assert right[0].startswith("block C_o:")
    assert any("C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]" in line for line in left)
    assert any(here in line for line in right)
    assert any("# ^" in line for line in left) and any("# ^" in line for line in right)


@pytest.mark.parametrize(
    ("case", "taken"),
    [
        ("order", lambda sch: sch.reorder(*sorted_loops(sch))),
        ("layout", lambda sch: sch.transform_layout("C", "B", lambda i, j: (j, i))),
        ("scope", lambda sch: sch.set_scope("C", 0, "global")),
        ("loop note", lambda sch: sch.unannotate(sch.get_loops("C")[4], "note")),
        ("block note", lambda sch: sch.unannotate("C", "note")),
        ("depth", lambda sch: None),
        ("kind", lambda sch: sch.undo()),
        ("extent", lambda sch: whole_tiles(sch)),
    ],
)
def test_the_step_that_a_mismatch_names_aligns_both_sides(case, taken):
    sch, place = different(case)
    check_refused(sch, lambda: sch.tensorize(place, "test.mma"), "mismatch", "not match")
    taken(sch)
    sch.tensorize(place if case == "scope" else sch.get_loops("C")[3], "test.mma")


def whole_tiles(sch: Schedule) -> None:
    """Fuse the parts of loop j, and split by the described extent."""
    i0, j0, k0, i1, j1, k1 = sch.get_loops("C")
    sch.reorder(i0, k0, i1, j0, j1, k1)
    outer, inner = sch.split(sch.fuse(j0, j1), [None, 4])
    sch.reorder(i0, outer, k0, i1, inner, k1)


def sorted_loops(sch: Schedule) -> list[LoopRV]:
    """The loops of the tile in the order of the names."""
    return sorted(sch.get_loops("C")[3:], key=lambda loop: sch.get(loop).var.name)


def test_a_mismatch_of_types_names_the_nearest_intrinsic():
    @T.prim_func
    def swapped(
        A: T.Buffer((4,), "int8"), B: T.Buffer((16, 4), "uint8"), C: T.Buffer((16,), "int32")
    ):
        for i, k in T.grid(16, 4):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    sch = Schedule(swapped, seed=0)
    loop = sch.get_loops("C")[0]
    step = lambda: sch.tensorize(loop, "x86.vnni.dot_16x4_i8i8i32")  # noqa: E731
    error = check_refused(sch, step, "mismatch", "B is uint8 in global, B is described as int8")
    assert error.hint == "the nearest intrinsic for these types is x86.vnni.dot_16x4_i8u8i32"
    sch.tensorize(loop, "x86.vnni.dot_16x4_i8u8i32")

    @T.prim_func
    def doubles(
        A: T.Buffer((4,), "float64"), B: T.Buffer((16, 4), "int8"), C: T.Buffer((16,), "float64")
    ):
        for i, k in T.grid(16, 4):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + A[vk] * T.cast(B[vi, vk], "float64")

    other = Schedule(doubles, seed=0)
    loop = other.get_loops("C")[0]
    step = lambda: other.tensorize(loop, "x86.vnni.dot_16x4_i8i8i32")  # noqa: E731
    error = check_refused(other, step, "mismatch", "C is float64 in global")
    said = "no intrinsic is registered for the types float64, float64, int8; cast the operands"
    assert said in error.hint


def test_one_buffer_in_two_roles_needs_a_copy():
    @T.prim_func
    def square(A: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32")):
        for i, j, k in T.grid(4, 4, 4):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                T.reads(C[0:4, 0:4], A[vk, vj])
                T.writes(C[vi, vj])
                C[vi, vj] = C[vi, vj] + C[vi, vk] * A[vk, vj]

    sch = Schedule(square, seed=0)
    loop = sch.get_loops("C")[0]
    error = check_refused(sch, lambda: sch.tensorize(loop, "test.mma"), "mismatch", "both")
    assert error.hint == "let the program read a copy of C: a step that makes one changes results"
