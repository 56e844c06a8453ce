"""Row reductions and elementwise stages of odd lengths run in vectors, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

import metasched as ms
from metasched.ir.interp import run
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_postprocs
from metasched.lower.pipeline import lower
from metasched.postproc import run_postprocs
from metasched.postproc.reduction_block import RewriteReductionBlock
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.default_schedule import vectors_and_threads
from metasched.space.generate import SpaceGenerator
from metasched.space.loop_kinds import (
    LOADED,
    RUN_TIME,
    SMALL,
    child_of,
    spread_nest,
    steps,
    vectorize_leaf,
)
from metasched.space.modules.rfactor import VectorReduction
from metasched.workloads import get


@pytest.mark.parametrize(
    ("name", "shape"),
    [("sfm", (3, 37)), ("nrm", (1, 7, 53)), ("nrm", (2, 3, 40))],
)
def test_candidates_of_odd_rows_compute_the_same(name, shape):
    work = get(name)
    func = work.func(shape)
    inputs = work.inputs(shape)
    wanted = work.reference(shape, *inputs)
    drawn = 0
    for space in SpaceGenerator(default_modules(TARGET)).generate(func, TARGET):
        assert "pragma_fold_lanes" in space.as_python()
        for seed in range(2):
            sch = draw(func, space, seed, check=False)
            assert sch is not None
            output = np.zeros_like(wanted)
            run(sch.mod, *inputs, output)
            np.testing.assert_allclose(output, wanted, rtol=1e-5)
            compiled = np.zeros_like(wanted)
            build(sch, target="native")(*inputs, compiled)
            np.testing.assert_allclose(compiled, wanted, rtol=1e-5)
            drawn += 1
    assert drawn >= 2


@pytest.mark.parametrize(
    ("extent", "width", "lanes"),
    [(37, 16, 16), (48, 16, 16), (48, 64, 48), (1003, 32, 32), (7, 16, 7)],
)
def test_lanes_of_a_loop_that_they_do_not_divide(extent, width, lanes):
    func = get("sfm").func((2, extent))
    sch = Schedule(func, check=True)
    block = sch.get_block("exp")
    assert vectorize_leaf(sch, block, child_of(sch, sch.get(block).token), width)
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    (vector,) = [s for s in loops if s.kind is ForKind.VECTORIZED]
    assert int(vector.extent.value) == lanes
    inputs = get("sfm").inputs((2, extent))
    output = np.zeros((2, extent), "float32")
    run(sch.mod, *inputs, output)
    np.testing.assert_allclose(output, get("sfm").reference((2, extent), *inputs), rtol=1e-5)


GRID = """
@T.prim_func
def main(X: T.Buffer((5, 7, 3), "float32"), B: T.Buffer(({bias},), "float32"),
         Y: T.Buffer((5, 7, 3), "float32")):
    for i, j, k in T.grid(5, 7, 3):
        with T.block("y"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            Y[vi, vj, vk] = {value}
"""


@pytest.mark.parametrize(
    ("value", "width", "lanes"),
    [
        ("X[vi, vj, vk] * B[0]", 16, 16),
        ("X[vi, vj, vk] + B[0]", 64, 64),
        ("X[vi, vj, vk] + B[vk]", 16, 3),
        ("X[vi, vj, vk] + B[vj * 3 + vk]", 16, 16),
        ("X[vi, vj, vk] + B[vj * 3 + vk]", 64, 21),
        ("T.if_then_else(vj < 2, X[vi, vj, vk], B[0])", 16, 3),
    ],
)
def test_short_loops_that_run_along_memory_are_one(value, width, lanes):
    func = parse(GRID.format(value=value, bias=21))
    sch = Schedule(func, check=True)
    block = sch.get_block("y")
    assert vectorize_leaf(sch, block, child_of(sch, sch.get(block).token), width)
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    (vector,) = [s for s in loops if s.kind is ForKind.VECTORIZED]
    assert int(vector.extent.value) == lanes
    rng = np.random.default_rng(0)
    x, b = (rng.integers(-4, 5, n).astype("float32") for n in ((5, 7, 3), (21,)))
    wanted, found = np.zeros_like(x), np.zeros_like(x)
    run(func, x, b, wanted)
    build(sch, target="native")(x, b, found)
    np.testing.assert_array_equal(found, wanted)


SUMS = """
@T.prim_func
def main(X: T.Buffer((3, 5, {width}), "float32"), Y: T.Buffer((3,), "float32")):
    for i, j, k in T.grid(3, 5, 36):
        with T.block("y"):
            vi, vj, vk = T.axis.remap("SRR", [i, j, k])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + X[vi, vj, vk]
"""


@pytest.mark.parametrize(("width", "fused"), [(36, True), (40, False)])
def test_rows_that_follow_each_other_are_reduced_as_one(width, fused):
    func = parse(SUMS.format(width=width))
    sch = Schedule(func, check=True)
    (sch,) = VectorReduction(256)(sch, sch.get_block("y"))
    assert len(sch.get_loops(sch.get_block("y"))) == (2 if fused else 3)
    x = np.random.default_rng(0).integers(-4, 5, (3, 5, width)).astype("float32")
    found = np.zeros(3, "float32")
    build(sch, target="native")(x, found)
    np.testing.assert_array_equal(found, x[:, :, :36].sum(axis=(1, 2)))


def _limits(shape):
    func = get("sfm").func(shape)
    for space in SpaceGenerator(default_modules(TARGET)).generate(func, TARGET):
        text = space.as_python()
        step = next(line for line in text.splitlines() if '"meta_schedule.parallel"' in line)
        name = step.split("ann_val=")[1].split(",")[0]
        drawn = next(line for line in text.splitlines() if line.strip().startswith(f"{name} = "))
        yield func, space, drawn


def test_small_programs_may_stay_on_one_core():
    parallel = set()
    for func, space, drawn in _limits((96, 64)):
        assert "candidates=[1, 2, 8, 32]" in drawn
        for seed in range(8):
            sch = draw(func, space, seed, check=False)
            parallel.add("T.parallel" in sch.script())
    assert parallel == {True, False}
    assert all("candidates=[2, 8, 32]" in drawn for _, _, drawn in _limits((512, 512)))


FEW = """
@T.prim_func
def main(A: T.Buffer(({m}, {k}), "float32"), B: T.Buffer({shape}, "float32"),
         D: T.Buffer(({n},), "float32"), Y: T.Buffer(({m}, {n}), "float32")):
    Z = T.alloc_buffer(({m}, {n}), "float32")
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("z"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Z[vi, vj] = T.float32(0)
            Z[vi, vj] = Z[vi, vj] + A[vi, vk] * B[{at}]
    for i, j in T.grid({m}, {n}):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(Z[vi, vj] + D[vj], T.float32(0))
"""


@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize("along", [True, False])
def test_a_matrix_that_few_rows_use_is_not_packed(m, along):
    n, k = 64, 80
    shape, at = ((n, k), "vj, vk") if along else ((k, n), "vk, vj")
    func = parse(FEW.format(m=m, n=n, k=k, shape=shape, at=at))
    rng = np.random.default_rng(0)
    a, b, d = (rng.integers(-4, 5, s).astype("float32") for s in ((m, k), shape, (n,)))
    wanted = np.maximum(a @ (b.T if along else b) + d, 0)
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert len(spaces) == (1 if along else 2)
    for space in spaces:
        assert "reindex" not in space.as_python()
        assert ("pragma_fold_lanes" in space.as_python()) == along
        for seed in range(2):
            sch = draw(func, space, seed)
            assert sch is not None
            found = np.zeros_like(wanted)
            build(sch, target="native")(a, b, d, found)
            np.testing.assert_array_equal(found, wanted)


def test_many_rows_are_worth_a_packed_panel():
    func = parse(FEW.format(m=64, n=48, k=80, shape=(48, 80), at="vj, vk"))
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert all("reindex" in space.as_python() for space in spaces)


GROUPS = """
@T.prim_func
def main(X: T.Buffer((2, 24, 10), "float32"), Y: T.Buffer((2, 24, 10), "float32")):
    S = T.alloc_buffer((2, 3), "float32")
    for n, g, c, w in T.grid(2, 3, 8, 10):
        with T.block("s"):
            vn, vg, vc, vw = T.axis.remap("SSRR", [n, g, c, w])
            with T.init():
                S[vn, vg] = T.float32(0)
            S[vn, vg] = S[vn, vg] + X[vn, vg * 8 + vc, vw]
    for n, c, w in T.grid(2, 24, 10):
        with T.block("y"):
            vn, vc, vw = T.axis.remap("SSS", [n, c, w])
            Y[vn, vc, vw] = X[vn, vc, vw] - S[vn, vc // 8]
"""


def test_channels_normed_in_groups_are_rows_of_groups():
    func = parse(GROUPS)
    fused, plain = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert "compute_at" in fused.as_python() and "compute_at" not in plain.as_python()
    x = np.random.default_rng(0).integers(-4, 5, (2, 24, 10)).astype("float32")
    groups = x.reshape(2, 3, 80)
    wanted = (groups - groups.sum(2, keepdims=True)).reshape(x.shape)
    found = np.zeros_like(x)
    sch = draw(func, fused, 0)
    assert sch is not None
    build(sch, target="native")(x, found)
    np.testing.assert_array_equal(found, wanted)


SCAN = """
@T.prim_func
def main(X: T.Buffer(({rows}, 64), "float32"), Y: T.Buffer(({rows}, 64), "float32")):
    for i in range({rows}):
        with T.block("row"):
            vi = T.axis.spatial({rows}, i)
            Y[vi, 0] = X[vi, 0]
            for j in range(63):
                Y[vi, j + 1] = Y[vi, j] + X[vi, j + 1]
"""


@pytest.mark.parametrize(("rows", "spread"), [(64, True), (16, False)])
def test_loops_inside_a_block_count_as_work(rows, spread):
    """A running sum of rows stayed on one core: its block runs but once for each."""
    func = parse(SCAN.format(rows=rows))
    sch = Schedule(func)
    child = child_of(sch, sch.get(sch.get_block("row")).token)
    assert steps(child.loops[0]) == rows * 63
    assert spread_nest(sch, child, 8) == spread == ("T.parallel" in sch.script())


SCATTER = """
@T.prim_func
def main(K: T.Buffer((4096,), "int32"), X: T.Buffer((4096, {wide}), "float32"),
         S: T.Buffer((32, {wide}), "float32")):
    for j, i in T.grid({wide}, 4096):
        with T.block("S"):
            vi = T.axis.opaque(4096, i)
            vj = T.axis.spatial({wide}, j)
            S[K[vi], vj] = S[K[vi], vj] + X[vi, vj]
"""


@pytest.mark.parametrize(
    ("wide", "cores", "spread"), [(128, 2, False), (2048, 2, True), (2048, 4, False)]
)
def test_cores_do_not_update_short_parts_of_rows_by_an_index(wide, cores, spread):
    """Two cores took 62 us for rows of 128 sums, one core takes 5.6 us."""
    sch = Schedule(parse(SCATTER.format(wide=wide)))
    child = child_of(sch, sch.get(sch.get_block("S")).token)
    assert spread_nest(sch, child, 8, cores=cores) == spread == ("T.parallel" in sch.script())


COUNTS = """
@T.prim_func
def main(X: T.Buffer((4, 4096), "uint8"), H: T.Buffer((4, 256), "int32")):
    for c, i in T.grid(4, 4096):
        with T.block("H"):
            vc = T.axis.spatial(4, c)
            vi = T.axis.opaque(4096, i)
            H[vc, X[vc, vi]] = H[vc, X[vc, vi]] + 1
"""


def test_cores_update_rows_of_their_own_by_an_index():
    sch = Schedule(parse(COUNTS))
    child = child_of(sch, sch.get(sch.get_block("H")).token)
    assert spread_nest(sch, child, 4, cores=2) and "T.parallel" in sch.script()


WAVE = """
@T.prim_func
def main(X: T.Buffer((48, 64), "float32"), n: T.int32):
    for t in range(6):
        for i in range({rows}):
            for j in T.vectorized(8):
                X[t * 8 + i, j] = X[t * 8 + i, j] + 1.0
        for k in range(5):
            X[t, k] = 0.0
"""


@pytest.mark.parametrize(("rows", "expected"), [("7", 7), ("t + 1", 3), ("n", RUN_TIME)])
def test_iterations_of_loops_with_constant_and_other_extents(rows, expected):
    loop = parse(WAVE.format(rows=rows)).body
    assert steps(loop) == 6 * expected * 8 and steps(loop, lanes=False) == 6 * max(expected, 5)


SPARSE = """
@T.prim_func
def main(P: T.Buffer(({rows} + 1,), "int32"), F: T.Buffer((99,), "bool"), S: T.Buffer(({rows},))):
    for i in range({rows}):
        s = T.float32(0)
        for j in range(P[i], P[i + 1]):
            if F[j]:
                s = T.float32(j)
                break
        S[i] = s
"""


@pytest.mark.parametrize(("rows", "spread"), [(SMALL // LOADED, True), (64, False)])
def test_rows_of_unknown_length_run_in_parallel(rows, spread):
    """A break and a variable of its own keep an iteration independent; results stay."""
    func = parse(SPARSE.format(rows=rows))
    sch = ms.Schedule(func)
    vectors_and_threads(func, TARGET).apply(sch)
    assert ("T.parallel" in sch.script()) == spread
    ends = np.minimum(np.arange(rows + 1) * 3, 99).astype("int32")
    flags = np.random.default_rng(0).random(99) < 0.3
    found, expected = np.zeros((2, rows), "float32")
    ms.build(sch)(ends, flags, found)
    for i in range(rows):
        expected[i] = next((j for j in range(ends[i], ends[i + 1]) if flags[j]), 0)
    assert np.array_equal(found, expected)


KEEPS = """
@T.prim_func
def main(X: T.Buffer((6, 70), "float32"), Y: T.Buffer((6,), "int64")):
    M = T.alloc_buffer((6,))
    for i, k in T.grid(6, 70):
        with T.block("rows"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = -T.infinity("float32")
                Y[vi] = T.int64(0)
            c = M[vi] >= X[{at}]
            n: T.int64 = T.Select(c, Y[vi], T.Cast("int64", vk))
            M[vi] = T.Select(c, M[vi], X[{at}])
            Y[vi] = n
"""


@pytest.mark.parametrize("name", ["argmax", "mean_variance", "keeps"])
def test_two_results_of_a_row_are_reduced_in_lanes(name):
    """The space offers lanes for both results, as wide as the value of an argmax allows."""
    func = parse(KEEPS.format(at="vi, vk")) if name == "keeps" else get(name).func((6, 70))
    block = {"argmax": "argmax", "mean_variance": "sums", "keeps": "rows"}[name]
    sch = Schedule(func)
    (sch,) = VectorReduction(256, vectors=(4,))(sch, sch.get_block(block))
    note = sch.get(sch.get_block(block)).annotations["pragma_fold_lanes"]
    assert note == 32
    RewriteReductionBlock()(sch, TARGET)
    assert "vectorized" in lower(sch.func, TARGET).script()
    x = np.random.default_rng(0).integers(-4, 5, (6, 70)).astype("float32")
    arrays = [x, np.zeros(6, "int64")]
    if name == "mean_variance":
        arrays = [x, *np.zeros((2, 6), "float32")]
    build(sch, target="native")(*arrays)
    wanted = [x.mean(axis=1), x.var(axis=1)] if name == "mean_variance" else [x.argmax(axis=1)]
    for found, expected in zip(arrays[1:], wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


WELFORD = """
@T.prim_func
def main(X: T.Buffer((6, 70), "float32"), M: T.Buffer((6,), "float32"),
         V: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 70):
        with T.block("welford"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.float32(0)
                V[vi] = T.float32(0)
            old: T.float32 = M[vi]
            M[vi] = old + (X[vi, vk] - old) / T.Cast("float32", vk + 1)
            V[vi] = V[vi] + (X[vi, vk] - old) * (X[vi, vk] - M[vi])
"""


@pytest.mark.parametrize("program", ["welford", "columns"])
def test_results_that_lanes_cannot_hold_stay_right(program):
    """Welford's recurrence keeps its order; an argmax along columns has its lanes across them."""
    func = parse(WELFORD if program == "welford" else KEEPS.format(at="vk, vi").replace(
        "(6, 70), \"float32\"", "(70, 6), \"float32\""))  # fmt: skip
    x = np.random.default_rng(0).standard_normal((6, 70)).astype("float32")
    ran = 0
    for number, space in enumerate(SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)):
        for seed in range(2):
            sch = Schedule(func, seed=10 * number + seed)
            space.apply(sch, decisions="fresh")
            run_postprocs(sch, TARGET, default_postprocs(TARGET))
            if program == "welford":
                arrays, wanted = [x, *np.zeros((2, 6), "float32")], [x.mean(1), x.var(1) * 70]
            else:
                arrays = [np.ascontiguousarray(x.T), np.zeros(6, "int64")]
                wanted = [x.argmax(1)]
            build(sch, target="native")(*arrays)
            for found, expected in zip(arrays[1:], wanted, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            ran += 1
    assert ran


def test_an_init_without_a_reduced_axis_is_no_row_reduction():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for i in range(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            with T.init():
                B[vi] = 3
            B[vi] = B[vi] + A[vi]
""")
    sch = Schedule(func)
    assert VectorReduction()(sch, sch.get_block("B")) == [sch]
