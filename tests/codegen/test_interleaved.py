"""Lanes 2 to 4 elements apart: what is loaded and stored, no access outside, no lane alone."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.measure.data import Array
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory

SUM = """
@T.prim_func
def main(A: T.Buffer(({size},), "{dtype}"), B: T.Buffer(({n},), "{dtype}")):
    for i in T.vectorized({n}):
        with T.block("B"):
            vi = T.axis.spatial({n}, i)
            B[vi] = {value}
"""
DTYPES = ["float32", "float64", "int8", "uint16", "int64", "float16", "bfloat16"]


def text(n: int, stride: int, starts: list[int], dtype: str = "float32") -> str:
    value = " + ".join(f"A[{stride} * vi + {s}]" for s in starts)
    size = stride * (n - 1) + max(starts) + 1
    return SUM.format(n=n, size=size, dtype=dtype, value=value)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 70), stride=st.integers(2, 5), dtype=st.sampled_from(DTYPES),
    starts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
)  # fmt: skip
def test_lanes_apart_are_loaded(n, stride, dtype, starts):
    source = text(n, stride, starts, dtype)
    size = stride * (n - 1) + max(starts) + 1
    agree(source, integers((size,), dtype), np.zeros(n, integers((1,), dtype).dtype))


@pytest.mark.parametrize("where", [AT_START, AT_END])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("starts", [[0], [1, 0], [2, 0, 1], [5, 2], [7, 0]])
def test_nothing_outside_of_the_lanes_is_read(where, stride, starts):
    """The page beside the array cannot be read; the array begins at the lowest load."""
    starts = [s - min(starts) for s in starts]
    n, size = 40, stride * 39 + max(starts) + 1
    layout = [
        Array(name, "float32", (m,), (1,), True, False, 0, 1, 0.0)
        for name, m in (("A", size), ("B", n))
    ]
    memory = GuardedMemory(layout, where)
    memory.write(0, integers((size,)))
    compiled = build(text(n, stride, starts))
    assert call(compiled, *memory.views) == 0
    a = integers((size,))
    wanted = sum(a[s : s + stride * 39 + 1 : stride] for s in starts)
    np.testing.assert_array_equal(memory.read(1), wanted)


def test_a_load_under_a_condition_widens_no_other_load():
    """A[2 * i + 1] is read for no i, and ends outside of A."""
    source = """
@T.prim_func
def main(A: T.Buffer((79,), "float32"), C: T.Buffer((40,), "bool"), B: T.Buffer((40,), "float32")):
    for i in T.vectorized(40):
        with T.block("B"):
            vi = T.axis.spatial(40, i)
            B[vi] = A[2 * vi] + T.if_then_else(C[vi], A[2 * vi + 1], T.float32(1))
"""
    layout = [
        Array(name, kind, (m,), (1,), True, False, 0, 1, 0.0)
        for name, kind, m in (("A", "float32", 79), ("C", "bool", 40), ("B", "float32", 40))
    ]
    memory = GuardedMemory(layout, AT_END)
    memory.write(0, integers((79,)))
    memory.write(1, np.zeros(40, bool))
    assert call(build(source), *memory.views) == 0
    np.testing.assert_array_equal(memory.read(2), integers((79,))[::2] + 1)


@pytest.mark.parametrize(("stride", "loads"), [(2, 2), (3, 3), (4, 4)])
def test_neighbours_share_whole_vectors(stride, loads):
    ir = build(text(8, stride, list(range(stride)))).llvm_ir
    body = ir[: ir.index("@kernel_repeat")]
    assert len(set(re.findall(r"load <8 x float>, ptr (%\w+)", body))) == loads
    assert "load float" not in body


PAIRS = """
@T.prim_func
def main(A: T.Buffer(({n}, {stride}), "{dtype}"), B: T.Buffer(({n}, {stride}), "{dtype}")):
    for i in T.vectorized({n}):
        with T.block("B"):
            vi = T.axis.spatial({n}, i)
{stores}
"""


def pairs(n: int, values: list[tuple[int, str]], stride: int, dtype: str = "float32") -> str:
    stores = "\n".join(f"            B[vi, {at}] = {value}" for at, value in values)
    return PAIRS.format(n=n, stride=stride, stores=stores, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2, 0, 1), (3, 1, 0, 2)])
@pytest.mark.parametrize("n", [8, 37])
def test_stores_without_gaps_are_one_store(dtype, order, n):
    stride = len(order)
    values = [(k, f"A[vi, {stride - 1 - k}] * A[vi, 0]") for k in order]
    source, zeros = pairs(n, values, stride, dtype), integers((n, stride), dtype)
    compiled = agree(source, zeros, np.zeros_like(zeros))
    if dtype == "float32" and n == 8:
        assert f"store <{8 * stride} x float>" in compiled.llvm_ir


@pytest.mark.parametrize("values", [
    [(0, "A[vi, 1]"), (1, "B[vi, 0] + A[vi, 0]")],
    [(0, "A[vi, 1]"), (0, "A[vi, 0]")],
    [(0, "T.float32(3)"), (1, "A[vi, 0]")],
    [(0, "B[vi, 1]"), (1, "A[vi, 0]")],
    [(1, "A[vi, 1]")],
])  # fmt: skip
def test_stores_that_depend_on_each_other_keep_their_order(values):
    agree(pairs(21, values, 2), integers((21, 2)), integers((21, 2), seed=1))


def test_pairs_under_a_condition_are_stored_where_it_holds():
    source = pairs(16, [(0, "A[vi, 1]"), (1, "A[vi, 0]")], 2)
    where = "            T.where(A[i, 0] > T.float32(0))\n            B[vi, 0]"
    source = source.replace("            B[vi, 0]", where, 1)
    agree(source, integers((16, 2)), np.zeros((16, 2), "float32"))


CHOICE = """
@T.prim_func
def main(A: T.Buffer((42,), "{dtype}"), I: T.Buffer((1,), "int32"), B: T.Buffer((40,), "{dtype}")):
    for i in T.vectorized(40):
        with T.block("B"):
            vi = T.axis.spatial(40, i)
            {body}
"""
HOLDS = "A[vi] + A[vi + 2] > A[0]"


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("body", "masked"), [
    (f"B[vi] = T.if_then_else({HOLDS}, A[vi + 1], T.cast(3, '{{dtype}}'))", False),
    (f"B[vi] = T.Select({HOLDS} or A[vi + 1] < A[vi], A[vi], T.cast(3, '{{dtype}}'))", False),
    (f"if {HOLDS}:\n                B[vi] = A[vi + 1] * A[vi]", False),
    ("if A[vi] > A[0]:\n                B[vi] = A[vi + 1]", True),
    ("B[vi] = T.if_then_else(I[0] > 0 and A[vi] > A[0], A[vi], A[0])", True),
    ("if A[vi + I[0]] > A[0]:\n                B[vi] = A[vi + I[0]]", True),
])  # fmt: skip
def test_a_load_between_certain_loads_needs_no_mask(dtype, body, masked):
    """Loads that a condition guards are not certain; addresses that memory decides may change."""
    source = CHOICE.format(dtype=dtype, body=body.replace("{dtype}", dtype))
    a = np.random.default_rng(0).integers(0, 9, 42).astype(dtype)
    compiled = agree(source, a, np.ones(1, "int32"), np.zeros(40, dtype))
    kernel = compiled.llvm_ir[: compiled.llvm_ir.index("@kernel_repeat")]
    assert ("masked.load" in kernel or "gather" in kernel) == masked


HALVES = """
@T.prim_func
def main(A: T.Buffer((5, 98), "{source}"), B: T.Buffer((5, 48), "{into}")):
    for i in range(5):
        for j in T.vectorized(48):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = {value}
"""


def halves(value: str, source: str, into: str) -> str:
    return HALVES.format(value=value.replace("INTO", into), source=source, into=into)


@pytest.mark.parametrize("source", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("into", ["int16", "uint16", "int32", "uint64"])
@pytest.mark.parametrize("first", [0, 1])
def test_pairs_are_widened_in_place(source, into, first):
    """The largest and smallest numbers, and both signs, in both halves."""
    numbers = np.iinfo(source)
    a = np.random.default_rng(0).integers(numbers.min, numbers.max, (5, 98), source, endpoint=True)
    two = f'T.cast(A[vi, vj * 2 + {first}], "INTO") * T.cast(3, "INTO")'
    two += f' + T.cast(A[vi, vj * 2 + {1 - first}], "INTO")'
    agree(halves(two, source, into), a, np.zeros((5, 48), into))
    alone = f'T.cast(A[vi, vj * 2 + {first}], "INTO")'
    agree(halves(alone, source, into), a, np.zeros((5, 48), into))
    chosen = f'T.if_then_else(vj < 20, {alone}, T.cast(7, "INTO"))'
    agree(halves(chosen, source, into), a, np.zeros((5, 48), into))


def test_pairs_of_bytes_are_loaded_as_words():
    two = 'T.cast(A[vi, vj * 2], "INTO") + T.cast(A[vi, vj * 2 + 1], "INTO")'
    text = build(halves(two, "uint8", "uint16")).llvm_ir
    assert re.search(r"load <\d+ x i16>", text) and not re.search(r"load <\d+ x i8>", text)
    alone = halves('T.cast(A[vi, vj * 2], "INTO")', "uint8", "uint16")
    text = build(alone).llvm_ir  # the element behind the last is not read
    assert re.search(r"load <\d+ x i8>", text) and not re.search(r"load <\d+ x i16>", text)


APART = """
@T.prim_func
def main(A: T.Buffer((140,), "{dtype}"), B: T.Buffer(({size},), "{dtype}")):
    for i in T.vectorized({n}):
        if A[i] {test}:
            B[{stride} * i + {start}] = A[i] + {other}
"""


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 70), stride=st.integers(2, 5), dtype=st.sampled_from(DTYPES),
    start=st.integers(0, 3), test=st.sampled_from(["> 1", "< 100"]), itself=st.booleans(),
)  # fmt: skip
def test_lanes_apart_are_stored_and_elements_between_stay(n, stride, dtype, start, test, itself):
    size = stride * (n - 1) + start + 1
    other = f"B[{stride} * i + {start}]" if itself else "A[i + 1]"
    source = APART.format(n=n, size=size, stride=stride, start=start, dtype=dtype, test=test,
                          other=other)  # fmt: skip
    agree(source, integers((140,), dtype), integers((size,), dtype, seed=1))


MASKS = pytest.mark.skipif("avx512f" not in NATIVE.features, reason="no masks")
IN_PLACE = """
@T.prim_func
def main(A: T.Buffer(({size},), "{dtype}"), C: T.Buffer((140,), "{dtype}")):
    for i in T.vectorized({n}):
        if C[i] {test}:
            A[{stride} * i + {start}] = {value}
"""


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 140), stride=st.integers(2, 4), dtype=st.sampled_from(DTYPES),
    places=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    test=st.sampled_from(["> 1", "< 100"]),
)  # fmt: skip
def test_lanes_apart_are_changed_in_place(n, stride, dtype, places, test):
    """A load that other iterations store to would make the lanes depend on each other."""
    start, *loads = places
    loads = [s for s in loads if s == start or (s - start) % stride]
    value = " + ".join(f"A[{stride} * i + {s}]" for s in (start, *loads))
    size = stride * (n - 1) + max(start, *loads, 0) + 1
    source = IN_PLACE.format(n=n, size=size, stride=stride, start=start, dtype=dtype, test=test,
                             value=value)  # fmt: skip
    agree(source, integers((size,), dtype), integers((140,), dtype, seed=1))


LIFTED = """
@T.prim_func
def main(A: T.Buffer(({size},), "float32")):
    for j in range({count}):
        for i in T.vectorized({lanes}):
            if j * {lanes} + i < {n}:
                A[2 * (j * {lanes} + i) + {start}] = (
                    A[2 * (j * {lanes} + i) + {first}] + A[2 * (j * {lanes} + i) + {last}]
                )
"""


@pytest.mark.parametrize("where", [AT_START, AT_END])
@pytest.mark.parametrize(("start", "first", "last"), [(1, 0, 2), (1, 2, 2), (0, 1, 1), (1, 0, 0)])
def test_nothing_outside_of_the_lanes_in_place_is_touched(where, start, first, last):
    """The page beside the array cannot be accessed; the last vector is masked."""
    n, lanes = 61, 16
    size = 2 * (n - 1) + max(start, first, last) + 1
    source = LIFTED.format(
        size=size, count=-(-n // lanes), lanes=lanes, n=n, start=start, first=first, last=last
    )
    layout = [Array("A", "float32", (size,), (1,), True, True, 0, 1, 0.0)]
    memory = GuardedMemory(layout, where)
    a = integers((size,))
    memory.write(0, a)
    assert call(build(source), *memory.views) == 0
    wanted = a.copy()
    wanted[start::2][:n] = a[first::2][:n] + a[last::2][:n]
    np.testing.assert_array_equal(memory.read(0), wanted)


@MASKS
@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("A[i] * 2.0", 4),
        ("B[2 * i + 1000] + B[2 * i + 1002]", 4),
        ("B[2 * i + 1004] + B[2 * i + 1002]", 4),
        ("B[2 * i + 1001] + B[2 * i]", 4),  # stored many vectors before
        ("B[2 * i + 998] + B[2 * i + 1001]", 0),
        ("B[2 * i + 996] * 2.0", 0),
    ],
)
def test_lanes_apart_are_stored_as_registers_unless_the_next_loads_overlap_them(value, masked):
    source = f"""
@T.prim_func
def main(A: T.Buffer((32,)), B: T.Buffer((1100,))):
    for i in T.vectorized(32):
        B[2 * i + 1001] = {value}
"""
    assert build(source).llvm_ir.count("call void @llvm.masked.store") == masked


@MASKS
def test_a_statement_in_between_that_loads_keeps_the_lanes_apart():
    source = """
@T.prim_func
def main(A: T.Buffer((64,)), B: T.Buffer((32,))):
    for i in T.vectorized(32):
        A[2 * i] = A[2 * i] * 2.0
        B[i] = A[2 * i + 1]
"""
    assert "masked.store" not in build(source).llvm_ir


@MASKS
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_lanes_apart_under_a_condition_are_loaded_as_registers(stride):
    source = f"""
@T.prim_func
def main(A: T.Buffer(({stride * 32},)), C: T.Buffer((32,)), B: T.Buffer((32,))):
    for i in T.vectorized(32):
        if C[i] > 0.0:
            B[i] = A[{stride} * i]
"""
    text = build(source).llvm_ir
    assert "masked.gather" not in text
    assert text.count("call <16 x float> @llvm.masked.load") == 2 * stride
