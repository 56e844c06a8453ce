"""vector_scan: scans along memory get lanes of one scan, scans across it get neighbouring scans."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched.analysis.sizes import with_sizes
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator


@T.prim_func
def along(A: T.Buffer((5, 70), "float32"), B: T.Buffer((5, 70), "float32")):
    for i, j in T.grid(5, 70):
        with T.block("B"):
            vi = T.axis.spatial(5, i)
            vj = T.axis.scan(70, j)
            B[vi, vj] = T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])


@T.prim_func
def across(A: T.Buffer((5, 70), "float32"), B: T.Buffer((5, 70), "float32")):
    for i, j in T.grid(5, 70):
        with T.block("B"):
            vi = T.axis.scan(5, i)
            vj = T.axis.spatial(70, j)
            B[vi, vj] = T.if_then_else(vi == 0, A[0, vj], B[vi - 1, vj] + A[vi, vj])


def generated(func):
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert not generator.failures
    return spaces


@pytest.mark.parametrize(("func", "axis"), [(along, 1), (across, 0)])
def test_candidates_compute_the_scan(func, axis):
    lanes, plain = generated(func)
    a = np.random.default_rng(0).integers(-4, 5, (5, 70)).astype("float32")
    for space in (lanes, plain):
        for seed in range(4):
            sch, out = draw(func, space, seed), np.zeros_like(a)
            build(sch, target="native")(a, out)
            np.testing.assert_array_equal(out, np.cumsum(a, axis))
    loops = [s for s in walk_stmts(draw(func, lanes, 0).func.body) if isinstance(s, For)]
    assert any(loop.kind is ForKind.VECTORIZED for loop in loops) == (axis == 0)


@pytest.mark.parametrize("axes", [(5, 70), (70, 5)])
def test_spatial_iterators_and_a_branch_for_the_first_step_are_a_scan(axes):
    text = """
@T.prim_func
def f(A: T.Buffer((5, 70), "float32"), B: T.Buffer((5, 70), "float32")):
    for i, j in T.grid(5, 70):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vj == 0:
                B[vi, vj] = A[vi, vj]
            else:
                B[vi, vj] = B[vi, vj - 1] + A[vi, vj]
"""
    if axes[0] == 70:
        text = text.replace("vj == 0", "vi == 0").replace("B[vi, vj - 1]", "B[vi - 1, vj]")
    func = parse(text)
    lanes, plain = generated(func)
    assert "annotate" in [entry.kind.name for entry in lanes.entries]
    a = np.random.default_rng(0).integers(-4, 5, (5, 70)).astype("float32")
    for space in (lanes, plain):
        sch, out = draw(func, space, 1), np.zeros_like(a)
        build(sch, target="native")(a, out)
        np.testing.assert_array_equal(out, np.cumsum(a, int(axes[0] == 5)))


def test_branches_that_store_to_different_elements_are_no_scan():
    text = across.script().replace("axis.scan", "axis.opaque")
    store = next(line for line in text.splitlines() if "if_then_else" in line)
    indent = store[: len(store) - len(store.lstrip())]
    lines = ("if vi == 0:", "    B[1, vj] = A[0, vj]", "else:", "    B[vi, vj] = B[vi - 1, vj]")
    two = "\n".join(indent + line for line in lines)
    assert len(generated(parse(text.replace(store, two + " + A[vi, vj]")))) == 1


def test_tiles_of_columns_run_in_parallel():
    text = across.script().replace("70", "2048").replace("5", "64")
    lanes, _ = generated(parse(text))
    kinds = set()
    for seed in range(6):
        program = draw(parse(text), lanes, seed).func.body
        kinds |= {s.kind for s in walk_stmts(program) if isinstance(s, For)}
    assert kinds >= {ForKind.VECTORIZED, ForKind.PARALLEL}


LONG = """
@T.prim_func
def f(A: T.Buffer(({n},), "{dtype}"), B: T.Buffer(({n},), "{dtype}")):
    for j in range({n}):
        with T.block("B"):
            vj = T.axis.scan({n}, j)
            B[vj] = T.if_then_else(vj == 0, A[0], B[vj - 1] + A[vj])
"""


@pytest.mark.parametrize(("n", "dtype"), [(1 << 16, "float32"), (40009, "int32")])
def test_a_scan_alone_is_offered_in_chunks_that_run_in_parallel(n, dtype):
    func = parse(LONG.format(n=n, dtype=dtype))
    chunks, *_ = generated(func)
    assert "decompose_scan" in [entry.kind.name for entry in chunks.entries]
    a = np.random.default_rng(0).integers(-4, 5, n).astype(dtype)
    for seed in range(3):
        sch, out = draw(func, chunks, seed), np.zeros_like(a)
        build(sch, target="native")(a, out)
        np.testing.assert_array_equal(out, np.cumsum(a, dtype=dtype))
    spread = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    assert any(loop.kind is ForKind.PARALLEL for loop in spread)


def test_short_scans_and_other_chains_are_left_alone():
    text = along.script()
    assert len(generated(parse(text.replace("70", "9")))) == 1
    assert len(generated(parse(text.replace("B[vi, vj - 1] + A", "B[vi, vj - 1] / A")))) == 1


def test_a_scan_whose_length_a_call_decides():
    """The choice of chunks divided by the unknown length, so the module was left out."""
    func = parse("""
@T.prim_func
def f(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
    B = T.match_buffer(b, (n + 1,), "int32")
    B[0] = 0
    for i in range(n):
        B[i + 1] = B[i] + A[i]
""")
    sized = with_sizes(func, {"n": 1000})
    for space in generated(sized):
        kernel = build(draw(sized, space, 0), target="native")
        for n in (0, 1, 15, 16, 97, 1000):
            a, out = np.arange(n, dtype="int32"), np.zeros(n + 1, "int32")
            kernel(a, out)
            np.testing.assert_array_equal(out[1:], np.cumsum(a, dtype="int32"))


RUNNING = """
@T.prim_func
def f(A: T.Buffer((40009,), "{dtype}"), B: T.Buffer((40009,), "{dtype}")):
    s = T.{dtype}(3)
    for i in range(40009):
        {before}
        s = {update}
        {after}
"""


@pytest.mark.parametrize(
    ("dtype", "update", "chunks"),
    [("int32", "s + A[i]", True), ("float32", "T.max(s, A[i])", True),
     ("float32", "s + A[i]", False)],
)  # fmt: skip
@pytest.mark.parametrize("first", [False, True])
def test_a_value_that_a_plain_loop_keeps_is_a_scan(dtype, update, chunks, first):
    """A sum of floats keeps the order of its terms, so all candidates are equal to the bit."""
    uses = ("B[i] = s", "A[i]") if first else ("A[i]", "B[i] = s - A[i]")
    before, after = (u if "=" in u else "T.evaluate(0)" for u in uses)
    func = parse(RUNNING.format(dtype=dtype, update=update, before=before, after=after))
    spaces = generated(func)
    steps = {entry.kind.name for space in spaces for entry in space.entries}
    assert ("decompose_scan" in steps) == chunks
    a = (np.random.default_rng(0).random(40009) * 9 - 4).astype(dtype)
    want = np.zeros_like(a)
    build(Schedule(func), target="native")(a, want)
    for space in spaces:
        for seed in range(2):
            sch, out = draw(func, space, seed), np.zeros_like(a)
            build(sch, target="native")(a, out)
            np.testing.assert_array_equal(out, want)


RECURRENCE = """
@T.prim_func
def f(A: T.Buffer((6, 150), "{dtype}"), B: T.Buffer((6, 150), "{dtype}")):
    T.func_attr({{"tir.fast_math": "{math}"}})
    for i in range(6):
        B[i, 0] = A[i, 0]
        for j in range(149):
            B[i, j + 1] = {value}
"""


@pytest.mark.parametrize(
    ("dtype", "value", "math", "lanes"),
    [("int32", "T.max(B[i, j], A[i, j + 1])", "reassoc", True),
     ("float32", "B[i, j] * T.float32(0.5) + A[i, j + 1]", "reassoc", True),
     ("float32", "B[i, j] * T.float32(0.5) + A[i, j + 1]", "nnan", False),
     ("int32", "T.max(B[5 - i, j], A[i, j + 1])", "reassoc", False)],
)  # fmt: skip
def test_each_row_of_a_recurrence_in_plain_loops_is_a_scan(dtype, value, math, lanes):
    func = parse(RECURRENCE.format(dtype=dtype, value=value, math=math))
    spaces = generated(func)
    a = np.random.default_rng(0).integers(-9, 10, (6, 150)).astype(dtype)
    want = np.zeros_like(a)
    build(Schedule(func), target="native")(a, want)
    noted = False
    for space in spaces:
        for seed in range(3):
            sch, out = draw(func, space, seed), np.zeros_like(a)
            build(sch, target="native")(a, out)
            np.testing.assert_allclose(out, want, rtol=1e-5)
            noted |= "pragma_scan_lanes" in sch.mod.script()
    assert noted == lanes
