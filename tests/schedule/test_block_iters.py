"""reorder_block_iter_var and transform_block_layout: new iterators for a block."""

from __future__ import annotations

from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import elementwise, matmul

from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def matmul_reordered(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), C: T.Buffer((8, 6), "float32")
):
    for i, j, k in T.grid(8, 6, 12):
        with T.block("C"):
            vk, vi, vj = T.axis.remap("RSS", [k, i, j])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def fused(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for ax0 in range(96):
        with T.block("B"):
            v0 = T.axis.spatial(96, ax0)
            B[v0 // 12, v0 % 12] = A[v0 // 12, v0 % 12] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


@T.prim_func
def matmul_moved(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), C: T.Buffer((8, 6), "float32")
):
    for ax0, ax1, ax2 in T.grid(12, 48, 1):
        with T.block("C"):
            v0, v1, v2 = T.axis.remap("RSS", [ax0, ax1, ax2])
            with T.init():
                C[v1 // 6, v1 % 6] = T.float32(0)
            C[v1 // 6, v1 % 6] = C[v1 // 6, v1 % 6] + A[v1 // 6, v0] * B[v0, v1 % 6]


@T.prim_func
def prefix_sum(A: T.Buffer((12,), "float32"), B: T.Buffer((13,), "float32")):
    for i in range(12):
        with T.block("B"):
            vi = T.axis.spatial(12, i)
            B[vi + 1] = B[vi] + A[vi]


@T.prim_func
def in_place(A: T.Buffer((4, 6), "float32")):
    for i, j in T.grid(4, 6):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] * T.float32(2)


@T.prim_func
def odd(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32")):
    for i, j in T.grid(8, 12):
        with T.block("guarded"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i + j < 9)
            B[vi, vj] = A[vi, vj]
    for i in range(8):
        with T.block("scan"):
            vi = T.axis.scan(8, i)
            B[vi, 0] = B[vi, 0] + A[vi, 0]
    for i in range(8):
        with T.block("wide"):
            vi = T.axis.spatial(9, i)
            B[vi, 1] = A[vi, 2]
    for i in range(1, 8):
        with T.block("late"):
            vi = T.axis.spatial(8, i)
            B[vi, 1] = A[vi, 2]


def test_reorder_block_iter_var():
    sch = Schedule(matmul)
    sch.reorder_block_iter_var("C", [2, 0, 1])
    becomes(matmul, sch, matmul_reordered)


def test_reorder_block_iter_var_refuses_what_is_no_permutation():
    sch = Schedule(matmul)
    for order in ([0, 1], [0, 1, 1], [0, 1, 3], []):
        check_refused(
            sch, lambda order=order: sch.reorder_block_iter_var("C", order), "no-permutation",
            "does not name each of the 3 iterators of C once",
        )  # fmt: skip
    check_refused(
        sch,
        lambda: sch.reorder_block_iter_var("C", [0, 1, "2"]),
        "not-an-integer",
        "not an integer",
    )


def test_fusing_iterators():
    sch = Schedule(elementwise)
    sch.transform_block_layout("B", lambda i, j: (i * 12 + j,))
    becomes(elementwise, sch, fused)


def test_a_reduction_moves_outside():
    sch = Schedule(matmul)
    sch.transform_block_layout("C", lambda i, j, k: [k, i * 6 + j, 0])
    becomes(matmul, sch, matmul_moved)


def test_splitting_iterators():
    sch = Schedule(matmul)
    sch.transform_block_layout("C", lambda i, j, k: (i // 4, j, k // 3, i % 4, k % 3))
    check_transform(matmul, sch)


def test_disjoint_updates_in_place_may_be_reordered():
    sch = Schedule(in_place)
    sch.transform_block_layout("A", lambda i, j: (j, i))
    check_transform(in_place, sch)


def test_dependent_iterations_keep_their_order_or_are_refused():
    sch = Schedule(prefix_sum)
    sch.transform_block_layout("B", lambda i: (i // 4, i % 4))
    check_transform(prefix_sum, sch)
    sch = Schedule(prefix_sum)
    check_refused(
        sch, lambda: sch.transform_block_layout("B", lambda i: (i % 4, i // 4)), "order-matters",
        "may depend on their order",
    )  # fmt: skip


@T.prim_func
def sums(A: T.Buffer((6, 8), "int32"), X: T.Buffer((4,), "int32"), B: T.Buffer((6, 8), "int32")):
    for i, j, k in T.grid(6, 8, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            vk = T.axis.opaque(4, k)
            B[vi, vj] = B[vi, vj] * X[vk] + A[vi, vj]


def test_iterators_before_the_first_that_carries_a_dependence_map_freely():
    sch = Schedule(sums)
    sch.transform_block_layout("B", lambda i, j, k: (j % 2, k, i * 4 + j // 2))
    check_transform(sums, sch)
    sch = Schedule(sums)
    check_refused(
        sch, lambda: sch.transform_block_layout("B", lambda i, j, k: (i, j, k % 2, k // 2)),
        "order-matters", "may depend on their order",
    )  # fmt: skip


@T.prim_func
def rows(B: T.Buffer((6, 9), "int32")):
    for i, j, k in T.grid(6, 8, 4):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            vj = T.axis.opaque(8, j)
            vk = T.axis.opaque(4, k)
            B[vi, vj + 1] = B[vi, vj] * vk + B[vi, vj + 1]


def test_iterators_from_the_first_that_carries_a_dependence_keep_their_order():
    sch = Schedule(rows)
    sch.transform_block_layout("B", lambda i, j, k: (j, i // 2, k, i % 2))
    check_transform(rows, sch)
    for index_map in (lambda i, j, k: (i, k, j), lambda i, j, k: (i, j // 2, k, j % 2)):
        sch = Schedule(rows)
        check_refused(
            sch, lambda s=sch, m=index_map: s.transform_block_layout("B", m), "order-matters",
            "may depend on their order",
        )  # fmt: skip


@T.prim_func
def chosen(A: T.Buffer((4, 1), "int32"), B: T.Buffer((4, 1), "int32")):
    for i, j in T.grid(4, 1):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.Select(vi < 3, A[vi, vj], A[vi, vj])


def test_loads_on_both_sides_of_a_choice_stay_in_the_declared_region():
    sch = Schedule(chosen)
    sch.transform_block_layout("B", lambda i, j: (i + j,))
    check_transform(chosen, sch)


def test_refusals():
    sch = Schedule(matmul)

    def try_(fn, reason, message, block="C"):
        check_refused(sch, lambda: sch.transform_block_layout(block, fn), reason, message)

    try_(lambda i, j: (i, j), "bad-index-map", "takes 2 indices, 3 are needed")
    try_(lambda i, j, k: (i // 2, j, k), "not-bijective", "no inverse")
    try_(lambda i, j, k: (i * 2, j, k), "not-bijective", "correspond to no old indices")
    try_(lambda i, j, k: (i, j + 1, k), "not-bijective", "correspond to no old indices")
    try_(lambda i, j, k: (i, j * 12 + k), "mixed-kinds", "mixes iterators of different")
    sch.annotate(sch.get_loops("C")[1], "note", 1)
    try_(lambda i, j, k: (i, j, k), "loop-has-kind", "kind or annotations")
    sch = Schedule(elementwise)
    sch.split(sch.get_loops("B")[0], [None, 4])
    try_(lambda i, j: (i, j), "not-trivial-binding", "are bound to", "B")
    sch.compute_at("B", sch.get_loops("C")[0])
    try_(lambda i, j: (i, j), "not-single-branch", "contains more than the block C")
    sch = Schedule(odd)
    try_(lambda i, j: (j, i), "has-predicate", "guarded has a predicate", "guarded")
    try_(lambda i: i, "iterator-kind", "vi is scan", "scan")
    try_(lambda i: i, "other-domain", "does not run over the domain of vi", "wide")
    try_(lambda i: i, "not-from-zero", "does not count 0, 1, 2", "late")
