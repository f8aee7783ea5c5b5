"""What a run shows while it goes on: live/<name>.json and a contact sheet, written by a thread that only looks on."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from av.error import FFmpegError

from manyarms.reporting.sheet import ContactSheet, jpeg
from manyarms.reporting.writing import whole
from manyarms.simulators.base import flatten
from manyarms.simulators.registry import split_id
from manyarms.vector import VectorEnv

#: Of the format of live files.
_VERSION = 1

#: Seconds between two looks; between two sheets when nobody watches.
_INTERVAL = 1.0
_UNWATCHED_INTERVAL = 10.0

#: Whoever watches touches a file; it counts for so many seconds.
_FRESH = 10.0

#: Looking on takes no more of this process's time than this.
_SHARE = 0.02

#: How long the end of a run waits for a disk that hangs.
_PATIENCE = 5.0

logger = logging.getLogger("manyarms")


class LiveView:
    """Keeps the live files of a vector environment up to date. What goes wrong here never ends a run."""

    def __init__(self, envs: VectorEnv, folder: Path, name: str) -> None:
        """Write to `folder`/live, to files called `name`."""
        self._envs, self._folder, self._name = envs, folder / "live", name
        names = dict.fromkeys(split_id(simulator.id)[0] for simulator in envs.simulators)
        self._about = {
            "version": _VERSION,
            "name": name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "simulator": ", ".join(names),
        }
        self._camera, self._sheet = _first_camera(envs)
        self._sheet_written: float | None = None
        self._looked = -_UNWATCHED_INTERVAL
        """When the frames were last looked at."""
        self._interval = _INTERVAL
        self._silent = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name=f"manyarms-live-{name}", daemon=True)

    def __enter__(self) -> LiveView:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self._write(closed=True)

    def _look_on(self) -> None:
        while not self._silent:
            began = time.thread_time()
            self._write(closed=False)
            self._interval = max(_INTERVAL, (time.thread_time() - began) / _SHARE)
            if self._stop.wait(self._interval):
                return

    def _write(self, *, closed: bool) -> None:
        """Write what there is to see; where that cannot be, say so once and be silent from then on."""
        if self._silent:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._draw(closed)
            with whole(self._folder / f"{self._name}.json") as beside:
                beside.write_text(json.dumps(self._document(closed)))
        except (FFmpegError, OSError, ValueError) as error:
            self._silent = True
            self._envs.glance(())
            logger.warning("%s cannot be watched from here on: %s", self._name, error)

    def _draw(self, closed: bool) -> None:
        """Write the contact sheet, if that is due and there is anything new in it; have missing frames rendered."""
        if self._sheet is None:
            return
        watched, now = self._is_watched(), time.monotonic()
        self._envs.glance([self._camera] if watched and not closed else ())
        if not (watched or closed) and now - self._looked < _UNWATCHED_INTERVAL:
            return
        self._looked = now
        path = self._folder / f"{self._name}.jpg"
        if self._sheet.update() or (self._sheet_written is not None and not path.exists()):
            with whole(path) as beside:
                beside.write_bytes(jpeg(self._sheet.picture()))
            self._sheet_written = time.time()

    def _is_watched(self) -> bool:
        try:
            return time.time() - (self._folder / "watched").stat().st_mtime < _FRESH
        except FileNotFoundError:
            return False

    def _document(self, closed: bool) -> dict[str, Any]:
        shown = set(np.flatnonzero(self._sheet.shown).tolist() if self._sheet else ())
        states = self._envs.row_states()
        rows = [{**vars(state), "frame": state.row if state.row in shown else None} for state in states]
        moment = {"written": time.time(), "interval": self._interval, "closed": closed}
        return {**self._about, **moment, "rows": rows, "sheet": self._about_sheet()}

    def _about_sheet(self) -> dict[str, Any] | None:
        sheet = self._sheet
        if sheet is None or self._sheet_written is None:
            return None
        sizes = {"columns": sheet.columns, "width": sheet.width, "height": sheet.height}
        return {"file": f"{self._name}.jpg", **sizes, "written": self._sheet_written}


def forget_earlier(folder: Path) -> None:
    """Remove what an earlier run in this folder has left to be watched; whoever watches goes on watching."""
    for path in (folder / "live").glob("*"):
        if path.name != "watched":
            with suppress(OSError):
                path.unlink()


def _first_camera(envs: VectorEnv) -> tuple[str, ContactSheet | None]:
    """Return the first camera that takes pictures, and a sheet of what it sees."""
    fields = envs.simulator_spec.observations
    for name, field in fields.items():
        if field.camera and field.dtype == "u1" and len(field.shape) == 3 and field.shape[2] == 3:
            # The arrays keep the shared memory mapped, whoever closes the environment meanwhile.
            return field.camera, ContactSheet(flatten(envs.observations)[name])
    return "", None
