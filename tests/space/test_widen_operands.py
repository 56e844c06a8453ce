"""widen_operands: operands converted before a product, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from space.test_tensor_instruction import HERE, OLD, VNNI, computes_the_same, drawn, filled

from metasched import build
from metasched.ir.interp import run
from metasched.kinds import default_modules
from metasched.space.generate import SpaceGenerator
from metasched.workloads import get


def wide_spaces(func, target=OLD):
    generator = SpaceGenerator(default_modules(target))
    found = generator.generate(func, target)
    assert not generator.failures
    return [trace for trace in found if "widen_dtype" in str(trace)]


@pytest.mark.parametrize(
    ("name", "shape", "constant"),
    [
        ("gmm_bf16", (1, 18, 24, 4), True),
        ("gmm_f16io", (1, 17, 24, 3), False),
        ("gmm_bf16io", (2, 18, 17, 2), False),
        ("c2d_f16io", (1, 6, 6, 1, 24, 2, 1, 0), True),
    ],
)
def test_candidates_compute_the_same(name, shape, constant):
    workload = get(name)
    func = workload.func(shape, constant_weights=constant)
    wanted = filled(func)
    run(func, *wanted)
    spaces = wide_spaces(func)
    assert spaces
    for trace in spaces:
        sch = drawn(func, trace, OLD, 1)
        script = sch.mod.script()
        assert 'T.Cast("float32"' in script
        given = filled(func)
        run(sch.mod, *given)
        results = [given]
        if HERE.supports(OLD) is None:
            results.append(filled(func))
            kernel = build(sch.mod, target=OLD)
            x, weights, out = results[1]
            kernel(x, kernel.pack(weights) if constant else weights, out)
        for arrays in results:
            for a, b in zip(arrays, wanted, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "shape"), [("gmm_u8s8s32", (1, 18, 32, 4)), ("gmm_s8s8s32", (1, 17, 19, 3))]
)
def test_bytes_as_words_for_instructions(name, shape):
    """vpmaddwd on int16 is exact for all bytes, signed or not."""
    sch = computes_the_same(get(name).func(shape), OLD, draws=1)
    if name == "gmm_s8s8s32":  # the machine has no instruction for two signed bytes
        assert "llvm.x86.avx2.pmadd.wd" in sch.mod.script()
        assert "pmadd.ub.sw" not in sch.mod.script()


def test_a_panel_is_converted_while_it_is_packed():
    func = get("gmm_u8s8s32").func((1, 32, 32, 16))
    traces = [t for t in wide_spaces(func) if "interleave" in str(t)]
    assert traces
    script = drawn(func, traces[0], OLD, 0).mod.script()
    assert 'Y_global = T.alloc_buffer((1, 16, 32), "int16")' not in script


def test_what_widening_is_not_offered_for():
    """Few rows, one type, and instructions that are twice as fast for the operands as they are."""
    assert not wide_spaces(get("gmm_bf16").func((1, 1, 256, 256)))
    assert not wide_spaces(get("gmm").func((1, 32, 32, 32)))
    assert not wide_spaces(get("gmm_u8s8s32").func((1, 32, 32, 32)), VNNI)
    assert wide_spaces(get("gmm_bf16").func((1, 32, 32, 32)), VNNI)
