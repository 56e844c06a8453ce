"""pad_einsum: padded iterators, inputs padded with zeros, results copied back."""

from __future__ import annotations

from oracle import check_refused, check_transform
from schedule.golden_programs import becomes

from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((7, 13), "float32"), B: T.Buffer((13, 6), "float32"), C: T.Buffer((7, 6), "float32")
):
    for i, j, k in T.grid(7, 6, 13):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def matmul_padded(
    A: T.Buffer((7, 13), "float32"), B: T.Buffer((13, 6), "float32"), C: T.Buffer((7, 6), "float32")
):
    A_pad = T.alloc_buffer((8, 16), "float32")
    B_pad = T.alloc_buffer((16, 8), "float32")
    C_pad = T.alloc_buffer((8, 8), "float32")
    for i0, i1 in T.grid(8, 16):
        with T.block("A_pad"):
            v0, v1 = T.axis.remap("SS", [i0, i1])
            A_pad[v0, v1] = T.if_then_else(v0 < 7 and v1 < 13, A[v0, v1], T.float32(0))
    for i0, i1 in T.grid(16, 8):
        with T.block("B_pad"):
            v0, v1 = T.axis.remap("SS", [i0, i1])
            B_pad[v0, v1] = T.if_then_else(v0 < 13 and v1 < 6, B[v0, v1], T.float32(0))
    for i, j, k in T.grid(8, 8, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C_pad[vi, vj] = T.float32(0)
            C_pad[vi, vj] = C_pad[vi, vj] + A_pad[vi, vk] * B_pad[vk, vj]
    for i0, i1 in T.grid(7, 6):
        with T.block("C_pad"):
            v0, v1 = T.axis.remap("SS", [i0, i1])
            C[v0, v1] = C_pad[v0, v1]


@T.prim_func
def matmul_rows(
    A: T.Buffer((7, 13), "float32"), B: T.Buffer((13, 6), "float32"), C: T.Buffer((7, 6), "float32")
):
    A_pad = T.alloc_buffer((8, 13), "float32")
    C_pad = T.alloc_buffer((8, 6), "float32")
    for i0, i1 in T.grid(8, 13):
        with T.block("A_pad"):
            v0, v1 = T.axis.remap("SS", [i0, i1])
            A_pad[v0, v1] = T.if_then_else(v0 < 7, A[v0, v1], T.float32(0))
    for i, j, k in T.grid(8, 6, 13):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C_pad[vi, vj] = T.float32(0)
            C_pad[vi, vj] = C_pad[vi, vj] + A_pad[vi, vk] * B[vk, vj]
    for i0, i1 in T.grid(7, 6):
        with T.block("C_pad"):
            v0, v1 = T.axis.remap("SS", [i0, i1])
            C[v0, v1] = C_pad[v0, v1]


@T.prim_func
def larger(A: T.Buffer((9, 13), "int8"), B: T.Buffer((13,), "int8"), C: T.Buffer((3, 9), "int32")):
    for i, k in T.grid(7, 11):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[1, vi] = 0
            C[1, vi] = C[1, vi] + T.Cast("int32", A[vi, vk]) * T.Cast("int32", B[vk])


@T.prim_func
def symbolic(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 5), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i, k in T.grid(n, 5):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]


@T.prim_func
def largest(A: T.Buffer((7, 5), "float32"), B: T.Buffer((7,), "float32")):
    for i, k in T.grid(7, 5):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.min_value("float32")
            B[vi] = T.max(B[vi], A[vi, vk])


@T.prim_func
def odd(
    A: T.Buffer((7, 7), "float32"),
    I: T.Buffer((7,), "int32"),
    B: T.Buffer((7,), "float32"),
    C: T.Buffer((7,), "float32"),
    D: T.Buffer((7,), "int32"),
    E: T.Buffer((7,), "float32"),
    F: T.Buffer((7,), "float32"),
):
    for i in range(7):
        with T.block("diagonal"):
            vi = T.axis.spatial(7, i)
            B[vi] = A[vi, vi]
    for i in range(7):
        with T.block("shifted"):
            vi = T.axis.spatial(7, i)
            C[vi] = A[0, 6 - vi]
    for i in range(7):
        with T.block("divided"):
            vi = T.axis.spatial(7, i)
            D[vi] = 12 // I[vi]
    for i, k in T.grid(7, 7):
        with T.block("plus"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                E[vi] = T.float32(0)
            E[vi] = E[vi] + (A[vi, vk] + T.float32(1))
    for i, k in T.grid(7, 7):
        with T.block("scaled"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                F[vi] = T.float32(0)
            F[vi] = F[vi] + A[vi, vk] * B[vi]


@T.prim_func
def guarded(A: T.Buffer((7,), "float32"), B: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.block("B"):
            vi = T.axis.spatial(7, i)
            T.where(i < 5)
            B[vi] = A[vi]


def test_all_iterators():
    sch = Schedule(matmul)
    loops = sch.get_loops("C")
    sch.pad_einsum("C", [4, 4, 4])
    becomes(matmul, sch, matmul_padded)
    assert [sch.get(loop).extent.value for loop in loops] == [8, 8, 16]


def test_only_buffers_with_a_padded_iterator_are_copied():
    sch = Schedule(matmul)
    sch.pad_einsum("C", [4, 3, 13])
    becomes(matmul, sch, matmul_rows)


def test_buffers_larger_than_the_iterators_and_constant_indices():
    sch = Schedule(larger)
    sch.pad_einsum("C", [4, 8])
    check_transform(larger, sch)


def test_symbolic_extents():
    sch = Schedule(symbolic)
    sch.pad_einsum("B", [8, 4])
    check_transform(symbolic, sch)


def test_a_maximum_is_padded_in_space_only():
    sch = Schedule(largest)
    check_refused(
        sch, lambda: sch.pad_einsum("B", [1, 4]), "not-neutral",
        "zeros in the padded part of vk would change the max that B computes",
    )  # fmt: skip
    sch.pad_einsum("B", [4, 1])
    check_transform(largest, sch)


@T.prim_func
def column(A: T.Buffer((4, 1), "float32"), B: T.Buffer((4,), "float32")):
    for i, j in T.grid(4, 1):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi] = A[vi, vj]


@T.prim_func
def conditional(A: T.Buffer((7,), "float32"), B: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.block("B"):
            vi = T.axis.spatial(7, i)
            if vi < 5:
                B[vi] = A[vi]


def test_a_buffer_smaller_than_its_guarded_iterator():
    sch = Schedule(matmul)
    sch.pad_einsum("C", [4, 1, 1])
    sch.pad_einsum("A_pad", [5, 1])
    check_transform(matmul, sch)


@T.prim_func
def unit(A: T.Buffer((1, 6), "int32"), C: T.Buffer((1, 6), "int32")):
    for i, j in T.grid(1, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 3


def test_results_of_a_unit_dimension_are_cut_in_the_block_itself():
    sch = Schedule(unit)
    sch.pad_einsum("C", [2, 1])
    sch.reverse_compute_inline("C_pad")
    check_transform(unit, sch)


def test_new_blocks_have_different_names():
    sch = Schedule(matmul)
    sch.reindex("C", ("write", 0))
    sch.reindex("C_reindex", ("write", 0))
    sch.pad_einsum("C_reindex", [4, 4])
    assert [len(r) for r in sch.state.index.by_name.values()] == [1] * len(sch.state.index.by_name)
    check_transform(matmul, sch)


def test_refusals():
    sch = Schedule(matmul)

    def try_(reason, message, padding, block="C", sch=sch):
        check_refused(sch, lambda: sch.pad_einsum(block, padding), reason, message)

    try_("bad-padding", "has 3 iterators", [4, 4])
    try_("bad-padding", "one positive integer", [4, 0, 4])
    try_("not-an-integer", "a padding is 1.5", [4, 1.5, 4])
    try_("nothing-to-pad", "multiples of", [7, 2, 1])
    sch = Schedule(odd)
    try_("not-plain-index", "indices of A in diagonal", [4], "diagonal", sch)
    try_("not-plain-index", "indices of A in shifted", [4], "shifted", sch)
    try_("divides", "divides by a value that is zero in the padding", [4], "divided", sch)
    try_("not-neutral", "would change the sum", [1, 4], "plus", sch)
    try_("not-neutral", "would change the sum", [1, 4], "scaled", sch)
    try_("not-in-result", "B is not indexed by vj", [1, 2], "B", Schedule(column))
    try_("conditional-store", "B stores to B under a condition", [4], "B", Schedule(conditional))
    try_("has-predicate", "B has a predicate", [4], "B", Schedule(guarded))
    sch = Schedule(matmul)
    sch.split(sch.get_loops("C")[0], [None, 7])
    try_("not-trivial-binding", "are bound to", [4, 4, 4], "C", sch)
    sch = Schedule(matmul)
    sch.decompose_reduction("C", sch.get_loops("C")[2])
    try_("not-complete-or-reduction", "neither complete", [4, 4, 4], "C_update", sch)


@T.prim_func
def steered(
    A: T.Buffer((4,), "int32"), C: T.Buffer((3,), "int32"), D: T.Buffer((3,), "int32"),
    E: T.Buffer((3, 8), "int32"), F: T.Buffer((3, 8), "int32"),
):  # fmt: skip
    for i in range(3):
        with T.block("C"):
            vi = T.axis.spatial(3, i)
            C[vi] = T.if_then_else(vi >= 3, A[-2], 1)
    for i in range(3):
        with T.block("D"):
            vi = T.axis.spatial(3, i)
            D[vi] = 12 // (3 - vi)
    for i, j in T.grid(3, 8):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = T.if_then_else(vj < 2 + vi, A[vj], 1)
    for i, j in T.grid(3, 8):
        with T.block("F"):
            vi, vj = T.axis.remap("SS", [i, j])
            F[vi, vj] = T.if_then_else(vj < 1 + vi, A[vj], 1 // (4 - vi))


def test_padded_steps_keep_the_condition_on_their_iterator() -> None:
    sch = Schedule(steered, check=False)
    for name, reason, message in (
        ("C", "reads-outside", r"C may read A\[-2\], which is outside of A, in a padded step"),
        ("D", "divides", "D divides by 3 - vi, which may be zero in a padded iteration"),
        ("E", "reads-outside", r"E may read A\[vj\]"),
    ):
        padding = [4] if name != "E" else [4, 1]
        check_refused(sch, lambda n=name, p=padding: sch.pad_einsum(n, p), reason, message)
    check_refused(sch, lambda: sch.pad_einsum("F", [5, 1]), "divides", "4 - vi")
    sch.pad_einsum("F", [4, 1])
    check_transform(steered, sch)


@T.prim_func
def folded(A: T.Buffer((8,), "int32"), C: T.Buffer((1,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial(8, i)
            B[v] = A[v] * 2
    for i in range(1):
        with T.block("C"):
            vi = T.axis.spatial(1, i)
            C[vi] = T.if_then_else(vi * 2 - 2 >= 0, B[vi * 2 - 2], 1)


def test_padding_keeps_conditions_on_iterators_of_one_value() -> None:
    sch = Schedule(folded, check=False)
    sch.transform_layout("B", ("write", 0), lambda i: (i,))
    check_refused(sch, lambda: sch.pad_einsum("C", [2]), "reads-outside", r"C may read B\[-2\]")
    sch.cache_read("C", 0, "global")
    check_transform(folded, sch)


INNER = """
@T.prim_func
def f(A: T.Buffer((2, 3), "int32"), C: T.Buffer((2, 3), "int32")):
    for i in range(2):
        with T.block("row"):
            vi = T.axis.spatial(2, i)
            T.reads(A[0, 0:3])
            T.writes(C[vi, 0:3])
            B = T.alloc_buffer((3,), "int32")
            for j in range(3):
                with T.block("B"):
                    vj = T.axis.spatial(3, j)
                    B[vj] = A[0, vj]
            for j in range(3):
                with T.block("C"):
                    vj = T.axis.spatial(3, j)
                    C[vi, vj] = B[vj]
"""


def test_a_padded_copy_reads_only_the_row_that_is_read():
    """The block around declares to read that row alone."""
    func = parse(INNER)
    sch = Schedule(func, seed=0, check=True)
    sch.pad_einsum("B", [2])
    check_transform(func, sch)


def test_an_iterator_may_be_padded_beside_windows():
    """The channels of a convolution are padded; rows and columns are read at sums of iterators."""

    @T.prim_func
    def conv(
        X: T.Buffer((6, 3), "int32"), W: T.Buffer((3, 3), "int32"), Y: T.Buffer((4,), "int32")
    ):
        for i, r, c in T.grid(4, 3, 3):
            with T.block("Y"):
                vi, vr, vc = T.axis.remap("SRR", [i, r, c])
                with T.init():
                    Y[vi] = 0
                Y[vi] += X[vi + vr, vc] * W[vr, vc]

    sch = Schedule(conv, check=True)
    sch.pad_einsum("Y", [1, 1, 4])
    script = sch.mod.script()
    assert "X_pad = T.alloc_buffer((6, 4)" in script and "W_pad = T.alloc_buffer((3, 4)" in script
    check_transform(conv, sch)
    other = Schedule(conv)
    check_refused(
        other, lambda: other.pad_einsum("Y", [1, 2, 1]), "not-plain-index",
        "where they are padded or written",
    )  # fmt: skip
