"""Results as people read them: told once, then put as plain text, as tables in a terminal, or as HTML in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from manyarms.errors import printable
from manyarms.reporting.console import lined_up, say, table

#: Colours and sizes are the notebook's own, so that one table suits light and dark.
_CELL = "text-align:left;padding:2px 16px 2px 0;border:0;background:none"
_SOFT = "opacity:.65;font-weight:normal"


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


__all__ = ["Shown", "Table", "Telling", "html_table"]
