"""Vector accesses at known offsets: what they load, and that no gather is left."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
from codegen.kernels import agree, build, integers, program
from hypothesis import given, settings
from hypothesis import strategies as st
from space.fences import Fenced

import metasched as ms
from metasched.script import parse
from metasched.target import Target

TEXT = """
@T.prim_func
def main(C: T.Buffer(({rows}, {row}), "int32"), D: T.Buffer(({n},), "int32")):
    for j in T.vectorized({n}):
        with T.block("D"):
            vj = T.axis.spatial({n}, j)
            D[vj] = C[vj // {part}, vj % {part} + {shift}]
"""


def text(n: int, part: int, row: int, shift: int = 0) -> str:
    return TEXT.format(n=n, part=part, row=row, rows=-(-n // part), shift=shift)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 40), part=st.integers(1, 20), more=st.integers(0, 6), shift=st.integers(0, 3)
)
def test_parts_of_rows_are_loaded(n, part, more, shift):
    row = part + more + shift
    c = integers((-(-n // part), row), "int32")
    agree(text(n, part, row, shift), c, np.zeros(n, "int32"))


@pytest.mark.parametrize(("n", "part", "row"), [(8, 2, 4), (16, 8, 24), (8, 4, 4), (32, 16, 256)])
def test_rows_of_tiles_are_loaded_without_a_gather(n, part, row):
    assert "gather" not in build(text(n, part, row)).llvm_ir


NEAR = """
@T.prim_func
def main(C: T.Buffer((5, 90), "{dtype}"), D: T.Buffer((5, 48), "{dtype}")):
    for i in range(5):
        for j in T.serial({vectors}):
            for k in T.vectorized({lanes}):
                with T.block("D"):
                    vi = T.axis.spatial(5, i)
                    vj = T.axis.spatial(48, j * {lanes} + k)
                    D[vi, vj] = {value}
"""


@settings(max_examples=40, deadline=None)
@given(
    lanes=st.sampled_from([4, 6, 8, 16, 24, 48]), part=st.integers(1, 24), by=st.integers(-2, 2),
    across=st.integers(-2, 2), dtype=st.sampled_from(["float32", "uint8", "bfloat16", "bool"]),
    masked=st.booleans(),
)  # fmt: skip
def test_lanes_close_together_are_loaded(lanes, part, by, across, dtype, masked):
    numbers = [j // part * by + j % part * across for j in range(48)]
    low = min(numbers)
    index = f"vj // {part} * {by} + vj % {part} * {across} + {-low}"
    if max(numbers) - low >= 90:
        return
    value = f"C[vi, {index}]"
    if masked:
        value = f'T.if_then_else(vj % 3 == 0, {value}, T.cast(1, "{dtype}"))'
    text = NEAR.format(dtype=dtype, lanes=lanes, vectors=48 // lanes, value=value)
    arrays = (integers((5, 90), dtype), integers((5, 48), dtype))
    agree(text, *arrays)


SCALES = """
@T.prim_func
def main(W: T.Buffer((96,), "float32"), S: T.Buffer((4, 3), "float32"),
         D: T.Buffer((4, 96), "float32"), m: T.int32):
    for k in range(m):
        for j in range(4):
            for n in T.vectorized(64):
                with T.block("D"):
                    vj, vk = T.axis.spatial(4, j), T.axis.spatial(96, k * 64 + n)
                    T.where(k * 64 + n < 96)
                    D[vj, vk] = W[vk] * S[vj, vk // 32]
"""


def test_an_element_that_no_lane_needs_is_not_loaded():
    """The last lanes would read S[3, 3], where memory may end: a child process reads to an end."""
    kernel = ms.build(program(SCALES))  # serial: threads do not live on in a child process
    fences = [Fenced(4 * size) for size in (96, 12, 384)]
    w, s, d = (
        fence.array(np.zeros(shape, "float32"))
        for fence, shape in zip(fences, ((96,), (4, 3), (4, 96)), strict=True)
    )
    w[...], s[...] = np.arange(96), np.arange(12).reshape(4, 3)
    child = os.fork()
    if not child:
        kernel(w, s, d, 2)
        os._exit(not np.array_equal(d, w * np.repeat(s, 32, axis=1)))
    assert os.waitpid(child, 0)[1] == 0, "it read beyond an array, or computed other values"


@pytest.mark.parametrize(
    ("index", "gathers"),
    [("vj // 2", 0), ("vj % 8", 0), ("vj // 2 + vj % 2 * 2", 0), ("vj // 2 * 3 + vj % 2", 0),
     ("vj % 2 * 40", 1), ("vj * 5 % 48", 1)],
)  # fmt: skip
def test_lanes_close_together_are_loaded_without_a_gather(index, gathers):
    text = NEAR.format(dtype="float32", lanes=16, vectors=3, value=f"C[vi, {index}]")
    kernel = build(text, target=Target.of("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu"))
    assert ("masked.gather" in kernel.llvm_ir) == bool(gathers)


CLAMPED = """
@T.prim_func
def main(C: T.Buffer((3, 60), "{dtype}"), D: T.Buffer((3, 5, 48), "{dtype}")):
    for i, r in T.grid(3, 5):
        for j in T.unroll({vectors}):
            for k in T.vectorized({lanes}):
                with T.block("D"):
                    vi, vr = T.axis.remap("SS", [i, r])
                    vj = T.axis.spatial(48, j * {lanes} + k)
                    D[vi, vr, vj] = {value}
"""
LIMITS = (
    "T.min(vj + vr, {at})", "T.max(vj - vr, {at})", "T.min({at} + vr, vj + 2 * vr)",
    "T.max({at}, vj + vr) + vr", "vj + T.min(vr, {at} // 9)", "{at} - T.min(vj, {at})",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    limit=st.sampled_from(LIMITS), at=st.integers(0, 47), lanes=st.sampled_from([4, 6, 16, 48]),
    dtype=st.sampled_from(["float32", "int8", "bfloat16", "bool"]), masked=st.booleans(),
)  # fmt: skip
def test_lanes_up_to_a_limit_are_loaded(limit, at, lanes, dtype, masked):
    value = f"C[vi, {limit.format(at=at)}]"
    if masked:
        value = f'T.if_then_else(vj % 3 == 0, {value}, T.cast(1, "{dtype}"))'
    text = CLAMPED.format(dtype=dtype, lanes=lanes, vectors=48 // lanes, value=value)
    agree(text, integers((3, 60), dtype), integers((3, 5, 48), dtype))


@pytest.mark.parametrize("limit", ["T.min(vj + vr, 30)", "T.max(11, vr + vj - 8)"])
def test_lanes_up_to_a_limit_are_loaded_without_a_gather(limit):
    text = CLAMPED.format(dtype="float32", lanes=16, vectors=3, value=f"C[vi, {limit}]")
    target = Target.of("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu")
    found = build(text, target=target).llvm_ir
    assert "masked.gather" not in found and "masked.load" in found


@pytest.mark.parametrize("index", ["x + T.min(j, 3) * 7", "x + j // 2", "x * 2 + j % 4"])
def test_a_value_of_each_lane_beside_known_numbers(index):
    """The lanes of x are not known, so the pointer of the first lane is not that of the others."""
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((60,), "int32"), B: T.Buffer((8,), "int32")):
    for j in T.vectorized(8):
        n = T.allocate((1,), "int32")
        n[0] = 0
        while n[0] < A[j]:
            n[0] = n[0] + 1
            x = A[j]
            B[j] = C[{index}]
""")
    data = np.array([3, 1, 4, 1, 5, 9, 2, 6], "int32")
    found = np.zeros(8, "int32")
    ms.build(func)(data, np.arange(60, dtype="int32"), found)
    assert found.tolist() == [
        eval(index, {"x": int(x), "j": j, "T": SimpleNamespace(min=min)})
        for j, x in enumerate(data)
    ]


def test_lanes_that_run_parts_of_a_loop_of_their_own():
    sch = ms.Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((4, 6), "int32"), U: T.Buffer((4, 6), "int32")):
    for j, i in T.grid(6, 4):
        with T.block("U"):
            vj, vi = T.axis.remap("SS", [j, i])
            U[vi, vj] = A[vi, vj]
""")
    )
    j, i = sch.get_loops("U")
    sch.partition_at(j, i, 0)
    sch.vectorize(j)
    data, found = np.arange(24, dtype="int32").reshape(4, 6), np.zeros((4, 6), "int32")
    ms.build(sch)(data, found)
    assert np.array_equal(found, data)


POOL = """
@T.prim_func
def main(C: T.Buffer((112,), "int32"), D: T.Buffer(({n},), "int32")):
    for j in T.vectorized({n}):
        D[j] = 0
    for q in T.unroll(3):
        for j in T.vectorized({n}):
            D[j] = D[j] + T.if_then_else(
                {inside}, C[T.max(T.min(j * 2 + q - 1, 111), 0)] + C[j * 2 + q - 1], 0)
"""


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 60), low=st.integers(0, 40), high=st.integers(-2, 112),
       order=st.sampled_from(["<", "<=", ">", ">="]))  # fmt: skip
def test_conditions_of_lanes_with_known_values(n, low, high, order):
    place = "j * 2 + q - 1"
    inside = f"{place} >= {low} and {place} < 112 and {place} {order} {high}"
    agree(POOL.format(n=n, inside=inside), integers((112,), "int32"), np.zeros(n, "int32"))


def test_vectors_inside_of_a_border_need_no_mask():
    def masked(n: int) -> int:
        func = parse(POOL.format(n=n, inside="j * 2 + q >= 1").replace(
            "C[T.max(T.min(j * 2 + q - 1, 111), 0)] + ", ""
        ))  # fmt: skip
        text = build(func, target=Target.of("llvm -mcpu=x86-64-v4")).llvm_ir
        return text.count("masked.gather") + text.count("masked.load")

    assert masked(16) == masked(32) == masked(48) > 0


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("by", [0, 1, 2])
def test_lanes_at_known_numbers_begin_behind_their_sum(lanes, by):
    source = f"""
@T.prim_func
def main(A: T.Buffer((200,), "float32"), B: T.Buffer((40,), "float32")):
    for i in range(2):
        for v in T.vectorized({lanes}):
            B[i * {lanes} + v] = A[i * 20 + T.shift_left(v, {by}) + 5]
"""
    agree(source, integers((200,)), np.zeros(40, "float32"))
