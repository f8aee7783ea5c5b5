"""What is in a scene: a robot that goes where it is told at once, and things that only its grippers change.

Closing the left gripper fulfils the next condition of the goal, closing the right one undoes the last. Some commands of
the right gripper are faults: `HANG`, `CRASH`, `ERROR`.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

import omnigibson as og

from .kit import note
from .tensors import Tensor

HANG, CRASH, ERROR = 0.125, 0.25, 0.375

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
        self.position = scene.origin.copy()
        self.yaw = 0.0
        self.rest()

    def rest(self):
        """Take the pose of a reset."""
        joints = np.array(self.config["reset_joint_pos"])
        self.torso, self.arms, self.grippers = joints[6:10].copy(), np.zeros((2, 7)), np.array([1.0, 1.0])
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

    def move(self, seconds):
        self.position[:2] += self.velocity[:2] * seconds
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
    """Something that an activity is about; it jitters when it was put somewhere, until it is kept still."""

    is_system = False

    def __init__(self, scene, name, real):
        self.scene, self.name, self.exists = scene, name, real
        self.synset = name.rpartition("_")[0]
        self.position = scene.origin.copy()
        self.speed = 0.0
        self.restless = 0

    @property
    def facts(self):
        return self.scene.goals.facts

    def load_state(self, state, serialized=False):
        assert self.exists
        assert not serialized
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
        self.metadata = {"robot_poses": {"R1Pro": [{"position": [0.0, 0.0, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}]}}
        self.initial: Any = {}
        og.sim.scenes.append(self)

    def move(self, seconds):
        self.robot.move(seconds)
        for thing in self.things.values():
            thing.position = thing.position + thing.speed * seconds
            thing.restless = max(0, thing.restless - 1)

    def draw(self):
        where = self.robot.position - self.origin
        things = sum(float(np.sum(thing.position - self.origin)) for thing in self.things.values())
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

    def update_initial_file(self):
        if any(thing.restless for thing in self.things.values()):
            note("restless %d" % self.idx)
        self.initial = {name: thing.position.copy() for name, thing in self.things.items()}
        places = {name: (position - self.origin).round(4).tolist() for name, position in self.initial.items()}
        note("things " + json.dumps(places))

    def reset(self):
        for name, position in self.initial.items():
            self.things[name].position = position.copy()
            self.things[name].speed = 0.0
        self.robot.rest()
        self.goals.begin()
        og.sim.step_physics()
