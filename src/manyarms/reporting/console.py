"""Results as people read them: told once, then put as plain text, as tables in a terminal, or as HTML in a notebook."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from manyarms.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

#: Colours and sizes are the notebook's own, so that one table suits light and dark.
_CELL = "text-align:left;padding:2px 16px 2px 0;border:0;background:none"
_SOFT = "opacity:.65;font-weight:normal"


def console_of(*, stderr: bool = False) -> Console:
    """Return a console that takes no words for commands: manyarms[torch] is no style, :bell: no picture."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines; words of others in them cannot steer the terminal."""
    print(printable("\n".join(lines)), file=sys.stderr if stderr else sys.stdout, flush=True)


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print rows, under a title if there is one."""
    from rich.table import Table as Drawn

    console = console_of()
    if not console.is_terminal:
        say(*[title] * bool(title), *lined_up(rows, header))
        return
    title, header, rows = printable(title), _printable(header), [_printable(row) for row in rows]
    drawn = Drawn(title=title or None, title_justify="left", title_style="bold", show_header=bool(header))
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


@dataclass(frozen=True)
class Table:
    """Rows of words."""

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    title: str = ""


@dataclass(frozen=True)
class Telling:
    """What there is to say, the headline first."""

    headline: str
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


class Shown(ABC):
    """A result that can tell what it is; a dataclass that is one is made with ``repr=False``."""

    @abstractmethod
    def told(self) -> Telling:
        """Return what people read of it."""

    def show(self) -> None:
        """Print it, with tables drawn where there is a terminal."""
        telling = self.told()
        say(telling.headline)
        for part in telling.tables:
            table(part.title, part.rows, part.header)
        for note in telling.notes:
            say(note)

    def __repr__(self) -> str:
        telling = self.told()
        lines = [telling.headline]
        for part in telling.tables:
            lines += [part.title] if part.title else []
            lines += lined_up(part.rows, part.header)
        return printable("\n".join([*lines, *telling.notes]))

    def _repr_html_(self) -> str:
        telling = self.told()
        notes = "".join(f'<div style="{_SOFT}">{_text(note)}</div>' for note in telling.notes)
        tables = "".join(html_table(part) for part in telling.tables if part.rows)
        return f"<div><div><strong>{_text(telling.headline)}</strong></div>{tables}{notes}</div>"


def html_table(part: Table) -> str:
    """Return a table for a notebook's output."""
    title = f'<div style="margin-top:8px">{_text(part.title)}</div>' if part.title else ""
    head = "".join(f'<th style="{_CELL};{_SOFT}">{_text(word)}</th>' for word in part.header)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return (
        f'{title}<table style="border-collapse:collapse;border:0;margin:4px 0">{head}<tbody>'
        f"{''.join(map(_html_row, part.rows))}</tbody></table>"
    )


def _html_row(row: Sequence[str]) -> str:
    cells = "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in row)
    return f"<tr>{cells}</tr>"


def _text(words: str) -> str:
    return escape(words).replace("\n", "<br/>")


# -- a server as a result ---------------------------------------------------------------------------------------------


class Server(Protocol):
    """Runs in a thread of its own between `__enter__` and `__exit__`."""

    @property
    def url(self) -> str: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: None, error: None, trace: None, /) -> Any: ...


S = TypeVar("S", bound=Server)


class Background(Shown, Generic[S]):
    """Serves until it is closed."""

    def __init__(self, server: S) -> None:
        """Begin at once."""
        server.__enter__()
        self._server: S | None = server
        self.url = server.url
        """Where it is found."""

    @property
    def closed(self) -> bool:
        return self._server is None

    def close(self) -> None:
        """Answer the requests under way, then end."""
        server, self._server = self._server, None
        if server is not None:
            server.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
