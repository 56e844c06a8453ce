"""README's Python blocks run, in order and in one namespace, in an empty directory."""

from __future__ import annotations

import re
from pathlib import Path

from metasched.space.module import SCHEDULE_MODULES

README = Path(__file__).resolve().parent.parent / "README.md"


def python_blocks() -> list[tuple[int, str]]:
    """(line of the first statement, source) of each block marked python."""
    text = README.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, m.start(1)) + 1, m[1]) for m in found]


def test_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")  # starting more takes longer than 4 trials
    # What README registers is gone afterwards.
    monkeypatch.setattr(SCHEDULE_MODULES, "_items", dict(SCHEDULE_MODULES._items))
    namespace = {"__name__": "readme"}
    blocks = python_blocks()
    assert blocks
    for line, source in blocks:
        # Lines keep README's numbers, so that an error points there; the dialect's parser reads
        # the file.
        path = tmp_path / f"README_line_{line}.py"
        path.write_text("\n" * (line - 1) + source, encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)


def test_commands_name_what_exists():
    text = README.read_text(encoding="utf-8")
    assert "pip install -e '.[test]' && metasched tune gmm --shape 1,1024,1024,1024" in text
    assert "pip install -e '.[test]' && pytest" in text
