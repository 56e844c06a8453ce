"""Registering modules, plug-in files, and what happens when they break."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from space.candidates import TARGET, tiny

from metasched import watch
from metasched.errors import PluginError, RegistryError
from metasched.ir.stmt import evolve
from metasched.ir.visit import blocks_of, transform
from metasched.kinds import default_modules
from metasched.registry import load_plugin, taken_back
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.module import (
    RULE,
    SCHEDULE_MODULES,
    schedule_module,
    user_modules,
)
from metasched.space.modules.custom_rule import ApplyCustomRule


@pytest.fixture(autouse=True)
def _registry():
    with taken_back(always=True):
        yield


GOOD = """
import metasched as ms

@ms.schedule_module("my.rule", targets=["cpu"])
def my_rule(sch, block):
    if sch.get(block).name != "Z":
        return [sch]
    loops = sch.get_loops(block)
    sch.split(loops[1], sch.sample_perfect_tile(loops[1], n=2))
    return [sch]
"""


def ruled(func, rule):
    """The function with its one computing block annotated."""

    def mark(node):
        if getattr(node, "name", None) == "Z":
            return evolve(node, annotations=type(node.annotations)({RULE: rule}))
        return None

    return func.with_body(transform(func.body, mark))


def test_a_registered_module_is_a_value_that_can_be_called():
    @schedule_module("test.same", targets=["cpu", "cuda"])
    def same(sch, block):
        return [sch]

    assert same.name == "test.same" and same.targets == ("cpu", "cuda")
    sch = Schedule(tiny("gmm"))
    assert same(sch, sch.get_block("Z")) == [sch]
    assert same in user_modules(TARGET)
    assert same in default_modules(TARGET)


def test_a_taken_name_is_refused():
    schedule_module("test.twice")(lambda sch, block: [sch])
    with pytest.raises(RegistryError, match=r"'test\.twice' is registered already"):
        schedule_module("test.twice")(lambda sch, block: [sch])
    schedule_module("test.twice", override=True)(lambda sch, block: [sch])


def test_only_functions_can_be_modules():
    with pytest.raises(TypeError, match="must be a function"):
        schedule_module("test.number")(3)


def test_a_plugin_file_joins_the_space(tmp_path):
    path = tmp_path / "my_rules.py"
    path.write_text(GOOD)
    assert load_plugin(path) == ("my.rule",)
    assert load_plugin(path) is load_plugin(path)  # loaded once
    spaces = SpaceGenerator(default_modules(TARGET)).generate(tiny("gmm"))
    steps = [e.kind.name for e in spaces[0].entries]
    assert steps.index("sample_perfect_tile") < steps.index("split")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n1 / 0", "raised ZeroDivisionError: division by zero, in line 2"),
        ("def f(:", "raised SyntaxError"),
        (GOOD + "\nraise ValueError('late')", "raised ValueError: late"),
        ("raise SystemExit(0)", "raised SystemExit"),
    ],
)
def test_a_broken_plugin_file_is_named_and_leaves_nothing(tmp_path, text, why):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PluginError, match=r"plug-in .*broken\.py raised") as caught:
        load_plugin(path)
    assert why in str(caught.value)
    assert "my.rule" not in SCHEDULE_MODULES


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.py", "No such file"), (".", "Is a directory|no Python file"), ("a\0b", "null byte"),
        ("text.txt", "is no Python file"), ("x" * 300 + ".py", "name too long"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_no_python_file_is_named(tmp_path, name, why):
    (tmp_path / "text.txt").write_text(GOOD)
    with pytest.raises(PluginError, match=f"plug-in .*({why})"):
        load_plugin(tmp_path / name)


def test_output_of_a_plugin_goes_to_standard_error(tmp_path, capfd):
    path = tmp_path / "loud.py"
    path.write_text("import os, sys\nprint('one')\nos.system('echo two')\nos.write(1, b'three')")
    load_plugin(path)
    out, err = capfd.readouterr()
    assert out == "" and all(word in err for word in ("one", "two", "three"))


def test_a_plugin_that_takes_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("metasched.watch.NAMED", 0.05)
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(0.7)")
    with pytest.warns(UserWarning, match=r"plug-in .*slow\.py still runs after 0 s; Ctrl-C ends"):
        load_plugin(path)


def test_the_time_for_which_the_process_was_stopped_does_not_count(monkeypatch):
    """The clock jumps by 1,000 s, as after a suspended laptop wakes up."""
    told, real = [], watch.time
    jump = SimpleNamespace(by=0.0)
    clock = SimpleNamespace(sleep=real.sleep, monotonic=lambda: real.monotonic() + jump.by)
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch, "_LOOK", 0.01)
    monkeypatch.setattr(watch, "warn", told.append)
    call = watch.called("the call", object(), stop=True)
    with call:
        jump.by = 1000.0
        real.sleep(0.5)
    jump.by = 0.0
    real.sleep(0.1)  # the watching thread sees the usual clock before another call runs
    assert 0 < call.spent < watch.NAMED and told == []


def test_a_built_in_module_is_not_named_on_a_busy_machine(monkeypatch):
    told = []
    monkeypatch.setattr(watch, "NAMED", 0.0)
    monkeypatch.setattr(watch, "_LOOK", 0.001)
    monkeypatch.setattr(watch, "warn", told.append)

    class Slow:
        name = "slow"
        turns = 1000

        def __call__(self, sch, block):
            for _ in range(self.turns):
                if told:
                    break
                watch.time.sleep(0.01)
            return [sch]

    SpaceGenerator((Slow(),)).generate(tiny("gmm"))
    assert told == ["schedule module slow still runs after 0 s; Ctrl-C ends it"]
    told.clear()
    Slow.turns = 30
    Slow.__module__ = "metasched.space.modules.slow"
    SpaceGenerator((Slow(),)).generate(tiny("gmm"))
    assert told == []


def test_a_module_that_ends_the_process_is_named():
    module = schedule_module("test.exit")(lambda sch, block: exit(3))
    with pytest.warns(UserWarning, match="module test.exit failed on block .*SystemExit: 3"):
        assert SpaceGenerator((module,)).generate(tiny("gmm"))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda sch, block: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda sch, block: sch, "must return a list of schedules, not Schedule"),
        (lambda sch, block: [], "returned no schedule"),
        (lambda sch, block: [sch.parallel(sch.get_loops(block)[3])], "carries|reduction|iteration"),
    ],
)
def test_a_failing_module_is_named_and_its_block_goes_on_without_it(fn, message):
    module = schedule_module("test.bad")(lambda s, b: fn(s, b) if s.get(b).name == "Z" else [s])
    generator = SpaceGenerator((module, *default_modules(TARGET)[1:]))
    with pytest.warns(UserWarning, match=r"module test\.bad failed on block Z"):
        spaces = generator.generate(tiny("gmm"))
    assert spaces and len(spaces[0]) > 10
    (failure,) = generator.failures
    assert (failure.module, failure.block) == ("test.bad", "Z")
    assert __import__("re").search(message, failure.message)


def test_a_module_that_edits_and_then_raises_changes_no_schedule():
    def half(sch, block):
        if sch.get(block).name == "Z":
            sch.split(sch.get_loops(block)[1], [None, 2])
            raise RuntimeError("after the split")
        return [sch]

    generator = SpaceGenerator((schedule_module("test.half")(half),))
    with pytest.warns(UserWarning, match="after the split"):
        (space,) = generator.generate(tiny("gmm"))
    assert len(space) == 0


def test_an_annotated_block_is_left_to_the_module_it_names():
    @schedule_module("test.only", on_request=True)
    def only(sch, block):
        sch.annotate(block, "seen", 1)
        return [sch]

    assert only not in default_modules(TARGET)
    (space,) = SpaceGenerator(default_modules(TARGET)).generate(ruled(tiny("gmm"), "test.only"))
    notes = [e.attrs["ann_key"] for e in space.entries if e.kind.name == "annotate"]
    assert "seen" in notes and "meta_schedule.tiling_structure" not in notes


def test_an_unknown_rule_is_warned_of_and_dropped():
    func = ruled(tiny("gmm"), "test.unknown")
    generator = SpaceGenerator((ApplyCustomRule(TARGET),))
    with pytest.warns(UserWarning, match=r"'test\.unknown', which is not registered"):
        (space,) = generator.generate(func)
    sch = Schedule(func)
    space.apply(sch)
    assert all(RULE not in r.block.annotations for r in blocks_of(sch.func.body))


def test_the_rule_none_keeps_all_modules_away():
    spaces = SpaceGenerator(default_modules(TARGET)).generate(ruled(tiny("gmm"), "None"))
    assert all("split" not in [e.kind.name for e in s.entries] for s in spaces)


@pytest.mark.parametrize("names", [("C", "C"), ("C", "root")])
def test_every_module_handles_blocks_of_one_name(names):
    func = parse(
        """
@T.prim_func
def twice(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("{}"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + T.float32(1)
    for i in range(8):
        with T.block("{}"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + T.float32(1)
    """.format(*names)
    )
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert not generator.failures
    assert any(e.kind.name == "compute_inline" for space in spaces for e in space)
