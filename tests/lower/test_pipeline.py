"""The passes of a target kind: their order, what is shown between them, and a kind without any."""

from __future__ import annotations

import pytest
from oracle import check_numbers

import metasched as ms
from metasched.errors import TargetError
from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import apply_passes, lower
from metasched.lower.table import PIPELINES, Pipeline
from metasched.target import Target

CPU = Target.of({"kind": "cpu", "mcpu": "haswell"})
FUNC = ms.workloads.get("nrm").func((1, 8, 8))


def test_the_last_pass_gives_the_lowered_function():
    names, funcs = zip(*apply_passes(FUNC, CPU), strict=True)
    assert names[0] == "close_blocks" and names.index("convert_blocks") < names.index("flatten")
    assert names[-1] == "narrow_comparisons"
    assert ms.structural_equal(funcs[-1], lower(FUNC, CPU))


def test_a_kind_without_passes_is_refused():
    with pytest.raises(
        TargetError, match="no passes for targets of kind 'cuda'; kinds with passes"
    ):
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


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("strides=[1, 6]", 30), ("strides=[7, 1]", 42), ("elem_offset=8", 38),
        ("strides=[1, 6], elem_offset=5", 35),
    ],
)  # fmt: skip
def test_an_allocation_holds_its_last_element(layout, size):
    """Dimensions may lie in any order: the first need not have the largest stride."""
    func = ms.parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), C: T.Buffer((6, 5), "int32")):
    B = T.alloc_buffer((6, 5), "int32", {layout})
    for i, j in T.grid(6, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[5 - vi, vj] * 2
""")
    check_numbers(func, ms.Schedule(func).mod, compiled=True)
    (made,) = [s.buffer for s in walk_stmts(lower(func, CPU).body) if isinstance(s, Allocate)]
    assert made.shape[0] == size
