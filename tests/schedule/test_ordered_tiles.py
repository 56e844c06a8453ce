"""Sums in a fixed order: a block sets results, another updates them in order, a third stores them.

The three blocks may move under one loop, and the tiles of all three may be padded. The first may
copy results in that the third copies back.
"""

from __future__ import annotations

from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def ordered(A: T.Buffer((7, 5), "float32"), B: T.Buffer((5, 6), "float32"),
            C: T.Buffer((7, 6), "float32")):  # fmt: skip
    S = T.alloc_buffer((7, 6))
    for i, j in T.grid(7, 6):
        with T.block("start"):
            vi, vj = T.axis.remap("SS", [i, j])
            S[vi, vj] = A[vi, 0]
    for i, j, k in T.grid(7, 6, 5):
        with T.block("sum"):
            vi, vj = T.axis.remap("SS", [i, j])
            vk = T.axis.opaque(5, k)
            S[vi, vj] = S[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(7, 6):
        with T.block("store"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = S[vi, vj]


def test_the_stages_of_an_ordered_sum_share_a_padded_tile():
    sch = Schedule(ordered, check=True)
    for name, factors in ("start", [4, 4]), ("sum", [4, 4, 1]):
        sch.overcompute(name, factors)
    i, j, k = sch.get_loops("sum")
    (i0, i1), (j0, j1) = sch.split(i, [2, 4]), sch.split(j, [2, 4])
    sch.reorder(i0, j0, k, i1, j1)
    sch.compute_at("start", j0)
    sch.reverse_compute_at("store", j0)
    sch.parallel(i0)
    check_transform(ordered, sch)
    script = sch.script()
    assert "S = T.alloc_buffer((8, 8)" in script and "T.min(vi, 6)" in script


def test_a_start_that_would_run_again_stays():
    """Each iteration of k updates all results, so a start in the loop would set them again."""
    sch = Schedule(ordered)
    i, _j, k = sch.get_loops("sum")
    sch.reorder(k, i)
    step = lambda: sch.compute_at("start", k)  # noqa: E731
    check_refused(sch, step, "repeated-update", "two iterations of the loops k may run the same")


@T.prim_func
def read_between(A: T.Buffer((7,), "float32"), C: T.Buffer((7,), "float32"),
                 D: T.Buffer((7,), "float32")):  # fmt: skip
    S = T.alloc_buffer((7,))
    for i in range(7):
        with T.block("start"):
            vi = T.axis.spatial(7, i)
            S[vi] = A[vi]
    for i in range(7):
        with T.block("between"):
            vi = T.axis.spatial(7, i)
            D[vi] = S[vi]
    for i, k in T.grid(7, 3):
        with T.block("sum"):
            vi = T.axis.spatial(7, i)
            vk = T.axis.opaque(3, k)
            S[vi] = S[vi] + A[vk]
    for i in range(7):
        with T.block("store"):
            vi = T.axis.spatial(7, i)
            C[vi] = S[vi]


def test_a_start_stays_before_a_block_between_the_start_and_the_nest():
    sch = Schedule(read_between)
    i, _k = sch.get_loops("sum")
    message = "between"
    check_refused(sch, lambda: sch.compute_at("start", i), "consumer-outside", message)


@T.prim_func
def part(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    S = T.alloc_buffer((8,))
    for i in range(8):
        with T.block("start"):
            vi = T.axis.spatial(8, i)
            S[vi] = A[vi]
    for i, k in T.grid(5, 3):
        with T.block("sum"):
            vi = T.axis.spatial(5, i)
            vk = T.axis.opaque(3, k)
            S[vi] = S[vi] + A[vk]
    for i in range(8):
        with T.block("store"):
            vi = T.axis.spatial(8, i)
            C[vi] = S[vi]


def test_a_sum_of_a_part_leaves_the_rest():
    """Five of eight results are summed: padded to eight, the sum would change three more."""
    sch = Schedule(part)
    i, _k = sch.get_loops("sum")
    check_refused(sch, lambda: sch.overcompute("sum", [8, 1]), "shared-result", "only a part of S")
    message = r"block store reads S\[vi\], which is not proved to be written before"
    check_refused(sch, lambda: sch.compute_at("start", i), "region-cover", message)


@T.prim_func
def steered(A: T.Buffer((7,), "float32"), C: T.Buffer((7,), "int32")):
    S = T.alloc_buffer((7,), "int32")
    for i in range(7):
        with T.block("start"):
            vi = T.axis.spatial(7, i)
            S[vi] = vi % 2
    for i, k in T.grid(7, 3):
        with T.block("sum"):
            vi = T.axis.spatial(7, i)
            vk = T.axis.opaque(3, k)
            S[vi] = S[vi] + T.Cast("int32", A[S[vi] % 7])
    for i in range(7):
        with T.block("store"):
            vi = T.axis.spatial(7, i)
            C[vi] = S[vi]


def test_a_result_that_names_an_element_is_not_padded():
    sch = Schedule(steered)
    step = lambda: sch.overcompute("sum", [4, 1])  # noqa: E731
    check_refused(sch, step, "not-complete-or-reduction", "opaque, not spatial")


@T.prim_func
def plain(A: T.Buffer((7, 5), "float32"), B: T.Buffer((5, 6), "float32"),
          C: T.Buffer((7, 6), "float32")):  # fmt: skip
    for i, j in T.grid(7, 6):
        C[i, j] = T.float32(0)
        for k in range(5):
            C[i, j] += A[i, k] * B[k, j]


def test_the_copy_of_one_element_is_a_plain_block():
    sch = Schedule(plain, check=True)
    sch.enclose(sch.get_block("root"))
    sum_ = sch.get_block("C_1")
    copy = sch.write_at(sch.get_loops(sum_)[1], sum_, 0, "local")
    assert not sch.get(copy).annotations and len(sch.get_loops(copy)) == 2
    check_transform(plain, sch)


@T.prim_func
def in_place(A: T.Buffer((7, 5), "float32"), B: T.Buffer((5, 6), "float32"),
             C: T.Buffer((7, 6), "float32")):  # fmt: skip
    for i, k, j in T.grid(7, 5, 6):
        C[i, j] += A[i, k] * B[k, j]


def test_a_tile_that_is_copied_in_and_back_may_be_padded():
    """A padded instance reads no element of C, which another tile may have overwritten."""
    sch = Schedule(in_place, check=True)
    (block,) = sch.enclose("root")
    first, last = sch.cache_update(sch.get_loops(block)[0], "global")
    for rv, factors in (first, [4, 4]), (block, [4, 1, 4]):
        sch.overcompute(rv, factors)
    i, k, j = sch.get_loops(block)
    (i0, i1), (j0, j1) = sch.split(i, [2, 4]), sch.split(j, [2, 4])
    sch.reorder(i0, j0, k, i1, j1)
    sch.compute_at(first, j0)
    sch.reverse_compute_at(last, j0)
    sch.parallel(i0)
    check_transform(in_place, sch)
    assert "T.if_then_else(v0 < 7 and v1 < 6, C[v0, v1], T.float32(0))" in sch.script()


@T.prim_func
def neighbours(A: T.Buffer((3,), "float32"), C: T.Buffer((7,), "float32")):
    S = T.alloc_buffer((7,))
    for i in range(7):
        with T.block("start"):
            vi = T.axis.spatial(7, i)
            S[vi] = C[T.max(vi - 1, 0)]
    for i, k in T.grid(7, 3):
        with T.block("sum"):
            vi = T.axis.spatial(7, i)
            vk = T.axis.opaque(3, k)
            S[vi] = S[vi] + A[vk]
    for i in range(7):
        with T.block("store"):
            vi = T.axis.spatial(7, i)
            C[vi] = S[vi]


def test_an_element_that_a_later_tile_starts_from_is_not_overwritten():
    sch = Schedule(neighbours)
    i, _k = sch.get_loops("sum")
    sch.compute_at("start", i)
    message = "store may overwrite an element of C that a later iteration of i reads"
    step = lambda: sch.reverse_compute_at("store", i)  # noqa: E731
    check_refused(sch, step, "overwritten-too-early", message)


@T.prim_func
def overwritten_between(A: T.Buffer((7,), "float32"), C: T.Buffer((7,), "float32")):
    S = T.alloc_buffer((7,))
    for i in range(7):
        with T.block("first"):
            vi = T.axis.spatial(7, i)
            S[vi] = C[vi]
    for i in range(7):
        with T.block("between"):
            vi = T.axis.spatial(7, i)
            A[vi] = C[6 - vi]
    for i in range(7):
        with T.block("last"):
            vi = T.axis.spatial(7, i)
            C[vi] = S[vi]


def test_a_block_does_not_move_past_a_reader_of_what_it_overwrites():
    sch = Schedule(overwritten_between)
    (i,) = sch.get_loops("first")
    message = "block last overwrites C, which between reads"
    step = lambda: sch.reverse_compute_at("last", i)  # noqa: E731
    check_refused(sch, step, "write-after-read", message)
