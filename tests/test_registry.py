"""The registry: duplicates refused, near misses named, broken plug-ins warned of and skipped."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from metasched.errors import RegistryError
from metasched.registry import Registry
from metasched.schedule.intrinsics import _INTRINSICS, TensorIntrin

SHELF: Registry[int] = Registry("colour", entry_points=False, package="painted")


class Point:
    """Stands for an entry point."""

    def __init__(self, name, item):
        self.name = name
        self.item = item

    def load(self):
        if isinstance(self.item, Exception):
            raise self.item
        return self.item


def test_register_get_names():
    registry = Registry("colour", entry_points=False)
    assert registry.register("red", 1) == 1
    registry.register("blue", 2)
    assert registry.get("red") == 1
    assert registry.names() == ["red", "blue"] == list(registry)
    assert "red" in registry
    assert "green" not in registry


def test_duplicate_is_refused():
    registry = Registry("colour", entry_points=False)
    registry.register("red", 1)
    with pytest.raises(RegistryError, match="colour 'red' is registered already"):
        registry.register("red", 2)
    registry.register("red", 2, override=True)
    assert registry.get("red") == 2


def test_unknown_name_suggests():
    registry = Registry("colour", entry_points=False)
    registry.register("purple", 1)
    with pytest.raises(RegistryError, match=r"no colour is called 'purpel'; did you mean purple\?"):
        registry.get("purpel")
    with pytest.raises(RegistryError, match=r"did you mean purple\?"):
        registry.get("PURPLE")
    with pytest.raises(RegistryError, match="is called 'x'; there are purple; if a plug-in file"):
        registry.get("x")
    for number in range(25):
        registry.register(f"shade{number}", number)
    with pytest.raises(RegistryError, match="shade18 and 6 more; if a plug-in file"):
        registry.get("x")


def test_a_package_is_imported_before_a_name_counts_as_unknown(tmp_path, monkeypatch):
    (tmp_path / "painted.py").write_text(
        "from tests.test_registry import SHELF\nSHELF.register('red', 1)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "painted", raising=False)
    SHELF.register("blue", 2)
    assert SHELF.get("blue") == 2 and "painted" not in sys.modules
    assert SHELF.get("red") == 1 and SHELF.names() == ["blue", "red"]
    with pytest.raises(RegistryError, match="no colour is called 'green'"):
        SHELF.get("green")


@pytest.mark.parametrize(
    "ask",
    [
        "metasched.Target.of('novel')",
        "metasched.lower(func, novel)",
        "metasched.runtime.devices.device_of(novel)",
    ],
)
def test_rows_of_a_target_kind_may_all_stand_in_one_file_of_kinds(ask):
    """The kind, its passes and its device are looked for in `kinds/` before they are unknown."""
    code = (
        "import metasched, sys\n"
        "import metasched.runtime.devices\n"
        "func = metasched.parse('@T.prim_func\\ndef f(a: T.handle):\\n    T.evaluate(0)')\n"
        "novel = metasched.Target(kind='novel')\n"
        "assert 'metasched.kinds' not in sys.modules\n"
        f"try:\n    {ask}\n"
        "except metasched.errors.TargetError as error:\n"
        "    assert 'novel' in str(error) and 'metasched.kinds' in sys.modules, error\n"
        "else:\n    raise AssertionError('not refused')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_entry_points_load_once_and_a_broken_one_breaks_nothing(monkeypatch):
    asked = []

    def entry_points(*, group):
        asked.append(group)
        return [Point("bad", ImportError("no such thing")), Point("good", 7), Point("own", 8)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    registry = Registry("schedule module")
    registry.register("own", 1)
    assert registry.get("own") == 1
    assert asked == []
    with pytest.warns(UserWarning, match=r"plug-in bad \(metasched.schedule_module\) is broken"):
        assert registry.get("good") == 7
    assert registry.get("own") == 1
    assert "bad" not in registry
    assert asked == ["metasched.schedule_module"]


def test_no_test_file_registers_an_intrinsic_as_it_is_imported():
    """The default space offers every registered intrinsic: other tests would get other spaces."""
    owners = {name: _INTRINSICS._owners[name] for name in TensorIntrin.names()}
    assert owners
    assert {n: o for n, o in owners.items() if not o.startswith("metasched.intrinsics")} == {}
