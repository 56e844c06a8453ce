"""blockize: the new block around a loop or several blocks, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.ir.stmt import IterKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def matmul_blocks(
    A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")
):
    T.func_attr({"global_symbol": "matmul"})
    for i_0, j_0, k_0 in T.grid(2, 2, 4):
        with T.block("C_o"):
            vio, vjo, vko = T.axis.remap("SSR", [i_0, j_0, k_0])
            T.reads(
                A[vio * 4 : vio * 4 + 4, vko * 2 : vko * 2 + 2],
                B[vko * 2 : vko * 2 + 2, vjo * 4 : vjo * 4 + 4],
            )
            T.writes(C[vio * 4 : vio * 4 + 4, vjo * 4 : vjo * 4 + 4])
            with T.init():
                for i_1, j_1 in T.grid(4, 4):
                    with T.block("C_init"):
                        vi, vj = T.axis.remap("SS", [i_1, j_1])
                        T.reads()
                        T.writes(C[vio * 4 + vi, vjo * 4 + vj])
                        C[vio * 4 + vi, vjo * 4 + vj] = 0
            for i_1, j_1, k_1 in T.grid(4, 4, 2):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i_1, j_1, k_1])
                    T.reads(
                        C[vio * 4 + vi, vjo * 4 + vj],
                        A[vio * 4 + vi, vko * 2 + vk],
                        B[vko * 2 + vk, vjo * 4 + vj],
                    )
                    T.writes(C[vio * 4 + vi, vjo * 4 + vj])
                    C[vio * 4 + vi, vjo * 4 + vj] = (
                        C[vio * 4 + vi, vjo * 4 + vj]
                        + A[vio * 4 + vi, vko * 2 + vk] * B[vko * 2 + vk, vjo * 4 + vj]
                    )


def tiled(factor: int = 4) -> tuple[Schedule, list]:
    sch = Schedule(matmul, seed=0)
    i, j, k = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, factor])
    j0, j1 = sch.split(j, [None, factor])
    k0, k1 = sch.split(k, [None, 2])
    sch.reorder(i0, j0, k0, i1, j1, k1)
    return sch, [i0, j0, k0, i1, j1, k1]


def test_a_tile_of_a_reduction():
    sch, loops = tiled()
    inner = sch.get_block("C")
    outer = sch.blockize(loops[3])
    assert_structural_equal(sch.mod["main"], matmul_blocks)
    assert sch.get(outer).name == "C_o"
    assert sch.get(inner).name == "C"
    assert [sch.get(rv).var.name for rv in sch.get_loops(inner)] == ["i_1", "j_1", "k_1"]
    check_transform(matmul, sch)


def test_the_new_block_decomposes():
    sch, loops = tiled()
    outer = sch.blockize(loops[3])
    init = sch.decompose_reduction(outer, loops[2])
    assert (sch.get(init).name, sch.get(outer).name) == ("C_o_init", "C_o_update")
    check_transform(matmul, sch)


def test_the_whole_nest():
    sch = Schedule(matmul, seed=0)
    outer = sch.blockize(sch.get_loops("C")[0])
    assert len(sch.get_loops(outer)) == 0
    assert [v.kind.value for v in sch.get(outer).iter_vars] == ["spatial", "spatial", "reduce"]
    check_transform(matmul, sch)


@T.prim_func
def symbolic(a: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
    for i in range(n):
        with T.block("B"):
            v = T.axis.spatial(n, i)
            A[v] = 1


def test_a_ragged_tile_keeps_its_predicate():
    @T.prim_func
    def add(A: T.Buffer((10,), "int32"), B: T.Buffer((10,), "int32")):
        for i in range(10):
            with T.block("B"):
                v = T.axis.spatial(10, i)
                B[v] = A[v] + 1

    sch = Schedule(add, seed=0)
    _, i1 = sch.split(sch.get_loops("B")[0], [5, None])
    sch.blockize(i1)
    check_transform(add, sch)
    sch = Schedule(add, seed=0)
    _, b = sch.split(sch.get_loops("B")[0], [None, 4])
    message = r"the condition .* < 10 cuts the last tile of B short"
    check_refused(sch, lambda: sch.blockize(b), "cut-tile", message)
    sch = Schedule(symbolic, seed=0)
    _, b = sch.split(sch.get_loops("B")[0], [None, 4])
    check_refused(sch, lambda: sch.blockize(b), "cut-tile", message.replace("10", "n"))


def test_unit_loops_stay_in_bindings():
    @T.prim_func
    def add(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
        for u, i in T.grid(1, 8):
            with T.block("B"):
                v = T.axis.spatial(8, u * 8 + i)
                B[v] = A[v] + 1

    for preserve in (True, False):
        sch = Schedule(add, seed=0)
        u, i = sch.get_loops("B")
        outer = sch.blockize(i, preserve_unit_iters=preserve)
        (value,) = sch.state.block(outer).iter_values
        assert (value is sch.get(u).var) is preserve
        check_transform(add, sch)


@T.prim_func
def stages(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
    B = T.alloc_buffer((8, 8), "int32")
    for i0 in range(2):
        for i1, j in T.grid(4, 8):
            with T.block("B"):
                vi = T.axis.spatial(8, i0 * 4 + i1)
                vj = T.axis.spatial(8, j)
                B[vi, vj] = A[vi, vj] + 1
        for i1, j in T.grid(4, 8):
            with T.block("C"):
                vi = T.axis.spatial(8, i0 * 4 + i1)
                vj = T.axis.spatial(8, j)
                C[vi, vj] = B[vi, vj] * 2


@T.prim_func
def stages_blocks(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
    T.func_attr({"global_symbol": "stages"})
    B = T.alloc_buffer((8, 8), "int32")
    for i0 in range(2):
        with T.block("outer_B_C_o"):
            vio = T.axis.spatial(2, i0)
            vjo = T.axis.spatial(1, 0)
            T.reads(A[vio * 4 : vio * 4 + 4, 0:8], B[vio * 4 : vio * 4 + 4, 0:8])
            T.writes(B[vio * 4 : vio * 4 + 4, 0:8], C[vio * 4 : vio * 4 + 4, 0:8])
            for i1, j in T.grid(4, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i1, j])
                    B[vio * 4 + vi, vj] = A[vio * 4 + vi, vj] + 1
            for i1, j in T.grid(4, 8):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i1, j])
                    C[vio * 4 + vi, vj] = B[vio * 4 + vi, vj] * 2


def test_several_blocks():
    sch = Schedule(stages, seed=0)
    c, b = sch.get_block("C"), sch.get_block("B")
    sch.blockize([c, b])
    assert_structural_equal(sch.mod["main"], stages_blocks)
    check_transform(stages, sch)


def test_an_iterator_that_is_opaque_in_one_of_several_blocks():
    """Both orders: the loop over time is an opaque iterator of the new block."""

    @T.prim_func
    def sums(
        A: T.Buffer((3, 8), "int32"), B: T.Buffer((8,), "int32"), C: T.Buffer((3, 8), "int32")
    ):
        for t in range(3):
            for i in range(8):
                with T.block("B"):
                    vt, vi = T.axis.opaque(3, t), T.axis.spatial(8, i)
                    B[vi] = B[vi] + A[vt, vi]
            for i in range(8):
                with T.block("C"):
                    vt, vi = T.axis.remap("SS", [t, i])
                    C[vt, vi] = B[vi] * 2
            for i in range(8):
                with T.block("D"):
                    vt, vi = T.axis.opaque(3, t), T.axis.spatial(8, i)
                    B[vi] = B[vi] - A[vt, vi]

    for names in (["B", "C", "D"], ["B", "C"], ["C", "D"]):
        sch = Schedule(sums, seed=0)
        outer = sch.blockize(names)
        kinds = {v.dom.extent.value: v.kind for v in sch.get(outer).iter_vars}
        assert kinds[3] is IterKind.OPAQUE
        check_transform(sums, sch)


def test_a_list_of_names_and_a_single_block():
    sch = Schedule(stages, seed=0)
    sch.blockize(["B", "C"])
    assert_structural_equal(sch.mod["main"], stages_blocks)
    sch = Schedule(stages, seed=0)
    outer = sch.blockize(["B"])
    assert [v.dom.extent.value for v in sch.get(outer).iter_vars] == [8, 8]
    check_transform(stages, sch)


def test_refusals_of_the_loop_form():
    sch = Schedule(stages, seed=0)
    i0 = sch.get_loops("B")[0]
    check_refused(sch, lambda: sch.blockize(i0), "not-one-block", "not a chain around one block")

    @T.prim_func
    def triangle(B: T.Buffer((8, 8), "int32")):
        for i in range(8):
            for j in range(i + 1):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    vj = T.axis.spatial(8, j)
                    B[vi, vj] = 1

    sch = Schedule(triangle, seed=0)
    _, j = sch.get_loops("B")
    check_refused(sch, lambda: sch.blockize(j), "dependent-bound", "uses another loop")

    sch, loops = tiled()
    sch.reorder(loops[3], loops[0])  # the small part of i outside of the large one
    check_refused(sch, lambda: sch.blockize(loops[1]), "not-divisible", "do not divide")


def test_blockize_refuses_an_init_without_reduction_or_with_a_cut_tile():
    @T.prim_func
    def scan(A: T.Buffer((8,), "int32"), B: T.Buffer((9,), "int32")):
        for i in range(8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                T.reads(A[v], B[v])
                T.writes(B[v + 1])
                with T.init():
                    B[v + 1] = 0
                B[v + 1] = B[v] + A[v]

    sch = Schedule(scan, seed=0)
    (i,) = sch.get_loops("B")
    check_refused(
        sch, lambda: sch.blockize(i), "reads-other-results", "other than the one it updates"
    )

    @T.prim_func
    def total(A: T.Buffer((4, 10), "int32"), B: T.Buffer((4,), "int32")):
        for i, k0, k1 in T.grid(4, 3, 4):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(10, k0 * 4 + k1)
                T.where(k0 * 4 + k1 < 10)
                with T.init():
                    B[vi] = 0
                B[vi] = B[vi] + A[vi, vk]

    sch = Schedule(total, seed=0)
    _, k0, _ = sch.get_loops("B")
    check_refused(sch, lambda: sch.blockize(k0), "reduction-predicate", "limits a reduction loop")


def test_refusals_of_the_list_form():
    @T.prim_func
    def three(
        A: T.Buffer((8,), "int32"),
        B: T.Buffer((8,), "int32"),
        C: T.Buffer((8,), "int32"),
        D: T.Buffer((8,), "int32"),
    ):
        for i in range(8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = A[v] + 1
            with T.block("C"):
                v = T.axis.spatial(8, i)
                T.where(i < 6)
                C[v] = A[v] + 2
            with T.block("D"):
                v = T.axis.spatial(8, i)
                D[v] = A[v] + 3

    sch = Schedule(three, seed=0)
    check_refused(sch, lambda: sch.blockize([]), "no-blocks", "one block or several")
    check_refused(sch, lambda: sch.blockize(["B", "B"]), "no-blocks", "one block or several")
    check_refused(sch, lambda: sch.blockize(["B", "D"]), "not-consecutive", "do not follow")
    check_refused(sch, lambda: sch.blockize(["B", "C"]), "other-predicate", "different conditions")

    @T.prim_func
    def shared(
        A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8,), "int32")
    ):
        for i in range(8):
            for j in range(8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1
                with T.block("S"):
                    vi, vk = T.axis.remap("SR", [i, j])
                    with T.init():
                        C[vi] = 0
                    C[vi] = C[vi] + A[vi, vk]
            with T.block("D"):
                vi = T.axis.spatial(8, i)
                C[vi] = C[vi] + 1

    sch = Schedule(shared, seed=0)
    check_refused(sch, lambda: sch.blockize(["B", "D"]), "not-one-block", "shares its loops")
    check_refused(sch, lambda: sch.blockize(["B", "S"]), "outer-reduction", "reduces over a loop")


def test_a_block_of_an_init_and_a_block_of_the_body_are_not_consecutive():
    sch, loops = tiled()
    sch.blockize(loops[3])
    check_refused(
        sch, lambda: sch.blockize(["C_init", "C"]), "not-consecutive", "do not follow each other"
    )


def test_several_blocks_stand_in_one_scope():
    sch, loops = tiled()
    sch.blockize(loops[3])
    check_refused(sch, lambda: sch.blockize(["C", "C_o"]), "other-scope", "different blocks")
    check_refused(sch, lambda: sch.blockize(["root"]), "is-root", "root block")


@pytest.mark.parametrize("loop", [0, 1])
def test_symbolic_extents(loop):
    @T.prim_func
    def add(a: T.handle, b: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n, 4), "int32")
        B = T.match_buffer(b, (n, 4), "int32")
        for i, j in T.grid(n, 4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + 1

    sch = Schedule(add, seed=0)
    outer = sch.blockize(sch.get_loops("B")[loop])
    assert sch.get(outer).name == "B_o"
    check_transform(add, sch)


def test_a_condition_on_neither_side_goes_outside():
    @T.prim_func
    def part(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32")):
        for i in range(8):
            with T.block("P"):
                v = T.axis.spatial(8, i)
                T.reads(A[0:6])
                T.writes(C[0:6])
                for j in range(1):
                    with T.block("C"):
                        w = T.axis.spatial(6, v)
                        T.where(v < 6)
                        T.reads(A[w])
                        T.writes(C[w])
                        C[w] = A[w] + 1

    sch = Schedule(part, seed=0)
    outer = sch.blockize(["C"])
    assert sch.state.block(outer).predicate is not sch.state.block(sch.get_block("C")).predicate
    check_transform(part, sch)


@T.prim_func
def never_runs(B: T.Buffer((2,), "int32"), C: T.Buffer((2,), "int32")):
    for i in range(2):
        with T.block("C"):
            T.where(0 <= (i - 2) * 2 + 1)
            vi = T.axis.spatial(2, i)
            C[vi] = B[vi]


def test_a_block_that_never_runs_gets_no_iterator_outside_its_domain() -> None:
    sch = Schedule(never_runs, check=False)
    (loop,) = sch.get_loops("C")
    check_refused(sch, lambda: sch.blockize(loop), "not-divisible", "bindings of C do not divide")


@T.prim_func
def empty_loop(B: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for i, j in T.grid(4, 0):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi] = B[vi] + vj


@pytest.mark.parametrize("which", [0, 1])
def test_the_block_around_an_empty_loop_has_iterators_in_their_domains(which: int) -> None:
    sch = Schedule(empty_loop, check=False)
    sch.blockize(sch.get_loops("C")[which])
    check_transform(empty_loop, sch)


@T.prim_func
def batch_of_one(X: T.Buffer((1, 8), "int32"), Z: T.Buffer((1, 8), "int32")):
    Y = T.alloc_buffer((1, 8), "int32")
    for i in range(8):
        with T.block("Y"):
            v = T.axis.spatial(1, 0)
            vi = T.axis.spatial(8, i)
            Y[v, vi] = X[v, vi] + 1
    for b, i in T.grid(1, 8):
        with T.block("Z"):
            v, vi = T.axis.remap("SS", [b, i])
            Z[v, vi] = Y[v, vi] * 2


def test_blocks_share_a_unit_outer_iterator():
    sch = Schedule(batch_of_one, check=True)
    loop = sch.get_loops("Z")[1]
    outside, _ = sch.split(loop, [4, 2])
    sch.compute_at("Y", outside)
    sch.blockize([sch.get_block("Y"), sch.get_block("Z")])
    outer = sch.get(sch.get_block("outer_Y_Z_o"))
    assert len(outer.iter_vars) == 2
    check_transform(batch_of_one, sch)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_length_of_a_loop_that_the_block_changes_is_no_domain(depth: int) -> None:
    """While the loop runs, S[0] falls below k."""

    @T.prim_func
    def falling(S: T.Buffer((4,), "int32"), A: T.Buffer((4, 9), "int32")):
        for i in range(4):
            for k in range(T.min(T.max(S[0], 0), 9)):
                with T.block("S"):
                    vi = T.axis.spatial(4, i)
                    vk = T.axis.opaque(9, k)
                    S[vi] = S[vi] - T.if_then_else(vk < S[0], 1, A[vi, vk])

    sch = Schedule(falling, check=True)
    sch.blockize(sch.get_loops("S")[depth])
    assert "T.axis.opaque(9, k)" in sch.script()
    check_transform(falling, sch)


def test_tiles_of_a_length_that_the_block_changes_are_refused() -> None:
    @T.prim_func
    def tiles(S: T.Buffer((1,), "int32"), A: T.Buffer((40,), "int32")):
        for i in range(4):
            for k in range(S[0]):
                with T.block("A"):
                    vi = T.axis.opaque(40, i * S[0] + k)
                    A[vi] = A[vi] + 1
                    S[0] = S[0] - 1

    sch = Schedule(tiles, check=True)
    loop = sch.get_loops("A")[1]
    check_refused(sch, lambda: sch.blockize(loop), "ends-change", "A writes S, which the ends")


def test_an_init_that_sets_an_element_again_stays_in_its_block() -> None:
    func = parse(
        """
@T.prim_func
def halves(P: T.Buffer((2,), "int32")):
    for i, k in T.grid(4, 3):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                P[vi % 2] = 3
            P[vi % 2] = P[vi % 2] + vi
"""
    )
    sch = Schedule(func)
    i, k = sch.get_loops("P")
    text = "may set an element of P again for another value of vi"
    check_refused(sch, lambda: sch.blockize(i), "set-again", text)
    sch.blockize(k)
    check_transform(func, sch)


def test_the_new_block_stays_in_its_domain_where_conditions_leave_no_iteration() -> None:
    """Only the first iteration of j passes, and none where vo is 1: vo * 3 + 2 is 5 there."""
    func = parse(
        """
@T.prim_func
def partition(A: T.Buffer((5,), "int32")):
    for i in range(2):
        with T.block("around"):
            vo = T.axis.spatial(2, i)
            for j in range(2):
                with T.block("A"):
                    T.where(vo * 3 + j < 3 and j < 1)
                    va = T.axis.spatial(5, vo * 3 + j + 2)
                    A[va] = A[va] + 1
"""
    )
    sch = Schedule(func, check=True)
    sch.blockize(sch.get_loops("A")[0])
    assert "T.where(vo * 3 + 2 < 5)" in sch.script()
    check_transform(func, sch)
