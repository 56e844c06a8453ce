"""cache_values: slow values that many iterations share, in stages; every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

PROGRAM = """
@T.prim_func
def f(S: T.Buffer((5, 6), "{dtype}"), M: T.Buffer((5,), "{dtype}"), V: T.Buffer((6, 8), "{dtype}"),
      O: T.Buffer((5, 8), "{dtype}")):
    for h, d, l in T.grid(5, 8, 6):
        with T.block("O"):
            vh, vd, vl = T.axis.remap("SSR", [h, d, l])
            with T.init():
                O[vh, vd] = T.{dtype}(0)
            O[vh, vd] = {value}
"""


def program(value: str, dtype: str = "float32"):
    return parse(PROGRAM.format(value=value, dtype=dtype))


CACHED = {
    "a function": ("O[vh, vd] + T.exp(S[vh, vl] - M[vh]) * V[vl, vd]", 1),
    "a quotient of it": ("O[vh, vd] + T.exp(S[vh, vl] - M[vh]) / M[vh] * V[vl, vd]", 1),
    "two, one of them twice": (
        "O[vh, vd] + T.exp(S[vh, vl]) * V[vl, vd] * (T.float32(1) / M[vh]) + T.exp(S[vh, vl])", 2),
    "in a condition": ("O[vh, vd] + T.if_then_else(T.exp(M[vh]) > M[vh], V[vl, vd], M[vh])", 1),
    "also in a branch": (
        "O[vh, vd] + T.exp(M[vh]) * T.if_then_else(vl < vd, T.exp(M[vh]), V[vl, vd])", 1),
    "a choice inside": (
        "O[vh, vd] + T.exp(T.if_then_else(vl >= vh, S[vh, vl], T.float32(0))) * V[vl, vd]", 1),
    "of the column": ("O[vh, vd] + S[vh, vl] / (V[0, vd] * V[0, vd] + T.float32(1))", 0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", CACHED)
def test_each_value_is_computed_once(name: str, dtype: str) -> None:
    value, count = CACHED[name]
    func = program(value.replace("T.float32", f"T.{dtype}"), dtype)
    sch = Schedule(func, check=True)
    if not count:
        check_refused(sch, lambda: sch.cache_values("O", "global", 9), "no-values", "O stores no")
        return
    made = sch.cache_values("O", "global")
    assert [sch.get(b).name for b in made] == ["O_value", "O_value_1"][:count]
    check_transform(func, sch, compiled=False)


def test_only_what_many_iterations_share() -> None:
    """A quotient of one row and one column of the sum is shared by 8 columns of the result."""
    func = program("O[vh, vd] + S[vh, vl] / M[vh] * V[vl, vd]")
    sch = Schedule(func)
    check_refused(
        sch, lambda: sch.cache_values("O", "local", 9), "no-values",
        "O stores no slow value outside of conditions that 9 iterations share",
    )  # fmt: skip
    assert len(sch.cache_values("O", "local", 8)) == 1


@pytest.mark.parametrize(
    "value",
    [
        "O[vh, vd] + S[vh, vl] * V[vl, vd]",
        "O[vh, vd] + M[vh] / T.float32(3) * V[vl, vd]",
        "O[vh, vd] + T.exp(S[vh, vl] * V[vl, vd])",
        "T.exp(O[vh, 0]) + V[vl, vd] if False else O[vh, vd] + T.max(O[vh, 0] / M[vh], V[vl, vd])",
        "O[vh, vd] + T.if_then_else(vl < vd, T.exp(M[vh]), V[vl, vd])",
        "O[vh, vd] + T.Select(vl < vd, T.exp(M[vh]), V[vl, vd])",
    ],
)
def test_other_values_stay(value: str) -> None:
    value = value.split(" if False else ")[-1]
    sch = Schedule(program(value))
    check_refused(sch, lambda: sch.cache_values("O", "global"), "no-values", "O stores no slow")


def test_refusals() -> None:
    func = program("O[vh, vd] + T.exp(S[vh, vl]) * V[vl, vd]")
    sch = Schedule(func)
    check_refused(sch, lambda: sch.cache_values("O", "here"), "unknown-scope", "no storage scope")
    check_refused(
        sch, lambda: sch.cache_values("O", "global", "many"), "not-an-integer", "least is 'many'"
    )
    sch.split(sch.get_loops("O")[2], [2, 3])
    check_refused(sch, lambda: sch.cache_values("O", "global"), "not-trivial-binding", "O")
    shared = parse("""
@T.prim_func
def f(A: T.Buffer((4, 6)), B: T.Buffer((6,)), C: T.Buffer((4,))):
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi, 0]
        for j in range(6):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.reduce(6, j)
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vj] * T.exp(B[vj])
""")
    sch = Schedule(shared)
    check_refused(
        sch, lambda: sch.cache_values("C", "global"), "value-changes", "the loop i writes B, which"
    )


def test_what_the_block_keeps_for_itself_stays() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6,)), B: T.Buffer((4, 6)), C: T.Buffer((4, 6))):
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            d = T.alloc_buffer((6,))
            d[vj] = A[vj] + 1.0
            C[vi, vj] = B[vi, vj] * T.sqrt(d[vj])
""")
    sch = Schedule(func)
    check_refused(sch, lambda: sch.cache_values("C", "global"), "no-values", "C stores no slow")


WINDOW = """
@T.prim_func
def f(X: T.Buffer((2, 3, 9, 10), "{dtype}"), W: T.Buffer((8, 3, 3, 2), "{dtype}"),
      Y: T.Buffer((2, 8, 4, 5), "{dtype}")):
    for n, o, i, j, c, p, q in T.grid(2, 8, 4, 5, 3, 3, 2):
        with T.block("Y"):
            vn, vo, vi, vj, vc, vp, vq = T.axis.remap("SSSSRRR", [n, o, i, j, c, p, q])
            with T.init():
                Y[vn, vo, vi, vj] = T.{dtype}(0)
            Y[vn, vo, vi, vj] += {value}
"""
PAD = "T.if_then_else({row} >= 1 and {row} < 8 and {column} < 9, X[vn, vc, {row} - 1, {column}], 0)"


@pytest.mark.parametrize(
    ("row", "column", "shape"),
    [
        ("vi + vp", "vj + vq", "2, 3, 6, 6"),
        ("vi * 2 + vp", "vq + 2 * vj", "2, 3, 9, 10"),
        ("vi + 2 * vp", "vj", "2, 3, 8, 5"),
        ("(vp + vi) * 2", "vj * 2", "2, 3, 6, 5"),
        ("vp + vi + 1", "3 + vq", "2, 3, 6, 2"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_padded_window_is_a_stage_over_its_rows_and_columns(row, column, shape, dtype) -> None:
    value = PAD.format(row=row, column=column) + " * W[vo, vc, vp, vq]"
    func = parse(WINDOW.format(value=value, dtype=dtype))
    sch = Schedule(func, check=True)
    (made,) = sch.cache_values("Y", "global", 8)
    assert f"Y_value = T.alloc_buffer(({shape})" in sch.script()
    assert ", ".join(str(v.dom.extent.value) for v in sch.get(made).iter_vars) == shape
    check_transform(func, sch, compiled=False)


def test_a_function_of_a_window_is_computed_once_for_each_element() -> None:
    func = parse(WINDOW.format(value="T.exp(X[vn, vc, vi + vp, vj]) * W[vo, vc, vp, vq]",
                               dtype="float32"))  # fmt: skip
    sch = Schedule(func, check=True)
    sch.cache_values("Y", "global")
    assert "Y_value[v0, v1, v2, v3] = T.exp(X[v0, v1, v2, v3])" in sch.script()
    assert "Y_value[vn, vc, vi + vp, vj] * W" in sch.script()
    check_transform(func, sch, compiled=False)


@pytest.mark.parametrize(
    ("row", "column", "least"),
    [
        ("vi + vp", "vj + vq", 9),  # 8 channels share an element
        ("vi * 4 + vp", "vj", 8),  # a stage of rows and windows would be larger than X
        ("vi * 2 + vp * 3", "vj", 8),
        ("vi - vp + 2", "vj", 8),
        ("vo % 2 + vi", "vj", 2),
    ],
)
def test_windows_that_stay(row, column, least) -> None:
    value = PAD.format(row=row, column=column) + " * W[vo, vc, vp, vq]"
    sch = Schedule(parse(WINDOW.format(value=value, dtype="float32")))
    refused = lambda: sch.cache_values("Y", "global", least)  # noqa: E731
    check_refused(sch, refused, "no-values", "Y stores no slow")


def test_a_choice_that_only_a_reduction_shares_stays() -> None:
    """Each element of a pool is tested a few times, and written and read once more in a stage."""
    text = WINDOW.replace("X: T.Buffer((2, 3,", "X: T.Buffer((2, 8,")
    value = PAD.format(row="vi + vp", column="vj + vq").replace("vc, ", "vo, ")
    sch = Schedule(parse(text.format(value=value, dtype="float32")))
    check_refused(sch, lambda: sch.cache_values("Y", "global"), "no-values", "Y stores no slow")


CHUNKS = """
@T.prim_func
def f(C: T.Buffer((3, 7), "float32"), X: T.Buffer((3, 7, 8), "float32"),
      N: T.Buffer((1,), "int32"), S: T.Buffer((8,), "float32"), Y: T.Buffer((3, 7, 8), "float32")):
    for c in range(3):
        for i in range(7):
            for p in range(8):
                Y[c, i, p] = S[p]
                for j in range({extent}):
                    {statement}
        for p in range(8):
            S[p] = S[p] * T.float32(0.5) + Y[c, 6, p]
"""
SUM = "Y[c, i, p] += T.exp(C[c, i] - C[c, j]) * X[c, j, p]"


@pytest.mark.parametrize("extent", ["7", "i + 1"])
@pytest.mark.parametrize("separate", [False, True])
def test_a_value_among_loops_that_other_statements_share(extent: str, separate: bool) -> None:
    """The exponentials of a chunk of a scan: the state S goes from one chunk to the next."""
    func = parse(CHUNKS.format(extent=extent, statement=SUM))
    sch = Schedule(func, check=True)
    sch.enclose("root")
    if separate:
        sch.fission(sch.get_loops("Y_1")[2], [])
        sch.fission(sch.get_loops("Y_1")[1], [])
    (made,) = sch.cache_values("Y_1", "global")
    assert sch.get(made).name == "Y_1_value"
    loops = [sch.get(loop) for loop in sch.get_loops(made)]
    assert len(loops) == 3 and sch.get(sch.get_loops("Y")[0]) is loops[0]
    assert (sch.get(sch.get_loops("Y")[1]) is loops[1]) is not separate
    check_transform(func, sch, compiled=False)


def test_the_sum_over_a_triangle_alone() -> None:
    func = parse("""
@T.prim_func
def f(C: T.Buffer((7,)), X: T.Buffer((7, 8)), Y: T.Buffer((7, 8))):
    for i, p in T.grid(7, 8):
        for j in range(i + 1):
            Y[i, p] += T.exp(C[i] - C[j]) * X[j, p]
""")
    sch = Schedule(func, check=True)
    sch.enclose("root")
    sch.cache_values("Y", "global")
    assert "for ax0 in range(i + 1):" in sch.script()
    check_transform(func, sch, compiled=False)


BLOCK = """with T.block("Y_1"):
                        vc, vi, vp, vj = T.axis.remap("SSSR", [c, i, p, j])
                        Y[vc, vi, vp] += T.exp(C[vc, vi] - C[vc, vj]) * X[vc, vj, vp]"""


@pytest.mark.parametrize(
    ("extent", "statement", "reason", "message"),
    [
        ("7", "Y[c, i, p] += T.exp(Y[c, j, 0]) * X[c, j, p]", "no-values", "stores no slow value"),
        ("p", SUM, "unknown-iterations", "the extent of the loop j does not tell"),
        ("N[0]", SUM, "no-values", "stores no slow value"),
        ("7", BLOCK + "\n                    if X[c, 0, 0] > 0.0:\n                        break",
         "jumps", "an iteration of the loop p may end early"),
        ("7", "if X[c, 0, p] > 0.0:\n                      " + BLOCK, "conditional-block",
         "Y_1 stands under a condition or declaration in the loop p"),
        ("7", BLOCK.replace("p, j])", "p, j])\n                        T.where(j < i + 1)"),
         "has-predicate", "Y_1 has a predicate"),
        ("7", SUM + "\n                    T.evaluate(T.call_extern('int32', 'abs', 1))",
         "unknown-writes", "what the loop p writes is unknown"),
    ],
)  # fmt: skip
def test_values_that_stay_among_shared_loops(extent, statement, reason, message) -> None:
    sch = Schedule(parse(CHUNKS.format(extent=extent, statement=statement)))
    if statement is SUM or "with" not in statement:
        sch.enclose("root")
    check_refused(sch, lambda: sch.cache_values("Y_1", "global"), reason, message)


def test_a_loop_in_lanes_has_no_stage_inside() -> None:
    sch = Schedule(parse(CHUNKS.format(extent="i + 1", statement=SUM)))
    sch.enclose("root")
    sch.unroll(sch.get_loops("Y_1")[1])
    check_refused(
        sch, lambda: sch.cache_values("Y_1", "global"), "not-serial", "the loop i is not serial"
    )
