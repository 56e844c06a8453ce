"""Noted reductions of any length become lanes of partial results; whatever else is noted, stays."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_numbers

from metasched.ir.expr import FloorDiv, FloorMod, Var
from metasched.ir.stmt import Allocate, ForKind
from metasched.ir.visit import free_vars, walk_exprs, walk_stmts
from metasched.lower.pipeline import lower
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse

ROWS = """
@T.prim_func
def main(A: T.Buffer(({m}, {n}), "{dtype}"), C: T.Buffer(({m},), "{dtype}")):
    for i, u, j in T.grid({m}, 1, {n}):
        with T.block("c"):
            vi, vu, vj = T.axis.remap("SRR", [i, u, j])
            T.block_attr({{"pragma_fold_lanes": {width}}})
            C[vi] = {update}
"""


def _rows(update: str, n: int, width: int, dtype: str = "float32", m: int = 3) -> str:
    return ROWS.format(update=update, n=n, width=width, dtype=dtype, m=m)


def _partial(text: str) -> bool:
    func = lower(parse(text), NATIVE)
    return any(isinstance(s, Allocate) for s in walk_stmts(func.body))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 75),
    power=st.integers(0, 5),
    dtype=st.sampled_from(["float32", "int32"]),
    update=st.sampled_from(
        ["C[vi] + A[vi, vj]", "T.max(A[vi, vj], C[vi])", "C[vi] + A[vi, vj] * A[vi, 0]",
         "T.min(C[vi], A[vi, vj] + 1)", "C[vi] - A[vi, vj]",
         "C[vi] + A[vi, vj] + A[vi, 0]", "A[vi, vj] + (C[vi] - A[vi, 0]) - A[vi, vj] * A[vi, vj]",
         "T.max(A[vi, 0], T.max(C[vi], A[vi, vj]))"]
    ),
)  # fmt: skip
def test_every_length_and_width_gives_the_same(n, power, dtype, update):
    text = _rows(update, n, 1 << power, dtype)
    agree(text, integers((3, n), dtype), integers((3,), dtype, seed=1))


@pytest.mark.parametrize(("n", "width"), [(203, 64), (64, 16), (37, 128), (5, 4)])
def test_compiled_the_rest_is_a_narrower_vector(n, width):
    text = _rows("C[vi] + A[vi, vj]", n, width)
    agree(text, integers((3, n)), integers((3,), seed=1))
    loops = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if hasattr(s, "kind")]
    assert any(s.kind is ForKind.VECTORIZED for s in loops)


def test_only_sums_over_full_vectors_are_folded():
    assert _partial(_rows("C[vi] + A[vi, vj]", 40, 16))
    assert not _partial(_rows("C[vi] + A[vi, vj]", 40, 1))
    assert _partial(_rows("C[vi] - A[vi, vj]", 40, 16))
    assert not _partial(_rows("A[vi, vj] - C[vi]", 40, 16))
    assert _partial(_rows("C[vi] + A[vi, vj] - A[vi, 0]", 40, 16))
    assert not _partial(_rows("A[vi, 0] - (C[vi] + A[vi, vj])", 40, 16))
    assert not _partial(_rows("(C[vi] + A[vi, vj]) * A[vi, 0]", 40, 16))
    assert not _partial(_rows("C[vi] + A[vi, vj] + C[vi]", 40, 16))
    assert not _partial(_rows("C[vi] + C[vi] * A[vi, vj]", 40, 16))
    assert not _partial(_rows("C[vi] + A[vi, vj]", 1, 16))
    assert not _partial(_rows("C[vi] + A[vi, vj]", 40, 24))


NIBBLES = """
@T.prim_func
def main(W: T.Buffer((3, 96), "uint8"), S: T.Buffer((3, 3), "int32"), C: T.Buffer((3,), "int32")):
    for i, j in T.grid(3, 192):
        with T.block("c"):
            vi, vj = T.axis.remap("SR", [i, j])
            T.block_attr({{"pragma_fold_lanes": 32}})
            C[vi] = C[vi] + T.cast((W[vi, {place}] >> T.cast({shift} * 4, "uint8")) & T.uint8(15),
                                   "int32") * S[vi, vj // 64]
"""


@pytest.mark.parametrize(("place", "shift"), [("vj // 2", "vj % 2"), ("vj % 96", "vj // 96")])
def test_packed_numbers_are_loaded_in_vectors(place, shift):
    """Two numbers lie in a byte; lanes that are loaded one by one take four times as long."""
    text = NIBBLES.format(place=place, shift=shift)
    data = [integers((3, 96), "uint8"), integers((3, 3), "int32"), integers((3,), "int32", seed=1)]
    agree(text, *data)
    body = lower(parse(text), NATIVE).body
    found = [e for s in walk_stmts(body) for x in s.exprs for e in walk_exprs(x)]
    quotients = [e for e in found if isinstance(e, (FloorDiv, FloorMod))]
    lanes = {s.var for s in walk_stmts(body) if getattr(s, "kind", None) is ForKind.VECTORIZED}
    assert all(isinstance(e.a, Var) or lanes.isdisjoint(free_vars(e)) for e in quotients)


GROUPS = """
@T.prim_func
def main(W: T.Buffer((3, {n}), "uint8"), S: T.Buffer((3, 48), "float32"),
         C: T.Buffer((3,), "float32")):
    for i, j in T.grid(3, {n}):
        with T.block("c"):
            vi, vj = T.axis.remap("SR", [i, j])
            T.block_attr({{"pragma_fold_lanes": 64}})
            C[vi] = C[vi] + T.cast(W[vi, vj], "float32") * S[vi, vj // {by}]
"""


@pytest.mark.parametrize("n", [64, 192])
@pytest.mark.parametrize("by", [4, 16, 24, 32, 64])
def test_registers_of_lanes_that_share_an_element(n, by):
    """Code generation reduces a loop of one vector: a register of its 64 scales may be one
    element."""
    arrays = integers((3, n), "uint8"), integers((3, 48)), integers((3,), seed=1)
    agree(GROUPS.format(n=n, by=by), *arrays)


def test_a_number_that_may_wrap_is_not_computed_as_an_index():
    text = _rows("C[vi] + A[vi, vj] * T.cast(T.cast(vj * 100, 'int8') // T.int8(3), 'int32')",
                 70, 16, "int32")  # fmt: skip
    agree(text, integers((3, 70), "int32"), integers((3,), "int32", seed=1))


def test_a_second_name_for_the_result_is_no_operand():
    text = _rows("C[vi] + D[vi] * A[vi, vj]", 40, 16, "int32").replace(
        "    for i, u", '    D = T.decl_buffer((3,), "int32", data=C.data)\n    for i, u', 1
    )
    assert not _partial(text)
    agree(text, integers((3, 40), "int32"), integers((3,), "int32", seed=1))


PRODUCT = """
@T.prim_func
def main(A: T.Buffer((4, {n}), "float32"), B: T.Buffer((6, {n}), "float32"),
         C: T.Buffer((4, 6), "float32")):
    for i0, j0, k in T.grid(2, 3, {n}):
        for i1 in T.unroll(2):
            for j1 in T.{kind}(2):
                with T.block("c"):
                    vi = T.axis.spatial(4, i0 * 2 + i1)
                    vj = T.axis.spatial(6, j0 * 2 + j1)
                    vk = T.axis.reduce({n}, k)
                    T.block_attr({{"pragma_fold_lanes": 16}})
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
"""


@pytest.mark.parametrize("n", [16, 32, 53, 11])
def test_results_that_share_what_they_read_have_lanes_each(n):
    text = PRODUCT.format(n=n, kind="unroll")
    sizes = [
        s.buffer.shape[0].value
        for s in walk_stmts(lower(parse(text), NATIVE).body)
        if isinstance(s, Allocate)
    ]
    assert sizes == ([] if n == 16 else [4 * min(16, 1 << n.bit_length() - 1)])
    agree(text, integers((4, n)), integers((6, n), seed=1), integers((4, 6), seed=2))


@pytest.mark.parametrize("update", ["C[vi] + A[vi, vj]", "T.max(C[vi], A[vi, vj])"])
@pytest.mark.parametrize("kept", ["i * 53 + j < {}", "j < i * {} - 3 and i < 2", "i + j < {}"])
def test_the_last_of_several_sums_may_be_shorter(kept, update):
    for end in (0, 1, 17, 53, 70, 106, 133, 159, 400):
        text = _rows(update, 53, 16).replace(
            "            T.block_attr",
            f"            T.where({kept.format(end)})\n            T.block_attr",
        )
        if end == 133:
            assert _partial(text)
        agree(text, integers((3, 53)), integers((3,), seed=1))


def test_a_serial_loop_inside_is_no_register_block():
    assert not _partial(PRODUCT.format(n=53, kind="serial"))


TRIANGLE = """
@T.prim_func
def main(A: T.Buffer(({n}, {n}), "{dtype}"), C: T.Buffer(({n},), "{dtype}")):
    for i in range({n}):
        for j in range({ends}):
            with T.block("c"):
                vi, vj = T.axis.remap("SR", [i, j])
                T.block_attr({{"pragma_fold_lanes": {width}}})
                C[vi] = {update}
"""


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 40),
    power=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "int32"]),
    ends=st.sampled_from(["i", "i + 1", "i, {n}", "i // 2, i", "T.max(i - 5, 0), i", "i - 3"]),
    update=st.sampled_from(
        ["C[vi] + A[vi, vj]", "C[vi] - A[vi, vj] * A[0, vj]", "T.max(A[vi, vj], C[vi])",
         "C[vi] * A[vi, vj]", "T.min(C[vi], A[vj, vi])"]
    ),
)  # fmt: skip
def test_a_triangle_gives_the_same_at_every_width(n, power, dtype, ends, update):
    text = TRIANGLE.format(n=n, width=1 << power, dtype=dtype, ends=ends.format(n=n), update=update)
    assert _partial(text)
    data = integers((n, n), dtype) % 3 - 1 if "*" in update else integers((n, n), dtype)
    agree(text, data, integers((n,), dtype, seed=1))


FACTOR = """
@T.prim_func
def main(A: T.Buffer((30, 30), "int32")):
    for i in range(30):
        for j in range(i):
            for k in range({end}):
                with T.block("c"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    T.block_attr({{"pragma_fold_lanes": 8}})
                    A[vi, vj] = A[vi, vj] - A[vi, vk] * A[vj, vk]
"""


def test_a_result_may_read_other_elements_of_its_buffer():
    text = FACTOR.format(end="j")
    assert _partial(text)
    agree(text, integers((30, 30), "int32") % 3 - 1)


def test_a_result_that_reads_itself_stays_in_order():
    text = FACTOR.format(end="j + 1")
    assert not _partial(text)
    agree(text, integers((30, 30), "int32") % 3 - 1)


SIDE_BY_SIDE = """
@T.prim_func
def main(A: T.Buffer((40, 40), "int32")):
    for i in range(10):
        for j in range(i * 4):
            for k in range(j):
                for u in T.unroll(4):
                    with T.block("c"):
                        vi = T.axis.spatial(40, i * 4 + u)
                        vj, vk = T.axis.remap("SR", [j, k])
                        T.block_attr({"pragma_fold_lanes": 4})
                        A[vi, vj] = A[vi, vj] - A[vi, vk] * A[vj, vk]
"""


def test_rows_side_by_side_may_read_other_rows_of_their_buffer():
    assert _partial(SIDE_BY_SIDE)
    agree(SIDE_BY_SIDE, integers((40, 40), "int32") % 3 - 1)


def test_the_last_vector_keeps_partial_results_in_registers():
    """A masked store costs about 20 cycles on a Zen 3, and keeps the lanes in memory."""
    text = TRIANGLE.format(n=21, width=4, dtype="float64", ends="i", update="C[vi] + A[vi, vj]")
    assert "masked.load" in (ir := build(parse(text)).llvm_ir) and "masked.store" not in ir


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_last_vector_keeps_nan_of_earlier_vectors(name):
    update = f"T.{name}(A[vi, vj], C[vi])"
    text = TRIANGLE.format(n=21, width=4, dtype="float32", ends="i", update=update)
    data = np.random.default_rng(0).standard_normal((21, 21)).astype("float32")
    data[range(1, 21), [n // 3 for n in range(1, 21)]] = np.nan
    agree(text, data, np.zeros(21, "float32"))


TWO = """
@T.prim_func
def main(A: T.Buffer((3, {n}), "int32"), S: T.Buffer((3,), "int32"), Q: T.Buffer((3,), "int32")):
    for i in range(3):
        for j in range({extent}):
            with T.block("sums"):
                vi, vj = T.axis.spatial(3, i), T.axis.reduce({n}, j)
                T.block_attr({{"pragma_fold_lanes": {width}}})
                x = A[vi, vj] - A[vi, 0]
                S[vi] = {first}
                Q[vi] = {second}
"""
PAIRS = [
    ("S[vi] + x", "Q[vi] + x * x", True),
    ("S[vi] - x", "T.max(x, Q[vi])", True),
    ("S[vi] + Q[vi]", "Q[vi] + x", False),
    ("S[vi] + x", "Q[vi] + S[vi]", False),
    ("S[vi] + x", "x - Q[vi]", False),
]


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 75),
    power=st.integers(1, 5),
    extent=st.sampled_from(["{n}", "i * 7 % {n}"]),
    pair=st.sampled_from(PAIRS),
)
def test_two_results_in_one_loop(n, power, extent, pair):
    first, second, folds = pair
    text = TWO.format(n=n, extent=extent.format(n=n), width=1 << power, first=first, second=second)
    agree(text, integers((3, n), "int32"), *(integers((3,), "int32", seed=k) for k in (1, 2)))
    if not folds or n > 1:
        wanted = 2 if folds else 0
        found = lower(parse(text), NATIVE).body
        lanes = {s.buffer for s in walk_stmts(found) if isinstance(s, Allocate)}
        assert len(lanes) == wanted or "i * 7" in text


def test_a_sum_over_three_fused_loops_loads_whole_vectors():
    """Groups of channels: the digits of the fused loop meet the channels of the group."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((2, 12, 6, 10), "float32"), C: T.Buffer((2, 3), "float32")):
    for n, g, c, h, w in T.grid(2, 3, 4, 6, 10):
        with T.block("c"):
            vn, vg, vc, vh, vw = T.axis.remap("SSRRR", [n, g, c, h, w])
            T.block_attr({"pragma_fold_lanes": 16})
            C[vn, vg] += A[vn, vg * 4 + vc, vh, vw]
""")
    sch = Schedule(func)
    sch.fuse(*sch.get_loops("c")[2:])
    sch.parallel(sch.fuse(*sch.get_loops("c")[:2]))
    check_numbers(func, sch.mod, compiled=True)
    text = build(sch, target=NATIVE).llvm_ir
    assert "<16 x float>" in text and "gather" not in text
