"""Charts as SVG text: axes with readable ticks, lines, steps and dots; no script, no style sheet
but the page's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Point = tuple[float, float]
WIDTH, HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 44
COLOURS = ("#2563a8", "#c2571a", "#2e8b57", "#8e44ad", "#b03052", "#6b6b6b")


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour and legend entry.

    Attributes:
        name: for the legend; empty for none.
        points: (x, y); points that are not finite, or not positive on a logarithmic axis, are left
            out.
        kind: a line through them, steps that hold each value until the next, or dots.
        titles: text shown when the pointer rests on a dot, one for each point.
        colour: position in COLOURS; None takes the next.
        dashed: for lines.
    """

    name: str
    points: Sequence[Point]
    kind: Literal["line", "steps", "dots"] = "line"
    titles: Sequence[str] = ()
    colour: int | None = None
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label, whether it is logarithmic, and limits instead of the data's limits."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


def chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A chart as an <svg> element; without data, a text that says so."""
    kept = [(one, _drawable(one, x, y)) for one in series]
    points = [p for _, pairs in kept for _, p in pairs]
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>"
    )
    if not points:
        return f'{head}<text x="{WIDTH // 2}" y="{HEIGHT // 2}" class="none">no data</text></svg>'
    across = _Scale(x, [p[0] for p in points], _LEFT, WIDTH - _RIGHT)
    up = _Scale(y, [p[1] for p in points], HEIGHT - _BOTTOM, _TOP)
    parts = [head, *_axes(across, up)]
    for number, (one, pairs) in enumerate(kept):
        colour = COLOURS[(number if one.colour is None else one.colour) % len(COLOURS)]
        parts.append(_drawn(one, pairs, across, up, colour))
    parts += _legend(series)
    return "\n".join([*parts, "</svg>"])


class _Scale:
    """Maps values to positions along one axis."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis, self.start, self.end = axis, start, end
        low = axis.low if axis.low is not None else min(values)
        high = axis.high if axis.high is not None else max(values)
        if axis.log:
            low, high = math.log10(low), math.log10(max(high, low))
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        room = 0.05 * (high - low)
        self.low = low if axis.low is not None else low - room
        self.high = high if axis.high is not None else high + room

    def __call__(self, value: float) -> float:
        level = math.log10(value) if self.axis.log else value
        share = (level - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """At most about ten round values within the limits: 1, 2 or 5 times a power of ten."""
        if self.axis.log:
            first, last = math.floor(self.low), math.ceil(self.high)
            several = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            stride = 1 + (last - first) // 8
            found = [m * 10.0**p for p in range(first, last + 1, stride) for m in several]
            return [v for v in found if v > 0 and self.low <= math.log10(v) <= self.high]
        rough = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def _drawable(one: Series, x: Axis, y: Axis) -> list[tuple[int, Point]]:
    def fits(value: float, axis: Axis) -> bool:
        return math.isfinite(value) and not (axis.log and value <= 0)

    return [(n, p) for n, p in enumerate(one.points) if fits(p[0], x) and fits(p[1], y)]


def tick_text(value: float) -> str:
    """A number in its shortest form: 0.5, 20, 5k, 3M, 2e-06."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:.4g}{unit}"
    return f"{value:.4g}"


def _axes(across: _Scale, up: _Scale) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value in across.ticks():
        at = across(value)
        parts.append(f'<line class="grid" x1="{at}" y1="{_TOP}" x2="{at}" y2="{bottom}"/>')
        parts.append(f'<text class="x" x="{at}" y="{bottom + 16}">{tick_text(value)}</text>')
    for value in up.ticks():
        at = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at}" x2="{right}" y2="{at}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{at + 4}">{tick_text(value)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="x" x="{(_LEFT + right) / 2}" y="{HEIGHT - 8}">{escape(across.axis.label)}'
        f'</text><text class="x" transform="translate(14 {middle}) rotate(-90)">'
        f"{escape(up.axis.label)}</text>"
    )
    return parts


def _drawn(
    one: Series, pairs: list[tuple[int, Point]], across: _Scale, up: _Scale, colour: str
) -> str:
    if one.kind == "dots":
        dots = []
        for number, (x, y) in pairs:
            text = one.titles[number] if number < len(one.titles) else ""
            title = f"<title>{escape(text)}</title>" if text else ""
            dots.append(f'<circle cx="{across(x)}" cy="{up(y)}" r="3.5">{title}</circle>')
        return f'<g fill="{colour}" fill-opacity="0.75">{"".join(dots)}</g>'
    path: list[str] = []
    for place, (_, (x, y)) in enumerate(pairs):
        if place and one.kind == "steps":
            path.append(f"H{across(x)}")
        path.append(f"{'L' if place else 'M'}{across(x)} {up(y)}")
    dash = ' stroke-dasharray="6 4"' if one.dashed else ""
    return f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _legend(series: Sequence[Series]) -> list[str]:
    """The legend above the chart: one line, or two if one line is full."""
    parts: list[str] = []
    x, y = _LEFT, 14
    for number, one in enumerate(series):
        if not one.name:
            continue
        colour = COLOURS[(number if one.colour is None else one.colour) % len(COLOURS)]
        width = 30 + 6.2 * len(one.name)
        if x > _LEFT and x + width > WIDTH:
            x, y = _LEFT, y + 16
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
            f'<text class="key" x="{x + 15}" y="{y}">{escape(one.name)}</text>'
        )
        x += round(width)
    return parts
