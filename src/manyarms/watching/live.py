"""What the processes of a run say of their environments: `live/<name>.json`, replaced about once a second."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyarms.reporting.reading import content, number, parsed
from manyarms.watching.tail import Pulse

#: Seconds of silence after which a process is probably dead.
PATIENCE = 15.0

#: Failures that are remembered.
_KEPT = 40

_NAME = re.compile(r"[\w.-]+")

#: What is told of a row, by what it must be.
_NUMBERS = ("row", "worker", "pid", "seed", "frame", "episode_steps", "episodes", "restarts")
_WORDS = ("task", "state", "failure")
_ROW = {**dict.fromkeys(_NUMBERS, int), **dict.fromkeys(_WORDS, str)}


@dataclass
class _Known:
    """A file as it was last read."""

    stamp: tuple[int, int] = (0, 0)
    document: dict[str, Any] | None = None
    pulse: Pulse = field(default_factory=Pulse)


class LiveFiles:
    """Reads the live files of a run; one that cannot be read for a moment stays as it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "live"
        self._known: dict[str, _Known] = {}
        self._touched = 0.0
        self.failures = Failures()

    def read(self) -> list[dict[str, Any]]:
        """Return what every process says of itself and its rows, in the order of their names."""
        processes = []
        for path in sorted(self._folder.glob("*.json"), key=lambda path: _in_order(path.stem)):
            known = self._known.setdefault(path.stem, _Known())
            document = self._document(path, known)
            if document is not None and _NAME.fullmatch(path.stem):
                processes.append(document)
        self.failures.note(processes)
        return processes

    def _document(self, path: Path, known: _Known) -> dict[str, Any] | None:
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            age = time.time() - found.st_mtime
            if stamp != known.stamp:
                known.document, known.stamp = _checked(path.stem, parsed(content(path))), stamp
        except (OSError, ValueError):
            stamp, age = known.stamp, 0.0
        silent = known.pulse.silence(stamp, age)
        return None if known.document is None else {**known.document, "silent": round(silent, 1)}

    def touch(self) -> None:
        """Say that someone looks, so that frames are drawn; where nothing may be written, they are not."""
        now = time.monotonic()
        if now - self._touched < 1.0 or not self._folder.is_dir():
            return
        self._touched = now
        try:
            (self._folder / "watched").touch()
        except OSError:
            return  # a folder of someone else's, or one that is mounted to be read only


def _checked(name: str, document: Any) -> dict[str, Any]:
    """Take from a live file what is known and of the right kind."""
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise ValueError("not a live file")
    rows = [
        {key: row.get(key) if isinstance(row.get(key), kind) else None for key, kind in _ROW.items()}
        for row in document["rows"]
        if isinstance(row, dict)
    ]
    words = {key: str(document[key]) for key in ("host", "simulator") if isinstance(document.get(key), str)}
    interval = number(document.get("interval"))
    return {
        **words,
        "name": name,
        "closed": document.get("closed") is True,
        # A process that is busy writes less often.
        "patience": PATIENCE if interval is None else max(PATIENCE, 5.0 * interval),
        "rows": rows,
        "sheet": _sheet(document),
    }


def _sheet(document: dict[str, Any]) -> dict[str, Any] | None:
    sheet = document.get("sheet")
    if not isinstance(sheet, dict) or not _NAME.fullmatch(str(sheet.get("file"))):
        return None
    sizes = {key: sheet.get(key) for key in ("columns", "width", "height")}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        return None
    return {"file": sheet["file"], **sizes, "written": str(sheet.get("written"))}


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort rank-10 after rank-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class Failures:
    """The last failures that were seen, newest first; rows of a worker that failed together are told together."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[str, int]] = {}
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._looked = False

    def note(self, processes: Sequence[dict[str, Any]]) -> None:
        """Compare with what was seen before."""
        together: dict[tuple[Any, ...], dict[str, Any]] = {}
        for process in processes:
            for row in process["rows"]:
                place, now = (process["name"], row["row"]), (row["failure"], row["restarts"] or 0)
                if row["failure"] and self._seen.get(place) != now:
                    told = {key: row[key] for key in ("worker", "task", "seed", "failure")}
                    told |= {"process": process["name"], "rows": [], "when": time.time() if self._looked else None}
                    # Without a worker's number there is no telling who failed together.
                    alike = (process["name"], row["worker"] if row["worker"] is not None else place, row["failure"])
                    together.setdefault(alike, told)["rows"].append(row["row"])
                self._seen[place] = now
        self._kept.extendleft(together.values())
        # Rows may come after the first look; a run that is over has nothing new to tell.
        self._looked = self._looked or bool(processes)

    def list(self) -> list[dict[str, Any]]:
        return [*self._kept]
