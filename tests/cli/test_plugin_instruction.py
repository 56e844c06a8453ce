"""The plug-in file of PLUGINS.md with instructions of its own, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import metasched
from metasched.database.store import Store
from metasched.measure.candidate import Status
from metasched.registry import taken_back

PAGE = Path(metasched.__file__).parent / "PLUGINS.md"


@pytest.fixture(autouse=True)
def instructions_of_before():
    with taken_back(always=True):
        yield


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """The plug-in file and the program of the page's section."""
    section = PAGE.read_text(encoding="utf-8").partition("## A hardware instruction")[2]
    plugin, program = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[:2]
    mine, product = tmp_path / "mine.py", tmp_path / "product.py"
    mine.write_text("import metasched as ms\n" + plugin)
    head = "from metasched.script import tir as T\n\n"
    product.write_text(head + program.partition("\n\n\n")[0] + "\n")
    return mine, product


def tuned(cli, files, *more: object):
    mine, product = files
    return cli(
        "tune", f"{product}:bytes_product", "--plugin", mine, "--seed", 0, "--no-peer",
        "--work-dir", "work", *more,
    )  # fmt: skip


def test_measuring_processes_know_the_instruction_of_a_plugin_file(cli, files):
    ran = tuned(cli, files, "--json", "--trials", 6, "--strategy", "random", "--model", "random")
    assert ran.code == 0, ran.err
    assert ran.json()["failed"] == 0, ran.json()["failures"]
    with Store("work/metasched.db") as store:
        traces = [r.trace["steps"] for r in store.all() if r.status is Status.OK]
    steps = [(step["kind"], step["args"]) for trace in traces for step in trace]
    used = {args["tensor_intrin"] for kind, args in steps if kind == "tensorize"}
    offered = {args["ann_val"] for kind, args in steps if kind == "annotate"}
    assert used & {"my.pairs", "my.pairs_in_software"}
    assert "my.pairs,my.pairs_in_software" in offered


RUNNER = """
from metasched.measure.replay import ReplayRunner

@ms.runner("my.made_up")
def made_up(func, target):
    return ReplayRunner(cost=lambda c: 1e-7 if "sse2.pmadd.wd" in c.module.script() else 1e-6)
"""


def test_the_instruction_of_the_winner_is_named(cli, files):
    with files[0].open("a") as plugin:
        plugin.write(RUNNER)
    words = ("--trials", 16, "--strategy", "random", "--model", "random", "--runner", "my.made_up")
    best = tuned(cli, files, *words, "--json").json()["best"]
    assert best["instructions"] == ["my.pairs"]
    told = tuned(cli, files, *words).out
    assert "\n  instruction my.pairs\n" in told
    shown = cli("show", best["trace"], "--plugin", files[0])
    assert "\n# instruction my.pairs\n" in shown.out
    assert cli("show", best["trace"], "--json").json()["instructions"] == ["my.pairs"]


def test_a_work_folder_continues_without_the_plug_in_file_of_its_programs(cli, files):
    with taken_back(always=True):
        assert tuned(cli, files, "--trials", 6, "--strategy", "random").code == 0
    with Store("work/metasched.db") as store:
        lost = [r for r in store.all() if r.ok and '"my.pairs' in json.dumps(r.trace)]
    assert 0 < len(lost) < 6
    words = ("--work-dir", "work", "--trials", 8, "--seed", 0, "--no-peer")
    ran = cli("tune", f"{files[1]}:bytes_product", *words)
    assert ran.code == 0 and "raised" not in ran.err
    text = f"{len(lost)} of 6 stored programs cannot be replayed and are left out; the first: "
    assert text in ran.err and "; if a plug-in file declares it, name the file" in ran.err


MATRIX_RUNNER = """
from metasched.measure.replay import ReplayRunner

@ms.runner("my.counting")
def counting(func, target):
    return ReplayRunner(cost=lambda c: 1e-7 if '"my.unit"' in c.module.script() else 1e-6)
"""


def test_a_matrix_unit_of_one_file_is_found_by_tuning(cli, tmp_path):
    section = PAGE.read_text(encoding="utf-8").partition("## A matrix unit")[2]
    plugin = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[0]
    assert len(plugin.splitlines()) <= 82
    unit = tmp_path / "unit.py"
    unit.write_text(plugin + MATRIX_RUNNER)
    words = ("--trials", 8, "--strategy", "random", "--model", "random", "--seed", 0, "--no-peer")
    ran = cli(
        "tune", "gmm", "--shape", "1,30,20,10", "--plugin", unit, "--runner", "my.counting",
        "--work-dir", "work", *words,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "\n  instruction my.outer_8x8\n" in ran.out
