"""Scenes that share one Isaac Sim: laid out from instances, put back as they were loaded, scored.

An instance is a file that says where an activity's things and the robot are when an episode begins.
"""

from __future__ import annotations

import copy
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


class Clean:
    """A scene as it was loaded: what an episode leaves behind must not be in the next one's start."""

    def __init__(self, env: Any) -> None:
        self._env, self._scene = env, env.scene
        self._scene.reset()
        put_robot(env)
        file = self._scene.save(as_dict=True)
        # It holds the scene's own table, into which every instance is written.
        self._file: Dict[str, Any] = {**file, "metadata": copy.deepcopy(file["metadata"])}
        self._contents = self._names()

    def _names(self) -> Sequence[str]:
        return sorted(thing.name for thing in self._scene.objects)

    @property
    def complete(self) -> bool:
        """Whether nothing was cut up, cooked or otherwise made into something else."""
        return self._names() == self._contents

    def restore(self) -> None:
        """Put everything back: joints, furniture, what was held, and things that are gone."""
        self._scene.restore(self._file)


def part(sim: Any, envs: Sequence[Any]) -> None:
    """Tell each task of what comes and goes in its own scene: OmniGibson tells the last one, of all scenes."""
    if len(envs) < 2:
        return
    for event, method in (
        ("add_obj", "added_obj"),
        ("remove_obj", "removed_obj"),
        ("system_init", "system_init"),
        ("system_clear", "system_clear"),
    ):
        add = getattr(sim, "add_callback_on_" + event)
        for row, env in enumerate(envs):
            name = env.task.activity_name + "_refresh"
            getattr(sim, "remove_callback_on_" + event)(name=name)
            callback = getattr(env.task, "_update_bddl_scope_from_" + method)
            add(name="%s_%d" % (name, row), callback=_of(env.scene, callback))


def _of(scene: Any, callback: Callable[[Any], None]) -> Callable[[Any], None]:
    def hear(thing: Any) -> None:
        if thing.scene is scene:
            callback(thing)

    return hear


class QScore:
    """The challenge's score: compares what is true of a task's goal with what was true at the start."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._before = self._evaluate()

    def _evaluate(self) -> List[List[bool]]:
        """Return, for each way to reach the goal, which of its conditions hold."""
        judge = getattr(self._task, "_evaluate_predicate", None)  # from 3.9 on conditions must be told who judges
        arguments = () if judge is None else (judge,)
        return [
            [bool(condition.evaluate(*arguments)) for condition in option]
            for option in self._task.ground_goal_state_options
        ]

    def now(self, success: bool) -> float:
        """Return 1 on success, else the best share of conditions that have become true, over all ways to the goal."""
        if success:
            return 1.0
        shares = [
            sum(after and not before for before, after in zip(start, option)) / len(option)
            for start, option in zip(self._before, self._evaluate())
        ]
        return max(shares, default=0.0)
