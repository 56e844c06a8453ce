"""metasched targets: everything that it lists is taken by --target."""

from __future__ import annotations

from metasched.commands.targets import OPTIONS
from metasched.target import TARGETS, Target


def test_every_target_that_is_listed_is_taken(cli):
    told = cli("targets", "--json").json()
    rows = {row["target"]: row for row in told["targets"]}
    assert {"native", "llvm -mcpu=haswell", *TARGETS.names()} <= rows.keys()
    for text, row in rows.items():
        assert Target.of(text).kind == row["kind"]
        assert row["runs_here"] is (row["why"] == "")
    assert rows["native"]["runs_here"]
    assert rows["nvidia/nvidia-h100"]["why"] == "there is no code generation for GPUs"
    assert told["options"] == OPTIONS and "avx2" in told["features"]["x86_64"]


def test_every_option_that_is_listed_is_taken():
    values = {"mcpu": "haswell", "mattr": "-fma", "mtriple": "x86_64-unknown-linux-gnu"}
    for name in OPTIONS:
        assert Target.of(f"llvm -{name}={values.get(name, 64)}")


def test_the_list_for_people(cli):
    done = cli("targets")
    assert done.code == 0 and "this machine" in done.out and "-num-cores=" in done.out
    assert "Features of x86_64" in done.out
