"""The passes of a target kind: their order, what is shown between them, and a kind without any."""

from __future__ import annotations

import pytest

import metasched as ms
from metasched.errors import LowerError
from metasched.lower.pipeline import PIPELINES, Pipeline, lower, passes_applied
from metasched.target import Target

CPU = Target.of({"kind": "cpu", "mcpu": "haswell"})
FUNC = ms.workloads.get("nrm").func((1, 8, 8))


def test_the_last_pass_gives_the_lowered_function():
    names, funcs = zip(*passes_applied(FUNC, CPU), strict=True)
    assert names[0] == "close_blocks" and names.index("convert_blocks") < names.index("flatten")
    assert names[-1] == "unroll_register_tiles"
    assert ms.structural_equal(funcs[-1], lower(FUNC, CPU))


def test_a_kind_without_passes_is_refused():
    with pytest.raises(LowerError, match="no passes for targets of kind 'cuda'; kinds with passes"):
        lower(FUNC, Target.of({"kind": "cuda", "mcpu": "sm_86"}))


def test_a_kind_has_passes_of_its_own(monkeypatch):
    monkeypatch.setattr(PIPELINES, "_items", dict(PIPELINES._items))

    def mark(func):
        return func.with_attr("marked", 1)

    PIPELINES.register("cuda", lambda target: Pipeline((), ((mark, "the only one"),)))
    func = ms.parse("@T.prim_func(s_tir=False)\ndef f():\n    T.evaluate(0)")
    lowered = lower(func, Target.of({"kind": "cuda", "mcpu": "sm_86"}))
    assert lowered.attrs["marked"] == 1


def test_the_setting_debug_prints_what_passes_changed(monkeypatch, capsys):
    monkeypatch.setenv("METASCHED_DEBUG", "passes")
    lower(FUNC, CPU)
    said = capsys.readouterr()
    assert said.out == "" and "# after convert_blocks\n@T.prim_func" in said.err
    monkeypatch.setenv("METASCHED_DEBUG", "everything")
    with pytest.raises(ms.MetaschedError, match="METASCHED_DEBUG.*'everything' is not one of"):
        lower(FUNC, CPU)
