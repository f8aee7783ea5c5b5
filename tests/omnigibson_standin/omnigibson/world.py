"""What is in a scene: a robot that goes where it is told at once, and things that only its grippers change.

Closing the left gripper fulfils the next condition of the goal, closing the right one undoes the last, and driving
pushes the furniture along. Some commands of the right gripper are faults (`HANG`, `CRASH`, `ERROR`); `SLICE` cuts a
thing up, so that it is gone.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import omnigibson as og

from .kit import note
from .tensors import Tensor

HANG, CRASH, ERROR, SLICE = 0.125, 0.25, 0.375, 0.5

_CAMERAS = ("zed_link", "left_realsense_link", "right_realsense_link")
_SPEEDS = np.array([0.75, 0.75, 1.0])

#: Metres between the scenes of a process.
_APART = 50.0


class Sensor:
    """A camera, whose image is that of the last time anything was rendered."""

    def __init__(self, number, image_height=128, image_width=128):
        self.number = number
        self.image_height, self.image_width = image_height, image_width
        self.horizontal_aperture = 20.995
        self.image = np.zeros((image_height, image_width, 4), np.uint8)

    def draw(self, values):
        across = np.linspace(0.0, 1.0, self.image_width)[None, :] * np.ones((self.image_height, 1))
        shades = [np.abs(across * 40 + 60 * value + 10 * self.number) % 255 for value in values]
        alpha = np.full_like(across, 7)
        self.image = np.stack([*shades, alpha], axis=-1).astype(np.uint8)


class Robot:
    def __init__(self, scene, config):
        newer = og.__version__.startswith("3.9")
        if newer:
            assert config["model"] == "r1pro"
            assert "type" not in config, "CANNOT SPECIFY BOTH TYPE AND MODEL"
            self.model = config["model"]
        else:
            self.model_name = config["type"]
            assert self.model_name == "R1Pro"
        assert len(config["reset_joint_pos"]) == 28
        assert config["action_normalize"] is False
        assert config["controller_config"]["base"]["command_output_limits"][1] == list(_SPEEDS)
        assert config["controller_config"]["arm_left"]["use_delta_commands"] is False
        self.scene, self.name, self.config = scene, config["name"], config
        self.sensors = {}
        if "rgb" in config["obs_modalities"]:
            kept = config["include_sensor_names"]
            size = config["sensor_config"]["VisionSensor"]["sensor_kwargs"]
            for number, link in enumerate(_CAMERAS):
                if kept is None or any(part in link for part in kept):
                    self.sensors["%s:%s:Camera:0" % (self.name, link)] = Sensor(number, **size)
        self.position = scene.origin + np.array(config.get("position") or np.zeros(3), float)
        self.yaw = 0.0
        joints = np.array(self.config["reset_joint_pos"])  # once: a reset takes joints from the scene's file
        self.torso, self.arms, self.grippers = joints[6:10].copy(), np.zeros((2, 7)), np.array([1.0, 1.0])
        self.velocity = np.zeros(3)
        self.base_footprint_link = SimpleNamespace(mass=40.0)

    def save(self):
        parts = (self.position, self.yaw, self.torso, self.arms, self.grippers)
        return [np.array(part, float) for part in parts]

    def load(self, state):
        position, yaw, torso, arms, grippers = (part.copy() for part in state)
        self.position, self.yaw, self.torso, self.arms, self.grippers = position, float(yaw), torso, arms, grippers
        self.velocity = np.zeros(3)

    def apply_action(self, action):
        action = action.cpu().numpy() if isinstance(action, Tensor) else np.asarray(action, float)
        assert action.shape == (23,)
        if action[22] == HANG:
            time.sleep(3600)
        if action[22] == CRASH:
            os.abort()
        if action[22] == ERROR:
            raise RuntimeError("PhysX error: the articulation has exploded")
        self.velocity = np.clip(action[:3], -1, 1) * _SPEEDS
        self.torso, self.arms = action[3:7].astype(float), np.stack([action[7:14], action[15:22]]).astype(float)
        grippers = np.array([action[14], action[22]], float)
        closing = (grippers < 0) & (self.grippers >= 0)
        self.grippers = grippers
        if closing[0]:
            self.scene.goals.fulfil()
        if closing[1]:
            self.scene.goals.undo()
        if action[22] == SLICE:
            self.scene.slice()

    def move(self, seconds):
        self.position[:2] += self.velocity[:2] * seconds
        self.scene.furniture[:2] += self.velocity[:2] * seconds
        self.yaw += self.velocity[2] * seconds

    def set_position_orientation(self, position: Any = None, orientation: Any = None, frame="world"):
        self.position = np.array(position, float) + (self.scene.origin if frame == "scene" else 0.0)
        self.yaw = 2 * np.arctan2(orientation[2], orientation[3])

    def keep_still(self):
        self.velocity = np.zeros(3)

    def get_obs(self):
        """Return what it sees and senses, and nothing on that."""
        seen: Any = {name: {"rgb": Tensor(sensor.image)} for name, sensor in self.sensors.items()}
        sensed = self.senses()
        seen["proprio"] = Tensor(np.concatenate([sensed[name] for name in self.config["proprio_obs"]]))
        return seen, {}

    def senses(self):
        fingers = np.repeat((self.grippers[:, None] + 1) * 0.025, 2, axis=1)
        base = np.array([*(self.position - self.scene.origin)[:2], self.yaw])
        # The arms' joints alternate.
        joints = np.concatenate([np.zeros(6), self.torso, self.arms.T.ravel(), fingers.ravel()])
        values = {
            **turned("joint_qpos", joints),
            "joint_qvel": np.zeros(28),
            "joint_qeffort": np.zeros(28),
            "robot_pos": self.position,
            "robot_ori_cos": np.cos([0.0, 0.0, self.yaw]),
            "robot_ori_sin": np.sin([0.0, 0.0, self.yaw]),
            **{"robot_2d_ori" + tail: angle for tail, angle in zip(("", "_cos", "_sin"), angles(self.yaw))},
            "robot_lin_vel": np.array([*self.velocity[:2], 0.0]),
            "robot_ang_vel": np.array([0.0, 0.0, self.velocity[2]]),
            "trunk_qpos": self.torso,
            "trunk_qvel": np.zeros(4),
            **turned("base_qpos", base),
            "base_qvel": self.velocity,
        }
        for i, side in enumerate(("left", "right")):
            values.update(turned("arm_%s_qpos" % side, self.arms[i]))
            values["arm_%s_qvel" % side] = np.zeros(7)
            values["eef_%s_pos" % side] = self.arms[i][:3]
            values["eef_%s_quat" % side] = np.array([0.0, 0.0, 0.0, 1.0])
            values["gripper_%s_qpos" % side] = fingers[i]
            values["gripper_%s_qvel" % side] = np.zeros(2)
        return values


def turned(name, values):
    return {name: values, name + "_sin": np.sin(values), name + "_cos": np.cos(values)}


def angles(yaw):
    return np.array([yaw]), np.cos([yaw]), np.sin([yaw])


class Thing:
    """Something that an activity is about; it jitters when it was put somewhere, until it is kept still.

    `exists` is what its task knows, from being told; what is there is in the scene's `present`.
    """

    is_system = False

    def __init__(self, scene, name, real):
        self.scene, self.name, self.exists = scene, name, real
        self.synset = name.rpartition("_")[0]
        self.position = scene.origin.copy()
        self.speed = 0.0
        self.restless = 0

    def knows(self, fact, other=None):
        """Tell whether something is true of it, and of another thing, as far as its task knows them."""
        return self.exists and (other is None or other.exists) and fact in self.scene.goals.facts

    def load_state(self, state, serialized=False):
        assert self.exists
        assert self.name in self.scene.present, "%s was removed" % self.name
        assert not serialized
        self.scene.goals.begin(self.name)
        self.position = np.array(state["root_link"]["pos"].cpu().numpy(), float)
        self.speed = 0.1
        self.restless = 25

    def keep_still(self):
        self.speed = 0.0


class Scene:
    """A house of its own, beside the others."""

    def __init__(self, config):
        self.idx = len(og.sim.scenes)
        self.model = config["scene_model"]
        self.origin = np.array([_APART * self.idx, 0.0, 0.0])
        self.robot: Any = None
        self.goals: Any = None
        self.things = {}
        self.present = set()
        self.furniture = self.origin.copy()
        self.metadata = {"robot_poses": {"R1Pro": [{"position": [0.0, 0.0, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}]}}
        self._initial_file: Any = None
        og.sim.scenes.append(self)

    def move(self, seconds):
        self.robot.move(seconds)
        self.collide()
        for thing in self.things.values():
            thing.position = thing.position + thing.speed * seconds
            thing.restless = max(0, thing.restless - 1)

    def collide(self):
        """Push robots apart that stand in one place; their joints do not come out of that as they were."""
        others = [scene.robot for scene in og.sim.scenes[: self.idx] if scene.robot is not None]
        if any(np.linalg.norm(robot.position - self.robot.position) < 0.5 for robot in others):
            note("collision %d" % self.idx)
            for robot in (self.robot, *others):
                robot.arms = robot.arms + 0.1

    def draw(self):
        where = self.robot.position - self.origin
        things = sum(
            float(np.sum(self.things[name].position - self.origin)) for name in self.things if name in self.present
        )
        things += float(np.sum(self.furniture - self.origin))
        for sensor in self.robot.sensors.values():
            sensor.draw((float(where[0] + where[1]), float(self.robot.arms.sum()), things))

    def get_position_orientation(self):
        return Tensor(self.origin), Tensor(np.array([0.0, 0.0, 0.0, 1.0]))

    def convert_scene_relative_pose_to_world(self, position, orientation):
        return Tensor(position.cpu().numpy() + self.origin), orientation

    def write_task_metadata(self, key, data):
        self.metadata[key] = data

    def get_task_metadata(self, key):
        return self.metadata.get(key)

    # -- files: what was saved is what a reset restores, and nothing else is reset ------------------------------------

    def save(self, json_path=None, as_dict=False):
        assert as_dict
        state = {
            "things": {name: thing.position.copy() for name, thing in self.things.items()},
            "furniture": self.furniture.copy(),
            "robot": self.robot.save(),
            "facts": set(self.goals.facts),
        }
        newer = og.__version__.startswith("3.9")
        metadata = {"task": self.metadata} if newer else self.metadata  # itself, not a copy
        return {"state": state, "objects_info": set(self.present), "metadata": metadata}

    def restore(self, scene_file, update_initial_file=False):
        metadata = scene_file["metadata"]
        for key, data in metadata.get("task", metadata).items():
            self.write_task_metadata(key=key, data=data)
        wanted = scene_file["objects_info"]
        if wanted != self.present and og.__version__.startswith("3.9"):
            og.sim.stop()  # and with it goes where all others were
            og.sim.play()
        for name in self.present - wanted:
            self._remove(name)
        self.appear(wanted)
        state = scene_file["state"]
        for name, position in state["things"].items():
            self.things[name].position = position.copy()
            self.things[name].speed = 0.0
        self.furniture = state["furniture"].copy()
        self.robot.load(state["robot"])
        self.goals.facts.clear()
        self.goals.facts.update(state["facts"])
        if update_initial_file:
            self.update_initial_file(scene_file=scene_file)

    def update_initial_file(self, scene_file=None):
        if any(thing.restless for thing in self.things.values()):
            note("restless %d" % self.idx)
        note("mass %g" % self.robot.base_footprint_link.mass)
        self._initial_file = scene_file or self.save(as_dict=True)
        saved = self._initial_file["state"]["things"]
        note("things " + json.dumps({name: (at - self.origin).round(4).tolist() for name, at in saved.items()}))

    def reset(self, hard=True):
        self.restore(self._initial_file)
        og.sim.step_physics()

    def forget(self):
        """Lose where everything is, as scenes do when Isaac Sim is stopped."""
        for thing in self.things.values():
            thing.position = self.origin - 9.0
        self.furniture = self.origin - 9.0
        self.robot.arms = np.full((2, 7), 9.0)

    @property
    def objects(self):
        return [SimpleNamespace(name=name) for name in (self.robot.name, *sorted(self.present))]

    def appear(self, names):
        """Have things that are not there yet, as what is cut up leaves halves."""
        for name in set(names) - self.present:
            if not name.startswith("agent."):
                self.present.add(name)
                og.sim.tell("add_obj", SimpleNamespace(name=name, scene=self))

    def slice(self):
        """Cut up the first thing that is there; what is left of it is another object."""
        self._remove(min(self.present))

    def _remove(self, name):
        self.present.discard(name)
        og.sim.tell("remove_obj", SimpleNamespace(name=name, scene=self))
