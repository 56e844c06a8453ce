"""What is no program, schedule, path or number is refused in words, wherever it is given."""

from __future__ import annotations

import pytest
from schedule.programs import matmul

import metasched as ms
from metasched.script import tir as T


@T.prim_func
def first(A: T.Buffer((8,), "float32")) -> T.float32:
    return A[0]


@pytest.fixture(scope="module")
def kernel():
    return ms.build(matmul)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda k: ms.Schedule(matmul).trace.apply(3), "a trace is applied to a Schedule, not int"),
        (lambda k: ms.Trace.from_json(3), "the trace is not JSON: .* not int"),
        (lambda k: ms.replay(None, matmul), "a trace file is a path, not NoneType"),
        (lambda k: k.export(None), "the folder of an export is a path, not NoneType"),
        (lambda k: k.export("dist", name=""), "'' is not a plain file name"),
        (lambda k: T.prim_func(3), "T.prim_func reads a function, not int"),
        (lambda k: ms.tune(matmul, time_limit="x"), "time_limit is 'x'; it must be 0 seconds or"),
        (lambda k: ms.build(matmul, name="int").export("dist"), "'int' is a word of C: build"),
        (lambda k: ms.build(matmul, name=3), "3 is not a C function name"),
        (
            lambda k: ms.build(first),
            r"nothing, the program returns A\[0\]; store it in a parameter",
        ),
        (
            lambda k: ms.IRModule.of({"first": first, "other": first})["mian"],
            "^the module has no function 'mian': first, other$",
        ),
        (lambda k: ms.build(matmul, opt_level=9), "opt_level is 9; LLVM has 0, 1, 2 and 3"),
    ],
)
def test_misuse(kernel, misuse, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ms.MetaschedError, match=message):
        misuse(kernel)


def test_a_module_is_a_mapping():
    module = ms.IRModule.of(first)
    assert "main" in module and "mian" not in module
    with pytest.raises(KeyError):
        module["mian"]
