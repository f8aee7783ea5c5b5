"""A place in a notebook's output that is written over while something runs; needs no widgets."""

from __future__ import annotations

import time
from html import escape
from typing import Any

#: Browsers redraw what they are sent; more often than this nobody can follow.
_SECONDS_BETWEEN = 0.25


class Cell:
    """What is drawn here replaces what was there."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = -_SECONDS_BETWEEN

    @property
    def due(self) -> bool:
        """Whether it is time to draw again."""
        return time.monotonic() - self._drawn >= _SECONDS_BETWEEN

    def draw(self, html: str) -> None:
        """Put this in the place, now."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))
        self._drawn = time.monotonic()

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._handle is not None:
            self.draw("")


def progress_bar(label: str, done: int, total: int, note: str) -> str:
    """Return a line with a bar."""
    words = " · ".join(escape(word) for word in (label, f"{done} of {total}", note) if word)
    drawn = f'<progress value="{done}" max="{max(total, 1)}" style="vertical-align:middle"></progress>'
    return f"<div>{drawn} {words}</div>"


__all__ = ["Cell", "progress_bar"]
