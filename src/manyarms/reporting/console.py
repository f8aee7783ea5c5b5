"""Tables and progress: drawn in a terminal or a notebook, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any

from manyarms.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


#: Without a terminal, how often a line of progress is worth printing.
_SECONDS_BETWEEN_LINES = 10.0


def console_of(*, stderr: bool = False) -> Console:
    """Return a console that takes no words for commands: manyarms[torch] is no style, :bell: no picture."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines; words of others in them cannot steer the terminal."""
    print(printable("\n".join(lines)), file=sys.stderr if stderr else sys.stdout, flush=True)


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print rows, under a title if there is one."""
    from rich.table import Table

    console = console_of()
    if not console.is_terminal:
        say(*[title] * bool(title), *lined_up(rows, header))
        return
    title, header, rows = printable(title), _printable(header), [_printable(row) for row in rows]
    drawn = Table(title=title or None, title_justify="left", title_style="bold", show_header=bool(header))
    for column in header or [""] * len(rows[0]):
        drawn.add_column(column)
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def lined_up(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> list[str]:
    """Return rows as lines, each column as wide as its widest word."""
    lines = [_printable(line) for line in ([header, *rows] if header else rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    return ["  " + "  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _printable(words: Sequence[str]) -> list[str]:
    return [printable(word) for word in words]


class Scoreboard:
    """Successes by task while they come in: a live table in a terminal, a bar in a notebook, else a line at times."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._scores: dict[str, list[int]] = {}
        self._console = console_of(stderr=True)
        self._live: Any = None
        self._cell: Cell | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Scoreboard:
        if self._console.is_jupyter:
            self._cell = Cell()
        elif self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._draw)
            self._live.start()
        return self

    def add(self, task: str, success: bool) -> None:
        """Count an episode."""
        score = self._scores.setdefault(task, [0, 0])
        score[0] += success
        score[1] += 1
        won, played = (sum(score[i] for score in self._scores.values()) for i in (0, 1))
        if self._cell is not None:
            if self._cell.due:
                self._cell.draw(progress_bar("episodes", played, self._total, f"{100 * won / played:.0f} % solved"))
        elif self._live is None and time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            print(f"{played} of {self._total} episodes, {100 * won / played:.0f} % solved", flush=True)

    def _draw(self) -> Any:
        from rich.table import Table

        drawn = Table(title=f"{sum(s[1] for s in self._scores.values())} of {self._total} episodes")
        for column in ("task", "solved", "success"):
            drawn.add_column(column)
        for task, (won, played) in self._scores.items():
            drawn.add_row(printable(task), f"{won} / {played}", f"{100 * won / played:.0f} %")
        return drawn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._cell is not None:
            self._cell.clear()


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function that takes how many more are done, and a word on how it goes."""
    console = console_of(stderr=True)
    if console.is_jupyter:
        yield from _written_over(label, total)
    elif console.is_terminal:
        yield from _bar(console, label, total)
    else:
        yield _lines(label, total)


def _bar(console: Console, label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = [TextColumn(each, markup=False) for each in ("{task.description}", "{task.fields[note]}")]
    columns = (words[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words[1])
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(label), total=total, note="")
        done = 0
        drawn = 0.0

        def advance(count: int, note: str) -> None:
            nonlocal done, drawn
            done += count
            # A fast simulator makes ten thousand calls a second; drawing each would be what is measured.
            if time.monotonic() - drawn > 0.1 or done >= total:
                drawn = time.monotonic()
                bar.update(task, completed=done, note=printable(note))

        yield advance


def _written_over(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    cell, done = Cell(), 0

    def advance(count: int, note: str) -> None:
        nonlocal done
        done += count
        if cell.due:
            cell.draw(progress_bar(label, done, total, note))

    try:
        yield advance
    finally:
        cell.clear()


def _lines(label: str, total: int) -> Callable[[int, str], None]:
    done = 0
    printed = time.monotonic()

    def advance(count: int, note: str) -> None:
        nonlocal done, printed
        done += count
        if time.monotonic() - printed > _SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            say(f"{label}: {done} of {total} {note}", stderr=True)

    return advance


# -- in a notebook ----------------------------------------------------------------------------------------------------


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
