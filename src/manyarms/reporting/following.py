"""What changes in the folder of a run while somebody looks: lines that come, live files that are replaced."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyarms.decoding import parsed
from manyarms.reporting.charts import Point
from manyarms.reporting.files import content, leads_out, line_of
from manyarms.reporting.runs import CLOCKS, METRICS_FILE, LiveFile, MetricsLine, Run, RunFacts, Score, seconds_by_stage

#: Seconds of silence after which a process is probably dead.
PATIENCE = 15.0

#: Failures that are remembered.
_KEPT = 40

#: How much is read at a time, so that an answer never takes long.
_AT_ONCE = 4 << 20

#: What the page draws as small charts, in its words.
SMALL = {
    "env/return": "return",
    "env/episode_len": "episode length",
    "actor/loss": "loss",
    "actor/approx_kl": "KL",
    "actor/pg_clipfrac": "clip fraction",
    "throughput/env_steps_per_s": "env-steps/s",
}

#: What it shows besides, and where the time went.
_SHOWN = {*SMALL, *CLOCKS, "env/success_once", "eval/success_once", "env/num_trajectories"}
_SHOWN |= {"throughput/env_steps_total"}

#: Updates that "lately" means.
_LATELY = 10


class Tail:
    """The lines of a growing file, each read once; one that is half written waits for its rest."""

    def __init__(self, path: Path, key: str = "step") -> None:
        """Read lines that have a count as their `key`."""
        self._path, self._key = path, key
        self._inode, self._offset = 0, 0
        self.turn = secrets.token_hex(4)
        """Changes when the file begins anew, as it does where a run is resumed from an earlier step."""
        self.more = False
        """Whether there is more to read at once."""

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that have come since; what is none of ours is left out."""
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
        lines = (line_of(text, self._key) for text in data[:end].splitlines())
        return [line for line in lines if line is not None]


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size


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


class Metrics:
    """All of `metrics.jsonl` so far that is shown."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail = folder, Tail(folder / METRICS_FILE)
        self._turn = self._tail.turn
        self._lines = self._first = 0
        self._series: dict[str, list[Point]] = {}
        self.step = 0
        """Updates so far."""

    def read(self) -> None:
        """Take in what has come since."""
        found = self._tail.read()
        if self._tail.turn != self._turn:
            self._turn, self._series, self._lines, self.step = self._tail.turn, {}, 0, 0
        for line in map(MetricsLine.of, found):
            shown = {name: line.values[name] for name in line.values if name in _SHOWN or name.startswith("time/")}
            MetricsLine(line.step, shown).add_to(self._series)
            self.step = line.step
            self._first = self._first if self._lines else self.step
            self._lines += 1

    @property
    def more(self) -> bool:
        """Whether there is more to read at once."""
        return self._tail.more

    @property
    def stamp(self) -> tuple[str, int]:
        """Changes with every line."""
        return self._turn, self._lines

    def run(self, evaluations: Mapping[int, Mapping[str, Score]]) -> Run:
        """Return the run as far as it is known."""
        return Run(self._folder, RunFacts(), "", self._series, evaluations)

    def latest(self, name: str) -> float | None:
        """Return the last value of a metric that is one."""
        found = self.run({}).latest(name)
        return None if math.isnan(found) else found

    def seconds_an_update(self) -> float | None:
        """Return how long updates have taken lately, with what comes between them."""
        clock = [point for point in self._series.get("seconds", ())[-2 * _LATELY :] if point[1] > 0]
        if self._first > 0 and self._lines <= 2 * _LATELY:
            clock.insert(0, (0, 0.0))
        if len(clock) < 2:
            return None
        (first, began), (last, ended) = clock[0], clock[-1]
        return (ended - began) / (last - first) if last > first else None

    def stages(self) -> dict[str, dict[str, float]]:
        """Return the seconds of every stage: of the whole run, and lately."""
        by_stage = seconds_by_stage(self.run({}))
        whole = {name: sum(steps.values()) for name, steps in by_stage.items()}
        late = self.step - _LATELY
        if late <= 0:
            return {"whole run": whole}
        lately = {name: sum(s for step, s in steps.items() if step > late) for name, steps in by_stage.items()}
        return {"whole run": whole, f"last {_LATELY} updates": lately}


@dataclass
class _Known:
    """A file as it was last read."""

    stamp: tuple[int, int] = (0, 0)
    file: LiveFile | None = None
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
        found: list[tuple[LiveFile, float]] = []
        for path in sorted(self._folder.glob("*.json"), key=lambda path: _in_order(path.stem)):
            known = self._known.setdefault(path.stem, _Known())
            silent = self._look(path, known)
            if known.file is not None:
                found.append((known.file, silent))
        self.failures.note([file for file, _ in found])
        return [_told(file, silent) for file, silent in found]

    def _look(self, path: Path, known: _Known) -> float:
        """Read a file if it has changed; return for how long it has not."""
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            age = time.time() - found.st_mtime
            if stamp != known.stamp:
                known.file, known.stamp = LiveFile.of(path.stem, parsed(content(path))), stamp
        except (OSError, ValueError):
            stamp, age = known.stamp, 0.0
        return known.pulse.silence(stamp, age)

    def touch(self) -> None:
        """Say that someone looks, so that frames are drawn; where nothing may be written, they are not."""
        now = time.monotonic()
        file = self._folder / "watched"
        if now - self._touched < 1.0 or not self._folder.is_dir():
            return
        self._touched = now
        if leads_out(self._folder, self._folder.parent) or file.is_symlink():
            return  # nothing is written elsewhere
        try:
            file.touch()
        except OSError:
            return  # a folder of someone else's, or one that is mounted to be read only


def _told(process: LiveFile, silent: float) -> dict[str, Any]:
    """Return what the page shows of a process."""
    return {
        "name": process.name,
        "simulator": process.simulator,
        "closed": process.closed,
        # A process that is busy writes less often.
        "patience": PATIENCE if process.interval is None else max(PATIENCE, 5.0 * process.interval),
        "rows": [vars(row) for row in process.rows],
        "sheet": vars(process.sheet) if process.sheet else None,
        "silent": round(silent, 1),
    }


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort rank-10 after rank-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class Failures:
    """The last failures that were seen, newest first; rows of a worker that failed together are told together."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int | None], tuple[str | None, int]] = {}
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._looked = False

    def note(self, processes: Sequence[LiveFile]) -> None:
        """Compare with what was seen before."""
        together: dict[tuple[Any, ...], dict[str, Any]] = {}
        for process in processes:
            for row in process.rows:
                place, now = (process.name, row.row), (row.failure, row.restarts or 0)
                if row.failure and self._seen.get(place) != now:
                    told = {"worker": row.worker, "task": row.task, "seed": row.seed, "failure": row.failure}
                    told |= {"process": process.name, "rows": [], "when": time.time() if self._looked else None}
                    # Without a worker's number there is no telling who failed together.
                    alike = (process.name, row.worker if row.worker is not None else place, row.failure)
                    together.setdefault(alike, told)["rows"].append(row.row)
                self._seen[place] = now
        self._kept.extendleft(together.values())
        # Rows may come after the first look; a run that is over has nothing new to tell.
        self._looked = self._looked or bool(processes)

    def list(self) -> list[dict[str, Any]]:
        return [*self._kept]
