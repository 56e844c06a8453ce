"""Updates of elements: inlined where they are overwritten, moved below a tile, factored."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Mul
from metasched.schedule.schedule import Schedule
from metasched.script import parse

HEAD = '@T.prim_func\ndef f(A: T.Buffer((4, 6), "{0}"), C: T.Buffer((4, 6), "{0}")):\n'
BLOCK = """    for {loops}:
        with T.block("{name}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {line}
"""
ROWS, COLUMNS = "i, j in T.grid(4, 6)", "j, i in T.grid(6, 4)"


def program(*blocks: tuple[str, str, str], dtype: str = "int32") -> Schedule:
    text = HEAD.format(dtype)
    text += "".join(BLOCK.format(name=n, loops=loops, line=line) for n, loops, line in blocks)
    return Schedule(parse(text), check=True)


SCALE = ("scale", ROWS, "C[vi, vj] = C[vi, vj] * 3")


@pytest.mark.parametrize(
    "blocks",
    [
        (SCALE, ("add", ROWS, "C[vi, vj] = C[vi, vj] + A[vi, vj]")),
        (SCALE, ("add", COLUMNS, "C[vi, vj] = A[vi, vj] - C[vi, vj] * C[vi, vj]")),
        (SCALE, ("set", ROWS, "C[vi, vj] = A[vi, vj]")),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_an_update_moves_into_the_block_that_overwrites_it(blocks, dtype):
    sch = program(*blocks, dtype=dtype)
    before = sch.mod["main"]
    sch.compute_inline("scale")
    assert "scale" not in sch.script()
    check_transform(before, sch)


def test_a_block_between_may_use_other_elements():
    sch = program(SCALE, ("other", ROWS, "A[vi, vj] = A[vi, vj] + 1"),
                  ("add", ROWS, "C[vi, vj] = C[vi, vj] + A[vi, vj]"))  # fmt: skip
    before = sch.mod["main"]
    sch.compute_inline("scale")
    check_transform(before, sch)


ADD = ("add", ROWS, "C[vi, vj] = C[vi, vj] + A[vi, vj]")
READ = ("read", ROWS, "A[vi, vj] = C[vi, vj]")


@pytest.mark.parametrize("after", [ADD, ("set", ROWS, "C[vi, vj] = A[vi, vj]")])
def test_a_reader_before_the_overwriter_takes_the_value_too(after):
    sch = program(SCALE, READ, after)
    before = sch.mod["main"]
    sch.compute_inline("scale")
    assert "scale" not in sch.script()
    check_transform(before, sch)


@pytest.mark.parametrize(
    "read",
    [
        ("read", ROWS, "A[vi, vj] = C[vi, 0]"),
        ("read", "i, j in T.grid(4, 5)", READ[2]),
        ("read", "t, i, j in T.grid(2, 4, 6)", "A[vi, vj] = C[3 - vi, vj] - C[vi, 0]"),
    ],
)
def test_a_reader_in_loops_of_its_own_may_read_any_elements(read):
    sch = program(SCALE, read, ADD)
    before = sch.mod["main"]
    sch.compute_inline("scale")
    assert "scale" not in sch.script()
    check_transform(before, sch)


@pytest.mark.parametrize(
    "blocks",
    [
        (SCALE,),
        (SCALE, ("add", "i, j in T.grid(4, 5)", ADD[2])),
        (("scale", ROWS, "C[vi, vj] = C[vi, vj] + A[vi, vj]"), READ, ADD),
        (SCALE, ("read", ROWS, "A[vi, vj] = C[vi, 0]\n            C[vi, vj] = 1"), ADD),
        (("scale", "i, j in T.grid(4, 5)", SCALE[2]), ("read", ROWS, "A[vi, vj] = C[vi, 0]"), ADD),
        (("scale", ROWS, "C[vi, vj] = A[vi, vj]"), ("write", ROWS, "A[vi, vj] = 1"), ADD),
        (("scale", "t, i, j in T.grid(2, 4, 6)", SCALE[2]), ADD),
        (SCALE, ("add", "t, i, j in T.grid(2, 4, 6)", ADD[2])),
        (SCALE, ("add", ROWS, "C[vi, vj] = C[vi, 0] + A[vi, vj]")),
        (("scale", ROWS, "C[vi, vj] = C[vi, 0] * 3"), ADD),
        (("scale", ROWS, "T.where(i < j)\n            C[vi, vj] = C[vi, vj] * 3"), ADD),
        (SCALE, ("add", ROWS, "T.where(i < j)\n            " + ADD[2])),
    ],
)
def test_other_updates_stay(blocks):
    """No overwriter, other boxes, inputs that change, repetitions, and predicates."""
    sch = program(*blocks)
    reason = "output-block" if len(blocks) == 1 else "write-after-read"
    check_refused(sch, lambda: sch.compute_inline("scale"), reason, "scale writes|overwrites [AC]")


TILES = """
@T.prim_func
def f(A: T.Buffer((7, 5), "int32"), C: T.Buffer((7,), "int32")):
    P = T.alloc_buffer((7,), "int32")
    for {loops}:
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                P[vi] = 0
            P[vi] = P[vi] + A[vi, vk]
    for i in range(7):
        with T.block("C"):
            vi = T.axis.spatial(7, i)
            C[vi] = {value}
"""


def tiles(value: str = "C[vi] * 2 + P[vi]", loops: str = "i, k in T.grid(7, 5)") -> Schedule:
    return Schedule(parse(TILES.format(value=value, loops=loops)), check=True)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_an_update_moves_below_a_tile(rows):
    """7 rows in tiles of 3 leave a part of a tile, where the update has a condition."""
    sch = tiles()
    before = sch.mod["main"]
    i, k = sch.get_loops("P")
    outer, inner = sch.split(i, [None, rows])
    sch.reorder(outer, k, inner)
    sch.reverse_compute_at("C", outer)
    check_transform(before, sch)


def test_an_update_that_would_run_twice_stays():
    sch = tiles(loops="t, i, k in T.grid(2, 7, 5)")
    loop = sch.get_loops("P")[0]
    check_refused(
        sch, lambda: sch.reverse_compute_at("C", loop), "repeated-update",
        "C updates its result, and two iterations of the loops t may run",
    )  # fmt: skip


def test_an_update_that_runs_twice_stays():
    text = TILES.format(value="C[vi] * 2 + P[vi]", loops="i, k in T.grid(7, 5)")
    text = text.replace("for i in range(7):", "for t, i in T.grid(2, 7):")
    sch = Schedule(parse(text), check=True)
    loop = sch.get_loops("P")[0]
    message = "two iterations of the loops t, i may run the same instance"
    check_refused(sch, lambda: sch.reverse_compute_at("C", loop), "repeated-update", message)


def test_a_block_that_reads_no_result_of_its_own_may_run_twice():
    sch = tiles("P[vi] * 2", loops="t, i, k in T.grid(2, 7, 5)")
    before = sch.mod["main"]
    sch.reverse_compute_at("C", sch.get_loops("P")[0])
    check_transform(before, sch)


def test_an_update_of_other_elements_stays():
    sch = tiles("C[0] + P[vi]")
    loop = sch.get_loops("P")[0]
    check_refused(
        sch, lambda: sch.reverse_compute_at("C", loop), "not-complete-or-reduction", "reads"
    )


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("P[vi] + 3 * A[vi, vk]", True),
        ("P[vi] + A[vi, vk] * 3 * A[vi, 0]", True),
        ("P[vi] + (2 * A[vi, vk] - A[vi, 0] * 2)", True),
        ("P[vi] + (2 * A[vi, vk] - A[vi, 0] * 3)", False),
        ("P[vi] + A[vi, vk]", False),
        ("T.max(P[vi], 2 * A[vi, vk])", False),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "float64", "float16"])
def test_a_private_sum_is_multiplied_once(line, left, dtype):
    text = TILES.format(value="C[vi] + P[vi]", loops="i, k in T.grid(7, 5)")
    text = text.replace("P[vi] + A[vi, vk]", line).replace("int32", dtype)
    if "max" in line:
        text = text.replace("P[vi] = 0", f"P[vi] = T.min_value('{dtype}')")
    sch = Schedule(parse(text), check=True)
    before = sch.mod["main"]
    last = sch.privatize_reduction("P")
    assert isinstance(sch.get(last).body.value, Mul) == (left and dtype != "float16")
    check_transform(before, sch)


@pytest.mark.parametrize(
    "factor", ["2e-6", "2e5", "1e-40", "0.0", "float('inf')", "float('nan')",
               "1e-30) * A[vi, 0] * T.float32(3e30"],
)  # fmt: skip
def test_factors_of_another_magnitude_stay(factor):
    """The last product is (1e-30 * x * y) * 3e30, not 3 * (x * y): x * y may overflow."""
    text = TILES.format(value="C[vi] + P[vi]", loops="i, k in T.grid(7, 5)")
    text = text.replace("+ A[vi, vk]", f"+ A[vi, vk] * T.float32({factor})")
    sch = Schedule(parse(text.replace("int32", "float32")))
    assert isinstance(sch.get(sch.privatize_reduction("P")).body.value, BufferLoad)


def test_what_a_scan_updates_is_not_set_again():
    """Row i + 1 would be set where the scan reads it, after the scan wrote it one step before."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((7, 4), "int32"), D: T.Buffer((6, 4), "int32")):
    C = T.alloc_buffer((7, 4), "int32")
    for i, j in T.grid(7, 4):
        with T.block("set"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for i, j in T.grid(6, 4):
        with T.block("scan"):
            vi, vj = T.axis.opaque(6, i), T.axis.spatial(4, j)
            if vi >= 1:
                C[vi, vj] = T.min(C[vi - 1, vj], A[vi, vj] - 1)
    for i, j in T.grid(6, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj]
""")
    sch = Schedule(func, check=True)
    rows, columns = sch.get_loops("scan")
    tile, _ = sch.split(rows, [None, 2])
    refused = "repeated-update", "may run the same instance"
    check_refused(sch, lambda: sch.compute_at("set", tile), *refused)
    sch = Schedule(func, check=True)
    sch.reorder(*reversed(sch.get_loops("scan")))
    sch.compute_at("set", sch.get_loops("scan")[0])
    check_transform(func, sch)
