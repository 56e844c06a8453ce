"""The page about a work folder: complete, offline, well formed, and right in its figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from search.tasks import TARGET, made_up_seconds, matmul

from metasched.errors import MetaschedError
from metasched.measure.candidate import Outcome, Status
from metasched.measure.replay import ReplayRunner
from metasched.report.html import Machine, chapters_of, least_bytes, page, timed_points
from metasched.search.observe import EventLog, PeerTimed
from metasched.tune import EVENTS, tune

MACHINE = Machine(peak=400.0, bandwidth=20.0)
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Text by enclosing tag, with the balance of tags checked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict]] = []
        self.texts: list[tuple[str, dict, str]] = []
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        if self.open and data.strip():
            self.texts.append((*self.open[-1], data))

    def of(self, tag: str, cls: str = "") -> list[str]:
        return [t for name, at, t in self.texts if name == tag and cls in at.get("class", "")]


def cost(candidate):
    if candidate.index == 5:
        return Outcome(Status.WRONG_RESULT, message="element 3 <differs> & more")
    return made_up_seconds(candidate)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("report") / "w"
    tune(
        matmul(16), target=TARGET, trials=20, seed=1, work_dir=place, name="small",
        runner=lambda f, t: ReplayRunner(cost=cost), prior=False,
    )  # fmt: skip
    log = EventLog(place / EVENTS)
    log(PeerTimed("small", "numpy", 5e-4))
    log.close()
    return place


@pytest.fixture(scope="module")
def text(folder):
    return page(chapters_of(folder), MACHINE, "Tuning <in> w")


def test_the_page_is_well_formed_and_fetches_nothing(text):
    read = Page(text)
    assert read.of("h1") == ["Tuning <in> w"]
    names = {tag for tag, _ in read.tags}
    assert not names & {"script", "link", "img", "iframe", "object"}
    for _, attrs in read.tags:
        assert not any(k in attrs and not attrs[k].startswith("#") for k in ("src", "href"))
    assert not re.search(r"url\(|@import", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}


def test_four_charts(text):
    read = Page(text)
    assert read.of("figcaption") == [
        "Best so far, by trials", "Best so far, by seconds", "Predicted and measured", "Roofline",
    ]  # fmt: skip
    assert sum(tag == "svg" for tag, _ in read.tags) == 4
    assert "no data" not in read.of("text")
    assert sum(tag == "circle" for tag, _ in read.tags) > 3 * 19 / 2


def test_the_table_has_everything_that_was_timed(folder, text):
    (chapter,) = chapters_of(folder)
    points = dict(timed_points(chapter))
    assert set(points) == {"best", "default schedule", "numpy"} and points["numpy"] == 5e-4
    cells = Page(text).of("td")
    at = cells.index("numpy")
    rate = 2 * 16**3 / 5e-4 / 1e9
    assert cells[at + 2] == f"{rate:.1f}" and cells[at + 3] == f"{100 * rate / 400:.1f} %"
    assert cells[at + 4] == f"{5e-4 / points['best']:.2f}"


def test_failures_by_stage_and_reason(text):
    cells = Page(text).of("td")
    at = cells.index("wrong_result")
    assert cells[at - 1 : at + 3] == ["check", "wrong_result", "1", "element 3 <differs> & more"]


def test_predictions_are_logged_and_judged(folder, text):
    (chapter,) = chapters_of(folder)
    told = [t.predicted is not None for t in chapter.history.trials]
    assert told[:16] == [False] * 16 and all(told[16:])
    (sentence,) = [t for t in Page(text).of("p") if "The model ordered" in t]
    assert f"{100 * chapter.history.agreement():.0f} % of the pairs" in sentence


def test_the_best_trace_and_the_program_before_and_after(folder, text):
    read = Page(text)
    (before,), (after,), (trace,) = (read.of("pre", c) for c in ("before", "after", "trace"))
    (chapter,) = chapters_of(folder)
    assert before == chapter.trace.workload and "sch." in trace
    assert "@T.prim_func" in after and after != before


def test_least_bytes_counts_each_buffer_once(folder):
    (chapter,) = chapters_of(folder)
    assert least_bytes(chapter.trace) == 3 * 16 * 16 * 4


def test_a_folder_with_a_trace_file_and_no_log(folder, tmp_path):
    (source,) = folder.glob("*.trace.json")
    (tmp_path / source.name).write_bytes(source.read_bytes())
    read = Page(page(chapters_of(tmp_path), MACHINE, "t"))
    assert read.of("h2") == ["small"] and read.of("pre", "after")


def test_a_folder_with_a_log_and_no_trace_file(folder, tmp_path):
    (tmp_path / EVENTS).write_bytes((folder / EVENTS).read_bytes())
    read = Page(page(chapters_of(tmp_path), MACHINE, "t"))
    assert "There is no trace file of this workload in the folder." in read.of("p")


def test_an_empty_folder(tmp_path):
    with pytest.raises(MetaschedError, match="holds no tuning run"):
        chapters_of(tmp_path)
