"""Videos of episodes, as a sink of the runner: a file an episode, failures kept before successes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from av.error import FFmpegError

from manyarms.errors import ConfigError
from manyarms.reporting.video import VideoWriter, with_caption
from manyarms.rollout import Episode, Steps
from manyarms.simulators.base import Spec
from manyarms.vector import EpisodeId


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
