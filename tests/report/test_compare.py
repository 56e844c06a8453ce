"""Comparisons: peers in clean child processes, ratios, geometric means, PyTorch's operators."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import numpy as np
import pytest
from report.programs import LOW_SMALL, SMALL

import metasched as ms
from metasched import workloads
from metasched.codegen.peak import measured_peak
from metasched.errors import MeasureError
from metasched.report import compare, contest, peers
from metasched.report.bandwidth import measured_bandwidth
from metasched.report.contest import Standing
from metasched.report.onnx_ops import OPS as ONNX_OPS
from metasched.report.onnx_ops import onnx_op
from metasched.report.torch_low import LOW
from metasched.report.torch_ops import OPS
from metasched.report.torch_peer import torch_call, torch_op
from metasched.report.tvm_record import load_record
from metasched.target import Target

ONE_CORE = replace(Target.native(), num_cores=1)

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is an optional peer"
)

needs_onnx = pytest.mark.skipif(
    bool(peers.what_is_missing("onnxruntime")), reason="ONNX Runtime is an optional peer"
)


def test_pytorch_has_every_operator_of_the_suite():
    rows = {*workloads.REDUCTIONS, *workloads.NORMALISATIONS}
    assert set(OPS) == {*workloads.SUITE, *rows} == set(SMALL)


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", SMALL)
def test_pytorch_computes_what_numpy_does(op):
    work, shape = workloads.get(op), SMALL[op]
    _, chosen = torch_op(op, shape, integers=True)
    found = chosen.back(chosen.call()).contiguous().numpy()
    expected = work.expected(work.inputs(shape), shape)[-1]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    call = torch_call(op, shape, compiled=False)
    assert call() is not None


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [op for op in LOW_SMALL if op in LOW])
def test_pytorch_computes_what_numpy_does_in_low_precision(op):
    skip_if_saturating(op)
    _, chosen = torch_op(op, LOW_SMALL[op], integers=True)
    assert_equals_the_reference(op, chosen.back(chosen.call()).double().contiguous().numpy())


@needs_onnx
@pytest.mark.parametrize("op", [op for op in LOW_SMALL if op in ONNX_OPS])
def test_onnx_runtime_computes_what_numpy_does(op):
    skip_if_saturating(op)
    chosen = onnx_op(op, LOW_SMALL[op])
    assert_equals_the_reference(op, chosen.back(chosen.call()))
    assert peers.burst_of("onnxruntime", op, LOW_SMALL[op])(0.0) > 0


def skip_if_saturating(op):
    """Without VNNI both libraries add two products of unsigned and signed bytes in 16 bits."""
    kinds = [str(buffer.dtype) for buffer in workloads.get(op).func().buffers[:2]]
    if kinds == ["uint8", "int8"] and not {"avx512vnni", "avxvnni"} & {*Target.native().features}:
        pytest.skip("the library's sums of products of bytes saturate: this machine lacks VNNI")


def assert_equals_the_reference(op, found):
    work, shape = workloads.get(op), LOW_SMALL[op]
    expected = work.reference(shape, *work.inputs(shape))
    np.testing.assert_array_equal(found, expected.astype(np.float64))


def test_every_operator_of_low_precision_has_a_library_beside():
    assert set(workloads.LOW_PRECISION) <= {*LOW, *ONNX_OPS}
    assert {*LOW, *ONNX_OPS} <= set(workloads.names())


def test_an_operator_that_a_library_lacks_is_no_call():
    assert torch_call("qgmm_s8", (1, 4, 4, 4), compiled=False) is None
    assert torch_op("qgmm_s8", (1, 4, 4, 4), integers=True) is None
    assert onnx_op("gmm", (1, 4, 4, 4)) is None


def test_what_a_peer_needs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else name)
    assert peers.what_is_missing("onnxruntime") == "the package onnx is not installed"
    assert not peers.what_is_missing("torch-compiled") and not peers.what_is_missing("numpy")


@pytest.mark.parametrize(("op", "shape"), [*SMALL.items(), *LOW_SMALL.items()])
def test_numpy_has_every_operator(op, shape):
    assert 0 < peers.burst_of("numpy", op, shape)(0.0) < 1.0


def test_arrays_start_at_a_cache_line():
    for count in (1, 5, 1000):
        array = np.arange(count, dtype=np.float32)
        copy = peers.aligned(array)
        assert copy.ctypes.data % 64 == 0 and np.array_equal(copy, array) and copy.flags.writeable


def test_peers_run_in_turns_without_tuning_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HARMLESS", "1")
    monkeypatch.setattr(contest, "_BURST", 0.0)
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    clean = contest.clean_environment()
    assert "HARMLESS" in clean and not {"OPENBLAS_CORETYPE", "OMP_NUM_THREADS"} & set(clean)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    trace = tuned_gmm(tmp_path)
    sides = compare.side_by_side(
        "gmm", (1, 16, 16, 16), ["numpy", "tvm"], trace, {("gmm", (1, 16, 16, 16)): 2.0}
    )
    targets: list[Target | None] = []
    build = peers.build
    monkeypatch.setattr(peers, "build", lambda sch, target: build(sch, targets.append(target)))
    peers.burst_of(peers.OURS, "gmm", (1, 16, 16, 16), str(trace))
    assert targets == [ONE_CORE]
    ours, theirs = sides["metasched"], sides["numpy"]
    assert 0 < ours.seconds < 1.0 and ours.ratio == 1.0
    assert 0 < theirs.seconds < 1.0 and theirs.ratio > 0
    assert sides["tvm"].ratio == pytest.approx(2.0 / ours.seconds)


def tuned_gmm(folder):
    work = workloads.get("gmm")
    result = ms.tune(
        work.func((1, 16, 16, 16)), trials=1, work_dir=folder, name="gmm", model="random",
        strategy="random", target=ONE_CORE,
    )  # fmt: skip
    return result.best.path


def test_a_ratio_is_the_median_over_the_rounds():
    ours, theirs = Standing((1.0, 2.0, 10.0)), Standing((3.0, 8.0, 10.0))
    assert contest.ratio(theirs, ours) == 3.0
    assert contest.ratio(theirs, Standing(note="it failed")) is None


def test_a_peer_that_does_not_exist_or_fails_or_hangs():
    known = "numpy, scipy, numba, torch"
    with pytest.raises(MeasureError, match=f"no peer is called 'blas'; there are {known}"):
        contest.contest("gmm", (1, 8, 8, 8), ["blas"])
    assert "numpy failed on gmm: " in contest.contest("gmm", (1, 8), ["numpy"])["numpy"].note
    slow = contest.contest("gmm", (1, 8, 8, 8), ["numpy"], timeout=0.01)["numpy"]
    assert "numpy took more than 0 s" in slow.note and slow.seconds is None


def test_the_peak_takes_part():
    """A call of it is a billion operations: at its best as fast as any reading of the peak."""
    found = contest.contest("gmm", (1, 8, 8, 8), ["peak"], rounds=2)["peak"]
    target = Target.of("native")
    best = measured_peak(target, "float32", target.num_cores)
    assert 0.1 * best < 1.0 / found.seconds < 3.0 * best


def test_the_peak_of_bytes_is_that_of_their_instruction():
    new, old = Target.of("llvm -mcpu=znver4"), Target.of("llvm -mcpu=haswell")
    assert "llvm.x86.avx512.vpdpbusd.512" in peers.products("qgmm", new)
    assert "llvm.x86.avx512bf16.dpbf16ps.512" in peers.products("c2d_bf16io", new)
    assert not peers.products("gmm", new) and not peers.products("qgmm", old)


def test_a_library_that_cannot_be_timed_has_a_note_in_its_row():
    sides = compare.side_by_side("gmm", (1, 8), ["numpy", "tvm"], None, {})
    assert sides["tvm"].note == "not in the record" and "failed on gmm" in sides["numpy"].note
    assert sides["metasched"].note == "no candidate was right"
    row = compare.row("gmm", (1, 8), "float32", "numpy", sides["numpy"], 1e9, 100.0)
    assert row["seconds"] is row["ratio"] is row["gflops"] is None and "failed" in row["note"]


def rows(*entries):
    return [
        compare.row(op, (1, 2), "float32", peer, compare.LibraryTime(seconds, over), 1e9, 100.0)
        for op, peer, seconds, over in entries
    ]


def test_ratios_and_geometric_means():
    made = rows(
        ("a", "metasched", 0.1, 1.0), ("a", "numpy", 0.2, 2.0), ("b", "metasched", 0.1, 1.0),
        ("b", "numpy", 0.8, 8.0), ("b", "torch", None, None), ("c", "numpy", 0.5, None),
    )  # fmt: skip
    assert [r["ratio"] for r in made] == [1.0, 2.0, 1.0, 8.0, None, None]
    assert made[0]["gflops"] == 10.0 and made[0]["peak_fraction"] == 0.1
    assert compare.geometric_means(made) == {"numpy": pytest.approx(4.0)}
    text = compare.comparison_text(made)
    assert "geometric mean of their times over ours: numpy 4.00" in text
    assert text.splitlines()[1].split() == [
        "a", "1,2", "metasched", "100", "ms", "10.0", "10", "%", "1.00",
    ]  # fmt: skip


def test_no_rows_are_an_empty_table():
    assert compare.comparison_text([]).splitlines()[0].startswith("op")


def test_a_record_of_tvm_keeps_the_best_time(tmp_path):
    path = tmp_path / "tvm.json"
    path.write_text(
        '[{"op": "GMM", "shape": [1, 2, 3, 4], "seconds": 2.0},'
        ' {"op": "gmm", "shape": [1, 2, 3, 4], "seconds": 1.0, "trials": 64}]'
    )
    assert load_record(path) == {("gmm", (1, 2, 3, 4)): 1.0}


def test_bandwidth_is_a_plausible_number():
    assert 0.1 < measured_bandwidth(1) < 5000
