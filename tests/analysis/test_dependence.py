"""Carried dependence and reordering: what is accepted, and what is refused, with messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from analysis.programs import (
    concat,
    halo,
    loop,
    matmul,
    matmul_relu,
    refused,
    scope_of,
    stencil_in_place,
)

from metasched.analysis.commuting import commutes
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.failure import Failure
from metasched.analysis.reordering import reorder_violation
from metasched.ir.func import PrimFunc
from metasched.script import parse
from metasched.script import tir as T


def carried(func: PrimFunc, name: str, **options: object) -> Failure | None:
    return carried_dependence(loop(func, name), scope_of(func), **options)  # type: ignore[arg-type]


def reordered(func: PrimFunc, old: Sequence[str], new: Sequence[str]) -> Failure | None:
    return reorder_violation(
        [loop(func, n) for n in old], [loop(func, n) for n in new], scope_of(func)
    )


def test_spatial_loops_are_free_and_reductions_are_not() -> None:
    for name in "ij":
        assert carried(matmul, name) is None
    sentence = (
        r"different iterations of loop k may touch the same element of C a reduction: "
        r"block C writes C\[vi, vj\]"
    )
    refused(carried(matmul, "k"), "carried-reduction", sentence)
    assert carried(matmul, "k", allow_reduction=True) is None


def test_a_spatial_stencil_in_place_is_refused() -> None:
    sentence = r"block S writes X\[vi \+ 1\] and block S reads X\[vi"
    refused(carried(stencil_in_place, "i"), "carried-dependence", sentence)
    refused(carried(stencil_in_place, "i", allow_reduction=True), "carried-dependence", "X")


def test_a_scan_whose_lines_are_independent_is_accepted_across_them() -> None:
    @T.prim_func
    def f(X: T.Buffer((8, 16), "float32")):
        for i, j in T.grid(8, 15):
            with T.block("S"):
                vi = T.axis.opaque(8, i)
                vj = T.axis.scan(15, j)
                X[vi, vj + 1] = X[vi, vj + 1] + X[vi, vj]

    assert carried(f, "i") is None
    refused(carried(f, "j"), "carried-dependence", "different iterations of loop j")


def test_the_same_element_in_place_is_accepted() -> None:
    @T.prim_func
    def f(X: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("S"):
                v = T.axis.spatial(8, i)
                X[v] = X[v] * T.float32(2)

    assert carried(f, "i") is None


def test_distances_larger_than_the_extent_are_no_dependence() -> None:
    @T.prim_func
    def f(X: T.Buffer((64,), "float32")):
        for t, i in T.grid(4, 8):
            with T.block("S"):
                vt, vi = T.axis.remap("SS", [t, i])
                X[vt * 8 + vi + 8] = X[vt * 8 + vi]

    assert carried(f, "i") is None
    refused(carried(f, "t"), "carried-dependence", "loop t")


def test_odd_and_even_elements_never_meet() -> None:
    @T.prim_func
    def f(X: T.Buffer((64,), "float32")):
        for i in T.serial(16):
            with T.block("S"):
                v = T.axis.spatial(16, i)
                X[v * 2] = X[v * 2 + 1]

    assert carried(f, "i") is None


def test_tiles_split_and_fused() -> None:
    @T.prim_func
    def f(X: T.Buffer((24, 20), "float32")):
        for o, p in T.grid(40, 12):
            with T.block("S"):
                vi = T.axis.spatial(24, (o * 12 + p) // 20)
                vj = T.axis.spatial(20, (o * 12 + p) % 20)
                X[vi, vj] = T.float32(1)

    assert carried(f, "o") is None
    assert carried(f, "p") is None


def test_symbolic_extents() -> None:
    @T.prim_func
    def f(n: T.int32, X: T.Buffer((n, n), "float32"), Z: T.Buffer((n,), "float32")):
        for q in T.serial(n * n):
            with T.block("S"):
                vi = T.axis.spatial(n, q // n)
                vj = T.axis.spatial(n, q % n)
                X[vi, vj] = X[vi, vj] + T.float32(1)
        for a, b in T.grid(n, n):
            with T.block("R"):
                va, vb = T.axis.remap("SR", [a, b])
                with T.init():
                    Z[va] = T.float32(0)
                Z[va] = Z[va] + X[va, vb]

    assert carried(f, "q") is None
    assert carried(f, "a") is None
    refused(carried(f, "b"), "carried-reduction", "loop b")


def test_scatter_is_refused() -> None:
    @T.prim_func
    def f(I: T.Buffer((8,), "int32"), X: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("S"):
                v = T.axis.spatial(8, i)
                X[I[v]] = T.float32(1)

    refused(carried(f, "i"), "carried-dependence", r"block S writes X\[I\[v\]\]")


def test_blocks_that_write_the_same_element_in_turn_are_refused() -> None:
    """Both write each element once; only their order says which value stays."""

    @T.prim_func
    def f(Y: T.Buffer((2, 2), "float32")):
        for i in T.serial(2):
            with T.block("a"):
                v = T.axis.spatial(2, i)
                Y[0, v] = T.float32(1)
            with T.block("b"):
                v = T.axis.spatial(2, i)
                Y[v, 1] = T.float32(2)

    refused(carried(f, "i"), "carried-dependence", "block a writes .* and block b writes")


def test_disjoint_writers_below_one_loop() -> None:
    assert carried(concat, "i") is None
    assert carried(concat, "j") is None


def test_overlapping_tiles_of_a_producer_are_independent() -> None:
    assert carried(halo, "t") is None
    assert carried(halo, "t", private=False) is None  # every element has one value
    assert carried(halo, "u") is None


@T.prim_func
def scratch(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32")):
    S = T.alloc_buffer((1,), "float32")
    for i in T.serial(8):
        with T.block("clear"):
            vi = T.axis.spatial(8, i)
            S[0] = T.float32(0)
        for k in T.serial(4):
            with T.block("add"):
                vi, vk = T.axis.remap("SR", [i, k])
                S[0] = S[0] + A[vi, vk]
        with T.block("out"):
            vi = T.axis.spatial(8, i)
            B[vi] = S[0]


def test_a_scratch_buffer_is_private_to_each_iteration() -> None:
    assert carried(scratch, "i") is None
    refused(carried(scratch, "i", private=False), "carried-dependence", "same element of S")
    refused(carried(scratch, "i", thread="blockIdx.x"), "carried-dependence", "same element of S")
    refused(carried(scratch, "k"), "carried-reduction", "block add")


def test_memory_is_private_by_its_storage_scope() -> None:
    def program(storage: str) -> PrimFunc:
        @T.prim_func
        def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            S = T.alloc_buffer((1,), "float32", scope=storage)
            for i in T.serial(8):
                with T.block("in"):
                    v = T.axis.spatial(8, i)
                    S[0] = A[v]
                with T.block("out"):
                    v = T.axis.spatial(8, i)
                    B[v] = S[0]

        return f

    assert carried(program("local"), "i", thread="threadIdx.x") is None
    assert carried(program("shared"), "i", thread="blockIdx.x") is None
    sentence = "same element of S"
    shared = carried(program("shared"), "i", thread="threadIdx.x")
    refused(shared, "carried-dependence", sentence)


def test_a_value_kept_from_one_iteration_to_the_next_is_not_private() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        S = T.alloc_buffer((8,), "float32")
        for i in T.serial(8):
            with T.block("out"):
                v = T.axis.spatial(8, i)
                B[v] = S[0]
            with T.block("in"):
                v = T.axis.spatial(8, i)
                S[0] = A[v]

    refused(carried(f, "i"), "carried-dependence", "block out reads S|block in writes S")


NESTED = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 4), "float32")):
    S = T.alloc_buffer((4,), "float32")
    for i in T.serial(8):
        with T.block("row"):
            v = T.axis.spatial(8, i)
            for j, k in T.grid(4, 4):
                with T.block("in"):
                    vj, vk = T.axis.spatial(4, j), T.axis.reduce(8, {term})
                    T.where({where})
                    with T.init():
                        S[vj] = T.float32(0)
                    S[vj] = S[vj] + A[v, vk]
            for j in range(4):
                with T.block("out"):
                    vj = T.axis.spatial(4, j)
                    B[v, vj] = S[vj]
"""


def test_scratch_that_a_block_fills_itself_is_private_to_each_iteration() -> None:
    def program(term: str = "k", where: str = "j < 4") -> PrimFunc:
        func = parse(NESTED.format(term=term, where=where))
        assert isinstance(func, PrimFunc)
        return func

    assert carried(program(), "i") is None
    refused(carried(program(where="j != i"), "i"), "carried-dependence", "same element of S")
    refused(carried(program(term="v"), "i"), "carried-dependence", "same element of S")


_TABLE = """
@T.prim_func
def f(A: T.Buffer((8, 6), "int32"), B: T.Buffer((8,), "int32")):
    D = T.alloc_buffer((7, 7), "int32")
    for s in range(8):
        for i in range({first}, 7):
            with T.block("edge"):
                vi = T.axis.spatial((0, 7), i)
                D[vi, 0] = vi
        for j in range(7):
            with T.block("top"):
                vj = T.axis.spatial(7, j)
                D[0, vj] = vj
        for {loops} in T.grid(6, 6):
            with T.block("D"):
                vs, vi, vj = T.axis.opaque(8, s), T.axis.opaque(6, i), T.axis.opaque(6, j)
                {store}
        with T.block("B"):
            vs = T.axis.spatial(8, s)
            B[vs] = D[6, 6]
"""
_UPDATE = "D[vi + 1, vj + 1] = T.min(D[vi, vj + 1], D[vi + 1, vj]) + D[vi, vj] * A[vs, vi]"


@pytest.mark.parametrize("loops", ["i, j", "j, i"])
def test_a_table_that_a_block_fills_from_its_own_results_is_private(loops: str) -> None:
    func = parse(_TABLE.format(first=0, loops=loops, store=_UPDATE))
    assert carried(func, "s") is None


@pytest.mark.parametrize(
    ("first", "store"),
    [
        (1, _UPDATE.replace("vj]) +", "vj] + D[vi, 0] + D[vi + 1, vj + 1]) +")),  # its own element
        (2, _UPDATE),  # D[1, 0] is not written
        (0, _UPDATE.replace("D[vi, vj + 1]", "T.if_then_else(vj < 5, D[vi + 1, vj + 2], 0)")),
        (0, _UPDATE.replace("D[vi, vj + 1]", "T.if_then_else(vi < 5, D[vi + 2, vj], 0)")),
        (0, f"if A[vs, vi] > 0: {_UPDATE}"),  # where A is at most 0, no element is written
    ],
)
def test_a_table_that_reads_later_results_is_not_private(first: int, store: str) -> None:
    func = parse(_TABLE.format(first=first, loops="i, j", store=store))
    refused(carried(func, "s"), "carried-dependence", "D")


def test_a_value_that_depends_on_scratch_is_not_single() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), P: T.Buffer((1,), "float32")):
        S = T.alloc_buffer((1,), "float32")
        for i in T.serial(8):
            with T.block("in"):
                v = T.axis.spatial(8, i)
                S[0] = A[v]
            with T.block("out"):
                P[0] = S[0]

    refused(carried(f, "i"), "carried-dependence", "same element of P")


def test_a_loop_of_one_iteration_carries_nothing() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32")):
        for i in T.serial(1):
            with T.block("b"):
                A[0] = A[0] + T.float32(1)

    assert carried(f, "i") is None


def test_stores_and_control_outside_of_blocks() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            A[i] = T.float32(1)
        for j in T.serial(8):
            A[0] = T.float32(1)
        for k in T.serial(8):
            if B[k] > T.float32(0):
                break
            with T.block("b"):
                v = T.axis.spatial(8, k)
                A[v] = B[v]

    assert carried(f, "i") is None
    refused(carried(f, "j"), "carried-dependence", r"a statement writes A\[0\]")
    sentence = "loop k holds a statement of unknown effect: (?i:break)"
    refused(carried(f, "k"), "unknown-effect", sentence)


def test_a_jump_out_of_an_inner_loop_is_a_condition() -> None:
    """Iterations of i are independent, unless a break may leave out what sets T."""

    @T.prim_func
    def f(A: T.Buffer((8, 8)), B: T.Buffer((8,)), C: T.Buffer((8, 8))):
        W = T.alloc_buffer((8,))
        for i in range(8):
            for j in range(8):
                if A[i, j] > T.float32(0):
                    break
                with T.block("b"):
                    v, w = T.axis.remap("SS", [i, j])
                    C[v, w] = A[v, w]
        for k in range(8):
            for j in range(8):
                if A[k, j] > T.float32(0):
                    break
                with T.block("w"):
                    v, w = T.axis.remap("SS", [k, j])
                    W[w] = A[v, w]
            for j in range(8):
                with T.block("c"):
                    v, w = T.axis.remap("SS", [k, j])
                    C[v, w] = W[w]
        for m in range(8):
            for j in range(8):
                if B[j] > T.float32(0):
                    break
            with T.block("d"):
                v = T.axis.spatial(8, m)
                B[v] = 1.0

    assert carried(f, "i") is None
    refused(carried(f, "k"), "carried-dependence", r"block w writes W\[w\]")
    refused(carried(f, "m"), "carried-dependence", r"a statement reads B\[j\]")


def test_a_hidden_read_of_the_neighbour_is_found() -> None:
    """Declared regions omit the reads of the block's own output, because the block has an init."""

    @T.prim_func
    def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((9,), "float32")):
        for i, k in T.grid(8, 8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi + 1] = T.float32(0)
                C[vi + 1] = C[vi + 1] + A[vi, vk] * C[vi]

    block = scope_of(f).realizes[0].block
    assert not commutes(block, block.writes[0].buffer)
    refused(carried(f, "i"), "carried-dependence", r"block C reads C\[vi\]")
    refused(reordered(f, "ik", "ki"), "reversed-dependence", "could exchange accesses")


# ---- reorder ---------------------------------------------------------------------------------


def test_reductions_reorder_freely() -> None:
    for order in ("ikj", "kij", "kji", "jik"):
        assert reordered(matmul, "ijk", order) is None
    block = scope_of(matmul).realizes[0].block
    assert commutes(block, block.writes[0].buffer)


def test_elementwise_blocks_reorder() -> None:
    assert reordered(matmul_relu, "xy", "yx") is None


def stencil(di: int, dj: int) -> PrimFunc:
    @T.prim_func
    def f(X: T.Buffer((16, 16), "float32")):
        for i, j in T.grid(8, 8):
            with T.block("S"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi + 1, vj + 1] = X[vi + 1 + di, vj + 1 + dj]

    return f


def test_stencils_reorder_when_distances_stay_positive() -> None:
    assert reordered(stencil(-1, -1), "ij", "ji") is None
    assert reordered(stencil(-1, 0), "ij", "ji") is None
    sentence = (
        r"reordering loops i, j could exchange accesses to one element of X: "
        r"block S writes X\[vi \+ 1, vj \+ 1\] and block S reads X"
    )
    refused(reordered(stencil(-1, 1), "ij", "ji"), "reversed-dependence", sentence)


def test_reorder_moves_scans_and_opaque_iterators_as_their_accesses_allow() -> None:
    def rows(kind: str, before: str) -> PrimFunc:
        return parse(f"""
@T.prim_func
def main(X: T.Buffer((9, 9), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("S"):
            vi = T.axis.{kind}(8, i)
            vj = T.axis.spatial(8, j)
            X[vi + 1, vj] = X[vi, vj{before}] + T.float32(1)
""")  # type: ignore[return-value]

    assert reordered(rows("scan", ""), "ij", "ji") is None
    refused(reordered(rows("scan", " + 1"), "ij", "ji"), "reversed-dependence", "elements? of X|X")
    assert reordered(rows("opaque", ""), "ij", "ji") is None
    refused(reordered(rows("opaque", " + 1"), "ij", "ji"), "reversed-dependence", "X")


def test_instances_that_run_again_reorder_where_they_write_one_value() -> None:
    @T.prim_func
    def f(X: T.Buffer((16,), "float32")):
        for i, j in T.grid(8, 8):
            with T.block("S"):
                v = T.axis.spatial(16, i + j)
                X[v] = T.float32(0)

    assert reordered(f, "ij", "ji") is None

    @T.prim_func
    def g(X: T.Buffer((16,), "float32")):
        for i, j in T.grid(8, 8):
            with T.block("S"):
                v = T.axis.spatial(16, i + j)
                X[v] = X[v] * X[0]

    refused(reordered(g, "ij", "ji"), "reversed-dependence", "could exchange accesses")


def test_an_unchanged_order_is_always_legal() -> None:
    assert reordered(stencil(-1, 1), "ij", "ij") is None


@T.prim_func
def repeated_sum(A: T.Buffer((4, 5), "int32"), C: T.Buffer((4,), "int32")):
    for i, j, k in T.grid(4, 3, 5):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


def test_a_loop_that_repeats_a_reduction_stays_outside_of_it() -> None:
    """Each repetition starts from the init; inside the reduction it would add elements again."""
    scope = scope_of(repeated_sum)
    i, j, k = (loop(repeated_sum, n) for n in "ijk")
    assert reorder_violation([i, j], [j, i], scope) is None
    refused(reorder_violation([j, k], [k, j], scope), "reversed-dependence", "elements? of C")


def guarded(domain: int, predicate: str) -> PrimFunc:
    """Updates rows of 7 or 8 in a row of 21, whose columns a predicate keeps in their domain."""
    return parse(
        f"""
@T.prim_func
def f(A: T.Buffer((3, 8), "float32"), Y: T.Buffer((32,), "float32")):
    B = T.alloc_buffer((3,))
    for i in range(3):
        with T.block("B"):
            v = T.axis.spatial(3, i)
            B[v] = A[v, 0]
        for jo, ji in T.grid(2, 4):
            with T.block("Y"):
                v = T.axis.spatial(3, i)
                w = T.axis.spatial({domain}, jo * 4 + ji)
                T.where({predicate})
                Y[v * 7 + w] = Y[v * 7 + w] + A[v, w] * B[v]
"""
    )


def test_a_guarded_iterator_stays_in_its_domain() -> None:
    """From the task grp (1,9,9,6,21,3,1,1,1,3). Without the predicate, the ranges of the loops
    let 4 jo + ji reach 7, where the next row begins."""
    for predicate in ("jo * 4 + ji < 7", "jo * 4 + ji <= 6", "7 > ji + jo * 4 and i < 4"):
        assert carried(guarded(7, predicate), "i") is None
    for func in (guarded(8, "jo * 4 + ji < 8"), guarded(7, "i < 4"), guarded(7, "jo + ji < 7")):
        refused(carried(func, "i"), "carried-dependence", r"block Y writes Y\[")


def copied(predicate: str) -> PrimFunc:
    """Rows of 9, filled as a whole and copied by fours under a predicate."""
    return parse(
        f"""
@T.prim_func
def f(A: T.Buffer((28,), "float32"), B: T.Buffer((28,), "float32")):
    L = T.alloc_buffer((28,))
    for i in range(3):
        for j in range(9):
            with T.block("L"):
                v = T.axis.spatial(27, i * 9 + j)
                L[v] = A[v]
        for jo, ji in T.grid(3, 4):
            with T.block("B"):
                v = T.axis.spatial(28, i * 9 + jo * 4 + ji)
                T.where({predicate})
                B[v] = L[v]
"""
    )


def test_a_guarded_reader_stays_with_its_writer() -> None:
    """The vector width does not divide the rows. The guard of
    the copy counted only where the other access had the same one."""
    assert carried(copied("jo * 4 + ji < 9"), "i") is None
    refused(carried(copied("jo * 4 + ji < 10"), "i"), "carried-dependence", "block B reads L")


def windows(body: str, scratch: str = "") -> PrimFunc:
    """A block that stores windows of three elements of B, which overlap."""
    return parse(
        f"""
@T.prim_func
def f(A: T.Buffer((12,), "int32"), B: T.Buffer((12,), "int32")):
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial(8, i)
            {scratch or "T.reads(A[0:12])"}
            for r in range(3):
                {body}
"""
    )


@pytest.mark.parametrize(
    "body",
    [
        "B[v + r] = A[v + r]",
        "B[v + r] = A[v + r + 1] * 2 + (v + r) // 2",
        "B[v + r] = A[0]",
        "if A[r] > v:\n                    B[v + r] = A[v + r]",
    ],
)
def test_an_element_with_one_value_may_be_stored_again(body: str) -> None:
    assert carried(windows(body), "i") is None


@pytest.mark.parametrize(
    "body",
    [
        "B[v + r] = A[v]",
        "B[A[v + r]] = 7",
        "B[v + r] = A[v + r] + r",
        "B[v + r] = B[v + r] + A[v + r]",
        "B[v + r] = A[v + r]; B[v + r + 1] = A[v + r]",
        "B[(v + r) // 2] = A[v + r]",
    ],
)
def test_an_element_with_several_values_is_refused(body: str) -> None:
    func = windows(body.replace("; ", "\n                "))
    refused(carried(func, "i"), "carried-dependence", "block B")


def test_a_value_read_from_a_buffer_of_the_block_is_refused() -> None:
    func = windows("L[0] = A[v]; B[v + r] = L[0]".replace("; ", "\n                "),
                   'L = T.alloc_buffer((1,), "int32")')  # fmt: skip
    refused(carried(func, "i"), "carried-dependence", "block B writes")


CHAINS = """
@T.prim_func
def f(A: T.Buffer((32,), "int32"), B: T.Buffer((33,), "int32")):
    for i, j in T.grid(4, 8):
        with T.block("S"):
            vi = T.axis.spatial(4, i)
            vj = T.axis.scan(8, j)
            B[vi * 8 + vj + 1] = T.if_then_else({test}, A[vi], B[vi * 8 + vj])
"""


@pytest.mark.parametrize("test", ["vj == 0", "vj < 1", "not 0 < vj", "vj == 0 or A[vj] > 0"])
def test_a_condition_around_a_load_keeps_iterations_apart(test: str) -> None:
    assert carried(parse(CHAINS.format(test=test)), "i") is None


@pytest.mark.parametrize(
    "test", ["vj == 1", "vj == 7", "0 < vj", "A[vj] > 0", "vj == 0 and A[vj] > 0"]
)
def test_a_condition_that_allows_the_first_load_does_not_separate_iterations(test: str) -> None:
    sentence = r"different iterations of loop i may touch the same element of B"
    refused(carried(parse(CHAINS.format(test=test)), "i"), "carried-dependence", sentence)


def test_a_load_outside_of_the_condition_counts() -> None:
    text = CHAINS.format(test="vj == 0").replace("A[vi],", "A[vi] + B[vi * 8 + vj],")
    sentence = r"different iterations of loop i may touch the same element of B"
    refused(carried(parse(text), "i"), "carried-dependence", sentence)


COLOURS = """
@T.prim_func
def f(A: T.Buffer(({n}, {n}), "float32")):
    for c, i, j in T.grid(2, {n}, {n}):
        with T.block("A"):
            vc = T.axis.opaque(2, c)
            vi, vj = T.axis.opaque({n}, i), T.axis.opaque({n}, j)
            if ({which}) % 2 == vc:
                A[vi, vj] = A[vi, vj] + A[(vi + 1) % {n}, vj] + A[vi, (vj + {n} - 1) % {n}]
"""


def test_elements_of_two_colours_are_updated_in_any_order() -> None:
    func = parse(COLOURS.format(n=8, which="vi + vj"))
    assert carried(func, "i") is None
    assert carried(func, "j") is None
    sentence = r"different iterations of loop c may touch the same element of A"
    refused(carried(func, "c"), "carried-dependence", sentence)


@pytest.mark.parametrize(
    "n, which", [(9, "vi + vj"), (8, "vi + 2 * vj"), (8, "vi // 2 + vj"), (8, "vi * vj")]
)
def test_neighbours_of_one_colour_keep_their_order(n: int, which: str) -> None:
    func = parse(COLOURS.format(n=n, which=which))
    sentence = r"different iterations of loop [ij] may touch the same element of A"
    refused(carried(func, "i") or carried(func, "j"), "carried-dependence", sentence)


def test_a_store_outside_of_the_condition_counts() -> None:
    text = COLOURS.format(n=8, which="vi + vj") + "            A[vi, vj] = A[vi, vj] * 2.0\n"
    sentence = r"different iterations of loop i may touch the same element of A"
    refused(carried(parse(text), "i"), "carried-dependence", sentence)


RAGGED = """
@T.prim_func
def main(b: T.Buffer((9,), "int32"), B: T.Buffer((400,), "{kind}")):
    for i in range(8):
        for p_0, p_1 in T.grid((b[i + 1] + 15 - b[i]) // 16, 16):
            with T.block("B"):
                vi = T.axis.opaque(8, i)
                vp = T.axis.opaque(400, p_0 * 16 + p_1 + {start})
                T.where(p_0 * 16 + p_1 + {start} < b[i + 1])
                B[vp] = B[vp] + T.cast(vi, "{kind}")
"""


def test_a_start_that_no_iteration_writes_is_one_number() -> None:
    func = parse(RAGGED.format(kind="float32", start="b[i]"))
    assert carried(func, "p_1") is None and carried(func, "p_0") is None


@pytest.mark.parametrize("name", ["p_0", "p_1"])
def test_a_start_that_iterations_write_separates_nothing(name: str) -> None:
    func = parse(RAGGED.format(kind="int32", start="B[i]"))
    failure = carried(func, name)
    assert failure is not None and "may touch the same element of B" in str(failure)


def tiled_sum(c: int, d: int, guard: str = "True") -> PrimFunc:
    """A sum in order over two loops in tiles of c and d, of 4 x 6 values."""
    return parse(f"""
@T.prim_func
def f(A: T.Buffer((5, 4, 6), "float32"), S: T.Buffer((5,), "float32")):
    for i, c0, c1, d0, d1 in T.grid(5, {4 // c}, {c}, {6 // d}, {d}):
        with T.block("S"):
            T.where({guard})
            vi = T.axis.spatial(5, i)
            vc = T.axis.opaque(4, c0 * {c} + c1)
            vd = T.axis.opaque(6, d0 * {d} + d1)
            S[vi] = S[vi] + A[vi, vc, vd]
""")


TILES = (("c0", "c1", "d0", "d1"), ("c0", "d0", "c1", "d1"))


def test_tiles_of_an_ordered_sum_are_refused_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proof by inequalities took a second for twenty loops, and had to fail."""

    def searched(*_: object) -> bool:
        raise AssertionError

    for name in ("_kept_by_level", "_kept_in_polyhedra", "_kept_one_by_one"):
        monkeypatch.setattr(f"metasched.analysis.reordering.{name}", searched)
    refused(reordered(tiled_sum(2, 3), *TILES), "reversed-dependence", "elements? of S")
    for c, d in ((1, 3), (4, 3), (2, 6)):  # a loop of one iteration stands between
        assert (reordered(tiled_sum(c, d), *TILES) is None) == (c == 1 or d == 6)


def test_a_guard_may_keep_the_order_of_loops_that_no_index_mentions() -> None:
    """The guard lets one value of c1 run: then the order of the sum stays."""
    assert reordered(tiled_sum(2, 3, "c1 < 1"), *TILES) is None
    refused(reordered(tiled_sum(2, 3, "c1 < 2"), *TILES), "reversed-dependence", "elements? of S")
