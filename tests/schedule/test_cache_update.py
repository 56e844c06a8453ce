"""cache_update: a tile of updated elements in a buffer of its own; results and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

TEXT = """
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), B: T.Buffer({shape}, "int32"), N: T.Buffer((8,), "int32")):
    for i_0 in range(4):
        for k in range({span}):
            for i_1, j in T.grid(2, {columns}):
                with T.block("B"):
                    vi = T.axis.spatial({rows}, {row})
                    vj, vk = T.axis.remap("SR", [j, k])
                    {where}
                    {init}
                    B[{at}] = {value}
"""


def product(
    shape: str = "(8, 4)",
    span: str = "i_0 * 2 + 2, 8",
    columns: str = "4",
    row: str = "i_0 * 2 + i_1",
    rows: int = 8,
    where: str = "",
    init: str = "",
    at: str = "vi, vj",
    value: str = "B[vi, vj] + A[vk, vi] * B[vk, vj]",
) -> Schedule:
    text = TEXT.format(
        shape=shape,
        span=span,
        columns=columns,
        row=row,
        rows=rows,
        where=where,
        init=init,
        at=at,
        value=value,
    )
    return Schedule(parse(text), check=True)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"value": "A[vk, vj] - B[vi, vj] * B[vi, vj]", "span": "i_0"},
        {"value": "B[vi, vj] + B[vi, vj + 4]", "shape": "(8, 8)"},
        {"at": "vj * 2 + vi", "shape": "(14,)", "value": "B[vj * 2 + vi] + A[vk, vj]",
         "span": "8"},
        {"at": "vi * 4 + vj", "shape": "(32,)", "value": "B[vi * 4 + vj] + A[vk, vj]"},
        {"value": "T.if_then_else(vk > 3, B[vi, vj], A[vk, vi])"},
    ],
)  # fmt: skip
def test_a_tile_is_updated_in_a_copy(change):
    sch = product(**change)
    before = sch.mod["main"]
    copy_in, copy_back = sch.cache_update(sch.get_loops("B")[1], "local")
    names = [sch.get(block).name for block in (copy_in, copy_back)]
    assert names == ["B_local", "B_local_back"]
    cache = sch.get(copy_in).writes[0].buffer
    assert sch.get(sch.get_block("B")).writes[0].buffer is cache
    for block in ("B", *names):
        sch.vectorize(sch.get_loops(block)[-1])
    check_transform(before, sch)


TRIANGLE = """
@T.prim_func
def f(A: T.Buffer((8, 6), "int32"), B: T.Buffer((8, 9), "int32")):
    for i in range(8):
        for j in range({first}, {end}):
            with T.block("scale"):
                vi = T.axis.spatial(8, i)
                vj = T.axis.spatial(8, j)
                B[vi, vj + 1] = B[vi, vj + 1] * 3
    for i in range(8):
        for k in range(6):
            for j in range({first}, {end}):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    vk = T.axis.opaque(6, k)
                    vj = T.axis.spatial(8, j)
                    B[vi, vj + 1] = B[vi, vj + 1] - A[vi, vk] * A[vj, vk]
"""


@pytest.mark.parametrize(("first", "end"), [("0", "i + 1"), ("i", "8"), ("i // 2", "i + 1")])
@pytest.mark.parametrize("offset", ["", " + 1"])
def test_a_part_of_a_box_is_copied_back_alone(first, end, offset):
    before = parse(TRIANGLE.format(first=first, end=end).replace(" + 1]", f"{offset}]"))
    sch = Schedule(before)
    copies = sch.cache_update(sch.get_loops("B")[0], "global")
    if not offset:  # the square may be computed
        sch.overcompute_box("B")
        sch.reorder(*(sch.get_loops("B")[n] for n in (2, 1)))
        sch.parallel(sch.get_loops("B")[0])
    for block in copies:
        sch.vectorize(sch.get_loops(block)[-1])
    check_transform(before, sch)


def test_a_tile_below_parallel_columns():
    sch = product()
    before = sch.mod["main"]
    i_0, k, i_1, j = sch.get_loops("B")
    sch.reorder(j, i_0, k, i_1)
    sch.parallel(j)
    sch.cache_update(k, "local")
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"where": "T.where(j < 3)"}, "has-predicate", "B has a predicate"),
        ({"init": "with T.init(): B[vi, vj] = 0"}, "has-init", "B has an init"),
        ({"value": "A[vk, vi] * B[vk, vj]"}, "no-update", "is no store to an element that"),
        ({"columns": "k", "shape": "(8, 8)"}, "no-box", "fill no box of one size"),
        ({"columns": "i_0 + 1"}, "no-box", "fill no box of one size"),
        ({"at": "vi, vi", "shape": "(8, 8)", "value": "B[vi, vi] + 1"}, "no-box", "fill no box"),
        ({"at": "vi, N[vj]", "value": "B[vi, N[vj]] + 1"}, "no-box", "fill no box"),
        ({"at": "vi, vj * 2", "shape": "(8, 8)", "value": "B[vi, vj * 2] + 1"}, "no-box", "no box"),
        (
            {"row": "i_0 * 3 + i_1", "rows": 11, "span": "i_0 - 3"},
            "leaves-buffer",
            "stay in the buffer where no",
        ),
        ({"span": "i_0 * 2 + 1, 8"}, "reads-results", r"reads B\[vk, vj\], perhaps an element"),
    ],
)
def test_refusals(change, reason, message):
    sch = product(**change)
    loop = sch.get_loops("B")[1]
    check_refused(sch, lambda: sch.cache_update(loop, "local"), reason, message)


def test_a_strided_buffer_and_a_loop_with_two_blocks_are_refused():
    sch = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((4, 4), "int32"), b: T.handle):
    B = T.match_buffer(b, (4, 4), "int32", strides=(8, 1))
    for k in range(4):
        for i in range(4):
            with T.block("B"):
                B[i, 0] = B[i, 0] + A[i, k]
    for k in range(4):
        with T.block("C"):
            A[0, 0] = A[0, 0] + k
        with T.block("D"):
            A[1, 0] = A[1, 0] + k
""")
    )
    loop = sch.get_loops("B")[0]
    check_refused(sch, lambda: sch.cache_update(loop, "local"), "strided", "B has strides")
    loop = sch.get_loops("C")[0]
    message = "below k there is more than loops around one block"
    check_refused(sch, lambda: sch.cache_update(loop, "local"), "not-a-chain", message)


def test_extents_that_are_known_at_run_time():
    text = """
@T.prim_func
def f(a: T.handle, b: T.handle):
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (n, m), "int32")
    B = T.match_buffer(b, (n,), "int32")
    for i, k in T.grid(n, m):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            B[vi] = B[vi] + A[vi, vk]
"""
    func = parse(text)
    sch = Schedule(func, check=True)
    sch.cache_update(sch.get_loops("B")[0], "global")
    check_transform(func, sch)


TESTED = """
@T.prim_func
def f(A: T.Buffer((6, 8, 4), "int32"), B: T.Buffer((6, 8), "int32")):
    for i, j, k in T.grid(6, 8, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            vk = T.axis.opaque(4, k)
            if A[vi, vj, vk] > 0:
                if {}:
                    B[vi, vj] = B[vi, vj] * 3 + A[vi, vj, vk]
                {}
"""


@pytest.mark.parametrize("condition", ["vi + vj < 9", "B[vi, vj] < vk * 5"])
def test_an_update_under_a_test(condition):
    func = parse(TESTED.format(condition, ""))
    sch = Schedule(func, check=True)
    sch.cache_update(sch.get_loops("B")[1], "local")
    assert "B_local[vi, vj] * 3" in sch.mod.script()
    check_transform(func, sch)


def test_an_update_with_another_branch_is_refused():
    sch = Schedule(parse(TESTED.format("vi < 3", "else: B[vi, vj] = 0")))
    loop = sch.get_loops("B")[1]
    check_refused(sch, lambda: sch.cache_update(loop, "local"), "no-update", "is no store to an")


WINDOWS = """
@T.prim_func
def f(A: T.Buffer((6,), "int32"), B: T.Buffer((11,), "int32")):
    for i, j, k in T.grid(6, 2, 3):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            vk = T.axis.opaque(3, k)
            if 2 * vi + vj - 1 >= 0{}:
                B[2 * vi + vj - 1] = B[2 * vi + vj - 1] * 3 + A[vi] + vk
"""


def test_a_copy_of_places_that_a_condition_keeps_inside_the_buffer():
    func = parse(WINDOWS.format(""))
    sch = Schedule(func, check=True)
    sch.cache_update(sch.get_loops("B")[0], "local")
    assert "B_local = T.alloc_buffer((11,)" in sch.mod.script()
    check_transform(func, sch)


BOTH_SIDES = """
@T.prim_func
def f(A: T.Buffer((6,), "int32"), B: T.Buffer((4, 10), "int32")):
    for r, i, j, k in T.grid(4, 6, 2, 3):
        with T.block("B"):
            vr, vi, vj = T.axis.remap("SSS", [r, i, j])
            vk = T.axis.opaque(3, k)
            if {}:
                B[vr, 2 * vi + vj - 1] = B[vr, 2 * vi + vj - 1] * 3 + A[{}] + vk
"""


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("1 <= vj + vi * 2 and 2 * vi + vj < 11", None),
        ("1 <= vj + vi * 2 and 2 * vi + vj < 11 and A[vi] > 4", "if A[vi] > 4:"),
        ("2 * vi + vj >= 1 and vi < 5", "if vi < 5:"),
        ("2 * vi + vj >= 1 and (vj < 1 or vi != 5)", "if vj < 1 or vi != 5:"),
    ],
)
@pytest.mark.parametrize("level", [0, 1])
def test_a_copy_beyond_the_buffer(condition, left, level):
    func = parse(BOTH_SIDES.format(condition, "vi"))
    sch = Schedule(func, check=True)
    made = sch.cache_update(sch.get_loops("B")[level], "global", beyond=True)
    assert "B_global = T.alloc_buffer((4, 12)" in sch.script()
    body = sch.script()
    update = body[body.index('block("B")') : body.index('block("B_global_back")')]
    assert (left is None) == ("if " not in update) and (left or "B_global[") in update
    for copy in made:
        sch.parallel(sch.get_loops(copy)[0])
    check_transform(func, sch)


def test_a_copy_of_a_part_of_the_buffer_holds_the_part_alone():
    text = BOTH_SIDES.replace("(4, 10)", "(4, 40)").replace("vj - 1]", "vj + 7]")
    func = parse(text.format("vi < 5", "vi"))
    sch = Schedule(func, check=True)
    sch.cache_update(sch.get_loops("B")[0], "global", beyond=True)
    assert "B_global = T.alloc_buffer((4, 12)" in sch.script()
    check_transform(func, sch)


def test_a_condition_that_keeps_reads_inside_stays():
    condition = "1 <= vj + vi * 2 and 2 * vi + vj < 11"
    sch = Schedule(parse(BOTH_SIDES.format(condition, "(2 * vi + vj - 1) * 2 // 4")))
    loop = sch.get_loops("B")[0]
    message = r"(?s)B may leave A at .*without `beyond`, the conditions stay"
    step = lambda: sch.cache_update(loop, "global", beyond=True)  # noqa: E731
    check_refused(sch, step, "leaves-buffer", message)
