"""rolling_update: one pass over blocks gives the results of all passes; and every refusal."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_refused, check_transform

from metasched.arith.analyzer import Analyzer
from metasched.ir.expr import as_expr, as_int
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of, substitute
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


def reduction(name: str, element: str, value: str, start: str = "T.float32(0)") -> str:
    """A block that reduces rows of n values to an element."""
    return f"""
    for i, j in T.grid(3, {{n}}):
        with T.block("{name}"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                {element} = {start}
            {element} = {value.format(element)}"""


def stage(name: str, value: str) -> str:
    """A block that computes n values for each row."""
    return f"""
    for i, j in T.grid(3, {{n}}):
        with T.block("{name}"):
            vi, vj = T.axis.remap("SS", [i, j])
            {name}[vi, vj] = {value}"""


def program(*blocks: str, n: int = 10, outputs: str = "") -> str:
    """Blocks over X, V and P of rows of n, into M, S, D and Y of rows (see `outputs`) or E and F of
    n values for each row."""
    shapes = dict.fromkeys("XVPEF", f"(3, {n})") | dict.fromkeys("MSDY", "(3,)")
    given = [f'{k}: T.Buffer({shapes[k]}, "float32")' for k in "XVP" + outputs]
    inner = [f'    {k} = T.alloc_buffer({shapes[k]}, "float32")' for k in shapes
             if k not in "XVP" + outputs]  # fmt: skip
    text = "".join(blocks).replace("{n}", str(n))
    return f"@T.prim_func\ndef f({', '.join(given)}):\n" + "\n".join(inner) + text


LOWEST = 'T.min_value("float32")'
MINUS = 'T.float32("-inf")'
MAXIMUM = reduction("M", "M[vi]", "T.max({}, X[vi, vj])", LOWEST)
E = stage("E", "T.exp(X[vi, vj] - M[vi])")
SUM = reduction("S", "S[vi]", "{} + E[vi, vj]")
SUMMED = reduction("S", "S[vi]", "{} + T.exp(X[vi, vj] - M[vi])")
WEIGHTED = reduction("Y", "Y[vi]", "{} + E[vi, vj] * V[vi, vj] / S[vi]")
FAMILIES = {
    "softmax, then a sum": (MAXIMUM, E, SUM, WEIGHTED),
    "from -inf": (MAXIMUM.replace(LOWEST, MINUS), E, SUM, WEIGHTED),
    "scaled": (
        MAXIMUM.replace(LOWEST, MINUS),
        stage("E", "T.exp2(X[vi, vj] * T.float32(3) - M[vi] * T.float32(3))"),
        SUM,
        WEIGHTED.replace("E[vi, vj] * V[vi, vj] / S[vi]", "V[vi, vj] * (E[vi, vj] / S[vi])"),
    ),
    "log-sum-exp": (
        MAXIMUM.replace(LOWEST, MINUS),
        SUMMED,
        """
    for i in range(3):
        with T.block("Y"):
            vi = T.axis.spatial(3, i)
            Y[vi] = T.log(S[vi]) + M[vi]""",
    ),
    "masked by a number": (
        reduction("M", "M[vi]", "T.max({}, T.Select(0 < P[vi, vj], X[vi, vj], T.float32(-1e9)))",
                  MINUS),
        stage("E", "T.exp(T.Select(0 < P[vi, vj], X[vi, vj], T.float32(-1e9)) - M[vi])"),
        SUM,
        WEIGHTED,
    ),
    "masked by a zero": (
        MAXIMUM,
        stage("E", "T.if_then_else(0 < P[vi, vj], T.exp(X[vi, vj] - M[vi]), T.float32(0))"),
        SUM,
        WEIGHTED.replace(" / S[vi]", ""),
    ),
    "a stage before and one between": (
        stage("F", "X[vi, vj] * P[vi, vj]"),
        MAXIMUM.replace("X[vi", "F[vi"),
        stage("E", "T.exp((F[vi, vj] - M[vi]) / T.float32(2)) * V[vi, vj]"),
        reduction("Y", "Y[vi]", "{} + E[vi, vj]"),
    ),
    "a minimum": (
        reduction("M", "M[vi]", "T.min({}, X[vi, vj])", 'T.float32("inf")'),
        reduction("Y", "Y[vi]", "{} + T.exp(M[vi] - X[vi, vj])"),
    ),
    "two exponents, an independent sum": (
        reduction("D", "D[vi]", "{} + V[vi, vj]"),
        MAXIMUM,
        SUMMED,
        reduction("Y", "Y[vi]", "{} + T.exp((X[vi, vj] - M[vi]) * T.float32(0.5)) * D[vi]"),
    ),
}  # fmt: skip
MASKS = {
    "causal": "vj <= vi * 4",
    "window": "vj <= vi + 9 and vi + 2 < vj",
    "local": "vi // 2 == vj // 6",
    "either": "vj < 3 or 13 < vj + vi",
    "not": "not (vi < vj)",
}


def masked(kept: str, hidden: str = 'T.float32("-inf")', finite: bool = False) -> tuple[str, ...]:
    """A softmax of the scores that a condition keeps, then a weighted sum."""
    choice = f"T.if_then_else({kept}, X[vi, vj], {hidden})"
    promise = '\n    T.func_attr({"tir.finite": True})' if finite else ""
    maximum = MAXIMUM.replace("X[vi", "F[vi").replace(LOWEST, MINUS)
    return promise, stage("F", choice), maximum, E.replace("X[vi", "F[vi"), SUM, WEIGHTED


FAMILIES |= {f"{name} mask": masked(kept) for name, kept in MASKS.items()}


def rolled(text: str, size: int) -> Schedule:
    """The program with all blocks over n in one pass."""
    sch = Schedule(parse(text), check=True)
    blocks = [r.block.name for r in blocks_of(sch.func.root.body)]
    loops = [sch.get_loops(name)[-1] for name in blocks]
    sch.rolling_update([loop for loop in loops if sch.get(loop).var.name == "j"], size)
    return sch


def values(kind: str, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    x, v, p = (rng.normal(size=(3, n)).astype("float32") for _ in range(3))
    if kind == "large":
        x *= np.float32(1e4)
    elif kind == "huge":
        x *= np.float32(1e37)
    elif kind == "masked":
        x[0, : n // 2 + 1], x[1] = -np.inf, -np.inf
    elif kind == "infinite":
        x[0, n // 2], x[1, 0] = np.inf, np.nan
    elif kind == "infinite values":
        v[0, n // 2], v[1, n - 1], v[2, 0] = np.inf, np.nan, -np.inf
    return [x, v, p]


@settings(max_examples=20, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    n=st.integers(1, 20),
    size=st.integers(1, 22),
    kind=st.sampled_from(["normal", "large", "huge", "masked", "infinite", "infinite values"]),
    seed=st.integers(0, 1000),
)
def test_one_pass_gives_the_results_of_all(family, n, size, kind, seed):
    text = program(*FAMILIES[family], n=n, outputs="MY")
    sch = rolled(text, size)
    given = values(kind, n, np.random.default_rng(seed))
    wanted, found = ([np.zeros(3, "float32") for _ in range(2)] for _ in range(2))
    with np.errstate(all="ignore"):
        run(parse(text), *given, *wanted)
        run(sch.mod, *given, *found, check_regions=True)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *product(["from -inf", "scaled", "log-sum-exp"], ["normal", "huge", "masked", "infinite"]),
        ("window mask", "infinite values"),
    ],
)
def test_compiled_programs_agree(family, kind):
    text = program(*FAMILIES[family], n=13, outputs="MY")
    given = values(kind, 13, np.random.default_rng(3))
    wanted, found = ([np.zeros(3, "float32") for _ in range(2)] for _ in range(2))
    with np.errstate(all="ignore"):
        run(parse(text), *given, *wanted)
    build(rolled(text, 4).mod, target="native")(*given, *found)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 4, 13])
@pytest.mark.parametrize("start", [LOWEST, MINUS])
def test_a_mask_may_leave_out_the_infinite_maximum(start, size):
    """The other terms are then zero, and so is their sum: infinity less infinity is not taken."""
    maximum, *others = FAMILIES["masked by a zero"]
    text = program(maximum.replace(LOWEST, start), *others, n=13, outputs="MY")
    x, v, p = values("normal", 13, np.random.default_rng(3))
    x[0, 2], p[0, 2], x[1], p[2] = np.inf, -1.0, -np.inf, 1.0
    wanted, found = ([np.zeros(3, "float32") for _ in range(2)] for _ in range(2))
    with np.errstate(all="ignore"):
        run(parse(text), x, v, p, *wanted)
        run(rolled(text, size).mod, x, v, p, *found)
    assert wanted[1][0] == 0.0
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_numpy_agrees_on_log_sum_exp():
    text = program(*FAMILIES["log-sum-exp"], n=100, outputs="MY")
    x, v, p = values("large", 100, np.random.default_rng(0))
    m, y = np.zeros(3, "float32"), np.zeros(3, "float32")
    run(rolled(text, 16).mod, x, v, p, m, y)
    np.testing.assert_allclose(y, np.logaddexp.reduce(x.astype("float64"), axis=1), rtol=1e-6)


def test_lengths_known_at_run_time():
    func = parse("""
@T.prim_func
def f(a: T.handle, B: T.Buffer((1,), "float32"), C: T.Buffer((1,), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    for k in range(n):
        with T.block("B"):
            v = T.axis.reduce(n, k)
            with T.init():
                B[0] = T.float32("-inf")
            B[0] = T.max(B[0], A[v])
    for k in range(n):
        with T.block("C"):
            v = T.axis.reduce(n, k)
            with T.init():
                C[0] = T.float32(0)
            C[0] = C[0] + T.exp2(A[v] - B[0])
""")
    sch = Schedule(func, check=True)
    sch.rolling_update([sch.get_loops("B")[0], sch.get_loops("C")[0]], 4)
    check_transform(func, sch)


def test_handles_stay_and_the_axis_is_cut():
    sch = Schedule(parse(program(MAXIMUM, E, SUM, WEIGHTED, outputs="Y")), check=True)
    loops = [sch.get_loops(name)[1] for name in "MESY"]
    around = sch.rolling_update(loops, 4)
    assert [sch.get(loop).extent.value for loop in loops] == [4] * 4
    assert sch.get(around).name == "Y_rolling"
    assert [b.name for b in sch.get(around).alloc_buffers if b.name == "E_block"] == ["E_block"]
    assert "E = T.alloc" not in sch.func.script()


def test_values_before_the_maximum_may_be_used_outside():
    text = program(*FAMILIES["a stage before and one between"], outputs="MYF")
    sch = rolled(text, 4)
    given = values("normal", 10, np.random.default_rng(0))
    out = [np.zeros(3, "float32"), np.zeros(3, "float32"), np.zeros((3, 10), "float32")]
    run(sch.mod, *given, *out)
    np.testing.assert_allclose(out[2], given[0] * given[2], rtol=1e-6)


SHORT = SUMMED.replace("T.grid(3, {n})", "T.grid(3, 5)")


@pytest.mark.parametrize(
    ("blocks", "reason", "message"),
    [
        ((MAXIMUM, stage("E", "X[vi, vj] - M[vi]"), SUM), "no-correction",
         "depends on M other than by a factor"),
        ((MAXIMUM, stage("E", "T.exp(M[vi] - X[vi, vj])"), SUM), "other-exponent",
         "no positive multiple of the difference of a value and the maximum"),
        ((MAXIMUM, stage("E", "T.exp(X[vi, vj] - M[vi] + V[vi, vj])"), SUM), "other-exponent",
         "the exponent of exp is no positive"),
        ((MAXIMUM, stage("E", "T.exp(X[vi, vj] - M[2 - vi] * M[vi])"), SUM), "no-correction",
         "depends on M"),
        ((MAXIMUM, E, SUM.replace("E[vi, vj]", "E[vi, vj] * E[vi, vj]")), "two-factors",
         "a running extremum in two factors"),
        ((MAXIMUM, E, SUM.replace("S[vi] + E", "S[vi] + E[vi, 0] + E")), "other-position",
         "block S reads E at another position of the axis than vj"),
        ((MAXIMUM, stage("E", "T.exp(X[vi, vj] - M[vi])").replace("E[vi, vj] =", "E[vi, 9 - vj] ="),
          SUM), "other-position", "block E does not write an element of its own"),
        ((MAXIMUM, E, reduction("S", "S[vi]", "T.max({}, E[vi, vj])", LOWEST)), "not-a-sum",
         "block S combines values that depend on another block of the pass, by max"),
        ((MAXIMUM, SUMMED, stage("E", "X[vi, vj] / S[vi]"), WEIGHTED.replace(" / S[vi]", "")),
         "stage-factor", "block E needs the final result of another block of the pass"),
        ((MAXIMUM, reduction("S", "S[vi]", "{} + X[vi, vj]", "T.float32(1)")), "no-reducer",
         "block S is no commutative reduction over vj alone"),
        ((MAXIMUM, SHORT), "other-extent", "j and j have different extents"),
    ],
)  # fmt: skip
def test_refused_dependences(blocks, reason, message):
    sch = Schedule(parse(program(*blocks, outputs="MSY")))
    names = [r.block.name for r in blocks_of(sch.func.root.body)]
    loops = [sch.get_loops(name)[1] for name in names]
    check_refused(sch, lambda: sch.rolling_update(loops, 4), reason, message)


def test_a_product_over_another_axis_is_refused():
    other = """
    for i, j, k in T.grid(3, {n}, 2):
        with T.block("F"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                F[vi, vj] = P[vi, 0]
            F[vi, vj] = F[vi, vj] * E[vi, vj]"""
    total = reduction("S", "S[vi]", "{} + F[vi, vj]")
    sch = Schedule(parse(program(MAXIMUM, E, other, total, outputs="S")))
    loops = [sch.get_loops(name)[1] for name in "MEFS"]
    message = "block F reduces another axis, over values that depend on another block"
    check_refused(sch, lambda: sch.rolling_update(loops, 4), "not-a-sum", message)


def test_users_outside_of_the_pass_are_refused():
    sch = Schedule(parse(program(MAXIMUM, E, SUM, WEIGHTED, outputs="Y")))
    loops = [sch.get_loops(name)[1] for name in "MES"]
    message = "E is used outside of the blocks of the pass"
    check_refused(sch, lambda: sch.rolling_update(loops, 4), "read-outside", message)


def test_refused_nests():
    sch = Schedule(parse(program(MAXIMUM, E, SUM, WEIGHTED, outputs="Y")))
    m, e, s = (sch.get_loops(name)[1] for name in "MES")
    cases = [
        (([], 4), "no-loops", "needs one loop or several"),
        (([m, m], 4), "no-loops", "several different ones"),
        (([m, s], 4), "not-consecutive", "the nests do not follow each other directly"),
        (([m, e, s], 0), "bad-size", "the size 0 of a block is no positive constant"),
    ]
    for args, reason, message in cases:
        check_refused(sch, lambda args=args: sch.rolling_update(*args), reason, message)
    outer, _ = sch.split(m, [None, 3])
    message = "block M has a predicate, .*or a loop that is not the value of one iterator"
    check_refused(sch, lambda: sch.rolling_update([outer, e, s], 4), "not-plain", message)
    guarded = program(MAXIMUM, outputs="M").replace(
        '        with T.block("M"):', '        if i + j > 1:\n          with T.block("M"):'
    )
    sch = Schedule(parse(guarded))
    loop, message = sch.get_loops("M")[1], "a statement between it and its loops"
    check_refused(sch, lambda: sch.rolling_update([loop], 4), "not-plain", message)


def test_overwritten_operands_are_refused():
    copy = stage("E", "X[vi, vj]")
    sch = Schedule(parse(program(copy, MAXIMUM, stage("X", "V[vi, vj]"), outputs="ME")))
    loops = [sch.get_loops(name)[1] for name in "EMX"]
    message = "block X overwrites X, which E reads"
    check_refused(sch, lambda: sch.rolling_update(loops, 4), "write-after-read", message)


def test_refused_bodies():
    two = stage("E", "X[vi, vj]") + "\n            F[vi, vj] = X[vi, vj]"
    sch = Schedule(parse(program(MAXIMUM, two, outputs="MEF")))
    m, e = (sch.get_loops(name)[1] for name in "ME")
    check_refused(sch, lambda: sch.rolling_update([m, e], 4), "no-store", "more than one store")
    together = program(MAXIMUM, outputs="ME") + E.split("grid(3, {n}):", 1)[1]
    sch = Schedule(parse(together))
    outer = sch.get_loops("M")[1]
    check_refused(
        sch, lambda: sch.rolling_update([outer], 4), "not-one-block", "2 blocks are below j"
    )


SHARED = """
@T.prim_func
def f(X: T.Buffer((3, 10), "float32"), M: T.Buffer((3,), "float32"), S: T.Buffer((3,), "float32")):
    for i in range(3):
        for j in range(10):
            with T.block("M"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    M[vi] = T.float32("-inf")
                M[vi] = T.max(M[vi], X[vi, vj])
        for j in range(10):
            with T.block("S"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + T.exp2(X[vi, vj] - M[vi])
"""


def test_a_loop_around_all_nests_may_run_in_parallel():
    func = parse(SHARED)
    sch = Schedule(func, check=True)
    outer, inner = sch.get_loops("M")
    sch.rolling_update([inner, sch.get_loops("S")[1]], 4)
    sch.parallel(outer)
    check_transform(func, sch)


def test_results_written_through_a_view_are_kept():
    func = parse("""
@T.prim_func
def f(X: T.Buffer((8,), "int32"), Y: T.Buffer((8,), "int32")):
    E = T.alloc_buffer((8,), "int32")
    for b in range(1):
        with T.block("outer"):
            vb = T.axis.spatial(1, b)
            T.reads(X[0:8])
            T.writes(E[0:8])
            V = T.match_buffer(E[0:8], (8,), "int32")
            for i in range(8):
                with T.block("V"):
                    vi = T.axis.spatial(8, i)
                    V[vi] = X[vi] * 3
    for i in range(8):
        with T.block("Y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = E[vi] + 1
""")
    sch = Schedule(func, check=True)
    sch.rolling_update([sch.get_loops("V")[0]], 4)
    check_transform(func, sch)


def test_results_that_another_block_declares_to_read_are_kept():
    text = program(
        stage("E", "X[vi, vj] * T.float32(2)"),
        stage("F", "X[vi, vj]").replace(
            "            F[", "            T.reads(E[vi, vj], X[vi, vj])\n            F["
        ),
        outputs="F",
    )
    func = parse(text)
    sch = Schedule(func)
    sch.rolling_update([sch.get_loops(sch.get_block("E"))[1]], 4)
    check_transform(func, sch)


def computed(sch: Schedule) -> list[int]:
    """The blocks of the axis that are not skipped, of five."""
    around = next(r for r in blocks_of(sch.func.root.body) if r.block.name.endswith("_rolling"))
    (over,) = around.iter_values
    at = [substitute(around.predicate, {over: as_expr(k)}) for k in range(5)]
    return [k for k, condition in enumerate(at) if as_int(Analyzer().simplify(condition))]


@pytest.mark.parametrize(
    ("kept", "blocks"),
    [
        ("causal", [0, 1, 2]),
        ("window", [0, 1, 2]),
        ("local", [0, 1, 2]),
        ("either", [0, 3, 4]),
        ("not", [0]),
    ],
)
def test_blocks_that_a_mask_hides_are_skipped(kept, blocks):
    sch = rolled(program(*masked(MASKS[kept]), n=20, outputs="Y"), 4)
    assert computed(sch) == blocks
    assert "Y_rest" in sch.func.script()
    sch = rolled(program(*masked(MASKS[kept], finite=True), n=20, outputs="Y"), 4)
    assert computed(sch) == blocks
    assert "Y_rest" not in sch.func.script()


@pytest.mark.parametrize(
    ("blocks", "outputs"),
    [
        (masked(MASKS["causal"], "T.float32(-1e9)"), "Y"),
        (masked("P[vi, vj] < T.float32(0)"), "Y"),
        (masked("vj != vi * 4"), "Y"),
        (masked(MASKS["causal"]), "YF"),
        ((*masked(MASKS["causal"]), reduction("D", "D[vi]", "T.max({}, V[vi, vj])", MINUS)), "YD"),
    ],
)
def test_masks_that_hide_nothing_for_sure(blocks, outputs):
    assert computed(rolled(program(*blocks, n=20, outputs=outputs), 4)) == [0, 1, 2, 3, 4]


def test_sums_without_a_mask_are_computed_in_hidden_blocks():
    blocks = (*masked(MASKS["causal"]), reduction("D", "D[vi]", "{} + V[vi, vj]"))
    text = program(*blocks, n=20, outputs="YD")
    sch = rolled(text, 4)
    assert "D_rest" in sch.func.script()
    x, v, p = values("normal", 20, np.random.default_rng(0))
    y, d = np.zeros(3, "float32"), np.zeros(3, "float32")
    build(sch.mod, target="native")(x, v, p, y, d)
    np.testing.assert_allclose(d, v.sum(1), rtol=1e-5)


def test_a_sum_that_a_loop_around_the_pass_continues_is_kept_between_its_iterations() -> None:
    """The machine found it (seed 611001451): memory of one block of the axis lost the sum."""

    @T.prim_func
    def sums(A: T.Buffer((5, 3), "int32"), B: T.Buffer((5,), "int32")):
        for k, i in T.grid(3, 5):
            with T.block("B"):
                vk, vi = T.axis.remap("RS", [k, i])
                with T.init():
                    B[vi] = 0
                B[vi] += A[vi, vk]

    sch = Schedule(sums)
    sch.write_at(sch.get_loops("B")[0], "B", 0, "global")
    sch.cache_write("B", 0, "global")
    loops = [sch.get_loops(name)[1] for name in ("B", "B_global_global")]
    sch.rolling_update(loops, 2)
    check_transform(sums, sch)
