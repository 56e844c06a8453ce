"""decompose_reduction: other blocks that use the results, and inits that run more than once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T

SUM = """
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [{i}, k])
            {where}
            with T.init():
                C[{at}] = 0
            C[{at}] = C[{at}] + A[vi, vk]
"""
OTHER = """
        with T.block("D"):
            vi, vk = T.axis.remap("SS", [{i}, k])
            {where}
            {body}
"""
HEAD = """
@T.prim_func
def f(A: T.Buffer((5, 4), "int32"), C: T.Buffer((5,), "int32"), D: T.Buffer((5, 4), "int32")):
    for {loops} in T.grid({extents}):
"""


def program(
    *blocks: str, at: str = "vi", body: str = "D[vi, vk] = C[vi]", loops: str = "ik",
    wheres: tuple[str, str] = ("pass", "pass"),
) -> str:  # fmt: skip
    """The blocks C and D, in the order of their names, in one nest."""
    extents = ", ".join({"i": "5", "k": "4"}[name] for name in loops)
    text = HEAD.format(loops=", ".join(loops), extents=extents)
    for name in blocks:
        form, where = (SUM, wheres[0]) if name == "C" else (OTHER, wheres[1])
        text += form.format(i="i", at=at, body=body, where=where).replace(
            "            pass\n", "", 1
        )
    return text


def arrays() -> list[np.ndarray]:
    a = np.arange(20, dtype=np.int32).reshape(5, 4)
    return [a, np.arange(5, dtype=np.int32) + 100, np.zeros((5, 4), np.int32)]


def assert_same(func: object, changed: object) -> None:
    mine, theirs = arrays(), arrays()
    run(func, *mine)  # type: ignore[arg-type]
    run(changed, *theirs)  # type: ignore[arg-type]
    for x, y in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("text", "position", "reason", "message"),
    [
        (program("D", "C"), 1, "used-early", r"reads C\[vi\] below k, perhaps before the init"),
        (program("C", "D", body="C[4 - vi] = vk"), 0, "used-early", r"writes C\[4 - vi\] below i"),
        (program("C", "D", body="D[vi, vk] = C[4 - vi]"), 0, "used-early", "D reads"),
        (program("C", "D", loops="ki", wheres=("T.where(i < 3)", "pass")), 0, "used-early", "D"),
        (program("C", at="0"), 0, "set-again", "C may set an element of C again for .* vi"),
        (program("C", at="vi // 2"), 0, "set-again", "again for another value of vi"),
        (program("C", at="vi // 2", loops="ki"), 0, "set-again", "again for another value of vi"),
    ],
)  # fmt: skip
def test_a_result_that_is_used_before_its_init_or_set_again(
    text: str, position: int, reason: str, message: str
) -> None:
    sch = Schedule(parse(text))
    loop = sch.get_loops("C")[position]
    check_refused(sch, lambda: sch.decompose_reduction("C", loop), reason, message)


def test_a_store_outside_of_blocks_below_the_loop() -> None:
    text = program("C") + "        C[i] = 0\n"
    sch = Schedule(parse(text))
    k = sch.get_loops("C")[1]
    check_refused(
        sch,
        lambda: sch.decompose_reduction("C", k),
        "outside-blocks",
        "outside of any block, uses C",
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (program("C", "D"), 0),  # the running sum of the same iteration
        (program("C", "D"), 1),
        (program("C", "D", wheres=("T.where(i < 3)", "T.where(i < 3)")), 0),
        (program("C", "D", body="C[vi] = C[vi] + 1"), 0),
        (program("D", "C", body="D[vi, vk] = C[(vi + 1) % 5]"), 1),
        (program("C", at="0"), 1),
        (program("C", at="4 - vi"), 0),
    ],
)  # fmt: skip
def test_blocks_that_use_results_after_the_init_are_accepted(text: str, position: int) -> None:
    func = parse(text)
    sch = Schedule(func)
    sch.decompose_reduction("C", sch.get_loops("C")[position])
    assert_same(func, sch.mod)
    check_transform(func, sch)


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from([("C", "D"), ("D", "C"), ("C",)]),
    loops=st.sampled_from(["ik", "ki"]),
    at=st.sampled_from(["vi", "vi", "0", "vi // 2", "4 - vi", "(vi + 2) % 5"]),
    target=st.sampled_from(["D[vi, vk] = {}", "C[{i}] = {} + 1"]),
    index=st.sampled_from(["vi", "0", "vi // 2", "4 - vi", "(vi + 2) % 5", "vk", "(vi + 1) % 5"]),
    wheres=st.sampled_from(
        [
            ("pass", "pass"), ("T.where(i < 3)", "pass"), ("pass", "T.where(k < 2)"),
            ("T.where(k * 5 + i < 17)", "pass"), ("T.where(i + k < 4)", "pass"),
            ("T.where(k * 5 + i < 17 and i < 4)", "T.where(i + k < 5)"),
        ]
    ),
    position=st.integers(0, 1),
)  # fmt: skip
def test_random_neighbours(order, loops, at, target, index, wheres, position) -> None:  # type: ignore[no-untyped-def]
    """Each accepted step keeps the results of the unscheduled program."""
    body = target.format(f"C[{index}]" if target.startswith("D") else "vk", i=index)
    func = parse(program(*order, at=at, body=body, loops=loops, wheres=wheres))
    sch = Schedule(func)
    try:
        sch.decompose_reduction("C", sch.get_loops("C")[position])
    except ScheduleError:
        return
    assert_same(func, sch.mod)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("length", [37, 9])
def test_partial_results_of_unequal_length(length: int, position: int) -> None:
    """A factor of a split that does not divide leaves some partial results one term less."""
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((3, {length}), "int32"), C: T.Buffer((3,), "int32"), D: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, {length}):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
                D[vi] = 1
            C[vi] = C[vi] + A[vi, vk]
            D[vi] = D[vi] * A[vi, vk]
""")
    sch = Schedule(func)
    sch.rfactor(sch.split(sch.get_loops("C")[1], [None, 8])[1], 0)
    i, chunk, lane = sch.get_loops("C_rf")
    sch.reorder(*[(i, chunk, lane), (chunk, i, lane), (chunk, lane, i)][position])
    sch.decompose_reduction("C_rf", chunk)
    check_transform(func, sch)


def test_rfactor_of_a_result_that_is_set_again() -> None:
    sch = Schedule(parse(program("C", at="0", loops="ki")))
    k = sch.get_loops("C")[0]
    check_refused(sch, lambda: sch.rfactor(k, 0), "set-again", "of C again")
    func = parse(program("C", at="0"))
    sch = Schedule(func)
    sch.rfactor(sch.get_loops("C")[1], 0)
    assert_same(func, sch.mod)


TRIANGLE = """
@T.prim_func
def f(A: T.Buffer((9, 7), "float32"), R: T.Buffer((9, 9), "float32")):
    for k in range(9):
        with T.block("diagonal"):
            R[k, k] = A[k, 0]
        for j0 in range((12 - k) // 4):
            for i in range(7):
                for j1 in T.vectorized(4):
                    with T.block("R"):
                        vk = T.axis.spatial(9, k)
                        vj = T.axis.spatial((1, 9), j0 * 4 + j1 + k + 1)
                        vi = T.axis.reduce(7, i)
                        T.where(j0 * 4 + j1 + k < 8)
                        with T.init():
                            R[vk, vj] = T.float32(0)
                        R[vk, vj] = R[vk, vj] + A[vk, vi] * A[vj, vi]
"""


def test_masked_vectors_of_a_triangle_beside_another_writer() -> None:
    """As in poly.gramschmidt: the block `diagonal` writes R too, outside of the reduction loop."""
    func = parse(TRIANGLE)
    sch = Schedule(func)
    sch.decompose_reduction("R", sch.get_loops("R")[2], keep_kinds=True)
    assert "R_init" in sch.script()
    check_transform(func, sch)


def test_the_init_declares_what_it_reads_itself() -> None:
    """The update reads R under a condition, and its region, taken for all j, would leave R."""

    @T.prim_func
    def far(R: T.Buffer((3, 5), "int32"), S: T.Buffer((3,), "int32")):
        for i, j in T.grid(3, 5):
            with T.block("S"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    S[vi] = R[vi, 0]
                S[vi] = T.max(S[vi], T.if_then_else(vj * 3 < 5, R[vi, vj * 3], 3))

    sch = Schedule(far)
    init = sch.decompose_reduction("S", sch.get_loops("S")[1])
    (read,) = sch.get(init).reads
    assert [r.extent for r in read.region] == [1, 1]
    check_transform(far, sch)


PLANES = """
@T.prim_func
def f(A: T.Buffer((4, 5), "int32"), C: T.Buffer((4, 6), "int32")):
    for p, i, k in T.grid(3, 6, 5):
        with T.block("C"):
            vp, vi, vk = T.axis.remap("SSR", [p, i, k])
            with T.init():
                C[vp + 1, vi] = {start}
            C[vp + 1, vi] = C[vp + 1, vi] + {term}
"""


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(
    ("start", "term", "refused"),
    [
        ("0", "A[vp, vk] * C[vp, vi]", 0),
        ("0", "A[vp, vk] * C[vp, 5 - vi]", 0),
        ("0", "A[vp, vk] * C[3 - vp, vi]", 3),  # reads what the init will set
        ("C[vp, 5 - vi]", "A[vp, vk]", 1),  # the init reads what the plane before it becomes
        ("C[vp, 5 - vi]", "A[vp, vk] * C[vp, vi]", 1),
        ("C[vp + 1, vi] * 2", "A[vp, vk]", 0),
    ],
)
def test_a_reduction_may_read_results_that_are_complete(
    start: str, term: str, refused: int, at: int
) -> None:
    func = parse(PLANES.format(start=start, term=term))
    sch = Schedule(func)
    loop = sch.get_loops("C")[at]
    if at < refused:
        message = r"block C reads C\[.*\] below ., perhaps before the init of C"
        check_refused(sch, lambda: sch.decompose_reduction("C", loop), "used-early", message)
        return
    sch.decompose_reduction("C", loop)
    check_transform(func, sch)


def test_an_init_that_reads_another_result_keeps_the_order_of_its_loops() -> None:
    sch = Schedule(parse(PLANES.format(start="C[vp, vi]", term="A[vp, vk]")))
    p, i, k = sch.get_loops("C")
    check_refused(sch, lambda: sch.reorder(k, p), "reversed-dependence", "block C")
    check_refused(sch, lambda: sch.rfactor(k, 0), "reads-other-results", "reads elements of C")
    sch.reorder(i, p)
