"""Clamped lanes have plain versions, which give the same results."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched import Schedule, build
from metasched.arith.affine import linear_address
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Expr, FloorMod, Max, Min, Select
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, IfThenElse
from metasched.ir.visit import free_vars, walk_exprs, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse
from metasched.script import tir as T

ROWS = """
@T.prim_func
def main(A: T.Buffer((5, 100), "float32"), N: T.Buffer((1,), "int64"),
         B: T.Buffer((5, {size}), "float32")):
    for i in T.{outer}(5):
        for j0 in T.serial({vectors}):
            for j1 in T.{kind}({lanes}):
                with T.block("b"):
                    vi = T.axis.spatial(5, i)
                    vj = T.axis.spatial({size}, j0 * {lanes} + j1)
                    B[vi, vj] = A[vi, {index}]
"""


def _rows(index: str, vectors: int = 6, lanes: int = 16, outer: str = "serial",
          kind: str = "vectorized") -> str:  # fmt: skip
    size = vectors * lanes
    return ROWS.format(index=index, vectors=vectors, lanes=lanes, size=size, outer=outer, kind=kind)


def _loops(text: str, *kinds: type[Expr]) -> list[tuple[int, bool]]:
    """The extent of each loop over vectors, and whether its lanes hold expressions of `kinds`."""
    found = []
    for loop in walk_stmts(lower(parse(text), NATIVE).body):
        inner = loop.body if isinstance(loop, For) else None
        if isinstance(loop, For) and isinstance(inner, For) and inner.kind is ForKind.VECTORIZED:
            exprs = [n for s in walk_stmts(inner) for e in s.exprs for n in walk_exprs(e)]
            found.append((loop.extent.value, any(isinstance(n, kinds) for n in exprs)))
    return found


@pytest.mark.parametrize(
    ("index", "loops"),
    [
        ("T.min(vj, 70)", [(4, False), (2, True)]),
        ("T.max(vj - 1, 0)", [(1, True), (5, False)]),
        ("T.min(T.max(vj - 20, 0), 70)", [(2, True), (3, False), (1, True)]),
        ("T.max(70 - vj, 0)", [(4, False), (2, True)]),
        ("T.min(vj, 95)", [(6, False)]),
        ("T.min(vj // 2 + vj % 2, 40)", [(5, False), (1, True)]),
        ("T.min(vj, 5)", [(6, True)]),
        ("T.min(vj, T.int32(N[0]))", [(6, True)]),
    ],
)
def test_the_loop_is_cut_where_the_clamp_begins(index, loops):
    assert _loops(_rows(index), Min, Max) == loops
    agree(_rows(index), integers((5, 100)), np.full(1, 50), integers((5, 96)))


def test_a_mirrored_index_is_plain_where_most_lanes_are():
    """The tests have a remainder of the loop's variable, so that no count of iterations decides."""
    text = """
@T.prim_func
def main(A: T.Buffer((2, 96), "float32"), B: T.Buffer((2, 96), "float32")):
    for j0 in T.serial(12):
        for k in T.serial(5):
            for j1 in T.vectorized(16):
                with T.block("b"):
                    vi = T.axis.spatial(2, j0 // 6)
                    vj = T.axis.spatial(96, j0 % 6 * 16 + j1)
                    vk = T.axis.reduce(5, k)
                    with T.init():
                        B[vi, vj] = T.float32(0)
                    B[vi, vj] += A[vi, T.if_then_else(vj + vk < 2, 2 - vj - vk, T.if_then_else(
                        vj + vk > 97, 192 - vj - vk, vj + vk - 2))]
"""
    body = lower(parse(text), NATIVE).body
    (versions,) = [s for s in walk_stmts(body) if isinstance(s, IfThenElse)]
    lanes = {s.var for s in walk_stmts(body) if isinstance(s, For) if s.kind is ForKind.VECTORIZED}
    steps = []  # of the lanes in the index of A; a choice has none
    for version in (versions.then, versions.orelse):
        (index,) = {
            n.indices[0]
            for s in walk_stmts(version)
            for e in s.exprs
            for n in walk_exprs(e)
            if isinstance(n, BufferLoad) and n.buffer.name.startswith("A")
        }
        steps.append({linear_address(index).terms.get(lane, 0) for lane in lanes})
    assert [max(each) for each in steps] == [1, 0]
    agree(text, integers((2, 96)), integers((2, 96)))


def test_other_loops_stay_whole():
    assert _loops(_rows("T.min(vi * 20, 70)"), Min, Max) == [(6, True)]  # one element for all lanes
    serial = lower(parse(_rows("T.min(vj, 70)", kind="serial")), NATIVE)
    assert not any(isinstance(s, IfThenElse) for s in walk_stmts(serial.body))


@pytest.mark.parametrize(
    ("index", "loops"),
    [
        ("(vj + 1) % 96", [(5, False), (1, True)]),
        ("(vj + 95) % 96", [(1, True), (5, False)]),
        ("(vj - 1) % 96", [(1, True), (5, False)]),
        ("(vj + 40) % 96", [(3, False), (3, True)]),
        ("(vj + 41) % 96 + (vj + 1) // 96", [(6, True)]),
        ("vj % 100", [(6, False)]),
        ("(vj * 37) % 96", [(6, True)]),
        ("(vj + vi) % 96", [(6, True)]),
        ("(vj + T.int32(N[0])) % 96", [(6, True)]),
    ],
)
def test_the_loop_is_cut_where_the_remainder_wraps(index, loops):
    assert _loops(_rows(index), FloorMod) == loops
    agree(_rows(index), integers((5, 100)), np.full(1, 50), integers((5, 96)))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(-3, 3), st.integers(-150, 150), st.integers(1, 100), st.integers(1, 7),
    st.sampled_from([4, 16]), st.sampled_from(["serial", "parallel"]), st.integers(0, 2),
)  # fmt: skip
def test_remainders_are_the_same(a, shift, by, vectors, lanes, outer, row):
    text = _rows(f"({a} * vj + {row} * vi + {shift}) % {by}", vectors, lanes, outer)
    agree(text, integers((5, 100)), np.full(1, 3), integers((5, vectors * lanes)))


@settings(max_examples=25, deadline=None)
@given(
    a=st.integers(-2, 2), low=st.integers(0, 60), high=st.integers(0, 99),
    shift=st.integers(-90, 90), vectors=st.integers(1, 6), lanes=st.sampled_from([3, 8, 16]),
    by=st.integers(1, 3), outer=st.sampled_from(["serial", "parallel"]),
)  # fmt: skip
def test_results_are_the_same(a, low, high, shift, vectors, lanes, by, outer):
    inner = f"vj // {by} * {a} + vi + {shift}"
    text = _rows(f"T.min(T.max({inner}, {low}), {max(low, high)})", vectors, lanes, outer)
    agree(text, integers((5, 100)), np.zeros(1, np.int64), integers((5, vectors * lanes)))


@T.prim_func
def windows(X: T.Buffer((9, 101), "float32"), Y: T.Buffer((9, 90), "float32")):
    for c, i, k in T.grid(9, 90, 12):
        with T.block("Y"):
            vc, vi, vk = T.axis.remap("SSR", [c, i, k])
            with T.init():
                Y[vc, vi] = T.float32(0)
            Y[vc, vi] += X[vc, vi + vk]


def test_a_padded_tile_gathers_in_its_last_vectors_alone():
    sch = Schedule(windows)
    block = sch.get_block("Y")
    store = sch.cache_write(block, 0, "local")
    sch.overcompute(block, [2, 32, 1])
    c, i, k = sch.get_loops(block)
    (c0, c1), (i0, i1, i2) = sch.split(c, [None, 2]), sch.split(i, [None, 2, 16])
    sch.reorder(c0, i0, k, c1, i1, i2)
    sch.reverse_compute_at(store, i0)
    for loop in (c1, i1):
        sch.unroll(loop)
    sch.vectorize(i2)
    sch.vectorize(sch.split(sch.get_loops(store)[-1], [None, 16])[1])
    tiles = [s for s in walk_stmts(lower(sch.mod["main"], NATIVE).body) if isinstance(s, For)]
    rows = next(s for s in tiles if s.extent.value == 5)
    first = next(s for s in walk_stmts(rows.body) if isinstance(s, For))
    exprs = [n for s in walk_stmts(first) for e in s.exprs for n in walk_exprs(e)]
    lanes = [s for s in walk_stmts(first) if isinstance(s, For) and s.kind is ForKind.VECTORIZED]
    assert first.extent.value == 2 and lanes
    assert not any(isinstance(n, Min) and s.var in free_vars(n) for n in exprs for s in lanes)
    tests = [s.condition for s in walk_stmts(first) if isinstance(s, IfThenElse)]
    assert not any(s.var in free_vars(t) for t in tests for s in lanes)
    x, y = np.random.default_rng(0).standard_normal((9, 101), np.float32), np.zeros((9, 90))
    y = y.astype(np.float32)
    build(sch.mod)(x, y)
    expected = np.lib.stride_tricks.sliding_window_view(x, 12, 1).sum(-1)
    assert np.allclose(y, expected, atol=1e-4)


CHOICE = """
@T.prim_func
def main(A: T.Buffer((20, 26), "float32"), B: T.Buffer((20, 26), "float32")):
    for i in T.{outer}(5):
        for j in T.{inner}({extent}):
            for k in T.{kind}(4):
                with T.block("b"):
                    vi = T.axis.spatial(20, i * 4 + k)
                    vj = T.axis.opaque(26, j)
                    T.reads(A[0:20, 0:26], B[0:20, 0:26])
                    T.writes(B[vi, vj])
                    B[vi, vj] = {value}
"""


def _choice(value: str, kind: str = "unroll", inner: str = "serial", extent: int = 25,
            outer: str = "serial") -> str:  # fmt: skip
    return CHOICE.format(value=value, kind=kind, inner=inner, extent=extent, outer=outer)


def _pieces(text: str) -> list[tuple[int, bool]]:
    """The extent of each innermost serial loop, and whether a choice remains in it."""
    found = []
    for loop in walk_stmts(lower(parse(text), NATIVE).body):
        if isinstance(loop, For) and loop.kind is ForKind.SERIAL:
            below = [s for s in walk_stmts(loop.body) if isinstance(s, For)]
            if all(s.kind is not ForKind.SERIAL for s in below):
                exprs = [n for s in walk_stmts(loop) for e in s.exprs for n in walk_exprs(e)]
                choices = any(isinstance(n, Select | Call) for n in exprs)
                found.append((loop.extent.value, choices))
    return found


@pytest.mark.parametrize(
    ("value", "pieces"),
    [
        ("T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] * A[vi, vj])", [(1, True), (24, False)]),
        ("T.if_then_else(vj != 24, A[vi, vj + 1], A[vi, 0])", [(24, False), (1, True)]),
        ("T.if_then_else(vj >= 1 and vj < 24, A[vi, vj + 1], A[vi, vj])",
         [(1, True), (23, False), (1, True)]),
        ("T.Select(vj * 2 > 9, A[vi, vj], A[vi, 0])", [(5, True), (20, False)]),
        ("T.Select(3 <= vj, A[vi, vj], A[vi, 0])", [(3, True), (22, False)]),
        ("T.if_then_else(vj == 12, A[vi, vj], A[vi, 0])", [(25, True)]),
        ("T.if_then_else(vj == vi, A[vi, vj], A[vi, 0])", [(25, True)]),
        ("T.if_then_else(A[vi, vj] > T.float32(0), A[vi, vj], A[vi, 0])", [(25, True)]),
    ],
)  # fmt: skip
def test_the_loop_is_cut_where_a_choice_changes(value, pieces):
    assert _pieces(_choice(value)) == pieces
    agree(_choice(value), integers((20, 26)), integers((20, 26), seed=1))


def test_choices_of_outer_and_parallel_loops_stay():
    value = "T.if_then_else(vi < 4, A[vi, vj], A[vi, 0])"
    assert _pieces(_choice(value)) == [(25, True)]
    both = "T.if_then_else(vj == 0, A[vi, vj], A[vi, 0])"
    assert _pieces(_choice(both, inner="parallel")) == [(5, True)]
    agree(_choice(both, outer="parallel"), integers((20, 26)), integers((20, 26), seed=1))


@settings(max_examples=30, deadline=None)
@given(
    a=st.integers(-3, 3), b=st.integers(-40, 40),
    order=st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    also=st.sampled_from(["", " and vj > 2", " or vj > 20", " and vi + vj < 30"]),
    word=st.sampled_from(["Select", "if_then_else"]), extent=st.integers(1, 25),
    kind=st.sampled_from(["unroll", "vectorized", "serial"]),
)  # fmt: skip
def test_choices_are_the_same(a, b, order, also, word, extent, kind):
    value = f"T.{word}(vj * {a} {order} {b}{also}, A[vi, vj], A[vi, vj + 1] + T.float32(1))"
    text = _choice(value, kind, extent=extent)
    agree(text, integers((20, 26)), integers((20, 26), seed=1))


JUMPS = """
@T.prim_func
def main(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32")):
    for j in range(9):
        if j < 3:
            B[j] = A[j]
            if A[j] > T.float32(1):
                {jump}
        else:
            B[j] = T.Select(j == 4, A[0], A[j] + T.float32(1))
            if A[j] > T.float32(1):
                {jump}
"""
CHOOSES = """
@T.prim_func
def main(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32")):
    for j in range(9):
        if A[j] > T.float32(1):
            {jump}
        B[j] = T.Select(j == 0, A[0], A[j] + T.float32(1))
"""


@pytest.mark.parametrize("jump", ["break", "continue"])
@pytest.mark.parametrize("text", [JUMPS, CHOOSES])
def test_a_loop_that_a_jump_leaves_stays_whole(text, jump):
    """A break in one piece of the loop would go on with the next piece."""
    values = np.arange(9, dtype=np.float32) % 3
    for data in (values, values[::-1].copy()):
        agree(text.format(jump=jump), data, np.full(9, 7, np.float32))


WINDOW = """
@T.prim_func
def main(A: T.Buffer((4, 49), "float32"), B: T.Buffer((4, {size}), "float32")):
    for i in range(4):
        for j0 in T.{outer}({vectors}):
            for j1 in T.vectorized(8):
                B[i, j0 * 8 + j1] = T.float32(0)
            for k in range(12):
                for j1 in T.vectorized(8):
                    B[i, j0 * 8 + j1] = B[i, j0 * 8 + j1] + T.if_then_else(
                        {condition}, A[i, {index}], T.float32(0))
"""
IN_WINDOW = "0 <= j0 * 8 + j1 + k - 1 and j0 * 8 + j1 + k - 1 < 49"


def _window(condition: str = IN_WINDOW, index: str = "j0 * 8 + j1 + k - 1", vectors: int = 6,
            outer: str = "serial") -> str:  # fmt: skip
    return WINDOW.format(
        condition=condition, index=index, vectors=vectors, size=vectors * 8, outer=outer
    )


def _windows(text: str) -> list[bool]:
    """For each loop over the window, whether its lanes hold a choice."""
    loops = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, For)]
    inner = [s for s in loops if s.kind is ForKind.SERIAL and s.extent.value == 12]
    return [
        any(isinstance(n, Call) for s in walk_stmts(loop) for e in s.exprs for n in walk_exprs(e))
        for loop in inner
    ]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        (_window(), [True, False, True]),
        (
            _window("j0 * 8 + j1 + k >= 1 and 0 <= i + j1", "T.max(j0 * 8 + j1 - 1, 0)"),
            [True, False],
        ),
        (_window("i > 1", "j0 * 8 + j1"), [True]),  # the same for all lanes
        (_window("j0 * 8 + j1 != 9", "j0 * 8 + j1"), [True, False]),
        (_window(outer="parallel"), [False, True]),
    ],
)
def test_choices_of_lanes_are_decided_in_loops_around_the_window(text, choices):
    assert sorted(_windows(text)) == sorted(choices)
    agree(text, integers((4, 49)), integers((4, 48), seed=1))


@settings(max_examples=30, deadline=None)
@given(
    first=st.integers(-3, 12), last=st.integers(30, 60), shift=st.integers(-2, 2),
    vectors=st.integers(1, 7), outer=st.sampled_from(["serial", "parallel", "unroll"]),
    order=st.sampled_from(["<", "<="]),
)  # fmt: skip
def test_windows_are_the_same(first, last, shift, vectors, outer, order):
    place = f"j0 * 8 + j1 + k + {shift}"
    inside = f"{first} {order} {place} and {place} {order} {last} and 0 <= {place} and {place} < 49"
    text = _window(inside, place, vectors, outer)
    agree(text, integers((4, 49)), integers((4, vectors * 8), seed=1))


REFLECTED = """
@T.prim_func
def main(A: T.Buffer(({size},), "float32"), n: T.Buffer((1,), "int32"),
         B: T.Buffer(({vectors} * 8,), "float32")):
    for j0 in T.serial({vectors}):
        for k in range(12):
            for j1 in T.vectorized(8):
                B[j0 * 8 + j1] = B[j0 * 8 + j1] + A[{index}]
"""


def _reflected(index: str, vectors: int = 6, size: int = 49) -> str:
    return REFLECTED.format(index=index, vectors=vectors, size=size)


@pytest.mark.parametrize(
    ("index", "mirrored"),
    [
        ("T.abs(j0 * 8 + j1 + k - 10)", [True, False]),
        ("T.min(T.abs(j0 * 8 + j1 + k - 9), 96 - (j0 * 8 + j1 + k))", [True, False, True]),
        ("T.max(j0 * 8 + j1, 47 - j0 * 8 - j1)", [True]),  # half of the vectors take each side
        ("T.abs(j0 * 8 + j1 - n[0])", [True]),
    ],
)
def test_reflected_rows_are_mirrored_at_the_ends_alone(index, mirrored):
    text = _reflected(index)
    loops = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, For)]
    inner = [s for s in loops if s.extent.value == 12]
    exprs = [[n for s in walk_stmts(x) for e in s.exprs for n in walk_exprs(e)] for x in inner]
    kinds = (Min, Max, Call)
    assert [any(isinstance(n, kinds) for n in found) for found in exprs] == mirrored
    agree(text, integers((49,)), np.full(1, 30, "int32"), integers((48,), seed=1))


@settings(max_examples=25, deadline=None)
@given(shift=st.integers(-20, 20), vectors=st.integers(1, 7), by=st.integers(1, 3))
def test_reflected_rows_are_the_same(shift, vectors, by):
    place = f"T.abs((j0 * 8 + j1) * {by} + k + {shift})"
    text = _reflected(f"T.max(T.min({place}, 2 * 48 - {place}), 0)", vectors)
    agree(text, integers((49,)), np.zeros(1, "int32"), integers((vectors * 8,), seed=1))
