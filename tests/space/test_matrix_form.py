"""matrix_form and the panels of register_tiling: iterators after the rewriting, lanes, operands."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import assert_same, draw, spaces, tiny

from metasched.ir.expr import as_int
from metasched.ir.interp import run
from metasched.ir.stmt import ForKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.modules.matrix_form import MatrixForm
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.space.packing import lane_operands
from metasched.space.strides import lanes_together, vector_iter
from metasched.workloads import get


def rewritten(name: str, block: str) -> Schedule:
    sch = Schedule(tiny(name), seed=0)
    (after,) = MatrixForm(512)(sch, sch.get_block(block))
    return after


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("t2d", "Y_local[v0, v1, 0, v3, v4, v5]"),  # two phases, then rows and columns
        ("grp", "Y_local[v0, 0, v2, v3, v4]"),  # the group, then rows and columns
        ("cap", "Y_local[0, v1, v2, v3, v4]"),  # capsule rows, then columns of all capsules
    ],
)
def test_results_are_laid_out_by_the_new_iterators(name, written):
    sch = rewritten(name, "conv")
    assert f"{written} = {written} + " in sch.script()
    assert_same(name, sch.mod)


RESAMPLED = """
@T.prim_func
def main(
    X: T.Buffer((4, {down} * {n} // {up} + 16)), H: T.Buffer(({up}, 16)), Y: T.Buffer((4, {n}))
):
    for c, n, k in T.grid(4, {n}, 16):
        with T.block("Y"):
            vc, vn, vk = T.axis.remap("SSR", [c, n, k])
            with T.init():
                Y[vc, vn] = T.float32(0)
            Y[vc, vn] += H[{down} * vn % {up}, vk] * X[vc, {down} * vn // {up} + 15 - vk]
"""


@pytest.mark.parametrize(
    ("up", "down", "phases"),
    [(3, 2, 3), (4, 3, 4), (4, 6, 2), (2, 4, 0), (3, 1, 3), (5, 3, 0)],  # 5 divides no extent
)
def test_a_divided_multiple_of_an_iterator_has_phases(up, down, phases):
    """The phases are as many as remainders occur: 6 * n % 4 is 0 or 2."""
    func = parse(RESAMPLED.format(up=up, down=down, n=96))
    sch = Schedule(func, seed=0)
    after = MatrixForm(512)(sch, sch.get_block("Y"))[0]
    assert (after is sch) == (not phases)
    assert not phases or f"T.alloc_buffer(({phases}, 4, " in after.script()
    check_numbers(func, after.mod, compiled=True)


def test_phases_fill_memory_between_the_lanes():
    """The phases are whole in a tile, and the lanes of all phases are stored together."""
    func = parse(RESAMPLED.format(up=3, down=2, n=96))
    sch = Schedule(func, seed=0)
    after = MatrixForm(512)(sch, sch.get_block("Y"))[0]
    drawn = 0
    for space in RegisterTiling(512, 32, 2)(after, after.get_block("Y")):
        for seed in range(4):
            if (tiled := draw(func, space.trace, seed)) is not None:
                loops = [tiled.get(x) for x in tiled.get_loops(tiled.get_block("Y_local"))]
                assert (loops[-2].kind, loops[-1].kind) == (ForKind.VECTORIZED, ForKind.UNROLLED)
                assert as_int(loops[-1].extent) == 3
                check_numbers(func, tiled.mod, compiled=True)
                drawn += 1
    assert drawn


JOINED = {  # results, loops, the store and the factors, and the results that the block then writes
    "rows side by side": (
        "A: T.Buffer((96,)), B: T.Buffer((256,)), C: T.Buffer((384,))",
        "i, j, k in T.grid(12, 32, 8)",
        "C[vi * 32 + vj]",
        "A[vi * 8 + vk] * B[vk * 32 + vj]",
        "C_reindex[vi, vj]",
    ),
    "phases": (
        "A: T.Buffer((8, 33)), B: T.Buffer((8, 2, 4)), C: T.Buffer((4, 64))",
        "o, i, j, k in T.grid(4, 32, 2, 8)",
        "C[vo, 2 * vi + vj]",
        "A[vk, vi + vj] * B[vk, vj, vo]",
        "C_reindex[v0, v1, v2]",
    ),
    "a tile": (
        "A: T.Buffer((8, 8)), B: T.Buffer((8, 32)), C: T.Buffer((8, 32))",
        "o, i, j, k in T.grid(8, 2, 16, 8)",
        "C[vo, vi * 16 + vj]",
        "A[vo, vk] * B[vk, vi * 16 + vj]",
        "C[vo, vi * 16 + vj]",
    ),
}


@pytest.mark.parametrize("case", JOINED)
def test_results_whose_index_joins_iterators_get_a_dimension_for_each(case):
    """Phases move outside; register tiles follow. The parts of a tile stay."""
    params, loops, store, product, written = JOINED[case]
    names = loops.split(" in ")[0]
    own = ", ".join("v" + n for n in names.split(", "))
    func = parse(f"""
@T.prim_func
def main({params}):
    for {loops}:
        with T.block("C"):
            {own} = T.axis.remap("{"S" * (len(names.split(", ")) - 1)}R", [{names}])
            with T.init():
                {store} = T.float32(0)
            {store} += {product}
""")
    sch = Schedule(func, seed=0)
    after = MatrixForm(512)(sch, sch.get_block("C"))[0]
    assert f"{written} = {written} + " in after.script() and not sch.refused
    check_numbers(func, after.mod, compiled=True)
    tiled = RegisterTiling(512, 32, 2)(after, after.get_block("C"))
    assert after not in tiled


def test_a_transposition_is_read_through():
    sch = rewritten("tbg", "S")
    assert [b.buffer.name for b in sch.get(sch.get_block("S")).reads[-2:]] == ["Q", "K"]
    assert_same("tbg", sch.mod)


def test_a_block_that_needs_nothing_is_left_alone():
    sch = Schedule(tiny("gmm"), seed=0)
    assert MatrixForm(512)(sch, sch.get_block("Z")) == [sch]


def test_lanes_move_together_in_groups():
    func = parse("""
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8, 4, 4), "float32")):
    for i, j in T.grid(8, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj % 4, vj // 4] = A[vi, vj]
    """)
    other = parse("""
@T.prim_func
def main(A: T.Buffer((32,), "float32"), B: T.Buffer((8, 3, 4), "float32")):
    for j in range(32):
        with T.block("B"):
            vj = T.axis.spatial(32, j)
            B[vj // 4, 0, vj % 4] = A[vj]
    """)
    for program, lanes in ((func, 1), (other, 4)):
        sch = Schedule(program)
        block = sch.get(sch.get_block("B"))
        assert lanes_together(block, block.iter_vars[-1].var, 16) == lanes


def test_lane_operands_have_a_batch_and_a_packing_choice():
    sch = rewritten("tbg", "S")
    block = sch.get(sch.get_block("S"))
    (key,) = lane_operands(sch, block, vector_iter(block).var)
    assert block.reads[key.place[0]].buffer.name == "K"
    assert not key.contiguous
    assert [block.iter_vars[n].var.name for n in key.batch] == ["vh"]  # the batch has one element


def test_windows_are_not_packed():
    sch = Schedule(tiny("dep"), seed=0)
    block = sch.get(sch.get_block("conv"))
    found = lane_operands(sch, block, vector_iter(block).var)
    assert [block.reads[o.place[0]].buffer.name for o in found] == ["W"]


def test_a_read_whose_lanes_all_load_one_element_is_not_packed():
    """Two output channels of one group read channel `vo // 2`, which is 0: a panel has no lanes."""
    sch = Schedule(get("grp").func((1, 1, 3, 1, 2, 1, 3, 2, 3, 1)), seed=0)
    block = sch.get(sch.get_block("conv"))
    found = lane_operands(sch, block, vector_iter(block).var)
    assert [block.reads[o.place[0]].buffer.name for o in found] == ["W"]


def test_the_keys_are_packed_for_each_outer_tile():
    (space, *_) = spaces("tbg")
    sch = draw(tiny("tbg"), space, 0)
    assert sch is not None
    panel = sch.state.index.blocks[sch.get(sch.get_block("K_reindex")).token]
    assert sch.state.loops_above(panel)[0].kind is ForKind.PARALLEL


def test_lanes_lie_along_rows_where_columns_are_few():
    """Three output channels fill no vector: a variant has w as lanes, over an image kept c by w."""
    shape = (1, 2, 16, 2, 3, 4, 2, 1)
    workload = get("t2d")
    func = workload.func(shape)
    sch = Schedule(func, seed=0)
    _, turned = MatrixForm(512)(sch, sch.get_block("conv"))
    block = turned.get(turned.get_block("conv"))
    assert vector_iter(block).dom.extent.value == 16
    assert "P = T.alloc_buffer((1, 4, 2, 18)" in turned.script()
    inputs, wanted = list(workload.inputs(shape)), workload.output(shape)
    run(func, *inputs, wanted)
    (tiled, *_) = RegisterTiling(512, 32, 2)(turned, turned.get_block("conv"))
    for source in (turned.mod, tiled.mod):
        output = np.full_like(wanted, 7)
        run(source, *inputs, output)
        np.testing.assert_array_equal(output, wanted)
    assert "T.vectorized(16)" in tiled.script() or "T.vectorized(8)" in tiled.script()


def test_lanes_stay_along_columns_that_fill_half_a_vector():
    sch = Schedule(get("t2d").func((1, 2, 16, 2, 16, 4, 2, 1)), seed=0)
    assert len(MatrixForm(512)(sch, sch.get_block("conv"))) == 1


NCHW = """
@T.prim_func
def nchw(X: T.Buffer((2, 4, SIZE), "float32"), W: T.Buffer((16, 2, 3, 2), "float32"),
         Y: T.Buffer((16, 2, SIZE - 1), "float32")):
    for o, h, w, c, i, j in T.grid(16, 2, SIZE - 1, 2, 3, 2):
        with T.block("conv"):
            vo, vh, vw, vc, vi, vj = T.axis.remap("SSSRRR", [o, h, w, c, i, j])
            with T.init():
                Y[vo, vh, vw] = T.float32(0)
            Y[vo, vh, vw] = Y[vo, vh, vw] + X[vc, vh + vi, vw + vj] * W[vo, vc, vi, vj]
"""


@pytest.mark.parametrize("width", [5, 12])
def test_lanes_lie_along_channels_where_columns_fill_no_vector(width):
    """Images in NCHW: windows cannot run on in a panel, and 12 lanes are no vector."""
    func = parse(NCHW.replace("SIZE - 1", str(width)).replace("SIZE", str(width + 1)))
    sch = Schedule(func, seed=0)
    _, turned = MatrixForm(512)(sch, sch.get_block("conv"))
    assert vector_iter(turned.get(turned.get_block("conv"))).dom.extent.value == 16
    (tiled, *_) = RegisterTiling(512, 32, 2)(turned, turned.get_block("conv"))
    assert "W_reindex" in tiled.script()
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((2, 4, width + 1), (16, 2, 3, 2)))
    wanted, output = np.zeros((2, 16, 2, width), np.float32)
    run(func, x, w, wanted)
    run(tiled.mod, x, w, output)
    np.testing.assert_array_equal(output, wanted)


def test_images_whose_columns_fill_vectors_stay_as_they_are():
    sch = Schedule(parse(NCHW.replace("SIZE - 1", "16").replace("SIZE", "17")), seed=0)
    assert len(MatrixForm(512)(sch, sch.get_block("conv"))) == 1
