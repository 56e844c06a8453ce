"""Vectors that overlap in memory: the ends of their windows are loaded, the others shuffled."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import agree, build, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.codegen.windows import ends_of
from metasched.target import Target

WIDE = Target.of("llvm -mcpu=x86-64-v4")
"""A machine whose vectors are as long as a cache line."""
HEAD = """
@T.prim_func
def main(A: T.Buffer(({size},), "{dtype}"), W: T.Buffer((8,), "{dtype}"),
         B: T.Buffer(({size},), "{dtype}")):
    for i in T.serial(2):
        with T.block("b"):
            vi = T.axis.opaque(2, i)
            T.reads(A[0:{size}], B[0:{size}], W[0:8])
            T.writes(A[0:{size}], B[0:{size}])
"""


def _program(body: str, size: int = 200, dtype: str = "float32") -> str:
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    return HEAD.format(size=size, dtype=dtype) + lines


def _counts(
    text: str, lanes: int = 16, kind: str = "float", target: Target = WIDE
) -> tuple[int, int]:
    """How many vectors the code loads, and how many it picks from two others."""
    code = build(text, target=target).llvm_ir
    bits = {"float": "i32", "double": "i64"}.get(kind, kind)  # the ends are loaded as integers
    vectors = {f"<{lanes} x {kind}>", f"<{lanes} x {bits}>"}
    loads = sum(code.count(f"= load {vector}") for vector in vectors)
    return loads, sum(len(re.findall(rf"shufflevector {v} %\S+ {v} %", code)) for v in vectors)


def _agree(text: str, size: int = 200, dtype: str = "float32") -> None:
    arrays = [integers((n,), dtype, seed=s) for s, n in enumerate((size, 8, size))]
    agree(text, *arrays)


THREE = "for j in T.vectorized(16): B[j + 32 * vi] = A[j + 32 * vi] + A[j + 32 * vi + 1] + {last}"


def test_the_middle_of_a_window_is_shuffled():
    text = _program(THREE.format(last="A[j + 32 * vi + 2]"))
    assert _counts(text) == (2, 1)
    _agree(text)


def test_two_overlapping_vectors_are_loaded():
    text = _program("for j in T.vectorized(16): B[j] = A[j] + A[j + 1]")
    assert _counts(text) == (2, 0)


TAPS = """
for k in T.unroll(4):
    for c in T.unroll(2):
        for j in T.vectorized(16):
            B[c * 16 + j] = B[c * 16 + j] + A[vi * 32 + c * 16 + j + k] * W[k]
"""


def test_unrolled_taps_and_neighbours_share_the_ends():
    """The eight vectors begin at 0 to 3 and at 16 to 19."""
    text = _program(TAPS)
    assert _counts(text)[1] == 5
    _agree(text)


def test_a_vectorized_loop_of_several_vectors_is_one_window():
    text = _program("for j in T.vectorized(64): B[j] = A[j] + A[j + 1] + A[j + 2]")
    assert _counts(text) == (5, 7)
    _agree(text)


@pytest.mark.parametrize(
    ("dtype", "lanes", "kind"),
    [("float64", 8, "double"), ("int32", 16, "i32"), ("uint64", 8, "i64"), ("int16", 32, "i16")],
)
def test_elements_of_other_types_are_shuffled(dtype, lanes, kind):
    line = THREE.format(last="A[j + 32 * vi + 2]").replace("vectorized(16)", f"vectorized({lanes})")
    text = _program(line, dtype=dtype)
    assert _counts(text, lanes, kind) == (2, 1)
    _agree(text, dtype=dtype)


@pytest.mark.parametrize(
    "last",
    [
        "T.if_then_else(N[0] > 0, A[j + 32 * vi + 2], T.float32(0))",
        "T.Select(N[0] > 0 and A[j + 32 * vi + 2] > T.float32(0), W[0], W[1])",
        "T.Let(A[j + 32 * vi + t], where={t: vi + 2})",
    ],
)
def test_a_load_that_may_not_run_is_no_end(last):
    text = (
        _program(THREE.format(last=last))
        .replace(
            'B: T.Buffer((200,), "float32")):',
            'B: T.Buffer((200,), "float32"), N: T.Buffer((4,), "int32")):',
        )
        .replace("W[0:8])", "W[0:8], N[0:4])")
    )
    assert _counts(text)[1] == 0
    arrays = [integers((n,), "float32", seed=s) for s, n in enumerate((200, 8, 200))]
    agree(text, *arrays, np.zeros(4, "int32"))


def test_a_buffer_that_the_nest_stores_is_loaded_where_it_is_read():
    text = _program("for j in T.vectorized(16): A[j + 8] = A[j] + A[j + 1] + A[j + 2]")
    assert _counts(text)[1] == 0


def test_code_that_computes_longer_than_it_loads_keeps_its_loads():
    line = "B[j] = " + " + ".join(f"A[j + {n}] * A[j + {n}] * A[j + {n}]" for n in range(3))
    text = _program(f"for j in T.vectorized(16): {line}")
    assert _counts(text) == (3, 0)


ROWS = """
for k in T.unroll({taps}):
    for r in T.unroll({rows}):
        for j in T.vectorized(64):
            B[r * 64 + j] = B[r * 64 + j] + A[{row} * 200 + j + k] * W[k]
"""


def test_rows_go_in_front_of_taps_if_their_ends_fit_alone():
    """Four rows keep 20 ends beside 16 accumulators; one row keeps five."""
    text = _program(ROWS.format(taps=5, rows=4, row="r"), size=1000)
    assert _counts(text)[1] == 60
    _agree(text, size=1000)
    first = build(text, target=WIDE).llvm_ir.split("shufflevector <16 x i32> %")[0]
    assert first.count("load <16 x i32>") == 4  # without the other rows


def test_ends_that_do_not_fit_into_registers_are_not_kept():
    """Eight rows have 32 accumulators."""
    assert _counts(_program(ROWS.format(taps=5, rows=8, row="r"), size=2000))[1] == 0


def test_rows_whose_results_overlap_keep_their_order():
    text = _program(ROWS.format(taps=5, rows=4, row="r").replace("B[r * 64", "B[r * 32"), size=1000)
    assert _counts(text)[1] == 0
    _agree(text, size=1000)


def test_clamped_rows_have_windows_of_their_own():
    text = _program(ROWS.format(taps=3, rows=4, row="T.min(vi * 4 + r, 4)"), size=1100)
    assert _counts(text)[1] == 28
    _agree(text, size=1100)


def test_lanes_of_adjacent_vectors_are_moved_by_one_instruction():
    """valignd needs no register with the numbers of the lanes."""
    text = _program("for j in T.vectorized(64): B[j] = A[j] + A[j + 1] + A[j + 2]")
    code = build(text, target=WIDE).asm()
    assert code.count("valign") == 6


def test_narrow_registers_keep_their_loads():
    text = _program(THREE.format(last="A[j + 32 * vi + 2]"))
    assert _counts(text, 8, target=Target.of("llvm -mcpu=x86-64-v3")) == (6, 0)


@given(st.sets(st.integers(0, 60), min_size=1), st.sampled_from([8, 16, 32]))
def test_every_vector_of_a_window_lies_between_its_ends(places, lanes):
    ends = ends_of(sorted(places), lanes)
    for at in places:
        low, high = ends.get(at, (at, at))
        assert low <= at <= high <= low + lanes
        assert {low, high} <= places
        assert at not in ends or (ends[low], ends[high]) == ((low, low), (high, high))


@st.composite
def _windows(draw):
    """Unrolled loops in any order around one or two sums of loads, some of which overlap."""
    taps, rows, vectors = draw(st.tuples(*(st.integers(1, n) for n in (6, 3, 2))))
    order = draw(st.permutations([("k", taps), ("r", rows), ("c", vectors)]))
    by, lanes = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([8, 16, 32, 40]))

    def load() -> str:
        row = draw(st.sampled_from(["r", "T.min(r + vi, 1)", "T.max(r - 1, 0)", "(r + vi) % 2"]))
        place = f"{row} * {draw(st.sampled_from([7, 48, 101]))} + c * {lanes} + j + k * {by}"
        return f"A[{place} + {draw(st.integers(0, 20))}]"

    lines = [f"{'    ' * n}for {v} in T.unroll({e}):" for n, (v, e) in enumerate(order)]
    lines.append(f"            for j in T.vectorized({lanes}):")
    for start in range(draw(st.integers(1, 2))):
        at = f"r * {draw(st.sampled_from([20, 90]))} + c * {lanes} + j + {start * 300}"
        terms = [f"B[{at}]"] * draw(st.integers(0, 1))
        if draw(st.integers(0, 3)) == 0:  # no lane reads what another lane stores
            terms.append(f"B[{at} + {lanes}]")
        for _ in range(draw(st.integers(1, 4))):
            terms.append(load() + draw(st.sampled_from(["", " * W[k]"])))
        lines.append(f"                B[{at}] = {' + '.join(terms)}")
    return _program("\n".join(lines), size=700, dtype="DTYPE")


@settings(max_examples=60)
@given(_windows(), st.sampled_from(["float32", "float64", "int32", "uint8", "int16"]))
def test_random_windows_agree_with_the_interpreter(text, dtype):
    _agree(text.replace("DTYPE", dtype), size=700, dtype=dtype)
