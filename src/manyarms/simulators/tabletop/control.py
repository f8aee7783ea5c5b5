"""Action modes: what the numbers of an action mean and how long the arm takes to do it."""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence, Tuple

import numpy as np

from ..base import Field
from . import panda
from .kinematics import HIGH, LOW, Kinematics
from .planning import Planner
from .scene import CONTROL_PERIOD, WORKSPACE_HIGH, WORKSPACE_LOW
from .worlds import Array, Worlds

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

#: Why an action is refused: nothing moves then. By number, of which 0 is none.
_NOT_A_ROTATION, _OUTSIDE, _OUT_OF_REACH, _NO_PATH = 1, 2, 3, 4


def refusal(reason: int, action: np.ndarray) -> str:
    """Return in words why an action was refused."""
    if reason == _NOT_A_ROTATION:
        return "the quaternion has length %.3f, not 1" % np.linalg.norm(np.asarray(action[3:7], np.float64))
    if reason == _OUTSIDE:
        return "the position is outside the workspace"
    return "the pose cannot be reached" if reason == _OUT_OF_REACH else "no path without a collision was found"


class Controller:
    """Carries out actions of one mode in every world of a batch."""

    def __init__(self, worlds: Worlds, mode: str, planners: Sequence[Planner] = ()) -> None:
        """Have a planner per world for the mode `planning`."""
        self._worlds = worlds
        self._planners = planners
        self._kinematics = Kinematics(worlds)
        self._apply: Callable[[Array], Optional[Array]] = getattr(self, "_" + mode)
        self._low, self._high = worlds.array([LOW]), worlds.array([HIGH])
        self._workspace_low, self._workspace_high = worlds.array([WORKSPACE_LOW]), worlds.array([WORKSPACE_HIGH])
        self._slowest, self._fastest = worlds.array([-_SPEEDS]), worlds.array([_SPEEDS])
        self._back, self._ahead = worlds.array([-_SPEEDS * CONTROL_PERIOD]), worlds.array([_SPEEDS * CONTROL_PERIOD])
        self._paced = worlds.array([_SPEEDS * _PACE * CONTROL_PERIOD])
        self._shut, self._open = worlds.array([[0.0]]), worlds.array([[panda.FINGER_TRAVEL]])
        self._one = worlds.array([[1.0]])

    def apply(self, actions: Array) -> Optional[Array]:
        """Carry out an action in each world; return why some were refused [N], 0 where not; None: in no world."""
        return self._apply(self._worlds.array(actions))

    # -- modes --------------------------------------------------------------------------------------------------------

    def _ik(self, actions: Array) -> Array:
        goals, refused = self._targets(actions)
        going = self._hold_back(refused)
        self._move(goals, going, going)
        self._grip(actions[:, 7] > 0.5, going)
        return refused

    def _planning(self, actions: Array) -> Array:
        goals, refused = self._targets(actions)
        joints, paths = self._worlds.joints, []
        for row, planner in enumerate(self._planners):
            path = None if refused[row] else planner.plan(joints[row].copy(), goals[row])
            if path is None and not refused[row]:
                refused[row] = _NO_PATH
            paths.append(path or [goals[row]])
        going = self._hold_back(refused)
        lengths = self._worlds.integers([len(path) for path in paths])
        for i in range(max(map(len, paths))):
            goals = self._worlds.array([path[min(i, len(path) - 1)] for path in paths])
            self._move(goals, going & (i < lengths), i == lengths - 1)
        self._grip(actions[:, 7] > 0.5, going)
        return refused

    def _delta_ee(self, actions: Array) -> None:
        worlds = self._worlds
        turn = worlds.rotation_matrix(actions[:, 3:6] * DELTA_ROTATION)
        target = worlds.tip_position() + actions[:, :3] * DELTA_POSITION
        target = worlds.clip(target, self._workspace_low, self._workspace_high)
        self._steer(self._kinematics.approach(target, turn @ worlds.tip_rotation()))
        worlds.ctrl[:, worlds.finger_ctrl] = worlds.xp.where(actions[:, 6:7] > 0.0, self._open, self._shut)
        worlds.advance()

    def _joint_position(self, actions: Array) -> None:
        self._steer(self._worlds.clip(actions[:, :7], self._low, self._high))
        self._worlds.advance()
        self._grip(actions[:, 7] > 0.5)

    def _joint_velocity(self, actions: Array) -> None:
        worlds = self._worlds
        speeds = worlds.clip(actions[:, :7], self._slowest, self._fastest)
        joints = worlds.ctrl[:, worlds.arm_ctrl] + speeds * CONTROL_PERIOD
        self._steer(worlds.clip(joints, self._low, self._high))
        worlds.advance()
        self._grip(actions[:, 7] > 0.5)

    # -- parts of them ------------------------------------------------------------------------------------------------

    def _targets(self, actions: Array) -> Tuple[Array, Array]:
        """Return the joints for absolute poses [N, 7], and why there are none [N]."""
        xp, worlds = self._worlds.xp, self._worlds
        position, quats = actions[:, :3], actions[:, 3:7]
        lengths = xp.linalg.norm(quats, axis=1)
        bent = abs(lengths - 1.0) > 1e-2
        outside = ((position < self._workspace_low - 1e-3) | (position > self._workspace_high + 1e-3)).any(1)
        refused = xp.where(bent, _NOT_A_ROTATION, xp.where(outside, _OUTSIDE, 0))
        if worlds.all_set(refused > 0):
            return worlds.joints, refused
        # A world that refuses looks for where it is already, which holds the others up the least.
        usable = (refused == 0)[:, None]
        position = xp.where(usable, position, worlds.tip_position())
        rotation = worlds.quat_to_matrix(quats / xp.where(bent, 1.0, lengths)[:, None])
        rotation = xp.where(usable[:, None], rotation, worlds.tip_rotation())
        joints, solved = self._kinematics.solve(position, rotation, worlds.joints)
        return joints, xp.where(solved, refused, xp.where(refused > 0, refused, _OUT_OF_REACH))

    def _hold_back(self, refused: Array) -> Array:
        """Let a period pass where the action was refused; return the worlds that go on with theirs [N]."""
        going = refused == 0
        if not self._worlds.all_set(going):
            self._worlds.advance(~going)
        return going

    def _steer(self, joints: Array) -> None:
        """Set where the servos pull, no further than they can go in one period."""
        worlds = self._worlds
        now = worlds.ctrl[:, worlds.arm_ctrl]
        worlds.ctrl[:, worlds.arm_ctrl] = now + worlds.clip(joints - now, self._back, self._ahead)

    def _move(self, goals: Array, going: Array, last: Array) -> None:
        """Move until the goals are reached or the arm is stuck; where they are not the `last` of a path, pass by."""
        xp, worlds = self._worlds.xp, self._worlds
        before = worlds.copy(worlds.joints)
        for _ in range(_LONGEST_MOVE):
            if worlds.all_set(~going):
                break
            now = worlds.ctrl[:, worlds.arm_ctrl]
            # All joints arrive together, the slowest at its pace.
            share = worlds.largest(abs(goals - now) / self._paced)
            step = (goals - now) / xp.maximum(share, self._one)
            worlds.ctrl[:, worlds.arm_ctrl] = xp.where(going[:, None], now + step, now)
            worlds.advance(going)
            joints = worlds.copy(worlds.joints)
            ended = ~last | _alike(joints, goals, _REACHED) | _alike(joints, before, _STILL)
            going = going & ~((share[:, 0] <= 1.0) & ended)
            before = joints

    def _grip(self, opened: Array, going: Optional[Array] = None) -> None:
        """Open or close the gripper, and wait until the fingers stop; in the worlds that are `going`, or in all."""
        xp, worlds = self._worlds.xp, self._worlds
        fingers = worlds.ctrl[:, worlds.finger_ctrl]
        target = xp.where(opened[:, None], self._open, self._shut)
        waiting = fingers[:, 0] != target[:, 0]
        if going is not None:
            waiting = waiting & going
        if worlds.all_set(~waiting):
            return
        worlds.ctrl[:, worlds.finger_ctrl] = xp.where(waiting[:, None], target, fingers)
        before = worlds.openness()
        for i in range(_LONGEST_GRIP):
            worlds.advance(waiting)
            now = worlds.openness()
            if i > 1:
                waiting = waiting & (abs(now - before) >= 0.01)
                if worlds.all_set(~waiting):
                    return
            before = now


def _alike(first: Array, second: Array, tolerance: float) -> Array:
    """Tell where all joints are the same within a tolerance: [N]."""
    return (abs(first - second) <= tolerance + 1e-5 * abs(second)).all(1)


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


__all__ = ["MODES", "Controller", "refusal"]
