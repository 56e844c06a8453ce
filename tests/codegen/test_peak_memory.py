"""The measured peak: the best of all readings of this machine, kept in a file of the cache."""

from __future__ import annotations

import json

import pytest

from metasched.codegen import peak
from metasched.target import Target


@pytest.fixture
def reading(monkeypatch, tmp_path):
    """Sets what the loops of multiply-adds reach; the cache is an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def reach(rate: float) -> float:
        monkeypatch.setattr(peak, "multiply_adds", lambda *_: lambda: 1.0 / rate)
        return peak.measured_peak(Target.native(), "float32", 2)

    return reach


def test_the_best_reading_counts_and_is_remembered(reading, tmp_path):
    assert reading(100.0) == 100.0 and reading(50.0) == 100.0 and reading(200.0) == 200.0
    ((key, value),) = json.loads((tmp_path / "metasched" / "peak.json").read_text()).items()
    assert value == 200.0 and Target.native().key in key and key.endswith("float32 2")
    (tmp_path / "metasched" / "peak.json").unlink()
    assert reading(50.0) == 50.0


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"x": "y"}', "\\xff"])
def test_a_damaged_file_is_done_without(reading, tmp_path, text):
    (tmp_path / "metasched").mkdir()
    (tmp_path / "metasched" / "peak.json").write_text(text)
    assert reading(50.0) == 50.0 and reading(40.0) == 50.0


def test_a_folder_that_cannot_be_made_is_no_error(reading, tmp_path):
    (tmp_path / "metasched").write_text("a file")
    assert reading(50.0) == 50.0 and reading(40.0) == 40.0
