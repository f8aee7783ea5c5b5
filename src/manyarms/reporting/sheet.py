"""A contact sheet: the latest frame of every row, small, in one picture."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import av
import numpy as np

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
