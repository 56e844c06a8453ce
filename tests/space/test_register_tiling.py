"""register_tiling on sizes that divide badly: every candidate computes the same, at full width."""

from __future__ import annotations

import json

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.analysis.block import FOLD
from metasched.ir.interp import run
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.target import Target
from metasched.workloads import get

ODD = [
    ("gmm", (1, 13, 37, 5)),
    ("gmm", (1, 19, 32, 4)),
    ("gmm", (1, 6, 28, 4)),
    ("dil", (1, 13, 4, 1, 16, 2, 1, 1, 2)),
    ("cbr", (1, 5, 3, 2, 19, 2, 2, 1)),
]


@pytest.mark.parametrize(("name", "shape"), ODD)
def test_candidates_of_odd_sizes_compute_the_same(name, shape):
    workload = get(name)
    func = workload.func(shape)
    inputs, wanted = list(workload.inputs(shape)), workload.output(shape)
    run(func, *inputs, wanted)
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    drawn, survived = 0, 0
    for space in found:
        for seed in range(1 if name == "cbr" else 2):
            sch = draw(func, space, seed)
            drawn += 1
            if sch is not None:
                survived += 1
                output = np.full_like(wanted, 7)
                run(sch.mod, *inputs, output)
                np.testing.assert_array_equal(output, wanted)
    assert survived >= 0.9 * drawn > 0


def test_a_panel_with_lanes_along_its_source_is_packed():
    """62 columns of float64 go into vectors of 2 lanes; two rows of them are no square."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((32, 32), "float64"), B: T.Buffer((32, 62), "float64"),
         C: T.Buffer((32, 62), "float64")):
    for i, j, k in T.grid(32, 62, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float64(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")
    target = Target.of({"kind": "cpu", "mcpu": "haswell", "num_cores": 2})
    generator = SpaceGenerator(default_modules(target))
    packed = [trace for trace in generator.generate(func, target) if "reindex" in str(trace)]
    assert generator.refusals == [] and packed
    sch = next(sch for seed in range(9) if (sch := draw(func, packed[0], seed)) is not None)
    check_numbers(func, sch.mod, compiled=True)


def rows_of(after):
    return next(e.domain for _, e in after.trace.sampling() if e.domain["kind"] == "padded_tile")


def test_prime_sizes_get_register_blocks():
    """Rows run on to a size that blocks divide; columns to whole vectors, from a padded panel."""
    sch = Schedule(get("gmm").func((1, 127, 131, 64)), seed=0)
    (after,) = RegisterTiling(512, 32, 2)(sch, sch.get_block("Z"))
    sizes = rows_of(after)["sizes"]
    assert all(127 < n <= 127 * 1.15 for n in sizes)
    assert all(any(n % r == 0 for r in range(8, 15)) for n in sizes)
    block = after.get(after.get_block("Z"))
    assert block.iter_vars[2].dom.extent.value == 144
    assert f"T.axis.spatial({block.iter_vars[1].dom.extent.value}, " in after.script()


def decided(func, *decisions):
    """The packed program of these decisions."""
    sch = Schedule(func, seed=0)
    made = RegisterTiling(512, 32, 2)(sch, sch.get_block("Z"))
    (text,) = [t for t in (m.trace.to_json() for m in made) if "transform_layout" in t]
    data = json.loads(text)
    for step, decision in zip([s for s in data["steps"] if "domain" in s], decisions, strict=True):
        step["decision"] = decision
    again = Schedule(func)
    Trace.from_json(json.dumps(data)).apply(again)
    return again


def test_a_block_passes_over_its_strip_of_the_panel_in_order():
    """Four vectors from four places instead, and the kernel of 1024 rows took 4 % longer."""
    func = get("gmm").func((1, 512, 512, 64))
    for columns in (64, 32):
        sch = decided(func, 0, [8, 64 // columns, columns], [1, 128, 4], [16, 4])
        (panel,) = [b for b in sch.get(sch.get_block("root")).alloc_buffers if "reindex" in b.name]
        assert [n.value for n in panel.shape] == [1, 512 // columns, 64, columns]


def test_no_block_of_rows_is_computed_that_no_row_needs():
    """1,024 rows are 171 blocks of 6, and the size 1,032, meant for blocks of 12, has 172."""
    sch = decided(get("gmm").func((1, 1024, 1024, 64)), 0, [8, 2, 64], [1, 172, 6], [16, 4])
    assert "T.grid(171, 2)" in sch.mod.script()
    sch = decided(get("gmm").func((1, 1024, 1024, 64)), 0, [8, 2, 64], [4, 43, 6], [16, 4])
    assert "T.grid(43, 2)" in sch.mod.script()


def test_good_sizes_may_stay_as_they_are():
    sch = Schedule(get("gmm").func((1, 64, 64, 64)), seed=0)
    for after in RegisterTiling(512, 32, 2)(sch, sch.get_block("Z")):
        rows = rows_of(after)
        assert rows["sizes"][0] == 64
        assert rows["probs"][0] >= 0.5


@pytest.mark.parametrize(("columns", "ways"), [
    (64, [(1, (16, 8))]), (1000, [(64, (16,)), (1, (8,))]), (56, [(64, (16,)), (1, (8,))]),
    (176, [(64, (16,)), (1, (16, 8))]), (24, [(1, (8,))]), (37, [(16, (16,))]), (6, [(1, (6,))]),
])  # fmt: skip
def test_whole_vectors_run_on_where_only_half_ones_divide(columns, ways):
    """1,000 columns are 125 half vectors, which half of the machine's units calculate. 176 columns
    are 11 vectors, of which no tile of two to four vectors consists."""
    sch = Schedule(get("gmm").func((1, 32, columns, 64)), seed=0)
    plans = RegisterTiling(512, 32, 2).plans(sch, sch.get_block("Z"))
    assert [(plan.step, plan.widths) for plan in plans] == ways


GATED = """
@T.prim_func
def gated(X: T.Buffer((32, 64), "float32"), V: T.Buffer((64, 32), "float32"),
          W: T.Buffer((64, 32), "float32"), Y: T.Buffer((32, 32), "float32")):
    G = T.alloc_buffer((32, 32), "float32")
    U = T.alloc_buffer((32, 32), "float32")
    for i, j, k in T.grid(32, 32, 64):
        with T.block("G"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                G[vi, vj] = T.float32(0)
            G[vi, vj] = G[vi, vj] + X[vi, vk] * V[vk, vj]
    for i, j, k in T.grid(32, 32, 64):
        with T.block("U"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                U[vi, vj] = T.float32(0)
            U[vi, vj] = U[vi, vj] + X[vi, vk] * W[vk, vj]
    for i, j in T.grid(32, 32):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(G[vi, vj], T.float32(0)) * U[vi, vj]
"""


def test_a_result_of_two_products_is_fused_with_the_second() -> None:
    """The first product is tiled alone, because the second is not computed where its tiles end."""
    sch = Schedule(parse(GATED), seed=0)
    tiling = RegisterTiling(512, 32, 2)
    (sch, *_) = tiling(sch, sch.get_block("G"))
    assert "G_local" in sch.script() and sch.mod.script().count("T.parallel") == 1
    (sch, *_) = tiling(sch, sch.get_block("U"))
    (second, *_), (result, *_) = (sch.get_loops(sch.get_block(name)) for name in ("U", "Y"))
    assert sch.get(second) is sch.get(result) and "U_local" not in sch.script()
    check_numbers(parse(GATED), sch.mod, seeds=(0,))


GRAM = """
@T.prim_func
def gram(A: T.Buffer((96, 40), "float32"), Y: T.Buffer((96, 96), "float32")):
    for i, j, k in T.grid(96, 96, 40):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[{at}, vk] * A[vj, vk]
"""


@pytest.mark.parametrize("at", ["vi", "95 - vi"])
def test_a_matrix_by_its_own_transpose_is_packed_on_one_side(at):
    func = parse(GRAM.format(at=at))
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert spaces and all("A_reindex" in draw(func, s, 0).script() for s in spaces)
    a = np.random.default_rng(0).integers(-4, 5, (96, 40)).astype("float32")
    wanted = (a if at == "vi" else a[::-1]) @ a.T
    for space in spaces:
        found = np.zeros_like(wanted)
        build(draw(func, space, 1), target="native")(a, found)
        np.testing.assert_array_equal(found, wanted)


def test_all_operands_that_vectors_cannot_read_are_packed_together():
    """A · B^T + B · A^T: lanes run across the rows of A and of B."""
    text = """
@T.prim_func
def main(A: T.Buffer((24, 20), "float32"), B: T.Buffer((24, 20), "float32"),
         Z: T.Buffer((24, 24), "float32")):
    for i, j, k in T.grid(24, 24, 20):
        with T.block("Z"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Z[vi, vj] = 0.0
            Z[vi, vj] += A[vj, vk] * B[vi, vk] + B[vj, vk] * A[vi, vk]
"""
    sch = Schedule(parse(text), seed=0)
    (after,) = RegisterTiling(256, 16, 2)(sch, sch.get_block("Z"))
    update = after.get(after.get_block("Z"))
    names = sorted(r.buffer.name for r in update.reads)
    assert names == ["A", "A_reindex", "B", "B_reindex"]
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 24, 20)).astype(np.float32)
    out = np.zeros((24, 24), np.float32)
    for seed in range(3):
        made = Schedule(parse(text), seed=seed)
        after.trace.apply(made, decisions="fresh")
        run(made.mod, a, b, out)
        np.testing.assert_array_equal(out, a @ b.T + b @ a.T)


GEMM = """
@T.prim_func
def main(A: T.Buffer((12, 16), "float64"), B: T.Buffer((16, 48), "float64"),
         C: T.Buffer((12, 48), "float64")):
    for i in range(12):
        for j in range(48):
            with T.block("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C[vi, vj] * 1.25
        for k, j in T.grid(16, 48):
            with T.block("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + 1.5 * A[vi, vk] * B[vk, vj]
"""


def test_an_update_of_a_matrix_is_one_nest_of_register_tiles():
    """C = 1.25 * C + 1.5 * A · B: a tile reads C once, and multiplies by 1.5 once."""
    func = parse(GEMM)
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    tiled = [s for s in found if "tiling_structure" in str(s)]
    drawn = [sch for sch in (draw(func, space, 0) for space in tiled) if sch is not None]
    for sch in drawn:
        (last,) = [line for line in sch.script().splitlines() if "1.5" in line]
        assert last.strip().startswith("C[") and "1.25" in last and '"scale"' not in sch.script()
        check_numbers(func, sch.mod)
    assert drawn


def test_a_product_that_replaces_its_operand_is_tiled() -> None:
    """A later block overwrites what the product reads; 23 rows are padded all the same."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((23, 24), "float64"), W: T.Buffer((24, 24), "float64")):
    C = T.alloc_buffer((23, 24), "float64")
    for i, j, k in T.grid(23, 24, 24):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vk] * W[vk, vj]
    for i, j in T.grid(23, 24):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = C[vi, vj]
""")
    sch = Schedule(func)
    tiled = RegisterTiling()(sch, sch.get_block("C"))
    assert not sch.refused
    names = [{entry.kind.name for entry in t.trace.entries} for t in tiled]
    assert all("overcompute" in n for n in names)
    for one in tiled:
        drawn = draw(func, one.trace, 0)
        assert drawn is not None
        check_numbers(func, drawn.mod)


@pytest.mark.parametrize(("step", "kinds"), [(4, {0, 1}), (1, {0})])
def test_a_filter_that_keeps_every_fourth_sum_may_run_along_its_taps(step, kinds) -> None:
    """Lanes 4 elements apart take 3 shuffles for each product; vectors along 32 taps take none."""
    func = parse(f"""
@T.prim_func
def main(X: T.Buffer((2, {32 * step + 32})), H: T.Buffer((32,)), Y: T.Buffer((2, 32))):
    for c, t, k in T.grid(2, 32, 32):
        with T.block("Y"):
            vc, vt, vk = T.axis.remap("SSR", [c, t, k])
            with T.init():
                Y[vc, vt] = T.float32(0)
            Y[vc, vt] += X[vc, {step} * vt + vk] * H[vk]
""")
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert {int(FOLD in str(space)) for space in found} == kinds
    for space in found:
        sch = next(sch for seed in range(9) if (sch := draw(func, space, seed)) is not None)
        check_numbers(func, sch.mod, compiled=True)


ORDERED = {
    "linear": ("(20, 33)", "(48, 33)", "(20, 48)", "20, 48", "33", "A[i, k] * B[j, k]"),
    "odd": ("(13, 40)", "(40, 28)", "(13, 28)", "13, 28", "40", "A[i, k] * B[k, j]"),
    "window": ("(9, 19)", "(3, 4)", "(7, 16)", "7, 16", "3, 4", "A[i + k, j + l] * B[k, l]"),
}


@pytest.mark.parametrize("case", ORDERED)
def test_sums_in_plain_loops_keep_their_order_in_registers(case):
    """Equal to the last bit, for numbers whose sums depend on the order of the terms."""
    a, b, c, spatial, steps, term = ORDERED[case]
    variables = "k, l" if "," in steps else "k"
    loop = f"T.grid({steps})" if "," in steps else f"range({steps})"
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer({a}, "float32"), B: T.Buffer({b}, "float32"), C: T.Buffer({c}, "float32")):
    for i, j in T.grid({spatial}):
        C[i, j] = 0.25
        for {variables} in {loop}:
            C[i, j] += {term}
""")
    generator = SpaceGenerator(default_modules(TARGET))
    found = [t for t in generator.generate(func, TARGET) if "SSRRS" in str(t)]
    assert found and not generator.failures
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=p.constant_shape()).astype(np.float32) for p in func.buffers[:2]]
    wanted = np.zeros(func.buffers[2].constant_shape(), np.float32)
    build(func)(*inputs, wanted)
    checked = 0
    for space in found:
        for seed in range(4):
            sch = draw(func, space, seed)
            if sch is not None:
                assert "T.axis.opaque" in sch.script() and "T.vectorized" in sch.script()
                output = np.zeros_like(wanted)
                build(sch)(*inputs, output)
                np.testing.assert_array_equal(output, wanted)
                checked += 1
    assert checked >= 3


def test_rows_are_padded_where_a_sum_starts_from_a_row_of_values():
    """`s = b[n]` is a block whose iterators n, r stand in another order than its loops r, n."""
    func = parse("""
@T.prim_func
def main(A: T.Buffer((13, 9), "float32"), B: T.Buffer((9, 32), "float32"),
         b: T.Buffer((32,), "float32"), C: T.Buffer((13, 32), "float32")):
    for r, n in T.grid(13, 32):
        s = b[n]
        for k in range(9):
            s += A[r, k] * B[k, n]
        C[r, n] = s
""")
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    tiled = [space for space in found if "SSRRS" in space.as_python()]
    padded = [space for space in tiled if "sample_padded_tile" in space.as_python()]
    assert padded
    for space in padded:
        sch = draw(func, space, 0)
        assert sch is not None
        check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(
    ("dtype", "update", "chains"),
    [
        ("float32", "{c} + (A[vi, vk] * B[vk, vj] - B[vk, vj])", True),
        ("float32", "{c} + A[vi, vk] * B[vk, vj] - B[vk, vj]", False),
        ("float32", "{c} + (A[vi, vk] + B[vk, vj])", False),
        ("int32", "{c} + (A[vi, vk] * B[vk, vj] - B[vk, vj])", False),
    ],
)
def test_products_that_a_tile_adds_follow_each_other(dtype, update, chains) -> None:
    func = parse(f"""
@T.prim_func
def main(A: T.Buffer((16, 24), "{dtype}"), B: T.Buffer((24, 32), "{dtype}"),
         C: T.Buffer((16, 32), "{dtype}")):
    for i, j, k in T.grid(16, 32, 24):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.{dtype}(0)
            C[vi, vj] = {update.format(c="C[vi, vj]")}
""")
    traces = SpaceGenerator((RegisterTiling(256, 16),)).generate(func, TARGET)
    assert traces and all(("chain_sum" in str(trace)) is chains for trace in traces)
    sch = Schedule(func, seed=0)
    traces[0].apply(sch)
    check_numbers(func, sch.mod, compiled=True)
