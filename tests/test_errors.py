"""Errors: one base class, and a ScheduleError whose text is rendered only when read."""

from __future__ import annotations

import inspect
import pickle

import pytest

from metasched import errors
from metasched.codegen.compile import compile_text
from metasched.errors import QUOTED, BuildError, MetaschedError, ScheduleError, words
from metasched.target import Target


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
