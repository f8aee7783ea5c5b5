"""A dataset in the making: its episodes, their index and what is known of them all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.reporting.lerobot.files import (
    ENCODING,
    FILES_PER_CHUNK,
    TABLE_MEGABYTES,
    VIDEO_MEGABYTES,
    Tables,
    Videos,
    arrow,
    even,
)
from manyarms.reporting.recording import RecordedEpisode
from manyarms.simulators.base import Field, Spec

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


# -- which numbers become which feature -------------------------------------------------------------------------------


#: Fields that make up the state of a robot; a simulator that has none of them gives all its numbers.
_STATE = ("joint_positions", "gripper_pose", "gripper_open")

#: Fields that are no observations of a robot.
_HINTS = ("expert_action",)


@dataclass(frozen=True)
class Layout:
    """Which fields of a simulator make up which feature."""

    images: dict[str, str]  # one field each
    vectors: dict[str, list[str]]  # observation fields, one after the other

    @classmethod
    def of(cls, spec: Spec) -> Layout:
        images: dict[str, str] = {}
        for name, field in spec.observations.items():
            if _is_picture(field):
                camera = f"observation.images.{_dotted(field.camera or name or 'image')}"
                images[camera if camera not in images else f"observation.images.{_dotted(name)}"] = name
        numbers = [
            name
            for name, field in spec.observations.items()
            if not field.camera and name not in (*images.values(), *_HINTS) and math.prod(field.shape)
        ]
        state = [name for name in _STATE if name in numbers] or numbers
        vectors = {"observation.state": state} if state else {}
        for name in numbers:
            if name not in state:
                key = f"observation.{_dotted(name)}"
                vectors[key if key not in vectors else f"{key}_field"] = [name]
        return cls(images, vectors)

    def features(self, spec: Spec, rate: Fraction) -> dict[str, Any]:
        """Describe every feature as `meta/info.json` does."""
        described: dict[str, Any] = {}
        for key, name in self.images.items():
            described[key] = _video_feature(*even(spec.observations[name].shape), rate)
        for key, fields in self.vectors.items():
            described[key] = _vector_feature({name or "state": spec.observations[name] for name in fields})
        described["action"] = _vector_feature({name or "action": field for name, field in spec.actions.items()})
        scalars = {"next.reward": "float32", "next.success": "bool", "next.done": "bool", "timestamp": "float32"}
        scalars.update(dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"))
        for key, dtype in scalars.items():
            described[key] = {"dtype": dtype, "shape": [1], "names": None}
        return described


def _is_picture(field: Field) -> bool:
    return field.dtype == "u1" and len(field.shape) == 3 and field.shape[2] == 3


def _dotted(name: str) -> str:
    """Return a nested name as LeRobot allows it."""
    return name.replace("/", ".")


def _video_feature(height: int, width: int, rate: Fraction) -> dict[str, Any]:
    info = {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.fps": number(rate),
        "video.channels": 3,
        "has_audio": False,
        "is_depth_map": False,
        **{f"video.{name}": value for name, value in ENCODING.items()},
    }
    return {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"], "info": info}


def _vector_feature(fields: Mapping[str, Field]) -> dict[str, Any]:
    names = [
        "_".join([_dotted(name), *map(str, place)])
        for name, field in fields.items()
        for place in np.ndindex(*field.shape)
    ]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def number(rate: Fraction) -> int | float:
    return rate.numerator if rate.denominator == 1 else float(rate)


def joined(arrays: Mapping[str, np.ndarray], names: Iterable[str], steps: int) -> np.ndarray:
    """Put fields side by side, [steps, n]; one number a frame is [steps]."""
    parts = [arrays[name][:steps].reshape(steps, -1) for name in names]
    joined = np.concatenate(parts, axis=1).astype(np.float32)
    return joined[:, 0] if joined.shape[1] == 1 else joined


# -- statistics of what does not fit into memory ----------------------------------------------------------------------


QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

#: Quantiles of more rows than this are those of evenly spaced ones.
_ROWS_KEPT = 1 << 16

#: How much of an episode's images goes into statistics.
_FRAMES_COUNTED, _PIXELS_A_SIDE = 100, 150


class Numbers:
    """Statistics of rows of numbers, which need not be in memory together."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0  # Σ (x - mean)²
        self._low: Any = math.inf
        self._high: Any = -math.inf
        self._kept: list[np.ndarray] = []
        self._stride = 1

    def add(self, rows: np.ndarray) -> None:
        """Count in rows, [T, n] float64."""
        mean = rows.mean(axis=0)
        total, delta = self._count + len(rows), mean - self._mean
        # squares = squares₁ + squares₂ + δ² · n₁ n₂ / n
        self._squares += ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self._count * len(rows) / total)
        self._mean += delta * (len(rows) / total)
        self._low = np.minimum(self._low, rows.min(axis=0))
        self._high = np.maximum(self._high, rows.max(axis=0))
        self._kept.append(rows[-self._count % self._stride :: self._stride])
        self._count = total
        while sum(map(len, self._kept)) > _ROWS_KEPT:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2

    def result(self) -> dict[str, list[Any]]:
        quantiles = np.quantile(np.concatenate(self._kept), list(QUANTILES.values()), axis=0)
        return {
            "min": self._low.tolist(),
            "max": self._high.tolist(),
            "mean": self._mean.tolist(),
            "std": np.sqrt(self._squares / self._count).tolist(),
            "count": [self._count],
            **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        }


class Pixels:
    """Statistics of images by channel, from 0 to 1, of shape [3, 1, 1]."""

    def __init__(self) -> None:
        self._count = 0
        self._histogram = np.zeros((3, 256))

    def add(self, frames: np.ndarray) -> None:
        """Count in frames, [T, H, W, 3] uint8."""
        self._count += len(frames)
        for channel in range(3):
            self._histogram[channel] += np.bincount(frames[..., channel].reshape(-1), minlength=256)

    def result(self) -> dict[str, list[Any]]:
        values = np.arange(256) / 255.0
        shares = self._histogram / self._histogram.sum(axis=1, keepdims=True)
        present = self._histogram > 0
        mean = shares @ values
        found = {
            "min": values[present.argmax(axis=1)],
            "max": values[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1)),
        }
        reached = self._histogram.cumsum(axis=1)
        for name, share in QUANTILES.items():
            found[name] = values[(reached >= share * reached[:, -1:]).argmax(axis=1)]
        return {"count": [self._count], **{name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}}


def sample(frames: np.ndarray) -> np.ndarray:
    """Return evenly spaced frames, and of large ones evenly spaced pixels."""
    some = np.unique(np.linspace(0, len(frames) - 1, _FRAMES_COUNTED).round().astype(int))
    step = max(1, max(frames.shape[1:3]) // _PIXELS_A_SIDE)
    return frames[some, ::step, ::step]
