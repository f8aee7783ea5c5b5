"""What the stand-in of OmniGibson finds on disk: a folder like Isaac Sim's, and datasets with instances."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bddl.parsing import parse_problem

TESTS = Path(__file__).resolve().parent
STANDIN = TESTS / "omnigibson_standin"

SCENE = "house_single_floor"
ISAAC = {"3.7.2": "4.5.0-rc.36+release", "3.9.1": "5.1.0-rc.19+release"}
DATASETS = {"3.7.2": "2025-challenge-task-instances", "3.9.1": "2026-challenge-task-instances"}


def instance(activity: str, number: int) -> dict[str, Any]:
    """Return an instance as the files have it; its number says where the robot stands."""
    _, objects, initial, _ = parse_problem(activity, 0, "omnigibson")
    future = {name for condition in initial if condition[0] == "future" for name in condition[1:]}
    names = [name for group in objects.values() for name in group if name not in future]
    state: dict[str, Any] = {
        name: {"root_link": {"pos": [0.5 * number, 0.02 * i, 0.8], "ori": [0.0, 0.0, 0.0, 1.0]}}
        for i, name in enumerate(names)
    }
    state["robot_poses"] = {"R1Pro": [{"position": [1.0 + number, 2.0, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}]}
    return state


def write_instances(folder: Path, activity: str, numbers: range, scene: str = SCENE) -> None:
    """Write instances below a dataset's folder of scenes."""
    place = folder / scene / "json" / f"{scene}_task_{activity}_instances"
    place.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = place / f"{scene}_task_{activity}_0_{number}_template-tro_state.json"
        path.write_text(json.dumps(instance(activity, number)))


def build(root: Path, activities: tuple[str, ...], version: str = "3.7.2") -> dict[str, str]:
    """Make what is needed on disk; return the variables that workers need to find it and the stand-in."""
    (root / "isaac/apps").mkdir(parents=True, exist_ok=True)
    (root / "isaac/VERSION").write_text(ISAAC[version])
    dataset = root / "data" / DATASETS[version]
    for activity in activities:
        write_instances(dataset / "scenes", activity, range(8))
    (dataset / "metadata").mkdir(parents=True, exist_ok=True)
    if version == "3.9.1":
        for activity in activities:
            write_instances(dataset / "scene_test/public", activity, range(301, 304))
    else:
        lines = [f'{i},{activity},"6,7"' for i, activity in enumerate(activities)]
        (dataset / "metadata/test_instances.csv").write_text("\n".join(["Task ID,Task,Instances", *lines]) + "\n")
    return {
        "PYTHONPATH": os.pathsep.join([str(STANDIN), str(TESTS)]),
        "ISAAC_PATH": str(root / "isaac"),
        "OMNIGIBSON_DATA_PATH": str(root / "data"),
        "OMNIGIBSON_APPDATA_PATH": str(root / "appdata"),
        "OMNIGIBSON_STANDIN_LOG": str(root / "log"),
        "OMNIGIBSON_STANDIN_VERSION": version,
    }
