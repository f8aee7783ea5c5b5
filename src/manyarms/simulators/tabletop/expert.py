"""A scripted policy: follows a task's way points, in whichever action mode is asked for."""

from __future__ import annotations

from typing import Iterator, Optional

import numpy as np

from .control import DELTA_POSITION, DELTA_ROTATION
from .kinematics import HIGH, LOW, Kinematics
from .panda import JOINT_SPEEDS
from .scene import CONTROL_PERIOD
from .task import TabletopTask, Waypoint
from .world import World, matrix_to_quat, rotation_vector
from .worlds import BatchOfOne

_NEAR = 0.006
_ALIGNED = 0.05
_PATIENCE = 25
_GRIP_STEPS = 8

#: A way point is given up when it has not come nearer by a twentieth for so many steps: a joint is at its limit, or
#: something is in the way.
_STUCK_STEPS = 8


class Expert:
    """Solves one episode from ground truth."""

    def __init__(self, task: TabletopTask, world: World, variation: int, mode: str) -> None:
        self._world = world
        self._mode = mode
        self._kinematics = Kinematics(BatchOfOne(world))
        self._waypoints: Iterator[Waypoint] = task.expert(world, variation)
        self._current: Optional[Waypoint] = None
        self._opened = True
        self._spent = self._gripping = self._since_progress = 0
        self._least_left = np.inf
        self._joints: Optional[np.ndarray] = None

    def act(self) -> np.ndarray:
        """Return the next action."""
        if self._current is None or self._is_done(self._current):
            self._advance()
        waypoint = self._current
        assert waypoint is not None
        self._spent += 1
        if self._mode in ("ik", "planning"):
            action = [*waypoint.position, *matrix_to_quat(waypoint.rotation), float(self._opened)]
        elif self._mode == "delta_ee":
            action = [*self._delta(waypoint), 1.0 if self._opened else -1.0]
        else:
            action = [*self._joint_action(waypoint), float(self._opened)]
        return np.array(action, np.float32)

    def _advance(self) -> None:
        following = next(self._waypoints, None)
        if following is None and self._current is None:
            position, rotation = self._world.tip_pose()
            following = Waypoint(position, rotation)
        if following is not None:
            self._current = following
            if self._mode in ("ik", "planning") and following.opened is not None:
                self._opened = following.opened
        self._spent = self._gripping = self._since_progress = 0
        self._least_left = np.inf
        self._joints = None

    def _is_done(self, waypoint: Waypoint) -> bool:
        """Tell whether the world has come to a way point; in modes that step, the gripper takes its time there."""
        if self._mode in ("ik", "planning"):
            return True
        position, rotation = self._world.tip_pose()
        away = float(np.linalg.norm(waypoint.position - position))
        turned = float(np.linalg.norm(rotation_vector(waypoint.rotation @ rotation.T)))
        there = away < _NEAR and turned < _ALIGNED
        if not there and not self._is_stuck(away + 0.1 * turned) and self._spent < _PATIENCE / waypoint.speed:
            return False
        if waypoint.opened is None or (waypoint.opened == self._opened and not self._gripping):
            return True
        self._opened = waypoint.opened
        self._gripping += 1
        return self._gripping > _GRIP_STEPS

    def _is_stuck(self, left: float) -> bool:
        """Tell whether the tip has stopped coming nearer."""
        if left < 0.95 * self._least_left:
            self._least_left, self._since_progress = left, 0
        else:
            self._since_progress += 1
        return self._since_progress > _STUCK_STEPS

    def _delta(self, waypoint: Waypoint) -> np.ndarray:
        position, rotation = self._world.tip_pose()
        move = (waypoint.position - position) / DELTA_POSITION
        turn = rotation_vector(waypoint.rotation @ rotation.T) / DELTA_ROTATION
        largest = max(1.0, float(np.abs(move).max()) / waypoint.speed, float(np.abs(turn).max()) / waypoint.speed)
        return np.concatenate([move, turn]) / largest

    def _joint_action(self, waypoint: Waypoint) -> np.ndarray:
        if self._joints is None:
            joints = self._world.joints
            found, solved = self._kinematics.solve(waypoint.position[None], waypoint.rotation[None], joints[None])
            self._joints = found[0] if solved[0] else joints
        reach = np.array(JOINT_SPEEDS) * CONTROL_PERIOD * 0.7 * waypoint.speed
        now = self._world.data.ctrl[self._world.arm_ctrl]
        share = max(1.0, float((np.abs(self._joints - now) / reach).max()))
        step = (self._joints - now) / share
        return np.clip(now + step, LOW, HIGH) if self._mode == "joint_position" else step / CONTROL_PERIOD
