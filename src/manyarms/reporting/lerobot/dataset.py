"""A dataset in the making: its episodes, their index and what is known of them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.reporting.lerobot.files import (
    FILES_PER_CHUNK,
    TABLE_MEGABYTES,
    VIDEO_MEGABYTES,
    Tables,
    Videos,
    arrow,
)
from manyarms.reporting.lerobot.layout import Layout, joined, number
from manyarms.reporting.recording import RecordedEpisode
from manyarms.reporting.statistics import Numbers, Pixels, sample
from manyarms.simulators.base import Spec

_VERSION = "v3.0"

#: Rows of the table of episodes that are written together.
_ROWS_TOGETHER = 100


class Dataset:
    """It is complete once it has been closed."""

    def __init__(self, folder: Path, spec: Spec, rate: Fraction, robot_type: str) -> None:
        self.episodes = self.frames = 0
        self._folder, self._rate, self._robot_type = folder, rate, robot_type
        self._actions = list(spec.actions)
        self._layout = Layout.of(spec)
        self._features = self._layout.features(spec, rate)
        self._tasks: dict[str, int] = {}
        self._statistics: dict[str, Numbers | Pixels] = {
            key: Pixels() if key in self._layout.images else Numbers() for key in self._features
        }
        self._rows: list[dict[str, Any]] = []
        self._data = Tables(folder / "data")
        self._index = Tables(folder / "meta" / "episodes")
        self._videos = {key: Videos(folder / "videos" / key, rate) for key in self._layout.images}

    def add(self, episode: RecordedEpisode) -> None:
        """Append an episode."""
        text = episode.text or episode.id.task or ""
        columns = self._columns(episode, self._tasks.setdefault(text, len(self._tasks)))
        chunk, file = self._data.place()
        self._data.write(_table(columns))
        row: dict[str, Any] = {
            "episode_index": self.episodes,
            "tasks": [text],
            "length": len(episode),
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + len(episode),
        }
        for key, name in self._layout.images.items():
            images = episode.observations[name][: len(episode)]
            row.update({f"videos/{key}/{fact}": value for fact, value in self._videos[key].write(images).items()})
            row.update(self._described(key, sample(images)))
        for key, values in columns.items():
            row.update(self._described(key, values.reshape(len(episode), -1).astype(np.float64)))
        self._rows.append(row)
        self.episodes += 1
        self.frames += len(episode)
        if len(self._rows) == _ROWS_TOGETHER:
            self._write_rows()

    def _columns(self, episode: RecordedEpisode, task: int) -> dict[str, np.ndarray]:
        """Return the numbers of an episode by feature, [T] or [T, n]."""
        steps = len(episode)
        count = np.arange(steps)
        seen = {key: joined(episode.observations, names, steps) for key, names in self._layout.vectors.items()}
        return {
            **seen,
            "action": joined(episode.actions, self._actions, steps),
            "next.reward": episode.rewards.astype(np.float32),
            "next.success": (count == steps - 1) & episode.success,
            "next.done": count == steps - 1,
            "timestamp": (count / float(self._rate)).astype(np.float32),
            "frame_index": count,
            "episode_index": np.full(steps, self.episodes),
            "index": self.frames + count,
            "task_index": np.full(steps, task),
        }

    def _described(self, key: str, values: np.ndarray) -> dict[str, Any]:
        """Count values in, and return the statistics of these alone as columns."""
        alone = type(self._statistics[key])()
        for statistics in (alone, self._statistics[key]):
            statistics.add(values)
        return {f"stats/{key}/{name}": value for name, value in alone.result().items()}

    def _write_rows(self) -> None:
        chunk, file = self._index.place()
        place = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        self._index.write(arrow().Table.from_pylist([{**row, **place} for row in self._rows]))
        self._rows.clear()

    def close(self) -> None:
        """Write what is known only at the end."""
        for videos in self._videos.values():
            videos.close()
        if self._rows:
            self._write_rows()
        self._index.close()
        self._data.close()
        meta = self._folder / "meta"
        meta.mkdir(exist_ok=True)
        arrow().parquet.write_table(_task_table(self._tasks), meta / "tasks.parquet")
        if self.episodes:
            _write_json(meta / "stats.json", {key: known.result() for key, known in self._statistics.items()})
        _write_json(meta / "info.json", self._info())

    def _info(self) -> dict[str, Any]:
        file = "chunk-{chunk_index:03d}/file-{file_index:03d}"
        return {
            "codebase_version": _VERSION,
            "robot_type": self._robot_type,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": TABLE_MEGABYTES,
            "video_files_size_in_mb": VIDEO_MEGABYTES,
            "fps": number(self._rate),
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": f"data/{file}.parquet",
            "video_path": f"videos/{{video_key}}/{file}.mp4" if self._videos else None,
            "features": self._features,
        }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(columns: Mapping[str, np.ndarray]) -> Any:
    pyarrow = arrow()

    def column(values: np.ndarray) -> Any:
        flat = pyarrow.array(values.reshape(-1))
        return flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])

    return pyarrow.table({name: column(values) for name, values in columns.items()})


def _task_table(tasks: Mapping[str, int]) -> Any:
    """Return the sentences as pandas writes a frame with an index, for LeRobot looks them up there."""
    pyarrow = arrow()
    known = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
        for name, (kind, numpy_type) in known.items()
    ]
    heading = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    frame = {"index_columns": ["task"], "column_indexes": [heading], "columns": columns, "pandas_version": "2.0.0"}
    table = pyarrow.table({"task_index": list(tasks.values()), "task": list(tasks)})
    table = table.cast(pyarrow.schema({"task_index": pyarrow.int64(), "task": pyarrow.string()}))
    return table.replace_schema_metadata({"pandas": json.dumps(frame)})
