"""fission and decompose_outputs: results, kinds of iterators, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.programs import argmax, elementwise, two_outputs

from metasched.ir.stmt import LetStmt
from metasched.ir.visit import walk_stmts
from metasched.schedule.schedule import Schedule
from metasched.script import parse


def nest(body: str, shapes: str = 'A: T.Buffer((7,), "int32"), B: T.Buffer((7,), "int32")') -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"@T.prim_func\ndef f({shapes}):\n{lines}"


SHIFTED = """
for i in range(1, 6):
    with T.block("first"):
        vi = T.axis.spatial(7, i)
        B[vi] = A[vi{read}] + 1
    with T.block("second"):
        vi = T.axis.spatial(7, i)
        A[vi{write}] = B[vi{late}] * 2
"""


@pytest.mark.parametrize(
    ("read", "write", "late", "legal"),
    [
        ("", "", "", True),
        (" + 1", "", "", True),  # read before it is overwritten, in both orders
        (" - 1", "", "", False),  # reads what an earlier iteration wrote
        ("", "", " - 1", True),
        ("", "", " + 1", False),  # reads what a later iteration overwrites
        (" + 1", " + 1", "", True),
        ("", " + 1", "", False),
    ],
)
def test_fission_of_loops_without_backward_dependence(read, write, late, legal):
    before = parse(nest(SHIFTED.format(read=read, write=write, late=late)))
    sch = Schedule(before)
    loop = sch.get_loops("first")[0]
    if not legal:
        check_refused(
            sch,
            lambda: sch.fission(loop),
            "backward-dependence",
            "in two nests their order is reversed",
        )
        return
    assert [sch.get(part).var.name for part in sch.fission(loop)] == ["i_0", "i_1"]
    check_transform(before, sch)


def test_the_outputs_of_a_block_get_nests_of_their_own():
    sch = Schedule(two_outputs)
    (second,) = sch.decompose_outputs("S")
    assert sch.get(second).name == "S_C"
    kinds = {n: [v.kind.value for v in sch.get(sch.get_block(n)).iter_vars] for n in ("S", "S_C")}
    assert kinds == {"S": ["spatial", "reduce"], "S_C": ["reduce", "spatial"]}
    for position in (1, 0):
        sch.fission(sch.get_loops("S")[position])
    i, j = sch.get_loops("S_C")
    sch.reorder(j, i)
    sch.parallel(j)
    sch.parallel(sch.get_loops("S")[0])
    check_transform(two_outputs, sch)


def test_each_store_takes_its_part_of_the_init():
    before = parse("""
@T.prim_func
def f(A: T.Buffer((4, 6), "int32"), S: T.Buffer((4,), "int32"), M: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 6):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0
                M[vi] = T.min_value("int32")
            S[vi] = S[vi] + A[vi, vk]
            M[vi] = T.max(M[vi], A[vi, vk])
""")
    sch = Schedule(before)
    (second,) = sch.decompose_outputs("S")
    sch.fission(sch.get_loops("S")[1])
    sch.decompose_reduction("S", sch.get_loops("S")[1])
    sch.rfactor(sch.split(sch.get_loops(second)[1], [2, None])[0], 1)
    check_transform(before, sch)


COMPLEX = """
@T.prim_func
def product(A: T.Buffer((20, 36, 2)), B: T.Buffer((36, 64, 2)), C: T.Buffer((20, 64, 2))):
    for i, j, k in T.grid(20, 64, 36):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj, {first}] = T.float32(0)
                C[vi, vj, {second}] = T.float32(0)
            C[vi, vj, 0] += A[vi, vk, 0] * B[vk, vj, 0] - A[vi, vk, 1] * B[vk, vj, 1]
            C[vi, vj, 1] += A[vi, vk, 0] * B[vk, vj, 1] + A[vi, vk, 1] * B[vk, vj, 0]
"""


@pytest.mark.parametrize("first", [0, 1])
def test_each_element_of_a_buffer_takes_its_part_of_the_init(first):
    before = parse(COMPLEX.format(first=first, second=1 - first))
    sch = Schedule(before)
    (second,) = sch.decompose_outputs("C")
    for position in (2, 1, 0):
        sch.fission(sch.get_loops("C")[position])
    for part in (sch.get_block("C"), second):
        sch.privatize_reduction(part)
        sch.decompose_reduction(part, sch.get_loops(part)[2])
        sch.parallel(sch.get_loops(part)[0])
    check_transform(before, sch)


def test_each_output_computes_the_variables_that_it_uses():
    before = parse("""
@T.prim_func
def f(A: T.Buffer((4, 6), "int32"), S: T.Buffer((4,), "int32"), M: T.Buffer((6,), "int32"),
      B: T.Buffer((4, 6), "int32")):
    for i, k in T.grid(4, 6):
        with T.block("S"):
            vi = T.axis.opaque(4, i)
            vk = T.axis.opaque(6, k)
            x = A[vi, vk] * 3
            S[vi] = S[vi] + x
            y = x - 7
            M[vk] = M[vk] + x
            B[vi, vk] = y
""")
    sch = Schedule(before)
    parts = [sch.get_block("S"), *sch.decompose_outputs("S")]
    names = [[s.var.name for s in walk_stmts(sch.get(part).body) if isinstance(s, LetStmt)]
             for part in parts]  # fmt: skip
    assert names == [["x"], ["x"], ["x", "y"]]
    kinds = [[v.kind.value for v in sch.get(part).iter_vars] for part in parts]
    assert kinds == [["spatial", "opaque"], ["opaque", "spatial"], ["spatial", "spatial"]]
    check_transform(before, sch)


OWN = """
for i in range(7):
    with T.block("S"):
        vi = T.axis.spatial(7, i)
        {0}
"""
LINES = "\n        "


@pytest.mark.parametrize(
    ("lines", "reason", "message"),
    [
        (["A[vi] = 1"], "no-stores", "is no sequence of stores: it holds"),
        (["for j in range(2):", "    A[vi] = 1", "B[vi] = 2"], "no-stores", "for j in range"),
        (
            ["T.where(A[i] > 0)", "A[vi] = 1", "B[vi] = 2"],
            "changed-condition",
            "block S writes A, which its predicate or bindings read",
        ),
        (
            ['X = T.alloc_buffer((1,), "int32")', "X[0] = A[vi]", "B[vi] = X[0]"],
            "own-buffers",
            "has buffers of its own",
        ),
        (
            ["x = A[vi]", "y = x + B[vi]", "A[vi] = 1", "B[vi] = y"],
            "changed-variable",
            "in block S, x of the store to B reads A, which another store changes",
        ),
    ],
)
def test_blocks_that_cannot_be_cut(lines, reason, message):
    sch = Schedule(parse(nest(OWN.format(LINES.join(lines)))))
    check_refused(sch, lambda: sch.decompose_outputs("S"), reason, message)


def with_init(init: list[str], stores: list[str]) -> Schedule:
    lines = ["with T.init():", *(f"    {line}" for line in init), *stores]
    text = OWN.format(LINES.join(lines)).replace("spatial(7, i)", "reduce(7, i)")
    return Schedule(parse(nest(text)))


def test_an_init_after_a_store_that_uses_its_result_is_refused():
    sch = with_init(["A[0] = 0", "B[0] = 0"], ["A[0] = A[0] + B[0]", "B[0] = B[0] + 1"])
    message = "would run after a store that uses B"
    check_refused(sch, lambda: sch.decompose_outputs("S"), "init-late", message)


def test_an_init_of_an_element_that_an_earlier_store_uses_is_refused():
    sch = with_init(["A[0] = 0", "A[1] = 0"], ["A[0] = A[0] + A[1]", "A[1] = A[1] + 1"])
    message = "would run after a store that uses A"
    check_refused(sch, lambda: sch.decompose_outputs("S"), "init-late", message)


def test_an_init_that_no_store_updates_is_refused():
    sch = with_init(["A[0] = 0", "A[1] = 0"], ["B[0] = B[0] + 1", "B[1] = B[1] + 1"])
    message = "which no store updates"
    check_refused(sch, lambda: sch.decompose_outputs("S"), "init-of-no-store", message)


def test_an_argmax_is_one_value():
    """The two outputs depend on each other, so decompose_outputs refuses them."""
    sch = Schedule(argmax)
    message = "of the store to N reads M, which another store changes"
    check_refused(sch, lambda: sch.decompose_outputs("M"), "changed-variable", message)


def test_loops_that_cannot_be_cut():
    sch = Schedule(elementwise)
    loop = sch.get_loops("B")[0]
    message = "the loop i holds one statement"
    check_refused(sch, lambda: sch.fission(loop), "one-statement", message)
    mixed = """
for i in range(7):
    with T.block("S"):
        A[i] = 1
    B[i] = A[i]
"""
    sch = Schedule(parse(nest(mixed)))
    loop = sch.get_loops("S")[0]
    message = "holds more than loops and blocks"
    check_refused(sch, lambda: sch.fission(loop), "not-structured", message)
