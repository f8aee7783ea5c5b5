"""Read a dataset that we wrote with LeRobot itself, and compare it with the recording it was made from.

``python tests/external/lerobot_check.py <dataset> <recording> [--only-success] [--video-backend torchcodec]`` in an
environment with lerobot; manyarms is not needed. Prints what it has checked; exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

#: How far a decoded frame may be from what was recorded, of 255, on average.
TOLERANCE = 8.0

STATE = ("joint_positions", "gripper_pose", "gripper_open")


class Checks:
    """What has been compared, and what did not match."""

    def __init__(self) -> None:
        self.mismatches = 0

    def check(self, what: str, good: bool, found: object = "", wanted: object = "") -> None:
        print(f"{'ok  ' if good else 'BAD '} {what}" + ("" if good else f": {found}, not {wanted}"))
        self.mismatches += not good

    def equal(self, what: str, found: object, wanted: object) -> None:
        self.check(f"{what} ({_short(wanted)})", bool(np.array_equal(found, wanted)), found, wanted)  # type: ignore[arg-type]


def _short(value: object) -> str:
    return str(value) if np.size(value) < 8 else f"{np.size(value)} numbers"  # type: ignore[arg-type]


def opened(root: Path, backend: str, **options: Any) -> Any:
    """Open a dataset on disk with LeRobot."""
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    return module.LeRobotDataset("local/check", root=root, video_backend=backend, **options)


def recorded_episodes(folder: Path, only_success: bool) -> list[dict[str, Any]]:
    """Read a recording with nothing but numpy."""
    episodes = []
    for path in sorted((folder / "episodes").glob("[0-9]*.npz")):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        identity = arrays.pop("identity").tobytes()
        size = int.from_bytes(identity[:4], "little")
        _, text, success, *_ = json.loads(identity[4 : 4 + size])
        if success or not only_success:
            episodes.append({"text": text, "success": success, **arrays})
    return episodes


def flat(arrays: dict[str, np.ndarray], names: list[str]) -> np.ndarray:
    """Put fields side by side, [T, n]."""
    return np.concatenate([arrays[name].reshape(len(arrays[name]), -1) for name in names], axis=1).astype(np.float32)


def state_fields(spec: dict[str, Any]) -> list[str]:
    """Return the fields that must make up the state."""
    pictures = {name for name, field in spec["observations"].items() if field["camera"] or field["dtype"] == "u1"}
    numbers = [name for name in spec["observations"] if name not in pictures and name != "expert_action"]
    return [name for name in STATE if name in numbers] or numbers


def image_fields(spec: dict[str, Any]) -> dict[str, str]:
    """Return the RGB field of each camera by its key."""
    fields = {name: field for name, field in spec["observations"].items() if field["dtype"] == "u1"}
    return {f"observation.images.{field['camera'] or name}": name for name, field in fields.items()}


def compare_episode(
    checks: Checks, dataset: Any, spec: dict[str, Any], episode: dict[str, Any], index: int, begin: int
) -> None:
    """Compare every frame of an episode."""
    steps = len(episode["rewards"])
    items = [dataset[begin + i] for i in range(steps)]
    what = f"episode {index}"

    def column(key: str) -> np.ndarray:
        return np.stack([np.asarray(item[key]) for item in items])

    state = flat(episode, [f"observation:{name}" for name in state_fields(spec)])[:steps]
    actions = flat(episode, [f"action:{name}" for name in spec["actions"]])
    checks.check(f"{what}: task {episode['text']!r}", {item["task"] for item in items} == {episode["text"]})
    checks.equal(f"{what}: observation.state", column("observation.state").reshape(steps, -1), state)
    checks.equal(f"{what}: action", column("action").reshape(steps, -1), actions)
    checks.equal(f"{what}: next.reward", column("next.reward"), episode["rewards"].astype(np.float32))
    last = np.arange(steps) == steps - 1
    checks.equal(f"{what}: next.done", column("next.done"), last)
    checks.equal(f"{what}: next.success", column("next.success"), last & episode["success"])
    checks.equal(f"{what}: frame_index", column("frame_index"), np.arange(steps))
    checks.equal(f"{what}: episode_index", column("episode_index"), np.full(steps, index))
    checks.equal(f"{what}: index", column("index"), begin + np.arange(steps))
    rate = spec["control_rate"]
    checks.equal(f"{what}: timestamp", column("timestamp"), (np.arange(steps) / rate).astype(np.float32))
    for name in spec["observations"]:
        key = f"observation.{name.replace('/', '.')}"
        if key in dataset.meta.features and key != "observation.state":
            wanted = flat(episode, [f"observation:{name}"])[:steps]
            checks.equal(f"{what}: {key}", column(key).reshape(steps, -1), wanted)
    for key, name in image_fields(spec).items():
        wanted = episode[f"observation:{name}"][:steps].transpose(0, 3, 1, 2)
        found = column(key)[:, :, : wanted.shape[2], : wanted.shape[3]] * 255.0
        errors = np.abs(found - wanted).mean(axis=(1, 2, 3))
        checks.check(
            f"{what}: {steps} frames of {key}, off by {errors.max():.2f} of 255 at most", errors.max() < TOLERANCE
        )
        if steps > 1:
            checks.check(f"{what}: frames of {key} are in their places", in_their_places(found, wanted))


def in_their_places(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Say whether frames are nearer to their own than to those before and after."""

    def error(shown: np.ndarray, recorded: np.ndarray) -> float:
        return float(np.abs(shown - recorded).mean())

    if error(wanted[1:].astype(float), wanted[:-1]) < 0.1:
        return True  # nothing moves
    late = error(found[1:], wanted[1:]) < error(found[1:], wanted[:-1])
    early = error(found[:-1], wanted[:-1]) < error(found[:-1], wanted[1:])
    return late and early


def compare_statistics(checks: Checks, dataset: Any, episodes: list[dict[str, Any]], spec: dict[str, Any]) -> None:
    """Compare what normalisation uses."""
    fields = [f"observation:{name}" for name in state_fields(spec)]
    actions = [f"action:{name}" for name in spec["actions"]]
    values = {
        "observation.state": np.concatenate([flat(one, fields)[: len(one["rewards"])] for one in episodes]),
        "action": np.concatenate([flat(one, actions) for one in episodes]),
    }
    for key, singles in values.items():
        rows = singles.astype(np.float64)
        stats = dataset.meta.stats[key]
        wanted = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
        wanted["count"] = np.array([len(rows)])
        wanted.update({f"q{q:02d}": np.quantile(rows, q / 100, axis=0) for q in (1, 10, 50, 90, 99)})
        for name, value in wanted.items():
            checks.check(f"statistics: {name} of {key}", np.allclose(stats[name], value, atol=1e-6), stats[name], value)
    for key in image_fields(spec):
        shapes = {name: np.shape(value) for name, value in dataset.meta.stats[key].items() if name != "count"}
        checks.check(f"statistics: shapes of {key}", set(shapes.values()) == {(3, 1, 1)}, shapes, (3, 1, 1))


def compare_windows(checks: Checks, root: Path, backend: str, episodes: list[dict[str, Any]], rate: float) -> None:
    """Compare what a policy that predicts chunks asks for: actions ahead, padded at the end of the episode."""
    deltas = {"action": [i / rate for i in range(4)]}
    dataset = opened(root, backend, delta_timestamps=deltas)
    steps = len(episodes[0]["rewards"])
    item = dataset[steps - 1]
    checks.equal(
        "four actions from the last frame of episode 0: padding", item["action_is_pad"], [False, True, True, True]
    )
    checks.check("and none of them is of episode 1", bool((item["action"] == item["action"][0]).all()))


def main() -> int:
    """Compare, print, say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--only-success", action="store_true")
    parser.add_argument("--video-backend", default="pyav")
    arguments = parser.parse_args()
    print(f"lerobot {version('lerobot')}, videos through {arguments.video_backend}")
    spec = json.loads((arguments.recording / "recording.json").read_text())["spec"]
    episodes = recorded_episodes(arguments.recording, arguments.only_success)
    dataset = opened(arguments.dataset, arguments.video_backend)
    checks = Checks()
    checks.equal("number of episodes", dataset.num_episodes, len(episodes))
    checks.equal("number of frames", len(dataset), sum(len(one["rewards"]) for one in episodes))
    checks.equal("frames a second", dataset.fps, spec["control_rate"])
    checks.equal("tasks", sorted(dataset.meta.tasks.index), sorted({one["text"] for one in episodes}))
    if checks.mismatches:
        print("this is another recording's dataset")
        return 1
    begin = 0
    for index, episode in enumerate(episodes):
        compare_episode(checks, dataset, spec, episode, index, begin)
        begin += len(episode["rewards"])
    compare_statistics(checks, dataset, episodes, spec)
    compare_windows(checks, arguments.dataset, arguments.video_backend, episodes, spec["control_rate"])
    for key, value in dataset[0].items():
        print(
            f"     {key}: {tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else f"     {key}: {value!r}"
        )
    print(f"{checks.mismatches} mismatches")
    return int(checks.mismatches > 0)


if __name__ == "__main__":
    sys.exit(main())
