"""unblockize: the statements of a block in the place of the block, and what only a block holds."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.ir.visit import blocks_of
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def rows(A: T.Buffer((6, 8), "float32"), B: T.Buffer((6, 8), "float32")):
    for i in range(8):
        with T.block("row"):
            vi = T.axis.spatial(6, i - 1)
            T.where(1 <= i and i < 7)
            s = T.alloc_buffer((1,), "float32")
            s[0] = T.float32(0)
            for j in range(8):
                s[0] = s[0] + A[vi, j]
            for j in range(8):
                B[vi, j] = A[vi, j] / s[0]


@T.prim_func
def prefixes(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("prefix"):
            vi = T.axis.spatial(8, i)
            copy = T.alloc_buffer((vi + 1,), "int32")
            for j in range(vi + 1):
                copy[j] = A[j] * 2
            B[vi] = copy[vi // 2] + copy[0]


@T.prim_func
def blocks(A: T.Buffer((6, 8), "int32"), B: T.Buffer((6, 8), "int32")):
    for i in range(6):
        with T.block("outer"):
            vi = T.axis.spatial(6, i)
            for j in range(8):
                with T.block("B"):
                    vj = T.axis.spatial(8, j)
                    B[vi, vj] = A[vi, vj] + 1


@T.prim_func
def total(A: T.Buffer((8,), "int32"), B: T.Buffer((1,), "int32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.reduce(8, i)
            with T.init():
                B[0] = 0
            B[0] = B[0] + A[vi]


@T.prim_func
def view(A: T.Buffer((8, 4), "int32"), B: T.Buffer((8, 4), "int32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            row = T.match_buffer(B[vi, 0:4], (4,), "int32")
            for j in range(4):
                row[j] = A[vi, j]


def test_a_condition_and_memory_of_the_block_stay() -> None:
    sch = Schedule(rows)
    sch.unblockize("row")
    assert not sch.get_child_blocks("root")
    check_transform(rows, sch, "unblockize_rows")


def test_its_statements_get_blocks_of_their_own() -> None:
    sch = Schedule(prefixes)
    sch.unblockize("prefix")
    sch.enclose("root")
    assert len(sch.get_child_blocks("root")) == 2
    check_transform(prefixes, sch)


def test_blocks_inside_keep_their_handles() -> None:
    sch = Schedule(blocks)
    inner = sch.get_block("B")
    sch.unblockize("outer")
    assert sch.get(sch.get_loops(inner)[0]).extent == 6
    sch.fuse(*sch.get_loops(inner))
    check_transform(blocks, sch)


def test_the_inverse_of_blockize() -> None:
    sch = Schedule(blocks)
    sch.unblockize("outer")
    flat = sch.mod
    sch.blockize(sch.get_loops("B")[1])
    assert len(list(blocks_of(sch.mod["main"].body))) == 3
    sch.unblockize("B_o")
    assert_structural_equal(sch.mod, flat)
    check_transform(blocks, sch)


def test_memory_below_a_parallel_loop() -> None:
    sch = Schedule(rows)
    (loop,) = sch.get_loops("row")
    sch.parallel(loop)
    sch.unblockize("row")
    check_transform(rows, sch)


@pytest.mark.parametrize(
    ("func", "block", "reason", "message"),
    [
        (
            total,
            "B",
            "has-init",
            r"B has an init, which only a block can hold.*decompose_reduction",
        ),
        (view, "B", "has-views", r"B names regions by T.match_buffer: row.*the buffer itself"),
        (rows, "root", "is-root", "the root block cannot be transformed"),
    ],
)
def test_what_only_a_block_holds_is_refused(func, block, reason, message) -> None:
    sch = Schedule(func)
    check_refused(sch, lambda: sch.unblockize(block), reason, f"(?s){message}")


def test_annotations_are_not_lost() -> None:
    sch = Schedule(rows)
    sch.annotate(sch.get_block("row"), "note", 1)
    message = r"(?s)row has annotations, which would be lost: note.*unannotate"
    check_refused(sch, lambda: sch.unblockize("row"), "annotated-block", message)


def test_indices_over_other_loops_are_simplified() -> None:
    """A band below a skewed loop: its places are the loops themselves."""

    @T.prim_func
    def windows(X: T.Buffer((9,), "int32"), Y: T.Buffer((11,), "int32")):
        for i, k in T.grid(9, 3):
            with T.block("Y"):
                vi, vk = T.axis.remap("SS", [i, k])
                Y[vi + vk] = X[vi] + vk

    sch = Schedule(windows)
    i, k = sch.get_loops("Y")
    sch.skew(i, k, 1)
    sch.unblockize("Y")
    assert "Y[k_skewed] = X[i] + (k_skewed - i)" in sch.script()
    check_transform(windows, sch)


@pytest.mark.parametrize(
    ("condition", "printed"),
    [
        ("vi + vk >= 1", "if 1 <= k_skewed:"),
        ("vi + vk < 11", ""),
        ("vk < 2", "if k_skewed < i + 2:"),
    ],
)
def test_conditions_over_other_loops_are_simplified(condition: str, printed: str) -> None:
    func = parse(f"""
@T.prim_func
def windows(X: T.Buffer((9,), "int32"), Y: T.Buffer((11,), "int32")):
    for i, k in T.grid(9, 3):
        with T.block("Y"):
            vi, vk = T.axis.remap("SS", [i, k])
            if {condition}:
                Y[vi + vk] = X[vi] + vk
""")
    sch = Schedule(func)
    i, k = sch.get_loops("Y")
    sch.skew(i, k, 1)
    sch.unblockize("Y")
    assert printed in sch.script() and ("vi" not in sch.script())
    assert sch.script().count("if ") == (
        2 if printed else 1
    )  # the first belongs to the skewed loop
    check_transform(func, sch)
