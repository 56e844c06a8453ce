"""Stencil chains in overlapped tiles: what is offered, where stages stand, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw
from space.chains import blur

from metasched.errors import ScheduleError
from metasched.ir.interp import run
from metasched.ir.stmt import ForKind
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.overlapped_tiling import OverlappedTiling
from metasched.workloads import get

CASES = [
    ("blur", (47, 61), 4),
    ("blur", (64, 64), 4),
    ("blur_u16", (47, 61), 4),
    ("jac3", (47, 53), 3),
    ("harris", (47, 53), 3),
]


@pytest.mark.parametrize(("name", "shape", "count"), CASES)
def test_candidates_compute_the_same(name, shape, count):
    work = get(name)
    func, inputs = work.func(shape), work.inputs(shape)
    wanted = work.reference(shape, *inputs)
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert len(spaces) == count and not generator.failures
    drawn = 0
    for space in spaces:
        for seed in range(2):
            sch = draw(func, space, seed, check=False)
            if sch is not None:
                output = np.zeros_like(wanted)
                build(sch, target="native")(*inputs, output)
                np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)
                drawn += 1
    assert drawn >= 2 * count - 1


def offered(func):
    sch = Schedule(func, check=True)
    return OverlappedTiling(256)(sch, sch.get_block("Y")), sch


CHAIN = """
@T.prim_func
def chain(X: T.Buffer((50, {wide}), "float32"), Y: T.Buffer((48, 50), "float32")):
    A = T.alloc_buffer((50, 50), "float32")
    for i, j in T.grid(50, 50):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = {first}
    for i, j in T.grid(48, 50):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = {second}
"""


def chain(second, first="X[vi, vj] * T.float32(2)"):
    return parse(CHAIN.format(wide=52, first=first, second=second))


def test_a_stage_that_is_read_once_is_left_to_inlining():
    found, sch = offered(chain("A[vi, vj] + T.float32(1)"))
    assert found == [sch]


def test_a_stage_that_rows_read_again_is_computed_for_each_tile():
    (cache, strips, registers, same), sch = offered(chain("A[vi, vj] + A[vi + 2, vj]"))
    assert same is sch
    assert strips.get(strips.get_block("A")).writes[0].buffer.constant_shape() == (3, 50)
    for tiled in (cache, registers):
        loops = [tiled.get(loop) for loop in tiled.get_loops(tiled.get_block("A"))]
        output = [tiled.get(loop) for loop in tiled.get_loops(tiled.get_block("Y"))]
        assert loops[:-2] == output[:-2]
    kinds = [registers.get(loop).kind for loop in registers.get_loops(registers.get_block("A"))]
    assert kinds[-2:] == [ForKind.UNROLLED, ForKind.VECTORIZED]
    assert ForKind.PARALLEL in kinds


def test_lanes_that_read_their_neighbours_exclude_registers():
    found, sch = offered(chain("A[vi, vj] + A[vi + 1, T.max(vj - 1, 0)]"))
    assert len(found) == 3 and found[2] is sch


def test_rows_that_no_other_row_reads_make_no_ring():
    found, sch = offered(chain("A[vi, vj] + A[vi, T.max(vj - 1, 0)]"))
    assert found[-1] is sch
    assert not any("T.axis.opaque" in one.script() for one in found)


def test_stages_that_are_read_once_are_inlined():
    sch = Schedule(blur((47, 53)))
    cache, _, registers, _ = OverlappedTiling(256)(sch, sch.get_block("Y"))
    for tiled in (cache, registers):
        assert len(tiled.get_loops(tiled.get_block("A"))) == 4
        with pytest.raises(ScheduleError, match="B"):
            tiled.get_block("B")


def test_vectors_that_do_not_divide_a_row_compute_the_same_in_the_interpreter():
    work = get("blur")
    shape = (47, 45)
    func, inputs = work.func(shape), work.inputs(shape)
    wanted = work.reference(shape, *inputs)
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    sch = draw(func, spaces[2], 1)
    output = np.zeros_like(wanted)
    run(sch.mod, *inputs, output)
    np.testing.assert_allclose(output, wanted, rtol=1e-5)


ROW = """
@T.prim_func
def chain(X: T.Buffer((48, 66), "float32"), Y: T.Buffer((48, 64), "float32")):
    A = T.alloc_buffer((48, 66), "float32")
    for i, j in T.grid(48, 66):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = T.exp(X[vi, vj])
    for i, j in T.grid(48, 64):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = A[vi, vj] + A[vi, vj + 1] * A[vi, vj + 2]
"""


def test_a_chain_in_which_no_stage_slides_reports_no_refusal():
    found, sch = offered(parse(ROW))
    assert len(found) > 1 and not sch.refused


WINDOW = """
@T.prim_func
def corners(X: T.Buffer(({rows}, {columns}), "float32"), Y: T.Buffer((47, 61), "float32")):
    A = T.alloc_buffer(({rows}, {columns}), "float32")
    S = T.alloc_buffer((47, 61), "float32")
    for i, j in T.grid({rows}, {columns}):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] * X[vi, vj]
    for i, j, a, b in T.grid(47, 61, {height}, {width}):
        with T.block("S"):
            vi, vj, va, vb = T.axis.remap("SSRR", [i, j, a, b])
            with T.init():
                S[vi, vj] = T.float32(0)
            S[vi, vj] += A[vi * {step} + va, vj * {step} + vb]
    for i, j in T.grid(47, 61):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = S[vi, vj] - X[vi, vj]
"""


def window(height, width, step=1):
    rows, columns = 46 * step + height, 60 * step + width
    return parse(WINDOW.format(height=height, width=width, step=step, rows=rows, columns=columns))


def test_a_stage_that_sums_a_window_is_computed_for_each_tile():
    found, sch = offered(window(3, 3))
    assert len(found) == 3 and found[-1] is sch
    for tiled in found[:-1]:
        around = [tiled.get(loop).var for loop in tiled.get_loops(tiled.get_block("Y"))]
        for name in "AS":
            loops = [tiled.get(loop).var for loop in tiled.get_loops(tiled.get_block(name))]
            assert loops[0] is around[0] and len(loops) > len(around) - 2


@pytest.mark.parametrize(
    ("height", "width", "step"),
    [(2, 2, 2), (9, 9, 1)],
    ids=["no-element-is-summed-twice", "many-elements"],
)
def test_windows_that_are_left_to_other_modules(height, width, step):
    found, sch = offered(window(height, width, step))
    assert found == [sch]


@pytest.mark.parametrize("height", [1, 3])
def test_candidates_with_a_window_compute_the_same(height):
    func, drawn = window(height, 3), 0
    x = np.random.default_rng(0).standard_normal((46 + height, 63)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x * x, (height, 3))
    wanted = windows.sum((2, 3)) - x[:47, :61]
    for space in SpaceGenerator(default_modules(TARGET)).generate(func, TARGET):
        for seed in range(3):
            sch = draw(func, space, seed, check=False)
            if sch is not None:
                output = np.zeros_like(wanted)
                build(sch, target="native")(x, output)
                np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)
                drawn += 1
    assert drawn >= 6


TWO = """
@T.prim_func
def tensor(X: T.Buffer((50, 52), "float32"), Y: T.Buffer((48, 50), "float32")):
    A = T.alloc_buffer((50, 50), "float32")
    B = T.alloc_buffer((50, 50), "float32")
    C = T.alloc_buffer((50, 50), "float32")
    for i, j in T.grid(50, 50):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = {first}
    for i, j in T.grid(50, 50):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * A[vi, vj]
    for i, j in T.grid(50, 50):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * X[vi, vj]
    for i, j in T.grid(48, 50):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = B[vi, vj] + B[vi + 2, vj] - C[vi, vj] * C[vi + 2, vj]
"""


@pytest.mark.parametrize(
    ("first", "kept"),
    [("X[vi, vj] - X[vi, vj + 2]", True), ("X[vi, vj] * T.float32(2)", False)],
)
def test_a_stage_of_several_loads_is_not_computed_for_each_consumer(first, kept):
    found, _ = offered(parse(TWO.format(first=first)))
    for tiled in found[:-1]:
        names = [r.block.name for r in tiled.state.index.blocks.values()]
        assert ("A" in names) == kept and {"B", "C"} <= set(names)


OUTPUTS = """
@T.prim_func
def gradient(X: T.Buffer((50, 52), "float32"), M: T.Buffer((47, 49), "float32"),
             Y: T.Buffer(({rows}, 49), "uint8")):
    A = T.alloc_buffer((50, 52), "float32")
    for i, j in T.grid(50, 52):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] * X[vi, vj]
    for i, j in T.grid(47, 49):
        with T.block("M"):
            vi, vj = T.axis.remap("SS", [i, j])
            M[vi, vj] = A[vi + 3, vj] - A[vi, vj + 1]
    for i, j in T.grid({rows}, 49):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.Cast("uint8", A[vi + 1, vj + 3] > A[vi, vj] {more})
"""


def test_outputs_that_read_a_common_stage_share_tiles():
    func = parse(OUTPUTS.format(rows=47, more=""))
    (cache, strips, same), sch = offered(func)
    assert same is sch
    assert strips.get(strips.get_block("A")).writes[0].buffer.constant_shape() == (4, 52)
    for tiled, shared in ((cache, 2), (strips, 2)):
        of = [[tiled.get(x) for x in tiled.get_loops(tiled.get_block(b))] for b in ("A", "M", "Y")]
        assert of[0][:shared] == of[1][:shared] == of[2][:shared]
    assert OverlappedTiling(256)(sch, sch.get_block("M")) == [sch]


@pytest.mark.parametrize("more", ["", "- M[vi, vj]"])
def test_outputs_that_share_tiles_compute_the_same(more):
    func = parse(OUTPUTS.format(rows=47, more=more))
    x = np.random.default_rng(0).integers(-9, 9, (50, 52)).astype("f4")
    wanted, got = ([np.zeros((47, 49), t) for t in ("f4", "u1")] for _ in range(2))
    run(Schedule(func).mod, x, *wanted)
    drawn = 0
    for space in SpaceGenerator(default_modules(TARGET)).generate(func, TARGET):
        for seed in range(2):
            if (tiled := draw(func, space, seed)) is not None:
                build(tiled, target="native")(x, *got)
                assert all(map(np.array_equal, got, wanted))
                drawn += 1
    assert drawn > 3


def test_outputs_of_other_shapes_share_no_tiles():
    found, sch = offered(parse(OUTPUTS.format(rows=46, more="")))
    assert found == [sch]
