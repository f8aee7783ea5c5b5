"""LeRobotDatasets: what is in the recording is in the tables and the videos, where format v3.0 wants it.

That LeRobot itself reads them is checked by `tests/external/lerobot_check.py`, in an environment that has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import ConfigError
from manyarms.reporting.lerobot import dataset as making
from manyarms.reporting.lerobot import files, write_dataset
from manyarms.reporting.recording import RecordedEpisode, Recorder, Recording
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators.base import Field, Spec
from manyarms.workers.wire import encode
from rollouts import Swaying

EPISODES = [EpisodeId(("near", "far")[i % 2], 100 + i) for i in range(5)]
CAMERAS = ("front", "wrist")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


# -- recordings to write ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return episodes as `manyarms record` leaves them; some succeed, for the goal is near."""
    folder = tmp_path_factory.mktemp("walked")
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=15, goal=1.0) as envs:
        recorder = Recorder(folder, envs.simulator_spec, {"simulator": "standins:Walker"}, EPISODES)
        config = RunnerConfig(keep=(), steps_per_call=1)
        list(Runner(envs, Swaying(), config, sinks=[recorder]).play(EPISODES))
        recorder.close()
    return Recording(folder)


@pytest.fixture(scope="module")
def dataset(walked: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets") / "walked"
    assert write_dataset(folder, walked) == len(EPISODES)
    return folder


def recorded(folder: Path, spec: Spec, episodes: list[dict[str, Any]]) -> Recording:
    """Write a recording by hand; an episode is its arrays, with its text and whether it succeeded."""
    (folder / "episodes").mkdir(parents=True)
    (folder / "recording.json").write_text(json.dumps({"format": 1, "spec": spec.to_json()}))
    for i, given in enumerate(episodes):
        arrays = dict(given)
        text, success = arrays.pop("text", "move"), arrays.pop("success", True)
        identity = {"task": None, "seed": i, "init_state": None, "index": 0}
        arrays["identity"] = np.frombuffer(encode([identity, text, success, success, not success]), np.uint8)
        with (folder / "episodes" / f"{i:06d}.npz").open("wb") as file:
            np.savez(file, **arrays)
    return Recording(folder)


def moving_square(steps: int, size: tuple[int, int], start: int = 0) -> np.ndarray:
    """Return frames [steps + 1, H, W, 3] that differ from each other."""
    frames = np.full((steps + 1, *size, 3), 40, np.uint8)
    for i in range(steps + 1):
        left = (start + 4 * i) % (size[1] - 8)
        frames[i, 8:16, left : left + 8] = (200, 60 + 10 * (i % 12), 90)
    return frames


def filmed(folder: Path, lengths: list[int], size: tuple[int, int] = (32, 48), rate: float | None = 20.0) -> Recording:
    """Record an arm with a camera."""
    spec = Spec(
        {
            "top_rgb": Field((*size, 3), "uint8", 0, 255, camera="top"),
            "top_depth": Field(size, camera="top"),
            "robot/force": Field((2, 2)),
            "joint_positions": Field((3,)),
            "gripper_open": Field(()),
            "expert_action": Field((2,)),
        },
        {"arm": Field((2,)), "gripper": Field((), "int64")},
        control_rate=rate,
    )
    rng = np.random.default_rng(0)
    episodes = [
        {
            "text": ("push", "pull")[i % 2],
            "success": i % 2 == 0,
            "observation:top_rgb": moving_square(steps, size, 7 * i),
            "observation:top_depth": np.zeros((steps + 1, *size), np.float32),
            "observation:robot/force": rng.normal(size=(steps + 1, 2, 2)).astype(np.float32),
            "observation:joint_positions": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "observation:gripper_open": rng.integers(0, 2, steps + 1).astype(np.float32),
            "observation:expert_action": np.zeros((steps + 1, 2), np.float32),
            "action:arm": rng.normal(size=(steps, 2)).astype(np.float32),
            "action:gripper": rng.integers(0, 2, steps),
            "rewards": rng.normal(size=steps),
        }
        for i, steps in enumerate(lengths)
    ]
    return recorded(folder, spec, episodes)


# -- what a reader finds ----------------------------------------------------------------------------------------------


def info_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta/info.json").read_text())


def rows_of(folder: Path, part: str) -> list[dict[str, Any]]:
    """Return the rows of all files of a table."""
    return [row for path in sorted((folder / part).glob("*/*.parquet")) for row in pq.read_table(path).to_pylist()]


def column(folder: Path, key: str) -> np.ndarray:
    return np.array([row[key] for row in rows_of(folder, "data")])


def frames_of(path: Path) -> list[tuple[float, bool, np.ndarray]]:
    """Return the time, whether it is a key frame, and the picture of each frame."""
    with av.open(str(path)) as container:
        return [(f.time or 0.0, f.key_frame, f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]


def test_the_files_are_those_of_the_format(dataset: Path) -> None:
    files = {str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file()}
    assert files == {
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
        "videos/observation.images.front/chunk-000/file-000.mp4",
        "videos/observation.images.wrist/chunk-000/file-000.mp4",
    }
    assert [path.name for path in dataset.parent.iterdir()] == ["walked"]


def test_info_says_what_the_tables_hold(dataset: Path, walked: Recording) -> None:
    info = info_of(dataset)
    frames = sum(len(episode) for episode in walked)
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (len(EPISODES), frames, 2)
    assert (info["fps"], type(info["fps"]), info["robot_type"]) == (20, int, "panda")
    assert info["splits"] == {"train": f"0:{len(EPISODES)}"}
    assert info["data_path"].format(chunk_index=0, file_index=0) == "data/chunk-000/file-000.parquet"
    features = info["features"]
    schema = pq.read_schema(dataset / "data/chunk-000/file-000.parquet")
    assert schema.names == [key for key, feature in features.items() if feature["dtype"] != "video"]
    for name in schema.names:
        kind, shape = schema.field(name).type, features[name]["shape"]
        assert shape == [1] or kind.list_size == shape[0]
        number = str(kind if shape == [1] else kind.value_type)
        assert {"float": "float32"}.get(number, number) == features[name]["dtype"]
    assert features["observation.images.front"]["shape"] == [4, 6, 3]
    assert features["observation.state"]["names"] == [
        *("position_0", "position_1"),
        *(f"objects_{i}" for i in range(5)),
        "clock",
    ]


def test_numbers_are_those_of_the_recording(dataset: Path, walked: Recording) -> None:
    episodes = list(walked)

    def seen(episode: RecordedEpisode) -> np.ndarray:
        parts = [episode.observations[name][:-1].reshape(len(episode), -1) for name in ("position", "objects", "clock")]
        return np.concatenate(parts, axis=1).astype(np.float32)

    assert (column(dataset, "observation.state") == np.concatenate([seen(e) for e in episodes])).all()
    assert (column(dataset, "action") == np.concatenate([e.actions[""] for e in episodes])).all()
    assert (column(dataset, "next.reward") == np.concatenate([e.rewards for e in episodes]).astype(np.float32)).all()


def test_every_frame_knows_its_place(dataset: Path, walked: Recording) -> None:
    lengths = [len(episode) for episode in walked]
    ends = np.cumsum(lengths)
    count = np.concatenate([np.arange(n) for n in lengths])
    assert len(set(lengths)) > 1
    assert (column(dataset, "index") == np.arange(ends[-1])).all()
    assert (column(dataset, "frame_index") == count).all()
    assert (column(dataset, "episode_index") == np.repeat(np.arange(len(lengths)), lengths)).all()
    assert (column(dataset, "timestamp").astype(np.float32) == (count / 20).astype(np.float32)).all()
    assert (column(dataset, "next.done").nonzero()[0] == ends - 1).all()
    solved = [end - 1 for end, episode in zip(ends, walked, strict=True) if episode.success]
    assert 0 < len(solved) < len(lengths)
    assert (column(dataset, "next.success").nonzero()[0] == solved).all()


def test_the_table_of_episodes_says_where_each_is(dataset: Path, walked: Recording) -> None:
    rows = rows_of(dataset, "meta/episodes")
    begin = 0
    for i, (row, episode) in enumerate(zip(rows, walked, strict=True)):
        end = begin + len(episode)
        assert (row["episode_index"], row["length"], row["tasks"]) == (i, len(episode), [episode.text])
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (begin, end)
        places = [row[f"{part}/{kind}_index"] for part in ("data", "meta/episodes") for kind in ("chunk", "file")]
        assert places == [0, 0, 0, 0]
        for camera in CAMERAS:
            video = f"videos/observation.images.{camera}"
            assert (row[f"{video}/chunk_index"], row[f"{video}/file_index"]) == (0, 0)
            times = row[f"{video}/from_timestamp"], row[f"{video}/to_timestamp"]
            assert times == pytest.approx((begin / 20, end / 20), abs=1e-9)
        begin = end
    assert pq.ParquetFile(dataset / "data/chunk-000/file-000.parquet").num_row_groups == len(rows)


def test_tasks_are_found_by_their_sentence(dataset: Path, walked: Recording) -> None:
    table = pq.read_table(dataset / "meta/tasks.parquet")
    tasks = {row["task_index"]: row["task"] for row in table.to_pylist()}
    assert tasks == {0: walked.load(0).text, 1: walked.load(1).text}
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    wanted = [episode.text for episode in walked for _ in range(len(episode))]
    assert [tasks[i] for i in column(dataset, "task_index")] == wanted


def test_frames_are_found_at_the_times_of_their_episode(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [5, 1, 8, 3])
    write_dataset(tmp_path / "out", recording)
    frames = frames_of(tmp_path / "out/videos/observation.images.top/chunk-000/file-000.mp4")
    assert len(frames) == 17
    for row, episode in zip(rows_of(tmp_path / "out", "meta/episodes"), recording, strict=True):
        begin = row["videos/observation.images.top/from_timestamp"]
        for i in range(len(episode)):
            time, key, shown = min(frames, key=lambda frame, at=begin + i / 20: abs(frame[0] - at))
            assert abs(time - begin - i / 20) < 1e-4
            assert key or i > 0
            wanted = episode.observations["top_rgb"]
            errors = [np.abs(shown.astype(float) - picture).mean() for picture in wanted]
            assert int(np.argmin(errors)) == i
            assert errors[i] < 8


def test_statistics_are_those_of_numpy(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [5, 1, 8, 3])
    write_dataset(tmp_path / "out", recording)
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert set(stats) == set(info_of(tmp_path / "out")["features"])
    rows = rows_of(tmp_path / "out", "meta/episodes")
    episode = column(tmp_path / "out", "episode_index")
    for key in ("observation.state", "action", "next.reward", "next.done", "index"):
        values = column(tmp_path / "out", key).reshape(len(episode), -1).astype(np.float64)
        assert_describes(stats[key], values)
        for i, row in enumerate(rows):
            assert_describes({name: row[f"stats/{key}/{name}"] for name in stats[key]}, values[episode == i])
    frames = np.concatenate([one.observations["top_rgb"][:-1] for one in recording])
    assert_describes_pixels(stats["observation.images.top"], frames)
    alone = {name: rows[2][f"stats/observation.images.top/{name}"] for name in stats["observation.images.top"]}
    assert_describes_pixels(alone, recording.load(2).observations["top_rgb"][:-1])


def assert_describes(found: dict[str, Any], values: np.ndarray) -> None:
    wanted = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    wanted.update({name: np.quantile(values, share, axis=0) for name, share in QUANTILES.items()})
    assert found["count"] == [len(values)]
    assert set(found) == {"count", *wanted}
    for name, value in wanted.items():
        assert np.shape(found[name]) == value.shape
        assert found[name] == pytest.approx(value, abs=1e-9), name


def assert_describes_pixels(found: dict[str, Any], frames: np.ndarray) -> None:
    values = frames.reshape(-1, 3) / 255.0
    wanted = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    wanted.update({n: np.quantile(values, share, axis=0, method="inverted_cdf") for n, share in QUANTILES.items()})
    assert found["count"] == [len(frames)]
    for name, value in wanted.items():
        assert np.shape(found[name]) == (3, 1, 1)
        assert np.ravel(found[name]) == pytest.approx(value, abs=1e-9), name


def test_quantiles_of_many_rows_are_those_of_evenly_spaced_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_ROWS_KEPT", 64)
    values = np.random.default_rng(0).normal(size=(1000, 2))
    numbers = making.Numbers()
    for begin in range(0, 1000, 7):
        numbers.add(values[begin : begin + 7])
    found = numbers.result()
    assert found["mean"] == pytest.approx(values.mean(0))
    assert found["std"] == pytest.approx(values.std(0))
    assert found["q50"] == pytest.approx(np.quantile(values[::16], 0.5, axis=0))


def test_fields_go_where_policies_look_for_them(tmp_path: Path) -> None:
    write_dataset(tmp_path / "out", filmed(tmp_path / "in", [4, 4]), robot_type="arm")
    info = info_of(tmp_path / "out")
    features = info["features"]
    assert info["robot_type"] == "arm"
    assert list(features)[:4] == ["observation.images.top", "observation.state", "observation.robot.force", "action"]
    assert features["observation.state"]["names"] == [*(f"joint_positions_{i}" for i in range(3)), "gripper_open"]
    assert features["observation.robot.force"]["names"] == [f"robot.force_{i}_{j}" for i in (0, 1) for j in (0, 1)]
    assert features["action"]["names"] == ["arm_0", "arm_1", "gripper"]
    assert not any("expert" in key or "depth" in key for key in features)


def test_odd_pictures_are_padded_and_rates_need_not_be_whole(tmp_path: Path) -> None:
    write_dataset(tmp_path / "out", filmed(tmp_path / "in", [4, 3], size=(31, 47), rate=100 / 3))
    info = info_of(tmp_path / "out")
    assert info["fps"] == pytest.approx(100 / 3)
    assert info["features"]["observation.images.top"]["shape"] == [32, 48, 3]
    frames = frames_of(tmp_path / "out/videos/observation.images.top/chunk-000/file-000.mp4")
    assert [time for time, _, _ in frames] == pytest.approx([0.03 * i for i in range(7)], abs=1e-4)
    assert frames[0][2].shape == (32, 48, 3)


def test_a_simulator_without_cameras_or_names_gives_its_numbers(tmp_path: Path) -> None:
    spec = Spec({"": Field((3,), "float64")}, {"": Field((), "int64")}, control_rate=50)
    seen, chosen = np.arange(9.0).reshape(3, 3), np.array([0, 1])
    episode = {"observation:": seen, "action:": chosen, "rewards": np.ones(2)}
    write_dataset(tmp_path / "out", recorded(tmp_path / "in", spec, [episode]))
    info = info_of(tmp_path / "out")
    assert info["video_path"] is None
    assert info["features"]["observation.state"]["names"] == ["state_0", "state_1", "state_2"]
    assert (column(tmp_path / "out", "observation.state") == seen[:2]).all()
    assert column(tmp_path / "out", "action").tolist() == [0.0, 1.0]
    assert not (tmp_path / "out/videos").exists()


def test_full_files_are_followed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TABLE_MEGABYTES", 0), ("VIDEO_MEGABYTES", 0), ("FILES_PER_CHUNK", 2)):
        monkeypatch.setattr(files, name, value)
    monkeypatch.setattr(making, "_ROWS_TOGETHER", 1)
    recording = filmed(tmp_path / "in", [4, 2, 3])
    write_dataset(tmp_path / "out", recording)
    rows = rows_of(tmp_path / "out", "meta/episodes")
    for part in ("data", "meta/episodes", "videos/observation.images.top"):
        assert [(row[f"{part}/chunk_index"], row[f"{part}/file_index"]) for row in rows] == [(0, 0), (0, 1), (1, 0)]
    assert [row["videos/observation.images.top/from_timestamp"] for row in rows] == [0, 0, 0]
    last = frames_of(tmp_path / "out/videos/observation.images.top/chunk-001/file-000.mp4")
    assert len(last) == 3
    assert np.abs(last[0][2].astype(float) - recording.load(2).observations["top_rgb"][0]).mean() < 8
    assert (column(tmp_path / "out", "index") == np.arange(9)).all()


def test_only_success_leaves_failures_out(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [4, 2, 3, 5])
    assert write_dataset(tmp_path / "out", recording, only_success=True) == 2
    rows = rows_of(tmp_path / "out", "meta/episodes")
    assert [(row["episode_index"], row["length"], row["tasks"]) for row in rows] == [(0, 4, ["push"]), (1, 3, ["push"])]
    assert column(tmp_path / "out", "next.success").sum() == 2
    actions = [recording.load(i).actions["arm"] for i in (0, 2)]
    assert (column(tmp_path / "out", "action")[:, :2] == np.concatenate(actions)).all()


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_full_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [2])
    (tmp_path / "out").mkdir()
    write_dataset(tmp_path / "out", recording)  # it was empty
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(ConfigError, match="out is not empty"):
        write_dataset(tmp_path / "out", recording)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def broken_file(recording: Recording) -> None:
    (recording.folder / "episodes" / "000001.npz").write_bytes(b"half an episode")


def no_rate(recording: Recording) -> None:
    recording.spec = Spec(recording.spec.observations, recording.spec.actions)


def no_episodes(recording: Recording) -> None:
    recording.positions = []


@pytest.mark.parametrize(
    ("trouble", "words"),
    [(broken_file, "episode 1 cannot be read"), (no_rate, "control_rate"), (no_episodes, "no episode")],
)
def test_nothing_is_left_after_an_error(tmp_path: Path, trouble: Callable[[Recording], None], words: str) -> None:
    recording = filmed(tmp_path / "in", [4, 4])
    trouble(recording)
    with pytest.raises(ConfigError, match=words):
        write_dataset(tmp_path / "deep" / "out", recording)
    assert not (tmp_path / "deep").exists() or not list((tmp_path / "deep").iterdir())


def test_nothing_is_left_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = filmed(tmp_path / "in", [4, 4])
    load = recording.load

    def interrupted(position: int) -> RecordedEpisode:
        if position:
            assert list((tmp_path / "deep").glob(".out.*/data/*/*.parquet"))  # the first episode was being written
            raise KeyboardInterrupt
        return load(position)

    monkeypatch.setattr(recording, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / "deep" / "out", recording)
    assert not list((tmp_path / "deep").iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [2])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_dataset(tmp_path / "file" / "out", recording)


def test_no_solved_episode_is_no_dataset(tmp_path: Path) -> None:
    recording = filmed(tmp_path / "in", [2])
    episode = recording.load(0)
    assert episode.success
    failed = recorded(
        tmp_path / "failed",
        recording.spec,
        [
            {
                "success": False,
                "rewards": episode.rewards,
                **{f"observation:{name}": array for name, array in episode.observations.items()},
                **{f"action:{name}": array for name, array in episode.actions.items()},
            }
        ],
    )
    with pytest.raises(ConfigError, match="no solved episode"):
        write_dataset(tmp_path / "out", failed, only_success=True)
    assert not (tmp_path / "out").exists()


def test_missing_pyarrow_is_named_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = filmed(tmp_path / "in", [2])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'manyarms\[datasets\]'"):
        write_dataset(tmp_path / "out", recording)
    assert not (tmp_path / "out").exists()
