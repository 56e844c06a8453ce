"""privatize_update: histograms and scatter-adds with a copy per iteration; and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

SCATTER = """
@T.prim_func
def f(N: T.Buffer((12,), "int32"), A: T.Buffer((12, 5), "{dtype}"), C: T.Buffer((6, 5), "{dtype}")):
    for i, j in T.grid(12, 5):
        with T.block("C"):
            vi, vj = T.axis.{kind}(12, i), T.axis.spatial(5, j)
            {body}
"""
AT = "C[N[vi] % 6, vj]"


def scatter(body: str = f"{AT} = {AT} + A[vi, vj]", kind: str = "reduce", dtype: str = "int32"):
    return parse(SCATTER.format(body=body, kind=kind, dtype=dtype))


@pytest.mark.parametrize("kind", ["reduce", "opaque", "spatial"])
@pytest.mark.parametrize(
    "body",
    [
        f"{AT} = {AT} + A[vi, vj]",
        f"{AT} = {AT} - A[vi, vj] * 2",
        f"{AT} = T.max(A[vi, vj], {AT})",
        f"{AT} = {AT} * A[vi, vj]",
        f"if 0 <= N[vi] and N[vi] < 6:\n                {AT} = {AT} + A[vi, vj]",
        f"if N[vi] > 0:\n                if A[vi, vj] > 0:\n                    {AT} = {AT} - 2",
        f"if N[vi] > 0:\n                {AT} = {AT} + 1\n            else:\n"
        "                C[vi % 3, vj] = C[vi % 3, vj] - A[vi, vj]",
        "at: T.let = N[vi] % 6\n            if at > 0:\n"
        "                C[at, vj] = T.min(C[at, vj], A[vi, vj])",
        f"{AT} = {AT} + 1\n            for k in range(N[vi]):\n"
        "                C[k % 6, 4 - vj] = C[k % 6, 4 - vj] + k",
        f"{AT} = {AT} - 1\n            C[0, vj] = C[0, vj] - A[vi, vj]",
    ],
)
def test_copies_give_the_same(body, kind):
    func = scatter(body, kind)
    sch = Schedule(func, check=True)
    chunk, _ = sch.split(sch.get_loops("C")[0], [None, 5])
    identity, merge = sch.privatize_update(chunk)
    assert (sch.get(identity).name, sch.get(merge).name) == ("C_identity", "C_merge")
    sch.parallel(chunk)
    sch.parallel(sch.get_loops(merge)[0])
    check_transform(func, sch)


def test_each_iteration_may_have_a_copy_below_other_loops():
    func = scatter(dtype="float32")
    sch = Schedule(func, check=True)
    i, j = sch.get_loops("C")
    sch.reorder(j, i)
    sch.privatize_update(i)
    check_transform(func, sch)


@pytest.mark.parametrize("kind", ["reduce", "opaque", "spatial"])
def test_columns_of_a_scatter_add_are_independent(kind):
    func = scatter(kind=kind)
    sch = Schedule(func, check=True)
    i, j = sch.get_loops("C")
    sch.reorder(j, i)
    sch.parallel(j)
    check_transform(func, sch)
    sch = Schedule(func, check=True)
    sch.vectorize(sch.get_loops("C")[1])
    check_transform(func, sch)


def test_opaque_loops_keep_their_order_where_accesses_are_unknown():
    text = """
@T.prim_func
def f(A: T.Buffer((4, 5), "int32"), C: T.Buffer((4, 5), "int32")):
    for i, j in T.grid(4, 5):
        with T.block("C"):
            vi, vj = T.axis.opaque(4, i), T.axis.opaque(5, j)
            with T.block("inner"):
                C[vi, vj] = A[vi, vj] + 1
"""
    sch = Schedule(parse(text))
    i, j = sch.get_loops("C")
    check_refused(sch, lambda: sch.reorder(j, i), "iterator-kind", "iterator vi of block C is opaq")


SELF = "C[C[0, 0] % 6, vj] = C[C[0, 0] % 6, vj] + A[vi, vj]"


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (f"{AT} = A[vi, vj] - {AT}", "no-update", "block C is no update of elements"),
        (f"with T.init():\n                {AT} = 0\n            {AT} = {AT} + A[vi, vj]",
         "has-init", "has an init"),
        (SELF, "no-update", "the indices or the conditions of C read C"),
        (f"if C[0, 0] > 0:\n                {AT} = {AT} + 1", "no-update",
         "the indices or the conditions of C read C"),
        (f"{AT} = {AT} + 1\n            C[0, vj] = T.max(C[0, vj], 3)", "no-update",
         "block C is no update of elements of one buffer by one operation"),
        (f"{AT} = {AT} + 1\n            C[0, vj] = A[vi, vj]", "no-update",
         "block C is no update of elements"),
        (f"{AT} = {AT} + C[0, 0]", "no-update", "values that do not use the buffer"),
        (f"T.evaluate(N[vi])\n            {AT} = {AT} + 1", "no-update",
         "block C is no update of elements"),
        (f"T.where(C[0, 0] > 0)\n            {AT} = {AT} + A[vi, vj]", "no-update",
         "the indices or the conditions of C read C"),
    ],
)  # fmt: skip
def test_refused_bodies(body, reason, message):
    sch = Schedule(scatter(body))
    loop = sch.get_loops("C")[0]
    check_refused(sch, lambda: sch.privatize_update(loop), reason, message)


def test_buffers_without_a_constant_shape_are_refused():
    sch = Schedule(
        parse("""
@T.prim_func
def f(N: T.Buffer((12,), "int32"), c: T.handle):
    n = T.int32()
    C = T.match_buffer(c, (n,), "int32")
    for i in range(12):
        with T.block("C"):
            vi = T.axis.reduce(12, i)
            C[N[vi] % n] = C[N[vi] % n] + 1
""")
    )
    loop = sch.get_loops("C")[0]
    message = "loop i and buffer C have no constant extents"
    check_refused(sch, lambda: sch.privatize_update(loop), "symbolic-extent", message)


TOGETHER = """
@T.prim_func
def f(A: T.Buffer((4, 8), "int32"), C: T.Buffer((8,), "int32"), D: T.Buffer((4,), "int32")):
    for i in range(4):
        {more}
        for j in range(8):
            with T.block("C"):
                vi, vj = T.axis.reduce(4, i), T.axis.spatial(8, j)
                C[vj] = C[vj] + A[vi, vj]
"""


def test_other_statements_below_the_loop_are_refused():
    sch = Schedule(parse(TOGETHER.format(more="D[i] = 1")))
    loop = sch.get_loops("C")[0]
    message = "below i there is more than loops around C"
    check_refused(sch, lambda: sch.privatize_update(loop), "not-a-chain", message)
    block = 'with T.block("D"):\n            vd = T.axis.spatial(4, i)\n            D[vd] = 1'
    two = Schedule(parse(TOGETHER.format(more=block)))
    first = two.get_loops("C")[0]
    check_refused(two, lambda: two.privatize_update(first), "not-one-block", "2 blocks are below i")


def test_a_part_of_the_buffer_in_a_block_around_is_refused():
    sch = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((4, 8), "int32"), C: T.Buffer((4, 6), "int32")):
    for i, j, k in T.grid(4, 6, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = C[vi, vj] + A[vi, vk]
""")
    )
    _, j, _ = sch.get_loops("C")
    sch.blockize(j)
    message = "block C_o writes a part of C only"
    check_refused(sch, lambda: sch.privatize_update(j), "part-of-buffer", message)


def test_an_iterator_over_several_loops_needs_constant_ranges():
    sch = Schedule(
        parse("""
@T.prim_func
def f(C: T.Buffer((6,), "int32")):
    for i in range(3):
        for j in range(3 - i):
            with T.block("C"):
                vi = T.axis.opaque(6, i + j)
                C[vi] = C[vi] + 1
""")
    )
    loop, message = sch.get_loops("C")[0], "the range of loop j is not constant"
    check_refused(sch, lambda: sch.privatize_update(loop), "symbolic-extent", message)
