"""What a run shows while it goes on: live/<name>.json and a contact sheet, written by a thread that only looks on."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from manyarms.reporting.files import whole
from manyarms.reporting.runs import LiveFile, LiveRow, LiveSheet
from manyarms.simulators.base import flatten
from manyarms.simulators.registry import split_id
from manyarms.vector import VectorEnv

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
        self._simulator, self._host = ", ".join(names), socket.gethostname()
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
                beside.write_text(self._told(closed).text())
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

    def _told(self, closed: bool) -> LiveFile:
        shown = set(np.flatnonzero(self._sheet.shown).tolist() if self._sheet else ())
        states = self._envs.row_states()
        return LiveFile(
            name=self._name,
            pid=os.getpid(),
            host=self._host,
            simulator=self._simulator,
            written=time.time(),
            interval=self._interval,
            closed=closed,
            rows=[LiveRow(**vars(state), frame=state.row if state.row in shown else None) for state in states],
            sheet=self._about_sheet(),
        )

    def _about_sheet(self) -> LiveSheet | None:
        sheet = self._sheet
        if sheet is None or self._sheet_written is None:
            return None
        return LiveSheet(f"{self._name}.jpg", sheet.columns, sheet.width, sheet.height, self._sheet_written)


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


# -- contact sheets ---------------------------------------------------------------------------------------------------


#: Tiles are no wider than this; frames are scaled down by a whole number.
_WIDEST = 96

#: Of 2 (best) to 31.
_QUANTISER = "4"


class ContactSheet:
    """Draws the frames of all rows, each as a tile at the place of its row."""

    def __init__(self, frames: np.ndarray) -> None:
        """Look at `frames` [rows, H, W, 3], which others go on writing to."""
        self._frames = frames
        rows, height, width, _ = frames.shape
        self._factor = min(-(-width // _WIDEST), height)
        self.height, self.width = height // self._factor, width // self._factor
        self.columns = math.ceil(math.sqrt(rows))
        self.shown = np.zeros(rows, bool)
        """Rows that have a picture: one that was never rendered is black."""
        self._tiles = np.zeros((rows, self.height, self.width, 3), np.uint8)

    def update(self) -> bool:
        """Look at the frames; tell whether there is anything new to draw."""
        tiles = scaled_down(self._frames, self._factor)
        if np.array_equal(tiles, self._tiles):
            return False
        self._tiles = tiles
        self.shown = tiles.any(axis=(1, 2, 3))
        return True

    def picture(self) -> np.ndarray:
        """Return all tiles side by side, row by row."""
        lines = -(-len(self._tiles) // self.columns)
        grid = np.zeros((lines * self.columns, self.height, self.width, 3), np.uint8)
        grid[: len(self._tiles)] = self._tiles
        grid = grid.reshape(lines, self.columns, self.height, self.width, 3)
        return grid.swapaxes(1, 2).reshape(lines * self.height, self.columns * self.width, 3)


def scaled_down(frames: np.ndarray, factor: int) -> np.ndarray:
    """Return a copy of frames [N, H, W, 3] in which `factor` by `factor` pixels have become one, their mean."""
    height, width = frames.shape[1] // factor * factor, frames.shape[2] // factor * factor
    if factor == 1:
        return frames.copy()
    total = np.zeros((len(frames), height // factor, width // factor, 3), np.uint16)
    for top in range(factor):
        for left in range(factor):
            total += frames[:, top:height:factor, left:width:factor]
    total //= factor * factor
    return total.astype(np.uint8)


def jpeg(picture: np.ndarray) -> bytes:
    """Encode a picture [H, W, 3]."""
    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.height, encoder.width = picture.shape[:2]
    encoder.pix_fmt, encoder.time_base, encoder.thread_count = "yuvj420p", Fraction(1, 1), 1
    encoder.options = {"qmin": _QUANTISER, "qmax": _QUANTISER}
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuvj420p")
    return b"".join(bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode()))
