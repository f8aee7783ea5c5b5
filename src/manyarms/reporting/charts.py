"""Charts as SVG, drawn here and nowhere else: for the report, the page of a run, notebooks and files.

A drawing is stretched to whatever room it is given, strokes and words are not: one chart suits a phone and a printer.
Colours and sizes come from the style sheets around it (`page/charts.css`), so one chart suits light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.errors import ConfigError
from manyarms.reporting.files import write_atomically

#: Style sheets, scripts and pages, as browsers get them.
PAGE = Path(__file__).parent / "page"

Point = tuple[float, float]

#: Colours of the style sheets: `--c0`, `--c1` and so on.
COLOURS = 7

#: The colour of what is not the point.
GREY = 5

#: From so many points on, a curve is drawn pale, with its mean over neighbours on top.
NOISY = 60

#: The side of the square that is stretched to a chart.
_SIDE = 1000


@dataclass(frozen=True)
class Curve:
    """Values over steps. What is not finite is a gap."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False
    joined: bool = True
    """Whether a thin line shows how dots follow each other."""
    whiskers: Sequence[Point] = ()
    """Low and high around each point."""
    note: str = ""
    """What a legend adds to the name."""


@dataclass(frozen=True)
class Scale:
    """From values to the height, or the width, of a chart."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    @classmethod
    def of(cls, values: Iterable[float], count: int = 4) -> Scale:
        """Leave some room around values; begin at zero where that is near."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            room = abs(low) * 0.1 or 1.0
            low, high = low - room, high + room
        if 0.0 < low < 0.5 * high:
            low = 0.0
        elif 0.5 * low < high < 0.0:
            high = 0.0
        room = 0.06 * (high - low)
        low, high = low - room * (low != 0.0), high + room * (high != 0.0)
        step = _nice_step((high - low) / count)
        ticks = tuple(i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
        return cls(low, high, ticks)

    @classmethod
    def of_steps(cls, first: float, last: float, count: int = 6) -> Scale:
        """Keep the ends as they are, with ticks at whole numbers between them."""
        if first == last:
            return cls(first - 1.0, last + 1.0, (first,))
        step = max(1.0, _nice_step((last - first) / count))
        ticks = tuple(i * step for i in range(math.ceil(first / step), math.floor(last / step) + 1))
        return cls(first, last, ticks)


PERCENT = Scale(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))


def _nice_step(rough: float) -> float:
    """Return the least of 1, 2, 2.5, 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (1.0, 2.0, 2.5, 5.0, 10.0) if nice * power >= rough * (1 - 1e-9))


# -- numbers in words -------------------------------------------------------------------------------------------------


def number(value: float, digits: int = 4) -> str:
    """Return a number as people read it: of few digits, thousands as k and M."""
    if not math.isfinite(value):
        return "–"
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{_plain(value / size, digits)}\u202f{unit}"
    if value and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
        return f"{_plain(float(mantissa), digits)}e{int(exponent)}".replace("-", "−")
    return _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.{digits - 4}f}"
    return text.replace("-", "−")


def labels(ticks: Sequence[float]) -> list[str]:
    """Return ticks in words, of as many digits as it takes to tell them apart."""
    digits = next((n for n in range(4, 12) if len({number(tick, n) for tick in ticks}) == len(ticks)), 12)
    return [number(tick, digits) for tick in ticks]


def percent(rate: float) -> str:
    """Return a rate as whole percent."""
    # Not Python's rounding, which makes 50 of 50.5: the page of `manyarms watch` says 51.
    return f"{math.floor(100 * rate + 0.5)}\u202f%" if math.isfinite(rate) else "–"


# -- fewer points -----------------------------------------------------------------------------------------------------


def thinned(points: Sequence[Point] | np.ndarray, buckets: int) -> list[Point]:
    """Return what is visible of many points: of each stretch its first, lowest, highest and last."""
    if len(points) <= 4 * buckets:
        return [(step, value) for step, value in points]
    steps, values = _array(points).T
    edges = np.linspace(steps[0], steps[-1], buckets + 1)[1:-1]
    kept: list[int] = []
    for part in np.split(np.arange(len(points)), np.searchsorted(steps, edges)):
        finite = part[np.isfinite(values[part])]
        if len(finite):
            extremes = (finite[0], finite[values[finite].argmin()], finite[values[finite].argmax()], finite[-1])
            kept += sorted({int(i) for i in extremes})
        else:
            kept += part[:1].tolist()
    return [(points[i][0], points[i][1]) for i in kept]


def smoothed(points: Sequence[Point]) -> np.ndarray:
    """Return the mean of each point and its neighbours, a fortieth of all; gaps stay gaps."""
    steps, values = _array(points).T
    finite = np.isfinite(values)
    reach = max(1, len(points) // 80)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    here = np.arange(len(points))
    first, last = np.maximum(here - reach, 0), np.minimum(here + reach + 1, len(points))
    with np.errstate(invalid="ignore"):
        means = (sums[last] - sums[first]) / (counts[last] - counts[first])
    return np.stack([steps, np.where(finite, means, np.nan)], axis=1)


def _array(points: Sequence[Point] | np.ndarray) -> np.ndarray:
    """Return points as an array [n, 2]."""
    if isinstance(points, np.ndarray):
        return points
    return np.fromiter(chain.from_iterable(points), float, 2 * len(points)).reshape(-1, 2)


# -- charts of a page -------------------------------------------------------------------------------------------------


def line_chart(
    curves: Sequence[Curve], across: Scale, *, up: Scale | None = None, buckets: int = 150, label: str = ""
) -> str:
    """Draw curves over steps; without `up`, the height follows from the values."""
    drawn = [(curve, thinned(curve.points, buckets)) for curve in curves]
    up = up or Scale.of(value for _, points in drawn for _, value in points)
    marks = "".join(_curve(curve, points, across, up, buckets) for curve, points in drawn)
    ends = [(curve.name, *points[-1]) for curve, points in drawn if points]
    said = [f"{name} {_written(value, up)} at update {step:g}" for name, step, value in ends]
    return _framed(marks, across, up, [_facts(curve, points) for curve, points in drawn], f"{label}: {', '.join(said)}")


def small_chart(metric: str, name: str, points: Sequence[Point], across: Scale, *, dots: bool = False) -> str:
    """Draw a metric under its name and its last value."""
    last = next((value for _, value in reversed(points) if math.isfinite(value)), math.nan)
    drawn = line_chart([Curve(name, points, dots=dots)], across, buckets=75, label=metric)
    return (
        f'<section class="small" data-metric="{escape(metric)}"><header><h3>{breakable(name)}</h3>'
        f"<span>{number(last)}</span></header>{drawn}</section>"
    )


def stacked_chart(
    entries: Sequence[tuple[str, int]], shares: Sequence[tuple[float, float, Sequence[float]]], across: Scale
) -> str:
    """Draw shares that add up to one: a bar from each step to the next, a part of it for every name and colour."""
    paths = [""] * len(entries)
    for first, last, parts in shares:
        floor = 0.0
        for i, share in enumerate(parts):
            top = floor + share
            paths[i] += f"M{_x(across, first)} {_y(PERCENT, floor)}V{_y(PERCENT, top)}H{_x(across, last)}"
            paths[i] += f"V{_y(PERCENT, floor)}z"
            floor = top
    drawn = zip(entries, paths, strict=True)
    marks = "".join(f'<path class="area {_coloured(colour)}" d="{path}"/>' for (_, colour), path in drawn)
    found = [
        _facts(Curve(name, [], colour), [((first + last) / 2, parts[i]) for first, last, parts in shares])
        for i, (name, colour) in enumerate(entries)
    ]
    return _framed(marks, across, PERCENT, found, "share of the time")


def share_bar(entries: Sequence[tuple[str, int]], shares: Sequence[float], label: str) -> str:
    """Draw shares that add up to one as a bar."""
    parts, left = "", 0.0
    for (name, colour), share in zip(entries, shares, strict=True):
        place = f'x="{100 * left:.2f}%" width="{100 * share:.2f}%" height="100%"'
        parts += f'<rect class="{_coloured(colour)}" {place}><title>{escape(name)}: {percent(share)}</title></rect>'
        left += share
    said = ", ".join(f"{name} {percent(share)}" for (name, _), share in zip(entries, shares, strict=True))
    return f'<svg class="manyarms-plot whole" role="img" aria-label="{escape(f"{label}: {said}")}">{parts}</svg>'


def interval_bar(value: float, interval: tuple[float, float], *, before: float | None = None) -> str:
    """Draw where a share of 0 to 1 lies, with its interval, and where it was before."""
    return _interval(value, interval, 0, before, 'class="manyarms-plot interval" aria-hidden="true"')


def legend(curves: Sequence[Curve]) -> str:
    """Name the colours of curves."""
    return listed((curve.colour, escape(", ".join(filter(None, (curve.name, curve.note))))) for curve in curves)


def listed(entries: Iterable[tuple[int, str]]) -> str:
    """Name colours by what is HTML already."""
    items = (f'<li><i class="{_coloured(colour)}"></i>{words}</li>' for colour, words in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def breakable(text: str) -> str:
    """Return a name that may be broken where its words end."""
    return escape(text).replace("_", "_<wbr>").replace("/", "/<wbr>")


def _framed(marks: str, across: Scale, up: Scale, curves: Sequence[Any], label: str) -> str:
    """Return a chart with what `page/hover.js` shows under the pointer."""
    facts = {"from": across.low, "to": across.high, "percent": up is PERCENT, "curves": curves}
    drawn = _plotted(marks, across, up, 'class="manyarms-plot" aria-hidden="true"')
    return (
        f'<div class="chart" role="img" aria-label="{escape(label)}">'
        f'<div class="plot" data-facts="{escape(json.dumps(facts, separators=(",", ":")))}">{drawn}</div></div>'
    )


def _facts(curve: Curve, points: Sequence[Point]) -> list[Any]:
    """Return name, colour, points and their intervals, if there are any, as lists."""
    seen = [point for point in points if math.isfinite(point[1])]
    told = [curve.name, curve.colour % COLOURS, [_rounded(point) for point in seen]]
    spans = {step: _rounded(span) for (step, _), span in zip(curve.points, curve.whiskers, strict=False)}
    return [*told, [spans[step] for step, _ in seen]] if spans else told


def _rounded(numbers: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") if value != int(value) else int(value) for value in numbers]


def _written(value: float, scale: Scale) -> str:
    return percent(value) if scale is PERCENT else number(value)


# -- what all charts are made of --------------------------------------------------------------------------------------


def _plotted(marks: str, across: Scale, up: Scale, attributes: str) -> str:
    """Put grid and ticks around marks, as an SVG element with these attributes; ticks lie outside of its room."""
    grid = "".join(f"M0 {_y(up, tick)}H{_SIDE}" for tick in up.ticks)
    words = [percent(tick) for tick in up.ticks] if up is PERCENT else labels(up.ticks)
    ticks = "".join(
        f'<text class="y" x="-8" y="{100 - 100 * up(tick):.2f}%" dy=".35em">{text}</text>'
        for tick, text in zip(up.ticks, words, strict=True)
    )
    ticks += "".join(
        f'<text class="x" x="{100 * across(tick):.2f}%" y="100%" dy="16">{text}</text>'
        for tick, text in zip(across.ticks, labels(across.ticks), strict=True)
    )
    square = _stretched(_drawn("rules", grid) + marks, _SIDE)
    return f"<svg {attributes}>{square}{ticks}</svg>"


def _interval(value: float, interval: tuple[float, float], colour: int, before: float | None, attributes: str) -> str:
    low, high = (f"{_SIDE * end:.0f}" for end in interval)
    marks = _drawn("base", f"M0 8H{_SIDE}")
    marks += "" if before is None else _drawn("then", f"M{_SIDE * before:.0f} 8h0")
    marks += _drawn("span", f"M{low} 8H{high}", colour) + _drawn("now", f"M{_SIDE * value:.0f} 8h0", colour)
    return f"<svg {attributes}>{_stretched(marks, 16)}</svg>"


def _stretched(marks: str, height: int) -> str:
    return f'<svg viewBox="0 0 {_SIDE} {height}" preserveAspectRatio="none">{marks}</svg>'


def _drawn(kind: str, path: str, colour: int | None = None) -> str:
    classes = kind if colour is None else f"{kind} {_coloured(colour)}"
    return f'<path class="{classes}" d="{path}"/>' if path else ""


def _coloured(colour: int) -> str:
    """Return the class of a colour: no style of an element's own, which the page of a run does not allow."""
    return f"k{colour % COLOURS}"


def _curve(curve: Curve, points: Sequence[Point], across: Scale, up: Scale, buckets: int) -> str:
    return _dots(curve, points, across, up) if curve.dots else _line(curve, points, across, up, buckets)


def _line(curve: Curve, points: Sequence[Point], across: Scale, up: Scale, buckets: int) -> str:
    """Draw a line that is broken at gaps; a point alone is a dot."""
    noisy = len(curve.points) >= NOISY
    drawn = _drawn("line pale" if noisy else "line", _path(points, across, up), curve.colour)
    if noisy:
        smooth = thinned(smoothed(curve.points), buckets)
        return drawn + _drawn("line", _path(smooth, across, up), curve.colour)
    around = [math.nan, *(value for _, value in points), math.nan]
    alone = [point for i, point in enumerate(points) if math.isnan(around[i]) and math.isnan(around[i + 2])]
    return drawn + _drawn("dot", _marks(alone, across, up), curve.colour)


def _dots(curve: Curve, points: Sequence[Point], across: Scale, up: Scale) -> str:
    """Draw dots with their whiskers, and how they follow each other."""
    spans = zip(curve.points, curve.whiskers, strict=False)
    whiskers = "".join(f"M{_x(across, x)} {_y(up, low)}V{_y(up, high)}" for (x, _), (low, high) in spans)
    return (
        _drawn("whisker", whiskers, curve.colour)
        + (_drawn("join", _path(points, across, up), curve.colour) if curve.joined else "")
        + _drawn("dot many" if len(points) >= NOISY else "dot", _marks(points, across, up), curve.colour)
    )


def _path(points: Sequence[Point], across: Scale, up: Scale) -> str:
    commands: list[str] = []
    command = "M"
    for step, value in points:
        if math.isfinite(value):
            commands.append(f"{command}{_x(across, step)} {_y(up, value)}")
        command = "L" if math.isfinite(value) else "M"
    return "".join(commands)


def _marks(points: Sequence[Point], across: Scale, up: Scale) -> str:
    return "".join(f"M{_x(across, step)} {_y(up, value)}h0" for step, value in points if math.isfinite(value))


def _x(scale: Scale, value: float) -> str:
    return f"{_SIDE * scale(value):.1f}".removesuffix(".0")


def _y(scale: Scale, value: float) -> str:
    return f"{_SIDE * (1.0 - scale(value)):.1f}".removesuffix(".0")


# -- plots for notebooks and files ------------------------------------------------------------------------------------

_WIDTH, _GAP = 720, 36
_TITLE, _TALL, _BELOW, _LEFT = 26, 150, 34, 48
_ROW, _LETTER, _LONGEST = 24, 7.2, 34

#: Words take the colour of the text around them, and the curves' colours stand out on white and on black.
_STYLE = """
.manyarms-plot { --c0: #4a7fe0; --c1: #e0872b; --c2: #26a08e; --c3: #976ed8; --c4: #d65f84; --c5: #8b95a1;
  --c6: #a88a42; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.manyarms-plot .soft, .manyarms-plot .x, .manyarms-plot .y { opacity: .65; }
.manyarms-plot .title { font-weight: 600; }
"""

#: A file of its own has no text around it to take a colour from.
_ALONE = "svg { color: #16191d; } @media (prefers-color-scheme: dark) { svg { color: #e8ebef; } }"


@dataclass(frozen=True)
class Bar:
    """A value with a name, and what to write beside it."""

    name: str
    value: float
    text: str
    interval: tuple[float, float] | None = None
    colour: int = 0

    def draw(self, left: float, middle: float, scale: float) -> str:
        """Return a bar, or a dot on its interval."""
        if self.interval is not None:
            place = f'x="{left:.1f}" y="{middle - 8:.0f}" width="{scale:.1f}" height="16"'
            return _interval(self.value, self.interval, self.colour, None, place)
        wide = max(1.0, self.value * scale) if math.isfinite(self.value) else 0.0
        place = f'x="{left:.1f}" y="{middle - 7:.0f}" width="{wide:.1f}" height="14" rx="2"'
        return f'<rect class="bar {_coloured(self.colour)}" {place}/>'


@dataclass(frozen=True)
class Bars:
    """Values side by side, from nothing to the largest; `rates` go from 0 to 100 %."""

    title: str
    bars: Sequence[Bar]
    rates: bool = False

    def draw(self, width: float) -> tuple[str, float]:
        """Return the drawing and how tall it is."""
        left = _LETTER * min(_LONGEST, max((len(bar.name) for bar in self.bars), default=0)) + 14
        right = _LETTER * max((len(bar.text) for bar in self.bars), default=0) + 12
        limit = max((bar.value for bar in self.bars if math.isfinite(bar.value)), default=0.0) or 1.0
        limit = 1.0 if self.rates else limit
        scale = max(40.0, width - left - right) / limit
        drawn = [_words(0, 12, self.title, "title")]
        for i, bar in enumerate(self.bars):
            middle = _TITLE + _ROW * (i + 0.5)
            drawn.append(_words(left - 10, middle + 4, _short(bar.name), anchor="end"))
            drawn.append(bar.draw(left, middle, scale))
            drawn.append(_words(left + limit * scale + 10, middle + 4, bar.text, "soft"))
        tall = _TITLE + _ROW * len(self.bars)
        for rate in PERCENT.ticks if self.rates else ():
            drawn.append(_words(left + rate * scale, tall + 12, percent(rate), "soft", "middle"))
        return "".join(drawn), tall + 16 * self.rates


@dataclass(frozen=True)
class Lines:
    """Curves over steps."""

    title: str
    curves: Sequence[Curve]
    up: Scale | None = None
    below: str = "update"

    def draw(self, width: float) -> tuple[str, float]:
        """Return the drawing and how tall it is."""
        steps = [step for curve in self.curves for step, _ in curve.points] or [0.0]
        across = Scale.of_steps(min(steps), max(steps), 4)
        up = self.up or Scale.of(value for curve in self.curves for _, value in curve.points)
        wide = width - _LEFT - 8
        place = f'x="{_LEFT}" y="{_TITLE}" width="{wide:.0f}" height="{_TALL}"'
        marks = "".join(_curve(curve, thinned(curve.points, 150), across, up, 150) for curve in self.curves)
        drawn = [_words(0, 12, self.title, "title"), self._legend(width), _plotted(marks, across, up, place)]
        drawn.append(_words(_LEFT + wide / 2, _TITLE + _TALL + 32, self.below, "soft", "middle"))
        return "".join(drawn), _TITLE + _TALL + _BELOW

    def _legend(self, width: float) -> str:
        """Name the curves at the right of the title, where there are several."""
        drawn, right = "", width - 8
        for curve in reversed(self.curves if len(self.curves) > 1 else ()):
            drawn += _words(right, 12, curve.name, "soft", "end")
            right -= _LETTER * len(curve.name) + 12
            drawn += f'<rect x="{right:.0f}" y="3" width="9" height="9" rx="2" class="bar {_coloured(curve.colour)}"/>'
            right -= 14
        return drawn


@dataclass(frozen=True)
class Plot:
    """Panels one below the other; curves two by two."""

    label: str
    """What it shows, for those who cannot see it."""
    panels: Sequence[Bars | Lines]

    def save(self, path: str | Path) -> Path:
        """Write it as an SVG file that any browser opens; return where."""
        path = Path(path)
        if path.suffix != ".svg":
            raise ConfigError(f"{path} is not a name for an SVG file", do=f"{path.with_suffix('.svg')}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self._repr_svg_())
        return path

    def __repr__(self) -> str:
        return f"<plot: {self.label}>"

    def _repr_svg_(self) -> str:
        return self._svg(_ALONE)

    def _repr_html_(self) -> str:
        return f"<div>{self._svg()}</div>"

    def _svg(self, alone: str = "") -> str:
        parts, top = [], 4.0
        waiting = list(self.panels)
        while waiting:
            beside = 2 if len(waiting) > 1 and all(isinstance(panel, Lines) for panel in waiting[:2]) else 1
            width = (_WIDTH - _GAP * (beside - 1)) / beside
            drawn = [panel.draw(width) for panel in waiting[:beside]]
            for i, (drawing, _) in enumerate(drawn):
                parts.append(f'<g transform="translate({i * (width + _GAP):.0f} {top:.0f})">{drawing}</g>')
            top += max(height for _, height in drawn) + 18
            waiting = waiting[beside:]
        style = (PAGE / "charts.css").read_text() + _STYLE + alone
        size = f'width="{_WIDTH}" height="{top:.0f}" viewBox="0 0 {_WIDTH} {top:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="manyarms-plot" {size} role="img" '
            f'aria-label="{escape(self.label)}"><style>{style}</style>{"".join(parts)}</svg>'
        )


def _words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
