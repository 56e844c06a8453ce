"""privatize_reduction: the same sums through a private buffer, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched import workloads
from metasched.kinds.cpu import cpu_modules
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.target import Target

HEAD = (
    '@T.prim_func\ndef f(A: T.Buffer((5, 6), "{0}"), C: T.Buffer((5,), "{0}"), '
    'N: T.Buffer((5,), "int32")):\n'
)
NEST = """    for i in range(5):
        for k in {span}:
            with T.block("C"):
                vi, vk = T.axis.remap("{kinds}", [i, k])
                {lines}
"""


def nest(update: str, dtype: str = "int32", span: str = "range(6)", kinds: str = "SR") -> Schedule:
    lines = update.replace("\n", "\n" + " " * 16)
    text = HEAD.format(dtype) + NEST.format(span=span, kinds=kinds, lines=lines)
    return Schedule(parse(text), check=True)


@pytest.mark.parametrize(
    "update",
    [
        "C[vi] = C[vi] + A[vi, vk] * 2",
        "C[vi] = A[vi, vk] + C[vi]",
        "C[vi] = C[vi] - A[vi, vk]",
        "C[vi] = C[vi] * A[vi, vk]",
        "C[vi] = T.min(C[vi], A[vi, vk])",
        "C[vi] = T.max(C[vi], A[vi, vk])",
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_sums_through_a_private_buffer(update, dtype):
    sch = nest(update, dtype)
    before = sch.mod["main"]
    adder = sch.privatize_reduction("C")
    assert sch.get(adder).name == "C_add"
    sch.decompose_reduction("C", sch.get_loops("C")[1])
    sch.parallel(sch.get_loops(adder)[0])
    check_transform(before, sch)


@pytest.mark.parametrize("span", ["range(i + 1)", "range(6 - i)", "range(2, 5)"])
def test_rows_of_different_length(span):
    sch = nest("C[vi] = C[vi] + A[vi, vk]", span=span)
    before = sch.mod["main"]
    sch.privatize_reduction("C")
    check_transform(before, sch)


def test_the_lower_triangle_of_a_product():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), C: T.Buffer((6, 6), "int32")):
    for i, k in T.grid(6, 5):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]
""")
    sch = Schedule(func, check=True)
    sch.privatize_reduction("C")
    sch.decompose_reduction("C", sch.get_loops("C")[1])
    check_transform(func, sch)


def test_a_scalar():
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), S: T.Buffer((), "int32")):
    for k in range(8):
        with T.block("S"):
            vk = T.axis.reduce(8, k)
            S[()] = S[()] + A[vk]
"""
    sch = Schedule(parse(text), check=True)
    before = sch.mod["main"]
    sch.privatize_reduction("S")
    sch.rfactor(sch.split(sch.get_loops("S")[0], [2, None])[0], 0)
    check_transform(before, sch)


INIT = "with T.init():\n    C[vi] = 0\nC[vi] = C[vi] + A[vi, vk]"


@pytest.mark.parametrize("init", ["0", "C[vi] * 2", "A[vi, 0]"])
@pytest.mark.parametrize("span", ["range(6)", "range(6 - i)"])
def test_a_reduction_with_an_init_stores_its_results_at_the_end(init, span):
    sch = nest(INIT.replace("= 0", f"= {init}"), span=span)
    before = sch.mod["main"]
    last = sch.privatize_reduction("C")
    assert sch.get(last).name == "C_store" and sch.get(last).init is None
    check_transform(before, sch)


def test_the_private_buffer_is_indexed_by_the_iterators():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((9, 6), "int32"), C: T.Buffer((9,), "int32")):
    for i in range(2, 9):
        for k in range(6):
            with T.block("C"):
                vi = T.axis.spatial((2, 9), i)
                vk = T.axis.reduce(6, k)
                C[vi] = C[vi] + A[vi, vk]
""")
    sch = Schedule(func, check=True)
    sch.privatize_reduction("C")
    assert sch.get(sch.get_block("C")).writes[0].buffer.constant_shape() == (9,)
    check_transform(func, sch)


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"update": INIT + " + C[0]"}, "several-places", "does not compute one element"),
        ({"update": INIT.replace("= 0", "= C[4]")}, "several-places", "set by its init"),
        ({"update": INIT, "span": "range(i)"}, "empty-reduction", "loop k may leave C nothing"),
        ({"update": "C[vi] = A[vi, vk] - C[vi]"}, "no-update", "no update of one element"),
        ({"update": "C[vi] = C[vi] * 2 + A[vi, vk]"}, "no-update", "do not use its buffer"),
        ({"update": "C[vi] = C[vi] + C[0] + A[vi, vk]"}, "no-update", "no update"),
        ({"update": "T.where(A[0, 0] > 0)\nC[vi] = C[vi] + 1"}, "not-plain", "has a predicate"),
        (
            {"update": "C[N[vk % 5] % 5] = C[N[vk % 5] % 5] + A[vi, vk]"},
            "no-update",
            "a reduce iterator chooses the element that C updates",
        ),
        ({"span": "range(i)"}, "empty-reduction", "loop k may leave C nothing to reduce"),
        ({"span": "range(N[i])"}, "empty-reduction", "nothing to reduce"),
        ({"span": "range(i, 6)"}, "ragged-start", "over vk does not always start at its first"),
        ({"kinds": "SS"}, "reduction-above", "must be loops of its iterators"),
    ],
)
def test_refusals(change, reason, message):
    sch = nest(**{"update": "C[vi] = C[vi] + A[vi, vk]", **change})
    check_refused(sch, lambda: sch.privatize_reduction("C"), reason, message)


def test_an_opaque_iterator_is_refused():
    text = """
@T.prim_func
def f(A: T.Buffer((5, 6), "int32"), C: T.Buffer((5,), "int32")):
    for i, k in T.grid(5, 6):
        with T.block("C"):
            vi = T.axis.spatial(5, i)
            vk = T.axis.opaque(6, k)
            C[vi] = C[vi] + A[vi, vk]
"""
    sch = Schedule(parse(text))
    message = "iterator vk of block C is opaque"
    check_refused(sch, lambda: sch.privatize_reduction("C"), "iterator-kind", message)


def test_a_spatial_loop_inside_a_ragged_reduction_is_refused():
    text = """
@T.prim_func
def f(A: T.Buffer((6, 6), "int32"), C: T.Buffer((6,), "int32")):
    for k in range(6):
        for i in range(k + 1):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + A[vi, vk]
"""
    sch = Schedule(parse(text))
    message = "the range of loop i depends on a loop of the reduction"
    check_refused(sch, lambda: sch.privatize_reduction("C"), "dependent-extent", message)


def test_a_product_added_to_a_scaled_matrix_gets_register_blocks():
    """Every design space of `C = beta * C; C += A · B` that tiles computes the same."""
    workload, shape, target = workloads.get("poly.gemm"), (24, 32, 40), Target.of("native")
    func = workload.func(shape)
    tiled = 0
    inputs = workload.inputs(shape)
    (*_, expected) = workload.expected(inputs, shape)
    for trace in SpaceGenerator(cpu_modules(target)).generate(func):
        steps = [entry.kind.name for entry in trace.entries]
        if "reindex" not in steps and "cache_write" not in steps:
            continue
        tiled += 1
        sch = Schedule(func, seed=1)
        trace.apply(sch, decisions="fresh")
        arrays = workload.arguments(inputs, shape)
        build(sch.mod, target)(*arrays)
        np.testing.assert_allclose(arrays[-1], expected, rtol=1e-13)
    assert tiled


def test_a_block_moves_where_others_update_what_it_does_not_touch():
    """D is read, then overwritten, which matters only for blocks that touch D."""
    text = """
@T.prim_func
def f(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32"), D: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("D"):
            vi = T.axis.spatial(6, i)
            D[vi] = D[vi] * 2
    for i in range(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = A[vi] + 1
    for i in range(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = B[vi] * 3
    for i in range(6):
        with T.block("E"):
            vi = T.axis.spatial(6, i)
            D[vi] = D[vi] + C[vi]
"""
    func = parse(text)
    sch = Schedule(func, check=True)
    sch.compute_at("B", sch.get_loops("C")[0])
    check_transform(func, sch)
    loop = sch.get_loops("E")[0]
    message = "block D both reads and writes D"
    check_refused(sch, lambda: sch.compute_at("D", loop), "not-complete-or-reduction", message)


AGAIN = """
@T.prim_func
def again(P: T.Buffer((4,), "int32")):
    for k in range(3):
        for i in range({end}):
            with T.block("P"):
                vk, vi = T.axis.remap("RS", [k, i])
                with T.init():
                    P[{at}] = 3
                P[{at}] = P[{at}] + vi
"""


def test_an_init_that_sets_an_element_again_is_refused() -> None:
    sch = Schedule(parse(AGAIN.format(end="4", at="vi % 2")))
    text = "may set an element of P again for another value of vi"
    check_refused(sch, lambda: sch.privatize_reduction("P"), "set-again", text)


def test_a_loop_that_ends_by_the_result_is_refused() -> None:
    text = """
@T.prim_func
def ends(P: T.Buffer((4,), "int32")):
    for i in range(T.min(T.max(P[0], 0), 4)):
        for k in range(3):
            with T.block("P"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(3, k)
                P[vi] = P[vi] + vk
"""
    sch = Schedule(parse(text))
    step = lambda: sch.privatize_reduction("P")  # noqa: E731
    check_refused(sch, step, "not-plain", "a binding or a loop of P reads its result")
