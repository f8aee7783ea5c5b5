"""Instances: files that say where an activity's things and the robot are when an episode begins."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Union

from ..base import SpecError
from .releases import Release

#: Steps of physics in which things that were put somewhere come to rest.
_SETTLING = 25


class Instances:
    """The instances of an activity that episodes may begin from."""

    def __init__(self, data: str, release: Release, scene: str, activity: str, definition: int) -> None:
        self._what = "%s in %s" % (activity, scene)
        self._root = os.path.join(data, release.dataset)
        self._activity = activity
        self._split = release.evaluation
        self._tail = os.path.join(scene, "json", "%s_task_%s_instances" % (scene, activity))
        self._name = re.compile(
            r"%s_task_%s_%d_(\d+)_template-tro_state\.json" % (re.escape(scene), re.escape(activity), definition)
        )
        self._files = self._find("scenes")
        """Number -> path."""
        self.numbers: List[int] = []
        """Those that episodes without a wish begin from; none: the scene as it is stored."""

    def _find(self, folder: str) -> Dict[int, str]:
        paths = glob.glob(os.path.join(glob.escape(os.path.join(self._root, folder, self._tail)), "*.json"))
        named = ((self._name.fullmatch(os.path.basename(path)), path) for path in paths)
        return {int(match.group(1)): path for match, path in named if match}

    def choose(self, wanted: Union[str, Sequence[int]]) -> None:
        """Take a split, or the instances with these numbers."""
        if isinstance(wanted, str):
            evaluation = self._evaluation()
            if wanted == "eval":
                self._files.update(evaluation)
                self.numbers = sorted(evaluation)
                if not evaluation:
                    raise SpecError(
                        "there are no evaluation instances of %s below %s: instances='train', or numbers, name others"
                        % (self._what, self._root)
                    )
            else:
                self.numbers = sorted(set(self._files) - set(evaluation))
            return
        for number in wanted:
            self.path(number)
        self.numbers = list(wanted)

    def _evaluation(self) -> Dict[int, str]:
        if self._split:
            return self._find(self._split)
        path = os.path.join(self._root, "metadata", "test_instances.csv")
        if not os.path.exists(path):
            return {}
        with open(path, newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.reader(lines) if len(row) > 2 and row[1] == self._activity]
        numbers = [int(text) for row in rows for text in row[2].split(",") if text.strip()]
        return {number: self._files[number] for number in numbers if number in self._files}

    def path(self, number: int) -> str:
        """Return the file of an instance."""
        if number not in self._files:
            found = sorted(self._files)
            there = "%d to %d" % (found[0], found[-1]) if found else "none"
            raise SpecError("%s has no instance %r; there are %s" % (self._what, number, there))
        return self._files[number]

    def stand(self, model: str) -> Dict[str, Any]:
        """Return where a robot may stand while scenes are loaded, which else is in the middle of the house."""
        if not self.numbers:
            return {}
        with open(self.path(self.numbers[0]), encoding="utf-8") as file:
            poses = json.load(file).get("robot_poses")
        return dict(_pose_of(model, poses)) if poses else {}


def _pose_of(model: str, poses: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the position and the orientation that an instance has for a robot."""
    known = {name.lower(): value for name, value in poses.items()}
    found = known.get("robot") or known.get(model.lower())
    if found is None:
        raise SpecError("the instance has no pose for %s, only for %s" % (model, ", ".join(poses)))
    return found[0]


def read(path: str, convert: Callable[[Any], Any]) -> Dict[str, Any]:
    """Return what an instance says, as OmniGibson's tensors."""
    with open(path, encoding="utf-8") as file:
        return convert(json.load(file))


def put_things(env: Any, state: Mapping[str, Any]) -> None:
    """Put an activity's things where an instance has them, and note where it has the robot."""
    for name, value in state.items():
        if name == "robot_poses":
            env.scene.write_task_metadata(key="robot_poses", data=value)
        elif name not in env.task.object_scope:
            raise SpecError("the instance has a thing that %s has not: %s" % (env.task.activity_name, name))
        elif not name.startswith("agent."):
            env.task.object_scope[name].load_state(_in_world(env.scene, value), serialized=False)


def _in_world(scene: Any, state: Any) -> Any:
    """Return a thing's state in this scene: files have poses in the scene's frame, OmniGibson loads the world's."""
    root = state.get("root_link") if isinstance(state, dict) else None
    if getattr(scene, "idx", 0) == 0 or not isinstance(root, dict) or "pos" not in root:
        return state
    position, orientation = scene.convert_scene_relative_pose_to_world(root["pos"], root["ori"])
    return {**state, "root_link": {**root, "pos": position, "ori": orientation}}


def put_robot(env: Any) -> None:
    """Put the robot where the instance has it, in its own scene."""
    poses = env.scene.get_task_metadata(key="robot_poses")
    if not poses:
        return
    robot = env.robots[0]
    pose = _pose_of(str(getattr(robot, "model_name", None) or robot.model), poses)
    robot.set_position_orientation(pose["position"], pose["orientation"], frame="scene")
    robot.keep_still()


def settle(sim: Any, envs: Sequence[Any]) -> None:
    """Let things come to rest where they were put."""
    if hasattr(sim, "update_handles"):
        sim.update_handles()
    for _ in range(_SETTLING):
        sim.step_physics()
        for env in envs:
            for thing in env.task.object_scope.values():
                if thing is not None and getattr(thing, "exists", True) and hasattr(thing, "keep_still"):
                    thing.keep_still()


__all__ = ["Instances", "put_robot", "put_things", "read", "settle"]
