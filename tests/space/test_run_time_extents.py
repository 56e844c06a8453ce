"""Programs with sizes that are known at run time only: vectors, threads, tiles and their tails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import metasched as ms
from metasched.analysis.flops import flops
from metasched.analysis.sizes import at_sizes, with_sizes, with_sizes_each
from metasched.cost.features import features
from metasched.database.base import STORE
from metasched.database.store import Store
from metasched.errors import MetaschedError, TraceMiss
from metasched.ir.equal import structural_hash
from metasched.ir.expr import TRUE
from metasched.ir.stmt import For, ForKind, IfThenElse
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_trace
from metasched.measure.candidate import Candidate, Status
from metasched.measure.local import LocalRunner
from metasched.measure.other_sizes import other_sizes
from metasched.measure.settings import MeasureOptions
from metasched.script import parse
from metasched.search.parts import spaces_of
from metasched.search.population import CandidateFactory

SIZES = (0, 1, 7, 8, 33)


def double(kind: str) -> ms.PrimFunc:
    return parse(f"""
@T.prim_func
def double(a: T.handle, b: T.handle):
    n = T.{kind}()
    A = T.match_buffer(a, (n,))
    B = T.match_buffer(b, (n,))
    for i in range(n):
        with T.block("double"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * T.float32(2)
""")


def product(kind: str) -> ms.PrimFunc:
    return parse(f"""
@T.prim_func
def product(a: T.handle, b: T.handle, c: T.handle):
    n, m, p = T.{kind}(), T.{kind}(), T.{kind}()
    A = T.match_buffer(a, (n, p))
    B = T.match_buffer(b, (p, m))
    C = T.match_buffer(c, (n, m))
    for i, j, k in T.grid(n, m, p):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")


def kinds_of(sch: ms.Schedule) -> set[ForKind]:
    return {loop.kind for loop in sch.state.index.loops.values()}


def check_product(sch: ms.Schedule) -> None:
    kernel, random = ms.build(sch), np.random.default_rng(0)
    for n, m, p in [(n, m, 5) for n in SIZES for m in SIZES] + [(4, 16, 0), (4, 16, 1)]:
        a, b = random.integers(-4, 4, (n, p)), random.integers(-4, 4, (p, m))
        c = np.full((n, m), 7, "float32")
        kernel(a.astype("float32"), b.astype("float32"), c)
        np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_the_default_schedule_has_vectors_and_threads(kind):
    target = replace(ms.Target.native(), num_cores=2)
    for func in (double(kind), product(kind)):
        sch = ms.Schedule(func)
        default_trace(func, target).apply(sch)
        assert {ForKind.PARALLEL, ForKind.VECTORIZED} <= kinds_of(sch)
    check_product(sch)
    sch = ms.Schedule(double(kind))
    default_trace(double(kind), target).apply(sch)
    kernel = ms.build(sch)
    for n in SIZES:
        a = np.arange(n, dtype="float32")
        np.testing.assert_array_equal(kernel(a), a * 2)


def register_tiled(func: ms.PrimFunc) -> ms.Schedule:
    sch = ms.Schedule(func)
    block = sch.get_block("C")
    stored = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    rows, row = sch.split(i, [None, 4])
    columns, column = sch.split(j, [None, 16])
    sch.reorder(rows, columns, k, row, column)
    sch.reverse_compute_at(stored, columns, preserve_unit_loops=True)
    vector, lane = sch.split(column, [2, 8])
    for loop in (row, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.parallel(rows)
    sch.decompose_reduction(block, k, keep_kinds=True)
    return sch


def test_whole_tiles_run_without_conditions():
    sch = register_tiled(product("int64"))
    loops = [s for s in walk_stmts(ms.lower(sch).body) if isinstance(s, For)]
    sums = [s for s in loops if s.kind is ForKind.SERIAL and s.var.name == "k"]
    tested = [any(isinstance(s, IfThenElse) for s in walk_stmts(loop.body)) for loop in sums]
    assert tested.count(False) == 1 and True in tested
    check_product(sch)
    check_product(register_tiled(product("int32")))


def packed_tiles(func: ms.PrimFunc) -> ms.Schedule:
    """Panels of columns padded to whole tiles at run time; rows clamped to the last row."""
    sch = ms.Schedule(func)
    block = sch.get_block("C")
    stored, panel = sch.cache_write(block, 0, "local"), sch.reindex(block, ("read", 1))
    i, j, k = sch.get_loops(block)
    sch.overcompute(panel, [16, 1])
    sch.overcompute(block, [6, 16, 1])
    sch.transform_layout(panel, ("write", 0), lambda i, k: (i // 16, k, i % 16))
    rows, row = sch.split(i, [None, 6])
    columns, column = sch.split(j, [None, 16])
    sch.reorder(columns, rows, k, row, column)
    sch.reverse_compute_at(stored, rows, preserve_unit_loops=True)
    sch.compute_at(panel, columns, preserve_unit_loops=True)
    sch.parallel(columns)
    sch.vectorize(sch.split(column, [2, 8])[1])
    sch.decompose_reduction(block, k, keep_kinds=True)
    return sch


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_extents_are_rounded_up_at_run_time(kind):
    sch = packed_tiles(product(kind))
    assert sch.state.block(sch.get_block("C_update")).predicate is TRUE
    check_product(sch)


def test_an_extent_that_is_a_multiple_stays_at_run_time():
    sch = ms.Schedule(product("int64"))
    sch.cache_write("C", 0, "local")
    sch.overcompute("C", [6, 16, 1])
    before = sch.script()
    sch.overcompute("C", [3, 8, 1])
    assert sch.script() == before


def factory(func: ms.PrimFunc) -> CandidateFactory:
    target = replace(ms.Target.native(), num_cores=2)
    return CandidateFactory(func, target, spaces_of(None, None, ["main"], target)["main"])


def test_drawn_register_tiles_are_right_at_every_size():
    made = factory(with_sizes(product("int64"), {"n": 64, "m": 96, "p": 8}))
    packed = [n for n, space in enumerate(made.spaces) if "reindex" in str(space)]
    assert packed and len(packed) < len(made.spaces)
    found = made.replay(made.spaces[packed[0]], packed[0])
    assert found is not None, made.survival.reasons
    assert str(found.trace).count("overcompute") == 3  # of the panel, the rows, the columns
    check_product(found.schedule)


def test_cost_and_operations_are_those_of_the_representative_sizes():
    tuned = with_sizes(product("int64"), {"n": 64, "m": 32, "p": 8})
    assert flops(at_sizes(tuned)) == 2 * 64 * 32 * 8
    target = ms.Target.native()
    assert (features(tuned, target) == features(at_sizes(tuned), target)).all()
    assert structural_hash(tuned) != structural_hash(product("int64"))
    assert structural_hash(parse(tuned.script())) == structural_hash(tuned)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"q": 3}, "sizes name 'q'; the run-time extents are: n"),
        ({"n": 0}, "the size of 'n' is 0; it must be an integer above 0"),
        ({}, "^the extent n is known at run time only.* sizes={'n': 1024}.* --size n=1024$"),
        ([3], "sizes are numbers by the names of extents"),
    ],
)
def test_sizes_that_do_not_fit(sizes, message):
    with pytest.raises(MetaschedError, match=message):
        with_sizes(double("int64"), sizes)


def test_tasks_share_the_sizes_of_their_extents():
    """Tuning without a size is refused before anything starts, with the task's name."""
    tasks = {"f": double("int64"), "g": product("int64")}
    sized = with_sizes_each(tasks, {"n": 8, "m": 4, "p": 2})
    assert {name: dict(f.attrs["metasched.sizes"]) for name, f in sized.items()} == {
        "f": {"n": 8}, "g": {"n": 8, "m": 4, "p": 2}
    }  # fmt: skip
    with pytest.raises(MetaschedError, match=r"^g: the extents p, m are .* --size p=1024 --size m"):
        ms.tune_tasks(tasks, sizes={"n": 8})
    with pytest.raises(MetaschedError, match="^f: the extent n is"):
        ms.tune_tasks({"f": tasks["f"]})


def test_other_sizes_surround_whole_tiles():
    func, usual = product("int64"), {"n": 1024, "m": 1024, "p": 4}
    found = other_sizes(func, usual)
    assert {"n": 1, "m": 1, "p": 1} in found and {1, 95, 97} <= {one["n"] for one in found}
    assert {one["p"] for one in found} <= {1, 2, 3, 5} and len(found) <= 7
    assert other_sizes(func, {"n": 1024}) == []


def wrong_above(limit: int) -> ms.PrimFunc:
    """The program `double`, wrong in elements from `limit` on."""
    text = double("int64").script().replace("T.float32(2)", f"T.Select(vi < {limit}, 2.0, 3.0)")
    return parse(text)


def test_a_candidate_must_be_right_at_other_sizes():
    func = with_sizes(double("int64"), {"n": 90})
    with LocalRunner(func, options=MeasureOptions(build_workers=1, sample_ms=0.1)) as runner:
        right, wrong = (
            Candidate(n, ms.Schedule(f).mod, str(n)) for n, f in enumerate((func, wrong_above(90)))
        )
        outcomes = runner.measure([right, wrong])
    assert outcomes[0].ok, outcomes[0].message
    assert outcomes[1].status is Status.WRONG_RESULT and "at n = 91" in outcomes[1].message


def test_tuned_at_a_size_and_replayed_at_all(tmp_path):
    result = ms.tune(double("int64"), sizes={"n": 50}, trials=1, work_dir=tmp_path)
    assert result.best is not None and result.best.path is not None, result.failures
    with Store(tmp_path / STORE) as store:
        from_records = ms.replay(store, double("int64"))
        with pytest.raises(TraceMiss, match="no record of workload"):
            ms.replay(store, with_sizes(double("int64"), {"n": 51}))
    for replayed in (ms.replay(result.best.path, double("int64")), from_records):
        kernel = ms.build(replayed)
        for n in SIZES:
            a = np.arange(n, dtype="float32")
            np.testing.assert_array_equal(kernel(a), a * 2)


def test_an_index_without_its_variable_is_compared_with_others() -> None:
    func = parse(
        """
@T.prim_func
def first(a: T.handle, C: T.Buffer((1,), "float32")):
    m = T.int32()
    Z = T.match_buffer(a, (m,), "float32")
    for i in range(2):
        Z[(i - i) % m] = C[0]
        for j in range(m):
            Z[m - 1 - j] += C[0]
"""
    )
    z = np.ones(5, np.float32)
    ms.build(ms.autoschedule(with_sizes(func, {"m": 64})))(z, np.full(1, 2, np.float32))
    assert z.tolist() == [4, 5, 5, 5, 5]
