"""prefetch_rows: later rows are asked for by the last stage that reads them; nothing else moves."""

from __future__ import annotations

import numpy as np
from space.candidates import TARGET, TINY, assert_same, draw, spaces, tiny

from metasched.ir.visit import blocks_of
from metasched.kinds import default_modules
from metasched.lower.passes.prefetch import AHEAD
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.prefetch import PrefetchRows
from metasched.workloads import get


def _spaces(name):
    modules = [PrefetchRows(least=0) if isinstance(m, PrefetchRows) else m
               for m in default_modules(TARGET)]  # fmt: skip
    return SpaceGenerator(tuple(modules)).generate(tiny(name), TARGET)


def _noted(space, name):
    sch = Schedule(tiny(name))
    space.apply(sch)
    return {r.block.name: r.block.annotations[AHEAD]
            for r in blocks_of(sch.func.body) if AHEAD in r.block.annotations}  # fmt: skip


def test_the_stage_that_reads_a_row_last_asks_for_later_rows():
    fused, apart = _spaces("sfm")
    assert _noted(fused, "sfm").keys() == {"exp"}
    assert not _noted(apart, "sfm")


def test_small_arguments_and_single_stages_are_left_alone():
    assert not any(_noted(s, "sfm") for s in spaces("sfm"))
    assert not any(_noted(s, "nrm") for s in _spaces("nrm"))


def test_candidates_with_prefetches_compute_the_same():
    space = _spaces("sfm")[0]
    work, seen = get("sfm"), set()
    inputs = work.inputs(TINY["sfm"], integers=False)
    for seed in range(4):
        sch = draw(tiny("sfm"), space, seed, check=False)
        assert sch is not None
        assert_same("sfm", sch.mod)
        kernel = build(sch, target="native")
        output = np.zeros(TINY["sfm"], "float32")
        kernel(*inputs, output)
        np.testing.assert_allclose(output, work.reference(TINY["sfm"], *inputs), rtol=1e-5)
        ahead = {a for a in (0, 32, 64) if f'"{AHEAD}": {a}' in sch.script()}
        assert ("call void @llvm.prefetch" in kernel.llvm_ir) == (ahead != {0})
        seen |= ahead
    assert len(seen) > 1
