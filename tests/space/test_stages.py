"""Padding stages: where each tile of their consumer may compute its part of them."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched.analysis.cover import shared_loops
from metasched.ir.interp import run
from metasched.ir.stmt import ForKind
from metasched.kinds import default_modules, default_postprocs
from metasched.postproc import run_postprocs
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.space.generate import SpaceGenerator
from metasched.space.loop_kinds import child_of
from metasched.target import Target
from metasched.workloads import get


def _staged(name, shape):
    """The members of a workload's spaces whose padding is computed for each tile."""
    func = get(name).func(shape)
    for space in SpaceGenerator(default_modules(TARGET)).generate(func, TARGET):
        if any(e.kind.name == "compute_at" for e in space.entries):
            for seed in range(3):
                sch = draw(func, space, seed, check=False)
                if sch is not None:
                    yield sch


def _child(sch, name):
    return child_of(sch, sch.get(sch.get_block(name)).token)


@pytest.mark.parametrize("shape", [(1, 12, 9, 32, 3, 1, 1), (1, 9, 16, 16, 3, 2, 1)])
def test_a_window_of_a_depthwise_convolution_is_one_of_registers(shape):
    """The stage lies beside the block of registers, under all loops over it, and is written out."""
    work = get("dep")
    inputs = work.inputs(shape)
    wanted = work.reference(shape, *inputs)
    drawn = 0
    for sch in _staged("dep", shape):
        pad, conv, store = (_child(sch, name) for name in ("pad", "conv_update", "Y_local"))
        shared = shared_loops(pad, conv)
        assert shared == shared_loops(conv, store) > 1
        kinds = [loop.kind for loop in pad.loops[shared:]]
        assert kinds[-1] is ForKind.VECTORIZED and set(kinds[:-1]) == {ForKind.UNROLLED}
        output = np.zeros_like(wanted)
        build(sch, target="native")(*inputs, output)
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)
        drawn += 1
    assert drawn


def test_a_window_that_all_columns_share_is_one_of_the_outer_tiles():
    """In other variants the stage stands on its own, or an operand is packed for each tile."""
    members = list(_staged("c2d", (1, 8, 8, 4, 64, 3, 1, 1)))
    shared = [shared_loops(_child(sch, "pad"), _child(sch, "conv_update")) for sch in members]
    assert set(shared) == {0, 1}


def test_padding_of_a_packed_operand_is_made_where_each_core_packs():
    """Of rows and columns that the instruction needs: in the parallel loop, not in one before."""
    func = get("gmm_u8s8s32").func((1, 20, 40, 30))
    work, target = get("gmm_u8s8s32"), Target.of("llvm -mcpu=znver4 -num-cores=2")
    inputs = work.inputs((1, 20, 40, 30))
    wanted = work.reference((1, 20, 40, 30), *inputs)
    found = set()
    for space in SpaceGenerator(default_modules(target)).generate(func, target):
        sch = Schedule(func, seed=1)
        space.apply(sch, decisions="fresh")
        if "Y_pad_reindex_o" not in sch.mod.script():
            continue
        pad, panel = (_child(sch, name) for name in ("Y_pad", "Y_pad_reindex_o"))
        found.add(shared_loops(pad, panel))
        run_postprocs(sch, target, default_postprocs(target))
        output = np.zeros_like(wanted)
        run(sch.mod, *inputs, output)
        np.testing.assert_array_equal(output, wanted)
    assert found == {0, 1}
