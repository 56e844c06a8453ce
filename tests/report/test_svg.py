"""Charts: ticks a person would choose, points where they belong, text escaped."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.report.svg import HEIGHT, WIDTH, Axis, Series, chart, tick_text

NS = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def labels(root: ET.Element, kind: str) -> list[str]:
    return [t.text for t in root.iter(NS + "text") if t.get("class") == kind]


def test_ticks_are_round_numbers():
    root = parsed(chart("t", Axis("x"), Axis("y", log=True), [Series("s", [(0, 1), (64, 1000)])]))
    assert labels(root, "x")[:4] == ["0", "20", "40", "60"]
    assert labels(root, "y") == ["1", "10", "100", "1000"]


def test_a_title_that_looks_like_markup_is_text():
    dots = Series("a<b", [(1, 1)], "dots", ["<script>"])
    root = parsed(chart("x & y", Axis("<i>"), Axis("&"), [dots]))
    assert root.find(NS + "title").text == "x & y"
    assert root.find(f".//{NS}circle/{NS}title").text == "<script>"
    assert "a<b" in labels(root, "key")


def test_steps_hold_each_value_until_the_next():
    root = parsed(chart("t", Axis("x"), Axis("y"), [Series("", [(1, 3), (2, 1)], "steps")]))
    (path,) = root.iter(NS + "path")
    move, hold, fall = path.get("d").split(" H")[0], *path.get("d").split(" H")[1].split(" L")
    x, y = fall.split()
    assert move.startswith("M") and hold == x and float(y) > float(move.split()[1])


def test_nothing_to_draw_says_so():
    for series in ([], [Series("s", [])], [Series("s", [(1, math.inf), (0, 5)])]):
        root = parsed(chart("t", Axis("x", log=True), Axis("y"), series))
        assert labels(root, "none") == ["no data"]


NUMBERS = st.floats(-1e12, 1e12, allow_nan=False) | st.sampled_from([0.0, math.inf, math.nan])


@given(
    points=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), log_x=st.booleans(),
    log_y=st.booleans(), kind=st.sampled_from(["line", "steps", "dots"]),
)  # fmt: skip
def test_any_points_stay_on_the_paper(points, log_x, log_y, kind):
    series = [Series("s", points, kind)]
    root = parsed(chart("t", Axis("x", log=log_x), Axis("y", log=log_y), series))
    for dot in root.iter(NS + "circle"):
        assert 0 <= float(dot.get("cx")) <= WIDTH and 0 <= float(dot.get("cy")) <= HEIGHT
    assert len(labels(root, "x")) < 16 and len(labels(root, "y")) < 16


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (20, "20"), (5000, "5000"), (20_000, "20k"), (3e6, "3M"), (2e-6, "2e-06")],
)
def test_tick_text(value, text):
    assert tick_text(value) == text
