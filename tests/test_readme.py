"""The Python blocks of README and guide run, in order and in one namespace, in an empty folder."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

import metasched.tune  # fills the registries
import metasched.workloads  # noqa: F401
from metasched.registry import kinds, taken_back

ROOT = Path(__file__).resolve().parent.parent
README, GUIDE = ROOT / "README.md", ROOT / "metasched" / "GUIDE.md"
PLUGINS = ROOT / "metasched" / "PLUGINS.md"


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """(line of the first statement, source) of each block marked python."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, m.start(1)) + 1, m[1]) for m in found]


# On a busy machine the programs as written may take longer than 10 s, and the run says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*gave no results within")


def test_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")  # starting more takes longer than 4 trials
    namespace = {"__name__": "readme"}
    blocks = [(page, *block) for page in (README, GUIDE) for block in python_blocks(page)]
    assert {page for page, *_ in blocks} == {README, GUIDE}
    with taken_back(always=True):  # what the pages register is gone afterwards
        run_blocks(blocks, namespace, tmp_path)


def run_blocks(blocks, namespace, tmp_path):
    for page, line, source in blocks:
        # Lines keep the page's numbers, so that an error points there; the dialect's parser reads
        # the file.
        path = tmp_path / f"{page.stem}_line_{line}.py"
        path.write_text("\n" * (line - 1) + source, encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)


def test_plugins_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    blocks, text = python_blocks(PLUGINS), PLUGINS.read_text(encoding="utf-8").splitlines()
    assert len(blocks) == 21
    sections = groupby(
        blocks, lambda block: sum(line.startswith("## ") for line in text[: block[0]])
    )
    namespace = {"__name__": "plugins"}
    for _, section in sections:
        with taken_back(always=True):  # a part of one section is not called in the next
            run_blocks([(PLUGINS, *block) for block in section], namespace, tmp_path)


def test_every_group_of_entry_points_is_listed():
    listed = re.findall(r"^\| `(metasched\.\w+)` \|", PLUGINS.read_text(encoding="utf-8"), re.M)
    for kind in listed:  # a group that nothing looks up would be listed in vain
        assert kind in kinds()
    assert sorted(listed) == kinds()


def test_the_additions_name_files_that_exist():
    text = (ROOT / "metasched" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## How to add")[2].partition("\n## ")[0]
    paths = {p for p in re.findall(r"`([\w/.]+)`", section) if "/" in p or p.endswith(".py")}
    assert len(paths) > 20
    roots = (ROOT, ROOT / "metasched")
    assert not {p for p in paths if not any((root / p).exists() for root in roots)}
    rows = [line for line in section.splitlines() if line.startswith("| a ")]
    assert len(rows) == 8 + 10


def test_commands_name_what_exists():
    text = README.read_text(encoding="utf-8")
    assert "pip install -e '.[test]' && metasched tune gmm --shape 1,1024,1024,1024" in text
    assert "pip install -e '.[test]' && pytest" in text


def test_the_matrix_unit_has_the_number_of_lines_that_readme_names():
    section = PLUGINS.read_text(encoding="utf-8").partition("## A matrix unit")[2]
    unit = re.search(r"^```python\n(.*?)^```$", section, re.M | re.S)[1]
    named = re.search(r"has (\d+) lines", README.read_text(encoding="utf-8"))[1]
    assert len(unit.splitlines()) == int(named)


def test_links_of_the_pages_lead_somewhere():
    pages = [README, *(ROOT / "metasched").glob("*.md"), ROOT / "tests" / "README.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_setting_and_command_that_a_page_names_exists():
    from metasched.commands.names import HELP

    text = README.read_text(encoding="utf-8")
    listed = re.search(r"The commands are ([^;]+);", text)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == set(HELP)
