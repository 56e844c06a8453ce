"""compute_inline of a block whose results another block overwrites, and where this is refused."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

TWO_NESTS = """
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32"), D: T.Buffer((8, 8), "int32")):
    for i, j in T.grid(8, 8):
        with T.block("user_before"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = {before}
        with T.block("first"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {first}
    for i, j in T.grid(8, 8):
        with T.block("second"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[{second}] = C[{second}] + 1
        with T.block("user_after"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = {after}
"""
ONE_NEST = """
@T.prim_func
def f(C: T.Buffer((8, 8), "int32")):
    for i in range(8):
        for j in range(8):
            with T.block("first"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C[vi, vj] * 2
        for j in range(8):
            with T.block("second"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[{second}] = C[{second}] + 1
"""
IN_INIT = """
@T.prim_func
def f(A: T.Buffer((9,), "int32"), C: T.Buffer((10,), "int32")):
    for k in range(9):
        with T.block("outer"):
            vk = T.axis.reduce(9, k)
            T.reads(A[vk], C[0:10])
            T.writes(C[0:10])
            with T.init():
                for i in range(10):
                    with T.block("first"):
                        vi = T.axis.spatial(10, i)
                        C[vi] = 0
            for i in range(10):
                with T.block("second"):
                    vi = T.axis.spatial(10, i)
                    C[vi] = C[vi] + A[vk]
"""

ONE_BLOCK = """
@T.prim_func
def f(A: T.Buffer((8,), "int32")):
    L = T.alloc_buffer((8,), "int32")
    for i in range(8):
        L[i] = A[i]
"""


def two_nests(before: str = "0", first: str = "C[vi, vj] * 2", second: str = "vi, vj",
              after: str = "0") -> str:  # fmt: skip
    return TWO_NESTS.format(before=before, first=first, second=second, after=after)


@pytest.mark.parametrize(
    "text",
    [
        two_nests(),
        two_nests(second="vj, vi"),
        two_nests(first="A[vj, vi] * 2"),
        ONE_NEST.format(second="vi, vj"),
    ],
)
def test_the_value_moves_into_the_block_that_overwrites_it(text: str) -> None:
    func = parse(text)
    sch = Schedule(func)
    sch.compute_inline("first")
    check_transform(func, sch)


@pytest.mark.parametrize(
    "text",
    [
        two_nests(before="C[T.min(vi + 1, 7), vj]"),  # reads what the other block will overwrite
        two_nests(after="C[T.min(vi + 1, 7), vj]"),  # reads between the two blocks
        two_nests(first="D[vi, T.max(vj - 1, 0)]"),  # D changes between the two blocks
        two_nests(second="vi, vi"),  # overwrites the diagonal alone
        ONE_NEST.format(second="vj, vi"),  # overwrites half of the elements first
    ],
)
def test_uses_between_the_two_blocks_are_refused(text: str) -> None:
    sch = Schedule(parse(text))
    check_refused(sch, lambda: sch.compute_inline("first"), "write-after-read", "overwrites")


def test_an_init_is_not_overwritten_in_its_own_iteration() -> None:
    sch = Schedule(parse(IN_INIT))
    message = "the block first writes an output"
    check_refused(sch, lambda: sch.compute_inline("first"), "output-block", message)


def test_the_only_block_is_not_inlined() -> None:
    sch = Schedule(parse(ONE_BLOCK))
    (made,) = sch.enclose("root")
    message = "L is the only block of root, so nothing would be left"
    check_refused(sch, lambda: sch.compute_inline(made), "only-block", message)


@pytest.mark.parametrize("index", [-1, -2])
def test_a_block_moves_before_the_block_that_overwrites_its_result(index):
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((1,), "int32"), C: T.Buffer((1,), "int32")):
    B = T.alloc_buffer((1,), "int32")
    for i in range(1):
        with T.block("first"):
            vi = T.axis.spatial(1, i)
            B[vi] = 0
    for i in range(1):
        with T.block("second"):
            vi = T.axis.spatial(1, i)
            B[vi] = A[vi]
    for i in range(1):
        with T.block("C"):
            vi = T.axis.spatial(1, i)
            C[vi] = B[vi]
""")
    )
    before, (loop,) = sch.func, sch.get_loops("second")
    sch.compute_at("first", loop, index=index)
    check_transform(before, sch)
    assert sch.script().index('"first"') < sch.script().index('"second"')


def test_a_scalar_per_iteration_starts_in_the_block_that_combines_it() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((4, 8), "int32"), B: T.Buffer((4,), "int32")):
    m = T.alloc_buffer((4, 1), "int32")
    s = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("start"):
            vi = T.axis.spatial(4, i)
            m[vi, 0] = -100
    for i, k in T.grid(4, 8):
        with T.block("largest"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.min_value("int32")
            s[vi] = T.max(s[vi], A[vi, vk])
    for i in range(4):
        with T.block("combine"):
            vi = T.axis.spatial(4, i)
            m[vi, 0] = T.max(m[vi, 0], s[vi])
    for i in range(4):
        with T.block("result"):
            vi = T.axis.spatial(4, i)
            B[vi] = m[vi, 0] * 2
""")
    sch = Schedule(func)
    sch.compute_inline("start")
    sch.compute_inline("combine")
    assert "m = " not in sch.mod.script()
    check_transform(func, sch)


def test_another_element_of_the_same_row_is_not_overwritten() -> None:
    sch = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((4,), "int32"), B: T.Buffer((4, 2), "int32")):
    for i in range(4):
        with T.block("first"):
            vi = T.axis.spatial(4, i)
            B[vi, 0] = A[vi]
    for i in range(4):
        with T.block("second"):
            vi = T.axis.spatial(4, i)
            B[vi, 1] = B[vi, 1] + A[vi]
""")
    )
    with pytest.raises(Exception, match=r"compute_inline"):
        sch.compute_inline("first")
    assert "first" in sch.mod.script()


COPIED = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32"), D: T.Buffer((10,), "int32")):
    for i in range({many}):
        with T.block("first"):
            vi = T.axis.spatial({many}, i)
            C[vi] = A[vi] * 2
    for i in range(10):
        with T.block("there"):
            vi = T.axis.spatial(10, i)
            D[vi] = T.if_then_else({holds}, C[vi - 1] + C[7 - (vi - 1)], 5)
    for i in range(10):
        with T.block("back"):
            vi = T.axis.spatial(10, i)
            if {kept}:
                C[{to}] = D[vi] + 1
"""


def copied(many: str = "8", holds: str = "1 <= vi and vi < 9", kept: str = "1 <= vi and vi < 9",
           to: str = "vi - 1") -> str:  # fmt: skip
    return COPIED.format(many=many, holds=holds, kept=kept, to=to)


@pytest.mark.parametrize("kept", ["1 <= vi and vi < 9", "vi - 1 >= 0 and vi - 1 <= 7"])
def test_a_reader_in_loops_of_its_own_may_load_any_element(kept: str) -> None:
    func = parse(copied(kept=kept))
    sch = Schedule(func)
    sch.compute_inline("first")
    assert "C[vi - 1] +" not in sch.script() and "A[7 - (vi - 1)]" in sch.script()
    check_transform(func, sch)


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        (copied(many="7"), "region-cover", "block there reads C.* not proved to be written before"),
        (copied(kept="1 <= vi and vi < 8"), "output-block", "the block first writes an output"),
        (copied(kept="1 <= vi and vi < 9 and A[0] > 0"), "output-block", "first writes an output"),
        (copied(to="8 - vi"), "output-block", "first writes an output"),
        (copied().replace("D[vi] + 1", "C[8 - vi]"), "output-block", "first writes an output"),
    ],
)  # fmt: skip
def test_other_readers_and_conditions_are_refused(text: str, reason: str, message: str) -> None:
    sch = Schedule(parse(text))
    check_refused(sch, lambda: sch.compute_inline("first"), reason, message)


def test_a_choice_between_equal_values_is_the_value() -> None:
    func = parse(
        copied().replace("A[vi] * 2", "5").replace("C[vi - 1] + C[7 - (vi - 1)]", "C[vi - 1]")
    )
    sch = Schedule(func)
    sch.compute_inline("first")
    assert "D[vi] = 5" in sch.script()
    check_transform(func, sch)
