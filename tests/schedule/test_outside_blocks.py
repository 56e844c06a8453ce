"""Schedules of statements outside of blocks: conditions, jumps, stores, loops with loaded ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import check_refused, check_transform, refusal

from metasched.schedule.schedule import Schedule
from metasched.script import parse, script

Step = Callable[[Schedule], object]

HALF = """
@T.prim_func
def f(A: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for i in range(4):
        {above}
            with T.block("B"):
                v = T.axis.spatial(4, i)
                B[v] = A[v] + 1
    for i in range(4):
        with T.block("C"):
            v = T.axis.spatial(4, i)
            C[v] = B[v] * 2
"""
ABOVE = {
    "if": "if A[i] > 0:",
    "else": "if A[i] > 0:\n            C[i] = 0\n        else:",
    "while": "while A[i] > 0:",
    "break": "if A[i] > 0:\n            break\n        if True:",
    "continue": "if A[i] > 0:\n            continue\n        if True:",
}
TO_CACHE: dict[str, Step] = {
    "cache_write": lambda sch: sch.cache_write("B", 0, "global"),
    "reindex_cache_write": lambda sch: sch.reindex_cache_write("B", 0, "global", lambda v: v),
}


@pytest.mark.parametrize("step", TO_CACHE)
@pytest.mark.parametrize("above", [name for name in ABOVE if name != "while"])
def test_a_cache_of_what_a_condition_may_leave_unwritten(above: str, step: str) -> None:
    func = parse(HALF.format(above=ABOVE[above]))
    sch = Schedule(func, check=True)
    reason = "region-cover" if step == "cache_write" else "conditional-block"
    check_refused(sch, lambda: TO_CACHE[step](sch), reason, "B")


def test_writes_in_a_while_loop_do_not_cover_a_region() -> None:
    func = parse(
        HALF.format(above=ABOVE["while"]).replace("B[v] = ", "A[v] = 0\n" + 16 * " " + "B[v] = ")
    )
    sch = Schedule(func, check=True)
    check_refused(sch, lambda: sch.cache_write("B", 1, "global"), "region-cover", "B")


def test_a_cache_below_the_condition() -> None:
    """The reader stands under the same condition as the writer."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(4):
        if A[i] > 0:
            with T.block("B"):
                v = T.axis.spatial(4, i)
                B[v] = A[v] + 1
            with T.block("C"):
                v = T.axis.spatial(4, i)
                C[v] = B[v] * 2
""")
    sch = Schedule(func, check=True)
    sch.cache_write("B", 0, "global", ["C"])
    sch.cache_read("C", 0, "local")
    check_transform(func, sch)


STORE = """
@T.prim_func
def f(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("D"):
            v = T.axis.spatial(4, i)
            D[v] = A[v]
    for i in range(4):
        B[i] = A[i] + 1
    for i in range(4):
        with T.block("C"):
            v = T.axis.spatial(4, i)
            C[v] = B[v] * 2
"""


@pytest.mark.parametrize(
    "step",
    [
        lambda sch: sch.cache_read("C", 0, "global"),
        lambda sch: sch.reindex_cache_read("C", 0, "global", lambda v: v),
    ],
)
def test_caching_a_buffer_written_outside_of_blocks_is_refused(step: Step) -> None:
    sch = Schedule(parse(STORE), check=True)
    check_refused(sch, lambda: step(sch), "outside-blocks", r"B\[i\] = .* writes B")
    sch.cache_read("D", 0, "global")
    check_transform(parse(STORE), sch)


@pytest.mark.parametrize("step", TO_CACHE)
def test_caching_a_buffer_read_outside_of_blocks_is_refused(step: str) -> None:
    last = STORE[STORE.index("    for i in range(4):\n        B[i]") :]
    text = STORE.replace(last, "    for i in range(4):\n        C[i] = D[i]\n").replace(
        "    B = T", "    X = T"
    )
    sch = Schedule(
        parse(text.replace("D[v] = A[v]", "D[v] = A[v] + 1").replace('"D"', '"B"')), check=True
    )
    check_refused(sch, lambda: TO_CACHE[step](sch), "outside-blocks", r"C\[i\] = D\[i\].* uses D")


def test_a_nest_is_not_merged_across_a_store() -> None:
    sch = Schedule(parse(STORE), check=True)
    (first,), (last,) = sch.get_loops("D"), sch.get_loops("C")
    check_refused(sch, lambda: sch.merge(first, last), "in-between", "not a block is between")


SUM = """
@T.prim_func
def f(A: T.Buffer((4, 3), "int32"), C: T.Buffer((4,), "int32")):
    for i in range(4):
        {above}
            for k in range(3):
                with T.block("C"):
                    v, vk = T.axis.remap("SR", [i, k])
                    {where}
                    with T.init():
                        C[v] = 0
                    C[v] = C[v] + A[v, vk]
"""


def test_an_init_stays_below_the_condition() -> None:
    func = parse(SUM.format(above="if A[i, 0] > 0:", where=""))
    sch = Schedule(func, check=True)
    i, k = sch.get_loops("C")
    refusal = "conditional-block", "C stands under a condition below i"
    check_refused(sch, lambda: sch.decompose_reduction("C", i), *refusal)
    sch.decompose_reduction("C", k)
    check_transform(func, sch)


def test_an_init_that_may_not_run_stays_where_it_is() -> None:
    func = parse(SUM.format(above="if True:", where="T.where(k >= i)"))
    sch = Schedule(func, check=True)
    loop = sch.get_loops("C")[-1]
    check_refused(
        sch, lambda: sch.decompose_reduction("C", loop), "empty-reduction", "k >= i may leave C"
    )


JUMP = """
@T.prim_func
def f(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32"), D: T.Buffer((4, 6), "int32")):
    for i in range(4):
        for j in range(6):
            if A[i, j] > 2:
                {jump}
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * 2
    for i, j in T.grid(4, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj]
"""
LOOPS: dict[str, Callable[..., object]] = {
    "split": lambda sch, i, j, other: sch.split(j, [None, 4]),
    "fuse": lambda sch, i, j, other: sch.fuse(i, j),
    "loop_partition": lambda sch, i, j, other: sch.loop_partition(j, [2, None]),
    "merge": lambda sch, i, j, other: sch.merge(j, other),
    "unroll": lambda sch, i, j, other: sch.unroll(j),
}


def in_loops(step: str, jump: str) -> tuple[Schedule, Callable[[], object]]:
    """A schedule with a jump out of the inner loop of C, and a step on its loops."""
    sch = Schedule(parse(JUMP.format(jump=jump)), check=True)
    loops = *sch.get_loops("C"), sch.get_loops("D")[1]
    return sch, lambda: LOOPS[step](sch, *loops)


@pytest.mark.parametrize("step", LOOPS)
def test_a_loop_with_a_break_stays_one_loop(step: str) -> None:
    sch, run = in_loops(step, "break")
    check_refused(sch, run, "left-by-jump", "a break leaves the loop j")


@pytest.mark.parametrize("step", ["split", "fuse", "loop_partition"])
def test_an_iteration_that_continue_ends_stays_one(step: str) -> None:
    sch, run = in_loops(step, "continue")
    run()
    check_transform(parse(JUMP.format(jump="continue")), sch)


@pytest.mark.parametrize("step", ["merge", "unroll"])
def test_a_continue_belongs_to_the_innermost_loop(step: str) -> None:
    sch, run = in_loops(step, "continue")
    check_refused(sch, run, "left-by-jump", "a continue leaves the loop j")


def test_the_loop_around_one_with_a_break_is_split() -> None:
    func = parse(JUMP.format(jump="break"))
    sch = Schedule(func, check=True)
    sch.split(sch.get_loops("C")[0], [None, 3])
    check_transform(func, sch)


ROWS = """
@T.prim_func
def f(P: T.Buffer((6,), "int32"), A: T.Buffer((5, 5), "int32"), C: T.Buffer((5,), "int32")):
    for i in range(5):
        {above}
        for j in range(P[i + 1] - P[i]):
            with T.block("C"):
                vi = T.axis.spatial(5, i)
                vj = T.axis.reduce(5, j)
                T.where(j < 5{where})
                C[vi] = C[vi] + A[vi, vj]
"""


@pytest.mark.parametrize(
    ("above", "where"),
    [
        ("T.evaluate(0)", ""),
        ("T.evaluate(0)", " and A[i, 0] > 0"),
        ("T.evaluate(0)", " and 20 // (5 - i) > 4"),
        ("if P[i] > 0:\n            C[i] = 1", ""),
        ("x = P[i] + 10 // (5 - i)\n        C[i] = x", ""),
    ],
)
def test_iterations_beyond_a_split_evaluate_nothing_that_may_fail(above: str, where: str) -> None:
    """There is no sixth row: a split by two must not evaluate its ends, conditions and values."""
    func = parse(ROWS.format(above=above, where=where))
    sch = Schedule(func, check=True)
    sch.split(sch.get_loops("C")[0], [None, 2])
    check_transform(func, sch)
    assert "if i_0 * 2 + i_1 < 5:" in script(sch.mod)


CHANGING = """
@T.prim_func
def f(P: T.Buffer((1,), "int32"), C: T.Buffer((8,), "int32")):
    for i, j in T.grid(2, {extent}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < 4)
            C[vi * 4 + vj] = P[0]
            P[0] = P[0] - 1
"""


@pytest.mark.parametrize(
    "step", [lambda sch, i, j: sch.split(j, [None, 2]), lambda sch, i, j: sch.fuse(i, j)]
)
def test_a_loop_that_changes_its_own_end(step: Callable[..., object]) -> None:
    sch = Schedule(parse(CHANGING.format(extent="P[0]")), check=True)
    i, j = sch.get_loops("C")
    check_refused(sch, lambda: step(sch, i, j), "ends-change", "ends of j read P")


SCATTER = """
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), C: T.Buffer((6, 5), "int32"), D: T.Buffer((6, 5), "int32")):
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj])
            T.writes(C[0:6, vj])
            {body}
    for i, j in T.grid(6, 5):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj]
"""


@pytest.mark.parametrize("step", ["cache_write", "write_at"])
@pytest.mark.parametrize(
    "body",
    [
        "C[T.min(T.max(A[vi, vj], 0), 5), vj] = vi",
        "C[0, vj] = vi",
        "for k in range(3):\n                C[k * 2, vj] = vi",
    ],
)
def test_a_block_that_writes_less_than_it_declares(body: str, step: str) -> None:
    """A loaded index chooses the element, or the declared box has gaps: a copy would fill them."""
    text = SCATTER.format(body=body)
    sch = Schedule(parse(text[: text.index("    for i, j", text.index("C[0:6"))]), check=True)
    loop = sch.get_loops("C")[0]
    args = ("C", 0, "global") if step == "cache_write" else (loop, "C", 0, "global")
    with refusal("not-all-written" if step == "write_at" else "region-cover", "C"):
        getattr(sch, step)(*args)


def test_a_block_whose_loop_writes_all_that_it_declares() -> None:
    func = parse(
        SCATTER.format(body="for k in range(6):\n                C[k, vj] = A[vi, vj] + k").replace(
            'grid(6, 5):\n        with T.block("C")', 'grid(1, 5):\n        with T.block("C")'
        )
    )
    sch = Schedule(func, check=True)
    sch.cache_write("C", 0, "global", ["D"])
    check_transform(func, sch)


NAMED = """
@T.prim_func
def f(A: T.Buffer((4, 3), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")):
    for i in range(4):
        x = {value}
        for k in range(3):
            with T.block("C"):
                v = T.axis.spatial(4, x)
                vk = T.axis.reduce(3, k)
                with T.init():
                    C[v] = 0
                C[v] = C[v] + A[v, vk]
    for i in range(4):
        with T.block("D"):
            v = T.axis.spatial(4, i)
            D[v] = C[v]
"""


@pytest.mark.parametrize("name", ["cache_write", "decompose_reduction", "cache_read", "rfactor"])
def test_a_variable_around_a_block_is_its_value(name: str) -> None:
    func = parse(NAMED.format(value="i"))
    sch = Schedule(func, check=True)
    i, k = sch.get_loops("C")
    steps: dict[str, Callable[[], object]] = {
        "cache_write": lambda: sch.cache_write("C", 0, "global"),
        "decompose_reduction": lambda: sch.decompose_reduction("C", i),
        "cache_read": lambda: sch.cache_read("D", 0, "global"),
        "rfactor": lambda: sch.rfactor(k, 0),
    }
    steps[name]()
    check_transform(func, sch)


def test_a_variable_that_reads_memory_which_changes_stays_where_it_is() -> None:
    text = NAMED.replace(
        'D: T.Buffer((4,), "int32")', 'D: T.Buffer((4,), "int32"), N: T.Buffer((5,))'
    )
    changes = """
        with T.block("N"):
            v = T.axis.spatial(4, i)
            N[v + 1] = N[v] + T.float32(1)
    for i in range(4):
        with T.block("D"):"""
    text = text.replace('\n    for i in range(4):\n        with T.block("D"):', changes)
    func = parse(text.format(value="T.min(T.max(T.int32(N[i]), 0), 3)"))
    sch = Schedule(func, check=True)
    (i, _), refusal = sch.get_loops("C"), ("hidden-variable", "would use x where it has no value")
    check_refused(sch, lambda: sch.cache_write("C", 0, "global"), *refusal)
    check_refused(sch, lambda: sch.cache_read("D", 0, "global"), *refusal)
    sch.cache_read("C", 0, "global")
    sch.split(i, [None, 3])
    check_transform(func, sch)
