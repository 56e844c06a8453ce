"""depth_blocking: slices of a reduction, summed up in memory, compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw, tiny

from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.space.defaults import default_modules
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.auto_inline import AutoInline
from metasched.space.modules.depth_blocking import DepthBlocking
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


def test_a_panel_is_a_slice_of_an_operand():
    sch = Schedule(get("gmm").func(SHAPES["gmm"]), seed=0)
    plain, deep = DEEP(sch, sch.get_block("Z"))
    assert plain is sch
    place = deep.state.loops_above(deep.state.block(deep.get_block("Y_reindex")))
    (count, steps) = next(
        e.decision for _, e in deep.trace.sampling() if e.domain["kind"] == "perfect_tile"
    )
    assert count * steps == SHAPES["gmm"][3]
    assert place[1].extent.value == count


def test_short_reductions_are_not_sliced():
    modules = default_modules(TARGET)
    (deep,) = [m for m in modules if isinstance(m, DepthBlocking)]
    sch = Schedule(tiny("gmm"), seed=0)
    assert deep(sch, sch.get_block("Z")) == [sch]
