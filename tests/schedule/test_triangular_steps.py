"""cut_loop, right_looking, fission in groups, reorder in triangles: results and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.describe import show_expr
from metasched.schedule.schedule import Schedule
from metasched.script import parse

FACTOR = """
@T.prim_func
def factor(A: T.Buffer((12, 12), "int32")):
    for i in range(12):
        for j in range({start}i):
            for k in range({low}{end}):
                with T.block("update"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    A[vi, vj] -= A[vi, {read}] * A[vk, vj]
            with T.block("finish"):
                A[i, j] = A[i, j] * 3 + A[j, j]{late}
        for j in range(i, 12):
            for k in range(i):
                with T.block("upper"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    A[vi, vj] -= A[vi, vk] * A[vk, vj]
"""


def factor(
    start: str = "", low: str = "", end: str = "j", read: str = "vk", late: str = ""
) -> Schedule:
    text = FACTOR.format(start=start, low=low, end=end, read=read, late=late)
    return Schedule(parse(text))


def test_a_triangular_solve_gives_its_values_at_once():
    sch = factor()
    before = sch.func
    outer, later = sch.right_looking(sch.get_loops("update")[1])
    assert sch.get(sch.get_loops("finish")[-1]) is sch.get(outer)
    assert sch.get(sch.get_loops("update")[-1]) is sch.get(later)
    names = [child.block.name for child in sch.state.scope(sch.state.loop(outer)).realizes]
    assert names.index("finish") < names.index("update")
    check_transform(before, sch)


def started(first: str, dtype: str = "int32") -> Schedule:
    """A program with a block before the updates of an element."""
    loop = "            for k in range({low}{end})"
    block = f'            with T.block("first"):\n                {first}\n'
    text = FACTOR.replace(loop, block + loop, 1).replace("int32", dtype)
    return Schedule(parse(text.format(start="", low="", end="j", read="vk", late="")))


@pytest.mark.parametrize("first", ["A[i, j] -= i", "A[i, j] = A[i, j] - A[j, j]", "A[11, 11] = 3"])
def test_statements_before_the_updates_may_commute_with_them(first):
    sch = started(first)
    before = sch.func
    outer, _ = sch.right_looking(sch.get_loops("update")[1])
    children = sch.state.scope(sch.state.loop(outer)).under(sch.state.loop(outer))
    assert [c.block.name for c in children] == ["first", "finish", "update"]
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("first", "dtype"),
    [
        ("A[i, j] += 1", "int32"),
        ("A[i, j] = 1 - A[i, j]", "int32"),
        ("A[i, j] = 7", "int32"),
        ("A[i, j] -= A[i, j] * 2", "int32"),
        ("A[i, i] -= A[i, j]", "int32"),
        ("A[i, j] -= A[0, 0]", "float32"),
    ],
)
def test_statements_before_the_updates_that_do_not_commute(first, dtype):
    sch = started(first, dtype)
    loop = sch.get_loops("update")[1]
    message = "their order would change"
    check_refused(sch, lambda: sch.right_looking(loop), "order-changed", message)


@pytest.mark.parametrize(
    ("case", "reason", "message"),
    [
        ({"end": "j - 1", "start": "1, "}, "no-updates", "holds no loop over all"),
        ({"low": "1, "}, "no-updates", "holds no loop over all earlier iterations"),
        ({"read": "vk + 1"}, "order-changed", "their order would change"),
        ({"late": " + A[i, 0]"}, "order-changed", "block finish"),
    ],
)
def test_what_cannot_give_its_values_at_once(case, reason, message):
    sch = factor(**case)
    loop = sch.get_loops("update")[1]
    if case == {"late": " + A[i, 0]"}:  # reads a value that is final: legal
        sch.right_looking(loop)
        check_transform(factor(**case).func, sch)
        return
    check_refused(sch, lambda: sch.right_looking(loop), reason, message)


def test_an_update_with_an_init_keeps_its_form():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((6, 6), "int32"), B: T.Buffer((6,), "int32")):
    for j in range(6):
        for k in range(j):
            with T.block("sum"):
                vj, vk = T.axis.remap("SR", [j, k])
                with T.init():
                    B[vj] = 0
                B[vj] += A[vj, vk]
        with T.block("last"):
            A[j, j] = 1
""")
    )
    j, k = sch.get_loops("sum")
    check_refused(sch, lambda: sch.right_looking(j), "has-init", "block sum has an init")
    check_refused(sch, lambda: sch.cut_loop(k, j), "has-init", "repeat the init of block sum")


def test_a_statement_outside_of_blocks_keeps_its_place():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((6, 6), "int32"), B: T.Buffer((6,), "int32")):
    for j in range(6):
        for k in range(j):
            with T.block("sum"):
                B[j] += A[j, k]
        A[j, j] = 1
""")
    )
    loop = sch.get_loops("sum")[0]
    message = "the loop j holds more than loops and blocks"
    check_refused(sch, lambda: sch.right_looking(loop), "not-structured", message)


def test_rows_in_blocks():
    """The steps by finished rows run in parallel; the triangle of the block stays in order."""
    sch = factor()
    before = sch.func
    i = sch.get_loops("update")[0]
    gives, _ = sch.right_looking(sch.get_loops("update")[1])
    _, j, k = sch.get_loops("upper")
    sch.reorder(k, j)
    k = sch.merge(gives, k)
    _, inside = sch.split(i, [None, 4])
    first, second = sch.cut_loop(k, inside)
    ends = [show_expr(sch.get(part).extent) for part in (first, second)]
    assert ends == ["i_0 * 4", "i_1"]
    apart, _ = sch.fission(inside)
    sch.parallel(apart)
    check_transform(before, sch)


NESTS = """
@T.prim_func
def main(A: T.Buffer((12, 12), "int32"), B: T.Buffer((40,), "int32")):
    for i, j in T.grid(4, 4):
        for k in range({ends}):
            with T.block("B"):
                vk = T.axis.opaque(40, k)
                B[vk] = B[vk] * 3 + i - j
"""


def test_a_loop_is_cut_where_the_loop_around_it_starts():
    sch = Schedule(parse(NESTS.format(ends="i * 4 + j")))
    before = sch.func
    _, j, k = sch.get_loops("B")
    sch.cut_loop(k, j)
    assert sch.get(sch.get_block("B_cut")).name == "B_cut"
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("ends", "around", "reason", "message"),
    [
        ("i * 4", 1, "empty-part", "one part of k would always be empty"),
        ("j", 1, "empty-part", "one part of k would always be empty"),
        ("10 - j", 1, "no-common-part", "every iteration of j runs the same iterations of k"),
        ("5, i * 4 + j + 1", 1, "no-common-part", r"up to i \* 4 \+ 1 or from i \* 4 \+ 1 on"),
        ("12 - j, 14 - j", 1, "no-common-part", "up to 14 or from 9 on"),
        ("i * 4 + j", 2, "not-around", "the loop k does not stand around k"),
    ],
)
def test_a_loop_that_has_no_common_part(ends, around, reason, message):
    sch = Schedule(parse(NESTS.format(ends=ends)))
    loops = sch.get_loops("B")
    check_refused(sch, lambda: sch.cut_loop(loops[2], loops[around]), reason, message)


def test_a_loop_is_cut_where_the_last_iteration_of_the_loop_around_it_starts():
    sch = Schedule(parse(NESTS.format(ends="i * 4 + j, 20")))
    before = sch.func
    _, j, k = sch.get_loops("B")
    parts = sch.cut_loop(k, j)
    starts = [show_expr(sch.get(part).min) for part in parts]
    assert starts == ["i * 4 + j", "i * 4 + 3"]
    check_transform(before, sch)


def test_a_loop_is_cut_after_a_number_of_iterations():
    sch = Schedule(parse(NESTS.format(ends="i + 2, i + 9")))
    before = sch.func
    count = sch.sample_categorical([4], [1.0])
    loop = sch.get_loops("B")[2]
    first, second = sch.cut_loop(loop, count + 1)
    assert [sch.get(part).extent.value for part in (first, second)] == [5, 2]
    check_transform(before, sch)
    sch = Schedule(before)
    loop = sch.get_loops("B")[2]
    for wrong in (-8, 8):
        message = "the loop k is not proved to have"
        check_refused(sch, lambda n=wrong: sch.cut_loop(loop, n), "bad-count", message)
    for empty in (0, 7):
        message = "one part of k would always be empty"
        check_refused(sch, lambda n=empty: sch.cut_loop(loop, n), "empty-part", message)


def test_a_loop_is_cut_before_its_last_iterations():
    sch = Schedule(parse(NESTS.format(ends="i, i * 2 + 3")))
    before = sch.func
    loop = sch.get_loops("B")[2]
    message = "the loop k is not proved to have -4 iterations"
    check_refused(sch, lambda: sch.cut_loop(loop, -4), "bad-count", message)
    first, second = sch.cut_loop(loop, -2)
    assert [show_expr(sch.get(part).extent) for part in (first, second)] == ["i + 1", "2"]
    check_transform(before, sch)


JOINED = """
@T.prim_func
def main(A: T.Buffer((9,), "int32"), C: T.Buffer((9, 3), "int32")):
    for i in range(9):
        for j, l in T.grid(i, 3):
            with T.block("first"):
                C[j, l] = C[j, l] * 2 + A[i]
        for j, l in T.grid({start}, {depth}):
            with T.block("second"):
                C[j, l] = C[j, l] * 2 + {value}
        for j in range(3):
            with T.block("third"):
                A[j] = A[j] + 1
"""


def joined(start: str = "(i, 9)", depth: str = "3", value: str = "A[i]") -> Schedule:
    return Schedule(parse(JOINED.format(start=start, depth=depth, value=value)))


def test_loops_that_run_the_same_steps_become_one():
    sch = joined()
    before = sch.func
    loop = sch.join_loops(sch.get_loops("first")[1], sch.get_loops("second")[1])
    assert sch.get(loop) is sch.get(sch.get_loops("first")[1])
    assert show_expr(sch.get(loop).extent) == "9"
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("change", "others", "reason", "message"),
    [
        ({"start": "(i + 1, 9)"}, ("first", "second"), "not-adjacent", "begin where j ends"),
        ({"depth": "2"}, ("first", "second"), "not-equal", "do not run the same steps"),
        ({"value": "A[j]"}, ("first", "second"), "not-equal", "do not run the same steps"),
        ({}, ("second", "third"), "not-adjacent", "begin where j ends"),
        ({}, ("first", "third"), "not-siblings", "does not directly follow j"),
    ],
)
def test_loops_that_stay_two(change, others, reason, message):
    sch = joined(**change)
    loops = [sch.get_loops(name)[1] for name in others]
    check_refused(sch, lambda: sch.join_loops(*loops), reason, message)


def test_a_triangle_without_completions_changes_its_loops():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((9, 9), "int32"), C: T.Buffer((9,), "int32")):
    for i in range(9):
        for k in range(i):
            with T.block("add"):
                vk, vi = T.axis.remap("SR", [k, i])
                C[vk] = C[vk] * 2 + A[vi, vk]
""")
    )
    before = sch.func
    outer, later = sch.right_looking(sch.get_loops("add")[0])
    assert [show_expr(sch.get(later).min), sch.get(outer).extent.value] == ["i + 1", 9]
    check_transform(before, sch)


def test_a_block_with_buffers_of_its_own_is_not_copied():
    text = NESTS.format(ends="i * 4 + j").replace(
        "                B[vk] = B", '                t = T.alloc_buffer((1,), "int32")\n'
        "                t[0] = 1\n                B[vk] = B",
    )  # fmt: skip
    sch = Schedule(parse(text))
    _, j, k = sch.get_loops("B")
    check_refused(sch, lambda: sch.cut_loop(k, j), "own-buffers", "B has buffers of its own")


SCALED = """
@T.prim_func
def main(A: T.Buffer((9, 9), "int32"), C: T.Buffer((9,), "int32")):
    for i in range(9):
        for k in range(i{more}):
            with T.block("add"):
                vk, vi = T.axis.remap("SR", [k, i])
                C[vk] += A[vi, vk]
        with T.block("scale"):
            vi = T.axis.spatial(9, i)
            C[vi] *= 3
"""


def test_statements_change_places_where_the_second_comes_first():
    sch = Schedule(parse(SCALED.format(more="")))
    before = sch.func
    loop = sch.get_loops("add")[0]
    check_refused(sch, lambda: sch.fission(loop), "backward-dependence", "in a later iteration")
    sch.fission(loop, [[1], [0]])
    check_transform(before, sch)


def test_statements_of_one_iteration_do_not_change_places():
    sch = Schedule(parse(SCALED.format(more=" + 1")))
    loop = sch.get_loops("add")[0]
    check_refused(
        sch,
        lambda: sch.fission(loop, [[1], [0]]),
        "backward-dependence",
        "in the same or a later iteration",
    )


def test_groups_stay_together():
    sch = factor()
    before = sch.func
    loop = sch.get_loops("update")[0]
    twice, none = [[0], [0]], [[0, 1], []]
    check_refused(sch, lambda: sch.fission(loop, twice), "no-partition", "each of the 2")
    check_refused(sch, lambda: sch.fission(loop, none), "no-partition", "each of the 2")
    assert len(sch.fission(loop, [[1, 0]])) == 1
    check_transform(before, sch)


def test_loops_of_a_rectangle_below_a_triangle_are_exchanged():
    sch = factor()
    before = sch.func
    _, j, k = sch.get_loops("upper")
    sch.reorder(k, j)
    check_transform(before, sch)
