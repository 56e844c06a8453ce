"""The default and reference spaces: every candidate is legal and computes the same."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, TINY, assert_same, draw, drawn, spaces, tiny

from metasched.analysis.block import FOLD, TILED
from metasched.errors import TargetError
from metasched.ir.equal import structural_hash
from metasched.ir.stmt import Block, For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_trace
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.lanes import COPIES
from metasched.space.loop_kinds import child_of, vectorize_leaf
from metasched.space.modules.parallel_vectorize_unroll import VECTORIZE, ParallelVectorizeUnroll
from metasched.space.strides import has_walks
from metasched.target import Target
from metasched.workloads import get


@pytest.mark.parametrize("name", TINY)
def test_candidates_of_the_default_space_compute_the_same(name):
    found = list(drawn(name, count=1 if name in ("c1d", "c2d", "cbr", "dep", "tbg") else 4))
    assert found.count(None) * 10 <= len(found)
    for sch in found:
        if sch is not None:
            assert_same(name, sch.mod)


@pytest.mark.parametrize("name", ["gmm", "sfm", "nrm"])
def test_candidates_of_the_reference_space_compute_the_same(name):
    for sch in drawn(name, "reference"):
        assert sch is not None
        assert_same(name, sch.mod)


@pytest.mark.parametrize("name", TINY)
def test_default_schedule_computes_the_same_without_decisions(name):
    trace = default_trace(tiny(name), TARGET)
    assert trace.sampling() == []
    sch = Schedule(tiny(name), seed=0, check=True)
    trace.apply(sch)
    assert_same(name, sch.mod)


def test_default_schedule_is_parallel_vectorised_and_the_same_each_time():
    func = get("gmm").func((1, 64, 64, 64))
    traces = [default_trace(func, TARGET) for _ in range(2)]
    assert traces[0].to_json() == traces[1].to_json()
    sch = Schedule(func)
    traces[0].apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if hasattr(s, "kind")}
    assert {ForKind.PARALLEL, ForKind.VECTORIZED} <= kinds
    assert "Z_init" in sch.script()


@pytest.mark.parametrize("size, serial", [(250, True), (400, False)])
def test_small_stencils_in_a_loop_over_time_may_stay_on_one_core(size, serial):
    sch = Schedule(get("poly.jacobi-2d").func((1000, size)), seed=0)
    ParallelVectorizeUnroll(cores=2)(sch, sch.get_block("root"))
    assert ("candidates=[1, 2, 8, 32]" in sch.trace.as_python()) == serial


@pytest.mark.parametrize("name", ["gmm", "cbr", "sfm"])
def test_a_candidate_replays_from_its_stored_trace(name):
    for sch in drawn(name, count=1):
        assert sch is not None
        again = Schedule(tiny(name))
        Trace.from_json(sch.trace.simplified().to_json()).apply(again)
        assert structural_hash(again.mod) == structural_hash(sch.mod)


def test_the_same_seed_gives_the_same_spaces():
    func = tiny("cbr")
    texts = [
        [t.to_json() for t in SpaceGenerator(default_modules(TARGET)).generate(func, seed=3)]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


def test_a_matmul_candidate_keeps_a_block_of_results_in_registers():
    space = spaces("gmm")[0]
    sch = Schedule(tiny("gmm"), seed=0)
    space.apply(sch, decisions="fresh")
    text = sch.script()
    assert 'scope="local"' in text and "T.parallel" in text and "T.vectorized" in text
    assert "T.unroll" in text


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gmm", (1, 1024, 1024, 1024)),
        ("gmm", (1, 127, 64, 33)),
        ("c2d", (1, 14, 14, 256, 256, 3, 1, 1)),
        ("cbr", (1, 28, 28, 128, 256, 1, 2, 0)),
        ("cbr", (1, 6, 6, 4, 32, 3, 2, 1)),
        ("sfm", (1024, 1024)),
    ],
)
def test_at_most_a_tenth_of_the_candidates_is_rejected(name, shape):
    func = get(name).func(shape)
    found = [
        draw(func, space, seed, check=False)
        for space in SpaceGenerator(default_modules(TARGET)).generate(func)
        for seed in range(3)
    ]
    assert found.count(None) * 10 <= len(found)


def test_a_gpu_has_no_default_space_yet():
    with pytest.raises(TargetError, match="no default space for targets of kind 'cuda'"):
        default_modules(Target.of({"kind": "cuda", "mcpu": "sm_86"}))


@pytest.mark.parametrize(("stores", "vectors"), [
    ("B[vi, 0] = A[3 * vi] + A[3 * vi + 1]", False),
    ("B[vi, 0] = A[3 * vi]\n            B[vi, 1] = A[2 * vi] + A[4 * vi]", True),
    ("B[vi, 1] = A[vi]\n            B[vi, 0] = A[4 * vi + 1]", True),
    ("B[vi, 1] = A[vi]\n            B[vi, 0] = A[5 * vi]", False),
    ("B[vi, 0] = A[vi]\n            B[99 - vi, 1] = A[vi]", False),
])  # fmt: skip
def test_default_schedule_has_vectors_of_lanes_a_few_elements_apart(stores, vectors):
    """Loads up to four elements apart; stores that leave no gap between them."""
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((512,), "float32"), B: T.Buffer((100, 2), "float32")):
    for i in range(100):
        with T.block("B"):
            vi = T.axis.spatial(100, i)
            {stores}
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if hasattr(s, "kind")}
    assert (ForKind.VECTORIZED in kinds) == vectors
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(("index", "vectors"), [
    ("vi // 2", True),
    ("vi % 8", True),
    ("vi // 2 + vi % 2 * 4", True),
    ("T.min(T.max(vi - 1, 0), 90)", True),
    ("T.min(T.max(vi // 2 + vi % 2, 0), 90)", True),
    ("(vi + 99) % 100", True),
    ("(vi + 5) % 20", False),
    ("vi * 7 % 100", False),
    ("vi // 16 * 4 + vi % 16 * 5", False),
    ("vi // 3", False),
    ("vi % 2 * 40", False),
    ("T.min(vi * 5, 90)", False),
    ("T.min(vi, 99 - vi)", False),
    ("T.int32(I[vi])", False),
])  # fmt: skip
def test_default_schedule_has_vectors_of_lanes_close_together(index, vectors):
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((512,), "float32"), I: T.Buffer((100,), "uint8"),
         B: T.Buffer((100,), "float32")):
    for i in range(100):
        with T.block("B"):
            vi = T.axis.spatial(100, i)
            B[vi] = A[{index}]
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if hasattr(s, "kind")}
    assert (ForKind.VECTORIZED in kinds) == vectors
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(("index", "vectors"), [
    ("vi, (vj + 1) % 100", True),
    ("(vi + 2) % 3, (vj + 99) % 100", True),
    ("vi, (vj * 7) % 100", False),
    ("vi, (vj + T.int32(I[0])) % 100", True),
    ("vi, (vj + T.int32(I[vj])) % 100", False),
    ("vi, T.min(vj, 70)", False),
])  # fmt: skip
def test_default_schedule_stores_vectors_around_a_ring(index, vectors):
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((3, 100), "float32"), I: T.Buffer((100,), "uint8"),
         B: T.Buffer((3, 100), "float32")):
    for i, j in T.grid(3, 100):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[{index}] = A[vi, vj] * 3.0
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if hasattr(s, "kind")}
    assert (ForKind.VECTORIZED in kinds) == vectors
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize("update", [
    "S[i] = S[i] + A[i, k] * x[k]",
    "S[i] = S[i] + (A[i, k] - x[k]) * (A[i, k] - x[k])",
    "S[i] = T.max(S[i], A[p[i], k] + x[k])",
])  # fmt: skip
@pytest.mark.parametrize("n", [100, 256])
def test_default_schedule_sums_rows_side_by_side(update, n):
    """The lanes walk along rows, each in the order of the program."""
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer(({n}, 70)), x: T.Buffer((70,)), p: T.Buffer(({n},), "int32"),
         S: T.Buffer(({n},))):
    for i in range({n}):
        S[i] = 0.0
        for k in range(70):
            {update}
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    vectors = [s for s in walk_stmts(sch.func.body)
               if isinstance(s, For) and s.kind is ForKind.VECTORIZED]  # fmt: skip
    assert any(isinstance(s.body, For) for s in vectors)
    rng = np.random.default_rng(0)
    given = [rng.random((n, 70), "float32"), rng.random(70, "float32"),
             rng.integers(0, n, n).astype("int32")]  # fmt: skip
    found = []
    for program in (func, sch.mod):
        found.append(np.zeros(n, "float32"))
        build(program, target="native")(*given, found[-1])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("kind", "walks"), [("reduce", False), ("opaque", True)])
def test_only_sums_in_order_are_offered_lanes_that_walk(kind, walks):
    """A sum in any order has lanes along the row; lanes over such sums would undo them."""
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((96, 512)), S: T.Buffer((96,))):
    for i, k in T.grid(96, 512):
        with T.block("S"):
            vi = T.axis.spatial(96, i)
            vk = T.axis.{kind}(512, k)
            S[vi] = S[vi] + A[vi, vk]
""")
    sch = Schedule(func)
    block = sch.get_block("S")
    assert has_walks(sch.get(block)) == walks
    sch.annotate(block, FOLD, 16)
    child = child_of(sch, sch.get(block).token)
    assert not vectorize_leaf(sch, block, child, 16)


@pytest.mark.parametrize(("columns", "unrolled"), [(64, 4), (70, 5), (128, 8), (144, 0)])
def test_few_vectors_of_results_stay_in_registers(columns, unrolled):
    """The rows of a sparse matrix add to the same vectors of a row, which memory need not hold."""
    func = parse(f"""
@T.prim_func
def main(b: T.Buffer((9,), "int32"), c: T.Buffer((200,), "int32"), B: T.Buffer((30, {columns})),
         C: T.Buffer((8, {columns}))):
    for i in range(8):
        for j in range({columns}):
            C[i, j] = 1.0
        for p in range(b[i], b[i + 1]):
            for j in range({columns}):
                C[i, j] += B[c[p], j]
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = [(s.kind, s.extent.value) for s in walk_stmts(sch.func.body)
             if isinstance(s, For) and s.kind is ForKind.UNROLLED]  # fmt: skip
    assert kinds == [(ForKind.UNROLLED, unrolled)] * bool(unrolled)
    rng = np.random.default_rng(0)
    start, rows = np.sort(rng.integers(0, 200, 9)), rng.integers(0, 30, 200)
    given = [start.astype("int32"), rows.astype("int32"), rng.random((30, columns), "float32")]
    found = []
    for program in (func, sch.mod):
        found.append(np.zeros((8, columns), "float32"))
        build(program, target="native")(*given, found[-1])
    np.testing.assert_array_equal(*found)


def test_default_schedule_keeps_several_outputs_in_one_pass():
    """Cut into two blocks, the complex product would read its operands twice."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((64, 2, 64), "float32"), B: T.Buffer((64, 2, 64), "float32"),
         C: T.Buffer((64, 64), "float32"), D: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, 0, vj] * B[vi, 0, vj] - A[vi, 1, vj] * B[vi, 1, vj]
            D[vi, vj] = A[vi, 0, vj] * B[vi, 1, vj] + A[vi, 1, vj] * B[vi, 0, vj]
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = [sch.get(loop).kind for loop in sch.get_loops("C")]
    assert kinds == [ForKind.PARALLEL, ForKind.SERIAL, ForKind.VECTORIZED]
    assert len(sch.get(sch.get_block("C")).writes) == 2
    check_numbers(func, sch.mod, compiled=True)


def test_plain_loops_get_vectors_and_threads():
    @T.prim_func
    def plain(A: T.Buffer((128, 128), "float32"), B: T.Buffer((128, 128), "float32")):
        for i, j in T.grid(128, 128):
            B[i, j] = A[i, j] + T.float32(1)

    sch = Schedule(plain)
    default_trace(plain, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if hasattr(s, "kind")}
    assert kinds == {ForKind.PARALLEL, ForKind.SERIAL, ForKind.VECTORIZED}
    spaces = SpaceGenerator(default_modules(TARGET)).generate(plain)
    assert spaces and all("sch.enclose" in trace.as_python() for trace in spaces)


STEPS_OF_TIME = """
@T.prim_func
def main(A: T.Buffer((64, 6, 96)), X: T.Buffer((64, 6, 96)), H: T.Buffer((64, 6, 96)),
         I: T.Buffer((64,), "int32")):
    for t in range(1, 64):
        for b, d in T.grid(6, 96):
            {store}
"""


@pytest.mark.parametrize(
    ("store", "kinds"),
    [
        ("H[t, b, d] = T.max(H[t - 1, b, d] - A[t, b, d], X[t, b, d])", "parallel serial serial"),
        ("H[I[t] % 64, b, d] = H[I[t] % 64, b, d] + X[t, b, d]", "serial serial serial"),
        ("H[t, b, d] = T.max(H[t - 1, 5 - b, d] - A[t, b, d], X[t, b, d])", "serial serial serial"),
    ],
)
def test_columns_that_time_keeps_apart_are_spread_outside_of_time(store, kinds):
    """Each core runs all steps of its columns, so that the threads start once. Parts of rows that
    memory names stay on one core: the cores would wait for each other's lines."""
    func = parse(STEPS_OF_TIME.format(store=store))
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    (block,) = sch.get_child_blocks(sch.get_block("root"))
    found = [sch.get(loop).kind.value for loop in sch.get_loops(block)]
    assert " ".join(found[:3]) == kinds
    check_numbers(func, sch.mod, compiled=True)


STEPS = """
@T.prim_func
def main(P: T.Buffer((8, 500), "float32"), G: T.Buffer((8, 500), "float32"),
         M: T.Buffer((8, 500), "float32"), Q: T.Buffer((8, 500), "float32")):
    for i, j in T.grid(8, 500):
        with T.block("m"):
            vi, vj = T.axis.remap("SS", [i, j])
            M[vi, vj] = M[vi, vj] * T.float32(0.5) + G[vi, vj]
    for i, j in T.grid(8, {columns}):
        with T.block("p"):
            vi, vj = T.axis.remap("SS", [i, j])
            {step}
    for i, j in T.grid(8, 500):
        with T.block("q"):
            vi, vj = T.axis.remap("SS", [i, j])
            Q[vi, vj] = T.sqrt(T.abs({last}))
"""


@pytest.mark.parametrize(("step", "last", "columns", "nests"), [
    ("P[vi, vj] = P[vi, vj] - M[vi, vj]", "P[vi, vj]", 500, 1),
    ("P[vi, vj] = P[vi, vj] - M[vi, vj]", "Q[vi, vj]", 500, 2),  # no buffer is shared
    ("P[vi, vj] = M[vi, 499 - vj]", "P[vi, vj]", 500, 2),  # of other columns
    ("M[vi, vj] = M[vi, vj] - G[vi, vj]", "M[vi, vj]", 484, 3),  # fewer vectors
    ("P[vi, vj] = T.if_then_else(vj == 0, M[vi, 0], P[vi, vj - 1] + M[vi, vj])", "P[vi, vj]",
     500, 3),
])  # fmt: skip
def test_default_schedule_merges_steps_on_the_same_elements(step, last, columns, nests):
    """A step of an optimiser updates several arrays: the loads of the second find registers."""
    func = parse(STEPS.format(step=step, last=last, columns=columns))
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    loops = [s for s in walk_stmts(sch.func.body) if getattr(s, "kind", None) is ForKind.PARALLEL]
    assert len(loops) == nests
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(("weight", "nests"), [
    ("T.floor(A[vi, vk] * B[vk, vj] * 0.5)", 2),
    ("T.floor(A[vi, vk] + B[vk, vj] * 0.5)", 3),
    ("A[vi, vk] * B[vk, vj] + 40.0", 3),
])  # fmt: skip
def test_default_schedule_merges_sums_that_call_a_function_of_the_same_values(weight, nests):
    """A weighted mean: the function is computed once for the sum and for the sum of the weights."""
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((40, 20), "float32"), B: T.Buffer((20, 48), "float32"),
         C: T.Buffer((40, 48), "float32")):
    N, D = T.alloc_buffer((40, 48)), T.alloc_buffer((40, 48))
    for i, j, k in T.grid(40, 48, 20):
        with T.block("N"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                N[vi, vj] = T.float32(0)
            N[vi, vj] = N[vi, vj] + T.floor(A[vi, vk] * B[vk, vj] * 0.5) * B[vk, vj]
    for i, j, k in T.grid(40, 48, 20):
        with T.block("D"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                D[vi, vj] = T.float32(0)
            D[vi, vj] = D[vi, vj] + {weight}
    for i, j in T.grid(40, 48):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = N[vi, vj] / D[vi, vj]
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert len(sch.func.body.block.body.stmts) == nests
    check_numbers(func, sch.mod, compiled=True)


def test_a_scalar_of_a_large_nest_is_kept_on_the_heap():
    """The copies for all iterations would fill the stack, which limit_stack refuses."""

    @T.prim_func
    def product(A: T.Buffer((256, 4), "float32"), B: T.Buffer((4, 256), "float32"),
                C: T.Buffer((256, 256), "float32")):  # fmt: skip
        for i, j in T.grid(256, 256):
            s = T.float32(0)
            for k in range(4):
                s += A[i, k] * B[k, j]
            C[i, j] = s

    spaces = SpaceGenerator(default_modules(TARGET)).generate(product)
    copied = [trace for trace in spaces if "expand_buffer" in trace.as_python()]
    assert copied
    a, b = (np.arange(1024).reshape(s) % 64 for s in ((256, 4), (4, 256)))
    for trace in copied:
        sch = Schedule(product, seed=0)
        trace.apply(sch)
        blocks = [s for s in walk_stmts(sch.func.body) if isinstance(s, Block)]
        local = [b for block in blocks for b in block.alloc_buffers if b.scope == "local"]
        if TILED not in str(trace):  # an iteration of a tile uses a part alone
            assert all(prod(b.constant_shape()) <= COPIES for b in local)  # copies for lanes
        result = np.empty((256, 256), np.float32)
        build(sch.mod)(
            a.astype(np.float32), b.astype(np.float32), result
        )  # the interpreter would take a minute
        np.testing.assert_array_equal(result, a @ b)


def test_a_block_without_results_gets_no_tiles(recwarn):
    @T.prim_func
    def idle(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
        for i in range(64):
            w = T.int32(2)
            while w < 3:
                w = w + A[i] * 0 + 1
        for i in range(64):
            B[i] = A[i] + 1

    for trace in SpaceGenerator(default_modules(TARGET)).generate(idle):
        sch = Schedule(idle, seed=0)
        trace.apply(sch)
        check_numbers(idle, sch.mod, compiled=True)
    assert not recwarn.list


def test_loops_that_use_pointers_stay_as_written():
    @T.prim_func
    def pointers(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            B[i] = T.call_extern("float32", "sqrtf", A[i]) + T.float32(0) * T.cast(
                T.call_extern("int32", "abs", T.address_of(A[0]) == T.address_of(B[0])), "float32"
            )

    assert default_trace(pointers, TARGET).as_python().count("sch.") == 0


@pytest.mark.parametrize(
    ("bits", "rows", "widths"),
    [(256, 64, [8]), (256, 600, [8, 16]), (256, 1100, [8, 16, 32]), (512, 64, [16, 32, 64])],
)
def test_rows_of_a_triangle_fill_wide_vectors(bits: int, rows: int, widths: list[int]) -> None:
    """Without masks for lanes, the end of a row takes longer than a vector."""

    @T.prim_func
    def update(A: T.Buffer((rows,)), C: T.Buffer((rows, rows))):
        for i in range(rows):
            for j in range(i, rows):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = C[vi, vj] - A[vi] * A[vj]

    sch = Schedule(update)
    (found,) = ParallelVectorizeUnroll(vector_bits=bits)(sch, sch.get_block("C"))
    noted = found.get(found.get_block("C")).annotations[VECTORIZE]
    sampled = [e.values[0] for e in found.trace.entries if e.kind.name == "sample_categorical"]
    assert (sampled or [[noted]]) == [widths]


@pytest.mark.parametrize(
    ("value", "kind"), [("T.float64(0)", ForKind.SERIAL), ("A[i]", ForKind.PARALLEL)]
)
def test_threads_do_not_start_to_set_a_short_buffer(value: str, kind: ForKind) -> None:
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((3000,), "float64"), B: T.Buffer((3000,), "float64")):
    for i in range(3000):
        B[i] = {value}
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert [sch.get(loop).kind for loop in sch.get_loops("B")] == [kind, ForKind.VECTORIZED]


BORDER = """
@T.prim_func
def main(X: T.Buffer((20, 16, 4, 4), "float32"), P: T.Buffer((22, 16, 4, 4), "float32")):
    for i, c, x, y in T.grid(22, 16, 4, 4):
        with T.block("pad"):
            vi, vc, vx, vy = T.axis.remap("SSSS", [i, c, x, y])
            P[vi, vc, vx, vy] = T.if_then_else({test}, X[vi - 1, vc, vx, vy], T.float32(0))
"""


@pytest.mark.parametrize(
    ("test", "loops"),
    [("1 <= vi and vi < 21", 3), ("1 <= vi and vi + vx < 21", 4)],
)
def test_short_loops_that_decide_no_condition_run_as_one(test, loops):
    """A border of a capsule convolution ran in vectors of 4, or in lanes 256 elements apart."""
    func = parse(BORDER.format(test=test))
    sch = Schedule(func)
    block = sch.get_block("pad")
    child = sch.state.scope(sch.state.block(block)).realizes[0]
    assert vectorize_leaf(sch, block, child, 16)
    extents = [int(sch.get(loop).extent) for loop in sch.get_loops(block)]
    assert len(extents) == loops and extents[-1] == (16 if loops == 3 else 4)
    check_numbers(func, sch.mod, compiled=True)
    traces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert loops == 4 or all("turned_rows" not in str(trace) for trace in traces)
