"""Charts for pages that open offline: curves as SVG, every word as HTML.

The drawing is stretched to whatever width there is, strokes and text are not: one chart suits a phone and a printer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

Point = tuple[float, float]

#: Colours of the page: `--c0`, `--c1` and so on.
COLOURS = 7

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


def thinned(points: Sequence[Point], buckets: int) -> list[Point]:
    """Return what is visible of many points: of each stretch its first, lowest, highest and last."""
    if len(points) <= 4 * buckets:
        return list(points)
    steps = np.array([step for step, _ in points], float)
    values = np.array([value for _, value in points], float)
    edges = np.linspace(steps[0], steps[-1], buckets + 1)[1:-1]
    kept: list[Point] = []
    for part in np.split(np.arange(len(points)), np.searchsorted(steps, edges)):
        finite = part[np.isfinite(values[part])]
        if len(finite):
            extremes = (finite[0], finite[values[finite].argmin()], finite[values[finite].argmax()], finite[-1])
            kept += [points[i] for i in sorted({int(i) for i in extremes})]
        elif len(part):
            kept.append(points[int(part[0])])
    return kept


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Return the mean of each point and its neighbours, a fortieth of all; gaps stay gaps."""
    values = np.array([value for _, value in points], float)
    finite = np.isfinite(values)
    reach = max(1, len(points) // 80)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    here = np.arange(len(points))
    first, last = np.maximum(here - reach, 0), np.minimum(here + reach + 1, len(points))
    with np.errstate(invalid="ignore"):
        means = (sums[last] - sums[first]) / (counts[last] - counts[first])
    return [
        (step, float(mean) if known else math.nan) for (step, _), mean, known in zip(points, means, finite, strict=True)
    ]


# -- drawing ----------------------------------------------------------------------------------------------------------


def line_chart(
    curves: Sequence[Curve], across: Scale, *, up: Scale | None = None, buckets: int = 150, label: str = ""
) -> str:
    """Draw curves over steps; without `up`, the height follows from the values."""
    shares = up is PERCENT
    drawn = [(curve, thinned(curve.points, buckets)) for curve in curves]
    up = up or Scale.of(value for _, points in drawn for _, value in points)
    drawing = "".join(_curve(curve, points, across, up, buckets) for curve, points in drawn)
    hover = [(curve.name, curve.colour, points) for curve, points in drawn]
    return _framed(drawing, across, up, hover, shares=shares, label=label)


def stretched(curves: Sequence[Curve], across: Scale, up: Scale, place: str) -> str:
    """Draw grid and curves only, as an SVG element with the attributes `place`, to be part of another."""
    buckets = 150
    drawing = "".join(_curve(curve, thinned(curve.points, buckets), across, up, buckets) for curve in curves)
    return _square(drawing, up, place)


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
    drawing = "".join(
        f'<path class="area" style="fill:var(--c{colour % COLOURS})" d="{path}"/>'
        for (_, colour), path in zip(entries, paths, strict=True)
    )
    hover = [
        (name, colour, [((first + last) / 2, parts[i]) for first, last, parts in shares])
        for i, (name, colour) in enumerate(entries)
    ]
    return _framed(drawing, across, PERCENT, hover, shares=True, label="share of the time")


def legend(entries: Sequence[tuple[str, int]]) -> str:
    """Name the colours."""
    items = (
        f'<li><i style="background:var(--c{colour % COLOURS})"></i>{escape(name)}</li>' for name, colour in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _framed(
    drawing: str,
    across: Scale,
    up: Scale,
    hover: Sequence[tuple[str, int, Sequence[Point]]],
    *,
    shares: bool,
    label: str,
) -> str:
    """Put grid, ticks and what is shown under the pointer around a drawing."""
    written = [percent(tick) for tick in up.ticks] if shares else labels(up.ticks)
    left = "".join(
        f'<span style="top:{100 - 100 * up(tick):.2f}%">{text}</span>'
        for tick, text in zip(up.ticks, written, strict=True)
    )
    below = "".join(
        f'<span style="left:{100 * across(tick):.2f}%">{text}</span>'
        for tick, text in zip(across.ticks, labels(across.ticks), strict=True)
    )
    told = [
        [name, colour % COLOURS, [[_short(x), _short(y)] for x, y in points if math.isfinite(y)]]
        for name, colour, points in hover
    ]
    facts = escape(
        json.dumps({"from": across.low, "to": across.high, "percent": shares, "curves": told}, separators=(",", ":"))
    )
    square = _square(drawing, up, 'aria-hidden="true"')
    return (
        f'<div class="chart" role="img" aria-label="{escape(label)}"><div class="ys" aria-hidden="true">{left}</div>'
        f'<div class="plot" data-facts="{facts}">{square}</div>'
        f'<div class="xs" aria-hidden="true">{below}</div></div>'
    )


def _square(drawing: str, up: Scale, attributes: str) -> str:
    """Put the grid behind a drawing."""
    grid = "".join(f"M0 {_y(up, tick)}H{_SIDE}" for tick in up.ticks)
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" {attributes}>'
        f'<path class="rules" d="{grid}"/>{drawing}</svg>'
    )


def _curve(curve: Curve, points: Sequence[Point], across: Scale, up: Scale, buckets: int) -> str:
    return _dots(curve, points, across, up) if curve.dots else _line(curve, points, across, up, buckets)


def _line(curve: Curve, points: Sequence[Point], across: Scale, up: Scale, buckets: int) -> str:
    """Draw a line that is broken at gaps; a point alone is a dot."""
    noisy = len(curve.points) >= NOISY
    drawn = _drawn("line pale" if noisy else "line", curve, _path(points, across, up))
    if noisy:
        return drawn + _drawn("line", curve, _path(thinned(smoothed(curve.points), buckets), across, up))
    around = [math.nan, *(value for _, value in points), math.nan]
    alone = [point for i, point in enumerate(points) if math.isnan(around[i]) and math.isnan(around[i + 2])]
    return drawn + _drawn("dot", curve, _marks(alone, across, up))


def _dots(curve: Curve, points: Sequence[Point], across: Scale, up: Scale) -> str:
    """Draw dots with their whiskers, and how they follow each other."""
    spans = zip(curve.points, curve.whiskers, strict=False)
    whiskers = "".join(f"M{_x(across, x)} {_y(up, low)}V{_y(up, high)}" for (x, _), (low, high) in spans)
    many = " many" if len(points) >= NOISY else ""
    return (
        _drawn("whisker", curve, whiskers)
        + (_drawn("join", curve, _path(points, across, up)) if curve.joined else "")
        + _drawn(f"dot{many}", curve, _marks(points, across, up))
    )


def _drawn(kind: str, curve: Curve, path: str) -> str:
    return f'<path class="{kind}" style="stroke:var(--c{curve.colour % COLOURS})" d="{path}"/>' if path else ""


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


def _short(value: float) -> float:
    return float(f"{value:.5g}") if value != int(value) else int(value)
