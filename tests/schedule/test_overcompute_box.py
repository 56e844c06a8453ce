"""overcompute_box: triangles run as squares; the same results, and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_numbers, check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.kinds.cpu import cpu_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.target import Target

TEXT = """
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), N: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    X = T.alloc_buffer((6, 6), "int32")
    for i in range(6):
        for j in {span}:
            for k in {depth}:
                with T.block("X"):
                    vi, vj, vk = T.axis.remap("{kinds}", [i, j, k])
                    {where}
                    with T.init():
                        X[{at}] = 0
                    X[{at}] = X[{at}] + {value}
    for i in range(6):
        for j in {span}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj] * 2
"""


def triangle(
    span: str = "range(i + 1)",
    value: str = "A[vi, vk] * A[vj, vk]",
    at: str = "vi, vj",
    kinds: str = "SSR",
    where: str = "",
    depth: str = "range(5)",
) -> Schedule:
    text = TEXT.format(span=span, value=value, at=at, kinds=kinds, where=where, depth=depth)
    return Schedule(parse(text), check=True)


@pytest.mark.parametrize(
    "span", ["range(i + 1)", "range(i, 6)", "range(i + 1, 6)", "range(i // 2)", "range(i, i + 1)"]
)
def test_a_triangle_becomes_a_square_that_is_tiled(span):
    sch = triangle(span)
    before = sch.mod["main"]
    sch.overcompute_box("X")
    i, j, k = sch.get_loops("X")
    assert sch.get(j).min.value == 0
    (io, ii), (jo, ji) = sch.split(i, [None, 2]), sch.split(j, [None, 3])
    sch.reorder(io, jo, k, ii, ji)
    sch.parallel(io)
    sch.vectorize(ji)
    sch.decompose_reduction("X", k)
    check_transform(before, sch)


def test_a_square_stays_as_it_is():
    sch = triangle("range(6)")
    before = sch.mod["main"]
    sch.overcompute_box("X")
    assert sch.mod["main"] is before


def test_a_domain_that_cannot_begin_at_zero_begins_where_it_is():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 7), "int32")):
    X = T.alloc_buffer((6, 7), "int32")
    for i in range(6):
        for j in range(i + 1, 7):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vj - 1]
    for i in range(6):
        for j in range(i + 1, 7):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj] * 2
""")
    sch = Schedule(func, check=True)
    sch.overcompute_box("X")
    loop = sch.get(sch.get_loops("X")[1])
    assert (loop.min.value, loop.extent.value) == (1, 6)
    check_transform(func, sch)


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"where": "T.where(k < 3)"}, "has-predicate", "X has a predicate"),
        ({"depth": "range(j // 2 + 1)"}, "ragged-reduction", "range of k, a loop of a reduction"),
        ({"value": "A[vi, vk] // (vi - vj + 1)"}, "divides", "may divide by zero in added"),
        ({"value": "A[vi - vj, vk]"}, "leaves-buffer", r"may leave A at \[vi - vj, vk\]"),
        ({"at": "vi, vi - vj"}, "not-plain-index", "X does not write one element"),
        ({"kinds": "SRR"}, "ragged-reduction", "the range of j, a loop of a reduction"),
    ],
)
def test_refusals(change, reason, message):
    sch = triangle(**change)
    check_refused(sch, lambda: sch.overcompute_box("X"), reason, message)


def test_a_condition_keeps_a_load_in_its_buffer():
    sch = triangle(value="T.if_then_else(vi >= vj, A[vi - vj, vk], 0)")
    before = sch.mod["main"]
    sch.overcompute_box("X")
    check_transform(before, sch)


NESTED = """
@T.prim_func
def f(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    X = T.alloc_buffer((6, 6), "int32")
    with T.block("around"):
        T.reads(A[0:6])
        T.writes(X[0:6, 0:6])
        for i in range(6):
            for j in range(i + 1):
                with T.block("X"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    X[vi, vj] = A[vj]
    for i in range(6):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj]
"""


def test_a_buffer_of_the_function_or_of_an_outer_block_is_refused():
    sch = triangle()
    message = "C is a parameter or view, not allocated by a block"
    check_refused(sch, lambda: sch.overcompute_box("C"), "not-allocated", message)
    sch = Schedule(parse(NESTED))
    message = "X is not allocated by the block around X"
    check_refused(sch, lambda: sch.overcompute_box("X"), "not-allocated", message)


IN_ORDER = """
@T.prim_func
def f(A: T.Buffer((6, 5)), N: T.Buffer((6,), "int32"), C: T.Buffer((6, 6))):
    X = T.alloc_buffer((6, 6))
    for i in range(6):
        for j in {span}:
            with T.block("zero"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = 0.5
    for i in range(6):
        for j in {span}:
            for k in {depth}:
                with T.block("X"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    vk = T.axis.opaque(5, k)
                    X[vi, vj] = X[vi, vj] + A[vi, vk] * A[vj, vk]
    for i in range(6):
        for j in {read}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj] * 2
"""


@pytest.mark.parametrize("span", ["range(i + 1)", "range(i, 6)", "range(i // 2)"])
def test_sums_in_order_and_what_sets_them_become_squares(span):
    sch = Schedule(parse(IN_ORDER.format(span=span, depth="range(5)", read=span)), check=True)
    before = sch.mod["main"]
    message = "X reads .* not proved to be written before"
    check_refused(sch, lambda: sch.overcompute_box("X"), "region-cover", message)
    for name in ("zero", "X"):
        sch.overcompute_box(name)
    i, j, k = sch.get_loops("X")
    rows, row = sch.split(i, [None, 2])
    sch.reorder(rows, j, k, row)
    sch.parallel(rows)
    if "//" not in span:
        sch.skip_unused(j)
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"depth": "range(i // 2 + 1)"}, "not-plain-index", "X does not write one element"),
        ({"read": "range(6)"}, "other-writer", "is written by zero, X, and C may read what X"),
        ({"read": "range(i + 1, 6)"}, "other-writer", "and C may read what X does not write"),
    ],
)
def test_refusals_of_sums_in_order(change, reason, message):
    parts = {"span": "range(i + 1)", "read": "range(i + 1)", "depth": "range(5)", **change}
    sch = Schedule(parse(IN_ORDER.format(**parts)))
    check_refused(sch, lambda: sch.overcompute_box("X"), reason, message)


def test_split_and_marked_loops_are_refused():
    sch = triangle()
    sch.split(sch.get_loops("X")[0], [2, 3])
    message = "are not each the value of one loop"
    check_refused(sch, lambda: sch.overcompute_box("X"), "not-plain", message)
    sch = triangle()
    sch.annotate(sch.get_loops("X")[1], "note", 1)
    message = "the loop j carries annotations"
    check_refused(sch, lambda: sch.overcompute_box("X"), "marked-loop", message)


def refused(text: str, reason: str, message: str) -> None:
    sch = Schedule(parse(text))
    check_refused(sch, lambda: sch.overcompute_box("X"), reason, message)


HEAD = """
@T.prim_func
def f(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    X = T.alloc_buffer((6, 6), "int32")
"""


def test_a_second_writer_is_refused():
    refused(
        HEAD
        + """
    for i, j in T.grid(6, 6):
        with T.block("zero"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = 0
    for i in range(6):
        for j in range(i):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vj]
    for i, j in T.grid(6, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = X[vi, vj]
""",
        "other-writer",
        "X is written by zero, X, and C may read what X does not write",
    )


def test_reads_of_what_nobody_wrote_are_refused():
    refused(
        HEAD.replace("X =", 'Y = T.alloc_buffer((6, 6), "int32")\n    X =')
        + """
    for i in range(6):
        for j in range(i + 1):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = A[vj]
    for i in range(6):
        for j in range(i + 1):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = Y[vi, vj]
    for i in range(6):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj]
""",
        "region-cover",
        "block X reads",
    )


def test_a_domain_without_a_constant_extent_is_refused():
    refused(
        """
@T.prim_func
def f(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "int32")
    C = T.match_buffer(c, (n, n), "int32")
    X = T.alloc_buffer((n, n), "int32")
    for i in range(n):
        for j in range(i + 1):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vj]
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj]
""",
        "not-single-branch",
        "contains more than the block X",
    )
    refused(
        """
@T.prim_func
def f(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "int32")
    C = T.match_buffer(c, (n,), "int32")
    X = T.alloc_buffer((n, n), "int32")
    for i in range(n):
        for j in range(i + 1):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vj]
""",
        "symbolic-domain",
        "the domain of vi is not constant",
    )


def test_a_body_that_is_not_known_is_refused():
    refused(
        HEAD
        + """
    for i in range(6):
        for j in range(i + 1):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = 0
                while A[vj] > X[vi, vj]:
                    X[vi, vj] = X[vi, vj] + 1
""",
        "not-transparent",
        "X holds more than bounded loops",
    )


SPANS = ["range(i + 1)", "range(i)", "range(i, {n})", "range({n} - i)", "range(i // 2, {n} - 1)"]
PRODUCT = """
@T.prim_func
def f(A: T.Buffer(({n}, {d}), "int32"), B: T.Buffer(({n}, {d}), "int32"),
      C: T.Buffer(({n}, {n}), "int32")):
    for i in range({n}):
        for j in {span}:
            with T.block("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] *= 3
        {loops}
                with T.block("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    {init}
                    C[vi, vj] = C[vi, vj] {op} A[{a}, vk] * B[{b}, vk]
        for j in {last}:
            with T.block("mirror"):
                C[j, i] = C[i, j] + 1
"""


@settings(max_examples=20)
@given(st.data())
def test_random_triangular_products(data):
    """Each alternative of the module computes the same, also if a later step was refused."""
    draw, n = lambda *values: data.draw(st.sampled_from(values)), data.draw(st.integers(3, 6))
    span = draw(*SPANS).format(n=n)
    d = data.draw(st.integers(1, 4))
    inner = draw(f"for j in {span}:\n            for k in range({d}):",
                 f"for k in range({d}):\n            for j in {span}:")  # fmt: skip
    init = draw("", "with T.init():\n                        C[vi, vj] = 2")
    func = parse(PRODUCT.format(
        n=n, d=d, span=span, loops=inner, init=init, op=draw("+", "-"), a=draw("vi", "vj"),
        b=draw("vi", "vj", f"{n - 1} - vj"), last=draw(*SPANS, "range(i)").format(n=n),
    ))  # fmt: skip
    sch = Schedule(func, check=True)
    for made in LoopDistribution(0)(sch, sch.get_block("root")):
        variant = Schedule(made.mod)  # without a check after each loop
        for block in variant.get_child_blocks(variant.get_block("root")):
            for loop in variant.get_loops(block):
                try:
                    variant.parallel(loop)
                    break
                except ScheduleError:
                    continue
        check_numbers(func, variant.mod, compiled=False)


def test_a_triangular_product_gets_register_blocks():
    @T.prim_func
    def syrk(A: T.Buffer((64, 48), "float32"), C: T.Buffer((64, 64), "float32")):
        for i, k in T.grid(64, 48):
            for j in range(i + 1):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] += A[vi, vk] * A[vj, vk]

    target = Target.of("llvm -mcpu=x86-64-v3 -num-cores 2")
    spaces = SpaceGenerator(cpu_modules(target)).generate(syrk)
    names = [{entry.kind.name for entry in space} for space in spaces]
    assert any({"overcompute_box", "sample_perfect_tile"} <= each for each in names)


def test_a_loop_that_reaches_beyond_its_domain_is_cut() -> None:
    """For j = 2 the loop over i is empty, so vj ends before 2; over the box i would run for it."""

    @T.prim_func
    def below(A: T.Buffer((3,), "int32"), C: T.Buffer((3, 3), "int32")):
        B = T.alloc_buffer((3, 3), "int32")
        for j in range(3):
            for i in range(j + 1, 3):
                with T.block("B"):
                    vi, vj = T.axis.spatial(3, i), T.axis.spatial(2, j)
                    B[vi, vj] = A[vi] + A[vj]
        for i in range(3):
            for j in range(i):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj]

    sch = Schedule(below)
    sch.overcompute_box("B")
    assert [sch.get(loop).extent for loop in sch.get_loops("B")] == [2, 3]
    check_transform(below, sch)
