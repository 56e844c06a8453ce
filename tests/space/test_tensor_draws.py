"""120 random programs of design spaces with tensor instructions compute what the program does.

Each draw is interpreted. The first draw of a program is also proved legal, compiled and run, where
this machine can.
"""

from __future__ import annotations

import numpy as np
import pytest
from space.test_tensor_instruction import HERE, OLD, VNNI, drawn, filled, tensor_spaces

from metasched import Schedule, build
from metasched.ir.interp import run
from metasched.kinds import default_postprocs
from metasched.postproc import run_postprocs
from metasched.workloads import get

DRAWS = 12  # of each program
PROGRAMS = [
    ("gmm_u8s8s32", (1, 5, 8, 8), OLD), ("gmm_s8s8s32", (1, 17, 17, 4), OLD),
    ("c2d_u8s8s32", (1, 3, 3, 4, 8, 2, 1, 0), OLD), ("qgmm", (1, 5, 8, 8), OLD),
    ("gmm_u8s8s32", (2, 7, 18, 9), VNNI), ("gmm_s8s8s32", (1, 6, 32, 16), VNNI),
    ("gmm_bf16", (1, 7, 21, 5), VNNI), ("c2d_u8s8s32", (1, 3, 3, 3, 16, 2, 1, 1), VNNI),
    ("c2d_bf16", (1, 3, 3, 4, 16, 2, 1, 1), VNNI), ("qc2d", (1, 3, 3, 4, 16, 2, 1, 1), VNNI),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "target"), PROGRAMS)
def test_draws_compute_the_same(name, shape, target):
    func = get(name).func(shape)
    wanted = filled(func)
    run(func, *wanted)
    spaces = tensor_spaces(func, target)
    assert spaces
    for seed in range(DRAWS):
        trace, whole = spaces[seed % len(spaces)], seed == 0
        if whole:
            sch = drawn(func, trace, target, seed)
        else:  # as a search replays it
            sch = Schedule(func, seed=seed, check=False)
            trace.apply(sch, decisions="fresh")
            run_postprocs(sch, target, default_postprocs(target))
        assert "call_llvm_pure_intrin" in sch.mod.script()
        results = [filled(func)]
        run(sch.mod, *results[0])
        if whole and HERE.supports(target) is None:
            results.append(filled(func))
            build(sch.mod, target=target)(*results[1])
        for given in results:
            np.testing.assert_array_equal(given[-1], wanted[-1], err_msg=str(sch.trace))
