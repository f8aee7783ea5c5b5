"""Plots of results for notebooks and files: panels of curves or bars in one SVG that needs nothing around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from manyarms.errors import ConfigError
from manyarms.reporting.charts import COLOURS, PERCENT, Curve, Scale, labels, percent, stretched
from manyarms.reporting.writing import write_atomically

_WIDTH, _GAP = 720, 36
_TITLE, _TALL, _BELOW, _LEFT = 26, 150, 34, 48
_ROW, _LETTER, _LONGEST = 24, 7.2, 34

#: Words and grid take the colour of the text around them, and the curves' colours stand out on white and on black.
_STYLE = """
.manyarms-plot { --c0: #4a7fe0; --c1: #e0872b; --c2: #26a08e; --c3: #976ed8; --c4: #d65f84; --c5: #8b95a1;
  --c6: #a88a42; max-width: 100%; height: auto; overflow: visible; font: 12px system-ui, sans-serif; }
.manyarms-plot text { fill: currentColor; }
.manyarms-plot .soft { opacity: .65; }
.manyarms-plot .title { font-weight: 600; }
.manyarms-plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.manyarms-plot .rules { stroke: currentColor; stroke-width: 1; opacity: .15; }
.manyarms-plot .line { stroke-width: 1.75; }
.manyarms-plot .pale { stroke-width: 1; opacity: .35; }
.manyarms-plot .join { stroke-width: 1.25; opacity: .55; }
.manyarms-plot .whisker { stroke-width: 1.5; opacity: .6; }
.manyarms-plot .dot { stroke-width: 7; }
.manyarms-plot .many { stroke-width: 4; }
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
            drawn.append(_bar(bar, left, middle, scale))
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
        place = f'x="{_LEFT}" y="{_TITLE}" width="{wide:.0f}" height="{_TALL}" overflow="visible"'
        drawn = [_words(0, 12, self.title, "title"), self._legend(width), stretched(self.curves, across, up, place)]
        written = [percent(tick) for tick in up.ticks] if up is PERCENT else labels(up.ticks)
        for tick, text in zip(up.ticks, written, strict=True):
            drawn.append(_words(_LEFT - 10, _TITLE + _TALL * (1 - up(tick)) + 4, text, "soft", "end"))
        for tick, text in zip(across.ticks, labels(across.ticks), strict=True):
            drawn.append(_words(_LEFT + wide * across(tick), _TITLE + _TALL + 17, text, "soft", "middle"))
        drawn.append(_words(_LEFT + wide / 2, _TITLE + _TALL + 32, self.below, "soft", "middle"))
        return "".join(drawn), _TITLE + _TALL + _BELOW

    def _legend(self, width: float) -> str:
        """Name the curves at the right of the title, where there are several."""
        drawn, right = "", width - 8
        for curve in reversed(self.curves if len(self.curves) > 1 else ()):
            drawn += _words(right, 12, curve.name, "soft", "end")
            right -= _LETTER * len(curve.name) + 12
            drawn += f'<rect x="{right:.0f}" y="3" width="9" height="9" rx="2" style="fill:{_colour(curve.colour)}"/>'
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
        return self._svg(_STYLE + _ALONE)

    def _repr_html_(self) -> str:
        return f"<div>{self._svg(_STYLE)}</div>"

    def _svg(self, style: str) -> str:
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
        size = f'width="{_WIDTH}" height="{top:.0f}" viewBox="0 0 {_WIDTH} {top:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="manyarms-plot" {size} role="img" '
            f'aria-label="{escape(self.label)}"><style>{style}</style>{"".join(parts)}</svg>'
        )


def _bar(bar: Bar, left: float, middle: float, scale: float) -> str:
    """Draw a bar, or a dot on its interval."""
    colour = _colour(bar.colour)
    if bar.interval is None:
        wide = max(1.0, bar.value * scale) if math.isfinite(bar.value) else 0.0
        place = f'x="{left:.1f}" y="{middle - 7:.0f}" width="{wide:.1f}" height="14" rx="2"'
        return f'<rect {place} style="fill:{colour}"/>'
    low, high = (left + end * scale for end in bar.interval)
    base = f'<path class="rules" d="M{left:.1f} {middle:.0f}H{left + scale:.1f}"/>'
    span = f'<path style="stroke:{colour};stroke-width:5;opacity:.35" d="M{low:.1f} {middle:.0f}H{high:.1f}"/>'
    dot = f'<path style="stroke:{colour};stroke-width:10" d="M{left + bar.value * scale:.1f} {middle:.0f}h0"/>'
    return base + span + dot


def _words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _colour(number: int) -> str:
    return f"var(--c{number % COLOURS})"


__all__ = ["Bar", "Bars", "Lines", "Plot"]
