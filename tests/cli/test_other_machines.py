"""Commands for a target that is not this machine: what works, and what says what it would take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emulation import require_emulator

import metasched as ms
from metasched.errors import ExportError, TargetError
from metasched.runtime import export as export_module
from metasched.target import Target

HERE = Target.native()
OTHER = "llvm -mcpu=neoverse-n1" if HERE.arch == "x86_64" else "llvm -mcpu=haswell"
ARM = "llvm -mtriple=aarch64-linux-gnu -mattr=+v8.6a -num-cores=2"
BOARD = Path(__file__).parents[1] / "data" / "board_runner.py"
THERE = Target.of(OTHER)
GMM = ms.workloads.get("gmm").func((1, 16, 16, 16))
APART = f"it was made for {THERE.arch}, this machine is {HERE.arch}"


def test_tune_says_what_it_would_take(cli):
    done = cli("tune", "gmm", "--shape", "1,16,16,16", "--target", OTHER)
    assert done.code != 0 and "Traceback" not in done.err
    assert f"candidates for {THERE.key} cannot be timed here: {APART}; tune on such a" in done.err
    assert "name a runner that reaches one (`runner=`, `--runner`)" in done.err
    assert "`metasched.export` writes files for other machines" in done.err
    with pytest.raises(TargetError, match="cannot be timed here: .*name a runner"):
        ms.tune(GMM, target=OTHER)


def test_show_prints_the_code_of_another_machine(cli):
    shown = ("show", "gmm", "--shape", "1,16,16,16", "--target", OTHER, "--what")
    assert ("fmadd" if THERE.arch == "aarch64" else "vfmadd") in cli(*shown, "asm").out
    assert "define" in cli(*shown, "llvm").out and "T.int64" in cli(*shown, "passes").out


def test_build_refuses_and_names_export():
    with pytest.raises(TargetError, match=f"{APART}; `metasched.export` writes files"):
        ms.build(GMM, target=OTHER)


def test_files_of_another_machine_are_not_loaded(tmp_path):
    files = ms.export(GMM, tmp_path, OTHER)
    assert json.loads(files.manifest.read_text())["target"] == THERE.to_json()
    with pytest.raises(ExportError, match=f"gmm.json: the kernel cannot run here: {APART}"):
        ms.load_exported(tmp_path)


def test_features_that_are_lacking_are_named(tmp_path):
    files = ms.export(GMM, tmp_path)
    data = json.loads(files.manifest.read_text())
    rare = {"x86_64": ("avx512vp2intersect", "amx-fp16"), "aarch64": ("sve2", "fp16fml")}
    absent = next(feature for feature in rare[HERE.arch] if not HERE.has(feature))
    data["target"]["features"].append(absent)
    files.manifest.write_text(json.dumps(data))
    with pytest.raises(ExportError, match=f"this machine lacks the CPU feature {absent}"):
        ms.load_exported(tmp_path)


def test_without_a_linker_for_the_target_there_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(export_module.shutil, "which", lambda name: None)
    files = ms.export(GMM, tmp_path, OTHER)
    assert files.library is None and files.object.exists()
    assert f"no C compiler that links for {THERE.arch} (METASCHED_CC names one)" in files.note


def test_what_export_refuses(tmp_path):
    with pytest.raises(TargetError, match="no code is made for targets of kind 'cuda'"):
        ms.export(GMM, tmp_path, "nvidia/nvidia-h100")
    two = ms.IRModule({"a": GMM, "b": GMM})
    with pytest.raises(ms.MetaschedError, match="export takes one function, the module has 2"):
        ms.export(two, tmp_path)


def test_a_runner_may_have_more_cores_than_this_machine(cli, tmp_path, monkeypatch):
    cores = {**HERE.to_json(), "num_cores": 4096}
    asked = ("tune", "gmm", "--shape", "1,16,16,16", "--target", json.dumps(cores), "--no-peer")
    more = ("--strategy", "random", "--model", "random", "--trials", 1, "--json")
    refused = cli(*asked, *more)
    assert refused.code == 2 and "the target has 4096 cores, this machine lets" in refused.err
    (tmp_path / "far.py").write_text(FAR)
    done = cli(*asked, *more, "--plugin", tmp_path / "far.py", "--runner", "test.far")
    assert done.code == 0, done.err
    assert json.loads(done.out)["peak_gflops"] is None


FAR = """
import metasched as ms

@ms.runner("test.far")
def far(func, target):
    return ms.ReplayRunner(cost=lambda candidate: 1e-6)
"""


def test_a_runner_that_reaches_a_board(cli, tmp_path):
    """Candidates are linked, run under emulation, checked and timed; the winner's trace exports."""
    require_emulator()
    options = ("--plugin", BOARD, "--target", ARM, "--runner", "board", "--trials", 3)
    done = cli("tune", "gmm_s8s8s32", "--shape", "1,6,8,16", *options, "--no-peer", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["failed"] == 0 and found["best"]["seconds"] > 0 and found["peak_gflops"] is None
    func = ms.workloads.get("gmm_s8s8s32").func((1, 6, 8, 16))
    files = ms.export(
        ms.replay(found["best"]["trace"], func, target=ARM), tmp_path / "out", ARM, name="k"
    )
    assert "i8mm" in json.loads(files.manifest.read_text())["target"]["features"]
    with pytest.raises(ExportError, match="cannot run here: it was made for aarch64"):
        ms.load_exported(files.manifest)
