"""What is in the files of a run, which anyone may have written: JSON that can be parsed, and numbers that are some."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, TypeGuard

from manyarms.decoding import parsed

#: Beyond these, sums and squares are no numbers any more, and steps no longer exact in a browser.
_LARGEST, _LARGEST_COUNT = 1e100, 2**53

#: Bytes of a document.
_LONGEST = 64 << 20


def content(path: Path) -> bytes:
    """Return what is in a file; what is none, such as a pipe that nobody writes to, is an OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    with path.open("rb") as file:
        return file.read(_LONGEST)


def document(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if there is none, or none yet."""
    try:
        found = parsed(content(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    return value if isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST else None  # NaN is not between


def is_count(value: object) -> TypeGuard[int]:
    """Return whether this is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def words(value: object) -> str | None:
    """Return a text; None for anything else."""
    return value if isinstance(value, str) else None


__all__ = ["content", "document", "is_count", "number", "parsed", "words"]
