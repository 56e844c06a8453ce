"""Comparisons: peers in clean child processes, ratios, geometric means, PyTorch's operators."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
from report.programs import SMALL

from metasched import workloads
from metasched.errors import MeasureError
from metasched.report import compare, peers
from metasched.report.bandwidth import measured_bandwidth
from metasched.report.torch_ops import OPS, torch_call, torch_result
from metasched.report.tvm_record import load_record

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is an optional peer"
)


def test_pytorch_has_every_operator_of_the_suite():
    assert set(OPS) == set(workloads.SUITE) == set(SMALL)


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", workloads.SUITE)
def test_pytorch_computes_what_numpy_does(op):
    work, shape = workloads.get(op), SMALL[op]
    found = torch_result(op, shape)
    expected = work.reference(shape, *work.inputs(shape))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    call = torch_call(op, shape, compiled=False)
    assert call() is not None


def test_an_operator_that_pytorch_lacks_is_no_call():
    assert torch_call("gmm_u8s8s32", (1, 4, 4, 4), compiled=False) is None
    assert torch_result("gmm_u8s8s32", (1, 4, 4, 4)) is None


@pytest.mark.parametrize("op", workloads.SUITE)
def test_numpy_has_every_operator(op, monkeypatch):
    monkeypatch.setattr(peers, "_BUDGET", 0.0)
    assert peers.timed(peers._numpy_call(op, SMALL[op])) > 0


def test_a_peer_runs_without_tuning_variables(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HARMLESS", "1")
    clean = peers.clean_environment()
    assert "HARMLESS" in clean and not {"OPENBLAS_CORETYPE", "OMP_NUM_THREADS"} & set(clean)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert 0 < peers.peer_seconds("numpy", "gmm", (1, 8, 8, 8)) < 1.0


def test_a_peer_that_does_not_exist_or_fails_or_hangs():
    with pytest.raises(MeasureError, match=r"no peer is called 'blas'; there are numpy, torch"):
        peers.peer_seconds("blas", "gmm", (1, 8, 8, 8))
    with pytest.raises(MeasureError, match="numpy failed on gmm: "):
        peers.peer_seconds("numpy", "gmm", (1, 8))
    with pytest.raises(MeasureError, match="took more than 0 s"):
        peers.peer_seconds("numpy", "gmm", (1, 8, 8, 8), timeout=0.01)


def test_a_peer_that_fails_is_a_note_in_its_row(monkeypatch):
    def broken(*_):
        raise MeasureError("numpy failed on gmm: no memory")

    monkeypatch.setattr(compare, "peer_seconds", broken)
    assert compare.peer_time("numpy", "gmm", (1, 1, 1, 1), None) == (
        None, "numpy failed on gmm: no memory",
    )  # fmt: skip
    assert compare.peer_time("tvm", "gmm", (1, 1, 1, 1), {}) == (None, "not in the record")


def rows(*entries):
    made = []
    for op, peer, seconds, ours in entries:
        made.append(compare.row(op, (1, 2), "float32", peer, seconds, ours, 1e9, 100.0))
    return made


def test_ratios_and_geometric_means():
    made = rows(
        ("a", "metasched", 0.1, 0.1), ("a", "numpy", 0.2, 0.1), ("b", "metasched", 0.1, 0.1),
        ("b", "numpy", 0.8, 0.1), ("b", "torch", None, 0.1), ("c", "numpy", 0.5, None),
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
