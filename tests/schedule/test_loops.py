"""split, fuse, reorder, add_unit_loop: golden results, equal numbers, traces, and every refusal."""

# ruff: noqa: E501  (tables read better with one case a line)
from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from oracle import check_refused, check_transform
from schedule.programs import elementwise, matmul, matmul_relu, strided, symbolic, triangle

from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.ir.verify import verify
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.script.printer import script


@T.prim_func
def shifted(A: T.Buffer((9,), "int32"), C: T.Buffer((9,), "int32")):
    for i in range(1, 9):
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi] = A[vi]


@T.prim_func
def shifted_rows(A: T.Buffer((9, 4), "int32"), C: T.Buffer((9, 4), "int32")):
    for i in range(1, 9):
        for j in range(4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]


@T.prim_func
def in_place(A: T.Buffer((8, 8), "int32")):
    for i, j in T.grid(7, 7):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj + 1])
            T.writes(A[vi + 1, vj])
            A[vi + 1, vj] = A[vi, vj + 1] + 1


@T.prim_func
def opaque(A: T.Buffer((8, 4), "int32")):
    for i, j in T.grid(7, 4):
        with T.block("A"):
            vi = T.axis.opaque(7, i)
            vj = T.axis.opaque(4, j)
            T.reads(A[vi, vj])
            T.writes(A[vi + 1, vj])
            with T.block("inner"):
                A[vi + 1, vj] = A[vi, vj] * 2


@T.prim_func
def known(A: T.Buffer((8, 4), "int32")):
    for i, j in T.grid(7, 4):
        with T.block("A"):
            vi = T.axis.opaque(7, i)
            vj = T.axis.opaque(4, j)
            A[vi + 1, vj] = A[vi, vj] * 2


def start(func: PrimFunc, name: str) -> tuple[Schedule, list]:
    """A schedule of `func` and the loops of one block."""
    sch = Schedule(func, seed=0)
    return sch, sch.get_loops(sch.get_block(name))


# -- what they do ----------------------------------------------------------------------------------


def test_split_exact() -> None:
    sch, (i, j, k) = start(matmul, "C")
    parts = sch.split(k, [3, None])
    assert [sch.get(p).var.name for p in parts] == ["k_0", "k_1"]
    sch.split(i, [2, 2, 2])
    check_transform(matmul, sch, "split_exact")


def test_split_guarded() -> None:
    """The block runs under a predicate where the factors do not divide the extent."""
    sch, (i, r) = start(strided, "Y")
    sch.split(i, [None, 4])
    sch.split(r, [2, 2])
    check_transform(strided, sch, "split_guarded")
    assert "T.where(" in script(sch.mod)


def test_split_symbolic() -> None:
    sch, (i, j) = start(symbolic, "B")
    sch.split(i, [None, 4])
    sch.split(j, [2, None])
    check_transform(symbolic, sch, "split_symbolic")


def test_split_of_a_triangle() -> None:
    sch, (i, j) = start(triangle, "C")
    sch.split(j, [None, 2])
    sch.split(i, [2, 3])
    check_transform(triangle, sch, "split_triangle")


def test_split_folds_unit_loops_when_told() -> None:
    sch, (i, j) = start(elementwise, "B")
    sch.split(i, [1, 8], preserve_unit_iters=False)
    assert "T.axis.spatial(8, i_1)" in script(sch.mod) or "remap" in script(sch.mod)
    check_transform(elementwise, sch, "split_unit_folded")


def test_split_without_predicate() -> None:
    sch, (i, j) = start(elementwise, "B")
    sch.split(i, [None, 3], disable_predication=True)
    assert "T.where" not in script(sch.mod)


def test_fuse() -> None:
    sch, (i, j, k) = start(matmul, "C")
    fused = sch.fuse(i, j)
    assert sch.get(fused).var.name == "i_j_fused"
    check_transform(matmul, sch, "fuse")


def test_fuse_after_split_folds_back() -> None:
    sch, (i, j) = start(elementwise, "B")
    a, b = sch.split(i, [4, 2])
    sch.fuse(a, b)
    check_transform(elementwise, sch, "fuse_of_split")


def test_fuse_symbolic() -> None:
    sch, (i, j) = start(symbolic, "B")
    sch.fuse(i, j)
    check_transform(symbolic, sch, "fuse_symbolic")


def test_reorder() -> None:
    sch, (i, j, k) = start(matmul, "C")
    sch.reorder(k, i)
    assert [sch.get(x).var.name for x in sch.get_loops(sch.get_block("C"))] == ["k", "j", "i"]
    check_transform(matmul, sch, "reorder")


def test_opaque_iterators_of_known_accesses_reorder():
    sch, (i, j) = start(known, "A")
    sch.reorder(j, i)
    sch.parallel(j)
    check_transform(known, sch)


def test_reorder_that_changes_nothing() -> None:
    sch, (i, j, k) = start(matmul, "C")
    before = sch.mod
    sch.reorder(i, j, k)
    sch.reorder(k)
    assert sch.mod is before


def test_reorder_of_a_tiled_triangle() -> None:
    sch, (i, j) = start(triangle, "C")
    a, b = sch.split(i, [2, 3])
    check_refused(sch, lambda: sch.reorder(j, b), "dependent-bound", "bound of j depends")
    c = sch.split(j, [None, 2])[0]
    error = check_refused(sch, lambda: sch.reorder(c, a), "dependent-bound", "bound of j_0 depends")
    assert "hint: overcompute_box runs a triangle as the square around it" in str(error)


def test_add_unit_loop() -> None:
    sch, (i, j) = start(elementwise, "B")
    sch.add_unit_loop(sch.get_block("B"))
    u = sch.add_unit_loop(i)
    assert sch.get(u).var.name == "u"
    check_transform(elementwise, sch, "add_unit_loop")


def test_loops_that_do_not_start_at_zero():
    for factors in ([None, 2], [3, None], [None, 5]):
        sch = Schedule(shifted)
        sch.split(sch.get_loops("C")[0], factors)
        check_transform(shifted, sch)
    sch = Schedule(shifted_rows)
    i, j = sch.get_loops("C")
    sch.vectorize(sch.split(sch.fuse(i, j), [None, 8])[1])
    check_transform(shifted_rows, sch)


@pytest.mark.parametrize("span", ["range(i, 6)", "range(i + 1)", "range(2, i + 2)"])
def test_a_loop_of_dependent_range_is_split(span):
    before = parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 8), "int32"), C: T.Buffer((6, 8), "int32")):
    for i in range(6):
        for j in {span}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] + 1
""")
    sch = Schedule(before)
    sch.vectorize(sch.split(sch.get_loops("C")[1], [None, 4])[1])
    check_transform(before, sch)


# -- what they refuse ------------------------------------------------------------------------------

Case = tuple[PrimFunc, str, Callable[..., object], str, str]


def annotated(sch: Schedule, *loops: object) -> None:
    sch.annotate(loops[0], "note", 1)


REFUSED: dict[str, Case] = {
    "split: no factors": (
        matmul, "C", lambda s, i, *_: s.split(i, []), "no-factors", "at least one factor"),
    "split: zero": (
        matmul, "C", lambda s, i, *_: s.split(i, [None, 0]), "bad-factor", "factor 0 is not"),
    "split: two open": (
        matmul, "C", lambda s, i, *_: s.split(i, [None, -1]), "open-factors", "at most one"),
    "split: too small": (
        matmul, "C", lambda s, i, *_: s.split(i, [2, 3]), "not-covering", "6, less than .* 8"),
    "split: symbolic, not provable": (
        symbolic, "B", lambda s, i, *_: s.split(i, [2, 3]), "not-covering", "not proved to reach"),
    "fuse: nothing": (matmul, "C", lambda s, *_: s.fuse(), "no-loops", "at least one loop"),
    "fuse: not nested": (
        matmul, "C", lambda s, i, j, k: s.fuse(i, k), "not-nested", "k is not directly inside i"),
    "fuse: wrong order": (
        matmul, "C", lambda s, i, j, k: s.fuse(j, i), "not-nested", "i is not directly inside j"),
    "fuse: dependent extent": (
        triangle, "C", lambda s, i, j: s.fuse(i, j), "dependent-extent", "range of j depends"),
    "reorder: twice": (
        matmul, "C", lambda s, i, j, k: s.reorder(i, i), "repeated-loop", "named twice"),
    "reorder: dependent bound": (
        triangle, "C", lambda s, i, j: s.reorder(j, i), "dependent-bound", "bound of j depends"),
    "reorder: dependence": (
        in_place, "A", lambda s, i, j: s.reorder(j, i), "reversed-dependence", "elements? of A|element of A"),
    "reorder: opaque": (
        opaque, "A", lambda s, i, j: s.reorder(j, i), "iterator-kind", "is opaque, not spatial"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    func, block, step, reason, message = REFUSED[name]
    sch, loops = start(func, block)
    error = check_refused(sch, lambda: step(sch, *loops), reason, message)
    assert error.primitive == name.split(":")[0]


@pytest.mark.parametrize("primitive", ["split", "fuse"])
@pytest.mark.parametrize(
    ("prepare", "reason", "message"),
    [
        (lambda s, i: s.annotate(i, "note", 1), "annotated-loop", r"carries annotations \(note\)"),
        (lambda s, i: s.bind(i, "blockIdx.x"), "bound-loop", "is bound to blockIdx.x"),
        (lambda s, i: s.parallel(i), "loop-has-kind", "i is parallel already"),
        (lambda s, i: s.unroll(i), "loop-has-kind", "i is unroll already"),
    ],
)
def test_only_plain_loops_change_shape(
    primitive: str, prepare: Callable[..., None], reason: str, message: str
) -> None:
    sch, (i, j, k) = start(matmul, "C")
    prepare(sch, i)
    step = (lambda: sch.split(i, [2, None])) if primitive == "split" else (lambda: sch.fuse(i, j))
    check_refused(sch, step, reason, message)


@pytest.mark.parametrize("prepare", ["parallel", "bind", "annotate"])
def test_one_loop_fuses_to_itself(prepare: str) -> None:
    sch, (i, j, k) = start(matmul, "C")
    getattr(sch, prepare)(
        i, *{"parallel": (), "bind": ("blockIdx.x",), "annotate": ("n", 1)}[prepare]
    )
    before = sch.mod
    again = sch.fuse(i)
    assert sch.mod is before and sch.get(again) is sch.get(i)
    sch.split(sch.fuse(k, preserve_unit_iters=False), [None, 4])
    check_transform(matmul, sch, compiled=prepare != "bind")


def test_fuse_and_reorder_refuse_statements_beside() -> None:
    sch, (i, j) = start(elementwise, "C")
    sch.compute_at(sch.get_block("B"), i)
    check_refused(sch, lambda: sch.fuse(i, j), "not-nested", "j has other statements beside it")
    check_refused(sch, lambda: sch.reorder(j, i), "not-a-chain", "more than a chain of loops")


def test_reorder_refuses_loops_of_two_nests() -> None:
    sch = Schedule(matmul_relu, seed=0)
    a, b = (sch.get_loops(sch.get_block(n)) for n in "CD")
    check_refused(sch, lambda: sch.reorder(a[0], b[0]), "not-a-chain", "more than a chain")


def test_reorder_takes_instances_that_run_again() -> None:
    @T.prim_func
    def twice(A: T.Buffer((9,), "int32"), C: T.Buffer((9,), "int32")):
        for i, j in T.grid(5, 5):
            with T.block("C"):
                vi = T.axis.spatial(9, i + j)
                C[vi] = A[vi]

    sch, (i, j) = start(twice, "C")
    sch.reorder(j, i)
    check_transform(twice, sch)


def test_reorder_refuses_updates_that_run_again_in_another_order() -> None:
    @T.prim_func
    def doubled(A: T.Buffer((5,), "int32"), C: T.Buffer((9,), "int32")):
        for i, j in T.grid(5, 5):
            with T.block("C"):
                vi = T.axis.spatial(9, i + j)
                vj = T.axis.spatial(5, j)
                C[vi] = C[vi] * 2 + A[vj]

    sch, (i, j) = start(doubled, "C")
    check_refused(sch, lambda: sch.reorder(j, i), "reversed-dependence", "one element of C")


def test_a_parallel_loop_does_not_move_outside_of_the_loop_it_needs() -> None:
    """j is parallel inside i; outside of i, different iterations of j touch one element."""
    sch, (i, j) = start(in_place, "A")
    sch.parallel(j)
    check_refused(sch, lambda: sch.reorder(j, i), "reversed-dependence", "of A")


def test_the_root_gets_no_loop() -> None:
    sch = Schedule(matmul, seed=0)
    root = sch.get_block("root")
    check_refused(sch, lambda: sch.add_unit_loop(root), "is-root", "root block cannot")


def test_unknown_variables_are_refused_as_factors() -> None:
    sch, (i, j, k) = start(matmul, "C")
    check_refused(
        sch, lambda: sch.split(i, [None, Var("x")]), "unknown-variable", "mentions x, which"
    )


LARGE = """
@T.prim_func
def main(A: T.Buffer(({n}, {n}), "int8")):
    for i, j in T.grid({n}, {n}):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = T.int8(1)
"""


def test_fuse_counts_in_int64_where_int32_ends() -> None:
    sch = Schedule(parse(LARGE.format(n=70000)))
    fused = sch.fuse(*sch.get_loops(sch.get_block("A")))
    node = sch.get(fused)
    assert node.extent.value == 70000**2 and node.var.dtype == "int64"
    verify(sch.mod)
    outer, inner = sch.split(fused, [None, 16])
    sch.vectorize(inner)
    assert sch.get(outer).extent.value == 70000**2 // 16
    small = Schedule(parse(LARGE.format(n=46340)))
    assert small.get(small.fuse(*small.get_loops(small.get_block("A")))).var.dtype == "int32"


def test_fuse_refuses_more_iterations_than_int64_counts() -> None:
    rows = 'A: T.Buffer((2, T.int64(4000000000)), "int8")'  # no buffer has 2**63 elements
    text = LARGE.format(n="T.int64(4000000000)").replace("A[vi, vj]", "A[vi // 2000000000, vj]")
    sch = Schedule(parse(re.sub(r"A: T.Buffer.*(?=\):)", rows, text)))
    loops = sch.get_loops(sch.get_block("A"))
    message = "16000000000000000000 iterations, more than int64"
    check_refused(sch, lambda: sch.fuse(*loops), "too-many-iterations", message)


def test_running_values_that_another_store_uses_keep_their_order():
    @T.prim_func
    def f(
        X: T.Buffer((3, 4), "int32"), S: T.Buffer((3,), "int32"), V: T.Buffer((3,), "int32")
    ):  # fmt: skip
        for i, j0, j1 in T.grid(3, 2, 2):
            with T.block("S"):
                vi = T.axis.spatial(3, i)
                vj = T.axis.reduce(4, j0 * 2 + j1)
                S[vi] = S[vi] - V[vi]
                V[vi] = V[vi] + X[vi, vj]

    sch = Schedule(f)
    _, j0, j1 = sch.get_loops("S")
    message = "reordering loops .* could exchange accesses to one element of S"
    check_refused(sch, lambda: sch.reorder(j1, j0), "reversed-dependence", message)
