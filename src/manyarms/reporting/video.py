"""Videos, encoded on the side and playable even when cut short; of episodes, failures kept before successes."""

from __future__ import annotations

import base64
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from manyarms.errors import ConfigError
from manyarms.rollout import Episode, Steps
from manyarms.simulators.base import Spec
from manyarms.vector import EpisodeId

#: Frames that may wait for the encoder. When it cannot keep up, frames are left out: simulation never waits for it.
_WAITING_BYTES = 256 << 20

#: Longer videos are not put into a notebook, where they would stay.
_SHOWN_BYTES = 8 << 20

_CAPTION_HEIGHT = 14
_INK = (235, 238, 242)
_PAPER = (22, 26, 32)


class VideoWriter:
    """Writes frames [H, W, 3] to an H.264 file in a thread of its own.

    The file is fragmented: what has been written can be played whenever the run ends, `kill -9` included.
    """

    def __init__(self, path: str | Path, fps: int = 20) -> None:
        if fps < 1:
            raise ConfigError(f"fps is {fps}; a video needs at least one frame a second")
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.fps = fps
        self.written = 0
        self.left_out = 0
        """Frames the encoder had no time for."""
        self._queue: queue.Queue[np.ndarray | None] | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._seen_all = False

    def add(self, frame: np.ndarray) -> None:
        """Hand a frame over; returns at once."""
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ConfigError(f"a frame is [height, width, 3] uint8, got {frame.shape} {frame.dtype}")
        if self._queue is None:
            self._queue = queue.Queue(max(8, _WAITING_BYTES // max(1, frame.nbytes)))
            self._thread = threading.Thread(target=self._encode, args=(frame.shape,), daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(frame.copy())
        except queue.Full:
            self.left_out += 1

    def _encode(self, shape: tuple[int, ...]) -> None:
        assert self._queue is not None
        try:
            self._write(self._queue, shape)
        except (FFmpegError, OSError, ValueError) as error:  # told by close(), where someone listens
            self._error = error
            while not self._seen_all and self._queue.get() is not None:
                self.left_out += 1

    def _write(self, frames: queue.Queue[np.ndarray | None], shape: tuple[int, ...]) -> None:
        height, width = (n + n % 2 for n in shape[:2])  # H.264 wants even sizes
        options = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "flush_packets": "1"}
        with av.open(str(self.path), "w", format="mp4", options=options) as container:
            stream: Any = container.add_stream("libx264", rate=self.fps)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.options = {"preset": "veryfast", "crf": "20", "g": str(self.fps)}
            stream.thread_count = 1
            while (frame := frames.get()) is not None:
                if frame.shape[:2] != (height, width):
                    pads = [(0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0)]
                    frame = np.pad(frame, pads, mode="edge")
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
                self.written += 1
            self._seen_all = True  # a full disk may show only when the file is closed
            container.mux(stream.encode())

    def close(self) -> None:
        """Write what is left; raise what went wrong on the way."""
        if self._queue is not None and self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._queue = self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- episodes ---------------------------------------------------------------------------------------------------------


@dataclass
class _Film:
    writer: VideoWriter
    text: str
    steps: int = 0
    reward: float = 0.0


@dataclass
class _Kept:
    """What is kept of a task: paths by whether the episode failed, oldest first."""

    failures: list[Path] = field(default_factory=list)
    successes: list[Path] = field(default_factory=list)


class EpisodeVideos:
    """Films every episode and keeps at most `keep` of each task."""

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        *,
        keep: int = 4,
        field: str | None = None,
        fps: int = 20,
        captions: bool = False,
    ) -> None:
        """Film the image field `field` (default: the first)."""
        images = {name: f.camera for name, f in spec.observations.items() if f.camera and f.dtype == "u1"}
        if not images:
            raise ConfigError("there is nothing to film: the simulator has no cameras", do="give it some: cameras=[…]")
        if field is not None and field not in images:
            raise ConfigError(f"there is no camera field {field!r}", do=f"choose from {', '.join(images)}")
        self._field = field or next(iter(images))
        self.cameras = (str(images[self._field]),)
        self._folder, self._keep, self._fps, self._captions = folder, keep, fps, captions
        self._films: dict[int, _Film] = {}
        self._kept: dict[str, _Kept] = {}
        self._closing: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.errors: list[str] = []
        """What went wrong with files, for the end of the run: a full disk must not end it."""

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        name = "-".join(
            part for part in (episode.task, f"seed{episode.seed}", episode.index and f"r{episode.index}") if part
        )
        path = self._folder / f"{name.replace('/', '_')}.mp4"
        self._films[row] = _Film(VideoWriter(path, self._fps), text)
        self._add(self._films[row], observation[self._field])

    def advance(self, row: int, steps: Steps) -> None:
        film = self._films[row]
        film.steps += len(steps.rewards)
        film.reward += float(steps.rewards.sum())
        for frame in steps.frames.get(self._field, ()):
            self._add(film, frame)
        self._add(film, steps.observation[self._field], "success" if steps.success else "")

    def _add(self, film: _Film, frame: np.ndarray, word: str = "") -> None:
        if self._captions:
            frame = with_caption(frame, f"{film.text}  step {film.steps}  reward {film.reward:.2f}  {word}")
        film.writer.add(frame)

    def end(self, row: int, episode: Episode | None) -> None:
        film = self._films.pop(row)
        thread = threading.Thread(target=self._finish, args=(film.writer, episode), daemon=True)
        thread.start()  # the encoder may have some way to go, and the row has not
        self._closing = [*(t for t in self._closing if t.is_alive()), thread]

    def _finish(self, writer: VideoWriter, episode: Episode | None) -> None:
        try:
            writer.close()
            if episode is None:
                writer.path.unlink(missing_ok=True)
                return
            ending = "success" if episode.success else "failure"
            path = writer.path.with_name(f"{writer.path.stem}-{ending}.mp4")
            writer.path.replace(path)
            with self._lock:
                self._sort_in(episode, path)
        except (FFmpegError, OSError, ValueError) as error:
            self.errors.append(f"{writer.path}: {error}")
            writer.path.unlink(missing_ok=True)

    def _sort_in(self, episode: Episode, path: Path) -> None:
        kept = self._kept.setdefault(episode.id.task or "", _Kept())
        (kept.successes if episode.success else kept.failures).append(path)
        while len(kept.failures) + len(kept.successes) > self._keep:
            worst = kept.successes if kept.successes else kept.failures
            worst.pop().unlink(missing_ok=True)

    def close(self) -> list[Path]:
        """Wait for the encoder; return what is kept, failures first."""
        for row in list(self._films):
            self.end(row, None)
        for thread in self._closing:
            thread.join()
        paths: list[Path] = []
        for kept in self._kept.values():
            paths += kept.failures
        for kept in self._kept.values():
            paths += kept.successes
        return paths


# -- pictures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Video:
    """A video that a notebook shows."""

    path: Path

    def _repr_html_(self) -> str:
        name = escape(str(self.path))
        if self.path.stat().st_size > _SHOWN_BYTES:
            return f"<div>{name} is too long to be shown here</div>"
        # The fragment makes browsers show a frame instead of nothing before it is played.
        data = base64.b64encode(self.path.read_bytes()).decode() + "#t=0.05"
        return (
            '<figure style="margin:0"><video controls muted loop playsinline width="320" preload="metadata" '
            f'src="data:video/mp4;base64,{data}"></video>'
            f'<figcaption style="opacity:.65">{escape(self.path.stem)}</figcaption></figure>'
        )


def tiled(frames: Sequence[np.ndarray], columns: int | None = None, gap: int = 2) -> np.ndarray:
    """Put frames of one size side by side, in a grid as square as can be."""
    height, width = frames[0].shape[:2]
    columns = columns or math.ceil(math.sqrt(len(frames)))
    lines = math.ceil(len(frames) / columns)
    sheet = np.full((lines * (height + gap) - gap, columns * (width + gap) - gap, 3), _PAPER, np.uint8)
    for i, frame in enumerate(frames):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def with_caption(frame: np.ndarray, text: str) -> np.ndarray:
    """Return a frame with a line of text under it."""
    drawing, image_type, font = _font()
    strip = image_type.new("RGB", (frame.shape[1], _CAPTION_HEIGHT), _PAPER)
    drawing.Draw(strip).text((3, 1), text, fill=_INK, font=font)
    return np.concatenate([frame, np.asarray(strip)])


def _font() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ConfigError(
            "text on videos needs Pillow", do="pip install 'manyarms[video]', or info_on_video=False"
        ) from None
    return ImageDraw, Image, ImageFont.load_default(10)
