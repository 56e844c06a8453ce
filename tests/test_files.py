"""Atomic writes: whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from metasched.files import atomic_write


def test_text_bytes_and_permissions(tmp_path):
    path = tmp_path / "x"
    atomic_write(path, "é")
    assert path.read_bytes() == "é".encode()
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    atomic_write(path, b"\x00\xff", mode=0o600)
    assert path.read_bytes() == b"\x00\xff" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["x"]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x"
    atomic_write(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x"]
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "none" / "x", "new")
