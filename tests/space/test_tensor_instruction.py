"""use_tensor_instruction: what it offers, what its candidates compute, what rejects them."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import Schedule, TensorIntrin, build, lower
from metasched.analysis.block import AUTO_TENSORIZE, TENSOR_CHOICE
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Allocate, For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_postprocs, default_space
from metasched.postproc import run_postprocs
from metasched.postproc.tensorize import RewriteTensorize
from metasched.registry import taken_back
from metasched.schedule.selfcheck import check_module
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.tensor_form import forms, lane_shape
from metasched.target import Target
from metasched.workloads import get

VNNI = Target.of("llvm -mcpu=znver4 -num-cores=2")
OLD = Target.of("llvm -mcpu=haswell -num-cores=2")
HERE = Target.native()


def tensor_spaces(func: PrimFunc, target: Target = VNNI):
    generator = SpaceGenerator(default_modules(target))
    found = generator.generate(func, target)
    assert not generator.failures
    return [trace for trace in found if AUTO_TENSORIZE in str(trace)]


def drawn(func: PrimFunc, trace, target: Target, seed: int) -> Schedule:
    sch = Schedule(func, seed=seed)
    trace.apply(sch, decisions="fresh")
    run_postprocs(sch, target, default_postprocs(target))
    check_module(sch.mod)
    return sch


def filled(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Whole numbers over the range of bytes; small ones of floats."""
    draw, found = np.random.default_rng(seed), []
    for buffer in func.buffers:
        dtype = buffer.dtype.numpy
        info = np.iinfo(dtype if np.issubdtype(dtype, np.integer) else "int8")
        low, high = (info.min, info.max) if info.bits == 8 and info.dtype == dtype else (-3, 3)
        found.append(draw.integers(low, high, buffer.constant_shape(), endpoint=True).astype(dtype))
    return found


def computes_the_same(func: PrimFunc, target: Target = VNNI, *, draws: int = 2) -> Schedule:
    """Every tensor space of a program gives its numbers, compiled, and its first draw interpreted
    too."""
    wanted = filled(func)
    run(func, *wanted)
    spaces = tensor_spaces(func, target)
    assert spaces
    for trace in spaces:
        for seed in range(draws):
            sch = drawn(func, trace, target, seed)
            assert "call_llvm_pure_intrin" in sch.mod.script()
            results = []
            if HERE.supports(target) is None:
                results.append(filled(func))
                build(sch.mod, target=target)(*results[0])
            if seed == 0 or not results:
                results.append(filled(func))
                run(sch.mod, *results[-1])
            for given in results:
                for a, b in zip(given, wanted, strict=True):
                    np.testing.assert_array_equal(a, b)
    return sch


def test_the_target_decides_what_is_offered():
    func = get("gmm_u8s8s32").func((1, 16, 32, 16))
    (new,), (old,) = tensor_spaces(func), tensor_spaces(func, OLD)
    assert "x86.vnni.dot_16x4_u8i8i32,x86.avx512bw.dot_16x4_u8i8i32" in str(new)
    assert TENSOR_CHOICE in str(new)
    assert "x86.avx2.dot_8x4_u8i8i32" in str(old) and TENSOR_CHOICE not in str(old)
    assert not tensor_spaces(func, Target.of("llvm -mcpu=x86-64-v2 -num-cores=2"))
    assert not tensor_spaces(get("gmm").func((1, 16, 32, 16)))


def test_accumulators_stay_in_registers():
    """Through the whole reduction: a row of the block is loaded and stored outside of its loop."""
    func = get("gmm_u8s8s32").func((1, 64, 64, 256))
    (trace,) = tensor_spaces(func)
    sch = drawn(func, trace, VNNI, 3)
    assert "lanes.interleave_16x4_int8" in str(sch.trace)
    script = sch.mod.script()
    inner = script[script.index("Z_o_update") :]
    assert 'scope="local"' in inner.partition("vpdpbusd")[0]


def test_a_shared_operand_that_lies_across_is_copied_first():
    @T.prim_func
    def across(
        A: T.Buffer((16, 12), "uint8"),
        B: T.Buffer((16, 32), "int8"),
        C: T.Buffer((12, 32), "int32"),
    ):
        for i, j, k in T.grid(12, 32, 16):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] += T.cast(A[vk, vi], "int32") * T.cast(B[vk, vj], "int32")

    computes_the_same(across)


def test_an_operand_of_the_lanes_that_lies_across():
    @T.prim_func
    def transposed(
        A: T.Buffer((12, 16), "uint8"),
        B: T.Buffer((32, 16), "int8"),
        C: T.Buffer((12, 32), "int32"),
    ):
        for i, j, k in T.grid(12, 32, 16):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] += T.cast(A[vi, vk], "int32") * T.cast(B[vj, vk], "int32")

    computes_the_same(transposed)


def test_an_epilogue_is_fused():
    @T.prim_func
    def quantized(
        A: T.Buffer((12, 16), "uint8"),
        B: T.Buffer((16, 32), "int8"),
        S: T.Buffer((32,), "float32"),
        D: T.Buffer((12, 32), "uint8"),
    ):
        C = T.alloc_buffer((12, 32), "int32")
        for i, j, k in T.grid(12, 32, 16):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] += T.cast(A[vi, vk], "int32") * T.cast(B[vk, vj], "int32")
        for i, j in T.grid(12, 32):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.cast(
                    T.max(
                        T.min(T.cast(C[vi, vj], "float32") * S[vj], T.float32(255)), T.float32(0)
                    ),
                    "uint8",
                )

    sch = computes_the_same(quantized)
    assert "reverse_compute_at" in str(sch.trace)


def test_odd_sizes_are_padded():
    """Packing is an instruction then, without conditions; constants are packed ahead of time."""
    func = get("gmm_u8s8s32").func((1, 12, 37, 18))
    texts = [str(trace) for trace in tensor_spaces(func)]  # padded before, or where it is packed
    assert len(texts) == 2 and all("padding=[1, 1, 16, 4]" in text for text in texts)
    assert all("lanes.interleave_16x4_int8" in text for text in texts)
    constant = tensor_spaces(get("gmm_u8s8s32").func((1, 12, 37, 16), True))
    assert constant and all("pad_einsum" not in str(trace) for trace in constant)


def test_a_short_group_that_cannot_be_padded_is_refused_and_said():
    @T.prim_func
    def windows(
        A: T.Buffer((18,), "uint8"), B: T.Buffer((3, 32), "int8"), C: T.Buffer((16, 32), "int32")
    ):
        for i, j, k in T.grid(16, 32, 3):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] += T.cast(A[vi + vk], "int32") * T.cast(B[vk, vj], "int32")

    generator = SpaceGenerator(default_modules(VNNI))
    assert all(AUTO_TENSORIZE not in str(trace) for trace in generator.generate(windows, VNNI))
    messages = [one.message for one in generator.refusals]
    assert any("indices of A in C are not distinct iterators" in one for one in messages), messages


def test_a_candidate_without_its_instruction_is_rejected():
    func = get("gmm_u8s8s32").func((1, 16, 32, 16))
    (trace,) = tensor_spaces(func)
    sch = Schedule(func)
    trace.apply(sch)
    with pytest.raises(ScheduleError, match=r"needs avx512vnni, which the target lacks") as error:
        RewriteTensorize()(sch, OLD)
    assert error.value.reason == "no-instruction"
    plain = Schedule(func)
    plain.annotate("Z", AUTO_TENSORIZE, "x86.vnni.dot_16x4_u8i8i32")
    with pytest.raises(ScheduleError, match="Z does not match x86.vnni.dot_16x4_u8i8i32"):
        RewriteTensorize()(plain, VNNI)


def test_the_default_space_of_this_machine_holds_its_instruction():
    func = get("gmm_u8s8s32").func((1, 16, 32, 16))
    offered = any(AUTO_TENSORIZE in str(trace) for trace in default_space(HERE).generate(func))
    can = any(
        lane_shape(TensorIntrin.get(name).desc) and not TensorIntrin.get(name).lacks(HERE.features)
        for name in TensorIntrin.names()
    )
    assert offered == can


def test_a_long_reduction_is_offered_in_slices():
    func = get("gmm_u8s8s32").func((1, 32, 64, 4096))
    whole, sliced = tensor_spaces(func)
    assert "rfactor" not in str(whole) and "rfactor" in str(sliced)


def test_few_rows_are_packed_within_the_loops_of_the_reduction():
    """A panel of the whole operand would be written once and read once."""
    func = get("gmm_u8s8s32").func((1, 1, 64, 256))
    for trace in tensor_spaces(func):
        script = drawn(func, trace, VNNI, 1).mod.script()
        starts = [script.index(word) for word in ("_o_init", "Y_reindex_o", "_o_update")]
        assert starts == sorted(starts)
    computes_the_same(func, draws=1)


def test_a_core_packs_into_memory_of_its_own():
    """The panel is as large as the part of the operand that an iteration of the core reads."""
    func = get("gmm_u8s8s32").func((1, 8, 128, 1024))
    for trace in tensor_spaces(func):
        sch = drawn(func, trace, VNNI, 1)
        panels = [
            (node, loop)
            for loop in walk_stmts(lower(sch.mod).body)
            if isinstance(loop, For) and loop.kind is ForKind.PARALLEL
            for node in walk_stmts(loop)
            if isinstance(node, Allocate) and node.buffer.name.startswith("Y_reindex")
        ]
        ((node, loop),) = panels
        (size,) = node.buffer.constant_shape()
        assert 0 < size <= 128 * 1024 // as_int(loop.extent)


def test_signed_bytes_are_also_offered_as_unsigned_by_signed_bytes():
    """With the columns summed once; where an instruction takes signed bytes, only by itself."""
    func = get("gmm_s8s8s32").func((1, 24, 32, 64))
    spaces = tensor_spaces(func)
    fast = [t for t in spaces if "x86.vnni.dot_16x4_u8i8i32" in str(t)]
    assert fast and len(fast) < len(spaces)
    for trace in fast:
        assert 'dtype="uint8", offset=-128' in str(trace)
        script = drawn(func, trace, VNNI, 0).mod.script()
        assert 'Z_sum = T.alloc_buffer((1, 32), "int32"' in script
    computes_the_same(func)
    assert not any(
        "uint8" in str(t) for t in tensor_spaces(get("gmm_s8s8s32").func((1, 8, 32, 64)))
    )
    arm = Target.of("llvm -mtriple=aarch64-linux-gnu -num-cores=2 -mattr=+v8.4a,+dotprod")
    assert not any("uint8" in str(t) for t in tensor_spaces(func, arm))


def test_few_rows_are_packed_in_registers():
    """Four vectors of columns at once, as long as all rows of a tile fit the registers."""
    for rows, columns, wide in (
        (1, 256, 64),
        (6, 256, 64),
        (7, 256, 32),
        (16, 256, 16),
        (1, 48, 16),
    ):
        func = get("gmm_u8s8s32").func((1, rows, columns, 64))
        trace = tensor_spaces(func)[0]
        assert f"lanes.interleave_{wide}x4_int8" in str(trace), (rows, columns)
        script = lower(drawn(func, trace, VNNI, 0).mod).script()
        assert "Y_reindex = T.allocate" in script and 'int8", scope="local' in script
    assert "lanes.interleave_32x2_bfloat16" in str(
        tensor_spaces(get("gmm_bf16").func((1, 4, 64, 64)))[0]
    )


def test_cores_share_a_long_reduction_of_few_rows():
    """Each reads rows of its own of a large operand from end to end."""
    func = get("gmm_u8s8s32").func((1, 2, 256, 512))
    (trace,) = [t for t in tensor_spaces(func) if "partial_reduction" in str(t)]
    for seed in range(3):
        sch = drawn(func, trace, VNNI, seed)
        loops = sch.state.loops_above(sch.state.block(sch.get_block("Y_reindex_o")))
        parts = sch.get(sch.get_block("Y_reindex_o")).iter_vars[0].dom.extent
        assert loops[0].kind is ForKind.PARALLEL
        assert as_int(parts) in (2, 4, 8) and as_int(loops[0].extent) % as_int(parts) == 0
    computes_the_same(func, draws=2)
    for small in ((1, 2, 64, 512), (1, 17, 256, 512)):
        spaces = tensor_spaces(get("gmm_u8s8s32").func(small))
        assert spaces and all("partial_reduction" not in str(t) for t in spaces)


def test_of_one_family_the_widest_that_fits_is_offered():
    """Another family, a plug-in's for example, is offered beside it."""
    func = get("gmm_u8s8s32").func((1, 12, 32, 16))
    sch = Schedule(func)
    node = sch.get(sch.get_block("Z"))
    known = [name for name in TensorIntrin.names() if name.endswith("4_u8i8i32")]
    assert [form.lanes for form in forms(node, 512, VNNI.features, known)] == [16, 8, 4]
    with taken_back(always=True):
        narrow = TensorIntrin.get("x86.vnni.dot_8x4_u8i8i32")
        TensorIntrin.register("test.dot_8x4_u8i8i32", narrow.desc, narrow.impl)
        spaces = tensor_spaces(func)
    assert len(spaces) == 2
    assert "x86.vnni.dot_16x4" in str(spaces[0]) and "x86.vnni.dot_8x4" not in str(spaces[1])
    assert "test.dot_8x4" in str(spaces[1])


def test_slow_instructions_are_left_out():
    func = get("gmm_u8s8s32").func((1, 12, 32, 16))
    sch = Schedule(func)
    node = sch.get(sch.get_block("Z"))
    names = [n for form in forms(node, 512, VNNI.features) for n in form.names]
    assert "x86.avx512bw.dot_16x4_u8i8i32" in names and "x86.avx2.dot_8x4_u8i8i32" not in names
    assert "x86.avx2.dot_8x4_u8i8i32" in forms(node, 256, OLD.features)[0].names
