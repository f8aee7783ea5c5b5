"""Draw the way of the data as an SVG that reads on light and on dark pages: ``python docs/images/dataflow.py``.

Boxes are dark with white text, lines and captions are of a grey that stands out on either background.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_GREY = "#778090"
_WORKER, _MEMORY, _ENGINE, _POLICY, _LEARNING = "#1f6f5c", "#8a5a16", "#2f5597", "#6a3d9a", "#9b2f3f"
_BOOKS = "#4a5361"
_SIZE = (1120, 640)
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE[0]} {_SIZE[1]}" '
    'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
    "<title>From a simulator's step to an updated weight</title>\n"
    f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{_GREY}"/></marker></defs>'
)


@dataclass(frozen=True)
class Box:
    """A part of the system: a name and what it does."""

    x: int
    y: int
    w: int
    h: int
    colour: str
    name: str
    lines: tuple[str, ...] = ()

    def svg(self) -> str:
        middle = self.x + self.w // 2
        top = self.y + self.h / 2 - 9 * len(self.lines) + 5
        parts = [f'<rect x="{self.x}" y="{self.y}" width="{self.w}" height="{self.h}" rx="8" fill="{self.colour}"/>']
        parts.append(_text(middle, top, self.name, "#ffffff", 17, "600"))
        parts += [_text(middle, top + 19 * (i + 1), line, "#f0f2f5", 15) for i, line in enumerate(self.lines)]
        return "\n".join(parts)


def _text(x: float, y: float, words: str, colour: str, size: int, weight: str = "400", anchor: str = "middle") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def _frame(x: int, y: int, w: int, h: int, title: str) -> str:
    """Draw the border of a process."""
    border = f'fill="none" stroke="{_GREY}" stroke-width="1.5" stroke-dasharray="6 5"'
    rect = f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="12" {border}/>'
    return rect + "\n" + _text(x + 14, y + 24, title, _GREY, 17, "600", "start")


def _arrow(points: str, *captions: tuple[float, float, str]) -> str:
    line = f'<polyline points="{points}" fill="none" stroke="{_GREY}" stroke-width="2" marker-end="url(#tip)"/>'
    return "\n".join([line, *(_text(x, y, words, _GREY, 15) for x, y, words in captions)])


def _workers() -> list[str]:
    rows = (("row 0", "takes K actions"), ("row 1", "looks: observe(out)"), ("row 2", "begins an episode"))
    boxes = [Box(30, 60 + 92 * i, 220, 76, _WORKER, name, (does,)) for i, (name, does) in enumerate(rows)]
    return [_frame(10, 14, 260, 334, "workers: any Python"), *(box.svg() for box in boxes)]


def _memory() -> list[str]:
    fields = ("actions [K, …]", "observations", "rewards [K]", "status, flags", "infos, timings")
    slots = [Box(372, 60 + 55 * i, 160, 46, _MEMORY, name) for i, name in enumerate(fields)]
    return [_frame(352, 14, 200, 334, "arena: a memfd"), *(slot.svg() for slot in slots)]


def _main_side() -> list[str]:
    boxes = (
        Box(650, 60, 200, 76, _ENGINE, "VectorEnv", ("begin · send · recv",)),
        Box(900, 60, 190, 76, _ENGINE, "Schedule", ("which episode is next",)),
        Box(900, 176, 190, 76, _ENGINE, "ActionQueues", ("who has none left",)),
        Box(900, 292, 190, 76, _POLICY, "Policy.act", ("one batch of rows",)),
        Box(650, 292, 200, 76, _POLICY, "Episode", ("in the schedule's order",)),
        Box(650, 408, 200, 76, _LEARNING, "advantages", ("gae · grpo · rloo",)),
        Box(900, 408, 190, 76, _LEARNING, "Learner.update", ("loss, AdamW, ranks",)),
        Box(650, 524, 200, 76, _BOOKS, "sinks, trackers", ("videos, datasets, report",)),
        Box(900, 524, 190, 76, _BOOKS, "checkpoint", ("to resume from",)),
    )
    return [_frame(612, 14, 498, 608, "main process, or a rank"), *(box.svg() for box in boxes)]


def _flow() -> list[str]:
    return [
        _arrow("352,84 256,84", (304, 76, "actions")),
        _arrow("250,190 366,190", (311, 182, "in place")),
        _arrow("650,84 558,84", (582, 76, "send")),
        _arrow("552,116 644,116", (582, 135, "recv")),
        _arrow("900,84 856,84"),
        _arrow("850,120 874,120 874,214 894,214"),
        _arrow("995,252 995,286"),
        _arrow("900,240 820,240 820,142", (786, 228, "chunks")),
        _arrow("1060,292 1060,258"),
        _arrow("700,136 700,286", (672, 214, "steps")),
        _arrow("700,368 700,402"),
        _arrow("850,446 894,446"),
        _arrow("1020,408 1020,374", (1060, 396, "weights")),
        _arrow("650,340 628,340 628,562 644,562"),
        _arrow("995,484 995,518"),
    ]


def _care() -> list[str]:
    boxes = (
        Box(30, 440, 250, 90, _ENGINE, "Supervisor", ("start, watch, restart",)),
        Box(302, 440, 250, 90, _ENGINE, "Keeper", ("cleans up after kill -9",)),
    )
    lines = ("With Ray: green to purple is a rollout process, red", "a learner, and the driver holds the schedule.")
    return [
        *(box.svg() for box in boxes),
        _arrow("155,440 155,354", (206, 402, "processes")),
        *(_text(30, 576 + 26 * i, line, _GREY, 16, anchor="start") for i, line in enumerate(lines)),
    ]


def picture() -> str:
    """Return the whole picture."""
    return "\n".join([_HEAD, *_workers(), *_memory(), *_main_side(), *_flow(), *_care(), "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
