"""Every workload against its NumPy reference, through the interpreter, at small shapes."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_golden

from metasched import structural_hash, workloads
from metasched.errors import RegistryError
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of
from metasched.runtime.build import build
from metasched.script import script
from metasched.workloads.padding import out_size, taps

SMALL = [
    ("gmm", (2, 3, 4, 5)),
    ("gmm_u8s8s32", (1, 3, 4, 5)),
    ("gmm_s8s8s32", (1, 3, 4, 5)),
    ("gmm_bf16", (1, 3, 4, 5)),
    ("gmm_f16", (1, 3, 4, 5)),
    ("gmm_bf16io", (2, 3, 4, 5)),
    ("gmm_f16io", (1, 3, 4, 5)),
    ("qgmm", (2, 3, 4, 5)),
    ("qgmm_s8", (1, 3, 4, 5)),
    ("c1d", (1, 7, 3, 4, 3, 2, 1)),
    ("c1d", (2, 6, 3, 2, 1, 2, 0)),
    ("c2d", (1, 5, 6, 2, 3, 3, 2, 1)),
    ("c2d", (1, 4, 4, 3, 2, 1, 1, 0)),
    ("c2d_u8s8s32", (1, 4, 4, 2, 3, 3, 1, 1)),
    ("c2d_s8s8s32", (1, 4, 4, 2, 3, 1, 1, 0)),
    ("c2d_bf16", (1, 4, 4, 2, 3, 3, 1, 1)),
    ("c2d_f16", (1, 4, 4, 2, 3, 3, 1, 1)),
    ("c2d_bf16io", (1, 4, 4, 2, 3, 3, 1, 1)),
    ("c2d_f16io", (1, 4, 4, 2, 3, 1, 1, 0)),
    ("qc2d", (1, 5, 4, 2, 3, 3, 2, 1)),
    ("qc2d_s8", (1, 4, 4, 3, 2, 1, 1, 0)),
    ("qdep", (1, 6, 5, 3, 3, 2, 1)),
    ("qdep_s8", (1, 4, 4, 3, 3, 1, 0)),
    ("c3d", (1, 3, 4, 3, 2, 2, 3, 1, 1)),
    ("c3d", (1, 3, 2, 3, 2, 2, 1, 1, 0)),
    ("grp", (1, 5, 4, 4, 8, 3, 1, 1, 1, 4)),
    ("grp", (1, 3, 3, 4, 4, 1, 1, 0, 1, 2)),
    ("dil", (1, 6, 7, 2, 2, 3, 1, 2, 2)),
    ("dil", (1, 4, 4, 2, 2, 1, 1, 0, 2)),
    ("dep", (1, 6, 5, 3, 3, 2, 1)),
    ("dep", (1, 4, 4, 3, 3, 1, 0)),
    ("t2d", (1, 3, 4, 2, 3, 4, 2, 1)),
    ("t2d", (1, 3, 3, 2, 2, 4, 2, 0)),
    ("t2d", (1, 3, 3, 2, 2, 4, 2, 3)),
    ("t2d", (1, 4, 3, 2, 2, 2, 1, 0)),
    ("t2d", (1, 3, 4, 2, 2, 3, 2, 1)),
    ("cap", (1, 3, 4, 2, 2, 3, 2, 1)),
    ("nrm", (2, 4, 5)),
    ("sfm", (3, 6)),
    ("cbr", (1, 4, 5, 2, 3, 3, 1, 1)),
    ("cbr", (1, 4, 4, 2, 3, 1, 2, 0)),
    ("tbg", (2, 3, 2, 4)),
    ("blur", (4, 5)),
    ("blur_u16", (4, 5)),
    ("jac3", (3, 4)),
    ("harris", (3, 4)),
    ("argmax", (5, 6)),
    ("mean_variance", (3, 6)),
    ("attention", (2, 6, 4)),
    ("causal", (2, 6, 4)),
    ("lse", (3, 6)),
    ("lnm", (4, 5, 6)),
    ("rms", (3, 6)),
]
INEXACT = {"sfm", "nrm", "blur", "jac3", "harris", "mean_variance", *workloads.NORMALISATIONS}


def test_programs_keep_the_hash_by_which_stored_traces_find_them():
    lines = []
    for name in workloads.names():
        workload = workloads.get(name)
        for shape in workload.shapes:
            digest = structural_hash(workload.func(shape))
            lines.append(f"{name} {','.join(map(str, shape))} {digest}")
    check_golden("workload_hashes", "\n".join(lines))


def compute(workload, shape, integers, compiled=False):
    inputs = workload.inputs(shape, seed=1, integers=integers)
    found = workload.arguments(inputs, shape)
    func = workload.func(shape)
    if compiled:
        build(func)(*found)
    else:
        run(func, *found)
    return found, workload.expected(inputs, shape)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize(("name", "shape"), SMALL, ids=lambda v: str(v).replace(" ", ""))
def test_program_agrees_with_the_reference(name, shape, compiled):
    workload = workloads.get(name)
    for output, expected in zip(
        *compute(workload, shape, integers=True, compiled=compiled), strict=True
    ):
        assert output.shape == expected.shape
        if name in INEXACT:
            limit = 64 * np.finfo(np.float32).eps * np.abs(expected).max()
            assert np.abs(output - expected).max() <= limit
        else:
            np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("name", ["c2d", "cbr", "t2d", "sfm", "mean_variance", "attention", "lse"])
def test_on_normal_data(name):
    shape = dict(SMALL)[name]
    for output, expected in zip(*compute(workloads.get(name), shape, integers=False), strict=True):
        np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-5)


def test_every_workload_is_tested_and_the_suite_is_whole():
    assert {name for name, _ in SMALL} == set(workloads.names()) - set(workloads.POLYBENCH)
    assert len(workloads.SUITE) == 13
    assert set(workloads.SUITE) <= set(workloads.names())


@pytest.mark.parametrize("name", workloads.names())
def test_usual_shapes_build_and_count(name):
    workload = workloads.get(name)
    for shape in workload.shapes:
        assert workload.shape_of(shape) == shape
        assert workload.flops(shape) > 0
    func = workload.func()
    assert func.buffers[0].dtype == workload.dtype
    assert [b.shape for b in func.buffers] == [b.shape for b in workload.func(None).buffers]


# From the measured rates of the suite: GFLOP/s times microseconds, to the digits given there.
FLOPS = {
    "c1d": 6.27e6, "c2d": 209.8e6, "c3d": 9.64e9, "gmm": 2.147e9, "grp": 52.4e6, "dil": 151.7e6,
    "dep": 7.14e6, "t2d": 58.98e6, "cap": 63.4e6, "nrm": 2.1e6, "sfm": 4.19e6, "cbr": 12.85e6,
    "tbg": 33.55e6,
}  # fmt: skip


@pytest.mark.parametrize("name", workloads.SUITE)
def test_flops_of_the_first_shape(name):
    workload = workloads.get(name)
    assert workload.flops(workload.shapes[0]) == pytest.approx(FLOPS[name], rel=0.02)


def test_no_padding_no_copy():
    c2d = workloads.get("c2d")
    with_pad = [r.block.name for r in blocks_of(c2d.func((1, 4, 4, 3, 2, 3, 1, 1)).body)]
    without = [r.block.name for r in blocks_of(c2d.func((1, 4, 4, 3, 2, 1, 1, 0)).body)]
    assert with_pad[1:] == ["pad", "conv"]
    assert without[1:] == ["conv"]


def test_strides_and_dilations_of_one_are_not_written():
    text = script(workloads.get("c2d").func((1, 4, 4, 3, 2, 3, 1, 1)))
    assert "P[vn, vh + vi, vw + vj, vc]" in text
    assert "* 1" not in text


def test_blocks_of_softmax_and_cbr():
    def names(func):
        return [r.block.name for r in blocks_of(func.body)][1:]

    assert names(workloads.get("sfm").func((2, 2))) == ["max", "exp", "sum", "normalize"]
    assert names(workloads.get("cbr").func()) == ["conv", "bias", "scale", "shift", "relu"]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gmm", (1, 2, 3), r"gmm takes 4 numbers \(B N M K\): 1,2,3"),
        ("gmm", (1, 0, 3, 4), "gmm: N cannot be 0"),
        ("c2d", (1, 4, 4, 2, 2, 3, 1, -1), "c2d: pad cannot be -1"),
        ("c2d", (1, 2, 2, 2, 2, 3, 1, 0), r"a kernel of 3 \(dilation 1\) exceeds 2"),
        ("grp", (1, 4, 4, 6, 8, 3, 1, 1, 1, 4), "6 and 8 channels do not divide into 4 groups"),
        ("t2d", (1, 4, 4, 2, 2, 3, 1, 3), "padding 3 is too large for kernel 3"),
    ],
)
def test_bad_shapes(name, shape, message):
    with pytest.raises(ValueError, match=message):
        workloads.get(name).func(shape)


def test_unknown_name():
    with pytest.raises(RegistryError, match=r"no workload is called 'gm'; did you mean gmm"):
        workloads.get("gm")


def test_taps_count_only_what_lies_inside():
    assert out_size(5, 3, 2, 1) == 3
    assert taps((5,), 3, 1, 1) == 13
    assert taps((5, 5), 3, 1, 1) == 169
    assert taps((4,), 3, 1, 2, dilation=2) == 8


def test_constant_weights_are_a_mark():
    for name in workloads.names():
        work = workloads.get(name)
        rest = (*workloads.REDUCTIONS, *workloads.STENCILS, *workloads.POLYBENCH)
        if name in ("tbg", "nrm", "sfm", "attention", "causal", "lse", "rms", *rest):
            with pytest.raises(ValueError, match=f"{name} has no weights that could be constant"):
                work.func(constant_weights=True)
            continue
        (weight,) = work.func(constant_weights=True).constants
        assert weight.name == ("Y" if name.startswith("gmm") else "W")
        assert not work.func().constants
