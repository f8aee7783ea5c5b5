"""What the doctor finds: a line each, with the command that mends a fault."""

from __future__ import annotations

from dataclasses import dataclass

OK, FAULT, ABSENT = "ok", "fault", "absent"

MARKS = {OK: "✓", FAULT: "✗", ABSENT: "–"}


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    name: str
    status: str
    """"ok", "fault", or "absent": optional, and not there."""
    found: str
    fix: str = ""
    """The command that mends it, or that brings what is absent."""

    @property
    def mark(self) -> str:
        return MARKS[self.status]


def ok(name: str, found: str) -> Row:
    return Row(name, OK, found)


def fault(name: str, found: str, fix: str) -> Row:
    return Row(name, FAULT, found, fix)


def absent(name: str, found: str, fix: str = "") -> Row:
    return Row(name, ABSENT, found, fix)
