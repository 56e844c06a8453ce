"""The tables of target kinds: a kind without a row is refused in one sentence, wherever asked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import metasched as ms
from metasched.cli import main
from metasched.errors import TargetError
from metasched.kinds import default_modules, default_mutators, default_postprocs, default_trace
from metasched.runtime.devices import device_of

GPU_NAME = "nvidia/nvidia-h100"
GPU = ms.Target.of(GPU_NAME)
FUNC = ms.workloads.get("nrm").func((1, 8, 8))
PACKAGE = Path(ms.__file__).parent


@pytest.mark.parametrize("ask", [default_modules, default_mutators, default_postprocs])
def test_a_kind_without_a_space(ask):
    with pytest.raises(TargetError, match="no default space for targets of kind 'cuda'; kinds"):
        ask(GPU)


def test_a_kind_without_a_default_schedule_or_a_device():
    with pytest.raises(TargetError, match="no default space for targets of kind 'cuda'"):
        default_trace(FUNC, GPU)
    with pytest.raises(TargetError, match="no code is made for targets of kind 'cuda'; kinds"):
        device_of(GPU)


COMMANDS = {
    "tune": "there is no default space for targets of kind 'cuda'; kinds with one: cpu",
    "bench --against numpy": "cannot be loaded here: there is no code generation for GPUs",
    "build -o out": "there is no default space for targets of kind 'cuda'; kinds with one: cpu",
    "show --what autoscheduled": "there is no default space for targets of kind 'cuda'; kinds",
    "show --what passes": "there are no passes for targets of kind 'cuda'; kinds with passes: cpu",
    "show --what asm": "cannot be loaded here: there is no code generation for GPUs",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_refuses_a_kind_without_a_row_in_one_sentence(words, capsys, tmp_path):
    command, *more = words.replace(" out", f" {tmp_path}/out").split()
    given = [command, "nrm", "--shape", "1,8,8", "--target", GPU_NAME, *more]
    assert main(given) == 2
    said = capsys.readouterr()
    assert said.out == "" and re.fullmatch(
        rf"metasched {command}: .*{COMMANDS[words]}.*\n", said.err
    )


def test_a_runner_needs_a_space_too(tmp_path):
    runner = ms.ReplayRunner
    with pytest.raises(TargetError, match="^there is no default space for targets of kind 'cuda'"):
        ms.tune(FUNC, target=GPU, runner=runner, work_dir=tmp_path / "work")
    assert not (tmp_path / "work").exists()


# The files that name the kind of CPUs, and why each must.
NAMING = {
    "target/cpu.py": "the class of the kind",
    "target/description.py": "`Target.native()` is a CPU, and so is a stored target without a kind",
    "lower/cpu.py": "the row of its passes",
    "runtime/cpu.py": "the row of its device",
    "kinds/cpu.py": "the row of its space",
    "cost/features.py": "the name of its feature set, which stored models and priors bear",
    "tvm_names.py": "a name of TVM's that is explained, `tvm.cpu`",
}


def test_no_file_but_the_rows_names_the_kind_of_cpus():
    """Everything else asks the tables."""
    naming = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value == "cpu":
                naming.add(str(path.relative_to(PACKAGE)))
    assert naming == set(NAMING)
