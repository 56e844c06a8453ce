"""loop_distribution: copies of scalars that each iteration sets, beside scalars that carry over."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from schedule.test_fission import COMPLEX
from space.candidates import TARGET, draw

import metasched as ms
from metasched.analysis.scope import Child
from metasched.analysis.sizes import with_sizes
from metasched.ir.stmt import ForKind, LetStmt
from metasched.ir.visit import blocks_of
from metasched.kinds import default_modules
from metasched.script import parse
from metasched.space.default_schedule import vectors_and_threads
from metasched.space.generate import SpaceGenerator
from metasched.space.modules import loop_distribution

NEAREST = """
@T.prim_func
def nearest(X: T.Buffer((40, 9), "float32"), C: T.Buffer((16, 9), "float32"),
            A: T.Buffer((40,), "int32")):
    for i in range(40):
        best = T.float32(1e30)
        A[i] = 0
        for c in range(16):
            d = T.float32(0)
            for k in range(9):
                d += (X[i, k] - C[c, k]) * (X[i, k] - C[c, k])
            if d < best:
                best = d
                A[i] = c
"""


def test_a_distance_gets_a_copy_for_each_centre_while_the_minimum_stays_one():
    """The minimum so far goes from centre to centre; only the distances have copies for each."""
    func = parse(NEAREST)
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    tiled = [t for t in found if "SSRRS" in str(t)]
    assert tiled
    for space in found:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        shapes = {b.name: b.constant_shape() for b in sch.get(sch.get_block("root")).alloc_buffers}
        assert space not in tiled or [1, 16, 40] in map(sorted, shapes.values())
        assert not any(b.startswith("best") and 16 in s for b, s in shapes.items())
        check_numbers(func, sch.mod, compiled=True)


def test_the_elements_of_a_product_are_summed_in_tiles_of_their_own():
    """A complex product stores two elements: as written, its sums would stay in memory."""
    func = parse(COMPLEX.format(first=0, second=1))
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert found and not generator.failures
    assert all("decompose_outputs" in str(t) for t in found)
    private = [t for t in found if str(t).count("privatize_reduction") == 2]
    assert private
    for space in private:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        shapes = [b.constant_shape() for b in sch.get(sch.get_block("root")).alloc_buffers]
        rows = [min(s) for s in shapes if s is not None and len(s) == 2 and max(s) == 64]
        assert len(rows) == 2 and all(20 <= n < 32 for n in rows)  # whole tiles may need more rows
        check_numbers(func, sch.mod, compiled=True)


def test_two_sums_over_one_row_stay_together():
    """Each element of A is read once: sums in two nests would read it twice."""
    text = COMPLEX.format(first=0, second=1).replace("B[vk, vj, ", "A[vi, vk, ")
    text = text.replace("C[vi, vj, ", "C[vi, 0, ").replace(
        "T.grid(20, 64, 36)", "T.grid(20, 1, 36)"
    )
    func = parse(text)
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert found and not any("decompose_outputs" in str(t) for t in found)


UPDATE = """
@T.prim_func
def rank_k(A: T.Buffer((48, 40), "float64"), C: T.Buffer((48, 48), "float64")):
    for i in range(48):
        for j in range(i + 1):
            C[i, j] = C[i, j] * 0.5
        for k in range(40):
            for j in range(i + 1):
                C[i, j] += A[i, k] * A[j, k]
"""


def test_a_triangle_of_sums_in_order_is_computed_over_the_square_in_a_copy():
    func = parse(UPDATE)
    generator = SpaceGenerator(default_modules(TARGET))
    found = [t for t in generator.generate(func, TARGET) if "cache_update" in str(t)]
    assert not generator.failures
    tiled = [t for t in found if "SSRRS" in str(t) and "overcompute_box" in str(t)]
    assert tiled
    for space in found:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        check_numbers(func, sch.mod, compiled=True)


ROWS = """
@T.prim_func
def rows(x: T.handle, y: T.handle):
    n = T.int32()
    m = T.int32()
    X = T.match_buffer(x, (n, m), "float32")
    Y = T.match_buffer(y, (n, m), "float32")
    for i in range(n):
        s = T.float32(0)
        for j in range(m):
            s += T.abs(X[i, j])
        for j in range(m):
            Y[i, j] = X[i, j] - s
"""


def test_sums_of_run_time_rows_get_a_copy_for_each_row():
    """Only then do the sums, which keep their order, run side by side."""
    func = with_sizes(parse(ROWS), {"n": 200, "m": 300})
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    beside = [t for t in found if "expand_buffer" in str(t.as_python())]
    assert beside
    sch = next(s for seed in range(9) if (s := draw(func, beside[-1], seed)) is not None)
    assert "T.vectorized" in sch.mod.script().split('T.block("s_1")')[0]
    kernel = ms.build(sch.mod)
    for n, m in ((1, 1), (17, 16), (33, 95), (0, 4)):
        x = np.arange(n * m, dtype="float32").reshape(n, m) % 7
        np.testing.assert_array_equal(kernel(x), x - x.sum(1, keepdims=True))


SHARED_VALUES = """
@T.prim_func
def sums(X: T.Buffer((64, 96)), Y: T.Buffer((64, 96)), M: T.Buffer((64,)), G: T.Buffer((96,)),
         A: T.Buffer((96,)), Z: T.Buffer((64, 96))):
    for j in range(96):
        A[j] = T.float32(0)
    for i in range(64):
        s = T.float32(0)
        for j in range(96):
            h = X[i, j] - M[i]
            g = Y[i, j] * G[j]
            s = s + g * h
            A[j] = A[j] + g * h * h
        for j in range(96):
            Z[i, j] = Y[i, j] * G[j] - s
"""


def test_sums_of_rows_and_columns_that_share_values_are_cut():
    """The sums of rows get lanes across the rows, those of the columns lanes along them."""
    func = parse(SHARED_VALUES)
    default = ms.Schedule(func)
    vectors_and_threads(func, TARGET).apply(default)
    cut = [r for r in blocks_of(default.mod["main"].body) if isinstance(r.block.body, LetStmt)]
    assert len(cut) == 2
    for realize in cut:
        loops = default.state.loops_above(realize)
        assert {loop.kind for loop in loops} >= {ForKind.VECTORIZED}
    check_numbers(func, default.mod, compiled=True)
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    for space in [t for t in found if "decompose_outputs" in str(t)]:
        sch = next((s for seed in range(30) if (s := draw(func, space, seed)) is not None), None)
        assert sch is not None, "no draw is legal"
        check_numbers(func, sch.mod, compiled=True)


CASCADE = """
@T.prim_func
def cascade(X: T.Buffer((32, 90), "float32"), B: T.Buffer((3, 3), "float32"),
            Y: T.Buffer((32, 90), "float32")):
    for c in range(32):
        s = T.alloc_buffer((3,), "float32")
        for k in range(3):
            s[k] = T.float32(0)
        for n in range(90):
            v = X[c, n]
            for k in range(3):
                y = T.max(T.min(B[k, 0] * v + s[k], T.float32(99)), T.float32(-99))
                s[k] = B[k, 1] * v - B[k, 2] * y
                v = y
            Y[c, n] = v
"""


def test_channels_lie_side_by_side_in_the_state_of_filters():
    """Sections and samples need their order: vectors of channels update the state."""
    func = parse(CASCADE)
    generator = SpaceGenerator(default_modules(TARGET))
    checked = 0
    for space in generator.generate(func, TARGET):
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        shapes = {b.constant_shape() for b in sch.get(sch.get_block("root")).alloc_buffers}
        assert (32, 3) not in shapes
        if (3, 32) in shapes and not checked:
            check_numbers(func, sch.mod, seeds=(0,), compiled=True)
            checked += 1
    assert checked and not generator.failures


STEPS = """
@T.prim_func
def steps(S: T.Buffer((9, 20), "int32"), C: T.Buffer((20,), "int32")):
    for t in range(9):
        n = T.int32(0)
        m = T.int32(0)
        for p in range(20):
            C[p] = C[p] * 3
            n += C[p] * S[t, p]
            m += C[p]
        for p in range(20):
            if S[t, p] > n - m:
                C[p] = n + m
"""


def test_no_copies_for_steps_that_a_result_holds_together(monkeypatch: pytest.MonkeyPatch):
    """C goes from step to step: copies of n and m, a second for many values, would not help."""
    asked: list[bool] = []
    real = loop_distribution._expand_buffers

    def expanded(sch: ms.Schedule, child: Child, *, running: bool) -> None:
        asked.append(running)
        real(sch, child, running=running)

    monkeypatch.setattr(loop_distribution, "_expand_buffers", expanded)
    func = parse(STEPS)
    SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert not asked
    check_numbers(func, ms.autoschedule(func).mod, compiled=True)
    apart = parse(STEPS.replace("C[p]", "C[t, p]").replace("(20,)", "(9, 20)"))
    SpaceGenerator(default_modules(TARGET)).generate(apart, TARGET)
    assert asked  # then only n and m hold the steps together
