"""enclose: statements in plain loops get blocks, and mean the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
from oracle import check_numbers, check_refused, check_transform
from space.random_kinds import Draw
from space.random_kinds_more import time_loops

from metasched.autoschedule import autoschedule
from metasched.ir.dtype import DType
from metasched.ir.expr import as_int
from metasched.ir.stmt import IterKind
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def loops(A: T.Buffer((6, 8), "int32"), C: T.Buffer((6, 8), "int32"), S: T.Buffer((6,), "int32")):
    for i in range(6):
        S[i] = 0
        for j in range(8):
            if A[i, j] > 0:
                C[i, j] = A[i, j]
            else:
                C[i, j] = -A[i, j]
            x = A[i, j] * 2
            S[i] = S[i] + x
        with T.block("last"):
            vi = T.axis.spatial(6, i)
            S[vi] = S[vi] + 1
    C[0, 0] = 7


@T.prim_func
def jumps(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in range(8):
        if A[i] < 0:
            break
        B[i] = A[i] * 2
    n = T.alloc_buffer((1,), "int32")
    n[0] = 0
    while n[0] < 3:
        A[n[0]] = 5
        n[0] = n[0] + 1


@T.prim_func
def guarded(A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32")):
    for i in range(8):
        k = i // 2
        if i % 2 == 0:
            for j in range(8):
                B[i, j] = A[k, j]


@T.prim_func
def enclosed(A: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("A"):
            vi = T.axis.spatial(8, i)
            A[vi] = A[vi] + 1


@T.prim_func
def inside(A: T.Buffer((8, 4), "int32")):
    for i in range(8):
        with T.block("row"):
            vi = T.axis.spatial(8, i)
            for j in range(4):
                A[vi, j] = A[vi, j] * 2


def names(sch: Schedule, blocks: list) -> list[str]:
    return [sch.get(block).name for block in blocks]


def test_each_statement_gets_a_block() -> None:
    sch = Schedule(loops)
    made = sch.enclose("root")
    assert names(sch, made) == ["S", "C", "S_1", "C_1"]
    kinds = [[v.kind for v in sch.get(block).iter_vars] for block in made]
    spatial = IterKind.SPATIAL
    assert kinds == [[spatial], [spatial, spatial], [spatial, IterKind.REDUCE], []]
    check_transform(loops, sch, "enclose")


def test_blocks_can_be_scheduled() -> None:
    sch = Schedule(loops)
    sch.enclose("root")
    i, j = sch.get_loops("C")
    sch.fission(j)
    sch.vectorize(sch.get_loops("C")[1])
    sch.parallel(i)
    check_transform(loops, sch)


def test_jumps_stay_and_a_while_is_one_block() -> None:
    sch = Schedule(jumps)
    assert names(sch, sch.enclose("root")) == ["B", "n", "n_1"]
    assert "break" in sch.script()
    check_numbers(jumps, sch.mod, compiled=True)


def test_conditions_and_variables_around_loops_stay() -> None:
    sch = Schedule(guarded)
    (made,) = sch.enclose("root")
    assert "if i % 2 == 0:" in sch.script()
    assert [v.kind for v in sch.get(made).iter_vars] == [IterKind.SPATIAL] * 2
    check_transform(guarded, sch)


def test_statements_of_another_block() -> None:
    sch = Schedule(inside)
    (made,) = sch.enclose("row")
    sch.vectorize(sch.get_loops(made)[-1])
    check_transform(inside, sch)


@pytest.mark.parametrize("func", [enclosed, inside])
def test_nothing_to_enclose_is_refused(func) -> None:
    sch = Schedule(func)
    message = "all stores of root stand in blocks, use pointers"
    check_refused(sch, lambda: sch.enclose("root"), "nothing-outside", message)


@pytest.mark.parametrize("part", range(2))
def test_random_loops_over_time(part: int) -> None:
    for seed in range(part * 15, part * 15 + 15):
        func = parse(time_loops(Draw(random.Random(seed), 9)))
        sch = Schedule(func, seed=seed)
        made = sch.enclose("root")
        assert made
        for block in made:
            loop = random.Random(seed).choice(sch.get_loops(block))
            sch.split(loop, [None, 2])
        check_numbers(func, sch.mod, compiled=True)


@T.prim_func
def scalars(A: T.Buffer((6, 8), "int32"), C: T.Buffer((6,), "int32")):
    for i in range(6):
        s = 0
        for k in range(8):
            s += A[i, k]
        C[i] = s


@T.prim_func
def iterated(C: T.Buffer((6, 5), "int32")):
    for i, j in T.grid(6, 5):
        x = i
        while x < 20:
            x = x * 2 + j + 1
        C[i, j] = x


def test_a_scalar_between_loops_becomes_a_buffer_of_the_block() -> None:
    sch = Schedule(scalars)
    made = sch.enclose("root")
    assert names(sch, made) == ["s", "s_1", "C"]
    kinds = [v.kind for v in sch.get(made[1]).iter_vars]
    assert kinds == [IterKind.OPAQUE, IterKind.REDUCE]  # each i sets s anew
    assert [b.name for b in sch.get(sch.get_block("root")).alloc_buffers] == ["s"]
    i = sch.get_loops("s")[0]
    sch.expand_buffer("s", 0, i)
    sch.parallel(sch.fission(i)[1])
    check_transform(scalars, sch)


def test_a_while_with_its_scalars_stays_together() -> None:
    sch = Schedule(iterated)
    (made,) = sch.enclose("root")
    assert [b.name for b in sch.get(made).alloc_buffers] == ["x"]
    assert sch.get(sch.get_block("root")).alloc_buffers == ()
    sch.parallel(sch.get_loops(made)[0])
    check_transform(iterated, sch)


@pytest.mark.parametrize(
    ("dtype", "update", "kind"),
    [
        ("int32", "S[i] = S[i] + A[i, k]", "reduce"),
        ("int32", "S[i] = T.max(A[i, k], S[i])", "reduce"),
        ("int32", "S[i] = S[i] * 2 + A[i, k]", "opaque"),
        ("int32", "S[i] = S[i] - S[0] * A[i, k]", "opaque"),
        ("int32", "S[i] = A[i, k] - S[i]", "opaque"),
        ("float32", "S[i] = S[i] + A[i, k]", "opaque"),
        ("float32", "S[i] = T.max(S[i], A[i, k])", "reduce"),
        ("float16", "S[i] = T.min(A[i, k], S[i])", "reduce"),
    ],
)
def test_integers_minima_and_maxima_may_change_their_order(
    dtype: str, update: str, kind: str
) -> None:
    text = f'@T.prim_func\ndef f(A: T.Buffer((6, 8), "{dtype}"), S: T.Buffer((6,), "{dtype}")):\n'
    func = parse(f"{text}    for i, k in T.grid(6, 8):\n        {update}\n")
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    assert sch.get(made).iter_vars[1].kind.value == kind
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(
    ("words", "kind"), [("reassoc arcp", "reduce"), ("arcp nnan", "opaque"), ("", "opaque")]
)
def test_sums_of_floats_change_their_order_where_the_function_allows_it(
    words: str, kind: str
) -> None:
    text = '@T.prim_func\ndef f(A: T.Buffer((6, 8), "float32"), S: T.Buffer((6,), "float32")):\n'
    attrs = f'    T.func_attr({{"tir.fast_math": "{words}"}})\n'
    loops = "    for i, k in T.grid(6, 8):\n        S[i] -= A[i, k]\n"
    func = parse(text + attrs + loops)
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    assert sch.get(made).iter_vars[1].kind.value == kind
    check_numbers(func, sch.mod, compiled=True)


GROUPS = {
    "pairs": ("B[i, 2 * j] = A[i, j] * 2", "B[i, 2 * j + 1] = A[i, j] + 1"),
    "backwards": ("B[i, 11 - 2 * j] = A[i, j]", "B[i, 10 - 2 * j] = A[i, 2 * j]"),
    "beside others": ("C[i] = A[i, 0]", "B[i, j * 2 + 1] = C[i]", "B[i, j * 2] = 1", "C[i] = 2"),
}
ALONE = {
    "a gap": ("B[i, 2 * j] = A[i, j]", "B[i, 2 * j + 2] = A[i, j]"),
    "twice": ("B[i, 2 * j] = A[i, j]", "B[i, 2 * j] = A[i, j + 1]"),
    "far": ("B[0, j] = A[i, j]", "B[1, j] = A[i, j]"),
    "updates": ("B[i, 2 * j] += A[i, j]", "B[i, 2 * j + 1] += A[i, j]"),
    "two buffers": ("B[i, 2 * j] = A[i, j]", "C[i] = A[i, j]"),
}


@pytest.mark.parametrize("case", [*GROUPS, *ALONE])
def test_stores_that_fill_memory_together_share_a_block(case: str) -> None:
    stores = (GROUPS | ALONE)[case]
    func = parse(
        '@T.prim_func\ndef f(A: T.Buffer((4, 12), "float32"), B: T.Buffer((4, 12), "float32"),\n'
        '      C: T.Buffer((4,), "float32")):\n    for i, j in T.grid(4, 5):\n'
        + "".join(f"        {store}\n" for store in stores)
    )
    sch = Schedule(func)
    made = sch.enclose("root")
    assert len(made) == len(stores) - (case in GROUPS)
    if len(made) == 1:
        sch.vectorize(sch.get_loops("B")[1])
    check_numbers(func, sch.mod, compiled=True)


def test_colours_of_pixels_are_stored_in_vectors() -> None:
    func = parse(
        '@T.prim_func\ndef f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8, 3), "float32")):\n'
        "    for y, x in T.grid(8, 8):\n        B[y, x, 0] = A[y, x]\n"
        "        B[y, x, 2] = A[y, x] * 2\n        B[y, x, 1] = A[x, y]\n"
    )
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    sch.vectorize(sch.get_loops(made)[1])
    check_numbers(func, sch.mod, compiled=True)


def test_stores_that_fill_memory_together_stay_in_their_loop_that_ends_by_its_data() -> None:
    """A join of two sorted columns stores pairs of positions."""

    @T.prim_func
    def join(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), P: T.Buffer((8, 2), "int32")):
        i = 0
        j = 0
        c = 0
        while i < 8 and j < 8:
            if A[i] < B[j]:
                i += 1
            elif A[i] > B[j]:
                j += 1
            else:
                P[c, 0] = i
                P[c, 1] = j
                c += 1
                i += 1
                j += 1

    sch = Schedule(join)
    assert len(sch.enclose("root")) == 4
    a, b = np.arange(0, 24, 3, "int32"), np.arange(1, 17, 2, "int32")
    both = [[1, 1], [3, 4], [5, 7]]
    assert build(sch.mod)(a, b).tolist() == [*both, *[[0, 0]] * 5]
    assert build(autoschedule(join))(a, b).tolist() == [*both, *[[0, 0]] * 5]


CONCURRENT = """
@T.prim_func
def f(A: T.Buffer((6, 8), "int32"), C: T.Buffer((6,), "int32")):
    for i in {kind}(6):
        s = T.allocate((2,), "int32", scope="local")
{first}
        for k in range(8):
            s[0] = s[0] + A[i, k] * k
        C[i] = s[0] + s[1]
"""
FIRST = ["s[0] = 0", "s[1] = i"]


def concurrent(kind: str, *first: str) -> PrimFunc:
    lines = "\n".join("        " + line for line in first)
    return parse(CONCURRENT.format(kind=kind, first=lines))  # type: ignore[return-value]


def test_memory_of_the_lanes_of_a_vector_stays_inside() -> None:
    """A buffer of the block would be shared by the lanes."""
    func = concurrent("T.vectorized", *FIRST)
    sch = Schedule(func)
    sch.enclose("root")
    assert sch.get(sch.get_block("root")).alloc_buffers == ()
    check_numbers(func, sch.mod, compiled=True)


def test_memory_that_each_parallel_iteration_fills_belongs_to_the_block() -> None:
    func = concurrent("T.parallel", *FIRST)
    sch = Schedule(func, check=True)
    sch.enclose("root")
    assert [b.name for b in sch.get(sch.get_block("root")).alloc_buffers] == ["s"]
    check_transform(func, sch)


@pytest.mark.parametrize("first", [
    FIRST[:1], FIRST[1:], ["s[0] = 0", "if A[i, 0] > 0:", "    s[1] = 0"],
])  # fmt: skip
def test_memory_that_a_parallel_iteration_may_not_fill_stays_inside(first: list[str]) -> None:
    """It would be shared by the threads: such a program reads what no statement wrote."""
    sch = Schedule(concurrent("T.parallel", *first), check=True)
    sch.enclose("root")
    assert sch.get(sch.get_block("root")).alloc_buffers == ()


def test_a_sum_beside_a_store_that_jumps_keeps_its_order() -> None:
    @T.prim_func
    def reset(A: T.Buffer((8,), "int32"), S: T.Buffer((2,), "int32")):
        for i in range(8):
            S[0] = S[0] + A[i]
            while A[i] > 2:
                S[0] = 0
                break

    sch = Schedule(reset)
    for made in sch.enclose("root"):
        assert [v.kind for v in sch.get(made).iter_vars] == [IterKind.OPAQUE]
    check_numbers(reset, sch.mod, compiled=True)


def test_a_loop_that_ends_before_it_begins_has_no_iteration() -> None:
    @T.prim_func
    def empty(A: T.Buffer((4,), "int32")):
        for i in range(1, 4):
            for j in range(i + 3, 3):
                A[j] = A[j] + 1
            A[i] = A[i] + 2

    sch = Schedule(empty)
    made = sch.enclose("root")
    assert [v.dom.extent for v in sch.get(made[0]).iter_vars][-1] == 0
    check_numbers(empty, sch.mod, compiled=True)


def test_a_statement_without_results_has_the_name_of_its_own_memory() -> None:
    @T.prim_func
    def idle(A: T.Buffer((4,), "int32")):
        for i in range(4):
            if A[i] > 2:
                w = 0
                while w < 3:
                    w = w + 1
            A[i] = A[i] + 1

    sch = Schedule(idle)
    made = sch.enclose("root")
    assert names(sch, made) == ["w", "A"]
    assert sch.get(made[0]).writes == ()
    sch.vectorize(sch.fission(sch.get_loops(made[1])[0])[1])
    check_transform(idle, sch)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("update", ["T.max(s, A[i, k])", "T.min(A[i, k], s)"])
def test_a_maximum_in_another_order_keeps_nan(dtype: str, update: str) -> None:
    func = parse(
        f'@T.prim_func\ndef f(A: T.Buffer((24, 37), "{dtype}"), C: T.Buffer((24,), "{dtype}")):\n'
        f"    for i in range(24):\n        s = A[i, 0]\n        for k in range(1, 37):\n"
        f"            s = {update}\n        C[i] = s\n"
    )
    sch = Schedule(func)
    made = sch.enclose("root")
    assert sch.get(made[1]).iter_vars[-1].kind is IterKind.REDUCE
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0])
    values = np.random.default_rng(0).choice(odd[1:], (24, 37))
    values[range(0, 24, 2), range(0, 36, 3)] = np.nan
    data = values.astype(DType(dtype).numpy)
    expected = np.where(np.isnan(values).any(1), np.nan,
                        values.max(1) if "max" in update else values.min(1))  # fmt: skip
    for program in (func, sch, autoschedule(func)):
        found = np.zeros(24, data.dtype)
        build(program)(data, found)
        np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16"])
def test_all_values_of_a_narrow_index_are_in_the_region(kind: str) -> None:
    """256 elements were a region of no element, in 8 bits."""
    func = parse(
        f'@T.prim_func\ndef f(N: T.Buffer((4,), "{kind}"), E: T.Buffer((70000,)), '
        "A: T.Buffer((4,))):\n    for k in range(4):\n        if A[k] > 1.0:\n"
        "            break\n        A[k] = E[N[k]]\n"
    )
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    assert {r.buffer.name: as_int(r.region[0].extent) for r in sch.get(made).reads}["E"] == 70000


@T.prim_func
def variables(A: T.Buffer((6, 8), "float32"), n: T.Buffer((6,), "int32"),
              C: T.Buffer((6, 8), "float32")):  # fmt: skip
    for i in range(6):
        last = n[i] % 8
        scale = A[i, 0] * T.float32(2) + T.float32(1)
        for j in range(8):
            if scale > T.float32(0):
                C[i, j] = A[i, j] * scale
            else:
                C[i, j] = A[i, last]
        C[i, last] = scale


def test_a_variable_above_a_loop_is_memory_or_its_value_where_an_index_mentions_it():
    sch = Schedule(variables, check=True)
    sch.enclose("root")
    script = sch.script()
    assert "scale = T.alloc_buffer((1,)" in script and "A[v_i, n[v_i] % 8]" in script
    check_transform(variables, sch)


@T.prim_func
def interpolated(A: T.Buffer((9, 8), "float32"), x: T.Buffer((6,), "float32"),
                 C: T.Buffer((6, 8), "float32")):  # fmt: skip
    for i in range(6):
        p = T.min(T.max(x[i], T.float32(0)), T.float32(0.9)) * T.float32(8)
        row = T.int32(p)
        part = p - T.float32(row)
        for j in range(8):
            C[i, j] = A[row, j] * (T.float32(1) - part) + A[row + 1, j] * part


def test_a_row_that_each_iteration_computes_does_not_keep_its_statements_together():
    sch = Schedule(interpolated, check=True)
    part, out = sch.enclose("root")
    sch.expand_buffer(part, 0, sch.get_loops(part)[0])
    sch.fission(sch.get_loops(part)[0])
    sch.parallel(sch.get_loops(out)[0])
    sch.vectorize(sch.get_loops(out)[1])
    check_transform(interpolated, sch)


@pytest.mark.parametrize(
    "value, after",
    [("n[i]", "n[i] = A[i, i + 1]"), ("T.int32(T.exp(T.float32(n[i])))", "C[i] = 1")],
    ids=["memory-changes", "expensive"],
)
def test_a_variable_in_an_index_stays_where_its_value_cannot_take_its_place(value: str, after: str):
    func = parse(
        '@T.prim_func\ndef f(n: T.Buffer((6,), "int32"), A: T.Buffer((6, 9), "int32"), '
        f'C: T.Buffer((6,), "int32")):\n    for i in range(6):\n        r = {value}\n'
        f"        {after}\n        for j in range(2):\n            C[i] += A[i, r + j]\n"
    )
    sch = Schedule(func, check=True)
    sch.enclose("root")
    assert "r: T.int32 = " in sch.script()


@T.prim_func
def normalized(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    for i in range(6):
        s = T.float32(0)
        for j in range(8):
            s += A[i, j] * A[i, j]
        r = T.float32(1) / T.sqrt(s + T.float32(1))
        for j in range(8):
            C[i, j] = A[i, j] * r


def test_a_variable_between_loops_does_not_keep_them_together():
    sch = Schedule(normalized, check=True)
    blocks = sch.enclose("root")
    for one in blocks:
        loop = sch.get_loops(one)[0]
        if [b for b in sch.get(one).writes if b.buffer.name in ("s", "r")]:
            sch.expand_buffer(one, 0, loop)
    sch.fission(sch.get_loops(blocks[0])[0])
    assert len({sch.get_loops(one)[0] for one in blocks}) == len(blocks) == 4
    check_transform(normalized, sch)


@T.prim_func
def in_parallel(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    for i in T.parallel(6):
        scale = A[i, 0] * T.float32(2)
        for j in range(8):
            C[i, j] = A[i, j] * scale


def test_a_variable_below_a_parallel_loop_is_memory_of_its_iterations():
    sch = Schedule(in_parallel, check=True)
    first, second = sch.enclose("root")
    assert len(sch.get_loops(first)) == 1 and len(sch.get_loops(second)) == 2
    check_transform(in_parallel, sch)


@T.prim_func
def summed_rows(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    for i in range(6):
        row = T.alloc_buffer((8,))
        s = T.float32(0)
        for j in range(8):
            h = T.uint32(i * 8 + j) * T.uint32(2654435761)
            g = h ^ (h >> T.uint32(16))
            row[j] = T.if_then_else(g < T.uint32(1 << 31), A[i, j], T.float32(1))
            s += row[j]
        for j in range(8):
            C[i, j] = row[j] / s


def test_a_variable_does_not_keep_a_later_sum_of_what_is_stored():
    sch = Schedule(summed_rows, check=True)
    _, row, total, last = sch.enclose("root")
    assert [r.buffer.name for r in sch.get(total).reads] == ["s", "row"]
    sch.fission(sch.get_loops(row)[1])
    sch.vectorize(sch.get_loops(row)[1])
    sch.parallel(sch.get_loops(last)[0])
    check_transform(summed_rows, sch)


def test_a_variable_stays_around_stores_that_nothing_behind_reads():
    func = parse(
        '@T.prim_func\ndef f(A: T.Buffer((8,), "int32"), C: T.Buffer((8, 2), "int32")):\n'
        "    for i in range(8):\n        a = A[i] * 3\n        C[i, 0] = a * a\n"
        "        b = A[i] + 1\n        C[i, 1] = b * b\n"
    )
    sch = Schedule(func, check=True)
    assert len(sch.enclose("root")) == 1
    check_transform(func, sch)
