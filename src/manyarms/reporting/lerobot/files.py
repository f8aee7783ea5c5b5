"""The files of a dataset: numbered tables and videos, the next begun before one becomes too large."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import PictureType

from manyarms.errors import ConfigError

FILES_PER_CHUNK = 1000
TABLE_MEGABYTES = 100
VIDEO_MEGABYTES = 200

#: Learners read frames in any order: with a key frame every other frame, none is far from one.
ENCODING = {"g": 2, "crf": 18, "preset": "veryfast"}


def arrow() -> Any:
    """Return pyarrow, or say how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("datasets need pyarrow", do="pip install 'manyarms[datasets]'") from None
    return pyarrow


def even(shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width as H.264 wants them."""
    return shape[0] + shape[0] % 2, shape[1] + shape[1] % 2


def _path(folder: Path, number: int, suffix: str) -> Path:
    """Return the path of a folder's file of this number, with its parent made."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    path = folder / f"chunk-{chunk:03d}" / f"file-{file:03d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class Tables:
    """Numbered Parquet files; the next is begun before one becomes too large."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = self._writes = self._bytes = 0
        self._writer: Any = None

    def place(self) -> tuple[int, int]:
        """Return the chunk and the file that the next write goes to."""
        if self._writes and self._bytes * (1 + 1 / self._writes) >= TABLE_MEGABYTES << 20:
            self.close()
            self._number += 1
        return divmod(self._number, FILES_PER_CHUNK)

    def write(self, table: Any) -> None:
        """Append rows, as a row group of their own."""
        path = _path(self._folder, self._number, ".parquet")
        if self._writer is None:
            self._writer = arrow().parquet.ParquetWriter(path, table.schema, compression="snappy")
        self._writer.write_table(table)
        self._writes += 1
        self._bytes = path.stat().st_size

    def close(self) -> None:
        """Finish the file that is open."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._writes = self._bytes = 0


class Videos:
    """Numbered H.264 files of one camera; each episode begins with a key frame."""

    def __init__(self, folder: Path, rate: Fraction) -> None:
        self._folder, self._rate = folder, rate
        self._number = self._writes = self._bytes = self._frames = 0
        self._container: Any = None
        self._stream: Any = None

    def write(self, frames: np.ndarray) -> dict[str, Any]:
        """Append the frames of an episode, [T, H, W, 3], and return where they are."""
        if self._writes and self._bytes * (1 + 1 / self._writes) >= VIDEO_MEGABYTES << 20:
            self.close()
            self._number += 1
        height, width = even(frames.shape[1:3])
        if self._container is None:
            self._open(height, width)
        pads = ((0, 0), (0, height - frames.shape[1]), (0, width - frames.shape[2]), (0, 0))
        begin = self._frames
        for frame in np.pad(frames, pads, mode="edge") if any(map(sum, pads)) else frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = self._frames, 1 / self._rate
            if self._frames == begin:
                picture.pict_type = PictureType.I
            self._mux(self._stream.encode(picture))
            self._frames += 1
        self._writes += 1
        chunk, file = divmod(self._number, FILES_PER_CHUNK)
        return {
            "chunk_index": chunk,
            "file_index": file,
            "from_timestamp": float(begin / self._rate),
            "to_timestamp": float(self._frames / self._rate),
        }

    def _open(self, height: int, width: int) -> None:
        path = _path(self._folder, self._number, ".mp4")
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream = self._container.add_stream("libx264", rate=self._rate)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        encoding = {name: str(value) for name, value in ENCODING.items()}
        self._stream.options = {**encoding, "bf": "0", "forced-idr": "1"}

    def _mux(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._bytes += packet.size
            self._container.mux(packet)

    def close(self) -> None:
        """Finish the file that is open."""
        if self._container is not None:
            self._mux(self._stream.encode(None))
            self._container.close()
        self._container = self._stream = None
        self._writes = self._bytes = self._frames = 0
