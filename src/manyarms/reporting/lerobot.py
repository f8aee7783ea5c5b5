"""Recordings as LeRobotDatasets (format v3.0): tables of numbers, videos of cameras, statistics of both.

A frame is what was seen, the action taken on it and what came of it. So an episode of T actions has T frames; what was
seen after the last action is left out, and so are depth images and masks.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import PictureType

from manyarms.errors import ConfigError
from manyarms.reporting.recording import RecordedEpisode, Recording
from manyarms.reporting.statistics import Numbers, Pixels, sample
from manyarms.simulators.base import Field, Spec

_VERSION = "v3.0"
_FILES_PER_CHUNK = 1000
_TABLE_MEGABYTES = 100
_VIDEO_MEGABYTES = 200

#: Fields that make up the state of a robot; a simulator that has none of them gives all its numbers.
_STATE = ("joint_positions", "gripper_pose", "gripper_open")

#: Fields that are no observations of a robot.
_HINTS = ("expert_action",)

#: Learners read frames in any order: with a key frame every other frame, none is far from one.
_ENCODING = {"g": 2, "crf": 18, "preset": "veryfast"}

#: Rows of the table of episodes that are written together.
_ROWS_TOGETHER = 100


def write_dataset(folder: Path, recording: Recording, *, only_success: bool = False, robot_type: str = "panda") -> int:
    """Write a recording as a LeRobotDataset, whole or not at all; return the number of episodes."""
    _pyarrow()  # says now what is missing
    target = folder.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{folder} is not empty", why="a dataset is written as a whole", do="choose another folder")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        beside.mkdir(parents=True)
        with closing(_Dataset(beside, recording.spec, _rate(recording), robot_type)) as dataset:
            for episode in _chosen(recording, only_success):
                dataset.add(episode)
        beside.replace(target)
    except (OSError, FFmpegError) as error:
        raise ConfigError(f"{folder} cannot be written", why=str(error)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return dataset.episodes


def _chosen(recording: Recording, only_success: bool) -> Iterator[RecordedEpisode]:
    """Load the episodes to write, one at a time."""
    found = 0
    for episode in recording:
        if len(episode) and (episode.success or not only_success):
            found += 1
            yield episode
    if not found:
        kind = "solved episode" if only_success else "episode"
        raise ConfigError(f"{recording.folder} has no {kind}, and a dataset needs one", do="record more of them")


def _rate(recording: Recording) -> Fraction:
    """Return the frames a second."""
    rate = recording.spec.control_rate
    if not rate or rate <= 0:
        raise ConfigError(
            "a dataset needs a frame rate, and the simulator does not tell its own",
            do=f"write it into {recording.folder / 'recording.json'}, at spec.control_rate",
        )
    return Fraction(rate).limit_denominator(1000)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("datasets need pyarrow", do="pip install 'manyarms[datasets]'") from None
    return pyarrow


# -- which numbers go where -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Which fields of a simulator make up which feature."""

    images: dict[str, str]  # one field each
    vectors: dict[str, list[str]]  # observation fields, one after the other

    @classmethod
    def of(cls, spec: Spec) -> _Layout:
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
            described[key] = _video_feature(*_even(spec.observations[name].shape), rate)
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


def _even(shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width as H.264 wants them."""
    return shape[0] + shape[0] % 2, shape[1] + shape[1] % 2


def _video_feature(height: int, width: int, rate: Fraction) -> dict[str, Any]:
    info = {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.fps": _number(rate),
        "video.channels": 3,
        "has_audio": False,
        "is_depth_map": False,
        **{f"video.{name}": value for name, value in _ENCODING.items()},
    }
    return {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"], "info": info}


def _vector_feature(fields: Mapping[str, Field]) -> dict[str, Any]:
    names = [
        "_".join([_dotted(name), *map(str, place)])
        for name, field in fields.items()
        for place in np.ndindex(*field.shape)
    ]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def _number(rate: Fraction) -> int | float:
    return rate.numerator if rate.denominator == 1 else float(rate)


def _joined(arrays: Mapping[str, np.ndarray], names: Iterable[str], steps: int) -> np.ndarray:
    """Put fields side by side, [steps, n]; one number a frame is [steps]."""
    parts = [arrays[name][:steps].reshape(steps, -1) for name in names]
    joined = np.concatenate(parts, axis=1).astype(np.float32)
    return joined[:, 0] if joined.shape[1] == 1 else joined


# -- the dataset on disk ----------------------------------------------------------------------------------------------


class _Dataset:
    """A dataset in the making. It is complete once it has been closed."""

    def __init__(self, folder: Path, spec: Spec, rate: Fraction, robot_type: str) -> None:
        self.episodes = self.frames = 0
        self._folder, self._rate, self._robot_type = folder, rate, robot_type
        self._actions = list(spec.actions)
        self._layout = _Layout.of(spec)
        self._features = self._layout.features(spec, rate)
        self._tasks: dict[str, int] = {}
        self._statistics: dict[str, Numbers | Pixels] = {
            key: Pixels() if key in self._layout.images else Numbers() for key in self._features
        }
        self._rows: list[dict[str, Any]] = []
        self._data = _Tables(folder / "data")
        self._index = _Tables(folder / "meta" / "episodes")
        self._videos = {key: _Videos(folder / "videos" / key, rate) for key in self._layout.images}

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
        seen = {key: _joined(episode.observations, names, steps) for key, names in self._layout.vectors.items()}
        return {
            **seen,
            "action": _joined(episode.actions, self._actions, steps),
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
        self._index.write(_pyarrow().Table.from_pylist([{**row, **place} for row in self._rows]))
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
        _pyarrow().parquet.write_table(_task_table(self._tasks), meta / "tasks.parquet")
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
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _TABLE_MEGABYTES,
            "video_files_size_in_mb": _VIDEO_MEGABYTES,
            "fps": _number(self._rate),
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": f"data/{file}.parquet",
            "video_path": f"videos/{{video_key}}/{file}.mp4" if self._videos else None,
            "features": self._features,
        }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(columns: Mapping[str, np.ndarray]) -> Any:
    arrow = _pyarrow()

    def column(values: np.ndarray) -> Any:
        flat = arrow.array(values.reshape(-1))
        return flat if values.ndim == 1 else arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])

    return arrow.table({name: column(values) for name, values in columns.items()})


def _task_table(tasks: Mapping[str, int]) -> Any:
    """Return the sentences as pandas writes a frame with an index, for LeRobot looks them up there."""
    arrow = _pyarrow()
    known = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
        for name, (kind, numpy_type) in known.items()
    ]
    heading = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    frame = {"index_columns": ["task"], "column_indexes": [heading], "columns": columns, "pandas_version": "2.0.0"}
    table = arrow.table({"task_index": list(tasks.values()), "task": list(tasks)})
    table = table.cast(arrow.schema({"task_index": arrow.int64(), "task": arrow.string()}))
    return table.replace_schema_metadata({"pandas": json.dumps(frame)})


def _path(folder: Path, number: int, suffix: str) -> Path:
    """Return the path of a folder's file of this number, with its parent made."""
    chunk, file = divmod(number, _FILES_PER_CHUNK)
    path = folder / f"chunk-{chunk:03d}" / f"file-{file:03d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class _Tables:
    """Numbered Parquet files; the next is begun before one becomes too large."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = self._writes = self._bytes = 0
        self._writer: Any = None

    def place(self) -> tuple[int, int]:
        """Return the chunk and the file that the next write goes to."""
        if self._writes and self._bytes * (1 + 1 / self._writes) >= _TABLE_MEGABYTES << 20:
            self.close()
            self._number += 1
        return divmod(self._number, _FILES_PER_CHUNK)

    def write(self, table: Any) -> None:
        """Append rows, as a row group of their own."""
        path = _path(self._folder, self._number, ".parquet")
        if self._writer is None:
            self._writer = _pyarrow().parquet.ParquetWriter(path, table.schema, compression="snappy")
        self._writer.write_table(table)
        self._writes += 1
        self._bytes = path.stat().st_size

    def close(self) -> None:
        """Finish the file that is open."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._writes = self._bytes = 0


class _Videos:
    """Numbered H.264 files of one camera; each episode begins with a key frame."""

    def __init__(self, folder: Path, rate: Fraction) -> None:
        self._folder, self._rate = folder, rate
        self._number = self._writes = self._bytes = self._frames = 0
        self._container: Any = None
        self._stream: Any = None

    def write(self, frames: np.ndarray) -> dict[str, Any]:
        """Append the frames of an episode, [T, H, W, 3], and return where they are."""
        if self._writes and self._bytes * (1 + 1 / self._writes) >= _VIDEO_MEGABYTES << 20:
            self.close()
            self._number += 1
        height, width = _even(frames.shape[1:3])
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
        chunk, file = divmod(self._number, _FILES_PER_CHUNK)
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
        encoding = {name: str(value) for name, value in _ENCODING.items()}
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
