"""depth_blocking: slices of a reduction, summed up in memory, compute the same."""

from __future__ import annotations

import re

import numpy as np
import pytest
from space.candidates import TARGET, draw
from space.chains import sum_of_axes

from metasched.ir.describe import show_expr
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of
from metasched.kinds import default_modules
from metasched.lower.passes.prefetch import AHEAD
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.auto_inline import AutoInline
from metasched.space.modules.compute_location import StageAtTile
from metasched.space.modules.depth_blocking import STREAMS, DepthBlocking
from metasched.space.modules.matrix_form import MatrixForm
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.workloads import get

BLOCKS = RegisterTiling(512, 32, 2, 1 << 20)
SHAPES = {
    "gmm": (1, 8, 64, 24),
    "cbr": (1, 3, 3, 4, 32, 3, 2, 1),
    "t2d": (1, 1, 2, 4, 32, 4, 2, 1),
}
DEEP = DepthBlocking(BLOCKS, shallow=8, slices=(2, 64))


@pytest.mark.parametrize("name", SHAPES)
def test_candidates_compute_the_same(name):
    """With an elementwise consumer (cbr) and with a batch of products (t2d) too."""
    workload, shape = get(name), SHAPES[name]
    func = workload.func(shape)
    inputs, wanted = list(workload.inputs(shape)), workload.output(shape)
    run(func, *inputs, wanted)
    generator = SpaceGenerator((AutoInline(), MatrixForm(512), DEEP, BLOCKS))
    found = [s for s in generator.generate(func, TARGET) if _is_sliced(s)]
    assert found and not generator.failures
    for space in found:
        sch = draw(func, space, 0)
        assert sch is not None
        output = np.full_like(wanted, 7)
        run(sch.mod, *inputs, output)
        np.testing.assert_array_equal(output, wanted)


def _is_sliced(space):
    return any(e.kind.name == "rfactor" for e in space.entries)


def test_a_block_whose_reduction_comes_first_has_no_such_space():
    """Rather than an error that no user can do anything about."""
    sch = Schedule(sum_of_axes((8, 2, 1)), seed=0, check=False)
    for module in default_modules(TARGET):
        if isinstance(module, DepthBlocking):
            assert module(sch, sch.get_block("L")) == [sch]


def test_a_panel_is_a_slice_of_an_operand():
    sch = Schedule(get("gmm").func((1, 24, 64, 24)), seed=0)
    plain, deep, direct = DEEP(sch, sch.get_block("Z"))
    assert plain is sch and direct.mod["main"].params == sch.mod["main"].params
    place = deep.state.loops_above(deep.state.block(deep.get_block("Y_reindex")))
    (count, steps) = next(
        e.decision for _, e in deep.trace.sampling() if e.domain["kind"] == "perfect_tile"
    )
    assert count * steps == 24
    assert place[1].extent.value == count


def _read_in_place(name, shape):
    """The schedules whose slices are read where they are."""
    sch = Schedule(get(name).func(shape), seed=0)
    return [s for s in DEEP(sch, sch.get_block("Z"))[1:] if not _packs(s)]


def _packs(sch):
    return any(e.kind.name == "reindex" for e in sch.trace.entries)


def test_few_rows_read_the_operand_without_packing():
    """Its next rows are asked for, once for all rows of the register block that use them."""
    (sch,) = _read_in_place("gmm", SHAPES["gmm"])
    space, seen = sch.trace.simplified(), set()
    func = get("gmm").func(SHAPES["gmm"])
    for seed in range(6):
        drawn = draw(func, space, seed, check=False)
        assert drawn is not None
        (ahead,) = {r.block.annotations[AHEAD] for r in blocks_of(drawn.func.body)
                    if AHEAD in r.block.annotations}  # fmt: skip
        text = build(drawn, target="native").llvm_ir
        body = text[text.index(".body(") :]
        hints = re.findall(r"call void @llvm.prefetch.p0\(ptr (\S+),", body)
        assert bool(hints) == (ahead != 0) and len(hints) == len(set(hints))
        assert ahead in (0, 8 * 64, 16 * 64)
        seen.add(ahead)
    assert len(seen) > 1


def test_many_rows_pay_for_packing():
    assert not _read_in_place("gmm", (1, 400, 64, 24))


def test_slices_read_in_place_do_not_crowd_the_cache():
    """All of a row's page stands for it: a panel_bytes of 64 rows of 256 bytes."""
    deep = DepthBlocking(RegisterTiling(512, 32, 2, 1 << 14), shallow=8, slices=(2, 256))
    sch = Schedule(get("gmm").func((1, 8, 64, 256)), seed=0)
    direct = next(s for s in deep(sch, sch.get_block("Z"))[1:] if not _packs(s))
    conditions = [show_expr(e.values[0]) for e in direct.trace.entries if e.kind.name == "require"]
    assert any(c.endswith("* 256 <= 16384") for c in conditions)


def test_the_padding_is_not_made_for_each_tile_of_columns():
    """They share all of it; where an operand is asked for ahead, the tiles are of columns."""
    generator = SpaceGenerator((DEEP, StageAtTile()))
    found = generator.generate(get("c2d").func((1, 4, 4, 4, 64, 3, 1, 1)), TARGET)
    direct = [s for s in found if AHEAD in s.to_json()]
    assert len(direct) == 1
    assert all(e.values[0] != "pad" for e in direct[0].entries if e.kind.name == "compute_at")


def test_unit_reductions_do_not_prevent_depth_blocking():
    """A convolution with a kernel of one element: there is nothing to cut in its loops."""
    sch = Schedule(get("c2d").func((1, 2, 2, 1024, 32, 1, 1, 0)), seed=0)
    found = DEEP(sch, sch.get_block("conv"))
    assert len(found) > 1
    for sliced in found[1:]:
        assert any(e.kind.name == "rfactor" for e in sliced.trace.entries)


def test_short_reductions_are_not_sliced():
    modules = default_modules(TARGET)
    (deep,) = [m for m in modules if isinstance(m, DepthBlocking)]
    sch = Schedule(get("gmm").func((1, 24, 64, 256)), seed=0)
    assert deep(sch, sch.get_block("Z")) == [sch]


def test_few_rows_are_read_a_few_steps_at_a_time():
    """The rows of a matrix follow each other in memory; a step of one has more than its block."""
    deep = DepthBlocking(BLOCKS)
    sch = Schedule(get("gmm").func((1, 2, 64, 24)), seed=0)
    direct = [s for s in deep(sch, sch.get_block("Z"))[1:] if not _packs(s)]
    assert len(direct) == 1
    conditions = [
        show_expr(e.values[0]) for e in direct[0].trace.entries if e.kind.name == "require"
    ]
    assert any(c.endswith(f">= {STREAMS[0]}") for c in conditions)


COLUMNS = """
@T.prim_func
def main(X: T.Buffer((64, 96), "float32"), Y: T.Buffer((96,), "float32")):
    for j, i in T.grid(96, 64):
        with T.block("Y"):
            vj, vi = T.axis.remap("SR", [j, i])
            with T.init():
                Y[vj] = T.float32(0)
            Y[vj] = Y[vj] + X[vi, vj]
"""


@pytest.mark.parametrize("columns", [96, 200])
def test_sums_of_columns_are_read_row_by_row(columns):
    """Nothing is reused but the sums themselves: a block of them goes over a few rows at a time.

    200 columns have no halves of whole vectors: 25 tiles, if short ones, keep two cores busy."""
    func = parse(COLUMNS.replace("96", str(columns)))
    sch = Schedule(func, seed=0)
    plain, deep = DepthBlocking(BLOCKS)(sch, sch.get_block("Y"))
    assert plain is sch and not _packs(deep)
    x = np.random.default_rng(0).integers(-4, 5, (64, columns)).astype("float32")
    for seed in range(2):
        drawn = draw(func, deep.trace.simplified(), seed)
        assert drawn is not None
        found = np.zeros(columns, "float32")
        build(drawn, target="native")(x, found)
        np.testing.assert_array_equal(found, x.sum(axis=0))


def test_rows_that_are_summed_up_are_no_columns():
    text = COLUMNS.replace("X[vi, vj]", "X[vj, vi]").replace("((64, 96)", "((96, 64)")
    sch = Schedule(parse(text), seed=0)
    assert DepthBlocking(BLOCKS)(sch, sch.get_block("Y")) == [sch]
