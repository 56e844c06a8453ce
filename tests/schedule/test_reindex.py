"""reindex: a block reads or writes a buffer directly by its iterators."""

from __future__ import annotations

import json

from oracle import check_numbers, check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import matmul

from metasched.ir.equal import structural_equal
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T


@T.prim_func
def transpose(A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 8), "float32")):
    for i, j in T.grid(12, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi] * T.float32(2)


@T.prim_func
def transpose_read(A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 8), "float32")):
    A_reindex = T.alloc_buffer((12, 8), "float32")
    for ax0, ax1 in T.grid(12, 8):
        with T.block("A_reindex"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            A_reindex[v0, v1] = A[v1, v0]
    for i, j in T.grid(12, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A_reindex[vi, vj] * T.float32(2)


@T.prim_func
def window(
    X: T.Buffer((9, 3), "float32"), W: T.Buffer((3, 3), "float32"), Y: T.Buffer((7,), "float32")
):
    for i, r, c in T.grid(7, 3, 3):
        with T.block("Y"):
            vi, vr, vc = T.axis.remap("SRR", [i, r, c])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + X[vi + vr, vc] * W[vr, vc]


@T.prim_func
def window_read(
    X: T.Buffer((9, 3), "float32"), W: T.Buffer((3, 3), "float32"), Y: T.Buffer((7,), "float32")
):
    X_reindex = T.alloc_buffer((7, 3, 3), "float32")
    for ax0, ax1, ax2 in T.grid(7, 3, 3):
        with T.block("X_reindex"):
            v0, v1, v2 = T.axis.remap("SSS", [ax0, ax1, ax2])
            X_reindex[v0, v1, v2] = X[v0 + v1, v2]
    for i, r, c in T.grid(7, 3, 3):
        with T.block("Y"):
            vi, vr, vc = T.axis.remap("SRR", [i, r, c])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + X_reindex[vi, vr, vc] * W[vr, vc]


@T.prim_func
def matmul_write(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), C: T.Buffer((8, 6), "float32")
):
    C_reindex = T.alloc_buffer((8, 6), "float32")
    for i, j, k in T.grid(8, 6, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C_reindex[vi, vj] = T.float32(0)
            C_reindex[vi, vj] = C_reindex[vi, vj] + A[vi, vk] * B[vk, vj]
    for ax0, ax1 in T.grid(8, 6):
        with T.block("C_reindex"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            C[v0, v1] = C_reindex[v0, v1]


@T.prim_func
def padded(X: T.Buffer((6,), "float32"), P: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            P[vi] = T.if_then_else(vi >= 1 and vi < 7, X[vi - 1], T.float32(0))


@T.prim_func
def padded_read(X: T.Buffer((6,), "float32"), P: T.Buffer((8,), "float32")):
    X_reindex = T.alloc_buffer((8,), "float32")
    for ax0 in range(8):
        with T.block("X_reindex"):
            v0 = T.axis.spatial(8, ax0)
            T.where(0 <= ax0 - 1 and ax0 - 1 < 6)
            X_reindex[v0] = X[v0 - 1]
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            P[vi] = T.if_then_else(vi >= 1 and vi < 7, X_reindex[vi], T.float32(0))


@T.prim_func
def stages(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((10,), "float32")
    for i in range(10):
        with T.block("B"):
            vi = T.axis.spatial(10, i)
            B[vi] = T.float32(3)
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] + B[vi] * B[vi + 2]


@T.prim_func
def halves(
    A: T.Buffer((8,), "float32"), B: T.Buffer((4,), "float32"), D: T.Buffer((8,), "float32")
):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi // 2] = T.float32(1)
    for i in range(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            D[vi] = D[vi] + A[vi]


@T.prim_func
def part(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.where(i < 5)
            B[vi] = A[vi]


@T.prim_func
def conditional(A: T.Buffer((7,), "float32"), B: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.block("B"):
            vi = T.axis.spatial(7, i)
            if vi < 5:
                B[vi] = A[vi]


@T.prim_func
def shared_loop(
    A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 4), "float32")
):
    for i in range(8):
        for j in range(4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]
        for j in range(4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]


@T.prim_func
def inner_loop(
    A: T.Buffer((4, 4), "float32"),
    I: T.Buffer((4,), "int32"),
    B: T.Buffer((4,), "float32"),
    C: T.Buffer((4,), "float32"),
):
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = T.float32(0)
            for j in range(4):
                B[vi] = B[vi] + A[vi, j]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi, I[vi] % 4]


@T.prim_func
def triangle(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32")):
    for i in range(4):
        for j in range(i + 1):
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(4, j)
                B[vi, vj] = A[vj, vi]


def test_a_read_is_copied_into_the_order_of_the_iterators():
    for given in (("read", 0), "A", transpose.params[0]):
        sch = Schedule(transpose)
        made = sch.reindex("B", given)
        becomes(transpose, sch, transpose_read)
        assert sch.get(made).name == "A_reindex"


def test_iterators_of_a_window_get_a_dimension_each():
    sch = Schedule(window)
    sch.reindex("Y", ("read", 0))
    becomes(window, sch, window_read)


def test_a_result_is_copied_back():
    sch = Schedule(matmul)
    sch.reindex("C", ("write", 0))
    becomes(matmul, sch, matmul_write)


def test_elements_outside_the_buffer_are_not_copied():
    sch = Schedule(padded)
    sch.reindex("P", "X")
    becomes(padded, sch, padded_read)


def test_a_tiled_block_is_reindexed_over_its_domain():
    sch = Schedule(matmul)
    for loop in sch.get_loops("C"):
        sch.split(loop, [None, 5])
    sch.reindex("C", ("write", 0))
    sch.reindex("C", ("read", 1))
    check_transform(matmul, sch)


def test_inside_a_block_only_what_it_touches_is_copied():
    sch = Schedule(matmul)
    sch.blockize(sch.get_loops("C")[1])
    sch.reindex("C", "A")
    assert "A_reindex = T.alloc_buffer((12,)" in sch.script()
    check_transform(matmul, sch)
    sch.reindex("C", "B")
    check_transform(matmul, sch)


def test_triangular_loops():
    sch = Schedule(triangle)
    sch.reindex("B", "A")
    check_transform(triangle, sch)
    check_refused(sch, lambda: sch.reindex("B", "B"), "partial-domain", "never written")


def test_a_block_inside_a_block_of_an_init_has_its_own_scope():
    sch = Schedule(matmul)
    sch.blockize(sch.blockize(sch.get_loops("C")[1]) and sch.get_loops("C_o")[0])
    sch.reindex("C_init", ("write", 0))
    assert "T.where" not in sch.script()
    check_transform(matmul, sch)


def test_nothing_is_staged_in_an_init():
    sch = Schedule(matmul)
    sch.blockize(sch.get_loops("C")[1])
    check_refused(
        sch, lambda: sch.reindex("C_init", ("write", 0)), "in-init", "stands in the init of C_o"
    )


@T.prim_func
def gram(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 6), "float32")):
    for i, j, k in T.grid(6, 6, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]


def test_one_of_several_places_is_read_through_a_copy():
    sch = Schedule(gram, check=True)
    sch.reindex("C", ("read", 0, 1))
    node = sch.get(sch.get_block("C"))
    first, second = node.reads
    assert [r.buffer.name for r in node.reads] == ["A", "A_reindex"]
    assert [r.min.name for r in first.region] == ["vi", "vk"]
    assert [r.min.name for r in second.region] == ["vj", "vk"]
    assert "A[vi, vk] * A_reindex[vj, vk]" in sch.script()
    check_transform(gram, sch)


def test_refusals():
    sch = Schedule(gram)
    check_refused(
        sch, lambda: sch.reindex("C", ("read", 0, 2)), "several-patterns", "at 2 different places"
    )
    sch = Schedule(stages)
    check_refused(sch, lambda: sch.reindex("C", "B"), "several-patterns", "at 2 different places")
    check_refused(
        sch, lambda: sch.reindex("C", ("read", 7)), "no-such-buffer", "reads A, B and writes C"
    )
    check_refused(sch, lambda: sch.reindex("C", "X"), "no-such-buffer", "has no buffer 'X'")
    check_refused(sch, lambda: sch.reindex("root", "X"), "is-root", "root block")
    sch = Schedule(halves)
    check_refused(
        sch, lambda: sch.reindex("B", ("write", 0)), "not-injective",
        "two values of vi of B may name one element of B",
    )  # fmt: skip
    check_refused(sch, lambda: sch.reindex("D", "D"), "reads-own-output", "both reads and writes D")
    sch = Schedule(part)
    check_refused(sch, lambda: sch.reindex("B", ("write", 0)), "partial-domain", "never written")
    sch = Schedule(conditional)
    check_refused(
        sch, lambda: sch.reindex("B", "B"), "conditional-store", "stores to B under a condition"
    )
    sch = Schedule(shared_loop)
    check_refused(
        sch, lambda: sch.reindex("C", "A"), "not-single-branch", "contains more than the block C"
    )
    sch = Schedule(inner_loop)
    check_refused(sch, lambda: sch.reindex("B", "A"), "inner-variable", "use j, which the block")
    check_refused(sch, lambda: sch.reindex("C", "A"), "indirect-access", "index loaded from I")


def test_a_partial_block_may_still_reindex_what_it_reads():
    sch = Schedule(part)
    sch.reindex("B", ("read", 0))
    check_numbers(part, sch.mod, compiled=True)


def test_iterators_that_cancel_give_no_dimension():
    @T.prim_func
    def f(
        A: T.Buffer((4, 64), "float32"),
        W: T.Buffer((4, 4), "float32"),
        C: T.Buffer((4, 64), "float32"),
    ):
        for i, j, k in T.grid(4, 64, 4):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0.0
                C[vi, vj] = C[vi, vj] + A[vi, vj // 64 * 4 + vk] * W[vk, vi]

    sch = Schedule(f, check=True)
    made = sch.reindex("C", ("read", 0))
    assert sch.get(made).writes[0].buffer.constant_shape() == (4, 4)
    check_transform(f, sch)


@T.prim_func
def pointwise(
    X: T.Buffer((1, 6, 4), "float32"),
    W: T.Buffer((1, 4, 8), "float32"),
    Y: T.Buffer((1, 6, 8), "float32"),
):
    for n, h, o, kh, c in T.grid(1, 6, 8, 1, 4):
        with T.block("Y"):
            vn, vh, vo, vk, vc = T.axis.remap("SSSRR", [n, h, o, kh, c])
            with T.init():
                Y[vn, vh, vo] = T.float32(0)
            Y[vn, vh, vo] = Y[vn, vh, vo] + X[vn, vh + vk, vc] * W[vk, vc, vo]


@T.prim_func
def pointwise_read(
    X: T.Buffer((1, 6, 4), "float32"),
    W: T.Buffer((1, 4, 8), "float32"),
    Y: T.Buffer((1, 6, 8), "float32"),
):
    X_reindex = T.alloc_buffer((1, 6, 4), "float32")
    for ax0, ax1, ax2 in T.grid(1, 6, 4):
        with T.block("X_reindex"):
            v0, v1, v2 = T.axis.remap("SSS", [ax0, ax1, ax2])
            X_reindex[v0, v1, v2] = X[v0, v1, v2]
    for n, h, o, kh, c in T.grid(1, 6, 8, 1, 4):
        with T.block("Y"):
            vn, vh, vo, vk, vc = T.axis.remap("SSSRR", [n, h, o, kh, c])
            with T.init():
                Y[vn, vh, vo] = T.float32(0)
            Y[vn, vh, vo] = Y[vn, vh, vo] + X_reindex[vn, vh, vc] * W[vk, vc, vo]


def test_an_iterator_of_one_value_beside_others_gives_no_dimension():
    """TVM 0.27 gives this module."""
    sch = Schedule(pointwise, check=True)
    sch.reindex("Y", ("read", 0))
    becomes(pointwise, sch, pointwise_read)
    made = sch.reindex("Y", ("read", 1))
    assert sch.get(made).writes[0].buffer.constant_shape() == (8, 1, 4)
    check_transform(pointwise, sch)
    kept = Schedule(pointwise, check=True)
    made = kept.reindex("Y", ("read", 0), keep_units=True)
    assert kept.get(made).writes[0].buffer.constant_shape() == (1, 6, 1, 4)
    check_transform(pointwise, kept)


def test_a_trace_from_before_keep_units_came_keeps_them():
    sch = Schedule(pointwise)
    panel = sch.reindex("Y", ("read", 0), keep_units=True)
    sch.transform_layout(panel, ("write", 0), lambda n, h, k, c: (n, k, c, h))
    data = json.loads(sch.trace.to_json())
    assert data["steps"][1]["args"].pop("keep_units") is True
    again = Schedule(pointwise)
    Trace.from_json(json.dumps(data)).apply(again)
    assert structural_equal(again.mod, sch.mod)


def test_iterators_below_zero_have_indices_from_zero():
    @T.prim_func
    def around(X: T.Buffer((8, 40), "int32"), A: T.Buffer((8, 40), "int32")):
        for i in range(-3, 5):
            for j in range(2, 10):
                with T.block("A"):
                    vi = T.axis.spatial((-3, 5), i)
                    vj = T.axis.spatial((2, 10), j)
                    A[vi + 3, vj * 2] = X[vi + 3, vj * 2] * 3

    for step in (
        lambda s: s.reindex("A", ("read", 0)),
        lambda s: s.reindex("A", ("write", 0)),
        lambda s: s.cache_index("A", "global"),
    ):
        sch = Schedule(around)
        step(sch)
        check_transform(around, sch)
