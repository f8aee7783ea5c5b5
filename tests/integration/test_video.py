"""Videos: what is written can be played, whatever happens to the one who writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from manyarms.errors import ConfigError
from manyarms.reporting.video import VideoWriter, tiled, with_caption


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def grey(value: int, shape: tuple[int, int] = (32, 48)) -> np.ndarray:
    return np.full((*shape, 3), value, np.uint8)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "deep" / "a.mp4", fps=10) as video:
        for i in range(25):
            video.add(grey(10 * i))
    frames = frames_of(video.path)
    assert len(frames) == video.written == 25
    assert [abs(int(frame.mean()) - 10 * i) < 4 for i, frame in enumerate(frames)] == [True] * 25
    with av.open(str(video.path)) as container:
        assert container.streams.video[0].average_rate == 10
        assert container.streams.video[0].codec_context.name == "h264"


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4") as video:
        video.add(grey(100, (31, 45)))
    assert frames_of(video.path)[0].shape == (32, 46, 3)


def test_a_killed_writer_leaves_a_file_that_plays(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
import numpy as np
from manyarms.reporting.video import VideoWriter
video = VideoWriter({str(tmp_path / "a.mp4")!r}, fps=5)
for i in range(100):
    video.add(np.full((32, 48, 3), i, np.uint8))
while video.written < 100:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(frames_of(tmp_path / "a.mp4")) >= 40


def test_captions_are_drawn_under_the_picture() -> None:
    drawn = with_caption(grey(0), "reach the red target")
    assert drawn.shape[0] > 32
    assert drawn[32:].max() > 150
    assert (drawn[:32] == 0).all()


def test_tiles_fill_a_grid() -> None:
    sheet = tiled([grey(i) for i in range(5)], columns=3, gap=0)
    assert sheet.shape == (64, 144, 3)
    assert sheet[40, 60].tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("frame", "message"), [(np.zeros((4, 4), np.uint8), "a frame is"), (np.zeros((4, 4, 3), np.float32), "uint8")]
)
def test_wrong_frames_are_refused(frame: np.ndarray, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        VideoWriter(tmp_path / "a.mp4").add(frame)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fps"):
        VideoWriter(tmp_path / "a.mp4", fps=0)
