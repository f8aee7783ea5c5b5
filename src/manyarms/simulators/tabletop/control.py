"""Action modes: what the numbers of an action mean and how long the arm takes to do it."""

from __future__ import annotations

from typing import Callable, Dict, List

import numpy as np

from ..base import Field
from . import panda
from .kinematics import HIGH, LOW, Kinematics
from .scene import CONTROL_PERIOD, WORKSPACE_HIGH, WORKSPACE_LOW
from .world import World, quat_to_matrix

_SPEEDS = np.array(panda.JOINT_SPEEDS)

#: What one unit of `delta_ee` is: metres and radians a step.
DELTA_POSITION = 0.05
DELTA_ROTATION = 0.35

#: A move to a pose ends when every joint is this near, or has not come nearer by the second value (radians).
_REACHED = 0.01
_STILL = 0.001

#: Control periods a move, a path and the gripper may take.
_LONGEST_MOVE = 60
_LONGEST_GRIP = 12

#: Fraction of the joints' top speed at which poses are approached.
_PACE = 0.7


class InvalidAction(Exception):
    """The action cannot be carried out; nothing has moved."""


class Controller:
    """Carries out actions of one mode."""

    def __init__(self, world: World, mode: str, rng: np.random.Generator) -> None:
        self._world = world
        self._kinematics = Kinematics(world)
        self._apply: Callable[[np.ndarray], None] = getattr(self, "_" + mode)
        self.rng = rng
        self.held: List[str] = []
        """Names of the free bodies that planning treats as part of the hand."""

    def apply(self, action: np.ndarray) -> None:
        """Carry out one action."""
        self._apply(np.asarray(action, np.float64))

    def tick(self) -> None:
        """Let one control period pass."""
        self._world.advance(CONTROL_PERIOD)

    # -- modes --------------------------------------------------------------------------------------------------------

    def _ik(self, action: np.ndarray) -> None:
        self._move_through([self._target(action)])
        self._grip(action[7] > 0.5)

    def _planning(self, action: np.ndarray) -> None:
        goal = self._target(action)
        path = self._kinematics.plan(self._world.joints.copy(), goal, self.rng, self.held)
        if path is None:
            raise InvalidAction("no path without a collision was found")
        self._move_through(path)
        self._grip(action[7] > 0.5)

    def _delta_ee(self, action: np.ndarray) -> None:
        position, rotation = self._world.tip_pose()
        angles = action[3:6] * DELTA_ROTATION
        size = float(np.linalg.norm(angles))
        if size > 1e-9:
            axis = angles / size
            half = size / 2
            rotation = quat_to_matrix([*(axis * np.sin(half)), np.cos(half)]) @ rotation
        target = np.clip(position + action[:3] * DELTA_POSITION, WORKSPACE_LOW, WORKSPACE_HIGH)
        self._steer(self._kinematics.approach(target, rotation, self._world.joints.copy()))
        self._set_fingers(action[6] > 0.0)
        self.tick()

    def _joint_position(self, action: np.ndarray) -> None:
        self._steer(np.clip(action[:7], LOW, HIGH))
        self.tick()
        self._grip(action[7] > 0.5)

    def _joint_velocity(self, action: np.ndarray) -> None:
        now = self._world.data.ctrl[self._world.arm_ctrl]
        speed = np.clip(action[:7], -_SPEEDS, _SPEEDS)
        self._steer(np.clip(now + speed * CONTROL_PERIOD, LOW, HIGH))
        self.tick()
        self._grip(action[7] > 0.5)

    # -- parts of them ------------------------------------------------------------------------------------------------

    def _target(self, action: np.ndarray) -> np.ndarray:
        """Return the joints for an absolute pose, or refuse it."""
        length = float(np.linalg.norm(action[3:7]))
        if abs(length - 1.0) > 1e-2:
            raise InvalidAction("the quaternion has length %.3f, not 1" % length)
        low, high = np.array(WORKSPACE_LOW) - 1e-3, np.array(WORKSPACE_HIGH) + 1e-3
        if (action[:3] < low).any() or (action[:3] > high).any():
            raise InvalidAction("the position is outside the workspace")
        rotation = quat_to_matrix(action[3:7] / length)
        joints = self._kinematics.solve(action[:3], rotation, self._world.joints.copy())
        if joints is None:
            raise InvalidAction("the pose cannot be reached")
        return joints

    def _steer(self, joints: np.ndarray) -> None:
        """Set where the servos pull, no further than they can go in one period."""
        now = self._world.data.ctrl[self._world.arm_ctrl]
        reach = _SPEEDS * CONTROL_PERIOD
        self._world.data.ctrl[self._world.arm_ctrl] = now + np.clip(joints - now, -reach, reach)

    def _move_through(self, path: List[np.ndarray]) -> None:
        """Follow way points until the last is reached, or the arm is stuck."""
        world = self._world
        for i, goal in enumerate(path):
            final = i == len(path) - 1
            before = world.joints.copy()
            for _ in range(_LONGEST_MOVE):
                now = world.data.ctrl[world.arm_ctrl].copy()
                # All joints arrive together, the slowest at its pace.
                share = np.abs(goal - now) / (_SPEEDS * _PACE * CONTROL_PERIOD)
                world.data.ctrl[world.arm_ctrl] = now + (goal - now) / max(1.0, float(share.max()))
                self.tick()
                joints = world.joints
                commanded = bool(share.max() <= 1.0)
                if commanded and (not final or np.allclose(joints, goal, atol=_REACHED)):
                    break
                if commanded and np.allclose(joints, before, atol=_STILL):
                    break
                before = joints.copy()

    def _set_fingers(self, opened: bool) -> bool:
        """Tell the gripper where to go; return whether that is news."""
        target = panda.FINGER_TRAVEL if opened else 0.0
        if self._world.data.ctrl[self._world.finger_ctrl[0]] == target:
            return False
        self._world.data.ctrl[self._world.finger_ctrl] = target
        return True

    def _grip(self, opened: bool) -> None:
        """Open or close, and wait until the fingers stop."""
        if not self._set_fingers(opened):
            return
        before = self._world.openness()
        for i in range(_LONGEST_GRIP):
            self.tick()
            now = self._world.openness()
            if i > 1 and abs(now - before) < 0.01:
                return
            before = now


def _pose_field() -> Field:
    low = np.array([*WORKSPACE_LOW, -1, -1, -1, -1, 0], np.float32)
    high = np.array([*WORKSPACE_HIGH, 1, 1, 1, 1, 1], np.float32)
    # A pose outside is an invalid action, told in the info; bounds are for those who sample.
    return Field((8,), "float32", low - 0.5, high + 0.5)


def _joint_field(low: np.ndarray, high: np.ndarray) -> Field:
    return Field((8,), "float32", np.append(low, 0.0).astype(np.float32), np.append(high, 1.0).astype(np.float32))


MODES: Dict[str, Callable[[], Field]] = {
    "ik": _pose_field,
    "planning": _pose_field,
    "delta_ee": lambda: Field((7,), "float32", -1.0, 1.0),
    "joint_position": lambda: _joint_field(LOW, HIGH),
    "joint_velocity": lambda: _joint_field(-_SPEEDS, _SPEEDS),
}


__all__ = ["MODES", "Controller", "InvalidAction"]
