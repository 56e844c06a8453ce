"""Errors: one base class, and a ScheduleError whose text is rendered only when read."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from runpy import run_path

import numpy as np
import pytest

import metasched
from metasched import errors
from metasched.codegen.compile import compile_text
from metasched.errors import QUOTED, BuildError, MetaschedError, ScheduleError, words
from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.target import Target
from metasched.workloads import get


def test_one_base_class():
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, Exception):
            assert issubclass(kind, MetaschedError)
            assert kind.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.KernelError, ValueError),
        (errors.RegistryError, LookupError),
        (errors.TypeMismatchError, TypeError),
        (errors.ScheduleError, RuntimeError),
    ],
)
def test_errors_are_also_the_builtin_kind(kind, builtin):
    assert issubclass(kind, builtin)


def test_parse_error_carries_its_place():
    error = errors.ParseError("bad", line=3, column=7)
    assert (str(error), error.line, error.column) == ("bad", 3, 7)


def test_schedule_error_renders_when_read():
    calls = []

    def text():
        calls.append("text")
        return "the loop carries a dependence"

    def excerpt():
        calls.append("excerpt")
        return "for k in range(4):\n    ^^^"

    node = object()
    error = ScheduleError(
        "parallel", "dependence", text, block_or_loop=node, hint="try another loop", excerpt=excerpt
    )
    assert calls == []
    assert error.block_or_loop is node
    assert (error.primitive, error.reason) == ("parallel", "dependence")
    assert str(error) == (
        "parallel: the loop carries a dependence [dependence]\n"
        "for k in range(4):\n    ^^^\n"
        "hint: try another loop"
    )
    assert calls == ["text", "excerpt"]


def test_schedule_error_with_plain_text():
    assert str(ScheduleError("split", "factors", "no factors")) == "split: no factors [factors]"


@pytest.mark.parametrize(
    "error",
    [
        errors.ParseError("bad", line=3, column=7),
        errors.VerifyError("bad", rule="sequence"),
        *[
            kind("bad")
            for _, kind in inspect.getmembers(errors, inspect.isclass)
            if issubclass(kind, MetaschedError) and kind is not ScheduleError
        ],
        ScheduleError("split", "factors", lambda: "bad", hint="better", excerpt=lambda: "for k:"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_hold_their_text_and_are_pickled(error):
    assert error.args == (str(error),)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.args == error.args
    attributes = ("line", "column", "rule", "primitive", "reason", "message", "hint")
    for name in attributes:
        assert getattr(again, name, None) == getattr(error, name, None)


def test_a_refusal_is_pickled_with_its_place():
    from schedule.programs import matmul

    from metasched.ir.stmt import For
    from metasched.schedule.schedule import Schedule

    sch = Schedule(matmul)
    i, j, k = sch.get_loops("C")
    with pytest.raises(RuntimeError) as caught:
        sch.parallel(k)
    assert isinstance(caught.value, ScheduleError) and caught.value.args == (str(caught.value),)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and isinstance(again.block_or_loop, For)


def test_messages_of_other_libraries_are_short_single_lines():
    assert words(RuntimeError("a\n  b")) == "a b"
    assert len(words(RuntimeError("x y " * 999))) == QUOTED
    with pytest.raises(BuildError, match="LLVM refuses") as caught:
        compile_module = "define i32 @f() {\n" + "bad " * 200
        compile_text(compile_module, Target.native())
    assert len(str(caught.value)) < 2 * QUOTED


BAD_PROGRAMS = {
    "undefined": "A[i] = A[i] + nothing",
    "no-type": "A[i] = A[i] + T.uint64(1)",
    "in-a-function": "A[i] = halved(A[i])",
    "in-a-macro": "store(A, i)",
    "no-word": "with T.nothing(): A[i] = T.int64(0)",
}


def frames_of(error: BaseException) -> list[str]:
    """The names of the modules in an error's traceback, its causes included."""
    found: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        assert seen.__suppress_context__ or seen.__context__ is None
        trace = seen.__traceback__
        while trace is not None:
            found.append(trace.tb_frame.f_globals["__name__"].partition(".")[0])
            trace = trace.tb_next
        seen = seen.__cause__
    return found


@pytest.mark.parametrize("line", BAD_PROGRAMS.values(), ids=BAD_PROGRAMS)
def test_an_error_of_a_script_shows_the_users_lines_only(line, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(f"""
from metasched.script import tir as T

def halved(x):
    return x / nobody

@T.macro
def store(to, i):
    to[i] = nothing

@T.prim_func
def f(A: T.Buffer((8,), "int64")):
    for i in range(8):
        {line}
""")
    with pytest.raises(errors.ParseError, match=r"program\.py:\d+:\d+: ") as caught:
        run_path(str(file))
    inside = frames_of(caught.value)
    assert inside.count("metasched") == 2 and "<run_path>" in inside


@pytest.mark.parametrize("way", ["__call__", "bind", "time", "named", "pack", "run"])
def test_an_error_of_a_kernel_shows_one_frame_of_the_package(way):
    kernel = metasched.build(get("gmm").func((1, 2, 2, 2)))
    a = np.zeros((1, 2, 2), "float32")
    with pytest.raises((errors.KernelError, errors.InterpretError)) as caught:
        if way == "named":
            kernel(a, a, Z=a)
        elif way == "pack":
            kernel.pack(a)
        elif way == "run":
            run(get("gmm").func((1, 2, 2, 2)), a, a[:1, :1], a)
        else:
            getattr(kernel, way)(a, a, a)
    assert len(frames_of(caught.value)) == 2 and frames_of(caught.value)[1] == "metasched"


def test_an_error_of_a_step_shows_the_users_lines_only():
    sch = Schedule(get("gmm").func((1, 8, 8, 8)))
    with pytest.raises(ScheduleError, match="no-such-block") as caught:
        sch.get_block("nothing")
    assert frames_of(caught.value).count("metasched") == 1


def test_an_error_of_a_build_shows_the_users_lines_only():
    with pytest.raises(errors.TargetError, match="'nothing' is not known") as caught:
        metasched.build(get("gmm").func((1, 8, 8, 8)), "llvm -mcpu=nothing")
    assert frames_of(caught.value).count("metasched") == 1
    with pytest.raises(errors.ConfigError, match="too small") as wrong:
        metasched.tune(get("gmm").func((1, 8, 8, 8)), trials=0)
    assert frames_of(wrong.value).count("metasched") == 1


def test_the_development_mode_keeps_the_frames_of_the_package():
    script = "import metasched; metasched.build(None, 'llvm -mcpu=nothing')"
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True
    )
    assert "metasched/target/cpu.py" in ran.stderr and "'nothing' is not known" in ran.stderr
