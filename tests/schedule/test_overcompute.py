"""overcompute: iterators are padded to a multiple, and the extra results are never used."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.golden_programs import becomes

from metasched.ir.expr import TRUE
from metasched.schedule import domain as domains
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((7, 5), "float32"), B: T.Buffer((5, 6), "float32"), D: T.Buffer((7, 6), "float32")
):
    C = T.alloc_buffer((7, 6), "float32")
    for i, j, k in T.grid(7, 6, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(7, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))


@T.prim_func
def matmul_rows(
    A: T.Buffer((7, 5), "float32"), B: T.Buffer((5, 6), "float32"), D: T.Buffer((7, 6), "float32")
):
    C = T.alloc_buffer((8, 6), "float32")
    for i, j, k in T.grid(8, 6, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            T.reads(A[T.min(vi, 6), vk], B[vk, vj])
            T.writes(C[vi, vj])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[T.min(vi, 6), vk] * B[vk, vj]
    for i, j in T.grid(7, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))


@T.prim_func
def window(A: T.Buffer((12,), "float32"), D: T.Buffer((7,), "float32")):
    """Sums over windows: the first reads stay inside A for one more result, the others do not."""
    C = T.alloc_buffer((7,), "float32")
    for i, k in T.grid(7, 5):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi + vk] * A[vi]
    for i in range(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = C[vi]


@T.prim_func
def padded(A: T.Buffer((7,), "float32"), D: T.Buffer((7,), "float32")):
    """A load under a condition, which is clamped like the load."""
    C = T.alloc_buffer((7,), "float32")
    for i, k in T.grid(7, 3):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + T.if_then_else(
                1 <= vi + vk and vi + vk < 8, A[vi + vk - 1], T.float32(0)
            )
    for i in range(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = C[vi]


@T.prim_func
def odd(A: T.Buffer((7,), "int32"), D: T.Buffer((7,), "int32"), E: T.Buffer((7,), "int32")):
    B = T.alloc_buffer((7,), "int32")
    C = T.alloc_buffer((9,), "int32")
    H = T.alloc_buffer((7,), "int32")
    G = T.alloc_buffer((7,), "int32")
    F = T.alloc_buffer((7, 7), "int32")
    for i in range(7):
        with T.block("divides"):
            vi = T.axis.spatial(7, i)
            B[vi] = 12 // T.max(A[vi], 1)
    for i in range(7):
        with T.block("part"):
            vi = T.axis.spatial(7, i)
            C[vi] = A[vi]
    for i in range(7):
        with T.block("diagonal"):
            vi = T.axis.spatial(7, i)
            F[vi, vi] = A[vi]
    for i in range(7):
        with T.block("two"):
            vi = T.axis.spatial(7, i)
            G[vi] = A[vi]
            H[vi] = A[vi]
    for i in range(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = B[vi] + C[vi] + G[vi] + H[vi]
    for i in range(7):
        with T.block("E"):
            vi = T.axis.spatial(7, i)
            E[vi] = D[vi]


def test_padded_rows_read_the_last_row():
    sch = Schedule(matmul)
    loops = sch.get_loops("C")
    sch.overcompute("C", [4, 3, 1])
    becomes(matmul, sch, matmul_rows)
    assert [sch.get(loop).extent.value for loop in loops] == [8, 6, 5]


def test_tiles_divide_evenly_afterwards():
    sch = Schedule(matmul)
    block = sch.get_block("C")
    sch.overcompute(block, [4, 4, 1])
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [2, 4])
    j0, j1 = sch.split(j, [2, 4])
    sch.reorder(i0, j0, k, i1, j1)
    sch.reverse_compute_at("D", j0)
    assert sch.state.block(block).predicate is TRUE
    check_transform(matmul, sch)


@pytest.mark.parametrize("func", [window, padded])
def test_only_accesses_that_would_leave_their_buffer_are_clamped(func):
    sch = Schedule(func)
    sch.overcompute("C", [8, 1])
    if func is window:
        assert "A[vi + vk] * A[vi]" in sch.script()
    check_transform(func, sch)
    again = Schedule(func)
    again.overcompute("C", [5, 1])
    check_transform(func, again)


@T.prim_func
def chain(A: T.Buffer((7,), "float32"), D: T.Buffer((7,), "float32")):
    B = T.alloc_buffer((7,), "float32")
    C = T.alloc_buffer((7,), "float32")
    for i in range(7):
        with T.block("B"):
            vi = T.axis.spatial(7, i)
            B[vi] = T.trunc(A[vi])
    for i in range(7):
        with T.block("C"):
            vi = T.axis.spatial(7, i)
            C[vi] = T.if_then_else(vi < 3, T.trunc(B[vi]), B[0])
    for i in range(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = C[vi]


def test_a_function_or_a_condition_clamps_only_loads_that_may_leave_their_buffer():
    sch = Schedule(chain)
    sch.overcompute("B", [4])
    sch.overcompute("C", [4])
    text = sch.script()
    assert "T.trunc(A[T.min(vi, 6)])" in text
    assert "T.if_then_else(vi < 3, T.trunc(B[vi]), B[0])" in text
    check_transform(chain, sch)
    shorter = Schedule(chain)
    shorter.overcompute("C", [4])
    assert "T.if_then_else(T.min(vi, 6) < 3, T.trunc(B[T.min(vi, 6)]), B[0])" in shorter.script()
    check_transform(chain, shorter)


BANDED = """
@T.prim_func
def f(A: T.Buffer((7,), "float32"), D: T.Buffer((7,), "float32")):
    C = T.alloc_buffer((7,), "float32")
    for i in range(7):
        with T.block("first"):
            vi = T.axis.spatial(7, i)
            C[vi] = 0.0
    for i, k in T.grid(7, 3):
        with T.block("C"):
            vi = T.axis.spatial(7, i)
            vk = T.axis.opaque(3, k)
            if 1 <= vi + vk{}:
                C[vi] = C[vi] + A[{}]
    for i in range(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = C[vi]
"""


@pytest.mark.parametrize(
    ("more", "index", "clamped"),
    [
        (" and vi + vk < 8", "vi + vk - 1", False),
        ("", "T.min(vi + vk, 7) - 1", False),
        ("", "vi", True),
    ],
)
def test_a_condition_around_the_body_keeps_loads_inside(more, index, clamped):
    func = parse(BANDED.format(more, index))
    sch = Schedule(func)
    sch.overcompute("first", [4])
    sch.overcompute("C", [4, 1])
    update = sch.script().partition('with T.block("C"):')[2].partition('with T.block("D")')[0]
    assert ("T.min(vi, 6)" in update) == clamped
    check_transform(func, sch)


def test_overcompute_leaves_multiples_of_the_tile_unchanged():
    sch = Schedule(matmul)
    before = sch.mod
    sch.overcompute("C", [7, 2, 1])
    assert sch.mod is before


@pytest.mark.parametrize(
    ("block", "multiples", "reason", "message"),
    [
        ("divides", [4], "divides", "divides by a value that is unknown in the added iterations"),
        ("part", [4], "shared-result", "part writes only a part of C along vi"),
        ("diagonal", [4], "not-plain-index", "F is not written at one place whose indices"),
        ("two", [4], "several-results", "two writes several buffers"),
        ("E", [4], "not-allocated", "the buffer E is a parameter or view"),
        ("part", [0], "bad-multiples", "not one positive integer for each"),
        ("part", [4, 4], "bad-multiples", "not one positive integer for each"),
    ],
)
def test_refusals(block, multiples, reason, message):
    sch = Schedule(odd)
    check_refused(sch, lambda: sch.overcompute(block, multiples), reason, message)


@pytest.mark.parametrize("seed", range(4))
def test_a_padded_tile_is_drawn_and_overcomputed(seed):
    sch = Schedule(matmul, seed=seed)
    block = sch.get_block("C")
    i, _, _ = sch.get_loops(block)
    a, b = sch.sample_padded_tile(i, 2, 4, [8, 9], [0.5, 0.5])
    sch.overcompute(block, [a * b, 1, 1])
    sch.split(i, [a, b])
    sizes = [sch.get(loop).extent.value for loop in sch.get_loops(block)][:2]
    assert sizes[0] * sizes[1] in (8, 9) and sizes[1] <= 4
    check_transform(matmul, sch)


@pytest.mark.parametrize(
    ("arguments", "reason", "message"),
    [
        ((2, 4, [6, 8], [0.5, 0.5]), "bad-size", "are not all at least the extent 7"),
        ((2, 4, [8], [0.0]), "bad-probabilities", "with probabilities"),
        ((0, 4, [8], [1.0]), "bad-tile", "n=0, max_innermost_factor=4"),
    ],
)
def test_tiles_that_cannot_be_drawn(arguments, reason, message):
    sch = Schedule(matmul)
    i, _, _ = sch.get_loops("C")
    check_refused(sch, lambda: sch.sample_padded_tile(i, *arguments), reason, message)


def test_padded_tiles_are_repaired_and_listed():
    domain = {
        "kind": "padded_tile", "sizes": [8, 9], "probs": [0.5, 0.5], "n": 2, "max_innermost": 4
    }  # fmt: skip
    assert domains.enumerated(domain, 20) == [[8, 1], [4, 2], [2, 4], [9, 1], [3, 3]]
    assert domains.allows(domain, [3, 3]) and not domains.allows(domain, [1, 9])
    assert domains.repair(domain, [1, 9]) == [3, 3]
    assert domains.repair(domain, [5, 5]) == [2, 4]


def test_overcompute_refuses_reduce_iterators():
    sch = Schedule(matmul)
    check_refused(
        sch, lambda: sch.overcompute("C", [1, 1, 4]), "cannot-run-on", "vk is no spatial iterator"
    )


@T.prim_func
def counted_down(A: T.Buffer((4,), "int32"), D: T.Buffer((3,), "int32")):
    C = T.alloc_buffer((3,), "int32")
    for i in range(3):
        with T.block("C"):
            vi = T.axis.spatial(3, i)
            C[vi] = A[3] // (3 - vi)
    for i in range(3):
        with T.block("D"):
            vi = T.axis.spatial(3, i)
            D[vi] = C[vi]


def test_a_divisor_in_the_padding_is_clamped() -> None:
    sch = Schedule(counted_down, check=False)
    sch.overcompute("C", [4])
    check_transform(counted_down, sch)


@T.prim_func
def longer_and_longer(A: T.Buffer((3,), "int32"), D: T.Buffer((3,), "int32")):
    C = T.alloc_buffer((3,), "int32")
    for i in range(3):
        with T.block("C"):
            vi = T.axis.spatial(3, i)
            C[vi] = 0
            for r in range(vi + 1):
                C[vi] = A[r]
    for i in range(3):
        with T.block("D"):
            vi = T.axis.spatial(3, i)
            D[vi] = A[vi]


def test_bounds_of_inner_loops_are_clamped_in_the_padding() -> None:
    sch = Schedule(longer_and_longer, check=False)
    sch.overcompute("C", [4])
    check_transform(longer_and_longer, sch)


def test_reads_stay_in_what_the_block_around_declares() -> None:
    @T.prim_func
    def f(A: T.Buffer((4,), "float32"), D: T.Buffer((3,), "float32")):
        with T.block("part"):
            T.reads(A[0:3])
            T.writes(D[0:3])
            B = T.alloc_buffer((3,), "float32")
            for i in range(3):
                with T.block("B"):
                    vi = T.axis.spatial(3, i)
                    B[vi] = A[vi]
            for i in range(3):
                with T.block("D"):
                    vi = T.axis.spatial(3, i)
                    D[vi] = B[vi]

    sch = Schedule(f, check=True)
    message = "B would read more of A than part, the block around it, declares"
    check_refused(sch, lambda: sch.overcompute("B", [2]), "reads-beyond", message)


@T.prim_func
def product_in_place(A: T.Buffer((3, 4), "float32"), W: T.Buffer((4, 4), "float32")):
    """A later block overwrites what C reads."""
    C = T.alloc_buffer((3, 4), "float32")
    for i, j, k in T.grid(3, 4, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(3, 4):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = C[vi, vj]


def test_later_blocks_may_overwrite_what_the_block_reads() -> None:
    sch = Schedule(product_in_place, check=True)
    sch.overcompute("C", [2, 3, 1])
    sch.reindex("C", ("read", 0))
    sch.reindex("A", ("write", 0))
    check_transform(product_in_place, sch)


def _fused(row: int, stride: int):
    """Sums over images of 3 rows, fused into one iterator of 3 * 5 elements."""
    text = f"""
@T.prim_func
def f(A: T.Buffer((4, {2 * stride + 1}, {row}), "int32"), D: T.Buffer((15,), "int32")):
    C = T.alloc_buffer((15,), "int32")
    for v, k in T.grid(15, 4):
        with T.block("C"):
            vv, vk = T.axis.remap("SR", [v, k])
            with T.init():
                C[vv] = 0
            C[vv] = C[vv] + A[vk, vv // 5 * {stride}, vv % 5]
    for v in range(15):
        with T.block("D"):
            vv = T.axis.spatial(15, v)
            D[vv] = C[vv]
"""
    return parse(text)


@pytest.mark.parametrize(("row", "stride", "digits"), [(5, 1, 2), (5, 2, 1), (6, 1, 1)])
def test_digits_that_join_to_one_address_are_clamped_together(row, stride, digits):
    """A whole row of 5 elements follows the row before: v // 5 * 5 + v % 5 is v."""
    func = _fused(row, stride)
    sch = Schedule(func)
    sch.overcompute("C", [4, 1])
    check_transform(func, sch)
    update = next(line for line in sch.mod.script().splitlines() if "C[vv] = C[vv] + A" in line)
    assert update.count("T.min(vv, 14)") == digits


def test_a_loop_without_iterations_leaves_no_choice_of_a_size():
    """The drawn tile was [0], which no replay of the trace accepted."""

    @T.prim_func
    def empty(A: T.Buffer((4,), "int32")):
        for i in range(0):
            with T.block("A"):
                vi = T.axis.spatial(4, i)
                A[vi] = A[vi] + 1

    sch = Schedule(empty, check=True)
    (i,) = sch.get_loops("A")
    sch.split(i, sch.sample_padded_tile(i, 2, 4, [0, 1], [0.5, 0.5]))
    check_transform(empty, sch)
