"""Two videos, front and wrist, of each environment that is filmed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flags import Flags
from manyarms import Chunk
from manyarms.reporting.video import VideoWriter

VIEWS = ("front", "wrist")


class Films:
    """Writes ``rank0_env0_front.mp4`` and its like; false when nothing is filmed."""

    def __init__(self, flags: Flags, num_envs: int, rank: int = 0) -> None:
        self._rows = flags.filmed(num_envs)
        self._stride = flags.stride
        self._steps = dict.fromkeys(self._rows, 0)
        """Of the episode that each is in."""
        folder = Path(flags.output_dir or "")
        self._writers = {
            (row, view): VideoWriter(folder / f"rank{rank}_env{row}_{view}.mp4", flags.fps)
            for row in self._rows
            for view in VIEWS
        }

    @property
    def paths(self) -> list[Path]:
        """What is written."""
        return [writer.path for writer in self._writers.values()]

    @property
    def due(self) -> bool:
        """Whether the next step is one to film."""
        return any((steps + 1) % self._stride == 0 for steps in self._steps.values())

    def __bool__(self) -> bool:
        return bool(self._rows)

    def begin(self, observations: Mapping[str, np.ndarray]) -> None:
        """Film how it begins."""
        for row in self._rows:
            self._write(row, {view: observations[f"{view}_rgb"][row] for view in VIEWS})

    def add(self, chunk: Chunk) -> None:
        """Film a chunk of all environments."""
        for row in self._rows:
            self.add_row(row, chunk, row)

    def add_row(self, row: int, chunk: Chunk, position: int) -> None:
        """Film the chunk of one environment: every n-th step of an episode, and how each begins."""
        if row not in self._steps:
            return
        inside = {view: chunk.frames[f"{view}_rgb"][position] for view in VIEWS}
        for frame in range(len(inside[VIEWS[0]])):
            self._write(row, {view: inside[view][frame] for view in VIEWS})
        taken = int(chunk.num_steps[position])
        self._steps[row] = self._steps[row] + taken if taken else 0
        if self._steps[row] % self._stride == 0:
            self._write(row, {view: chunk.observations[f"{view}_rgb"][position] for view in VIEWS})

    def _write(self, row: int, pictures: Mapping[str, np.ndarray]) -> None:
        for view, picture in pictures.items():
            self._writers[row, view].add(picture)

    def close(self) -> None:
        """Finish all files."""
        for writer in self._writers.values():
            writer.close()

    def __enter__(self) -> Films:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
