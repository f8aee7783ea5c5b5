"""The robot of the challenge, R1 Pro: what its numbers mean, and how OmniGibson is told to drive it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import numpy as np

from ..base import Field, SpecError
from .releases import Release

NAME = "robot_r1"

#: What we call a camera -> what its name in OmniGibson contains.
CAMERAS: Dict[str, str] = {
    "head": "zed_link:Camera:0",
    "left_wrist": "left_realsense_link:Camera:0",
    "right_wrist": "right_realsense_link:Camera:0",
}

#: The aperture that the head camera had when demonstrations were recorded.
HEAD_APERTURE = 40.0

#: Groups of an action, in order: the least and the largest of each number. Base and grippers are commands, scaled by
#: the controllers to 0.75 m/s, 1 rad/s and 0 to 0.05 m; torso and arms are absolute joint positions.
ACTION_GROUPS: Dict[str, Any] = {
    "base": ((-1.0,) * 3, (1.0,) * 3),
    "torso": ((-1.1345, -2.7925, -1.8326, -3.0543), (1.8326, 2.5307, 1.5708, 3.0543)),
    "left_arm": (
        (-4.4506, -0.1745, -2.3562, -2.0944, -2.3562, -1.0472, -1.5708),
        (1.3090, 3.1416, 2.3562, 0.3491, 2.3562, 1.0472, 1.5708),
    ),
    "left_gripper": ((-1.0,), (1.0,)),
    "right_arm": (
        (-4.4506, -3.1416, -2.3562, -2.0944, -2.3562, -1.0472, -1.5708),
        (1.3090, 0.1745, 2.3562, 0.3491, 2.3562, 1.0472, 1.5708),
    ),
    "right_gripper": ((-1.0,), (1.0,)),
}

#: The 23 numbers of `state`, in order; not that of actions. A gripper's is how far its two fingers are apart.
_STATE = ("base_qvel", "trunk_qpos", "arm_left_qpos", "arm_right_qpos", "gripper_left_qpos", "gripper_right_qpos")

#: Six of the base, four of the torso, seven each of the arms; fingers must start open.
_RESET_JOINTS = [0.0] * 6 + [1.025, -1.45, -0.47, 0.0] + [0.0] * 14 + [0.05] * 4

_BASE_SPEEDS = (0.75, 0.75, 1.0)


def part_of(sizes: Mapping[str, int]) -> Dict[str, slice]:
    """Return where each group lies among numbers that are joined in order."""
    found, first = {}, 0
    for name, size in sizes.items():
        found[name] = slice(first, first + size)
        first += size
    return found


#: Where each group lies in an action.
ACTION = part_of({name: len(low) for name, (low, _) in ACTION_GROUPS.items()})


def action_field() -> Field:
    """Describe an action."""
    low, high = (np.concatenate([group[i] for group in ACTION_GROUPS.values()]).astype(np.float32) for i in range(2))
    return Field(low.shape, "float32", low, high)


class Senses:
    """Reads what a release's robot senses of itself."""

    def __init__(self, release: Release) -> None:
        self.size = sum(release.proprio.values())
        self._parts = part_of(release.proprio)
        self._version = release.version

    def check(self, proprio: np.ndarray) -> None:
        """Refuse numbers that are not those we asked for."""
        if proprio.shape != (self.size,):
            raise SpecError(
                "the robot of OmniGibson %s senses %d numbers, got %s" % (self._version, self.size, proprio.shape)
            )

    def in_scene(self, proprio: np.ndarray, origin: np.ndarray) -> np.ndarray:
        """Return the numbers as if this scene were the only one: OmniGibson tells where in the world the robot is."""
        if "robot_pos" in self._parts:
            proprio[self._parts["robot_pos"]] -= origin
        return proprio

    def state(self, proprio: np.ndarray) -> np.ndarray:
        """Return the 23 numbers that policies are given."""
        parts = [proprio[self._parts[name]] for name in _STATE]
        return np.concatenate([part.sum(keepdims=True) if len(part) == 2 else part for part in parts])

    def at_rest(self, proprio: np.ndarray) -> np.ndarray:
        """Return the action that leaves the robot as it is, its grippers open."""
        action = np.zeros(ACTION["right_gripper"].stop, np.float32)
        for group, joints in (("torso", "trunk"), ("left_arm", "arm_left"), ("right_arm", "arm_right")):
            action[ACTION[group]] = proprio[self._parts[joints + "_qpos"]]
        action[ACTION["left_gripper"]] = action[ACTION["right_gripper"]] = 1.0
        return action


def robot_config(
    release: Release, cameras: Sequence[str], width: int, height: int, grasping_mode: str
) -> Dict[str, Any]:
    """Return the robot's part of OmniGibson's configuration."""
    key, model = release.robot
    joints = {
        "name": "JointController",
        "motor_type": "position",
        "pos_kp": 150,
        "command_input_limits": None,
        "command_output_limits": None,
        "use_impedances": False,
        "use_delta_commands": False,
    }
    fingers = {
        "name": "MultiFingerGripperController",
        "mode": "smooth",
        "command_input_limits": "default",
        "command_output_limits": "default",
    }
    base = {
        "name": "HolonomicBaseJointController",
        "motor_type": "velocity",
        "vel_kp": 150,
        "command_input_limits": [[-1.0] * 3, [1.0] * 3],
        "command_output_limits": [[-speed for speed in _BASE_SPEEDS], list(_BASE_SPEEDS)],
        "use_impedances": False,
    }
    return {
        key: model,
        "name": NAME,
        "action_normalize": False,
        "grasping_mode": grasping_mode,
        # What nobody looks at is not even made: images are most of the cost.
        "obs_modalities": ["rgb", "proprio"] if cameras else ["proprio"],
        "include_sensor_names": [CAMERAS[camera].partition(":")[0] for camera in cameras] or None,
        "proprio_obs": list(release.proprio),
        "reset_joint_pos": list(_RESET_JOINTS),
        "sensor_config": {"VisionSensor": {"sensor_kwargs": {"image_height": height, "image_width": width}}},
        "controller_config": {
            "base": base,
            **{name: dict(joints) for name in ("trunk", "arm_left", "arm_right")},
            **{name: dict(fingers) for name in ("gripper_left", "gripper_right")},
            "camera": {"name": "NullJointController"},
        },
    }
