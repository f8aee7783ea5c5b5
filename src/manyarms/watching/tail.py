"""Files that grow while they are read."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from manyarms.reporting.reading import parsed

#: How much is read at a time, so that an answer never takes long.
_AT_ONCE = 4 << 20


class Tail:
    """The lines of a growing file, each read once; one that is half written waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0
        self.turn = secrets.token_hex(4)
        """Changes when the file begins anew, as it does where a run is resumed from an earlier step."""
        self.more = False
        """Whether there is more to read at once."""

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that have come since; what is no JSON object is left out."""
        if not self._path.is_file():
            return []  # not there yet, or a pipe that nobody writes to
        try:
            with self._path.open("rb") as file:
                found = _identity(file.fileno())
                if found[0] != self._inode or found[1] < self._offset:
                    self._inode, self._offset, self.turn = found[0], 0, secrets.token_hex(4)
                file.seek(self._offset)
                data = file.read(_AT_ONCE)
        except OSError:
            return []  # a file system that is away for a moment
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _AT_ONCE:
            end = len(data)  # no line of ours is that long
        self._offset += end
        self.more = len(data) == _AT_ONCE
        return [line for line in map(_parsed, data[:end].splitlines()) if line is not None]


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = parsed(text)
    except ValueError:
        return None  # cut short by the end of its run
    return line if isinstance(line, dict) else None


class Pulse:
    """How long something has been silent, by our own clock: those of other machines may differ."""

    def __init__(self) -> None:
        self._stamp: object = None
        self._changed = 0.0

    def silence(self, stamp: object, age: float) -> float:
        """Return the seconds since the stamp changed; at first sight, the file's `age` is all that is known."""
        now = time.monotonic()
        if self._stamp is None:
            self._changed = now - max(0.0, age)
        elif stamp != self._stamp:
            self._changed = now
        self._stamp = stamp
        return now - self._changed
