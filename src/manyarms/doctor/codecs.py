"""Videos, written and read back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from manyarms.simulators.about import Row, fault, ok

_FRAMES = 8
_FIX = "pip install --force-reinstall av"


def rows() -> list[Row]:
    """Write a video as episodes are filmed, and read it back."""
    try:
        import av
        from av.error import FFmpegError

        from manyarms.reporting.video import VideoWriter
    except ImportError as error:
        return [fault("video", f"PyAV cannot be imported: {error}", _FIX)]
    with tempfile.TemporaryDirectory(prefix="manyarms-doctor-") as folder:
        path = Path(folder) / "grey.mp4"
        try:
            with VideoWriter(path) as video:
                for i in range(_FRAMES):
                    video.add(np.full((48, 64, 3), 20 * i + 40, np.uint8))
            with av.open(str(path)) as container:
                read = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        except (FFmpegError, OSError, ValueError) as error:
            return [fault("video", f"{type(error).__name__}: {error}", _FIX)]
    wrong = [i for i, frame in enumerate(read) if abs(float(frame.mean()) - (20 * i + 40)) > 8]
    if len(read) != _FRAMES or wrong:
        return [fault("video", f"{len(read)} of {_FRAMES} frames came back, {len(wrong)} of them changed", _FIX)]
    return [ok("video", f"{_FRAMES} frames written as H.264 and read back, PyAV {av.__version__}")]
