"""decompose_scan: parallel chunks give the results of the whole scan; and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

ROWS = """
@T.prim_func
def f(A: T.Buffer((3, {n}), "int32"), B: T.Buffer((3, {size}), "int32")):
    for i, j in T.grid(3, {n}):
        with T.block("B"):
            vi, vj = T.axis.spatial(3, i), T.axis.{kind}({n}, j)
            {body}
"""
BODIES = {
    "sum": "B[vi, vj] = T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])",
    "exclusive": "B[vi, vj] = T.if_then_else(0 < vj, A[vi, vj - 1] + B[vi, vj - 1], 0)",
    "maximum": "B[vi, vj] = T.if_then_else(vj < 1, A[vi, 1], T.max(B[vi, vj - 1], A[vi, vj]))",
    "goes on": "B[vi, vj + 1] = B[vi, vj] + A[vi, vj] * A[vi, 0]",
    "product": "B[vi, vj + 1] = A[vi, vj] * B[vi, vj]",
    "backwards": "B[vi, {n} - 1 - vj] = B[vi, {n} - vj] + A[vi, vj]",
    "branches": "if vj == 0:\n                B[vi, vj] = A[vi, 1]\n            else:\n"
    "                B[vi, vj] = B[vi, vj - 1] + A[vi, vj]",
    "may start": "B[vi, vj + 1] = T.if_then_else(vj == 0 and A[vi, 0] > 0, 7, "
    "B[vi, vj] + A[vi, vj])",
}


def rows(body: str, n: int, kind: str = "scan") -> str:
    return ROWS.format(n=n, size=n + 1, kind=kind, body=BODIES.get(body, body).format(n=n))


@settings(max_examples=12, deadline=None)
@given(n=st.integers(2, 40), size=st.integers(1, 16), body=st.sampled_from(sorted(BODIES)))
def test_chunks_give_the_whole_scan(n, size, body):
    func = parse(rows(body, n))
    sch = Schedule(func, check=True)
    chunk, _ = sch.split(sch.get_loops("B")[1], [None, min(size, n - 1)])
    total, start = sch.decompose_scan(chunk)
    assert (sch.get(total).name, sch.get(start).name) == ("B_total", "B_start")
    check_transform(func, sch)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", ["opaque", "spatial"])
def test_all_chunks_run_at_once(body, kind):
    func = parse(rows(body, 30, kind))
    sch = Schedule(func, check=True)
    chunk, _ = sch.split(sch.get_loops("B")[1], [None, 8])
    total, _ = sch.decompose_scan(chunk)
    sch.parallel(sch.fuse(*sch.get_loops(total)[:2]))
    sch.parallel(sch.fuse(*sch.get_loops("B")[:2]))
    check_transform(func, sch)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_chunks_across_rows(order):
    func = parse("""
@T.prim_func
def f(A: T.Buffer((24, 5), "float32"), B: T.Buffer((24, 5), "float32")):
    for i, j in T.grid(24, 5):
        with T.block("B"):
            vi, vj = T.axis.scan(24, i), T.axis.spatial(5, j)
            B[vi, vj] = T.if_then_else(vi == 0, A[0, vj], B[vi - 1, vj] + A[vi, vj])
""")
    sch = Schedule(func, check=True)
    i, j = sch.get_loops("B")
    chunk, step = sch.split(i, [4, 6])
    sch.reorder(*[(j, chunk, step)[n] for n in order])
    sch.decompose_scan(chunk)
    sch.parallel(chunk)
    check_transform(func, sch)


def flat(nest: str, binding: str, body: str, extent: int = 32, where: str = "") -> Schedule:
    lines = f"v = T.axis.scan({extent}, {binding})\n" + (f"T.where({where})\n" if where else "")
    indent = "\n" + " " * 4 * (nest.count(":") + 2)
    loops = "".join(
        f"{' ' * 4 * n}{line}:\n" for n, line in enumerate(nest.strip(":").split(":"), 1)
    )
    head = f'{" " * 4 * (nest.count(":") + 1)}with T.block("B"):'
    return Schedule(parse(
        '@T.prim_func\ndef f(A: T.Buffer((64,), "int32"), B: T.Buffer((65,), "int32")):\n'
        f"{loops}{head}{indent}" + (lines + body).replace("\n", indent)
    ))  # fmt: skip


SUM = "B[v + 1] = B[v] + A[v]"
TWO = "for i in range(4):for j in range(8):"


@pytest.mark.parametrize(
    ("sch", "reason", "message"),
    [
        (flat(TWO, "i * 8 + j", "B[v + 1] = B[v] - A[v]"), "no-scan", "block B is no scan"),
        (flat("for i in range(32):", "i", SUM), "not-split", "v of block B is not i times"),
        (flat(TWO, "j * 4 + i", SUM), "not-split", "plus this loop"),
        (flat("for i in range(1):for j in range(8):", "i * 8 + j", SUM, 8), "one-chunk",
         "i runs once: the scan has one chunk"),
        (flat(TWO, "i * 8 + j", SUM, where="i * 8 + j < 30"), "has-predicate", "skips steps"),
        (flat("for i in range(4):for t in range(2):for j in range(8):", "i * 8 + j", SUM),
         "idle-loop", "t drives no iterator"),
        (flat("for i in range(4):for t in range(i + 1):for j in range(8):", "i * 8 + j", SUM),
         "dependent-extent", "the range of t depends on a loop of the scan"),
        (flat(TWO, "i * 8 + j", "vt = T.axis.spatial(4, i)\nB[v + 1] = B[v] + A[vt]"),
         "not-rectangular", "iterator vt depends on the loops of the scan"),
    ],
)  # fmt: skip
def test_refusals(sch, reason, message):
    loop = sch.get_loops("B")[0]
    check_refused(sch, lambda: sch.decompose_scan(loop), reason, message)


def test_a_decaying_sum_has_no_chunks():
    text = ROWS.format(n=8, size=9, kind="scan", body="B[vi, vj + 1] = B[vi, vj] * 0.5 + A[vi, vj]")
    sch = Schedule(parse(text.replace("int32", "float32").replace("0.5", "T.float32(0.5)")))
    chunk, _ = sch.split(sch.get_loops("B")[1], [None, 4])
    check_refused(sch, lambda: sch.decompose_scan(chunk), "no-scan", "block B is no scan")


def test_rows_that_continue_another_row_are_refused():
    sch = Schedule(
        parse("""
@T.prim_func
def f(A: T.Buffer((4, 16), "int32"), B: T.Buffer((65,), "int32")):
    for i, j, k in T.grid(4, 4, 4):
        with T.block("B"):
            vi, vj = T.axis.spatial(4, i), T.axis.scan(16, j * 4 + k)
            B[vi * 16 + vj + 1] = B[vi * 16 + vj] + A[vi, vj]
""")
    )
    message = "may write the element of B that the first step of another scan reads"
    loop = sch.get_loops("B")[1]
    check_refused(sch, lambda: sch.decompose_scan(loop), "start-written", message)


TOGETHER = """
@T.prim_func
def f(A: T.Buffer((32,), "int32"), B: T.Buffer((33,), "int32"), D: T.Buffer((4,), "int32")):
    for i in range(4):
        {more}
        for j in range(8):
            with T.block("B"):
                v = T.axis.scan(32, i * 8 + j)
                B[v + 1] = B[v] + A[v]
"""


def test_other_statements_below_the_chunks_are_refused():
    sch = Schedule(parse(TOGETHER.format(more="D[i] = 1")))
    loop = sch.get_loops("B")[0]
    message = "below i there is more than loops around B"
    check_refused(sch, lambda: sch.decompose_scan(loop), "not-a-chain", message)
    block = 'with T.block("D"):\n            vd = T.axis.spatial(4, i)\n            D[vd] = 1'
    two = Schedule(parse(TOGETHER.format(more=block)))
    first = two.get_loops("B")[0]
    check_refused(two, lambda: two.decompose_scan(first), "not-one-block", "2 blocks are below i")


def test_readers_move_to_a_scan_and_not_the_scan_to_them():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((3, 8), "int32"), C: T.Buffer((3, 8), "int32")):
    B = T.alloc_buffer((3, 8), "int32")
    for i, j in T.grid(3, 8):
        with T.block("B"):
            vi, vj = T.axis.spatial(3, i), T.axis.scan(8, j)
            B[vi, vj] = T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])
    for i, j in T.grid(3, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * 2
""")
    sch = Schedule(func, check=True)
    loop = sch.get_loops("C")[0]
    message = "(?s)needs all results before it.*reverse_compute_at moves the readers"
    check_refused(sch, lambda: sch.compute_at("B", loop), "is-scan", message)
    sch.reverse_compute_at("C", sch.get_loops("B")[1])
    check_transform(func, sch)
