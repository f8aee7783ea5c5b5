"""Releases of OmniGibson: what differs between those that are supported, and the rules of the challenge in each.

The challenge's own evaluation sets rules that OmniGibson does not have by itself, so do ours.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from ..base import SpecError

#: What the robot senses of itself, in the order in which OmniGibson joins it, and how many numbers each is.
_PROPRIO_2025: Dict[str, int] = {
    **dict.fromkeys(("joint_qpos", "joint_qpos_sin", "joint_qpos_cos", "joint_qvel", "joint_qeffort"), 28),
    **dict.fromkeys(("robot_pos", "robot_ori_cos", "robot_ori_sin"), 3),
    **dict.fromkeys(("robot_2d_ori", "robot_2d_ori_cos", "robot_2d_ori_sin"), 1),
    **dict.fromkeys(("robot_lin_vel", "robot_ang_vel"), 3),
    **dict.fromkeys(("arm_left_qpos", "arm_left_qpos_sin", "arm_left_qpos_cos", "arm_left_qvel"), 7),
    "eef_left_pos": 3,
    "eef_left_quat": 4,
    **dict.fromkeys(("gripper_left_qpos", "gripper_left_qvel"), 2),
    **dict.fromkeys(("arm_right_qpos", "arm_right_qpos_sin", "arm_right_qpos_cos", "arm_right_qvel"), 7),
    "eef_right_pos": 3,
    "eef_right_quat": 4,
    **dict.fromkeys(("gripper_right_qpos", "gripper_right_qvel"), 2),
    **dict.fromkeys(("trunk_qpos", "trunk_qvel"), 4),
    **dict.fromkeys(("base_qpos", "base_qpos_sin", "base_qpos_cos", "base_qvel"), 3),
}

_PROPRIO_2026: Dict[str, int] = {
    "base_qvel": 3,
    **dict.fromkeys(("arm_left_qpos", "arm_left_qvel"), 7),
    "eef_left_pos": 3,
    "eef_left_quat": 4,
    **dict.fromkeys(("gripper_left_qpos", "gripper_left_qvel"), 2),
    **dict.fromkeys(("arm_right_qpos", "arm_right_qvel"), 7),
    "eef_right_pos": 3,
    "eef_right_quat": 4,
    **dict.fromkeys(("gripper_right_qpos", "gripper_right_qvel"), 2),
    **dict.fromkeys(("trunk_qpos", "trunk_qvel"), 4),
}


class Release(NamedTuple):
    """One release of OmniGibson."""

    version: str
    isaac: str
    """The Isaac Sim that it is made for."""
    python: str
    robot: Tuple[str, str]
    """How its configuration names the robot."""
    proprio: Dict[str, int]
    dataset: str
    """The folder of instances below OMNIGIBSON_DATA_PATH."""
    evaluation: str
    """Where the dataset has its evaluation instances; nothing: among the others, listed in test_instances.csv."""
    grasp_window: Optional[float] = None
    """Seconds for which the challenge has a grasp held before the thing is held fast; nothing: as OmniGibson has it."""
    base_mass: Optional[float] = None
    """Kilograms of the robot's base in the challenge; nothing: as OmniGibson has it."""


#: By the first two numbers of the version; the first is what is installed unless told otherwise.
RELEASES: Dict[str, Release] = {
    "3.7": Release(
        "3.7.2",
        "4.5.0",
        "3.10",
        ("type", "R1Pro"),
        _PROPRIO_2025,
        "2025-challenge-task-instances",
        evaluation="",
        grasp_window=0.75,
    ),
    "3.9": Release(
        "3.9.1",
        "5.1.0",
        "3.11",
        ("model", "r1pro"),
        _PROPRIO_2026,
        "2026-challenge-task-instances",
        evaluation="scene_test/public",
        base_mass=250.0,
    ),
}


def release_of(version: str) -> Release:
    """Return the release that an installed OmniGibson belongs to."""
    found = RELEASES.get(".".join(version.split(".")[:2]))
    if found is None:
        supported = " and ".join("%s (Isaac Sim %s)" % (each.version, each.isaac) for each in RELEASES.values())
        older = " The omnigibson of PyPI is too old: install it from its repository." if version < "3" else ""
        raise SpecError("OmniGibson %s is installed; supported are %s.%s" % (version, supported, older))
    return found


#: Changes of things into others that the challenge does without: machines, mixing, and what is cooked in a pot.
_WITHOUT = ("ToggleableMachineRule", "MixingToolRule", "CookingSystemRule")


def set_rules(release: Release) -> None:
    """Set what must be set before scenes are loaded."""
    transitions = importlib.import_module("omnigibson.transition_rules")
    for name in _WITHOUT:
        getattr(transitions, name).ENABLED = False
    if release.grasp_window is not None:
        macros = importlib.import_module("omnigibson.macros").macros
        with macros.unlocked():
            macros.robots.manipulation_robot.GRASP_WINDOW = release.grasp_window


def weigh_robots(sim: Any, envs: Sequence[Any], release: Release) -> None:
    """Give robots the weight that they have in the challenge; scenes must be reset after it."""
    if release.base_mass is None:
        return
    sim.stop()
    for env in envs:
        env.robots[0].base_footprint_link.mass = release.base_mass
    sim.play()
