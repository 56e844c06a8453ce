"""The pages of figures and README's table are what their stored measurements give."""

from __future__ import annotations

import json

import pytest
from benchmarks import render_figures as figures

NAMES = sorted(path.stem for path in figures.SOURCES.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_made_of_its_measurements(name):
    written = (figures.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert written == figures.page(figures.load(name))


def test_every_page_has_measurements():
    assert sorted(path.stem for path in figures.PAGES.glob("*.md")) == NAMES != []


def test_readme_has_the_table_of_thirteen_rows():
    text = (figures.ROOT / "README.md").read_text(encoding="utf-8")
    assert figures.readme_with_table(text) == text
    table = text.partition(figures.BEGIN)[2].partition(figures.END)[0]
    assert table.count("\n") == 2 + figures.README_ROWS


def test_the_readme_of_the_benchmarks_has_the_table_of_the_ablation():
    text = (figures.ROOT / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert figures.markdown(figures.load("ablation_simulated")["tables"][0]) in text


@pytest.mark.parametrize("name", NAMES)
def test_a_table_names_its_date_commit_and_command(name):
    for table in figures.load(name)["tables"]:
        assert all(table[key] for key in ("date", "commit", "command", "columns", "rows"))
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_a_peer_that_wins_is_bold():
    assert figures.cell(0.97, "ratio") == "**0.97**" and figures.cell(1.0, "ratio") == "1.00"


def test_times_have_their_unit():
    assert [figures.cell(s, "seconds") for s in (2.0, 0.0108, 31e-6)] == ["2 s", "10.8 ms", "31 us"]


def test_the_output_of_bench_becomes_a_table(tmp_path, monkeypatch):
    def row(peer, ratio):
        return {"op": "gmm", "shape": [1, 8, 8, 8], "peer": peer, "seconds": 2e-6, "ratio": ratio,
                "peak_fraction": 0.5}  # fmt: skip

    (tmp_path / "bench.json").write_text(json.dumps([row("metasched", 1.0), row("numpy", 0.8)]))
    monkeypatch.setattr(figures, "SOURCES", tmp_path)
    figures.store("here", tmp_path / "bench.json")
    text = figures.page(figures.load("here"))
    assert "| GMM | 1,8,8,8 | 2 us | 50 % | **0.80** |" in text
