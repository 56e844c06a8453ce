"""Loop kinds, annotations, queries and sampling: results and refusals."""

# ruff: noqa: E501  (tables read better with one case a line)
from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
from oracle import check_numbers, check_refused, check_trace, check_transform, picture
from schedule.programs import elementwise, fan_out, matmul, matmul_relu, softmax, symbolic
from schedule.test_blocks import start

from metasched.errors import ScheduleError
from metasched.ir.equal import structural_equal
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import ForKind
from metasched.schedule.content import Content
from metasched.schedule.domain import DOMAINS, allows, enumerated, repair
from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def running_sum(A: T.Buffer((8,), "int32")):
    for i in range(7):
        with T.block("A"):
            vi = T.axis.spatial(7, i)
            T.reads(A[vi], A[vi + 1])
            T.writes(A[vi + 1])
            A[vi + 1] = A[vi + 1] + A[vi]


@T.prim_func
def reads_ahead(A: T.Buffer((41,), "int32")):
    for i in range(40):
        with T.block("A"):
            vi = T.axis.opaque(40, i)
            A[vi] = A[vi] * 3 + A[vi + 1]


@T.prim_func
def option_tree(A: T.Buffer((41,), "float32")):
    for t in range(40):
        for j in range(40 - t):
            A[j] = A[j] * T.float32(0.5) + A[j + 1] * T.float32(0.25)


@T.prim_func
def two_ahead(A: T.Buffer((41,), "int32"), B: T.Buffer((41,), "int32")):
    for i in range(40):
        with T.block("A"):
            vi = T.axis.opaque(40, i)
            A[vi] = B[vi] * 3
        with T.block("B"):
            vi = T.axis.opaque(40, i)
            B[vi] = A[vi + 1]


# -- loop kinds ------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Schedule, list], object]] = {
    "parallel": lambda s, x: s.parallel(x[0]),
    "vectorize": lambda s, x: s.vectorize(x[1]),
    "unroll": lambda s, x: s.unroll(x[2]),
    "bind": lambda s, x: s.bind(x[0], "blockIdx.x"),
    "bind_reduction": lambda s, x: s.bind(x[2], "threadIdx.x"),
}


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str) -> None:
    sch, _, (loops,) = start(matmul, "C")
    KINDS[name](sch, loops)
    check_transform(matmul, sch, name, compiled="bind" not in name)


def test_unrolling_twice_is_one_kind() -> None:
    sch, _, (loops,) = start(matmul, "C")
    sch.unroll(loops[0])
    sch.unroll(loops[0])
    assert sch.get(loops[0]).kind is ForKind.UNROLLED


REFUSED: list[tuple[PrimFunc, str, Callable[[Schedule, list], object], str, str]] = [
    (matmul, "C", lambda s, x: s.parallel(x[2]), "carried-reduction", "element of C .*reduction"),
    (matmul, "C", lambda s, x: s.vectorize(x[2]), "carried-reduction", "element of C"),
    (matmul, "C", lambda s, x: s.bind(x[2], "blockIdx.x"), "carried-reduction", "element of C"),
    (running_sum, "A", lambda s, x: s.parallel(x[0]), "carried-dependence", "element of A"),
    (running_sum, "A", lambda s, x: s.vectorize(x[0]), "carried-dependence", "element of A"),
    (running_sum, "A", lambda s, x: s.bind(x[0], "threadIdx.x"), "carried-dependence", "of A"),
    (reads_ahead, "A", lambda s, x: s.parallel(x[0]), "carried-dependence", "reads A.vi [+] 1"),
    (two_ahead, "A", lambda s, x: s.vectorize(x[0]), "carried-dependence", "element of A"),
    (symbolic, "B", lambda s, x: s.vectorize(x[1]), "symbolic-extent", "extent of j is not a const"),
    (matmul, "C", lambda s, x: s.bind(x[0], "threadIdx.w"), "unknown-thread-axis", "'threadIdx.w'"),
    (matmul, "C", lambda s, x: s.unannotate(x[0], "a"), "no-annotation", "no annotation 'a'"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[1]}-{c[3]}")
def test_refused(case: tuple[PrimFunc, str, Callable[[Schedule, list], object], str, str]) -> None:
    func, name, step, reason, message = case
    sch, _, (loops,) = start(func, name)
    check_refused(sch, lambda: step(sch, loops), reason, message)


def test_lanes_load_before_they_store() -> None:
    """A store that reads what later iterations write runs in lanes, also in several vectors."""
    sch, _, ((i,),) = start(reads_ahead, "A")
    sch.vectorize(i)
    check_numbers(reads_ahead, sch.mod, compiled=True)
    sch = Schedule(option_tree)
    (made,) = sch.enclose("root")
    _, j = sch.get_loops(made)
    sch.vectorize(sch.split(j, [None, 8])[1])
    check_numbers(option_tree, sch.mod, compiled=True)


@pytest.mark.parametrize("step", ["parallel", "vectorize", "unroll"])
def test_setting_the_present_kind_of_a_loop_is_accepted(step: str) -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    getattr(sch, step)(j)
    once = sch.mod
    getattr(sch, step)(j)
    assert sch.mod is once and sch.trace.entries[-1].kind.name == step
    check_trace(matmul, sch)


def test_annotating_with_the_present_value_is_accepted() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    for rv in (c, i):
        sch.annotate(rv, "note", [1, "a"])
        once = sch.mod
        sch.annotate(rv, "note", [1, "a"])
        assert sch.mod is once
        sch.annotate(rv, "note", 7, replace=None)
        assert sch.mod is once
        for other in (1, [1, "b"], "text"):
            check_refused(
                sch, lambda rv=rv, other=other: sch.annotate(rv, "note", other),
                "annotation-exists", r"is \[1, 'a'\] already",
            )  # fmt: skip
    sch.annotate(i, "one", 1)
    check_refused(sch, lambda: sch.annotate(i, "one", True), "annotation-exists", "is 1 already")
    check_trace(matmul, sch)


@pytest.mark.parametrize("second", ["vectorize", "unroll", "bind"])
def test_setting_another_kind_replaces_the_kind_of_a_loop(second: str) -> None:
    for first in ("parallel", "vectorize", "unroll", "bind"):
        sch, _, ((i, j, k),) = start(matmul, "C")
        for step, axis in ((first, "threadIdx.x"), (second, "blockIdx.x")):
            getattr(sch, step)(i, *([axis] if step == "bind" else []))
        loop = sch.get(i)
        kinds = {"vectorize": "vectorized", "unroll": "unroll", "bind": "thread_binding"}
        assert loop.kind.value == kinds[second]
        assert loop.thread == ("blockIdx.x" if second == "bind" else None)
        check_numbers(matmul, sch.mod, compiled=False)
        check_trace(matmul, sch)


def test_a_loop_whose_threads_exchange_elements_stays_bound() -> None:
    @T.prim_func
    def turned(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        S = T.alloc_buffer((8,), "float32", scope="shared")
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.block("S"):
                vt = T.axis.spatial(8, t)
                S[vt] = A[vt]
            with T.block("B"):
                vt = T.axis.spatial(8, t)
                B[vt] = S[7 - vt]

    sch = Schedule(turned)
    (t,) = sch.get_loops("B")
    message = r"B reads S\[7 - vt\], which is not proved to be written before"
    check_refused(sch, lambda: sch.unroll(t), "region-cover", message)
    sch.bind(t, "threadIdx.y")
    assert sch.get(t).thread == "threadIdx.y"
    check_refused(sch, lambda: sch.bind(t, "blockIdx.x"), "region-cover", message)


# -- annotations -----------------------------------------------------------------------------------


def test_annotations_of_all_kinds_of_values() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    v = sch.sample_categorical([4, 8], [0.5, 0.5], decision=1)
    sch.annotate(i, "pragma", "text")
    sch.annotate(i, "list", [1, 2.5, True, None, v * 2])
    sch.annotate(c, "map", {"a": v, "b": ["$x"]})
    assert sch.get(i).annotations["list"] == [1, 2.5, True, None, 16]
    assert sch.get(c).annotations["map"] == {"a": 8, "b": ["$x"]}
    check_transform(matmul, sch, "annotate")
    check_refused(
        sch, lambda: sch.annotate(i, "pragma", 1), "annotation-exists", "is 'text' already"
    )
    sch.annotate(i, "pragma", 1, replace=True)
    sch.unannotate(c, "map")
    assert sch.get(i).annotations["pragma"] == 1 and not sch.get(c).annotations
    check_transform(matmul, sch)


# -- queries ---------------------------------------------------------------------------------------


def names(sch: Schedule, blocks: list) -> list[str]:
    return [sch.get(b).name for b in blocks]


def test_queries() -> None:
    sch = Schedule(softmax, seed=0)
    e, root = sch.get_block("E"), sch.get_sblock("root")
    assert names(sch, sch.get_child_blocks(root)) == ["M", "E", "S", "O"]
    assert names(sch, sch.get_producers(e)) == ["M"]
    assert names(sch, sch.get_consumers("E")) == ["S", "O"]
    assert names(sch, sch.get_output_blocks(root)) == ["O"]
    i, j = sch.get_loops(e)
    assert names(sch, sch.get_child_blocks(i)) == ["E"]
    assert sch.get_loops(root) == []
    check_transform(softmax, sch)


def test_query_refusals() -> None:
    sch = Schedule(matmul_relu, seed=0)
    check_refused(sch, lambda: sch.get_block("Q"), "no-such-block", "'Q'; there are root, C, D")
    check_refused(
        sch, lambda: sch.get_block("C", "f"), "no-function", "no function 'f'; there are main"
    )
    root = sch.get_block("root")
    check_refused(sch, lambda: sch.get_producers(root), "is-root", "is in no scope")
    check_refused(sch, lambda: sch.compute_inline("Q"), "no-such-block", "'Q'")


def test_several_functions() -> None:
    sch = Schedule(IRModule({"f": matmul, "g": elementwise}), seed=0)
    check_refused(sch, lambda: sch.get_block("B"), "which-function", "several functions: f, g")
    check_refused(sch, lambda: sch.work_on("h"), "no-function", "no function 'h'; there are f, g")
    other = sch.get_block("C", func_name="g")
    sch.work_on("f")
    assert sch.get(sch.get_block("C")).name == "C" and len(sch.get_loops("C")) == 3
    sch.split(sch.get_loops(other)[0], [2, None])
    assert sch.mod["f"] is matmul or sch.mod["f"].body is matmul.body
    again = Schedule(IRModule({"f": matmul, "g": elementwise}), seed=0)
    again.work_on("f")
    sch.trace.apply(again)
    assert again.script() == sch.script()


# -- sampling --------------------------------------------------------------------------------------


def chi_square(counts: collections.Counter, expected: dict) -> float:
    total = sum(counts.values())
    return sum((counts[k] - total * p) ** 2 / (total * p) for k, p in expected.items())


@pytest.mark.parametrize(
    "domain",
    [
        {"kind": "perfect_tile", "extent": 24, "n": 3, "max_innermost": 0},
        {"kind": "perfect_tile", "extent": 60, "n": 2, "max_innermost": 6},
        {"kind": "partitioned_tile", "extent": 24, "n": 3, "position": 2, "inner_factor": 4},
        {"kind": "location", "candidates": [-2, -1, 0, 3]},
    ],
)
def test_draws_are_uniform(domain: dict) -> None:
    every = [tuple(d) if isinstance(d, list) else d for d in enumerated(domain, 1000)]
    rng = Rng(5)
    draw = DOMAINS.get(domain["kind"]).draw
    counts = collections.Counter(
        tuple(d) if isinstance(d := draw(domain, rng), list) else d for _ in range(400 * len(every))
    )
    assert set(counts) == set(every)
    assert all(allows(domain, list(d) if isinstance(d, tuple) else d) for d in every)
    free = len(every) - 1
    assert chi_square(counts, {d: 1 / len(every) for d in every}) < free + 4 * (2 * free) ** 0.5


def test_categorical_follows_its_probabilities() -> None:
    sch = Schedule(matmul, seed=3)
    values = [sch.sample_categorical([1, 2, 4], [0.5, 0.25, 0.25]) for _ in range(600)]
    counts = collections.Counter(sch.get(v) for v in values)
    assert chi_square(counts, {1: 0.5, 2: 0.25, 4: 0.25}) < 14
    never = sch.sample_categorical([1, 2], [0.0, 1.0])
    assert sch.get(never) == 2


def test_repair_is_a_fixed_rule() -> None:
    tile = {"kind": "perfect_tile", "extent": 24, "n": 3, "max_innermost": 4}
    assert repair(tile, [2, 3, 5]) == [2, 3, 4]
    assert repair(tile, [1, 1, 128]) == [6, 1, 4]
    assert repair(tile, "nonsense") == [24, 1, 1]
    assert repair({"kind": "categorical", "candidates": [1, 2], "probs": [1, 1]}, 7) == 1
    assert repair({"kind": "location", "candidates": [-1, 0, 3]}, 2) == 0
    for bad in ([2, 3, 5], [1, 1, 128], None, [0, 0, 0], [24], 7):
        assert allows(tile, repair(tile, bad))


def test_sampled_values_are_numbers_and_expressions() -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    a, b, c = sch.sample_perfect_tile(k, 3, decision=[2, 3, 2])
    assert [sch.get(x) for x in (a, b, c)] == [2, 3, 2]
    assert sch.get(a * b + 1) == 7
    parts = sch.split(k, [None, b * c])
    assert int(sch.get(parts[1]).extent.value) == 6
    check_transform(matmul, sch, "split_by_expression")


def test_symbolic_extents_leave_no_choice() -> None:
    sch, _, ((i, j),) = start(symbolic, "B")
    tile = sch.sample_perfect_tile(i, 3)
    assert [sch.get(v) for v in tile] == [-1, 1, 1]
    sch.split(i, tile)
    sch.split(j, sch.sample_partitioned_tile(j, 2, 1, 4))
    check_transform(symbolic, sch)


SAMPLING: list[tuple[Callable[[Schedule, list], object], str, str]] = [
    (lambda s, x: s.sample_categorical([], []), "bad-candidates", "0 candidates"),
    (lambda s, x: s.sample_categorical([1], [0.5, 0.5]), "bad-candidates", "1 candidates, 2 prob"),
    (lambda s, x: s.sample_categorical([1, 2], [1, -1]), "bad-probabilities", "not a distribution"),
    (lambda s, x: s.sample_categorical([1, 2], [0, 0]), "bad-probabilities", "not a distribution"),
    (lambda s, x: s.sample_categorical([1, 2], [1, 1], decision=2), "decision-not-allowed", "2 is not"),
    (lambda s, x: s.sample_perfect_tile(x[0], 0), "bad-tile", "n=0"),
    (lambda s, x: s.sample_perfect_tile(x[0], 2, 0), "bad-tile", "max_innermost_factor=0"),
    (lambda s, x: s.sample_perfect_tile(x[0], 2, decision=[3, 3]), "decision-not-allowed", r"\[3, 3\]"),
    (lambda s, x: s.sample_perfect_tile(x[0], 2, 2, decision=[2, 4]), "decision-not-allowed", "domain"),
    (lambda s, x: s.sample_partitioned_tile(x[0], 2, 3), "bad-tile", "position 3"),
    (lambda s, x: s.sample_partitioned_tile(x[0], 2, 1, 0), "bad-tile", "factor 0"),
    (lambda s, x: s.sample_compute_location("C", decision=5), "decision-not-allowed", "5"),
    (lambda s, x: s.require(s.get(x[0]).var < 3), "not-a-constraint", "true or false"),
]  # fmt: skip


@pytest.mark.parametrize("case", SAMPLING, ids=lambda c: c[1])
def test_sampling_refused(case: tuple[Callable[[Schedule, list], object], str, str]) -> None:
    step, reason, message = case
    sch, _, (loops,) = start(matmul, "C")
    check_refused(sch, lambda: step(sch, loops), reason, message)


# -- constraints -----------------------------------------------------------------------------------


def test_require_draws_again_live_and_in_a_fresh_replay() -> None:
    for seed in range(8):
        sch, _, ((i, j, k),) = start(matmul, "C")
        sch.state.rng.state = seed
        a, b = sch.sample_perfect_tile(k, 2, max_innermost_factor=-1)
        c = sch.split(i, [None, 2])
        sch.require(b >= 6)
        assert sch.get(b) >= 6
        sch.split(k, [a, b])
        check_transform(matmul, sch, compiled=False)
        again = Schedule(matmul, seed=seed + 100)
        sch.trace.apply(again, decisions="fresh")
        assert again.trace.decisions()[0][1] >= 6


def test_require_on_two_decisions() -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    a = sch.sample_perfect_tile(i, 2, 8)
    b = sch.sample_perfect_tile(k, 2, 12)
    sch.require(a[1] * b[1] <= 6)
    sch.require(b[1] >= 3)
    assert sch.get(a[1]) * sch.get(b[1]) <= 6 and sch.get(b[1]) >= 3


def test_an_unsatisfiable_constraint_is_refused_and_leaves_nothing() -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    tile = sch.sample_perfect_tile(k, 2, 4)
    check_refused(sch, lambda: sch.require(tile[1] > 100), "constraint", "does not hold")


def test_a_stored_replay_never_draws() -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    tile = sch.sample_perfect_tile(k, 2, 4)
    sch.require(tile[1] <= 4)
    other = Schedule(matmul, seed=9)
    state = other.state.rng.state
    sch.trace.apply(other)
    assert other.state.rng.state == state
    position = sch.trace.sampling()[0][0]
    bad = sch.trace.with_decision(position, [2, 6])
    fresh = Schedule(matmul, seed=9)
    with pytest.raises(Exception, match=r"\[2, 6\] is not in the domain"):
        bad.apply(fresh)


def test_the_same_seed_draws_the_same() -> None:
    def tiles(seed: int) -> list:
        sch, _, (loops,) = start(fan_out, "B")
        sch = Schedule(fan_out, seed=seed)
        loops = sch.get_loops("B")
        return [sch.get(v) for v in sch.sample_perfect_tile(loops[1], 4) for _ in range(2)]

    assert tiles(4) == tiles(4)
    assert len({tuple(tiles(s)) for s in range(30)}) > 5


def test_a_refused_draw_gives_the_random_state_back() -> None:
    sch, _, ((i, j, k),) = start(matmul, "C")
    before = picture(sch)
    with pytest.raises(TypeError, match="got 'n' twice"):
        sch.sample_perfect_tile(i, 2, n=2)
    with pytest.raises(TypeError, match="no argument 'm'"):
        sch.sample_perfect_tile(i, 2, m=2)
    with pytest.raises(TypeError, match="misses the argument 'n'"):
        sch.sample_perfect_tile(i)
    assert picture(sch) == before


def labelled(sch: Schedule) -> Schedule:
    """Several steps that change only labels, two of them on one loop."""
    block = sch.get_block("C")
    loops = sch.get_loops(block)
    sch.unroll(loops[-1])
    sch.annotate(loops[-1], "pragma_auto_unroll_max_step", 16)
    sch.parallel(loops[0])
    sch.annotate(block, "first", 1)
    sch.annotate(block, "second", [2])
    sch.unannotate(block, "first")
    return sch


def test_relabelling_without_checks_is_deferred_and_committed_together(monkeypatch) -> None:
    commits, plain = [], Content.commit
    monkeypatch.setattr(Content, "commit", lambda self, *e: (commits.append(e), plain(self, *e)))
    proved = labelled(Schedule(matmul))
    assert len(commits) == 6
    del commits[:]
    trusted = Schedule(matmul)
    trusted.state.skip_legality_checks = True
    labelled(trusted)
    assert not commits
    saved = trusted.state.snapshot()
    assert structural_equal(trusted.mod, proved.mod) and len(commits) == 1
    i = trusted.get_loops(trusted.get_block("C"))[1]
    trusted.vectorize(i)
    trusted.state.restore(saved)  # the labels were still to come
    assert structural_equal(trusted.mod, proved.mod)


def test_a_deferred_label_is_visible_at_once() -> None:
    sch = Schedule(matmul)
    sch.state.skip_legality_checks = True
    block = sch.get_block("C")
    loop = sch.get_loops(block)[1]
    sch.parallel(loop)
    sch.annotate(block, "note", 1)
    with pytest.raises(ScheduleError, match="is parallel already"):
        sch.split(loop, [None, 2])
    sch.unroll(loop)
    with pytest.raises(ScheduleError, match="'note' is 1 already"):
        sch.annotate(block, "note", 2)
    sch.state.skip_legality_checks = False
    with pytest.raises(ScheduleError, match="is unroll already"):
        sch.split(loop, [None, 2])
    assert sch.get(loop).kind is ForKind.UNROLLED
